// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: head_split: more ranks than heads, and padding is forbidden
// Ranks without a head, where dummies are not wanted.

#include <headwise/plan/head_split.hpp>

using namespace headwise;

constexpr head_split_options exact{.padding = false};
#ifndef PASS
constexpr index_t per_rank = static_head_split<4, 8, exact>.per_rank;
#else
constexpr index_t per_rank = static_head_split<8, 8, exact>.per_rank;
#endif
static_assert(per_rank >= 1);
