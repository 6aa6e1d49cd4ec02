// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: slice leaves the axis
// 22 heads from the 11th on, of 32.

#include <headwise/view/slice.hpp>

using namespace headwise;

using buffer =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 32>, extent<axis::head_dim, 512>>>;

#ifndef PASS
constexpr index_t first = 11;
#else
constexpr index_t first = 10;
#endif

auto live(const buffer& all) { return slice<axis::head>(all, constant<first>, constant<22>); }
