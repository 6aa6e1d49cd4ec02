// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: combine_weights: lses[r] must be an lse of this base
// Bare floats: nobody has said which base they are in.

#include <headwise/lse/partial.hpp>

using namespace headwise;

#ifndef PASS
using element = float;
#else
using element = lse<log_base::e>;
#endif

int main() {
  const element lses[2] = {};
  float weights[2];
  return combine_weights<log_base::e>(2, lses, weights).value > 0 ? 0 : 1;
}
