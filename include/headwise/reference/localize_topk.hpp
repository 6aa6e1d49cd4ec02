// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/plan/localize_topk.hpp>
#include <headwise/reference/mla_decode.hpp>
#include <headwise/view/slice.hpp>

namespace headwise::inline v0 {

namespace reference {

/// Turns the top-k positions of each query token into slots of this rank's cache, for
/// mla_decode_sparse().
///
/// `positions`: over [token, key], integers; places in the whole sequence, the same on all ranks,
/// in any order. Dropped are holes (-1 or any negative number), positions that another rank holds,
/// and those that the query token may not see yet. `block_table`, `lengths`: as in mla_decode().
/// `slots`: over [token, key]; the slots that are left, in the order of their positions and without
/// holes, then -1. May be the view of the positions itself. `counts`: [token], how many are left.
///
/// Errors: those of validate(); shape_mismatch, invalid_argument, out_of_range (a page, or a slot
/// that the element of `slots` cannot hold), overlap; then nothing is written.
template <class Positions, class BlockTable, class Lengths, class Slots, class Counts>
status localize_topk(const Positions& positions, const BlockTable& block_table,
                     const Lengths& lengths, const localize_options& options, const Slots& slots,
                     const Counts& counts, source_line where = source_line::current()) noexcept {
  const status fits =
      detail::check_localize(positions, block_table, lengths, options, slots, counts, where);
  if (!fits.ok()) return fits;
  using slot_type = typename Slots::value_type;
  using count_type = typename Counts::value_type;
  // A page that is in use must have slots that can be named, whether a position asks for it or not.
  const index_t nameable = detail::nameable_pages<slot_type>(options.page_size);
  const status used = detail::check_block_table(block_table, lengths, options.shard,
                                                options.page_size, nameable, where);
  if (!used.ok()) return used;

  const index_t tokens = positions.template extent<axis::token>();
  const index_t keys = positions.template extent<axis::key>();
  const index_t query_tokens = options.query_tokens;
  const auto wanted = permute<axis::token, axis::key>(positions);
  const auto table = permute<axis::sequence, axis::page>(block_table);
  const auto out = permute<axis::token, axis::key>(slots);
  for (index_t t = 0; t < tokens; ++t) {
    const index_t s = t / query_tokens;
    const index_t bound =
        global_causal_bound(static_cast<index_t>(lengths(s)), query_tokens, t % query_tokens);
    index_t count = 0;
    for (index_t i = 0; i < keys; ++i) {
      const auto position = static_cast<index_t>(wanted(t, i));
      if (position < 0 || position >= bound || !options.shard.owns(position)) continue;
      const page_position at = locate(options.shard.local(position), options.page_size);
      const auto page = static_cast<index_t>(table(s, at.page));
      out(t, count++) = static_cast<slot_type>(page * options.page_size + at.slot);
    }
    for (index_t i = count; i < keys; ++i) out(t, i) = slot_type{-1};
    counts(t) = static_cast<count_type>(count);
  }
  return {};
}

}  // namespace reference

}  // namespace headwise::inline v0
