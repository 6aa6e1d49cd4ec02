// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: refine keeps the axes and their order
// Refinement finds out numbers; it does not turn a view around.

#include <headwise/view/refine.hpp>

using namespace headwise;

using engine_view = view<float, layout<dim<axis::token>, dim<axis::head>>>;

#ifndef PASS
using wanted = layout<dim<axis::head, 22, 1>, dim<axis::token>>;
#else
using wanted = layout<dim<axis::token>, dim<axis::head, 22, 1>>;
#endif

auto refined(const engine_view& lse) { return refine<wanted>(lse, "lse"); }
