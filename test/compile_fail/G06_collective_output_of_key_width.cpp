// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: two operands of one call differ in a static extent
// An output as wide as a key (576) for values of 512.

#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/host_executor.hpp>

#include "../support/declared_transport.hpp"

using namespace headwise;
using support::declared_transport;

using partial_rows =
    view<const bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head>, extent<axis::head_dim, 512>>>;

#ifndef PASS
constexpr index_t width = 576;
#else
constexpr index_t width = 512;
#endif
using own_rows =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head>, extent<axis::head_dim, width>>>;
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head>>>;

status reduce(declared_transport& group, const partial_rows& output, const lses& lse,
              const own_rows& own, std::span<std::byte> room) {
  return lse_reduce_scatter<log_base::e>(host_executor{}, group, output, lse, own, none, room);
}
