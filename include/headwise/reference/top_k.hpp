// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/plan/mla_call.hpp>
#include <headwise/view/slice.hpp>

namespace headwise::inline v0 {

namespace detail {

/// A candidate, in an order that depends on its score and its position only.
struct ranked_position {
  float score;
  index_t position;

  /// Higher scores first, NaN behind all of them; of equal ones the lower position.
  constexpr bool before(const ranked_position& other) const noexcept {
    if (is_nan(score) != is_nan(other.score)) return is_nan(other.score);
    if (!is_nan(score) && score != other.score) return score > other.score;
    return position < other.position;
  }
};

}  // namespace detail

namespace reference {

/// Selects the best-scored positions of each query token among the candidates of all ranks, the
/// same on every rank: equal scores, -0 and +0 among them, go to the lower position, and it does
/// not matter which rank offers a candidate, or where in its row.
///
/// `scores`: over [rank, token, key], fp32, fp16 or bf16. `positions`: the same axes and extents,
/// integers; -1 (or any negative number) where there is no candidate. What two ranks offer alike
/// counts once.
/// `selected`: over [token, key]; the positions from best to worst, then -1. Not in place.
///
/// Errors: those of validate(); shape_mismatch, overlap; then nothing is written. Takes candidates
/// times selected positions of time.
template <class Scores, class Positions, class Selected>
status top_k(const Scores& scores, const Positions& positions, const Selected& selected,
             source_line where = source_line::current()) noexcept {
  static_assert(view_over<Scores, axis::rank, axis::token, axis::key>,
                "headwise: top_k: scores are a view over rank, token and key");
  static_assert(is_reducible<typename Scores::value_type>,
                "headwise: top_k: scores are fp32, fp16 or bf16");
  static_assert(
      view_over<Positions, axis::rank, axis::token, axis::key> && detail::integer_view<Positions>,
      "headwise: top_k: positions are a view of integers over rank, token and key");
  static_assert(view_over<Selected, axis::token, axis::key> && detail::integer_view<Selected>,
                "headwise: top_k: selected positions are a view of integers over token and key");
  using selected_type = typename Selected::value_type;
  static_assert(sizeof(selected_type) >= sizeof(typename Positions::value_type) &&
                    std::is_signed_v<selected_type>,
                "headwise: top_k: a selected position must hold any position, and -1");

  const status well_formed =
      detail::first_failure({validate("scores", scores), validate("positions", positions),
                             validate_target("selected", selected)},
                            where);
  if (!well_formed.ok()) return well_formed;
  const index_t ranks = scores.template extent<axis::rank>();
  const index_t tokens = scores.template extent<axis::token>();
  const index_t keys = scores.template extent<axis::key>();
  const char* const same = "that of the scores";
  const status shapes =
      detail::check_extents({detail::extent_is<axis::rank>("positions", positions, ranks, same),
                             detail::extent_is<axis::token>("positions", positions, tokens, same),
                             detail::extent_is<axis::key>("positions", positions, keys, same),
                             detail::extent_is<axis::token>("selected", selected, tokens, same)},
                            where);
  if (!shapes.ok()) return shapes;

  const auto score = permute<axis::rank, axis::token, axis::key>(scores);
  const auto position = permute<axis::rank, axis::token, axis::key>(positions);
  const auto out = permute<axis::token, axis::key>(selected);
  const index_t wanted = out.template extent<axis::key>();
  for (index_t t = 0; t < tokens; ++t) {
    // Each pass finds the first candidate behind the last one. No candidate is marked or moved.
    detail::ranked_position last{};
    index_t found = 0;
    for (; found < wanted; ++found) {
      detail::ranked_position best{0, -1};
      for (index_t r = 0; r < ranks; ++r) {
        for (index_t i = 0; i < keys; ++i) {
          const detail::ranked_position candidate{to_float(score(r, t, i)),
                                                  static_cast<index_t>(position(r, t, i))};
          if (candidate.position < 0) continue;
          if (found > 0 && !last.before(candidate)) continue;
          if (best.position < 0 || candidate.before(best)) best = candidate;
        }
      }
      if (best.position < 0) break;
      out(t, found) = static_cast<selected_type>(best.position);
      last = best;
    }
    for (; found < wanted; ++found) out(t, found) = selected_type{-1};
  }
  return {};
}

}  // namespace reference

}  // namespace headwise::inline v0
