// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a target is written to, its elements are not const
// The result is to be written into a view of const elements.

#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/host_executor.hpp>

#include "../support/declared_transport.hpp"

using namespace headwise;
using support::declared_transport;

using partial_rows =
    view<const bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head>, extent<axis::head_dim, 512>>>;
using own_rows =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head>, extent<axis::head_dim, 512>>>;
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head>>>;

#ifndef PASS
using target = partial_rows;
#else
using target = own_rows;
#endif

status reduce(declared_transport& group, const partial_rows& output, const lses& lse,
              const target& own, std::span<std::byte> room) {
  return lse_reduce_scatter<log_base::e>(host_executor{}, group, output, lse, own, none, room);
}
