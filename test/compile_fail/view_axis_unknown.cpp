// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: this layout has no such axis
// An axis that the view does not have is asked for.

#include <headwise/view/view.hpp>

using namespace headwise;

using lse_view = view<float, layout<dim<axis::token>, dim<axis::head>>>;

#ifndef PASS
index_t wanted(const lse_view& lse) { return lse.extent<axis::head_dim>(); }
#else
index_t wanted(const lse_view& lse) { return lse.extent<axis::head>(); }
#endif
