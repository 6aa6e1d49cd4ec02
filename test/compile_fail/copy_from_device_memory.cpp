// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: the host reference copies between views of host memory
// Host code would dereference a pointer of the GPU.

#include <headwise/reference/materialize.hpp>

using namespace headwise;

template <memory_space Space>
using row = view<float, packed_layout_t<extent<axis::head_dim, 64>>, Space>;

#ifndef PASS
using source = row<memory_space::device>;
#else
using source = row<memory_space::pinned>;
#endif

status copy(const source& from, const row<memory_space::host>& to) {
  return reference::materialize(from, to);
}
