// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: more dims than a copy can have

#include <headwise/plan/copy_plan.hpp>

using namespace headwise;

template <int I>
struct other {
  static constexpr const char* name = "other";
};
#ifndef PASS
using nine = extent<other<8>, 2>;
#else
using nine = extent<other<7>, 4>;
#endif
template <class... Axes>
using packed_view = view<float, packed_layout_t<Axes...>>;
#ifndef PASS
using many = packed_view<extent<other<0>, 2>, extent<other<1>, 2>, extent<other<2>, 2>,
                         extent<other<3>, 2>, extent<other<4>, 2>, extent<other<5>, 2>,
                         extent<other<6>, 2>, extent<other<7>, 2>, nine>;
#else
using many =
    packed_view<extent<other<0>, 2>, extent<other<1>, 2>, extent<other<2>, 2>, extent<other<3>, 2>,
                extent<other<4>, 2>, extent<other<5>, 2>, extent<other<6>, 2>, nine>;
#endif

static_assert(copy_plan<many, many>::kind == copy_kind::contiguous);
