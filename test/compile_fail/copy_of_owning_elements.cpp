// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a copy moves bits, so its elements are trivially copyable

#include <headwise/reference/materialize.hpp>

using namespace headwise;

struct owner {
  owner() = default;
#ifndef PASS
  owner(const owner& other);
#endif
  int* held = nullptr;
};
using row = view<owner, packed_layout_t<extent<axis::slot, 4>>>;

status copy(const row& from, const row& to) { return reference::materialize(from, to); }
