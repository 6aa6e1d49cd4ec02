// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// What a run of the demo can vary: the shapes of real models, and factors with a few levels each.

#include <headwise/lse/log_base.hpp>
#include <headwise/plan/head_split.hpp>
#include <headwise/plan/kv_shard.hpp>
#include <headwise/plan/message.hpp>

#include <array>
#include <string>
#include <vector>

namespace demo {

using headwise::index_t;

inline constexpr index_t latent = 512;
inline constexpr index_t rope = 64;
inline constexpr index_t head_dim = latent + rope;
/// 1 / sqrt(128 + 64), the width of a head before absorption.
inline constexpr double softmax_scale = 0.0721687836487032;
/// Candidates per query row when attention is sparse.
inline constexpr index_t top_k = 256;

struct model {
  const char* name;
  index_t heads;
};
inline constexpr model models[] = {{"glm-5", 64}, {"kimi-k3", 96}, {"deepseek-v3", 128}};

/// A model's heads over `tp` ranks, in groups of `dcp` that share a KV cache.
struct geometry {
  std::string model;
  index_t heads = 0;
  index_t tp = 0;
  index_t dcp = 0;

  std::string name() const {
    return model + " TP" + std::to_string(tp) + "/DCP" + std::to_string(dcp);
  }
};
inline const geometry geometries[] = {
    {"glm-5", 64, 6, 2}, {"glm-5", 64, 6, 3},   {"glm-5", 64, 6, 6},        {"glm-5", 64, 8, 2},
    {"glm-5", 64, 8, 8}, {"kimi-k3", 96, 9, 9}, {"deepseek-v3", 128, 8, 8},
};

/// One value that a factor takes, and its name on the command line and in the table.
struct level {
  std::string name;
  index_t value;
};

/// `least` to `most` are the numbers that a user may ask for; none where only names are accepted.
struct factor {
  const char* name;
  std::vector<level> levels;
  index_t least = 1;
  index_t most = 0;
};

enum factor_id {
  by_geometry,
  by_query_tokens,
  by_interleave,
  by_attention,
  by_cache,
  by_tile,
  by_payload,
  by_lse,
  by_peers,
  by_base,
  by_page,
  factor_count,
};

enum class attention_kind { dense, sparse };
enum class cache_kind { bf16, fp8_ds_mla };
enum class payload_kind { bf16, fp16, fp32 };
enum class device_kind { host, cuda };
/// A page size that is no power of two: 37, or three blocks where a block is larger than a token.
inline constexpr index_t odd_page = 0;

using factors = std::array<factor, factor_count>;

inline factors default_factors() {
  return {{{"geometry", {}},
           {"q", {{"1", 1}, {"3", 3}}, 1, 4},
           {"interleave", {{"1", 1}, {"64", 64}}, 1, 4096},
           {"attention", {{"dense", 0}, {"sparse", 1}}},
           {"cache", {{"bf16", 0}, {"fp8_ds_mla", 1}}},
           {"tile", {{"16", 16}, {"8", 8}}, 1, 128},
           {"payload", {{"bf16", 0}, {"fp16", 1}, {"fp32", 2}}},
           {"lse", {{"plane", 0}, {"inline", 1}}},
           {"peers", {{"outermost", 0}, {"inside-heads", 1}}},
           {"base", {{"e", 0}, {"two", 1}}},
           {"page", {{"64", 64}, {"odd", odd_page}}, 1, 65536}}};
}

/// A level of each factor.
using choice = std::array<int, factor_count>;

/// One run.
struct setting {
  geometry shape;
  index_t query_tokens = 1;
  index_t interleave = 1;
  attention_kind attention = attention_kind::dense;
  cache_kind cache = cache_kind::bf16;
  index_t tile = 16;
  payload_kind payload = payload_kind::bf16;
  headwise::message_format format{};
  headwise::log_base base = headwise::log_base::e;
  index_t page = 64;
  std::vector<index_t> lengths;
  std::uint64_t seed = 1;

  headwise::head_split heads() const {
    return headwise::head_split::make(shape.heads, shape.tp).value();
  }
  /// The heads that group `group` gathers.
  headwise::gathered_heads gathered(index_t group) const {
    const auto of_group = headwise::dcp_group::make(shape.tp, shape.dcp, group * shape.dcp);
    return headwise::gathered_heads::make(heads(), of_group.value()).value();
  }
  headwise::interleaving split() const { return {shape.dcp, interleave}; }
  index_t rows() const { return static_cast<index_t>(lengths.size()) * query_tokens; }
};

/// Empty, one token, fewer tokens than ranks, both sides of a page's end (in the cache, and on each
/// rank), and longer ones.
inline std::vector<index_t> mixed_lengths(index_t ranks, index_t page) {
  return {0,
          1,
          ranks - 1,
          page - 1,
          page,
          page + 1,
          700,
          ranks * page - 1,
          ranks * page,
          ranks * page + 1,
          index_t{4096}};
}

inline setting make_setting(const factors& all, const choice& levels,
                            const std::vector<geometry>& shapes) {
  const auto value = [&](factor_id which) {
    return all[which].levels[static_cast<std::size_t>(levels[which])].value;
  };
  setting made;
  made.shape = shapes[static_cast<std::size_t>(value(by_geometry))];
  made.query_tokens = value(by_query_tokens);
  made.interleave = value(by_interleave);
  made.attention = static_cast<attention_kind>(value(by_attention));
  made.cache = static_cast<cache_kind>(value(by_cache));
  made.tile = value(by_tile);
  made.payload = static_cast<payload_kind>(value(by_payload));
  made.format.lse = static_cast<headwise::lse_placement>(value(by_lse));
  made.format.peer = static_cast<headwise::peer_placement>(value(by_peers));
  made.base = static_cast<headwise::log_base>(value(by_base));
  made.page = value(by_page);
  if (made.page == odd_page) made.page = made.interleave == 1 ? 37 : 3 * made.interleave;
  made.lengths = mixed_lengths(made.shape.dcp, made.page);
  return made;
}

}  // namespace demo
