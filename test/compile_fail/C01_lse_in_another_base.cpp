// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: combine_weights: lses[r] must be an lse of this base
// A base-2 LSE merged as if it were natural (vllm#47079, vllm#43919, flashinfer#2113).

#include <headwise/lse/partial.hpp>

using namespace headwise;

#ifndef PASS
constexpr log_base theirs = log_base::two;
#else
constexpr log_base theirs = log_base::e;
#endif

int main() {
  const lse<theirs> lses[2] = {{0.0f}, {1.0f}};
  float weights[2];
  return combine_weights<log_base::e>(2, lses, weights).value > 0 ? 0 : 1;
}
