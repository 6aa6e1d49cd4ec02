// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/launch.cuh>
#include <headwise/plan/localize_topk.hpp>
#include <headwise/plan/operands.hpp>

#include <cub/block/block_scan.cuh>

// Turns the top-k positions of each query token into slots of this rank's cache, in one launch.
//
// template  the views' types, whose static strides the compiler folds in
// grid      a block per query token, any number of them
// block     256 threads; tiles of 1024 keys, 128 neighbours a warp, four positions and then four
//           page ids of each thread in flight
// in, out   views of any strides, any number of keys. A tile is read before any of its slots is
//           written, and no slot goes behind its position: slots may be the view of the positions
// numerics  integers; the order of a row is kept

namespace headwise::inline v0 {

namespace detail {

inline constexpr int localize_threads = 256;
inline constexpr int localize_unroll = 4;

/// Where this rank has a position, or page -1 where it has none that the token may see. By
/// place_of_row() and not by `shard`, whose divisions are of 64 bits.
__device__ inline page_position locate_position(index_t position, index_t bound,
                                                const localize_options& options) noexcept {
  const interleaving& split = options.shard.split;
  if (position < 0 || position >= bound) return {-1, 0};
  const row_place block = place_of_row(position, split.interleave);
  const row_place owned = place_of_row(block.outer, split.ranks);
  if (owned.inner != options.shard.rank) return {-1, 0};
  const row_place at =
      place_of_row(owned.outer * split.interleave + block.inner, options.page_size);
  return {at.outer, at.inner};
}

/// `pages`: how many can be named in a slot.
template <class Positions, class BlockTable, class Lengths, class Slots, class Counts>
__global__ void __launch_bounds__(localize_threads)
    localize_topk_kernel(Positions positions, BlockTable block_table, Lengths lengths,
                         localize_options options, index_t pages, Slots slots, Counts counts) {
  enter_kernel();
  using slot_type = typename Slots::value_type;
  using count_type = typename Counts::value_type;
  using scan = cub::BlockScan<int, localize_threads, cub::BLOCK_SCAN_WARP_SCANS>;
  constexpr int unroll = localize_unroll;
  __shared__ typename scan::TempStorage scratch;
  const auto wanted = permute<axis::token, axis::key>(positions);
  const auto table = permute<axis::sequence, axis::page>(block_table);
  const auto out = permute<axis::token, axis::key>(slots);
  const index_t keys = wanted.template extent<axis::key>();
  const index_t width = table.template extent<axis::page>();
  const unsigned lane = threadIdx.x % 32;
  const unsigned lanes_before = (1u << lane) - 1;

  const index_t token = blockIdx.x;
  const row_place at = place_of_row(token, options.query_tokens);
  const index_t sequence = at.outer;
  const index_t bound =
      global_causal_bound(greater(static_cast<index_t>(element_of(lengths, sequence)), index_t{0}),
                          options.query_tokens, at.inner);

  index_t count = 0;
  for (index_t tile = 0; tile < keys; tile += index_t{localize_threads} * unroll) {
    const index_t first = tile + index_t{threadIdx.x / 32} * (32 * unroll) + lane;
    index_t found[unroll];
#pragma unroll
    for (int k = 0; k < unroll; ++k) {
      const index_t i = first + 32 * k;
      found[k] = i < keys ? static_cast<index_t>(element_of(wanted, token, i)) : -1;
    }
    page_position place[unroll];
#pragma unroll
    for (int k = 0; k < unroll; ++k) place[k] = locate_position(found[k], bound, options);
#pragma unroll
    for (int k = 0; k < unroll; ++k) {
      const bool listed = place[k].page >= 0 && place[k].page < width;
      found[k] =
          listed ? static_cast<index_t>(element_of(table, sequence, place[k].page)) : index_t{-1};
    }
    unsigned kept[unroll];
    int kept_by_warp = 0;
#pragma unroll
    for (int k = 0; k < unroll; ++k) {
      kept[k] = __ballot_sync(0xffffffffu, found[k] >= 0 && found[k] < pages);
      kept_by_warp += __popc(kept[k]);
    }
    // A warp's number stands at its last lane, so that each lane gets the sum of the warps before.
    int place_in_tile = 0;
    int kept_by_tile = 0;
    scan(scratch).ExclusiveSum(lane == 31 ? kept_by_warp : 0, place_in_tile, kept_by_tile);
    // The tile has been read, and `scratch` is free again.
    __syncthreads();
#pragma unroll
    for (int k = 0; k < unroll; ++k) {
      if ((kept[k] >> lane & 1) != 0) {
        element_of(out, token, count + place_in_tile + __popc(kept[k] & lanes_before)) =
            static_cast<slot_type>(found[k] * options.page_size + place[k].slot);
      }
      place_in_tile += __popc(kept[k]);
    }
    count += kept_by_tile;
  }
  for (index_t i = count + threadIdx.x; i < keys; i += localize_threads) {
    element_of(out, token, i) = slot_type{-1};
  }
  if (threadIdx.x == 0) element_of(counts, token) = static_cast<count_type>(count);
}

/// The grid for this many query tokens.
constexpr launch_shape localize_topk_launch(index_t tokens) noexcept {
  launch_shape shape;
  shape.threads = localize_threads;
  shape.blocks = static_cast<unsigned>(lesser(tokens, most_blocks + 1));
  return shape;
}

}  // namespace detail

namespace kernel {

/// reference::localize_topk() on a stream, with the same slots and counts. One launch; none where
/// there is no token. Operands as there, in place too, in memory that the device reaches.
/// Positions, block table and lengths are read when the stream gets there.
///
/// So no value of theirs can be refused. Where the reference would: a length below 0 counts as 0,
/// and a position is dropped when its page lies behind the width of the block table, or when the
/// table's entry for it is negative or a page whose slots the element of `slots` cannot hold.
/// Nothing outside of the operands is read or written, and no slot is made of such an entry;
/// whether a slot lies in the cache only the caller can tell.
///
/// Errors: those of reference::localize_topk() that are about types, shapes and options;
/// unsupported (more tokens than a grid has blocks), cuda_failed.
template <class Positions, class BlockTable, class Lengths, class Slots, class Counts>
status localize_topk(const Positions& positions, const BlockTable& block_table,
                     const Lengths& lengths, const localize_options& options, const Slots& slots,
                     const Counts& counts, const on_stream& stream,
                     source_line where = source_line::current()) noexcept {
  static_assert(detail::reachable<device_accessible, Positions> &&
                    detail::reachable<device_accessible, BlockTable> &&
                    detail::reachable<device_accessible, Lengths> &&
                    detail::reachable<device_accessible, Slots> &&
                    detail::reachable<device_accessible, Counts>,
                "headwise: a kernel reads and writes views of device or pinned memory");
  const status can =
      detail::check_localize(positions, block_table, lengths, options, slots, counts, where);
  if (!can.ok()) return can;
  const launch_shape shape = detail::localize_topk_launch(positions.template extent<axis::token>());
  const status fits = detail::check_blocks("localize_topk", shape.blocks);
  if (!fits.ok()) return fits;
  return detail::launch(
      "localize_topk", detail::localize_topk_kernel<Positions, BlockTable, Lengths, Slots, Counts>,
      shape, stream, positions, block_table, lengths, options,
      detail::nameable_pages<typename Slots::value_type>(options.page_size), slots, counts);
}

}  // namespace kernel

}  // namespace headwise::inline v0
