// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: valid counts are a view of integers over token
// The LSE given once more where the counts belong.

#include <headwise/reference/pack.hpp>

using namespace headwise;

using rows =
    view<const bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;

using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;
using counts = view<const int, packed_layout_t<extent<axis::token>>>;

status pack(const rows& output, const lses& lse, [[maybe_unused]] const counts& valid,
            const message_plan& plan, std::byte* message) {
#ifndef PASS
  return reference::pack<log_base::e>(output, lse, plan, message, lse);
#else
  return reference::pack<log_base::e>(output, lse, plan, message, valid);
#endif
}
