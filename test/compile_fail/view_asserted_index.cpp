// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: index_out_of_bounds
// With HEADWISE_ASSERT defined an index outside is found, in a constant expression by the compiler.

#define HEADWISE_ASSERT(condition) ((condition) ? static_cast<void>(0) : index_out_of_bounds())
void index_out_of_bounds();

#include <headwise/view/view.hpp>

using namespace headwise;

constexpr auto lse = packed(extent<axis::token, 4>(), extent<axis::head, 22>());

#ifndef PASS
constexpr index_t head = 22;
#else
constexpr index_t head = 21;
#endif

static_assert(lse.offset(3, head) == 3 * 22 + head);
