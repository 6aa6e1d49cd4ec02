// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Headwise by -I alone.

#include <headwise/headwise.hpp>

#include <cstdio>

static_assert(HEADWISE_VERSION == EXPECTED_VERSION);

namespace hw = headwise;

int main() {
  using layout = hw::layout<hw::dim<hw::axis::rank, 3, 4>, hw::dim<hw::axis::head, 4, 1>>;
  int owner[3 * 4] = {};
  const hw::view<int, layout> view(owner);
  view(2, 3) = 7;
  if (owner[11] != 7 || view.size() != 12) return 1;
  std::printf("%d.%d.%d %zu\n", hw::version_major, hw::version_minor, hw::version_patch,
              sizeof(view));
  return 0;
}
