// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/transport/call_check.hpp>
#include <headwise/transport/transport.hpp>

#include <concepts>
#include <cstring>
#include <span>
#include <type_traits>

// How ranks find each other before they have memory in common: bytes of the host, from all to all.
// An engine has such a thing already, and hands it over as a callback_bootstrap.

namespace headwise::inline v0 {

/// An all-gather of host bytes between the ranks of a group.
///
/// all_gather  `mine`, as many bytes on every rank, arrives as part i of `all` on every rank, i
///             being this one; `all` has size() parts. Collective, called in the same order on all
///             ranks. Returns when all parts are there, or with a failure within a time limit of
///             its own: nothing here has another way to find out that a rank is gone.
template <class T>
concept bootstrap = requires(T& t, std::span<const std::byte> mine, std::span<std::byte> all) {
  { t.rank() } -> std::same_as<int>;
  { t.size() } -> std::same_as<int>;
  { t.all_gather(mine, all) } -> std::same_as<status>;
};

namespace detail {

/// Errors: unsupported, out_of_range, invalid_argument.
constexpr status check_gather_bytes(int rank, int size, std::size_t mine,
                                    std::size_t all) noexcept {
  const status size_ok = require_supported_ranks(size);
  if (!size_ok.ok()) return size_ok;
  if (rank < 0 || rank >= size) {
    return failure(errc::out_of_range, "rank", "a rank is below the size of its group", rank, size);
  }
  if (all == mine * static_cast<std::size_t>(size)) return {};
  return failure(errc::invalid_argument, "all", "as many bytes from each rank as it sends",
                 static_cast<index_t>(all), static_cast<index_t>(mine) * size);
}

}  // namespace detail

/// Any bootstrap, by reference: what it refers to outlives it. Two pointers and two numbers.
class bootstrap_ref {
 public:
  template <class T>
    requires(!std::same_as<std::remove_const_t<T>, bootstrap_ref> && bootstrap<T>)
  bootstrap_ref(T& of)
  noexcept  // NOLINT: implicit
      : object_(const_cast<std::remove_const_t<T>*>(__builtin_addressof(of))),
        gather_([](void* object, std::span<const std::byte> mine,
                   std::span<std::byte> all) noexcept -> status {
          return static_cast<T*>(object)->all_gather(mine, all);
        }),
        rank_(of.rank()),
        size_(of.size()) {}

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// Errors: unsupported (more than 16 ranks), out_of_range (the rank), invalid_argument (`all` is
  /// not of size() parts), those of the bootstrap.
  status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const noexcept {
    const status sizes_ok = detail::check_gather_bytes(rank_, size_, mine.size(), all.size());
    return sizes_ok.ok() ? gather_(object_, mine, all) : sizes_ok;
  }

 private:
  void* object_;
  status (*gather_)(void*, std::span<const std::byte>, std::span<std::byte>) noexcept;
  int rank_;
  int size_;
};

static_assert(bootstrap<bootstrap_ref> && std::is_trivially_copyable_v<bootstrap_ref>);

/// The ranks of a transport, with its gather of host bytes where its bytes are not the host's. The
/// transport outlives it. NCCL needs its scratch for that, and has no time limit: a rank that never
/// comes is waited for until the communicator is aborted.
template <transport Transport>
class transport_bootstrap {
 public:
  explicit transport_bootstrap(Transport& group) noexcept : group_(&group) {}

  int rank() const noexcept { return group_->rank(); }
  int size() const noexcept { return group_->size(); }

  /// Errors: unsupported, out_of_range, invalid_argument, rank_mismatch (another number of bytes),
  /// those of the transport.
  status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const noexcept {
    const status sizes_ok = detail::check_gather_bytes(rank(), size(), mine.size(), all.size());
    if (!sizes_ok.ok()) return sizes_ok;
    const auto ranks = static_cast<std::size_t>(size());
    receive_chunk from[max_ranks];
    if constexpr (by_the_host) {
      // The number of bytes rides along in each piece: ranks that differ there would otherwise
      // differ in the number of pieces, and wait for ever.
      piece own{mine.size(), {}};
      piece pieces[max_ranks];
      for (std::size_t r = 0; r < ranks; ++r) from[r] = {&pieces[r], sizeof(piece)};
      std::size_t done = 0;
      do {
        const std::size_t step = detail::lesser(mine.size() - done, sizeof own.bytes);
        if (step > 0) std::memcpy(own.bytes, mine.data() + done, step);
        const status moved = group_->all_gather_host({&own, sizeof own}, {from, ranks}, call);
        if (!moved.ok()) return moved;
        const status alike = compare(pieces, size());
        if (!alike.ok()) return alike;
        for (std::size_t r = 0; r < ranks && step > 0; ++r) {
          std::memcpy(all.data() + r * mine.size() + done, pieces[r].bytes, step);
        }
        done += step;
      } while (done < mine.size());
      return {};
    } else {
      const auto bytes = static_cast<index_t>(mine.size());
      for (std::size_t r = 0; r < ranks; ++r) from[r] = {all.data() + r * mine.size(), bytes};
      return group_->all_gather({mine.data(), bytes}, {from, ranks}, call);
    }
  }

 private:
  static constexpr call_signature call{"bootstrap", {}};
  static constexpr bool by_the_host =
      requires(Transport & t, const send_chunk& own, std::span<const receive_chunk> receive) {
    t.all_gather_host(own, receive, call);
  };

  struct piece {
    std::uint64_t of = 0;  // bytes of the whole
    std::byte bytes[56] = {};
  };
  static_assert(sizeof(piece) == 64, "what all_gather_host() takes");

  static status compare(const piece* pieces, int ranks) noexcept {
    return detail::find_odd_one(ranks, [&](int one, int other) -> status {
      if (pieces[one].of == pieces[other].of) return {};
      return failure(errc::rank_mismatch, call.operation, detail::seen_on[one],
                     static_cast<index_t>(pieces[one].of), static_cast<index_t>(pieces[other].of),
                     "bytes");
    });
  }

  Transport* group_;
};

/// The ranks of an engine, which gathers bytes with what it has: torch.distributed, MPI.
///
///     callback_bootstrap ranks(rank, size, [&](std::span<const std::byte> mine,
///                                              std::span<std::byte> all) -> status {
///       const int bytes = static_cast<int>(mine.size());
///       const int said = MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE,
///                                      communicator);
///       if (said == MPI_SUCCESS) return {};
///       return failure(errc::system_failed, "MPI_Allgather", "of the engine", said);
///     });
///
/// The callback does not throw, and bounds its waiting.
template <class Gather>
  requires requires(Gather& gather, std::span<const std::byte> mine, std::span<std::byte> all) {
    { gather(mine, all) } -> std::same_as<status>;
  }
class callback_bootstrap {
 public:
  callback_bootstrap(int rank, int size, Gather gather) noexcept
      : gather_(static_cast<Gather&&>(gather)), rank_(rank), size_(size) {}

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// Errors: unsupported, out_of_range, invalid_argument, those of the callback.
  status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) noexcept {
    const status sizes_ok = detail::check_gather_bytes(rank_, size_, mine.size(), all.size());
    return sizes_ok.ok() ? gather_(mine, all) : sizes_ok;
  }

 private:
  Gather gather_;
  int rank_;
  int size_;
};

namespace detail {

/// The value of every rank, `all[rank]`. Errors: those of bootstrap_ref::all_gather().
template <class T>
status gather_each(bootstrap_ref ranks, const T& mine, T (&all)[max_ranks]) noexcept {
  static_assert(std::is_trivially_copyable_v<T>, "headwise: it travels as bytes");
  const status size_ok = require_supported_ranks(ranks.size());
  if (!size_ok.ok()) return size_ok;
  return ranks.all_gather(
      std::as_bytes(std::span(&mine, 1)),
      std::as_writable_bytes(std::span(all, static_cast<std::size_t>(ranks.size()))));
}

/// Returns when all ranks have come. Errors: as gather_each().
inline status barrier(bootstrap_ref ranks) noexcept {
  const char mine = 0;
  char all[max_ranks] = {};
  return gather_each(ranks, mine, all);
}

/// What travels of a status: text of another process means nothing.
struct verdict_record {
  std::uint64_t code = 0;
  index_t got = 0;
  index_t expected = 0;
};

constexpr verdict_record record_of(const status& came_to) noexcept {
  return {static_cast<std::uint64_t>(came_to.code), came_to.got, came_to.expected};
}

/// The first rank that has failed, or -1.
constexpr int first_failed(const verdict_record* all, int ranks) noexcept {
  for (int r = 0; r < ranks; ++r) {
    if (all[r].code != 0) return r;
  }
  return -1;
}

/// What a rank that has itself come to `mine` returns: ok if no rank has failed, its own failure if
/// it has one, else that of the first rank that has.
constexpr status verdict_of(const verdict_record* all, int ranks, const status& mine,
                            const char* step) noexcept {
  if (!mine.ok()) return mine;
  const int failed = first_failed(all, ranks);
  if (failed < 0) return {};
  return failure(static_cast<errc>(all[failed].code), step, seen_on[failed], all[failed].got,
                 all[failed].expected);
}

/// Whether a step came to a good end on all ranks: ok on all of them, or a failure on each. A rank
/// that has failed returns its own status; its peers the code and the values of the first of them,
/// with `step` as the operand and the rank in the message. Errors also: as gather_each().
inline status unanimous(bootstrap_ref ranks, const status& mine,
                        const char* step = "peers") noexcept {
  verdict_record all[max_ranks];
  const status gathered = gather_each(ranks, record_of(mine), all);
  if (!gathered.ok()) return mine.ok() ? gathered : mine;
  return verdict_of(all, ranks.size(), mine, step);
}

}  // namespace detail

}  // namespace headwise::inline v0
