// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a decode kernel states `static constexpr causal_bounds causal`
// Nothing is guessed about a kernel that does not say how it masks.

#include <headwise/plan/kv_shard.hpp>

using namespace headwise;

struct kernel {
#ifdef PASS
  static constexpr causal_bounds causal = causal_bounds::local_lengths;
#endif
};

int main() { return require_causal_bounds<kernel>(1, 2).ok() ? 0 : 1; }
