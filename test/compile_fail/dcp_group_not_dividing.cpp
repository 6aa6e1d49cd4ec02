// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: dcp_group: tp_ranks must be a multiple of dcp_ranks
// 6 tensor-parallel ranks have no groups of 4.

#include <headwise/plan/head_split.hpp>

using namespace headwise;

#ifndef PASS
constexpr index_t groups = static_dcp_group<6, 4>(0).groups();
#else
constexpr index_t groups = static_dcp_group<6, 3>(0).groups();
#endif
static_assert(groups >= 1);
