// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a copy needs the same extents on both sides
// Keys are 576 wide, values 512.

#include <headwise/plan/copy_plan.hpp>

using namespace headwise;

template <class T, index_t Width>
using rows = view<
    T, packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, Width>>>;

#ifndef PASS
using target = rows<bf16, 512>;
#else
using target = rows<bf16, 576>;
#endif

static_assert(copy_plan<rows<const bf16, 576>, target>::kind == copy_kind::contiguous);
