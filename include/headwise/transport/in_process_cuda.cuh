// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/cuda_status.cuh>
#include <headwise/transport/in_process.hpp>

// Ranks that are threads of one process and have their memory on a GPU: all on one, or each on one
// of its own. For tests and demos: the collectives of up to 16 ranks run on one card. Every call
// blocks its host thread until the stream has got there and all peers have come, so it is not for
// serving, and cannot be captured into a graph.

namespace headwise::inline v0 {

/// How a rank copies out of the memory of its peers: on its stream, which it waits for before (what
/// it sends must be there) and after. The stream's device is current on the thread of the rank.
/// Memory may be of any GPU, or of the host.
struct cuda_copy {
  cudaStream_t stream = nullptr;

  /// Errors: unsupported (the stream is being captured; nothing waited), cuda_failed.
  status ready() const noexcept {
    const result<bool> capturing = detail::is_capturing(stream);
    if (!capturing.ok()) return capturing.why();
    if (capturing.value()) {
      return failure(errc::unsupported, "stream",
                     "is being captured, and this transport waits on the host");
    }
    return finish();
  }

  /// Errors: cuda_failed.
  status copy(const send_chunk& sent, const receive_chunk& room) const noexcept {
    if (sent.bytes() == 0) return {};
    const send_chunk from = cut_as(joined(room), joined(sent));
    const receive_chunk to = cut_as(joined(sent), joined(room));
    const bool two_dimensional = from.runs == to.runs && from.runs > 1 && from.data != to.data &&
                                 from.pitch >= from.run_bytes && from.pitch <= most_pitch &&
                                 to.pitch <= most_pitch;
    if (two_dimensional) {
      return detail::cuda_status(
          cudaMemcpy2DAsync(to.data, bytes(to.pitch), from.data, bytes(from.pitch),
                            bytes(to.run_bytes), bytes(to.runs), cudaMemcpyDefault, stream),
          "receive");
    }
    status copied{};
    detail::for_each_stretch(
        from, to, [&](std::byte* target, const std::byte* source, std::size_t count) {
          if (!copied.ok()) return;
          copied = detail::cuda_status(
              cudaMemcpyAsync(target, source, count, cudaMemcpyDefault, stream), "receive");
        });
    return copied;
  }

  /// Errors: cuda_failed.
  status finish() const noexcept {
    return detail::cuda_status(cudaStreamSynchronize(stream), "stream");
  }

 private:
  static constexpr index_t most_pitch = INT32_MAX;  // of a 2D copy

  template <class Chunk>
  static constexpr Chunk joined(const Chunk& chunk) noexcept {
    return chunk.pitch == chunk.run_bytes ? Chunk{chunk.data, chunk.bytes()} : chunk;
  }
  /// A single run, in the runs of the other end.
  template <class Other, class Chunk>
  static constexpr Chunk cut_as(const Other& other, const Chunk& chunk) noexcept {
    if (chunk.runs != 1 || other.runs == 1) return chunk;
    return {chunk.data, other.run_bytes, other.runs, other.run_bytes};
  }
  static constexpr std::size_t bytes(index_t count) noexcept {
    return static_cast<std::size_t>(count);
  }
};

/// The group's rank r, on a thread and a stream of its own:
///
///     in_process_cuda me = group.rank(r, cuda_copy{stream}).value();
///     lse_reduce_scatter<log_base::e>(cuda_executor{stream}, me, ...);
///
/// A call whose copies fail returns cuda_failed on the rank where they did, and rank_mismatch on
/// its peers. What the executor put on the stream after the transport's part, the caller waits for.
using in_process_cuda_group = basic_in_process_group<cuda_copy>;
using in_process_cuda = basic_in_process<cuda_copy>;

static_assert(transport<in_process_cuda>);

}  // namespace headwise::inline v0
