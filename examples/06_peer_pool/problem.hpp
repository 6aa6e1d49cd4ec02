// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/core/element.hpp>
#include <headwise/view/view.hpp>

// What the layers compute, the same on the host and on a GPU to the last bit: every sum has two
// terms and every product is exact, so that nothing depends on a compiler.

namespace engine {

using headwise::bf16;
using headwise::index_t;

inline constexpr index_t query_dim = 576;
inline constexpr index_t head_dim = 512;

struct problem {
  int ranks = 2;
  index_t tokens = 4;
  index_t heads = 11;  ///< of a rank: 64 heads on 6 ranks are 66
  index_t layers = 60;

  HEADWISE_HD index_t all_heads() const { return heads * ranks; }
  /// What a kernel that works in tiles of 16 heads hands out.
  HEADWISE_HD index_t tiled() const { return (all_heads() + 15) / 16 * 16; }
};

/// Bits that look like noise.
HEADWISE_HD inline std::uint32_t noise(std::uint32_t seed, index_t a, index_t b, index_t c) {
  std::uint64_t bits = seed;
  for (const index_t next : {a, b, c}) {
    bits = (bits ^ static_cast<std::uint64_t>(next)) * 0x9e3779b97f4a7c15u;
    bits ^= bits >> 29;
  }
  return static_cast<std::uint32_t>(bits >> 16);
}
/// From -1 to 1, in 8 bits.
HEADWISE_HD inline float small_number(std::uint32_t bits) {
  return static_cast<float>(static_cast<int>(bits % 257) - 128) / 128.0f;
}

/// The query of a layer: half of what came out of the layer before, and something new. `head`
/// counts the heads of the group.
HEADWISE_HD inline bf16 query_value(std::uint32_t seed, index_t layer, index_t token, index_t head,
                                    index_t d, float before) {
  return headwise::from_float<bf16>(before * 0.5f +
                                    small_number(noise(seed, layer * 1000 + token, head, d)));
}

/// Whether a rank has keys for a token; its row is NaN where it has none.
HEADWISE_HD inline bool has_keys(int rank, index_t layer, index_t token) {
  return noise(7, layer, token, rank) % 5 != 0;
}
/// In place of attention over the keys of one rank.
HEADWISE_HD inline bf16 partial_value(int rank, float query) {
  const float weight = static_cast<float>(rank % 2 == 0 ? rank + 1 : -rank - 1) / 16.0f;
  return headwise::from_float<bf16>(query * weight);
}
HEADWISE_HD inline float partial_lse(int rank, float first_of_query) {
  return first_of_query * 4.0f + static_cast<float>(rank % 3);
}

/// The operands of a rank, in memory of one kind. A layer has its own results, and shares the rest.
template <headwise::memory_space Space>
struct operands {
  bf16* query = nullptr;
  bf16* gathered = nullptr;
  bf16* partial = nullptr;
  float* lse = nullptr;
  bf16* outputs = nullptr;
  float* merged = nullptr;
  std::uint32_t* seed = nullptr;

  auto local_query(const problem& of) const { return rows<query_dim>(query, of.tokens, of.heads); }
  auto gathered_query(const problem& of) const {
    return rows<query_dim>(gathered, of.tokens, of.tiled());
  }
  auto partial_output(const problem& of) const {
    return rows<head_dim>(partial, of.tokens, of.tiled());
  }
  auto partial_lses(const problem& of) const { return plane(lse, of.tokens, of.tiled()); }
  auto output(const problem& of, index_t layer) const {
    return rows<head_dim>(outputs + layer * of.tokens * of.heads * head_dim, of.tokens, of.heads);
  }
  auto merged_lse(const problem& of, index_t layer) const {
    return plane(merged + layer * of.tokens * of.heads, of.tokens, of.heads);
  }

  /// Calls take(pointer, elements) for each.
  template <class Take>
  void each(const problem& of, const Take& take) {
    take(query, of.tokens * of.heads * query_dim);
    take(gathered, of.tokens * of.tiled() * query_dim);
    take(partial, of.tokens * of.tiled() * head_dim);
    take(lse, of.tokens * of.tiled());
    take(outputs, of.layers * of.tokens * of.heads * head_dim);
    take(merged, of.layers * of.tokens * of.heads);
    take(seed, index_t{1});
  }

 private:
  template <index_t Width>
  static auto rows(bf16* data, index_t tokens, index_t heads) {
    return headwise::make_view<Space>(
        data, headwise::packed(headwise::extent<headwise::axis::token>(tokens),
                               headwise::extent<headwise::axis::head>(heads),
                               headwise::extent<headwise::axis::head_dim, Width>()));
  }
  static auto plane(float* data, index_t tokens, index_t heads) {
    return headwise::make_view<Space>(
        data, headwise::packed(headwise::extent<headwise::axis::token>(tokens),
                               headwise::extent<headwise::axis::head>(heads)));
  }
};

}  // namespace engine
