// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: the host reference reads and writes views of host memory
// The executor of the host, called with the tensors of the GPU.

#include <headwise/reference/pack.hpp>

using namespace headwise;

template <memory_space Space>
using rows =
    view<const bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>,
         Space>;
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

#ifndef PASS
using source = rows<memory_space::device>;
#else
using source = rows<memory_space::host>;
#endif

status pack(const source& output, const lses& lse, const message_plan& plan, std::byte* message) {
  return reference::pack<log_base::e>(output, lse, plan, message);
}
