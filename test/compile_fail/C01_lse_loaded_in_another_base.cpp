// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: load_lse: this LSE is in the other base
// Loading changes the storage type, never the base.

#include <headwise/lse/log_base.hpp>

using namespace headwise;

int main() {
  const lse<log_base::two> stored{1.0f};
#ifndef PASS
  return load_lse<log_base::e>(stored).value > 0 ? 0 : 1;
#else
  return load_lse<log_base::two>(stored).value > 0 ? 0 : 1;
#endif
}
