// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: gathered outputs are a view over rank, token, head and head_dim

#include <headwise/reference/lse_combine.hpp>

using namespace headwise;

using rows =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;
template <class T>
using per_row = view<T, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

using lses = view<const float,
                  packed_layout_t<extent<axis::rank>, extent<axis::token>, extent<axis::head, 16>>>;
#ifndef PASS
using outputs = rows;
#else
using outputs = view<bf16, packed_layout_t<extent<axis::rank>, extent<axis::token>,
                                           extent<axis::head, 16>, extent<axis::head_dim, 512>>>;
#endif

status merge(const outputs& all, const lses& all_lses, const rows& output) {
  return reference::lse_combine<log_base::e>(gathered_shards{all, all_lses}, output);
}
