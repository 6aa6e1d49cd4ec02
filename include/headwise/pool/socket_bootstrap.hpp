// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/pool/bootstrap.hpp>
#include <headwise/pool/shared_segment.hpp>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <span>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

// Ranks that are processes of one host and have nothing else in common than a path. For tests,
// examples and engines without a bootstrap of their own; what meets here is small and rare.

namespace headwise::inline v0 {

namespace detail {

using clock_point = std::chrono::steady_clock::time_point;

/// What stands before the bytes of a message.
struct socket_frame {
  enum : std::uint64_t { hello = 0x6865616477697365u, gather, verdict };

  std::uint64_t what = 0;
  std::uint64_t code = 0;   // of a verdict
  index_t got = 0;          // a hello: the rank
  index_t expected = 0;     // a hello: the size of the group
  std::uint64_t bytes = 0;  // of what a rank gathers; of a verdict: the rank that it is about
};

/// Why a rank is missed, and which.
struct socket_failure {
  static status late(int rank, int size) noexcept {
    return failure(errc::timed_out, "rank", "did not come in time: rank (got) of (expected)", rank,
                   size);
  }
  static status twice(index_t rank, int size) noexcept {
    return failure(errc::invalid_argument, "rank", "has come twice: rank (got) of (expected)", rank,
                   size);
  }
  static status gone(int rank, int size) noexcept {
    return failure(errc::timed_out, "rank", "has left: rank (got) of (expected)", rank, size);
  }
};

/// A file descriptor that is closed with its owner.
class socket_handle {
 public:
  socket_handle() noexcept = default;
  explicit socket_handle(int file) noexcept : file_(file) {}
  socket_handle(socket_handle&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  socket_handle& operator=(socket_handle&& other) noexcept {
    const socket_handle given_up(static_cast<socket_handle&&>(*this));
    file_ = other.file_;
    other.file_ = -1;
    return *this;
  }
  ~socket_handle() {
    if (file_ >= 0) ::close(file_);
  }

  int get() const noexcept { return file_; }
  bool open() const noexcept { return file_ >= 0; }

 private:
  int file_ = -1;
};

/// Milliseconds that poll() may take: rounded up, so that a wait does not end early and spin.
inline int left_until(clock_point deadline) noexcept {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return left.count() > 0 ? static_cast<int>(left.count()) : 0;
}

enum class transfer : std::uint8_t { all, some, gone };

/// As much as there is, without waiting.
inline transfer receive_some(int file, std::span<std::byte> room, std::size_t& done) noexcept {
  while (done < room.size()) {
    const ssize_t said = ::recv(file, room.data() + done, room.size() - done, MSG_DONTWAIT);
    if (said > 0) {
      done += static_cast<std::size_t>(said);
    } else if (said < 0 && errno == EINTR) {
      continue;
    } else {
      return said < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? transfer::some
                                                                   : transfer::gone;
    }
  }
  return transfer::all;
}

/// As much as there is room for, without waiting and without a signal where the peer has left.
inline transfer send_some(int file, std::span<const std::byte> bytes, std::size_t& done) noexcept {
  while (done < bytes.size()) {
    const ssize_t said =
        ::send(file, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (said >= 0) {
      done += static_cast<std::size_t>(said);
    } else if (errno == EINTR) {
      continue;
    } else {
      return errno == EAGAIN || errno == EWOULDBLOCK ? transfer::some : transfer::gone;
    }
  }
  return transfer::all;
}

/// Waits for one socket; false when there is no time left.
inline bool wait_for(int file, short events, clock_point deadline) noexcept {
  for (;;) {
    pollfd one{file, events, 0};
    const int said = ::poll(&one, 1, left_until(deadline));
    if (said > 0) return true;
    if (said == 0 || errno != EINTR) return false;
  }
}

/// `move(done)` until it has moved everything. Errors: timed_out, of rank `peer`.
template <class Move>
status move_all(int file, short events, clock_point deadline, int peer, int size,
                const Move& move) noexcept {
  std::size_t done = 0;
  for (;;) {
    switch (move(done)) {
      case transfer::all: return {};
      case transfer::gone: return socket_failure::gone(peer, size);
      case transfer::some: break;
    }
    if (!wait_for(file, events, deadline)) return socket_failure::late(peer, size);
  }
}

}  // namespace detail

/// Processes of one host that meet at a path, a socket of the Unix domain. Rank 0 listens there,
/// the others connect; everything goes through rank 0. The file is there only until all have come.
///
/// Every wait is bounded by the time-out. When a rank leaves (close(), or its process ends) or does
/// not come, rank 0 tells all others at once; after any such failure the group is done with, and
/// every call fails until it has been closed and opened anew. A rank other than 0 waits a second
/// longer than it was told, to hear from rank 0 who is missing. Used by one thread at a time.
class socket_bootstrap {
 public:
  socket_bootstrap() noexcept = default;
  socket_bootstrap(const socket_bootstrap&) = delete;
  socket_bootstrap& operator=(const socket_bootstrap&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// Collective. `path`: the same for all, in a folder that only this user may write to; what is
  /// left there of a group that was killed is taken away.
  /// Errors: invalid_argument (it is open; the path is in use, or no socket), unsupported (ranks),
  /// out_of_range (the rank), capacity_exceeded (a path of more than 107 bytes), timed_out,
  /// rank_mismatch (another size; a rank that is there twice), system_failed.
  status open(const char* path, int rank, int size, std::chrono::milliseconds timeout) noexcept {
    if (open_) return failure(errc::invalid_argument, "socket", "is open");
    const status ranks_ok = detail::check_gather_bytes(rank, size, 0, 0);
    if (!ranks_ok.ok()) return ranks_ok;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::size_t length = std::strlen(path);
    if (length == 0 || length >= sizeof address.sun_path) {
      return failure(errc::capacity_exceeded, "path", "is so long at most, and not empty",
                     static_cast<index_t>(length), sizeof address.sun_path - 1);
    }
    std::memcpy(address.sun_path, path, length);
    rank_ = rank;
    size_ = size;
    timeout_ = detail::clamp(timeout.count(), 0, longest_timeout.count());
    open_ = true;
    broken_ = {};
    const status opened = rank == 0 ? gather_ranks(address) : find_rank_0(address);
    if (!opened.ok()) close();
    return opened;
  }

  /// Peers that are in a call, or come to one, hear that this rank has left.
  void close() noexcept {
    disconnect();
    open_ = false;
    rank_ = 0;
    size_ = 1;
  }

  /// Errors: invalid_argument (it is not open, or sizes), rank_mismatch (another number of bytes),
  /// timed_out, poisoned.
  status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) noexcept {
    if (!open_) return failure(errc::invalid_argument, "socket", "is not open");
    const status sizes_ok = detail::check_gather_bytes(rank_, size_, mine.size(), all.size());
    if (!sizes_ok.ok()) return sizes_ok;
    if (!broken_.ok()) {
      return failure(errc::poisoned, "socket", "an earlier call failed: open it anew", broken_.got,
                     broken_.expected);
    }
    broken_ = rank_ == 0 ? gather_all(mine, all) : ask_rank_0(mine, all);
    // Peers hear at once that nothing more comes from here.
    if (!broken_.ok()) disconnect();
    return broken_;
  }

 private:
  using frame = detail::socket_frame;

  static constexpr std::chrono::milliseconds longest_timeout = std::chrono::hours(24);
  static constexpr std::chrono::milliseconds grace = std::chrono::seconds(1);

  void disconnect() noexcept {
    for (detail::socket_handle& peer : peers_) peer = {};
  }

  detail::clock_point deadline() const noexcept {
    const detail::clock_point own =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_);
    return rank_ == 0 ? own : own + grace;
  }

  // ---- rank 0 ----------------------------------------------------------------------------------

  status gather_ranks(const sockaddr_un& address) noexcept {
    if (size_ == 1) return {};
    detail::socket_handle listener;
    const status listening = listen_at(address, listener);
    if (!listening.ok()) return listening;
    const status came = accept_all(listener);
    ::unlink(address.sun_path);
    return tell_all(came);
  }

  static status listen_at(const sockaddr_un& address, detail::socket_handle& listener) noexcept {
    listener =
        detail::socket_handle(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener.open()) return detail::system_status(errno, "socket");
    // Of the file that bind() makes.
    static_cast<void>(::fchmod(listener.get(), S_IRUSR | S_IWUSR));
    const auto* const at = reinterpret_cast<const sockaddr*>(&address);
    for (int tries = 0; ::bind(listener.get(), at, sizeof address) != 0; ++tries) {
      if (errno != EADDRINUSE || tries == 1) return detail::system_status(errno, "bind");
      const status stale = take_away(address);
      if (!stale.ok()) return stale;
    }
    return detail::system_status(::listen(listener.get(), max_ranks) == 0 ? 0 : errno, "listen");
  }

  /// A socket that nobody listens to was left by a process that is gone.
  static status take_away(const sockaddr_un& address) noexcept {
    struct stat about {};
    if (::lstat(address.sun_path, &about) == 0 && !S_ISSOCK(about.st_mode)) {
      return failure(errc::invalid_argument, "path", "is there, and is no socket");
    }
    const detail::socket_handle probe(
        ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const auto* const at = reinterpret_cast<const sockaddr*>(&address);
    const bool refused =
        probe.open() && ::connect(probe.get(), at, sizeof address) != 0 && errno == ECONNREFUSED;
    if (!refused) return failure(errc::invalid_argument, "path", "another group meets there");
    ::unlink(address.sun_path);
    return {};
  }

  /// One socket for each rank. Those that have connected and not yet said who they are wait in
  /// `strangers`.
  status accept_all(const detail::socket_handle& listener) noexcept {
    struct stranger {
      detail::socket_handle socket;
      frame said{};
      std::size_t done = 0;
    };
    stranger strangers[max_ranks];
    const detail::clock_point until = deadline();
    while (first_missing() < size_) {
      pollfd all[1 + max_ranks];
      all[0] = {listener.get(), POLLIN, 0};
      for (int i = 0; i < max_ranks; ++i) all[1 + i] = {strangers[i].socket.get(), POLLIN, 0};
      const int said = ::poll(all, 1 + max_ranks, detail::left_until(until));
      if (said == 0) return detail::socket_failure::late(first_missing(), size_);
      if (said < 0 && errno != EINTR) return detail::system_status(errno, "poll");
      if (said < 0) continue;
      for (int i = 0; i < max_ranks; ++i) {
        stranger& one = strangers[i];
        if (!one.socket.open() || all[1 + i].revents == 0) continue;
        const detail::transfer got = detail::receive_some(
            one.socket.get(), std::as_writable_bytes(std::span(&one.said, 1)), one.done);
        if (got == detail::transfer::some) continue;
        if (got == detail::transfer::all) {
          const status known = admit(one.said, one.socket);
          if (!known.ok()) return known;
        }
        one = {};
      }
      if (all[0].revents == 0) continue;
      detail::socket_handle socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      for (stranger& one : strangers) {
        if (!socket.open()) break;
        if (!one.socket.open()) one.socket = static_cast<detail::socket_handle&&>(socket);
      }
    }
    return {};
  }

  status admit(const frame& said, detail::socket_handle& socket) noexcept {
    if (said.what != frame::hello) return {};  // no rank: its socket is closed
    status wrong{};
    const bool has_place = said.expected == size_ && said.got > 0 && said.got < size_;
    if (!has_place) {
      wrong = failure(errc::rank_mismatch, "bootstrap",
                      detail::seen_on[detail::clamp(said.got, 0, max_ranks - 1)], said.expected,
                      size_, "size");
    } else if (peers_[said.got].open()) {
      wrong = detail::socket_failure::twice(said.got, size_);
    }
    if (!wrong.ok()) {
      // The others hear of it with all that have a place; this one has none.
      static_cast<void>(tell(socket, wrong, std::chrono::steady_clock::now()).ok());
      return wrong;
    }
    peers_[said.got] = static_cast<detail::socket_handle&&>(socket);
    return {};
  }

  int first_missing() const noexcept {
    int rank = 1;
    while (rank < size_ && peers_[rank].open()) ++rank;
    return rank;
  }

  static std::uint64_t rank_in(const status& verdict) noexcept {
    std::uint64_t rank = 0;
    while (rank < max_ranks && verdict.message != detail::seen_on[rank]) ++rank;
    return rank < max_ranks ? rank : 0;
  }

  status tell(const detail::socket_handle& peer, const status& verdict,
              detail::clock_point until) const noexcept {
    const frame said{frame::verdict, static_cast<std::uint64_t>(verdict.code), verdict.got,
                     verdict.expected, rank_in(verdict)};
    return send_to(peer, std::as_bytes(std::span(&said, 1)), until, 0);
  }

  /// The verdict, to all that are there. Returns it, or the failure of one that cannot be told that
  /// all is well, and then all others hear that.
  status tell_all(const status& verdict) noexcept {
    const detail::clock_point until = deadline();
    status told = verdict;
    for (int r = 1; r < size_; ++r) {
      if (!peers_[r].open()) continue;
      const status sent = tell(peers_[r], told, until);
      if (sent.ok() || !told.ok()) continue;
      told = detail::socket_failure::gone(r, size_);
      // Those that were told otherwise find this rank gone at their next call.
      for (int before = 1; before < r; ++before) peers_[before] = {};
    }
    return told;
  }

  status send_to(const detail::socket_handle& peer, std::span<const std::byte> bytes,
                 detail::clock_point until, int rank) const noexcept {
    return detail::move_all(peer.get(), POLLOUT, until, rank, size_, [&](std::size_t& done) {
      return detail::send_some(peer.get(), bytes, done);
    });
  }

  /// A part of every rank, from whichever comes.
  status gather_all(std::span<const std::byte> mine, std::span<std::byte> all) noexcept {
    const status came = receive_all(mine, all);
    if (!came.ok() || size_ == 1) return tell_all(came);
    const status told = tell_all({});
    if (!told.ok()) return told;
    // One that has left since keeps nobody else from the parts that all have sent.
    const detail::clock_point until = deadline();
    status first{};
    for (int r = 1; r < size_; ++r) {
      const status sent = send_to(peers_[r], all, until, r);
      if (first.ok()) first = sent;
    }
    return first;
  }

  status receive_all(std::span<const std::byte> mine, std::span<std::byte> all) noexcept {
    struct part {
      frame head{};
      std::size_t head_done = 0;
      std::size_t done = 0;
      bool complete = false;
    };
    part parts[max_ranks];
    if (!mine.empty()) std::memcpy(all.data(), mine.data(), mine.size());
    parts[0].head.bytes = mine.size();
    const detail::clock_point until = deadline();
    for (int missing = 1; missing < size_;) {
      pollfd waited[max_ranks];
      for (int r = 0; r < size_; ++r) {
        waited[r] = {r == 0 || parts[r].complete ? -1 : peers_[r].get(), POLLIN, 0};
      }
      const int said = ::poll(waited, static_cast<nfds_t>(size_), detail::left_until(until));
      if (said == 0) return detail::socket_failure::late(missing, size_);
      if (said < 0 && errno != EINTR) return detail::system_status(errno, "poll");
      for (int r = 1; r < size_ && said > 0; ++r) {
        part& one = parts[r];
        if (waited[r].revents == 0) continue;
        detail::transfer got = detail::receive_some(
            peers_[r].get(), std::as_writable_bytes(std::span(&one.head, 1)), one.head_done);
        // Another number of bytes has no place here; it is reported when all have said theirs.
        const bool fits = one.head.what == frame::gather && one.head.bytes == mine.size();
        if (got == detail::transfer::all && fits) {
          got = detail::receive_some(
              peers_[r].get(), all.subspan(static_cast<std::size_t>(r) * mine.size(), mine.size()),
              one.done);
        }
        if (got == detail::transfer::gone) return detail::socket_failure::gone(r, size_);
        one.complete = got == detail::transfer::all;
      }
      while (missing < size_ && parts[missing].complete) ++missing;
    }
    return detail::find_odd_one(size_, [&](int one, int other) -> status {
      const std::uint64_t got = parts[one].head.bytes;
      const std::uint64_t expected = parts[other].head.bytes;
      if (got == expected) return {};
      return failure(errc::rank_mismatch, "bootstrap", detail::seen_on[one],
                     static_cast<index_t>(got), static_cast<index_t>(expected), "bytes");
    });
  }

  // ---- the others ------------------------------------------------------------------------------

  status find_rank_0(const sockaddr_un& address) noexcept {
    const detail::clock_point until = deadline();
    const auto* const at = reinterpret_cast<const sockaddr*>(&address);
    for (;;) {
      detail::socket_handle socket(
          ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket.open()) return detail::system_status(errno, "socket");
      const int said = ::connect(socket.get(), at, sizeof address);
      if (said == 0) {
        peers_[0] = static_cast<detail::socket_handle&&>(socket);
        break;
      }
      // Rank 0 is not there yet; or another one was, and was killed; or its queue is full.
      const bool early = errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN;
      if (!early && errno != EINTR) return detail::system_status(errno, "connect");
      if (detail::left_until(until) == 0) return detail::socket_failure::late(0, size_);
      static_cast<void>(::poll(nullptr, 0, 2));
    }
    const frame hello{frame::hello, 0, rank_, size_, 0};
    const status sent = send_to(peers_[0], std::as_bytes(std::span(&hello, 1)), until, 0);
    return sent.ok() ? hear_verdict(until, "size") : sent;
  }

  status ask_rank_0(std::span<const std::byte> mine, std::span<std::byte> all) noexcept {
    const detail::clock_point until = deadline();
    const frame head{frame::gather, 0, 0, 0, mine.size()};
    // Rank 0 may have left a verdict on its way out, and then it is the reason.
    const status head_sent = send_to(peers_[0], std::as_bytes(std::span(&head, 1)), until, 0);
    const status sent = head_sent.ok() ? send_to(peers_[0], mine, until, 0) : head_sent;
    const status verdict = hear_verdict(until, "bytes");
    if (!sent.ok()) return verdict.ok() ? sent : verdict;
    return verdict.ok() ? receive_from_0(all, until) : verdict;
  }

  status hear_verdict(detail::clock_point until, const char* axis) noexcept {
    frame said{};
    const status heard = receive_from_0(std::as_writable_bytes(std::span(&said, 1)), until);
    if (!heard.ok()) return heard;
    const auto code = static_cast<errc>(said.code);
    if (code == errc::ok) return {};
    if (code == errc::timed_out) {
      return failure(code, "rank", "did not come, or has left: rank (got) of (expected)", said.got,
                     said.expected);
    }
    if (code == errc::invalid_argument) return detail::socket_failure::twice(said.got, size_);
    return failure(code, "bootstrap", detail::seen_on[said.bytes % max_ranks], said.got,
                   said.expected, axis);
  }

  status receive_from_0(std::span<std::byte> room, detail::clock_point until) const noexcept {
    return detail::move_all(peers_[0].get(), POLLIN, until, 0, size_, [&](std::size_t& done) {
      return detail::receive_some(peers_[0].get(), room, done);
    });
  }

  detail::socket_handle peers_[max_ranks];  // of rank 0: all others; of another: rank 0 at [0]
  index_t timeout_ = 0;
  status broken_{};
  int rank_ = 0;
  int size_ = 1;
  bool open_ = false;
};

static_assert(bootstrap<socket_bootstrap>);

}  // namespace headwise::inline v0
