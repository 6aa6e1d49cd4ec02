// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a static stride is not negative

#include <headwise/view/view.hpp>

using namespace headwise;

#ifndef PASS
using reversed = dim<axis::head, 22, -2>;
#else
using reversed = dim<axis::head, 22, 2>;
#endif

static_assert(reversed().stride() == reversed::static_stride);
