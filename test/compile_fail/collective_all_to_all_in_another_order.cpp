// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: all_to_all exchanges views over rank and the same other axes
// The axes of the two operands stand in different orders; permute() one of them.

#include <headwise/collective/all_to_all.hpp>
#include <headwise/executor/host_executor.hpp>

#include "../support/declared_transport.hpp"

using namespace headwise;
using support::declared_transport;

using send_entries =
    view<const bf16, packed_layout_t<extent<axis::rank>, extent<axis::token>, extent<axis::head>>>;
using receive_entries =
    view<bf16, packed_layout_t<extent<axis::rank>, extent<axis::head>, extent<axis::token>>>;

status exchange(declared_transport& group, const send_entries& send, const receive_entries& receive,
                std::span<std::byte> room) {
#ifndef PASS
  return all_to_all(host_executor{}, group, send, receive, room);
#else
  return all_to_all(host_executor{}, group, send,
                    permute<axis::rank, axis::token, axis::head>(receive), room);
#endif
}
