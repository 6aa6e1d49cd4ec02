// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: all_to_all exchanges views over rank and the same other axes
// Nothing says which part goes to which rank.

#include <headwise/collective/all_to_all.hpp>
#include <headwise/executor/host_executor.hpp>

#include "../support/declared_transport.hpp"

using namespace headwise;
using support::declared_transport;

#ifndef PASS
using outer = axis::sequence;
#else
using outer = axis::rank;
#endif
template <class T>
using entries = view<T, packed_layout_t<extent<outer>, extent<axis::token>, extent<axis::head>>>;

status exchange(declared_transport& group, const entries<const bf16>& send,
                const entries<bf16>& receive, std::span<std::byte> room) {
  return all_to_all(host_executor{}, group, send, receive, room);
}
