// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: lengths and query starts are views of integers over sequence
// The LSE given where the lengths belong, of each sequence.

#include <headwise/plan/operands.hpp>

using namespace headwise;

template <class T>
using per_sequence = view<const T, packed_layout_t<extent<axis::sequence>>>;

#ifndef PASS
using length = float;
#else
using length = int;
#endif

auto keys(const per_sequence<length>& lengths, const per_sequence<int>& query_starts) {
  return keys_by_sequence{lengths, query_starts};
}
