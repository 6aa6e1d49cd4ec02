// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: an LSE is fp32, fp16 or bf16, in the log base that the call names
// Base 2 from the kernel, base e in the call: the merged output would be a little wrong everywhere.

#include <headwise/reference/pack.hpp>

using namespace headwise;

using rows =
    view<const bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;

using lses =
    view<const lse<log_base::two>, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

status pack(const rows& output, const lses& lse, const message_plan& plan, std::byte* message) {
#ifndef PASS
  return reference::pack<log_base::e>(output, lse, plan, message);
#else
  return reference::pack<log_base::two>(output, lse, plan, message);
#endif
}
