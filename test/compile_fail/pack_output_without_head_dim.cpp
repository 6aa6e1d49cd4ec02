// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a partial output is a view over token, head and head_dim
// Output and LSE exchanged.

#include <headwise/reference/pack.hpp>

using namespace headwise;

using rows =
    view<const bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;

using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

status pack(const rows& output, const lses& lse, const message_plan& plan, std::byte* message) {
#ifndef PASS
  return reference::pack<log_base::e>(lse, output, plan, message);
#else
  return reference::pack<log_base::e>(output, lse, plan, message);
#endif
}
