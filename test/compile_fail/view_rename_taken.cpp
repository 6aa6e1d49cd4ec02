// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a layout names each axis once
// The new name is one that the view has already.

#include <headwise/view/slice.hpp>

using namespace headwise;

using lse_view = view<float, packed_layout_t<extent<axis::slot, 4>, extent<axis::head, 22>>>;

#ifndef PASS
auto named(const lse_view& lse) { return rename<axis::slot, axis::head>(lse).size(); }
#else
auto named(const lse_view& lse) { return rename<axis::slot, axis::token>(lse).size(); }
#endif
