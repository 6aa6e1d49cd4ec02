// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a copy moves bits and does not convert between element types
// fp16 into bf16: the same size, another meaning.

#include <headwise/reference/materialize.hpp>

using namespace headwise;

template <class T>
using row = view<T, packed_layout_t<extent<axis::head_dim, 64>>>;

#ifndef PASS
using target = row<bf16>;
#else
using target = row<fp16>;
#endif

status copy(const row<const fp16>& from, const target& to) {
  return reference::materialize(from, to);
}
