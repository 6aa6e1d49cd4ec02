// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Headwise as a Meson subproject.

#include <headwise/headwise.hpp>

#include <cstdio>

static_assert(HEADWISE_VERSION == EXPECTED_VERSION);

namespace hw = headwise;
using hw::axis::head_dim;
using hw::axis::token;

int main() {
  // A static layout costs nothing: the view is its pointer.
  using layout = hw::layout<hw::dim<token, 2, 4>, hw::dim<head_dim, 3, 1>>;
  float memory[2 * 4] = {0, 1, 2, -1, 10, 11, 12, -1};
  const hw::view<float, layout> rows(memory);
  static_assert(sizeof(rows) == sizeof(float*));
  if (rows(1, 2) != 12.0f) return 1;
  std::printf("%d.%d.%d %zu\n", hw::version_major, hw::version_minor, hw::version_patch,
              sizeof(rows));
  return 0;
}
