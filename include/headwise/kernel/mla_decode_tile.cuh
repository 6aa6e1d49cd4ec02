// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/instructions.cuh>
#include <headwise/core/launch.cuh>
#include <headwise/core/math.hpp>
#include <headwise/plan/kv_shard.hpp>
#include <headwise/plan/paged_kv.hpp>

// What a block of mla_decode does with a tile of 32 keys: bring it, score it, turn scores into
// weights, add up weighted values. All of it with the keys on the wide side of the tensor cores
// (m16) and rows of the query on the narrow side (n8), so that any number of them is as good:
//
//     products^T = K . Q^T        a warp has a quarter of head_dim, and the sum over the four is
//                                 taken through shared memory
//     output^T  += V^T . P^T      a warp has columns of its own
//
// Rows of shared memory that matrices are loaded from are an odd number of 16 bytes apart: eight of
// them lie in different banks.

namespace headwise::inline v0::detail {

inline constexpr int mla_warps = 8;                 ///< that compute
inline constexpr int mla_threads = 32 * mla_warps;  ///< that compute
inline constexpr int mla_bringers = 4;              ///< warps that bring tiles
inline constexpr int mla_block_threads = mla_threads + 32 * mla_bringers;
inline constexpr int mla_keys = 32;  ///< of a tile: a lane each
inline constexpr int mla_keys_of_bringer = mla_keys / mla_bringers;
// Registers of a thread: what 65,536 of a multiprocessor give to each, and how they are shared out
// where a group of warps can hand some on. More than all would never be granted.
inline constexpr int mla_registers = 168;
inline constexpr int mla_registers_to_bring = 56;
inline constexpr int mla_registers_to_compute = 224;
static_assert(mla_registers_to_bring * 32 * mla_bringers + mla_registers_to_compute * mla_threads <=
              mla_registers * mla_block_threads);
inline constexpr int mla_lookups = 4;      ///< tiles whose keys are looked up together
inline constexpr int mla_splits = 4;       ///< of head_dim, for the products
inline constexpr int mla_most_rows = 32;   ///< of a block
inline constexpr int mla_most_stages = 8;  ///< tiles in flight
/// A group has parts of sequences with at most this many others: so many weights has a merge room
/// for.
inline constexpr int mla_most_groups = 192;
/// Tiles of a sequence. One without keys has one too, which writes that there are none.
HEADWISE_HD constexpr int mla_tiles(int keys) noexcept {
  return keys <= mla_keys ? 1 : (keys - 1) / mla_keys + 1;
}
/// A row's largest score may rise by this much, as a power of two, before sums are rescaled.
inline constexpr float mla_slack = 8.0f;

template <class Record>
inline constexpr bool is_quantised = requires {
  Record::scale_count;
};

/// `Tiles` times 8 rows of the query. `Bulk`: rows come by bulk copies where the device has them.
template <kv_record Record, int Tiles, bool Bulk = true>
struct mla_shape {
  using record = Record;
  static_assert(Tiles >= 1 && 8 * Tiles <= mla_most_rows);
  static_assert(Record::latent % 128 == 0 && Record::rope % 64 == 0,
                "headwise: mla_decode: latent is a multiple of 128, rope of 64");

  static constexpr bool quantised = is_quantised<Record>;
  static constexpr int tiles = Tiles;
  static constexpr int rows = 8 * Tiles;
  static constexpr int rows_of_warp = Tiles;  ///< that a warp weighs
  /// Of the query while it is scored; else in shared memory.
  static constexpr bool query_in_registers = Tiles <= (quantised ? 1 : 2);
  static constexpr int latent = static_cast<int>(Record::latent);
  static constexpr int rope = static_cast<int>(Record::rope);
  static constexpr int head_dim = latent + rope;
  static constexpr bool bulk = Bulk && has_bulk_copy;

  static constexpr int latent_steps = latent / mla_splits / 16;
  static constexpr int rope_steps = rope / mla_splits / 16;
  static constexpr int steps = latent_steps + rope_steps;
  /// Columns that a warp adds up, and the matrices of 16 that they are.
  static constexpr int columns = latent / mla_warps;
  static constexpr int column_tiles = columns / 16;
  static_assert(columns % 16 == 0);

  static constexpr int pitch = head_dim * 2 + 16;  ///< bytes between keys, and rows of the query
  static constexpr int record_bytes = static_cast<int>(Record::record_bytes);
  static constexpr int stage_pitch = quantised ? record_bytes : pitch;
  static constexpr int product_pitch = mla_keys + 4;       ///< floats between rows
  static constexpr int weight_pitch = (mla_keys + 8) * 2;  ///< bytes between rows
  static constexpr int weight_sets = quantised ? latent / 128 : 1;
  static constexpr int weight_bytes = rows * weight_pitch;  ///< of a set

  // Where things are in shared memory, in bytes.
  static constexpr int filled_at = 0;  ///< barriers, of a stage each
  static constexpr int free_at = filled_at + mla_most_stages * 8;
  /// Bits of keys: a stage has a byte for each warp that brings tiles.
  static constexpr int present_at = free_at + mla_most_stages * 8;
  static constexpr int decoded_present_at = present_at + mla_most_stages * mla_bringers;
  static constexpr int plan_at = (decoded_present_at + 2 * mla_bringers + 15) / 16 * 16;
  static constexpr int shrink_at = plan_at + 64;
  static constexpr int bounds_at = shrink_at + mla_most_rows * 4;
  static constexpr int factor_at = bounds_at + mla_most_rows * 4;
  static constexpr int lse_at = factor_at + mla_most_rows * 4;
  static constexpr int scales_at = lse_at + mla_most_rows * 4;
  static constexpr int query_at = scales_at + (quantised ? 2 * weight_sets * mla_keys * 4 : 0);
  static constexpr int products_at = query_at + (query_in_registers ? 0 : rows * pitch);
  /// Also room to plan and to merge in.
  static constexpr int products_bytes = greater(mla_splits * rows * product_pitch * 4, 16384);
  static constexpr int weights_at = products_at + products_bytes;
  static constexpr int decoded_at = weights_at + weight_sets * weight_bytes;
  static constexpr int stages_at = decoded_at + (quantised ? 2 * mla_keys * pitch : 0);
  static constexpr int stage_bytes = mla_keys * stage_pitch;
  static_assert(query_at % 16 == 0 && stages_at % 16 == 0 && stage_bytes % 16 == 0);

  static constexpr int least_stages = quantised ? 1 : 2;
  static constexpr int stages_in(int shared_bytes) noexcept {
    const int stages = (shared_bytes - stages_at) / stage_bytes;
    return stages < mla_most_stages ? stages : mla_most_stages;
  }
  static constexpr int bytes(int stages) noexcept { return stages_at + stages * stage_bytes; }
};

/// A place in the ring of stages, and how often it has come round.
struct mla_ring {
  int stage = 0;
  unsigned round = 0;

  __device__ void next(int stages) noexcept {
    if (++stage == stages) {
      stage = 0;
      ++round;
    }
  }
};

/// All warps that compute wait for each other.
__device__ inline void meet() noexcept {
  asm volatile("barrier.sync 1, %0;" ::"n"(mla_threads) : "memory");
}
/// The same; whether it is true for one of them.
__device__ inline bool meet_or(bool mine) noexcept {
  unsigned any;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "barrier.red.or.pred q, 1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(static_cast<unsigned>(mine)), "n"(mla_threads)
      : "memory");
  return any != 0;
}

// ---- bringing tiles ---------------------------------------------------------------------------

/// What the warps do that bring tiles: those of a block's share, one behind the other, each into
/// the next stage when that is free. Warp b of them has keys 8b to 8b + 7 of a tile, a lane each.
/// Keys that there are not are zeros, and marked as not present.
template <class Shape, class Keys, class Kv>
__device__ void bring_tiles(const Keys& keys, const Kv& kv, std::byte* shared, int stages,
                            mla_ring& ring, int unit, int length, int tile, index_t left) noexcept {
  constexpr auto chunks = static_cast<unsigned>(Shape::record_bytes / 16);
  constexpr unsigned all = (1u << mla_keys_of_bringer) - 1;
  const unsigned lane = threadIdx.x % 32;
  const int bringer = static_cast<int>(threadIdx.x / 32) - mla_warps;
  const int own_key = bringer * mla_keys_of_bringer + static_cast<int>(lane % mla_keys_of_bringer);
  const std::uint32_t filled = shared_address(shared + Shape::filled_at);
  const std::uint32_t free = shared_address(shared + Shape::free_at);
  int count = keys.count(length);
  int tiles = mla_tiles(count);
  while (left > 0) {
    const int together = static_cast<int>(lesser(index_t{lesser(tiles - tile, mla_lookups)}, left));
    typename Keys::name_type named[mla_lookups];
#pragma unroll
    for (int k = 0; k < mla_lookups; ++k) {
      const int key = (tile + k) * mla_keys + own_key;
      named[k] = k < together && key < count ? keys.named(unit, key) : -1;
    }
#pragma unroll
    for (int k = 0; k < mla_lookups; ++k) {
      if (k >= together) break;
      const std::byte* const from = keys.record(kv, named[k], (tile + k) * mla_keys + own_key);
      const unsigned present = __ballot_sync(whole_warp, from != nullptr) & all;
      const auto barrier = static_cast<unsigned>(ring.stage) * 8;
      std::byte* const to = shared + Shape::stages_at + ring.stage * Shape::stage_bytes +
                            bringer * (mla_keys_of_bringer * Shape::stage_pitch);
      wait_for_phase(free + barrier, (ring.round & 1u) ^ 1u);
      if (present != all) {
        for (int r = 0; r < mla_keys_of_bringer; ++r) {
          if ((present >> r & 1u) != 0) continue;
          auto* const row = reinterpret_cast<uint4*>(to + r * Shape::stage_pitch);
          for (unsigned c = lane; c < chunks; c += 32) row[c] = uint4{};
        }
        if constexpr (Shape::bulk) fence_for_bulk_copy();
      }
      if (lane == 0) {
        reinterpret_cast<unsigned char*>(shared +
                                         Shape::present_at)[ring.stage * mla_bringers + bringer] =
            static_cast<unsigned char>(present);
      }
      // What the other lanes have written belongs to what one arrives for.
      __syncwarp();
      const auto address = reinterpret_cast<std::uintptr_t>(from);
      if constexpr (Shape::bulk) {
        std::uintptr_t of_key[mla_keys_of_bringer];
#pragma unroll
        for (int r = 0; r < mla_keys_of_bringer; ++r) {
          of_key[r] = __shfl_sync(whole_warp, address, r);
        }
        if (elect_lane()) {
          arrive_expecting(filled + barrier, static_cast<unsigned>(__popc(present)) *
                                                 static_cast<unsigned>(Shape::record_bytes));
#pragma unroll
          for (int r = 0; r < mla_keys_of_bringer; ++r) {
            if (of_key[r] == 0) continue;
            copy_bulk(shared_address(to) + static_cast<unsigned>(r * Shape::stage_pitch),
                      reinterpret_cast<const void*>(of_key[r]), Shape::record_bytes,
                      filled + barrier);
          }
        }
        __syncwarp();
      } else {
#pragma unroll
        for (int r = 0; r < mla_keys_of_bringer; ++r) {
          const auto of_key = __shfl_sync(whole_warp, address, r);
          if (of_key == 0) continue;
          for (unsigned c = lane; c < chunks; c += 32) {
            copy_async_16(
                shared_address(to) + static_cast<unsigned>(r * Shape::stage_pitch) + c * 16,
                reinterpret_cast<const std::byte*>(of_key) + c * 16);
          }
        }
        arrive_after_copies(filled + barrier);
      }
      ring.next(stages);
    }
    left -= together;
    tile += together;
    if (tile == tiles && left > 0) {
      count = keys.count(keys.length_of(++unit));
      tiles = mla_tiles(count);
      tile = 0;
    }
  }
}
/// Arrivals that fill a stage.
template <class Shape>
inline constexpr unsigned mla_arrivals = Shape::bulk ? mla_bringers : 32 * mla_bringers;

/// Of the keys of a tile, the bits that bring_tiles() leaves: whether this lane's is present.
__device__ inline bool is_present(const std::byte* bytes) noexcept {
  return (*reinterpret_cast<const unsigned*>(bytes) >> threadIdx.x % 32 & 1u) != 0;
}
static_assert(mla_bringers == 4 && mla_keys_of_bringer == 8, "the bits of a tile are a word");

/// A tile of fp8 records as bf16 numbers without their scales, and the scales beside them.
template <class Shape>
__device__ void decode_tile(std::byte* shared, int stage, int buffer) noexcept {
  using record = typename Shape::record;
  constexpr int keys_of_warp = mla_keys / mla_warps;
  constexpr int scale_count = Shape::latent / 128;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const std::byte* const from = shared + Shape::stages_at + stage * Shape::stage_bytes +
                                warp * keys_of_warp * Shape::stage_pitch;
  const int first_key = warp * keys_of_warp;
  std::byte* const to = shared + Shape::decoded_at + (buffer * mla_keys + first_key) * Shape::pitch;
  float* const scales =
      reinterpret_cast<float*>(shared + Shape::scales_at) + buffer * scale_count * mla_keys;
  if (lane < keys_of_warp * scale_count) {
    const int key = lane % keys_of_warp;
    const int group = lane / keys_of_warp;
    scales[group * mla_keys + first_key + key] = reinterpret_cast<const float*>(
        from + key * Shape::stage_pitch + record::scale_offset)[group];
  }
  __syncwarp();
#pragma unroll
  for (int key = 0; key < keys_of_warp; ++key) {
#pragma unroll
    for (int c = lane; c < Shape::latent / 8; c += 32) {
      const uint2 eight = *reinterpret_cast<const uint2*>(from + key * Shape::stage_pitch + c * 8);
      uint4 numbers;
      numbers.x = bf16_of_e4m3(__byte_perm(eight.x, 0, 0x1404));
      numbers.y = bf16_of_e4m3(__byte_perm(eight.x, 0, 0x3424));
      numbers.z = bf16_of_e4m3(__byte_perm(eight.y, 0, 0x1404));
      numbers.w = bf16_of_e4m3(__byte_perm(eight.y, 0, 0x3424));
      *reinterpret_cast<uint4*>(to + key * Shape::pitch + c * 16) = numbers;
      // A NaN is 0x7f or 0xff: one more than the largest number, less the sign.
      const unsigned nan =
          ((eight.x & 0x7f7f7f7fu) + 0x01010101u) | ((eight.y & 0x7f7f7f7fu) + 0x01010101u);
      if ((nan & 0x80808080u) != 0) {
        scales[c * 8 / 128 * mla_keys + first_key + key] = canonical_nan();
      }
    }
  }
  if constexpr (Shape::rope > 0) {
    constexpr int rope_chunks = Shape::rope / 8;
    for (int c = lane; c < keys_of_warp * rope_chunks; c += 32) {
      const int key = c / rope_chunks;
      const int at = c % rope_chunks * 16;
      *reinterpret_cast<uint4*>(to + key * Shape::pitch + Shape::latent * 2 + at) =
          *reinterpret_cast<const uint4*>(from + key * Shape::stage_pitch + record::rope_offset +
                                          at);
    }
  }
  if (threadIdx.x == 0) {
    reinterpret_cast<unsigned*>(shared + Shape::decoded_present_at)[buffer] =
        reinterpret_cast<const unsigned*>(shared + Shape::present_at)[stage];
  }
}

// ---- scores -----------------------------------------------------------------------------------

/// Which part of the scores is a warp's: a quarter of head_dim, for 16 keys.
struct score_share {
  int split = static_cast<int>(threadIdx.x / 32) / 2;
  int first_key = static_cast<int>(threadIdx.x / 32) % 2 * 16;
};

/// The rows of the query, as fragments of B, in registers or shared memory.
template <class Shape>
struct mla_query {
  static constexpr bool in_registers = Shape::query_in_registers;
  std::uint32_t held[in_registers ? Shape::steps : 1][in_registers ? Shape::tiles : 1][2];

  /// First column of a step of this warp.
  __device__ static int column_of(int split, int step) noexcept {
    return step < Shape::latent_steps ? split * (Shape::latent / mla_splits) + step * 16
                                      : Shape::latent + split * (Shape::rope / mla_splits) +
                                            (step - Shape::latent_steps) * 16;
  }

  /// `row_of(r)` is the address of row r's bf16 numbers, or null where there is none; `stride`
  /// between them. `width`: bytes that can be read at a time, 2, 4 or 16; with more than 2 the
  /// stride is 1.
  template <class RowOf>
  __device__ void load(const RowOf& row_of, index_t stride, int width, std::byte* shared) noexcept {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const auto pair_at = [&](const std::uint16_t* row, int column) -> std::uint32_t {
      return std::uint32_t{row[column * stride]} | std::uint32_t{row[(column + 1) * stride]} << 16;
    };
    if constexpr (in_registers) {
      const score_share share;
#pragma unroll
      for (int n = 0; n < Shape::tiles; ++n) {
        const std::uint16_t* const row = row_of(n * 8 + lane / 4);
        if (row == nullptr) {
#pragma unroll
          for (auto& of_step : held) of_step[n][0] = of_step[n][1] = 0;
        } else if (width > 2) {
#pragma unroll
          for (int s = 0; s < Shape::steps; ++s) {
            const std::uint16_t* const from = row + column_of(share.split, s) + lane % 4 * 2;
            held[s][n][0] = *reinterpret_cast<const std::uint32_t*>(from);
            held[s][n][1] = *reinterpret_cast<const std::uint32_t*>(from + 8);
          }
        } else {
#pragma unroll
          for (int s = 0; s < Shape::steps; ++s) {
            const int column = column_of(share.split, s) + lane % 4 * 2;
            held[s][n][0] = pair_at(row, column);
            held[s][n][1] = pair_at(row, column + 8);
          }
        }
      }
    } else {
      constexpr int rows_of_warp = Shape::rows / mla_warps;
      constexpr int vectors = Shape::head_dim / 8;
      constexpr int turns = (vectors + 31) / 32;
      const int first = static_cast<int>(threadIdx.x / 32) * rows_of_warp;
      const auto vector_of = [&](int r, int i) {
        return reinterpret_cast<uint4*>(shared + Shape::query_at + (first + r) * Shape::pitch) + i;
      };
      uint4 moved[rows_of_warp][turns];
#pragma unroll
      for (int r = 0; r < rows_of_warp; ++r) {
        const std::uint16_t* const row = row_of(first + r);
#pragma unroll
        for (int k = 0; k < turns; ++k) {
          const int i = lane + 32 * k;
          moved[r][k] = uint4{};
          if (row == nullptr || i >= vectors) continue;
          if (width == 16) {
            moved[r][k] = reinterpret_cast<const uint4*>(row)[i];
          } else {
            moved[r][k] = {pair_at(row, 8 * i), pair_at(row, 8 * i + 2), pair_at(row, 8 * i + 4),
                           pair_at(row, 8 * i + 6)};
          }
        }
      }
#pragma unroll
      for (int r = 0; r < rows_of_warp; ++r) {
#pragma unroll
        for (int k = 0; k < turns; ++k) {
          if (lane + 32 * k < vectors) *vector_of(r, lane + 32 * k) = moved[r][k];
        }
      }
    }
  }
};

/// Products with e4m3 numbers so far, times the scale of each key.
template <class Shape>
__device__ void scale_scores(float (&sums)[Shape::tiles][4], const score_share& share,
                             const float* scales) noexcept {
  const float* const of_split = scales +
                                share.split * (Shape::latent / mla_splits) / 128 * mla_keys +
                                share.first_key + threadIdx.x % 32 / 4;
  const float upper = of_split[0];
  const float lower = of_split[8];
#pragma unroll
  for (auto& of_tile : sums) {
    of_tile[0] *= upper;
    of_tile[1] *= upper;
    of_tile[2] *= lower;
    of_tile[3] *= lower;
  }
}

/// products[split][row][key] of a tile, the share of this warp.
template <class Shape>
__device__ void score_tile(const mla_query<Shape>& query, std::byte* shared, const std::byte* tile,
                           [[maybe_unused]] const float* scales) noexcept {
  const score_share share;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::uint32_t keys =
      shared_address(tile) +
      static_cast<unsigned>((share.first_key + lane % 16) * Shape::pitch + lane / 16 * 16);
  [[maybe_unused]] const std::uint32_t rows =
      shared_address(shared + Shape::query_at) +
      static_cast<unsigned>((lane % 8 + lane / 16 * 8) * Shape::pitch + lane / 8 % 2 * 16);
  // The matrices of the next step are on their way while this one's are multiplied.
  struct operands {
    std::uint32_t a[4];
    std::uint32_t b[Shape::query_in_registers ? 1 : Shape::tiles][2];
  };
  const auto load = [&](operands& to, int s) {
    const auto column = static_cast<unsigned>(mla_query<Shape>::column_of(share.split, s) * 2);
    load_matrices(to.a, keys + column);
    if constexpr (!Shape::query_in_registers) {
#pragma unroll
      for (int n = 0; n < Shape::tiles; n += 2) {
        const std::uint32_t at = rows + column + static_cast<unsigned>(n * 8 * Shape::pitch);
        if (n + 1 < Shape::tiles) {
          load_matrices(to.b[n], to.b[n + 1], at);
        } else {
          load_matrices(to.b[n], at);
        }
      }
    }
  };
  float sums[Shape::tiles][4] = {};
  operands in[2];
  load(in[0], 0);
#pragma unroll
  for (int s = 0; s < Shape::steps; ++s) {
    if (s + 1 < Shape::steps) load(in[(s + 1) % 2], s + 1);
    if constexpr (Shape::quantised) {
      // The rope part has no scales.
      if (s == Shape::latent_steps) scale_scores<Shape>(sums, share, scales);
    }
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      if constexpr (Shape::query_in_registers) {
        multiply_bf16(sums[n], in[s % 2].a, query.held[s][n]);
      } else {
        multiply_bf16(sums[n], in[s % 2].a, in[s % 2].b[n]);
      }
    }
  }
  if constexpr (Shape::quantised && Shape::rope_steps == 0) {
    scale_scores<Shape>(sums, share, scales);
  }
  float* const products = reinterpret_cast<float*>(shared + Shape::products_at) +
                          (share.split * Shape::rows + lane % 4 * 2) * Shape::product_pitch +
                          share.first_key + lane / 4;
#pragma unroll
  for (int n = 0; n < Shape::tiles; ++n) {
    float* const at = products + n * 8 * Shape::product_pitch;
    at[0] = sums[n][0];
    at[Shape::product_pitch] = sums[n][1];
    at[8] = sums[n][2];
    at[Shape::product_pitch + 8] = sums[n][3];
  }
}

// ---- weights ----------------------------------------------------------------------------------

/// The softmax of the rows of a warp, key by key. `highest` is what weights are relative to, in
/// powers of two; `sums` are those of a lane's own keys.
template <class Shape>
struct mla_softmax {
  float highest[Shape::rows_of_warp];
  float sums[Shape::rows_of_warp];
  int bounds[Shape::rows_of_warp];  ///< keys that a row sees

  __device__ static int first_row() noexcept {
    return static_cast<int>(threadIdx.x / 32) * Shape::rows_of_warp;
  }

  __device__ void begin(const std::byte* shared) noexcept {
#pragma unroll
    for (int i = 0; i < Shape::rows_of_warp; ++i) {
      highest[i] = -infinity();
      sums[i] = 0.0f;
      bounds[i] = reinterpret_cast<const int*>(shared + Shape::bounds_at)[first_row() + i];
    }
  }

  /// Weights of a tile; whether sums so far have to be multiplied by `shrink`, for a row of this
  /// warp. `present`: of the tile's keys.
  __device__ bool weigh_tile(std::byte* shared, int first_key, const std::byte* present,
                             [[maybe_unused]] const float* scales, float scale) noexcept {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int first = first_row();
    const auto* const products = reinterpret_cast<const float*>(shared + Shape::products_at);
    const bool here = is_present(present);
    [[maybe_unused]] float scale_of_key[Shape::weight_sets];
    if constexpr (Shape::quantised) {
#pragma unroll
      for (int g = 0; g < Shape::weight_sets; ++g) scale_of_key[g] = scales[g * mla_keys + lane];
    }
    float scores[Shape::rows_of_warp];
    bool seen[Shape::rows_of_warp];
    float tops[Shape::rows_of_warp];
#pragma unroll
    for (int i = 0; i < Shape::rows_of_warp; ++i) {
      const float* const at = products + (first + i) * Shape::product_pitch + lane;
      constexpr int next = Shape::rows * Shape::product_pitch;
      scores[i] = ((at[0] + at[next]) + (at[2 * next] + at[3 * next])) * scale;
      // A score of -inf weighs nothing, also while there is no other to be below of.
      seen[i] =
          here && first_key + lane < bounds[i] && float_bits(scores[i]) != float_bits(-infinity());
      tops[i] = from_ordered_bits(
          __reduce_max_sync(whole_warp, ordered_bits(seen[i] ? scores[i] : -infinity())));
    }
    bool rose = false;
    float shrink = 1.0f;
#pragma unroll
    for (int i = 0; i < Shape::rows_of_warp; ++i) {
      if (tops[i] > highest[i] + mla_slack) {
        const float factor = fast_exp2(highest[i] - tops[i]);
        highest[i] = tops[i];
        sums[i] *= factor;
        if (lane == i) shrink = factor;
        rose = true;
      }
      const float weight = seen[i] ? fast_exp2(scores[i] - highest[i]) : 0.0f;
      sums[i] += weight;
      auto* const to = reinterpret_cast<std::uint16_t*>(shared + Shape::weights_at +
                                                        (first + i) * Shape::weight_pitch) +
                       lane;
      if constexpr (Shape::quantised) {
#pragma unroll
        for (int g = 0; g < Shape::weight_sets; ++g) {
          const float scaled = seen[i] ? weight * scale_of_key[g] : 0.0f;
          to[g * (Shape::weight_bytes / 2)] =
              static_cast<std::uint16_t>(rounded_pair<bf16>(scaled, 0.0f));
        }
      } else {
        to[0] = static_cast<std::uint16_t>(rounded_pair<bf16>(weight, 0.0f));
      }
    }
    if (lane < Shape::rows_of_warp) {
      reinterpret_cast<float*>(shared + Shape::shrink_at)[first + lane] = shrink;
    }
    return rose;
  }

  /// What the sums of a row are multiplied by in the end, and its LSE, base two.
  __device__ void finish(std::byte* shared) noexcept {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float total_of_lane = 0.0f;  // lane i has those of row i
    float highest_of_lane = 0.0f;
#pragma unroll
    for (int i = 0; i < Shape::rows_of_warp; ++i) {
      float total = sums[i];
#pragma unroll
      for (int other = 16; other > 0; other /= 2) {
        total += __shfl_xor_sync(whole_warp, total, other);
      }
      if (lane == i) {
        total_of_lane = total;
        highest_of_lane = highest[i];
      }
    }
    if (lane >= Shape::rows_of_warp) return;
    const bool empty = total_of_lane == 0.0f;
    // By a score that is NaN or +inf. What follows takes numbers from 1 on.
    const bool broken = !is_finite(total_of_lane);
    const float total = empty || broken ? 1.0f : total_of_lane;
    const int row = first_row() + lane;
    reinterpret_cast<float*>(shared + Shape::factor_at)[row] = broken  ? canonical_nan()
                                                               : empty ? 0.0f
                                                                       : reciprocal(total);
    reinterpret_cast<float*>(shared + Shape::lse_at)[row] = broken ? canonical_nan()
                                                            : empty
                                                                ? -infinity()
                                                                : add_log2(highest_of_lane, total);
  }
};

/// Sets the values of keys that are not finite to zero, when they have been scored: rows that see
/// such a key are NaN by its score, and for the others zero times NaN would be NaN.
template <class Shape>
__device__ void clear_broken_values(std::byte* tile) noexcept {
  constexpr int keys_of_warp = mla_keys / mla_warps;
  const unsigned lane = threadIdx.x % 32;
  const auto is_broken = [](unsigned pair) {
    return (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
  };
  for (int k = 0; k < keys_of_warp; ++k) {
    auto* const row = reinterpret_cast<uint4*>(
        tile + (static_cast<int>(threadIdx.x / 32) * keys_of_warp + k) * Shape::pitch);
    bool broken = false;
    for (unsigned c = lane; c < Shape::latent / 8; c += 32) {
      const uint4 eight = row[c];
      broken = broken || is_broken(eight.x) || is_broken(eight.y) || is_broken(eight.z) ||
               is_broken(eight.w);
    }
    if (__any_sync(whole_warp, broken) == 0) continue;
    for (unsigned c = lane; c < Shape::latent / 8; c += 32) row[c] = uint4{};
  }
  if constexpr (Shape::bulk) fence_for_bulk_copy();
}

// ---- values -----------------------------------------------------------------------------------

/// Weighted sums of a warp's columns.
template <class Shape>
struct mla_sums {
  float held[Shape::column_tiles][Shape::tiles][4];

  __device__ static int first_column() noexcept {
    return static_cast<int>(threadIdx.x / 32) * Shape::columns;
  }

  // As vectors of four: [tile of rows, tile of columns, thread]. One has two rows and two columns,
  // eight apart.
  static constexpr int vectors = Shape::tiles * Shape::column_tiles * mla_threads;
  /// The i-th of this thread. Unrolled, so that it stays in registers.
  __device__ float4 vector(int i) const noexcept {
    const float(&of)[4] = held[i % Shape::column_tiles][i / Shape::column_tiles];
    return {of[0], of[1], of[2], of[3]};
  }
  __device__ static int column_of(int vector) noexcept {
    return vector % mla_threads / 32 * Shape::columns +
           vector / mla_threads % Shape::column_tiles * 16 + vector % 32 / 4;
  }

  __device__ void clear() noexcept {
#pragma unroll
    for (int m = 0; m < Shape::column_tiles; ++m) {
#pragma unroll
      for (int n = 0; n < Shape::tiles; ++n) {
#pragma unroll
        for (float& sum : held[m][n]) sum = 0.0f;
      }
    }
  }

  /// Multiplies rows by factors[row].
  __device__ void scale(const std::byte* factors) noexcept {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      const float2 by = reinterpret_cast<const float2*>(factors)[n * 4 + lane % 4];
#pragma unroll
      for (int m = 0; m < Shape::column_tiles; ++m) {
        held[m][n][0] *= by.x;
        held[m][n][1] *= by.y;
        held[m][n][2] *= by.x;
        held[m][n][3] *= by.y;
      }
    }
  }

  __device__ void add_tile(const std::byte* shared, const std::byte* tile) noexcept {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int set = Shape::quantised ? first_column() / 128 : 0;
    const std::uint32_t weights =
        shared_address(shared + Shape::weights_at + set * Shape::weight_bytes) +
        static_cast<unsigned>((lane % 8 + lane / 16 * 8) * Shape::weight_pitch + lane / 8 % 2 * 16);
    const std::uint32_t values =
        shared_address(tile) + static_cast<unsigned>((lane % 8 + lane / 16 * 8) * Shape::pitch +
                                                     (first_column() + lane / 8 % 2 * 8) * 2);
    std::uint32_t b[2][Shape::tiles][2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int n = 0; n < Shape::tiles; n += 2) {
        const std::uint32_t at =
            weights + static_cast<unsigned>(n * 8 * Shape::weight_pitch + k * 32);
        if (n + 1 < Shape::tiles) {
          load_matrices(b[k][n], b[k][n + 1], at);
        } else {
          load_matrices(b[k][n], at);
        }
      }
    }
    // The next matrix of values is on its way while one is multiplied.
    constexpr int turns = 2 * Shape::column_tiles;
    std::uint32_t a[2][4];
    const auto load = [&](int i) {
      load_matrices_transposed(
          a[i % 2], values + static_cast<unsigned>(i / Shape::column_tiles * 16 * Shape::pitch +
                                                   i % Shape::column_tiles * 32));
    };
    load(0);
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      if (i + 1 < turns) load(i + 1);
#pragma unroll
      for (int n = 0; n < Shape::tiles; ++n) {
        multiply_bf16(held[i % Shape::column_tiles][n], a[i % 2], b[i / Shape::column_tiles][n]);
      }
    }
  }

  /// To where `row_at(r)`, a pointer or null, says that row r begins.
  template <class RowAt>
  __device__ void store(const RowAt& row_at, index_t stride) const noexcept {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        auto* const row = row_at(n * 8 + lane % 4 * 2 + second);
        if (row == nullptr) continue;
        using element = std::remove_pointer_t<decltype(row_at(0))>;
        auto* const to = row + (first_column() + lane / 4) * stride;
#pragma unroll
        for (int m = 0; m < Shape::column_tiles; ++m) {
          to[m * 16 * stride] = rounded_to<element>(held[m][n][second]);
          to[(m * 16 + 8) * stride] = rounded_to<element>(held[m][n][2 + second]);
        }
      }
    }
  }
};

}  // namespace headwise::inline v0::detail
