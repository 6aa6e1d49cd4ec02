// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: two operands of one call differ in a static extent
// Queries of 576 gathered into rows of 512.

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/executor/host_executor.hpp>

#include "../support/declared_transport.hpp"

using namespace headwise;
using support::declared_transport;

using query =
    view<const bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 11>, extent<axis::head_dim, 576>>>;

#ifndef PASS
constexpr index_t width = 512;
#else
constexpr index_t width = 576;
#endif
using gathered =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head>, extent<axis::head_dim, width>>>;

status gather(declared_transport& group, const query& local, const gathered& all,
              std::span<std::byte> room) {
  return all_gather_heads(host_executor{}, group, local, all, room);
}
