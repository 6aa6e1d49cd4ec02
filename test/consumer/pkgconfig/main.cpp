// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Headwise found by pkg-config.

#include <headwise/headwise.hpp>

#include <cstdio>

static_assert(HEADWISE_VERSION == EXPECTED_VERSION);

namespace hw = headwise;

int main() {
  using layout = hw::layout<hw::dim<hw::axis::token, 4, 8>, hw::dim<hw::axis::head, 6, 1>>;
  float lse[4 * 8] = {};
  lse[3 * 8 + 5] = 2.5f;
  const hw::view<const float, layout> view(lse);
  if (view(3, 5) != 2.5f || view.is_contiguous()) return 1;
  std::printf("%d.%d.%d %zu\n", hw::version_major, hw::version_minor, hw::version_patch,
              sizeof(view));
  return 0;
}
