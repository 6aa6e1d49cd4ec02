// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/status.hpp>
#include <headwise/plan/capacity.hpp>

#include <concepts>
#include <span>

namespace headwise::inline v0 {

/// Bytes to send: `runs` runs of `run_bytes`, whose starts lie `pitch` bytes apart.
struct send_chunk {
  const void* data = nullptr;
  index_t run_bytes = 0;
  index_t runs = 1;
  index_t pitch = 0;

  /// Precondition: check_chunk().
  constexpr index_t bytes() const noexcept { return run_bytes * runs; }
};

/// Room for bytes to receive, of the same form. The two ends of a transfer may cut the same bytes
/// into different runs.
struct receive_chunk {
  void* data = nullptr;
  index_t run_bytes = 0;
  index_t runs = 1;
  index_t pitch = 0;

  constexpr index_t bytes() const noexcept { return run_bytes * runs; }
};

/// Refuses a chunk that no transport could move: negative numbers, bytes that leave 64 bits, bytes
/// without a pointer, and room for runs that overlap. `operand` is the name to report.
/// Errors: invalid_argument, out_of_range, overlap.
template <class Chunk>
  requires(std::same_as<Chunk, send_chunk> || std::same_as<Chunk, receive_chunk>)
constexpr status check_chunk(const char* operand, const Chunk& chunk) noexcept {
  if (chunk.run_bytes < 0 || chunk.runs < 0 || chunk.pitch < 0) {
    return failure(errc::invalid_argument, operand, "bytes, runs and pitch are not negative",
                   detail::lesser(chunk.run_bytes, detail::lesser(chunk.runs, chunk.pitch)), 0);
  }
  const checked_size bytes = checked_size(chunk.run_bytes) * chunk.runs;
  const checked_size span = checked_size(chunk.pitch) * chunk.runs + chunk.run_bytes;
  if (!bytes.valid() || !span.valid()) {
    return failure(errc::out_of_range, operand, "the runs leave the address space", chunk.runs,
                   INT64_MAX);
  }
  if (bytes.value() == 0) return {};
  if (chunk.data == nullptr) {
    return failure(errc::invalid_argument, operand, "bytes (got) without a pointer", bytes.value(),
                   0);
  }
  if (std::same_as<Chunk, receive_chunk> && chunk.runs > 1 && chunk.pitch < chunk.run_bytes) {
    return failure(errc::overlap, operand, "runs that are received share memory", chunk.pitch,
                   chunk.run_bytes);
  }
  return {};
}

/// One number of a call, under the name that a mismatch is reported with.
struct call_field {
  const char* name = "";
  index_t value = 0;
};

/// What a rank believes that the group is about to do, down to the last number that decides what
/// travels. All of it must be equal on all ranks; a transport that can compare it (in_process
/// always) names the first field that differs. Text is static.
struct call_signature {
  static constexpr int max_fields = 10;

  const char* operation = "";
  call_field fields[max_fields] = {};  ///< the rest of the fields is left as it is
  /// On every rank the chunks are equal and lie side by side, peer by peer, in one buffer to send
  /// from and one to receive into; this rank's own are left out, and its places there are free.
  bool side_by_side = false;
};

/// A byte transport: it knows ranks and bytes, never heads.
///
/// exchange    `send` and `receive` hold one chunk per plane and peer, plane by plane; what rank i
///             has in plane p for rank j arrives in plane p of rank j, from rank i. Counts may
///             differ from pair to pair, the two ends of a pair agree. A pair without bytes is
///             skipped at both ends.
/// all_gather  `own` arrives in `receive[i]` of every rank, i being this one. Its memory may be
///             that of this rank's receive[i], and then stays as it is.
/// barrier     returns when all ranks have called it.
/// all_gather_host  (optional) the same of up to 64 bytes of host memory, by the host; for a
///             transport whose bytes are not the host's. May wait for the ranks.
/// gathers_adjacent  (optional constant, true) all_gather takes only parts that follow each other
///             without a gap. What the verbs hand it is so, on every rank.
/// straight_from  (optional) bytes per peer from which a second transfer costs less than packing
///             what could go straight; the same on all ranks. 0 where it is not said.
/// on          (optional) the same rank on another stream, for a transport that is bound to one.
/// refuse      (optional) takes part in the call that the peers are making, only to say that this
///             rank cannot and why, so that they return at once. Returns the reason.
///
/// All are collective, and called in the same order on all ranks. When they return (or, on a
/// stream, when the stream has got there), what was sent may be overwritten, and what was received
/// may be read.
template <class T>
concept transport = requires(T& t, std::span<const send_chunk> send,
                             std::span<const receive_chunk> receive, const send_chunk& own,
                             const call_signature& call) {
  { t.rank() } -> std::same_as<int>;
  { t.size() } -> std::same_as<int>;
  { t.exchange(send, receive, call) } -> std::same_as<status>;
  { t.all_gather(own, receive, call) } -> std::same_as<status>;
  { t.barrier() } -> std::same_as<status>;
};

namespace detail {

template <class T>
constexpr bool gathers_adjacent() noexcept {
  if constexpr (requires { T::gathers_adjacent; }) {
    return T::gathers_adjacent;
  } else {
    return false;
  }
}

template <class T>
constexpr index_t straight_from(const T& group) noexcept {
  if constexpr (requires { group.straight_from(); }) {
    return group.straight_from();
  } else {
    return 0;
  }
}

}  // namespace detail

}  // namespace headwise::inline v0
