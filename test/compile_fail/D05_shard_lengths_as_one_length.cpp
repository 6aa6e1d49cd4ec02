// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: shard_lengths
// The rank was left out, so there is a length for each rank and not one.

#include <headwise/plan/kv_shard.hpp>

using namespace headwise;

#ifndef PASS
constexpr index_t length = interleaving{4, 1}.local_length(10);
#else
constexpr index_t length = interleaving{4, 1}.local_length(10, 2);
#endif
static_assert(length == 2);
