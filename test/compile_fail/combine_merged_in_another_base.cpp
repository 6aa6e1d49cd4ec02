// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a merged LSE is fp32, in the log base that the call names

#include <headwise/reference/lse_combine.hpp>

using namespace headwise;

using rows =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;
template <class T>
using per_row = view<T, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

#ifndef PASS
using merged_lse = per_row<lse<log_base::two>>;
#else
using merged_lse = per_row<lse<log_base::e>>;
#endif

status merge(const rows& a, const per_row<const float>& a_lse, const rows& output,
             const merged_lse& merged) {
  return reference::lse_combine<log_base::e>(shard{a, a_lse}, output, merged);
}
