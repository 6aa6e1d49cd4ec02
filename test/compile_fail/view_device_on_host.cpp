// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: host code reads an element of a view of device memory

#include <headwise/view/view.hpp>

using namespace headwise;

#ifndef PASS
constexpr memory_space space = memory_space::device;
#else
constexpr memory_space space = memory_space::pinned;
#endif
using lse_view = view<float, layout<dim<axis::token>, dim<axis::head>>, space>;

float first(const lse_view& lse) { return lse(0, 0); }
