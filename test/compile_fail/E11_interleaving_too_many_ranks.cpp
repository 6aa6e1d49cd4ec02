// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: interleaving: a group has from 1 to 16 ranks
// A group size that nothing supports.

#include <headwise/plan/kv_shard.hpp>

using namespace headwise;

#ifndef PASS
constexpr index_t round = static_interleaving<17, 64>.round();
#else
constexpr index_t round = static_interleaving<16, 64>.round();
#endif
static_assert(round > 0);
