// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>
#include <headwise/core/element.hpp>
#include <headwise/core/status.hpp>
#include <headwise/lse/log_base.hpp>
#include <headwise/plan/copy_plan.hpp>
#include <headwise/plan/kv_shard.hpp>
#include <headwise/plan/paged_kv.hpp>
#include <headwise/view/view.hpp>

#include <initializer_list>
#include <type_traits>

// The operands of a decode step with absorbed MLA, and what must be true of their shapes. All that
// can be told from types and extents is told here, for every implementation of mla_decode alike.

namespace headwise::inline v0 {

namespace axis {

/// The keys that one query token is given to look at: candidates, top-k positions, slots.
struct key {
  static constexpr const char* name = "key";
};

}  // namespace axis

/// What a decode step is told beside its operands.
struct mla_options {
  /// Logits are softmax_scale * query . key. Of a checkpoint's definition; 1/sqrt(head_dim) of the
  /// absorbed form it is not.
  double softmax_scale = 0;
  /// Query tokens per sequence. Token j of sequence s is row s * query_tokens + j of the query, and
  /// sees the first length - query_tokens + 1 + j tokens of its sequence.
  index_t query_tokens = 1;
  /// Which tokens the cache holds. Unsharded by default.
  kv_shard shard = {};
};

namespace detail {

template <class View, class Axis>
inline constexpr index_t static_extent_of =
    std::remove_cvref_t<decltype(typename View::layout_type{}.template get<Axis>())>::static_extent;

/// Whether the types leave it open that these two extents are equal.
constexpr bool may_be_equal(index_t a, index_t b) noexcept {
  return a == dynamic_extent || b == dynamic_extent || a == b;
}

/// One extent that must be another.
struct extent_check {
  const char* operand;
  const char* axis;
  index_t got;
  index_t expected;
  const char* message;
};

template <class Axis, class View>
constexpr extent_check extent_is(const char* operand, const View& what, index_t expected,
                                 const char* message) noexcept {
  return {operand, Axis::name, what.template extent<Axis>(), expected, message};
}

/// Errors: shape_mismatch, for the first that fails.
constexpr status check_extents(std::initializer_list<extent_check> checks,
                               source_line where) noexcept {
  for (const extent_check& check : checks) {
    if (check.got != check.expected) {
      return failure(errc::shape_mismatch, check.operand, check.message, check.got, check.expected,
                     check.axis, where);
    }
  }
  return {};
}

/// The first failure, as one of the caller's line, or ok.
constexpr status first_failure(std::initializer_list<status> statuses, source_line where) noexcept {
  for (status one : statuses) {
    one.where = where;
    if (!one.ok()) return one;
  }
  return {};
}

template <class View>
concept integer_view = view_type<View> && std::is_integral_v<typename View::value_type>;

/// What dense and sparse calls have in common.
template <kv_record Record, memory_space Space, class Query, class Output, class Lse>
constexpr status check_mla_operands(const Query& query, const paged_kv<Record, Space>& kv,
                                    double softmax_scale, const Output& output, const Lse& lse,
                                    source_line where) noexcept {
  static_assert(view_over<Query, axis::token, axis::head, axis::head_dim>,
                "headwise: mla_decode: the query is a view over token, head and head_dim");
  static_assert(view_over<Output, axis::token, axis::head, axis::head_dim>,
                "headwise: mla_decode: the output is a view over token, head and head_dim");
  static_assert(view_over<Lse, axis::token, axis::head>,
                "headwise: mla_decode: the LSE is a view over token and head");
  static_assert(is_reducible<typename Query::value_type>,
                "headwise: mla_decode: the query is fp32, fp16 or bf16");
  static_assert(is_reducible<typename Output::value_type> ||
                    element_kind_of<typename Output::value_type> == element_kind::f64,
                "headwise: mla_decode: the output is fp64, fp32, fp16 or bf16");
  static_assert(is_lse<typename Lse::value_type>,
                "headwise: mla_decode: the element of the LSE view is lse<log_base::e> or "
                "lse<log_base::two>, so that its base is known");
  static_assert(may_be_equal(static_extent_of<Query, axis::head_dim>, Record::head_dim),
                "headwise: mla_decode: the query is as wide as a key, latent and rope");
  static_assert(may_be_equal(static_extent_of<Output, axis::head_dim>, Record::latent),
                "headwise: mla_decode: the output is as wide as the latent part, without rope");
  static_assert(
      may_be_equal(static_extent_of<Output, axis::head>, static_extent_of<Query, axis::head>) &&
          may_be_equal(static_extent_of<Lse, axis::head>, static_extent_of<Query, axis::head>),
      "headwise: mla_decode: query, output and LSE have the same heads");
  static_assert(
      may_be_equal(static_extent_of<Output, axis::token>, static_extent_of<Query, axis::token>) &&
          may_be_equal(static_extent_of<Lse, axis::token>, static_extent_of<Query, axis::token>),
      "headwise: mla_decode: query, output and LSE have the same tokens");

  const status well_formed =
      first_failure({validate("query", query), validate("kv", kv),
                     validate_target("output", output), validate_target("lse", lse)},
                    where);
  if (!well_formed.ok()) return well_formed;
  // By bits and not by isfinite: also false for NaN, and -ffast-math cannot fold it.
  const auto scale_bits = bit_cast<std::uint64_t>(softmax_scale);
  if (scale_bits == 0 || scale_bits >= 0x7ff0000000000000u) {
    return failure(errc::invalid_argument, "softmax_scale", "must be positive and finite", 0, 0, "",
                   where);
  }
  const index_t tokens = query.template extent<axis::token>();
  const index_t heads = query.template extent<axis::head>();
  const char* const heads_of_query = "the heads of the query";
  const char* const tokens_of_query = "the tokens of the query";
  return check_extents({extent_is<axis::head_dim>("query", query, Record::head_dim,
                                                  "the width of a key, latent and rope"),
                        extent_is<axis::head_dim>("output", output, Record::latent,
                                                  "the width of the latent part, without rope"),
                        extent_is<axis::head>("output", output, heads, heads_of_query),
                        extent_is<axis::head>("lse", lse, heads, heads_of_query),
                        extent_is<axis::token>("output", output, tokens, tokens_of_query),
                        extent_is<axis::token>("lse", lse, tokens, tokens_of_query)},
                       where);
}

/// A block table and lengths for `tokens` query rows.
template <class BlockTable, class Lengths>
constexpr status check_sequences(const BlockTable& block_table, const Lengths& lengths,
                                 index_t query_tokens, const kv_shard& shard, index_t tokens,
                                 source_line where) noexcept {
  static_assert(view_over<BlockTable, axis::sequence, axis::page> && integer_view<BlockTable>,
                "headwise: a block table is a view of integers over sequence and page");
  static_assert(view_of<Lengths, axis::sequence> && integer_view<Lengths>,
                "headwise: sequence lengths are a view of integers over sequence");
  const status well_formed =
      first_failure({validate("block_table", block_table), validate("lengths", lengths),
                     kv_shard::make(shard.split, shard.rank).why()},
                    where);
  if (!well_formed.ok()) return well_formed;
  if (query_tokens < 1) {
    return failure(errc::invalid_argument, "query_tokens", "a sequence has at least one",
                   query_tokens, 1, "", where);
  }
  const index_t sequences = lengths.template extent<axis::sequence>();
  const checked_size rows = checked_size(sequences) * checked_size(query_tokens);
  if (!rows.valid() || rows.value() != tokens) {
    return failure(errc::shape_mismatch, "query", "one row per sequence and query token", tokens,
                   rows.value(), axis::token::name, where);
  }
  return check_extents({extent_is<axis::sequence>("block_table", block_table, sequences,
                                                  "one row per sequence length")},
                       where);
}

}  // namespace detail

}  // namespace headwise::inline v0
