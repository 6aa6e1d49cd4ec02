// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: query_rows
// A number of requests, or the live rows of one rank, where the rows of the padded batch are asked
// for.

#include <headwise/plan/capacity.hpp>

using namespace headwise;

#ifndef PASS
constexpr bool accepted = row_capacity{8}.accepts(4);
#else
constexpr bool accepted = row_capacity{8}.accepts(query_rows{4});
#endif
static_assert(accepted);
