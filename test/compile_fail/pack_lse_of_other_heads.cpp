// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: two operands of one call differ in a static extent
// The LSE still has the heads of the padded tile, the output has been sliced.

#include <headwise/reference/pack.hpp>

using namespace headwise;

using rows = view<const bf16,
                  layout<dim<axis::token>, dim<axis::head, 22, 512>, dim<axis::head_dim, 512, 1>>>;
#ifndef PASS
using lses = view<const float, layout<dim<axis::token>, dim<axis::head, 32, 1>>>;
#else
using lses = view<const float, layout<dim<axis::token>, dim<axis::head, 22, 1>>>;
#endif

status pack(const rows& output, const lses& lse, const message_plan& plan, std::byte* message) {
  return reference::pack<log_base::e>(output, lse, plan, message);
}
