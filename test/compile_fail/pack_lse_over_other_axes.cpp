// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a partial LSE is a view over token and head
// An LSE per key/value page is none per query head.

#include <headwise/reference/pack.hpp>

using namespace headwise;

using rows =
    view<const bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;

#ifndef PASS
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::page, 16>>>;
#else
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;
#endif

status pack(const rows& output, const lses& lse, const message_plan& plan, std::byte* message) {
  return reference::pack<log_base::e>(output, lse, plan, message);
}
