// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: an LSE is fp32, fp16 or bf16, in the log base that the call names
// The base-2 LSE of one kernel, combined as if it were natural (vllm#47079).

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

#ifndef PASS
using their_lse = lse<log_base::two>;
#else
using their_lse = lse<log_base::e>;
#endif
using lses = view<const their_lse, packed_layout_t<extent<axis::token>, extent<axis::head>>>;

status reduce(declared_transport& group, const partial_rows& output, const lses& partial_lse,
              const own_rows& own, std::span<std::byte> room) {
  return lse_reduce_scatter<log_base::e>(host_executor{}, group, output, partial_lse, own, none,
                                         room);
}
