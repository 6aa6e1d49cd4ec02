// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: lengths and query starts are views of integers over sequence
// Counts of tokens, which go without query starts, given as lengths of sequences.

#include <headwise/plan/operands.hpp>

using namespace headwise;

template <class Axis>
using along = view<const int, packed_layout_t<extent<Axis>>>;

#ifndef PASS
using counts = along<axis::token>;
#else
using counts = along<axis::sequence>;
#endif

auto keys(const counts& lengths, const along<axis::sequence>& query_starts) {
  return keys_by_sequence{lengths, query_starts};
}
