// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/plan/mla_call.hpp>

// The operands of localize_topk(), and what must be true of their types and shapes; the same for
// host loops and for kernels.

namespace headwise::inline v0 {

/// What localize_topk() is told beside its operands.
struct localize_options {
  index_t page_size = 1;     ///< rows per page of this rank's cache
  index_t query_tokens = 1;  ///< as in mla_options
  kv_shard shard = {};       ///< as in mla_options
};

namespace detail {

/// All slots of the pages below this one can be said in a Slot.
template <class Slot>
constexpr index_t nameable_pages(index_t page_size) noexcept {
  constexpr std::uint64_t slots = std::uint64_t{1} << (8 * sizeof(Slot) - 1);
  const std::uint64_t pages = slots / static_cast<std::uint64_t>(page_size);
  return pages > INT64_MAX ? INT64_MAX : static_cast<index_t>(pages);
}

/// All that can be told without a look at the values of the operands.
template <class Positions, class BlockTable, class Lengths, class Slots, class Counts>
constexpr status check_localize(const Positions& positions, const BlockTable& block_table,
                                const Lengths& lengths, const localize_options& options,
                                const Slots& slots, const Counts& counts,
                                source_line where) noexcept {
  static_assert(view_over<Positions, axis::token, axis::key> && integer_view<Positions>,
                "headwise: localize_topk: positions are a view of integers over token and key");
  static_assert(view_over<Slots, axis::token, axis::key> && integer_view<Slots>,
                "headwise: localize_topk: slots are a view of integers over token and key");
  static_assert(view_of<Counts, axis::token> && integer_view<Counts>,
                "headwise: localize_topk: counts are a view of integers over token");
  static_assert(std::is_signed_v<typename Slots::value_type>,
                "headwise: localize_topk: -1 says that there is none");

  const status well_formed =
      first_failure({validate("positions", positions), validate_target("slots", slots),
                     validate_target("counts", counts)},
                    where);
  if (!well_formed.ok()) return well_formed;
  if (options.page_size < 1) {
    return failure(errc::invalid_argument, "page_size", "a page has at least one row",
                   options.page_size, 1, "", where);
  }
  const index_t tokens = positions.template extent<axis::token>();
  const char* const tokens_of_positions = "the tokens of the positions";
  const status shapes =
      check_extents({extent_is<axis::token>("slots", slots, tokens, tokens_of_positions),
                     extent_is<axis::key>("slots", slots, positions.template extent<axis::key>(),
                                          "the keys of the positions"),
                     extent_is<axis::token>("counts", counts, tokens, tokens_of_positions)},
                    where);
  if (!shapes.ok()) return shapes;
  return check_sequences(block_table, lengths, options.query_tokens, options.shard, tokens, where);
}

}  // namespace detail

}  // namespace headwise::inline v0
