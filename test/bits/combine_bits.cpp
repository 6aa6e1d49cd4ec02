// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Prints two digests of what the combine makes of a fixed set of rows. check.py builds this program
// with many compilers and flags and compares.

#include "rows.hpp"

#include <cstdio>
#include <vector>

int main() {
  std::vector<bits::row_bits> all(bits::rows);
  for (int index = 0; index < bits::rows; ++index) {
    all[static_cast<std::size_t>(index)] = bits::row(index);
  }
  const bits::row_bits sum = bits::digest(all.data());
  std::printf("host %016llx %016llx\n", static_cast<unsigned long long>(sum.ordinary),
              static_cast<unsigned long long>(sum.subnormal));
}
