// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: two operands of one call differ in a static extent
// The output of attention has the width of the values, 512, not of the keys, 576.

#include <headwise/reference/lse_combine.hpp>

using namespace headwise;

template <index_t Width>
using rows = view<bf16, packed_layout_t<extent<axis::token>, extent<axis::head, 16>,
                                        extent<axis::head_dim, Width>>>;
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

#ifndef PASS
using output = rows<576>;
#else
using output = rows<512>;
#endif

status merge(const rows<512>& a, const lses& a_lse, const rows<512>& b, const lses& b_lse,
             const output& into) {
  return reference::lse_combine<log_base::e>(separate_shards(shard{a, a_lse}, shard{b, b_lse}),
                                             into);
}
