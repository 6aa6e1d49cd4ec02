// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: t.rank()
// What the ranks share in place of the handle of this one: no transport, as it has no rank().

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
struct handle {};
#else
using handle = declared_transport;
#endif

status reduce(handle& group, const partial_rows& output, const lses& lse, const own_rows& own,
              std::span<std::byte> room) {
  return lse_reduce_scatter<log_base::e>(host_executor{}, group, output, lse, own, none, room);
}
