// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a partial output is fp32, fp16 or bf16; fp8 can be moved, never reduced

#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/host_executor.hpp>
#include <headwise/transport/in_process.hpp>

using namespace headwise;

template <class T>
using rows =
    view<T,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;
template <class T>
using own_rows =
    view<T,
         packed_layout_t<extent<axis::token>, extent<axis::head, 8>, extent<axis::head_dim, 512>>>;
using lses = view<const float, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

#ifndef PASS
using element = fp8_e4m3;
#else
using element = bf16;
#endif

status reduce(in_process& group, const rows<const element>& output, const lses& lse,
              const own_rows<element>& own, std::span<std::byte> workspace) {
  return lse_reduce_scatter<log_base::e>(host_executor{}, group, output, lse, own, none, workspace);
}
