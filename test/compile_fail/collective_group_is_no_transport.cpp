// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: transport
// The shared group is handed over in place of the handle of this rank.

#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/reference/host_executor.hpp>
#include <headwise/transport/in_process.hpp>

using namespace headwise;

using partial_rows = view<const bf16, packed_layout_t<extent<axis::token>, extent<axis::head>,
                                                      extent<axis::head_dim, 512>>>;
using own_rows = view<bf16, packed_layout_t<extent<axis::token>, extent<axis::head>,
                                            extent<axis::head_dim, 512>>>;
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head>>>;

#ifndef PASS
using handle = in_process_group;
#else
using handle = in_process;
#endif

status reduce(handle& group, const partial_rows& output, const lses& lse, const own_rows& own,
              std::span<std::byte> room) {
  return lse_reduce_scatter<log_base::e>(host_executor{}, group, output, lse, own, none, room);
}
