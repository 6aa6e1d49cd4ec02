// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/kernel/lse_combine.cuh>
#include <headwise/pool/signals.cuh>

// Rows of the caller's views as kernels of a pool read and write them: through their strides, in
// units of the width of a line (8 bytes) or of a slot (16).

namespace headwise::inline v0 {

namespace detail {

/// `Bytes` of neighbouring elements.
template <class T, int Bytes>
using row_unit = column_vector<T, Bytes / static_cast<int>(sizeof(T))>;

/// Unit `index` of a row. `Vector` where rows are aligned to Bytes, dense, and whole units long;
/// otherwise element by element, zeros behind the last.
template <bool Vector, class T, int Bytes>
__device__ void load_unit(row_unit<T, Bytes>& unit, const T* row, index_t stride, unsigned index,
                          unsigned head_dim) noexcept {
  constexpr auto columns = static_cast<unsigned>(Bytes / static_cast<int>(sizeof(T)));
  if constexpr (Vector) {
    unit.load(row + index_t{index} * index_t{columns});
  } else {
    static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4);
    using raw = typename raw_bits<static_cast<int>(sizeof(T))>::type;
    constexpr unsigned of_word = 4 / sizeof(T);
#pragma unroll
    for (unsigned w = 0; w < Bytes / 4; ++w) {
      unsigned bits = 0;
#pragma unroll
      for (unsigned e = 0; e < of_word; ++e) {
        const unsigned d = index * columns + w * of_word + e;
        if (d < head_dim) {
          bits |= unsigned{reinterpret_cast<const raw*>(row)[d * stride]} << (8 * sizeof(T) * e);
        }
      }
      unit.set_word(static_cast<int>(w), bits);
    }
  }
}

template <bool Vector, class T, int Bytes>
__device__ void store_unit(const row_unit<T, Bytes>& unit, T* row, index_t stride, unsigned index,
                           unsigned head_dim) noexcept {
  constexpr auto columns = static_cast<unsigned>(Bytes / static_cast<int>(sizeof(T)));
  if constexpr (Vector) {
    unit.store(row + index_t{index} * index_t{columns});
  } else {
    using raw = typename raw_bits<static_cast<int>(sizeof(T))>::type;
    constexpr unsigned of_word = 4 / sizeof(T);
#pragma unroll
    for (unsigned w = 0; w < Bytes / 4; ++w) {
#pragma unroll
      for (unsigned e = 0; e < of_word; ++e) {
        const unsigned d = index * columns + w * of_word + e;
        if (d < head_dim) {
          reinterpret_cast<raw*>(row)[d * stride] =
              static_cast<raw>(unit.word(static_cast<int>(w)) >> (8 * sizeof(T) * e));
        }
      }
    }
  }
}

/// How data gets into and out of a slot of `ll`.
template <class T>
struct line_form {
  static constexpr int bytes = ll_data;
  using unit = row_unit<T, bytes>;
  using raw = tagged_line;

  __device__ static raw wrap(const unit& data, const pool_turn& turn) noexcept {
    return tagged_line::of(data.word(0), data.word(1), turn.tag());
  }
  __device__ static unit unwrap(const raw& line) noexcept {
    unit data;
    data.set_word(0, line.first());
    data.set_word(1, line.second());
    return data;
  }
  __device__ static raw load(const std::byte* at) noexcept { return load_line(at); }
  __device__ static void store(std::byte* at, const raw& line) noexcept { store_line(at, line); }
  __device__ static bool ready(const raw& line, const pool_turn& turn) noexcept {
    return line.carries(turn.tag());
  }

  /// The LSE comes in a line with the signature of the call.
  using lse_raw = tagged_line;
  __device__ static lse_raw load_lse(const std::byte* at) noexcept { return load_line(at); }
  __device__ static float unwrap_lse(const lse_raw& line, const channel_ports& ports,
                                     pool_turn& turn, int source) noexcept {
    check_signature(ports, turn, source, line.second());
    return bit_cast<float>(line.first());
  }
};

/// The same of `push` and `pull`: plain 16 bytes, which are there when their chunk's flag is.
template <class T>
struct slot_form {
  static constexpr int bytes = 16;
  using unit = row_unit<T, bytes>;
  using raw = uint4;

  __device__ static raw wrap(const unit& data, const pool_turn&) noexcept { return data.held[0]; }
  __device__ static unit unwrap(const raw& bits) noexcept {
    unit data;
    data.held[0] = bits;
    return data;
  }
  __device__ static raw load(const std::byte* at) noexcept { return load_slot(at); }
  __device__ static void store(std::byte* at, const raw& bits) noexcept {
    *reinterpret_cast<uint4*>(at) = bits;
  }
  __device__ static bool ready(const raw&, const pool_turn&) noexcept { return true; }

  using lse_raw = float;
  __device__ static lse_raw load_lse(const std::byte* at) noexcept { return load_slot_lse(at); }
  __device__ static float unwrap_lse(lse_raw value, const channel_ports&, pool_turn&,
                                     int) noexcept {
    return value;
  }
  __device__ static bool ready(lse_raw, const pool_turn&) noexcept { return true; }
};

/// What a warp does when it has written a chunk: lane by lane, a peer each. All that the lanes have
/// stored is released by each of those that flag.
__device__ inline void flag_chunk(const channel_ports& ports, const pool_turn& turn,
                                  index_t chunk) noexcept {
  const unsigned lane = threadIdx.x % 32;
  __syncwarp();
  if (lane >= static_cast<unsigned>(ports.ranks - 1)) return;
  const int peer = peer_at(ports, 1 + static_cast<int>(lane));
  release_flag(ports.slab[peer] + ports.layout.flag_at(turn.slot, chunk, ports.rank),
               {turn.epoch, std::uint64_t{turn.signature} << 32 | turn.tag()});
}

/// Waits for a peer's chunk. The epoch is compared for equality: a peer may be one ahead in the
/// other slot, never two.
__device__ inline void wait_for_chunk(const channel_ports& ports, pool_turn& turn, int peer,
                                      index_t chunk) noexcept {
  const std::byte* const at = ports.own() + ports.layout.flag_at(turn.slot, chunk, peer);
  const auto here = [&](const chunk_flag& flag) {
    return flag.epoch == turn.epoch && static_cast<std::uint32_t>(flag.signature) == turn.tag();
  };
  // An acquire empties the L1 of the multiprocessor: one, when there is something to acquire.
  while (!here(load_flag(at))) {
    if (gives_up(ports, turn, peer)) return;
  }
  const chunk_flag flag = acquire_flag(at);
  check_signature(ports, turn, peer, flag.signature >> 32);
}

/// Warps of the first half of a block send, those of the second receive: what is sent never waits
/// for what is received. A chunk is one warp's at either end, and no warp waits for another. (One
/// that flags for all of a block is slower: its fences come one after the other.)
inline constexpr unsigned pool_senders = pool_threads / 32 / 2;

/// The number of a warp among all that send, or all that receive.
__device__ inline index_t warp_of_chunks() noexcept {
  return index_t{blockIdx.x} * pool_senders + threadIdx.x / 32 % pool_senders;
}

}  // namespace detail

}  // namespace headwise::inline v0
