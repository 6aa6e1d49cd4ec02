// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <concepts>
#include <span>

#include <headwise/core/status.hpp>
#include <headwise/plan/capacity.hpp>

namespace headwise::inline v0 {

/// Bytes to send: `runs` runs of `run_bytes`, the starts `pitch` bytes apart.
struct send_chunk {
  const void* data = nullptr;
  index_t run_bytes = 0;
  index_t runs = 1;
  index_t pitch = 0;

  constexpr index_t bytes() const noexcept { return run_bytes * runs; }
};

/// Room for bytes to receive, of the same form.
struct receive_chunk {
  void* data = nullptr;
  index_t run_bytes = 0;
  index_t runs = 1;
  index_t pitch = 0;

  constexpr index_t bytes() const noexcept { return run_bytes * runs; }
};

/// What a rank believes that the group is about to do. All of it must be equal on all ranks; a
/// transport that can compare it (in_process always) names the first field that differs.
struct call_signature {
  static constexpr int field_count = 6;
  static constexpr const char* field_names[field_count] = {"tokens",        "heads", "head_dim",
                                                           "element_bytes", "way",   "format"};

  const char* operation = "";
  std::uint64_t operation_id = 0;
  index_t fields[field_count] = {};
};

/// A byte transport: it knows ranks and bytes, never heads.
///
/// exchange: `send` and `receive` hold one chunk per plane and peer, plane-major; plane p of rank i
/// for rank j arrives in plane p of rank j from rank i. Chunks of no bytes are skipped on both sides.
/// all_gather: `send` arrives in `receive[i]` of every rank, i being this rank.
/// Both are collective, in the same order on all ranks; when they return (or, on a stream, when the
/// stream has got there), `send` may be overwritten and `receive` may be read.
template <class T>
concept transport =
    requires(T& t, std::span<const send_chunk> send, std::span<const receive_chunk> receive,
             const send_chunk& own, const call_signature& call) {
      { t.rank() } -> std::same_as<int>;
      { t.size() } -> std::same_as<int>;
      { t.exchange(send, receive, call) } -> std::same_as<status>;
      { t.all_gather(own, receive, call) } -> std::same_as<status>;
      { t.barrier() } -> std::same_as<status>;
    };

}  // namespace headwise::inline v0
