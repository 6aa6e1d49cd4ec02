// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: head_split: the heads do not divide over the ranks as asked, and padding is forbidden
// 52 heads over 3 ranks, where dummies are not wanted.

#include <headwise/plan/head_split.hpp>

using namespace headwise;

constexpr head_split_options exact{.padding = false};
#ifndef PASS
constexpr index_t per_rank = static_head_split<52, 3, exact>.per_rank;
#else
constexpr index_t per_rank = static_head_split<51, 3, exact>.per_rank;
#endif
static_assert(per_rank >= 1);
