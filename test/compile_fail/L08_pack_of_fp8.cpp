// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a partial output is fp32, fp16 or bf16; fp8 can be moved, never reduced

#include <headwise/reference/pack.hpp>

using namespace headwise;

template <class T>
using rows =
    view<T,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

#ifndef PASS
using element = fp8_e4m3;
#else
using element = bf16;
#endif

status pack(const rows<const element>& output, const lses& lse, const message_plan& plan,
            std::byte* message) {
  return reference::pack<log_base::e>(output, lse, plan, message);
}
