// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: split does not divide the axis
// 64 heads do not divide over 6 ranks; 66 do.

#include <headwise/view/slice.hpp>

using namespace headwise;

#ifndef PASS
constexpr index_t heads = 64;
#else
constexpr index_t heads = 66;
#endif
using output = view<bf16, packed_layout_t<extent<axis::head, heads>, extent<axis::head_dim, 512>>>;

auto peers(const output& all) {
  return split<axis::head, axis::rank, axis::head>(all, constant<6>);
}
