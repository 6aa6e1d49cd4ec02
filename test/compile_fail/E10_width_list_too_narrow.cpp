// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: width_list: the kernel has no width for so many heads
// 129 gathered heads, and no kernel wider than 128.

#include <headwise/plan/head_split.hpp>

using namespace headwise;

using widths = width_list<16, 32, 64, 128>;
#ifndef PASS
constexpr index_t width = widths::static_next<129>();
#else
constexpr index_t width = widths::static_next<128>();
#endif
static_assert(width == 128);
