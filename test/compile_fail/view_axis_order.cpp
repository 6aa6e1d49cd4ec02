// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: view_of
// A [token, head] LSE is wanted, a [head, token] one is handed over; their sizes may well agree.

#include <headwise/view/view.hpp>

using namespace headwise;

template <view_of<axis::token, axis::head> Lse>
index_t rows(const Lse& lse) {
  return lse.template extent<axis::token>();
}

#ifndef PASS
using given = view<float, layout<dim<axis::head, 32, 32>, dim<axis::token, 32, 1>>>;
#else
using given = view<float, layout<dim<axis::token, 32, 32>, dim<axis::head, 32, 1>>>;
#endif

index_t count(const given& lse) { return rows(lse); }
