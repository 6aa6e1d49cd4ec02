// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a merged LSE is fp32, in the log base that the call names
// The merged LSE lands in a view that says base 2.

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
using merged_lse = lse<log_base::two>;
#else
using merged_lse = lse<log_base::e>;
#endif
using merged_rows = view<merged_lse, packed_layout_t<extent<axis::token>, extent<axis::head>>>;

status reduce(declared_transport& group, const partial_rows& output, const lses& partial_lse,
              const own_rows& own, const merged_rows& merged, std::span<std::byte> room) {
  return lse_reduce_scatter<log_base::e>(host_executor{}, group, output, partial_lse, own, merged,
                                         room);
}
