// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a copy needs the same axes on both sides
// An LSE of [token, head] into one of [token, rank], though the sizes agree.

#include <headwise/reference/materialize.hpp>

using namespace headwise;

using source = view<const float, packed_layout_t<extent<axis::token, 4>, extent<axis::head, 2>>>;
#ifndef PASS
using target = view<float, packed_layout_t<extent<axis::token, 4>, extent<axis::rank, 2>>>;
#else
using target = view<float, packed_layout_t<extent<axis::head, 2>, extent<axis::token, 4>>>;
#endif

status copy(const source& from, const target& to) { return reference::materialize(from, to); }
