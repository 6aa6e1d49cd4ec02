// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: the host reference reads and writes views of host memory
// The tensors of the GPU, and the executor of the host.

#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/host_executor.hpp>

#include "../support/declared_transport.hpp"

using namespace headwise;

#ifndef PASS
constexpr auto space = memory_space::device;
#else
constexpr auto space = memory_space::pinned;
#endif

template <class T, index_t Heads>
using rows = view<
    T, packed_layout_t<extent<axis::token>, extent<axis::head, Heads>, extent<axis::head_dim, 512>>,
    space>;
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head, 22>>, space>;

status merge(support::declared_transport& group, const rows<const bf16, 22>& partial,
             const lses& partial_lse, const rows<bf16, 11>& output) {
  return lse_reduce_scatter<log_base::e>(host_executor{}, group, partial, partial_lse, output, none,
                                         {});
}
