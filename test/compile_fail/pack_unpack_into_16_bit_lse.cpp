// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: an unpacked LSE is fp32, in the log base that the call names
// An LSE travels as fp32 and is not rounded on arrival.

#include <headwise/reference/pack.hpp>

using namespace headwise;

using rows = view<bf16, packed_layout_t<extent<axis::rank>, extent<axis::token>,
                                        extent<axis::head, 16>, extent<axis::head_dim, 512>>>;
template <class T>
using lses =
    view<T, packed_layout_t<extent<axis::rank>, extent<axis::token>, extent<axis::head, 16>>>;

#ifndef PASS
using target = lses<bf16>;
#else
using target = lses<lse<log_base::e>>;
#endif

status unpack(const std::byte* message, const message_plan& plan, const rows& output,
              const target& lse) {
  return reference::unpack<log_base::e>(message, plan, output, lse);
}
