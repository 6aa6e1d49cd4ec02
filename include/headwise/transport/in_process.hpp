// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/transport/call_check.hpp>
#include <headwise/transport/transport.hpp>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

// Ranks that are threads of one process, and no CUDA: the embedded default, and how a machine
// without a GPU tests an engine's sharding. in_process_cuda.cuh has the same for memory of a GPU.

namespace headwise::inline v0 {

namespace detail {

/// Calls move(target, source, bytes) for each stretch of bytes without a gap at either end, unless
/// it is in its place already. Precondition: both chunks have as many bytes, and are disjoint or
/// begin at the same address.
template <class Move>
void for_each_stretch(const send_chunk& from, const receive_chunk& to, const Move& move) noexcept {
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(to.data);
  index_t source_at = 0;  // within the run
  index_t target_at = 0;
  for (index_t left = from.bytes(); left > 0;) {
    const index_t step = lesser(from.run_bytes - source_at, to.run_bytes - target_at);
    // A rank gathers its own part into its own place.
    if (target + target_at != source + source_at) {
      move(target + target_at, source + source_at, static_cast<std::size_t>(step));
    }
    left -= step;
    source_at += step;
    target_at += step;
    // Moves on only towards a run that exists, so that no pointer leaves its array.
    if (left > 0 && source_at == from.run_bytes) {
      source += from.pitch;
      source_at = 0;
    }
    if (left > 0 && target_at == to.run_bytes) {
      target += to.pitch;
      target_at = 0;
    }
  }
}

/// Copies the bytes of one chunk into the other. Precondition: that of for_each_stretch().
inline void copy_chunk(const send_chunk& from, const receive_chunk& to) noexcept {
  for_each_stretch(from, to, [](std::byte* target, const std::byte* source, std::size_t bytes) {
    std::memcpy(target, source, bytes);
  });
}

constexpr bool same_text(const char* a, const char* b) noexcept {
  if (a == b) return true;
  for (; *a != '\0' && *a == *b; ++a) ++b;
  return *a == *b;
}

}  // namespace detail

/// How a rank copies out of the memory of its peers: by the host, at once.
///
/// Another type with these three copies other memory. ready() comes before the first meeting: what
/// this rank sends must be there. copy() comes once for each chunk that the rank receives, and
/// finish() behind them, whatever they came to: afterwards nothing may be under way. None of them
/// waits for a peer.
struct host_copy {
  status ready() const noexcept { return {}; }
  status copy(const send_chunk& from, const receive_chunk& to) const noexcept {
    detail::copy_chunk(from, to);
    return {};
  }
  status finish() const noexcept { return {}; }
};

template <class Copy>
class basic_in_process;

namespace detail {

/// Where the ranks of one group meet.
///
/// A call has two meetings. Each rank posts what it sends and where it receives, and waits for the
/// others. The last to come judges the posts, one verdict for all. If it is good each rank copies
/// what is for it out of the memory of its peers. At the second meeting all leave together, and the
/// posted memory is its owner's again. A rank whose copies failed comes there too, and its peers
/// hear of it.
///
/// The first meeting is bounded by the time-out: a rank that does not come ends the call on all
/// ranks with the same status and poisons the group. The second one has no time-out and must have
/// none: a rank that left would take its memory along while a peer still reads it. It is bounded
/// all the same, as no rank waits for a peer, or runs code of the caller, between the two.
class in_process_meetings {
 public:
  /// `ranks` from 1 to 16 (rank() reports anything else). `timeout` bounds every wait for a rank.
  explicit in_process_meetings(
      int ranks, std::chrono::milliseconds timeout = std::chrono::seconds(10)) noexcept
      : ranks_(ranks), timeout_(timeout < longest_timeout ? timeout : longest_timeout) {}
  in_process_meetings(const in_process_meetings&) = delete;
  in_process_meetings& operator=(const in_process_meetings&) = delete;

 protected:
  int ranks() const noexcept { return ranks_; }

 private:
  template <class Copy>
  friend class headwise::basic_in_process;

  // A deadline further away would leave the range of the clock.
  static constexpr std::chrono::milliseconds longest_timeout = std::chrono::hours(24);

  enum class action : std::uint8_t { exchange, all_gather, barrier, refusal };

  struct post {
    action what = action::barrier;
    call_signature call;
    std::span<const send_chunk> send;
    std::span<const receive_chunk> receive;
    status refusal;
  };

  template <class Copy>
  status call(int rank, const Copy& copy, const post& mine) noexcept {
    std::unique_lock lock(mutex_);
    const status met = meet(lock, rank, mine);
    if (!met.ok()) return met;
    status received{};
    if (verdict_.ok()) {
      lock.unlock();
      received = receive(rank, copy);
      lock.lock();
      if (!received.ok()) verdict_ = as_seen_on(rank, received);
    }
    part(lock);
    // The next verdict is not before this rank comes again.
    return received.ok() ? verdict_ : received;
  }

  status meet(std::unique_lock<std::mutex>& lock, int rank, const post& mine) noexcept {
    if (!poison_.ok()) return poisoned();
    if ((inside_ & bit(rank)) != 0) {
      return failure(errc::invalid_argument, "rank",
                     "is inside a call: a handle is for one thread at a time", 2, 1);
    }
    inside_ |= bit(rank);
    posts_[rank] = mine;
    if (inside_ == all()) {
      verdict_ = judge();
      still_here_ = ranks_;
      ++meetings_;
      changed_.notify_all();
      return {};
    }
    const std::uint64_t before = meetings_;
    const auto ended = [&] { return meetings_ != before || !poison_.ok(); };
    if (!changed_.wait_until(lock, deadline(), ended)) {
      poison_ = did_not_come(inside_);
      changed_.notify_all();
    }
    if (meetings_ != before) return {};
    inside_ &= ~bit(rank);
    return poison_;
  }

  void part(std::unique_lock<std::mutex>& lock) noexcept {
    const std::uint64_t before = partings_;
    if (--still_here_ == 0) {
      inside_ = 0;
      ++partings_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return partings_ != before; });
  }

  /// A meeting of its own, of which the group is as new. Who still waits in a call is sent here.
  status reset(int rank) noexcept {
    std::unique_lock lock(mutex_);
    if (poison_.ok()) {
      poison_ =
          failure(errc::poisoned, "group", "rank (got) of (expected) resets it", rank, ranks_);
      changed_.notify_all();
    }
    resetting_ |= bit(rank);
    const auto end = [&](const status& verdict) {
      if (verdict.ok()) poison_ = {};
      reset_verdicts_[resets_ % 2] = verdict;
      resetting_ = 0;
      ++resets_;
      changed_.notify_all();
      return verdict;
    };
    if (resetting_ == all()) return end({});
    const std::uint64_t before = resets_;
    if (changed_.wait_until(lock, deadline(), [&] { return resets_ != before; })) {
      return reset_verdicts_[before % 2];
    }
    return end(did_not_come(resetting_));
  }

  /// Out of the memory of the peers, into this rank's.
  template <class Copy>
  status receive(int rank, const Copy& copy) const noexcept {
    const auto size = static_cast<std::size_t>(ranks_);
    const auto to = static_cast<std::size_t>(rank);
    const post& mine = posts_[rank];
    status copied{};
    for (std::size_t i = 0; i < mine.receive.size() && copied.ok(); ++i) {
      copied = copy.copy(chunk_for(posts_[i % size], i / size, to), mine.receive[i]);
    }
    const status finished = copy.finish();
    return copied.ok() ? finished : copied;
  }

  const send_chunk& chunk_for(const post& from, std::size_t plane, std::size_t to) const noexcept {
    if (from.what == action::all_gather) return from.send[0];
    return from.send[plane * static_cast<std::size_t>(ranks_) + to];
  }

  /// What the peers hear of a failure of one rank.
  static status as_seen_on(int rank, status why) noexcept {
    why.code = errc::rank_mismatch;
    why.message = detail::seen_on[rank];
    return why;
  }

  status judge() const noexcept {
    for (int i = 0; i < ranks_; ++i) {
      if (posts_[i].what != action::refusal) continue;
      return as_seen_on(i, posts_[i].refusal);
    }
    const status odd =
        detail::find_odd_one(ranks_, [this](int one, int other) { return compare(one, other); });
    return odd.ok() ? compare_sizes() : odd;
  }

  /// Whether the call of one rank is that of another: the status has the operation of the one as
  /// its operand and what differs as its axis.
  status compare(int one, int other) const noexcept {
    const post& a = posts_[one];
    const post& b = posts_[other];
    const auto differs = [&](const char* what, index_t got, index_t expected) {
      return failure(errc::rank_mismatch, a.call.operation, detail::seen_on[one], got, expected,
                     what);
    };
    if (a.what != b.what || !detail::same_text(a.call.operation, b.call.operation)) {
      return differs("operation", 0, 0);
    }
    for (int i = 0; i < call_signature::max_fields; ++i) {
      const call_field& x = a.call.fields[i];
      const call_field& y = b.call.fields[i];
      if (!detail::same_text(x.name, y.name) || x.value != y.value) {
        return differs(*x.name != '\0' ? x.name : y.name, x.value, y.value);
      }
    }
    if (a.receive.size() != b.receive.size()) {
      return differs("planes", planes(a), planes(b));
    }
    return {};
  }

  index_t planes(const post& which) const noexcept {
    return static_cast<index_t>(which.receive.size()) / ranks_;
  }

  /// Whether each rank sends as many bytes (got) as its peer has room for (expected).
  status compare_sizes() const noexcept {
    const auto size = static_cast<std::size_t>(ranks_);
    for (std::size_t to = 0; to < size; ++to) {
      const post& mine = posts_[to];
      for (std::size_t i = 0; i < mine.receive.size(); ++i) {
        const index_t sent = chunk_for(posts_[i % size], i / size, to).bytes();
        if (sent != mine.receive[i].bytes()) {
          return failure(errc::rank_mismatch, mine.call.operation, detail::seen_on[to], sent,
                         mine.receive[i].bytes(), "bytes");
        }
      }
    }
    return {};
  }

  status did_not_come(std::uint32_t came) const noexcept {
    int missing = 0;
    while ((came & bit(missing)) != 0) ++missing;
    return failure(errc::timed_out, "rank", "did not come in time: rank (got) of (expected)",
                   missing, ranks_);
  }

  status poisoned() const noexcept {
    if (poison_.code == errc::poisoned) return poison_;
    return failure(errc::poisoned, "group",
                   "rank (got) of (expected) did not come to an earlier call: reset() is due",
                   poison_.got, poison_.expected);
  }

  static constexpr std::uint32_t bit(int rank) noexcept { return std::uint32_t{1} << rank; }
  std::uint32_t all() const noexcept { return bit(ranks_) - 1; }
  std::chrono::steady_clock::time_point deadline() const noexcept {
    return std::chrono::steady_clock::now() + timeout_;
  }

  const int ranks_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t inside_ = 0;     // ranks that have come to a call and not left it
  std::uint32_t resetting_ = 0;  // ranks that have come to a reset
  int still_here_ = 0;           // ranks that are between the two meetings of a call
  std::uint64_t meetings_ = 0;
  std::uint64_t partings_ = 0;
  std::uint64_t resets_ = 0;
  status poison_{};
  status reset_verdicts_[2] = {};  // of alternate resets: a slow rank still reads the last but one
  status verdict_{};
  // Written under the mutex up to the first meeting, only read between the two.
  post posts_[max_ranks] = {};
};

}  // namespace detail

/// What the ranks of one group share. Outlives its handles; neither copied nor moved.
template <class Copy>
class basic_in_process_group : private detail::in_process_meetings {
 public:
  /// `ranks` from 1 to 16 (rank() reports anything else). `timeout`, ten seconds unless given,
  /// bounds every wait for a rank.
  using in_process_meetings::in_process_meetings;

  /// The handle of one rank, to be used by one thread at a time.
  /// Errors: unsupported (the size of the group), out_of_range (the rank).
  result<basic_in_process<Copy>> rank(int which, const Copy& copy = {}) noexcept;
};

/// One rank of a group: a pointer, a number, and how it copies.
template <class Copy>
class basic_in_process {
 public:
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return group_->ranks_; }

  /// The same rank, whose copies run on another stream. One of the two is used at a time.
  template <class Stream>
    requires requires(Stream stream) { Copy{stream}; }
  basic_in_process on(Stream stream) const noexcept {
    basic_in_process other = *this;
    other.copy_ = Copy{stream};
    return other;
  }

  /// Errors: invalid_argument (not one chunk per plane and peer, or another thread uses this rank),
  /// those of check_chunk(), rank_mismatch (ranks disagree about the call, or one of them failed),
  /// timed_out, poisoned, those of Copy. Nothing is received unless all ranks accept the call.
  /// timed_out and poisoned leave the group poisoned.
  status exchange(std::span<const send_chunk> send, std::span<const receive_chunk> receive,
                  const call_signature& call) noexcept {
    const status sent_ok = check("send", send);
    if (!sent_ok.ok()) return refuse(sent_ok);
    const status received_ok = check("receive", receive);
    if (!received_ok.ok()) return refuse(received_ok);
    if (send.size() != receive.size()) {
      return refuse(failure(errc::invalid_argument, "receive", "as many chunks as are sent",
                            static_cast<index_t>(receive.size()),
                            static_cast<index_t>(send.size())));
    }
    return meet({action::exchange, call, send, receive, {}});
  }

  /// Errors: as exchange().
  status all_gather(const send_chunk& own, std::span<const receive_chunk> receive,
                    const call_signature& call) noexcept {
    const status own_ok = check_chunk("own", own);
    if (!own_ok.ok()) return refuse(own_ok);
    const status received_ok = check("receive", receive);
    if (!received_ok.ok()) return refuse(received_ok);
    if (receive.size() != static_cast<std::size_t>(size())) {
      return refuse(failure(errc::invalid_argument, "receive", "one chunk per rank",
                            static_cast<index_t>(receive.size()), size()));
    }
    return meet({action::all_gather, call, {&own, 1}, receive, {}});
  }

  /// Errors: rank_mismatch, timed_out, poisoned, those of Copy.
  status barrier() noexcept { return meet({action::barrier, {"barrier", {}}, {}, {}, {}}); }

  /// The peers of this call get rank_mismatch with the operand, the axis and the values of `why`,
  /// at once. Returns `why`, whether or not they came.
  status refuse(const status& why) noexcept {
    static_cast<void>(
        group_->call(rank_, copy_, {action::refusal, {"refused", {}}, {}, {}, why}).ok());
    return why;
  }

  /// Makes a poisoned group usable again, once all ranks have called it. Ranks that still wait in a
  /// call leave it with `poisoned`. Errors: timed_out; the group stays poisoned, one may try again.
  status reset() noexcept { return group_->reset(rank_); }

 private:
  friend class basic_in_process_group<Copy>;
  using meetings = detail::in_process_meetings;
  using action = meetings::action;
  basic_in_process() = default;

  status meet(const meetings::post& mine) noexcept {
    const status ready = copy_.ready();
    return ready.ok() ? group_->call(rank_, copy_, mine) : refuse(ready);
  }

  template <class Chunk>
  status check(const char* operand, std::span<const Chunk> chunks) const noexcept {
    if (chunks.size() % static_cast<std::size_t>(size()) != 0) {
      return failure(errc::invalid_argument, operand, "one chunk per plane and rank (expected)",
                     static_cast<index_t>(chunks.size()), size());
    }
    for (const Chunk& chunk : chunks) {
      const status chunk_ok = check_chunk(operand, chunk);
      if (!chunk_ok.ok()) return chunk_ok;
    }
    return {};
  }

  meetings* group_ = nullptr;
  int rank_ = 0;
  Copy copy_{};
};

template <class Copy>
result<basic_in_process<Copy>> basic_in_process_group<Copy>::rank(int which,
                                                                  const Copy& copy) noexcept {
  const status size_ok = require_supported_ranks(ranks());
  if (!size_ok.ok()) return size_ok;
  if (which < 0 || which >= ranks()) {
    return failure(errc::out_of_range, "rank", "a rank is below the size of its group", which,
                   ranks());
  }
  basic_in_process<Copy> handle;
  handle.group_ = this;
  handle.rank_ = which;
  handle.copy_ = copy;
  return handle;
}

using in_process_group = basic_in_process_group<host_copy>;
using in_process = basic_in_process<host_copy>;

static_assert(transport<in_process>);

}  // namespace headwise::inline v0
