// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a layout names each axis once
// Two dims count the same axis.

#include <headwise/view/view.hpp>

using namespace headwise;

#ifndef PASS
using square = layout<dim<axis::head, 4, 4>, dim<axis::head, 4, 1>>;
#else
using square = layout<dim<axis::token, 4, 4>, dim<axis::head, 4, 1>>;
#endif

index_t size(const view<float, square>& what) { return what.size(); }
