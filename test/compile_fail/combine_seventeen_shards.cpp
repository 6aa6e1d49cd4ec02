// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: at most 16 partial results are combined

#include <headwise/reference/lse_combine.hpp>

using namespace headwise;

using rows =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;
template <class T>
using per_row = view<T, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

template <class... Shards>
status merge(const rows& output, const Shards&... shards) {
  return reference::lse_combine<log_base::e>(separate_shards(shards...), output);
}

status merge_all(const rows& a, const per_row<const float>& a_lse, const rows& output) {
  const shard s{a, a_lse};
#ifndef PASS
  return merge(output, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s);
#else
  return merge(output, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s);
#endif
}
