// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/kernel/mla_decode_tile.cuh>
#include <headwise/plan/mla_call.hpp>
#include <headwise/plan/mla_split.hpp>
#include <headwise/plan/operands.hpp>
#include <headwise/plan/shards.hpp>

#include <cub/block/block_scan.cuh>

#include <atomic>
#include <span>

// Decode attention of absorbed MLA over a paged cache, in one launch: partial output and LSE.
//
// template  Shape: the record of the cache, how many rows of the query a block takes; the base of
//           the LSE; the views' types, whose static strides the compiler folds in
// grid      no more blocks than multiprocessors: `blocks` neighbours, which share out the rows of a
//           sequence (query tokens times heads, up to 32 a block), times groups, which share out
//           the tiles of all sequences: plan/mla_split.hpp. Every block finds its share from the
//           lengths
// block     8 warps that compute and 4 that bring tiles: kernel/mla_decode_tile.cuh. While a tile
//           is added up the next is scored, and those behind it are on their way
// merge     a sequence that several groups have parts of is put together by those same blocks, each
//           a share of it, as soon as all parts are there. They wait for each other, which is why
//           the launch is a cooperative one
// in, out   views of any strides. Of the cache nothing is read but records of keys that a row sees
// numerics  products of bf16 in fp32 (e4m3 numbers are bf16 numbers; their scales are applied to
//           the products); weights are rounded to bf16, their sum is not; parts are merged in fp32
//           by the steps of lse/partial.hpp. A NaN in a key reaches the rows that see it and no
//           other

namespace headwise::inline v0 {

/// How a decode step is put on a GPU.
struct mla_launch {
  /// Multiprocessors that it may use; 0: all of them.
  int multiprocessors = 0;
  /// Tiles of 32 keys that a group takes at least, before there are more groups.
  int least_tiles = 1;
};

namespace detail {

// ---- which keys a row of the query sees -------------------------------------------------------

template <class Name>
__device__ int name_in_32_bits(Name name) noexcept {
  if constexpr (sizeof(Name) > sizeof(int)) {
    return name < 0 || name > Name{INT32_MAX} ? -1 : static_cast<int>(name);
  } else {
    return static_cast<int>(name);
  }
}

/// Those of its sequence that this rank has, by a block table.
template <class BlockTable, class Lengths>
struct table_keys {
  using name_type = int;  ///< of a page
  BlockTable table;       // [sequence, page]
  Lengths lengths;
  int interleave;
  int first_of_rank;  ///< rank * interleave
  row_divider of_round;
  int query_tokens;
  row_divider of_page;
  int most;  ///< that the table has pages for: what is behind them counts for nothing

  table_keys(const BlockTable& of, const Lengths& given, const kv_shard& shard, index_t tokens,
             index_t page_size) noexcept
      : table(of),
        lengths(given),
        interleave(static_cast<int>(shard.split.interleave)),
        first_of_rank(static_cast<int>(shard.rank * shard.split.interleave)),
        of_round(shard.split.round()),
        query_tokens(static_cast<int>(tokens)),
        of_page(page_size),
        most(static_cast<int>(lesser(
            (checked_size(of.template extent<axis::page>()) * checked_size(page_size)).value(),
            index_t{INT32_MAX - mla_keys}))) {}

  __device__ index_t units() const noexcept { return lengths.template extent<axis::sequence>(); }
  /// kv_shard::local_length(), in 32 bits.
  __device__ int local_length(int length) const noexcept {
    const row_place at = of_round.place(static_cast<std::uint32_t>(greater(length, 0)));
    const int rest = static_cast<int>(at.inner) - first_of_rank;
    return lesser(static_cast<int>(at.outer) * interleave + lesser(greater(rest, 0), interleave),
                  most);
  }
  __device__ int length_of(int unit) const noexcept {
    return static_cast<int>(clamp(static_cast<index_t>(element_of(lengths, index_t{unit})),
                                  index_t{0}, index_t{INT32_MAX - mla_keys}));
  }
  /// Keys of this rank that the last row of the unit sees.
  __device__ int count(int length) const noexcept { return local_length(length); }
  /// Those that query token j sees: kv_shard::causal_bound().
  __device__ int bound(int length, int j) const noexcept {
    return local_length(length - query_tokens + 1 + j);
  }
  /// What is no page comes as -1.
  __device__ int named(int unit, int key) const noexcept {
    return name_in_32_bits(
        element_of(table, index_t{unit}, of_page.place(static_cast<std::uint32_t>(key)).outer));
  }
  template <class Kv>
  __device__ const std::byte* record(const Kv& kv, int page, int key) const noexcept {
    if (page < 0 || page >= kv.page_count) return nullptr;
    return kv.record(page, of_page.place(static_cast<std::uint32_t>(key)).inner);
  }
};

/// Those whose slots its list names.
template <class Slots, class Counts>
struct listed_keys {
  using name_type = typename Slots::value_type;
  Slots slots;  // [token, key]
  Counts counts;

  __device__ index_t units() const noexcept { return slots.template extent<axis::token>(); }
  __device__ int length_of(int unit) const noexcept {
    const index_t all = slots.template extent<axis::key>();
    if constexpr (is_none<Counts>) {
      return static_cast<int>(all);
    } else {
      return static_cast<int>(
          clamp(static_cast<index_t>(element_of(counts, index_t{unit})), index_t{0}, all));
    }
  }
  __device__ static int count(int length) noexcept { return length; }
  __device__ static int bound(int length, int) noexcept { return length; }
  __device__ name_type named(int unit, int key) const noexcept {
    return element_of(slots, index_t{unit}, index_t{key});
  }
  template <class Kv>
  __device__ const std::byte* record(const Kv& kv, index_t slot, int) const noexcept {
    if (slot < 0 || slot >= kv.slot_count()) return nullptr;
    const row_place at = place_of_row(slot, kv.page_size);
    return kv.record(at.outer, at.inner);
  }
};

// ---- the call ---------------------------------------------------------------------------------

/// Where parts of sequences wait for each other.
struct mla_workspace {
  unsigned* arrived = nullptr;  ///< [place of the first part, block]; zero between calls
  float* lses = nullptr;        ///< [place, block, row], base two
  float4* outputs = nullptr;    ///< [place, block, vector]: finished, as mla_sums::vector()
};

template <class Kv, class Query, class Keys, class Output, class Lse>
struct mla_operands {
  Kv kv;
  Query query;  // [token, head, head_dim]
  Keys keys;
  Output output;
  Lse lse;
  float scale;  ///< of logits in base two
  row_divider heads;
  int rows;            ///< of a unit: query tokens * heads
  int query_tokens;    ///< of a unit
  int blocks;          ///< that the rows of a unit are cut into
  int rows_of_block;   ///< of all but the last
  int blocks_at_once;  ///< neighbours in the grid
  int groups;
  int least_tiles;
  int stages;
  int query_width;  ///< bytes of the query that can be read at a time
  mla_workspace workspace;

  /// Query token and head of a row of a block.
  __device__ row_place place_of(int block, int row) const noexcept {
    return heads.place(static_cast<std::uint32_t>(block * rows_of_block + row));
  }
};

/// A group's share of the tiles of all units.
struct mla_share {
  mla_split split;
  index_t begin = 0;  ///< its tiles: [begin, end); none for a group that there is no work for
  index_t end = 0;
  index_t first = 0;  ///< tile of the unit in which it begins
  int unit = 0;
  int length = 0;  ///< of that unit
};

/// Finds the unit that a group begins in, from the lengths of all.
template <class Keys>
__device__ const mla_share& find_share(const Keys& keys, int group, int groups, int least_tiles,
                                       mla_share* shared, void* scratch) noexcept {
  using scan = cub::BlockScan<index_t, mla_block_threads, cub::BLOCK_SCAN_WARP_SCANS>;
  const auto units = static_cast<int>(keys.units());
  const int of_thread = (units - 1) / mla_block_threads + 1;
  const int from = lesser(static_cast<int>(threadIdx.x) * of_thread, units);
  const int to = lesser(from + of_thread, units);
  index_t mine = 0;
  int length = 0;
  for (int u = from; u < to; ++u) {
    length = keys.length_of(u);
    mine += mla_tiles(keys.count(length));
  }
  index_t before = 0;
  index_t all = mine;
  if (units > 1) {
    scan(*static_cast<typename scan::TempStorage*>(scratch)).ExclusiveSum(mine, before, all);
  }
  if (mine > 0) {
    const mla_split split{all, clamp(scale_down(all, 1, least_tiles), index_t{1}, index_t{groups})};
    const index_t begin = split.first_tile(lesser(index_t{group}, split.groups - 1));
    if (begin >= before && begin < before + mine) {
      int u = from;
      index_t first = before;
      for (;; ++u) {
        if (of_thread > 1) length = keys.length_of(u);
        const int tiles = mla_tiles(keys.count(length));
        if (begin < first + tiles) break;
        first += tiles;
      }
      const index_t end = group < split.groups ? split.first_tile(group + 1) : begin;
      *shared = {split, begin, end, first, u, length};
    }
  }
  __syncthreads();
  return *shared;
}

template <log_base Base, class Lse>
__device__ void store_lse(const Lse& to, index_t token, index_t head, float base_two) noexcept {
  using lse_type = typename Lse::value_type;
  element_of(to, token, head) = lse_type{Base == log_base::two ? base_two : base_two * ln2};
}

/// A part of a sequence of which other groups have parts too.
struct waiting_part {
  mla_part part;
  int unit = -1;
};

/// The weights of the parts of this group's share of the rows, by the steps of lse/partial.hpp; and
/// the LSEs of rows that begin in it.
template <log_base Base, class RowLse, class StoreLse>
__device__ void weigh_parts(int parts, int first_row, int last_row, float* weights,
                            const RowLse& lse_of, const StoreLse& store) noexcept {
  constexpr int most = mla_most_groups / 32;  // of a lane
  const int lane = static_cast<int>(threadIdx.x % 32);
  const nan_policy::propagate policy;
  for (int row = first_row + static_cast<int>(threadIdx.x / 32); row < last_row; row += mla_warps) {
    float mine[most];
#pragma unroll
    for (int k = 0; k < most; ++k) {
      mine[k] = lane + 32 * k < parts ? lse_of(lane + 32 * k, row) : -infinity();
    }
    float highest = -infinity();
    bool poisoned = false;
#pragma unroll
    for (const float value : mine) {
      poisoned = poisoned || policy.is_poison(value);
      if (value > highest) highest = value;
    }
    poisoned = __any_sync(whole_warp, poisoned) != 0;
    highest = from_ordered_bits(__reduce_max_sync(whole_warp, ordered_bits(highest)));
    const bool empty = highest == -infinity();
    float sum = 0.0f;
#pragma unroll
    for (float& value : mine) {
      value = empty ? 0.0f : weight_below<log_base::two>(value, highest, policy);
      sum += value;
    }
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(whole_warp, sum, other);
    const float by = poisoned ? canonical_nan() : empty ? 0.0f : reciprocal(sum);
#pragma unroll
    for (int k = 0; k < most; ++k) {
      if (lane + 32 * k < parts) weights[(row - first_row) * parts + lane + 32 * k] = mine[k] * by;
    }
    if (lane == 0) {
      store(row, poisoned ? canonical_nan() : empty ? -infinity() : add_log2(highest, sum));
    }
  }
}

/// Puts together this group's share of the vectors of a unit, when all parts have arrived.
template <class Shape, log_base Base, class Operands>
__device__ void merge_parts(const Operands& call, const waiting_part& own, int block, int rows,
                            std::byte* shared) noexcept {
  constexpr int vectors_of_tile = Shape::column_tiles * mla_threads;  // of 8 rows
  const int tid = static_cast<int>(threadIdx.x);
  const auto parts = static_cast<int>(own.part.count);
  const auto place_of_part = [&](int i) { return own.part.place(i) * call.blocks + block; };
  unsigned* const arrived = call.workspace.arrived + place_of_part(0);
  if (tid == 0) {
    unsigned now;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
    } while ((now & 0xffffu) < static_cast<unsigned>(parts));
  }
  meet();

  const int vectors = ((rows - 1) / 8 + 1) * vectors_of_tile;
  const auto index = static_cast<int>(own.part.index);
  const int from = vectors * index / parts;
  const int to = vectors * (index + 1) / parts;
  const int first_tile = from / vectors_of_tile;
  const int last_tile = to > from ? (to - 1) / vectors_of_tile + 1 : first_tile;
  const index_t first_token = index_t{own.unit} * call.query_tokens;
  auto* const sums = reinterpret_cast<float4*>(shared + Shape::products_at);
  auto* const weights = reinterpret_cast<float*>(sums + mla_threads);
  weigh_parts<Base>(
      parts, first_tile * 8, lesser(last_tile * 8, rows), weights,
      [&](int i, int row) {
        return __ldcg(call.workspace.lses + place_of_part(i) * Shape::rows + row);
      },
      [&](int row, float value) {
        if (row / 8 * vectors_of_tile < from) return;
        const row_place at = call.place_of(block, row);
        store_lse<Base>(call.lse, first_token + at.outer, at.inner, value);
      });
  meet();

  // Few vectors and many parts: several threads share the parts of a vector.
  int lanes = mla_threads;
  while (lanes > 32 && lanes / 2 >= to - from && mla_threads / lanes * 2 <= parts) lanes /= 2;
  const int sharers = mla_threads / lanes;
  const int share = tid / lanes;
  for (int base = from; base < to; base += lanes) {
    const bool inside = base + tid % lanes < to;
    const int vector = inside ? base + tid % lanes : to - 1;
    const int row = vector / vectors_of_tile * 8 + vector % 4 * 2;
    // Of rows that there are not, those of another; nothing comes of it.
    const float* const upper = weights + (lesser(row, rows - 1) - first_tile * 8) * parts;
    const float* const lower = weights + (lesser(row + 1, rows - 1) - first_tile * 8) * parts;
    float4 sum{};
    // So many are on their way at a time.
    constexpr int batch = 8;
#pragma unroll 1
    for (int i0 = share; i0 < parts; i0 += batch * sharers) {
      float4 value[batch];
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        const int i = lesser(i0 + k * sharers, parts - 1);
        value[k] =
            __ldcg(call.workspace.outputs + place_of_part(i) * mla_sums<Shape>::vectors + vector);
      }
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        const int i = i0 + k * sharers;
        const float up = i < parts ? upper[i] : 0.0f;
        const float low = i < parts ? lower[i] : 0.0f;
        sum.x = accumulate(sum.x, up, value[k].x);
        sum.y = accumulate(sum.y, low, value[k].y);
        sum.z = accumulate(sum.z, up, value[k].z);
        sum.w = accumulate(sum.w, low, value[k].w);
      }
    }
    if (sharers > 1) {
      meet();
      sums[tid] = sum;
      meet();
      for (int other = 1; other < sharers && share == 0; ++other) {
        const float4 more = sums[other * lanes + tid];
        sum.x += more.x;
        sum.y += more.y;
        sum.z += more.z;
        sum.w += more.w;
      }
    }
    if (!inside || share > 0) continue;
    using element = typename std::remove_cvref_t<decltype(call.output)>::value_type;
    const int column = mla_sums<Shape>::column_of(vector);
    const auto store = [&](int r, float left, float right) {
      if (r >= rows) return;
      const row_place at = call.place_of(block, r);
      element_of(call.output, first_token + at.outer, at.inner, index_t{column}) =
          rounded_to<element>(left);
      element_of(call.output, first_token + at.outer, at.inner, index_t{column + 8}) =
          rounded_to<element>(right);
    };
    store(row, sum.x, sum.z);
    store(row + 1, sum.y, sum.w);
  }
  meet();
  if (tid == 0) {
    // The last to leave sets it back.
    const unsigned before = atomicAdd(arrived, 0x10000u);
    if (before >> 16 == static_cast<unsigned>(parts) - 1) *arrived = 0;
  }
  meet();
}

/// A block's share of the tiles, and of the merging.
template <class Shape, log_base Base, class Operands>
__device__ void attend(const Operands& call, const mla_share& share, int group, int block,
                       mla_ring& ring, std::byte* shared) noexcept {
  using element = typename std::remove_cvref_t<decltype(call.output)>::value_type;
  const int tid = static_cast<int>(threadIdx.x);
  const std::uint32_t filled = shared_address(shared + Shape::filled_at);
  const auto wait = [&] {
    wait_for_phase(filled + static_cast<unsigned>(ring.stage) * 8, ring.round & 1u);
  };
  /// After all have met.
  const auto release = [&](int stage) {
    if (tid == 0) {
      arrive(shared_address(shared + Shape::free_at) + static_cast<unsigned>(stage) * 8);
    }
  };
  const auto stage_at = [&](int stage) {
    return shared + Shape::stages_at + stage * Shape::stage_bytes;
  };
  const int rows = lesser(call.rows - block * call.rows_of_block, call.rows_of_block);

  mla_query<Shape> query;
  mla_softmax<Shape> softmax;
  mla_sums<Shape> sums;
  // A group has parts of two sequences at most: that in which it begins and that in which it ends.
  waiting_part begins_in;
  waiting_part ends_in;
  int unit = share.unit;
  int length = share.length;
  index_t first = share.first;
  for (index_t at = share.begin; at < share.end;) {
    const int unit_tiles = mla_tiles(call.keys.count(length));
    const int from = static_cast<int>(at - first);
    const int to = static_cast<int>(lesser(index_t{unit_tiles}, share.end - first));
    const int count = to - from;
    const index_t first_token = index_t{unit} * call.query_tokens;

    query.load(
        [&](int r) -> const std::uint16_t* {
          if (r >= rows) return nullptr;
          const row_place row = call.place_of(block, r);
          return reinterpret_cast<const std::uint16_t*>(
              row_of(call.query, first_token + row.outer, row.inner).data);
        },
        call.query.template stride<axis::head_dim>(), call.query_width, shared);
    if (tid < Shape::rows) {
      reinterpret_cast<int*>(shared + Shape::bounds_at)[tid] =
          tid < rows ? call.keys.bound(length, static_cast<int>(call.place_of(block, tid).outer))
                     : 0;
    }
    sums.clear();
    meet();
    softmax.begin(shared);

    bool rescale = false;
    if constexpr (Shape::quantised) {
      const auto decoded = [&](int tile) {
        return shared + Shape::decoded_at + (tile & 1) * (mla_keys * Shape::pitch);
      };
      const auto scales = [&](int tile) {
        return reinterpret_cast<const float*>(shared + Shape::scales_at) +
               (tile & 1) * (Shape::weight_sets * mla_keys);
      };
      const auto decode = [&](int tile) {
        wait();
        decode_tile<Shape>(shared, ring.stage, tile & 1);
      };
      const auto release_decoded = [&] {
        release(ring.stage);
        ring.next(call.stages);
      };
      const auto weigh = [&](int tile) {
        return softmax.weigh_tile(shared, (from + tile) * mla_keys,
                                  shared + Shape::decoded_present_at + (tile & 1) * mla_bringers,
                                  scales(tile), call.scale);
      };
      decode(0);
      meet();
      release_decoded();
      score_tile<Shape>(query, shared, decoded(0), scales(0));
      meet();
      // Tile i + 2 is decoded while tile i + 1 is weighed.
      for (int i = -1; i < count; ++i) {
        if (i >= 0) {
          if (i + 1 < count) score_tile<Shape>(query, shared, decoded(i + 1), scales(i + 1));
          if (rescale) sums.scale(shared + Shape::shrink_at);
          sums.add_tile(shared, decoded(i));
          meet();
        }
        if (i + 1 < count) {
          const bool rose = weigh(i + 1);
          if (i + 2 < count) decode(i + 2);
          rescale = meet_or(rose);
          if (i + 2 < count) release_decoded();
        }
      }
    } else {
      // Where all rows of a unit see the same keys, none is in the way of another.
      const int seen_by_all = call.query_tokens > 1 ? call.keys.bound(length, 0) : INT32_MAX;
      wait();
      score_tile<Shape>(query, shared, stage_at(ring.stage), nullptr);
      meet();
      int current = ring.stage;
      for (int i = -1; i < count; ++i) {
        if (i >= 0) {
          current = ring.stage;
          ring.next(call.stages);
          if (i + 1 < count) {
            wait();
            score_tile<Shape>(query, shared, stage_at(ring.stage), nullptr);
          }
          if (rescale) sums.scale(shared + Shape::shrink_at);
          sums.add_tile(shared, stage_at(current));
          meet();
          release(current);
        }
        if (i + 1 < count) {
          const bool rose = softmax.weigh_tile(
              shared, (from + i + 1) * mla_keys,
              shared + Shape::present_at + ring.stage * mla_bringers, nullptr, call.scale);
          if ((from + i + 2) * mla_keys > seen_by_all) {
            clear_broken_values<Shape>(stage_at(ring.stage));
          }
          rescale = meet_or(rose);
        }
      }
    }
    softmax.finish(shared);
    meet();
    sums.scale(shared + Shape::factor_at);

    const mla_part part = mla_part::of(share.split, first, unit_tiles, group);
    const auto* const lses = reinterpret_cast<const float*>(shared + Shape::lse_at);
    if (part.count == 1) {
      sums.store(
          [&](int r) -> element* {
            if (r >= rows) return nullptr;
            const row_place row = call.place_of(block, r);
            return &element_of(call.output, first_token + row.outer, row.inner, 0);
          },
          call.output.template stride<axis::head_dim>());
      if (tid < rows) {
        const row_place row = call.place_of(block, tid);
        store_lse<Base>(call.lse, first_token + row.outer, row.inner, lses[tid]);
      }
    } else {
      const index_t base = part.place(part.index) * call.blocks + block;
      float4* const to = call.workspace.outputs + base * mla_sums<Shape>::vectors;
#pragma unroll
      for (int i = 0; i < mla_sums<Shape>::vectors / mla_threads; ++i) {
        if (i / Shape::column_tiles * 8 < rows) to[i * mla_threads + tid] = sums.vector(i);
      }
      if (tid < rows) call.workspace.lses[base * Shape::rows + tid] = lses[tid];
      // All that the block has written, before its arrival.
      __threadfence();
      meet();
      if (tid == 0) {
        atomicAdd(call.workspace.arrived + part.place(0) * call.blocks + block, 1u);
      }
      if (share.begin < first) {
        ends_in = {part, unit};
      } else {
        begins_in = {part, unit};
      }
    }
    at = first + to;
    if (to == unit_tiles) {
      first += unit_tiles;
      ++unit;
      if (at < share.end) length = call.keys.length_of(unit);
    }
    meet();
  }
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const waiting_part own = i == 0 ? begins_in : ends_in;
    if (own.unit >= 0) merge_parts<Shape, Base>(call, own, block, rows, shared);
  }
}

template <class Shape, log_base Base, class Operands>
__global__ void __launch_bounds__(mla_block_threads, 1)
    mla_decode_kernel(const __grid_constant__ Operands call) {
  enter_kernel();
  extern __shared__ __align__(128) std::byte shared[];
  const int tid = static_cast<int>(threadIdx.x);
  const int group = static_cast<int>(blockIdx.x) / call.blocks_at_once;
  if (tid < call.stages) {
    init_barrier(shared_address(shared + Shape::filled_at) + static_cast<unsigned>(tid) * 8,
                 mla_arrivals<Shape>);
    init_barrier(shared_address(shared + Shape::free_at) + static_cast<unsigned>(tid) * 8, 1);
  }
  if constexpr (Shape::bulk) fence_for_bulk_copy();
  const mla_share& share = find_share(call.keys, group, call.groups, call.least_tiles,
                                      reinterpret_cast<mla_share*>(shared + Shape::plan_at),
                                      shared + Shape::products_at);
  if (share.begin == share.end) return;
  mla_ring ring;
  const int first_block = static_cast<int>(blockIdx.x) % call.blocks_at_once;
  if (tid >= mla_threads) {
    keep_registers<mla_registers_to_bring>();
    for (int block = first_block; block < call.blocks; block += call.blocks_at_once) {
      bring_tiles<Shape>(call.keys, call.kv, shared, call.stages, ring, share.unit, share.length,
                         static_cast<int>(share.begin - share.first), share.end - share.begin);
    }
  } else {
    take_registers<mla_registers_to_compute>();
    for (int block = first_block; block < call.blocks; block += call.blocks_at_once) {
      attend<Shape, Base>(call, share, group, block, ring, shared);
    }
  }
}

// ---- the launch -------------------------------------------------------------------------------

inline constexpr int mla_most_multiprocessors = 512;
/// A counter for each of two places of a block.
inline constexpr index_t mla_counter_bytes =
    index_t{2} * mla_most_multiprocessors * index_t{sizeof(unsigned)};

/// How the rows of a unit are cut, and the grid. A pure function of the call and the device.
struct mla_grid {
  int row_tiles = 1;  ///< of 8 rows, of a block
  int blocks = 1;
  int rows_of_block = 1;
  int blocks_at_once = 1;
  int groups = 1;

  constexpr int rows() const noexcept { return 8 * row_tiles; }

  /// Fewer rows a block where its shared memory has no room for the tiles of more.
  template <kv_record Record>
  static constexpr mla_grid of(index_t rows, int multiprocessors, int shared_bytes) noexcept {
    using largest = mla_shape<Record, mla_most_rows / 8>;
    const bool roomy = largest::stages_in(shared_bytes) >= largest::least_stages;
    mla_grid grid;
    grid.blocks =
        static_cast<int>(ceil_div(rows, index_t{roomy ? mla_most_rows : mla_most_rows / 2}));
    grid.rows_of_block = static_cast<int>(ceil_div(rows, index_t{grid.blocks}));
    grid.row_tiles = (grid.rows_of_block - 1) / 8 + 1;
    grid.blocks_at_once = lesser(grid.blocks, multiprocessors);
    grid.groups = lesser(multiprocessors / grid.blocks_at_once, mla_most_groups);
    return grid;
  }

  /// The counters come first and have the same room in every call, so that calls of all shapes may
  /// share a workspace.
  struct room {
    index_t counters, lses, outputs;  ///< bytes
    constexpr index_t all() const noexcept { return counters + lses + outputs; }
  };
  constexpr room bytes(int multiprocessors, index_t latent) const noexcept {
    // Two of each block that runs, and of the largest, so that more rows never take less.
    const index_t places = index_t{2} * multiprocessors * (blocks > 1 ? mla_most_rows : rows());
    return {mla_counter_bytes, round_up(places * index_t{sizeof(float)}, index_t{128}),
            places * latent * index_t{sizeof(float)}};
  }
};

struct mla_device {
  int multiprocessors = 0;
  int shared_bytes = 0;  ///< that a block can have
  int major = 0;         ///< compute capability
  int number = 0;
};
/// Errors: cuda_failed.
inline result<mla_device> mla_device_of(const mla_launch& how) noexcept {
  mla_device device;
  cudaError_t said = cudaGetDevice(&device.number);
  if (said == cudaSuccess) {
    said = cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount,
                                  device.number);
  }
  if (said == cudaSuccess) {
    said = cudaDeviceGetAttribute(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                  device.number);
  }
  if (said == cudaSuccess) {
    said = cudaDeviceGetAttribute(&device.major, cudaDevAttrComputeCapabilityMajor, device.number);
  }
  const status asked = cuda_status(said, "mla_decode");
  if (!asked.ok()) return asked;
  device.multiprocessors = lesser(device.multiprocessors, mla_most_multiprocessors);
  if (how.multiprocessors > 0) {
    device.multiprocessors = lesser(how.multiprocessors, device.multiprocessors);
  }
  return device;
}

/// Calls f(a Shape), for the rows of a block.
template <kv_record Record, class F>
status with_mla_shape(const mla_grid& grid, const F& f) {
  switch (grid.row_tiles) {
    case 1: return f(mla_shape<Record, 1>{});
    case 2: return f(mla_shape<Record, 2>{});
    case 3: return f(mla_shape<Record, 3>{});
    default: return f(mla_shape<Record, 4>{});
  }
}

/// Lets a kernel have this much shared memory, once for each device. Errors: cuda_failed.
template <class Kernel>
status allow_shared_memory(Kernel kernel, std::atomic<std::uint64_t>& done, int device,
                           int bytes) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << (device % 64);
  if (device < 64 && (done.load(std::memory_order_relaxed) & bit) != 0) return {};
  const status allowed =
      cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "mla_decode");
  if (allowed.ok() && device < 64) done.fetch_or(bit, std::memory_order_relaxed);
  return allowed;
}

/// What the device and the cache must be like. Errors: those of mla_decode_supported().
template <kv_record Record, memory_space Space>
status check_mla_device(const paged_kv<Record, Space>& kv, const mla_device& device,
                        const mla_grid& grid) noexcept {
  if (device.major < 8) {
    return failure(errc::unsupported, "mla_decode",
                   "needs compute capability 8.0 (expected, times ten)", 10 * device.major, 80);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(kv.data);
  const bool one_row = kv.page_size == 1;
  if ((address | static_cast<std::uintptr_t>(kv.page_stride) |
       static_cast<std::uintptr_t>(one_row ? 0 : kv.row_stride)) %
          16 !=
      0) {
    return failure(errc::misaligned, "kv", "records are aligned to 16 bytes");
  }
  return with_mla_shape<Record>(grid, [&](auto shape) -> status {
    using shape_type = decltype(shape);
    if (shape_type::stages_in(device.shared_bytes) >= shape_type::least_stages) return {};
    return failure(errc::unsupported, "mla_decode",
                   "more shared memory (got) than a block of this device has (expected), in bytes",
                   shape_type::bytes(shape_type::least_stages), device.shared_bytes);
  });
}

/// Errors: unsupported, for what would leave 32 bits.
constexpr status check_mla_counts(index_t units, index_t rows) noexcept {
  constexpr index_t most = INT32_MAX - mla_block_threads;
  if (units > most) {
    return failure(errc::unsupported, "mla_decode", "more sequences than 32 bits number", units,
                   most);
  }
  if (rows > most) {
    return failure(errc::unsupported, "mla_decode",
                   "more rows of the query, of a sequence, than 32 bits number", rows, most);
  }
  return {};
}

template <log_base Base, class Kv, class Query, class Keys, class Output, class Lse>
status launch_mla(const Kv& kv, const Query& query, const Keys& keys, const Output& output,
                  const Lse& lse, double softmax_scale, index_t units, index_t query_tokens,
                  std::span<std::byte> workspace, const on_stream& stream,
                  const mla_launch& how) noexcept {
  using record = typename Kv::record_type;
  static_assert(element_kind_of<typename Query::value_type> == element_kind::bf16,
                "headwise: mla_decode: the kernel takes a query of bf16");
  static_assert(is_reducible<typename Output::value_type>,
                "headwise: mla_decode: the kernel writes fp32, fp16 or bf16");
  static_assert(reachable<device_accessible, Query> && reachable<device_accessible, Output> &&
                    reachable<device_accessible, Lse> && device_accessible(Kv::space),
                "headwise: a kernel reads and writes views of device or pinned memory");
  const index_t heads = query.template extent<axis::head>();
  if (units == 0 || heads == 0) return {};
  const status counted = check_mla_counts(units, query_tokens * heads);
  if (!counted.ok()) return counted;
  const result<mla_device> asked = mla_device_of(how);
  if (!asked.ok()) return asked.why();
  const mla_device device = asked.value();
  const mla_grid grid =
      mla_grid::of<record>(query_tokens * heads, device.multiprocessors, device.shared_bytes);
  const status supported = check_mla_device(kv, device, grid);
  if (!supported.ok()) return supported;
  const mla_grid::room room = grid.bytes(device.multiprocessors, record::latent);
  const status roomy =
      require_capacity("workspace", room.all(), static_cast<index_t>(workspace.size()));
  if (!roomy.ok()) return roomy;
  if (reinterpret_cast<std::uintptr_t>(workspace.data()) % 16 != 0) {
    return failure(errc::misaligned, "workspace", "must be aligned to 16 bytes");
  }
  return with_mla_shape<record>(grid, [&](auto shape) -> status {
    using shape_type = decltype(shape);
    using operands = mla_operands<Kv, Query, Keys, Output, Lse>;
    const int stages = shape_type::stages_in(device.shared_bytes);
    const std::uint64_t alignment = row_alignment(query);
    operands call{kv,
                  query,
                  keys,
                  output,
                  lse,
                  static_cast<float>(softmax_scale * 0x1.71547652b82fep+0),  // log2(e)
                  row_divider(heads),
                  static_cast<int>(query_tokens * heads),
                  static_cast<int>(query_tokens),
                  grid.blocks,
                  grid.rows_of_block,
                  grid.blocks_at_once,
                  grid.groups,
                  greater(how.least_tiles, 1),
                  stages,
                  alignment % 16 == 0  ? 16
                  : alignment % 4 == 0 ? 4
                                       : 2,
                  {}};
    call.workspace.arrived = reinterpret_cast<unsigned*>(workspace.data());
    call.workspace.lses = reinterpret_cast<float*>(workspace.data() + room.counters);
    call.workspace.outputs =
        reinterpret_cast<float4*>(workspace.data() + room.counters + room.lses);
    const auto kernel = mla_decode_kernel<shape_type, Base, operands>;
    static std::atomic<std::uint64_t> allowed{0};
    const status may = allow_shared_memory(kernel, allowed, device.number, device.shared_bytes);
    if (!may.ok()) return may;
    launch_shape grid_shape;
    grid_shape.blocks = static_cast<unsigned>(grid.groups * grid.blocks_at_once);
    grid_shape.threads = mla_block_threads;
    grid_shape.shared_bytes = static_cast<unsigned>(shape_type::bytes(stages));
    grid_shape.together = true;
    return launch("mla_decode", kernel, grid_shape, stream, call);
  });
}

}  // namespace detail

namespace kernel {

/// Bytes of workspace of a decode step on the current device, for `rows` rows of the query a
/// sequence: query tokens times heads (sparse: heads). Neither the number of sequences nor their
/// lengths matter, and more rows never take less; 64 KiB a multiprocessor and 8 rows, at most four
/// times that.
///
/// The workspace is set to zero once, before its first use; calls of all shapes may share it, one
/// after the other. Calls that may run at the same time have one each. After a kernel that was
/// aborted it is set to zero again.
/// Errors: cuda_failed.
template <kv_record Record>
result<index_t> mla_decode_bytes(index_t rows, const mla_launch& how = {}) noexcept {
  const result<detail::mla_device> device = detail::mla_device_of(how);
  if (!device.ok()) return device.why();
  if (rows == 0) return index_t{0};
  const int multiprocessors = device.value().multiprocessors;
  return detail::mla_grid::of<Record>(rows, multiprocessors, device.value().shared_bytes)
      .bytes(multiprocessors, Record::latent)
      .all();
}

/// Whether mla_decode() and mla_decode_sparse() run on the current device with this cache and
/// `rows` rows of the query a sequence, and if not, why.
/// Errors: unsupported (compute capability, shared memory), misaligned (records not aligned to 16
/// bytes), cuda_failed.
template <kv_record Record, memory_space Space>
status mla_decode_supported(const paged_kv<Record, Space>& kv, index_t rows,
                            const mla_launch& how = {}) noexcept {
  const result<detail::mla_device> device = detail::mla_device_of(how);
  if (!device.ok()) return device.why();
  return detail::check_mla_device(
      kv, device.value(),
      detail::mla_grid::of<Record>(detail::greater(rows, index_t{1}),
                                   device.value().multiprocessors, device.value().shared_bytes));
}

/// reference::mla_decode() on a stream, in fp32: this rank's share of every sequence. One launch;
/// none with no sequence or no head. Can be captured into a graph, whose replays read the lengths
/// and pages that are there then.
///
/// `query` is bf16, `output` fp32, fp16 or bf16; operands else as there, of any strides, in memory
/// that the device reaches. Records are aligned to 16 bytes. `workspace`: mla_decode_bytes().
///
/// The device cannot refuse values. Where the reference would: a length below 0 counts as 0, one
/// that the block table has no pages for counts as far as it has; an entry that is no page of the
/// cache stands for keys that are not there.
///
/// The bits depend on how many tiles the other sequences have, as these decide where a sequence is
/// cut. All blocks of the grid run at the same time: what else runs on the device must come to an
/// end without this call.
///
/// Errors: those of the reference that are about types, shapes and options; those of
/// mla_decode_supported(); unsupported (counts beyond 32 bits), capacity_exceeded, misaligned (the
/// workspace), cuda_failed.
template <class Query, kv_record Record, memory_space Space, class BlockTable, class Lengths,
          class Output, class Lse>
status mla_decode(const Query& query, const paged_kv<Record, Space>& kv,
                  const BlockTable& block_table, const Lengths& lengths, const mla_options& options,
                  const Output& output, const Lse& lse, std::span<std::byte> workspace,
                  const on_stream& stream, const mla_launch& how = {}) noexcept {
  static_assert(detail::reachable<device_accessible, BlockTable> &&
                    detail::reachable<device_accessible, Lengths>,
                "headwise: a kernel reads and writes views of device or pinned memory");
  const source_line where = source_line::current();
  const status shapes =
      detail::check_mla_operands(query, kv, options.softmax_scale, output, lse, where);
  if (!shapes.ok()) return shapes;
  const status sequences =
      detail::check_sequences(block_table, lengths, options.query_tokens, options.shard,
                              query.template extent<axis::token>(), where);
  if (!sequences.ok()) return sequences;
  const auto table = permute<axis::sequence, axis::page>(block_table);
  const detail::table_keys<std::remove_cv_t<decltype(table)>, Lengths> keys(
      table, lengths, options.shard, options.query_tokens, kv.page_size);
  return detail::launch_mla<Lse::value_type::base>(
      kv, permute<axis::token, axis::head, axis::head_dim>(query), keys,
      permute<axis::token, axis::head, axis::head_dim>(output),
      permute<axis::token, axis::head>(lse), options.softmax_scale,
      lengths.template extent<axis::sequence>(), options.query_tokens, workspace, stream, how);
}

/// reference::mla_decode_sparse() on a stream, with `counts` or without. The rest as in
/// mla_decode(). A slot that the cache does not have is none, as -1 is; a count is cut to what a
/// row of `slots` holds.
///
/// Errors: as mla_decode().
template <class Query, kv_record Record, memory_space Space, class Slots, class Output, class Lse,
          class Counts = none_t>
status mla_decode_sparse(const Query& query, const paged_kv<Record, Space>& kv, const Slots& slots,
                         double softmax_scale, const Output& output, const Lse& lse,
                         std::span<std::byte> workspace, const on_stream& stream,
                         const Counts& counts = {}, const mla_launch& how = {}) noexcept {
  static_assert(view_over<Slots, axis::token, axis::key> && detail::integer_view<Slots>,
                "headwise: mla_decode: slots are a view of integers over token and key");
  static_assert(
      detail::reachable<device_accessible, Slots> && detail::reachable<device_accessible, Counts>,
      "headwise: a kernel reads and writes views of device or pinned memory");
  const source_line where = source_line::current();
  const status shapes = detail::check_mla_operands(query, kv, softmax_scale, output, lse, where);
  if (!shapes.ok()) return shapes;
  const index_t tokens = query.template extent<axis::token>();
  const char* const tokens_of_query = "the tokens of the query";
  status listed = detail::first_failure({validate("slots", slots)}, where);
  if (listed.ok()) {
    listed = detail::check_extents(
        {detail::extent_is<axis::token>("slots", slots, tokens, tokens_of_query)}, where);
  }
  if constexpr (!detail::is_none<Counts>) {
    static_assert(view_of<Counts, axis::token> && detail::integer_view<Counts>,
                  "headwise: mla_decode: counts are a view of integers over token");
    if (listed.ok()) listed = detail::first_failure({validate("counts", counts)}, where);
    if (listed.ok()) {
      listed = detail::check_extents(
          {detail::extent_is<axis::token>("counts", counts, tokens, tokens_of_query)}, where);
    }
  }
  if (listed.ok() && slots.template extent<axis::key>() > INT32_MAX - detail::mla_keys) {
    listed = failure(errc::unsupported, "slots", "more keys of a row than 32 bits number",
                     slots.template extent<axis::key>(), INT32_MAX - detail::mla_keys);
  }
  if (!listed.ok()) return listed;
  const auto list = permute<axis::token, axis::key>(slots);
  const detail::listed_keys<std::remove_cv_t<decltype(list)>, Counts> keys{list, counts};
  return detail::launch_mla<Lse::value_type::base>(
      kv, permute<axis::token, axis::head, axis::head_dim>(query), keys,
      permute<axis::token, axis::head, axis::head_dim>(output),
      permute<axis::token, axis::head>(lse), softmax_scale, tokens, 1, workspace, stream, how);
}

}  // namespace kernel

}  // namespace headwise::inline v0
