// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: this kernel has no global causal bounds: it takes one query token per request on more than one rank
// Two query tokens for a kernel that counts back from the local length.

#include <headwise/plan/kv_shard.hpp>

using namespace headwise;

struct kernel {
  static constexpr causal_bounds causal = causal_bounds::local_lengths;
};

int main() {
#ifndef PASS
  require_static_causal_bounds<kernel, 2>();
#else
  require_static_causal_bounds<kernel, 1>();
#endif
}
