// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: head_split: there are no heads to split
// An empty head axis.

#include <headwise/plan/head_split.hpp>

using namespace headwise;

#ifndef PASS
constexpr index_t padded = static_head_split<0, 4>.padded();
#else
constexpr index_t padded = static_head_split<1, 4>.padded();
#endif
static_assert(padded != 1);
