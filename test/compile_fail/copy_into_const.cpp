// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a target is written to, its elements are not const
// Source and target exchanged.

#include <headwise/reference/materialize.hpp>

using namespace headwise;

template <class T>
using row = view<T, packed_layout_t<extent<axis::head_dim, 64>>>;

status copy(const row<const float>& from, const row<float>& to) {
#ifndef PASS
  return reference::materialize(to, from);
#else
  return reference::materialize(from, to);
#endif
}
