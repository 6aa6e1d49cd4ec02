// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Headwise found by find_package.

#include <headwise/headwise.hpp>

#include <cstdio>

static_assert(HEADWISE_VERSION == EXPECTED_VERSION);

namespace hw = headwise;

int main() {
  using layout = hw::layout<hw::dim<hw::axis::head, 11, 512>, hw::dim<hw::axis::head_dim, 512, 1>>;
  static hw::bf16 memory[11 * 512] = {};
  memory[10 * 512 + 511] = hw::from_float<hw::bf16>(1.5f);
  const hw::view<hw::bf16, layout> heads(memory);
  if (hw::to_float(heads(10, 511)) != 1.5f || !heads.is_contiguous()) return 1;
  std::printf("%d.%d.%d %zu\n", hw::version_major, hw::version_minor, hw::version_patch,
              sizeof(heads));
  return 0;
}
