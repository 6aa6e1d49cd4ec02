// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: fix leaves the axis

#include <headwise/view/slice.hpp>

using namespace headwise;

using buffer = view<bf16, packed_layout_t<extent<axis::head, 32>, extent<axis::head_dim, 512>>>;

#ifndef PASS
auto last(const buffer& all) { return fix<axis::head>(all, constant<32>); }
#else
auto last(const buffer& all) { return fix<axis::head>(all, constant<31>); }
#endif
