// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a partial output is fp32, fp16 or bf16; fp8 can be moved, never reduced
// A sum of fp8 would be a sum of bytes, or of what the bytes cannot hold.

#include <headwise/reference/lse_combine.hpp>

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

status merge(const rows<const element>& a, const lses& a_lse, const rows<bf16>& output) {
  return reference::lse_combine<log_base::e>(shard{a, a_lse}, output);
}
