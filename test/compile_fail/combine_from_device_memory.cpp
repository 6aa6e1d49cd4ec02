// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: the host reference reads and writes views of host memory

#include <headwise/reference/lse_combine.hpp>

using namespace headwise;

using rows =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;
template <class T>
using per_row = view<T, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

template <class T, class Layout>
using on_device = view<T, Layout, memory_space::device>;
#ifndef PASS
using partial_rows = on_device<const bf16, rows::layout_type>;
#else
using partial_rows = rows;
#endif

status merge(const partial_rows& a, const per_row<const float>& a_lse, const rows& output) {
  return reference::lse_combine<log_base::e>(shard{a, a_lse}, output);
}
