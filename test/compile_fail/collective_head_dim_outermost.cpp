// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a partial output is [token, head, head_dim] or [head, token, head_dim]
// Rows whose elements lie apart have no place on the wire.

#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/host_executor.hpp>

#include "../support/declared_transport.hpp"

using namespace headwise;
using support::declared_transport;

#ifndef PASS
using partial_rows =
    view<const bf16,
         packed_layout_t<extent<axis::head_dim>, extent<axis::token>, extent<axis::head>>>;
#else
using partial_rows =
    view<const bf16,
         packed_layout_t<extent<axis::head>, extent<axis::token>, extent<axis::head_dim>>>;
#endif
using own_rows =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head>, extent<axis::head_dim, 512>>>;
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head>>>;

status reduce(declared_transport& group, const partial_rows& output, const lses& lse,
              const own_rows& own, std::span<std::byte> room) {
  return lse_reduce_scatter<log_base::e>(host_executor{}, group, output, lse, own, none, room);
}
