// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: an element has one index per axis

#include <headwise/view/view.hpp>

using namespace headwise;

using lse_view = view<float, layout<dim<axis::token>, dim<axis::head>>>;

#ifndef PASS
float first(const lse_view& lse) { return lse(0); }
#else
float first(const lse_view& lse) { return lse(0, 0); }
#endif
