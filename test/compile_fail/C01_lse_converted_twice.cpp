// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: to_base: this LSE is in that base already
// A second conversion would scale the LSE twice.

#include <headwise/lse/log_base.hpp>

using namespace headwise;

int main() {
  const lse<log_base::two> once = to_base<log_base::two>(lse<log_base::e>{1.0f});
#ifndef PASS
  return to_base<log_base::two>(once).value > 0 ? 0 : 1;
#else
  return to_base<log_base::e>(once).value > 0 ? 0 : 1;
#endif
}
