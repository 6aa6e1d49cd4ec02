// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: an all-to-all moves bits and does not convert between element types
// fp8 received as plain bytes of another meaning.

#include <headwise/collective/all_to_all.hpp>
#include <headwise/executor/host_executor.hpp>

#include "../support/declared_transport.hpp"

using namespace headwise;
using support::declared_transport;

#ifndef PASS
using element = std::uint8_t;
#else
using element = fp8_e4m3;
#endif
template <class T>
using entries = view<T, packed_layout_t<extent<axis::rank>, extent<axis::token>>>;

status exchange(declared_transport& group, const entries<const fp8_e4m3>& send,
                const entries<element>& receive, std::span<std::byte> room) {
  return all_to_all(host_executor{}, group, send, receive, room);
}
