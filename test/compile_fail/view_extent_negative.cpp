// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a static extent is not negative

#include <headwise/view/view.hpp>

using namespace headwise;

#ifndef PASS
using heads = dim<axis::head, -22, 1>;
#else
using heads = dim<axis::head, 22, 1>;
#endif

static_assert(heads().extent() == heads::static_extent);
