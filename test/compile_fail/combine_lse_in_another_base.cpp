// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: an LSE is fp32, fp16 or bf16, in the log base that the call names
// One shard in base e, one in base 2.

#include <headwise/reference/lse_combine.hpp>

using namespace headwise;

using rows =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 16>, extent<axis::head_dim, 512>>>;
template <class T>
using per_row = view<T, packed_layout_t<extent<axis::token>, extent<axis::head, 16>>>;

using natural = per_row<const lse<log_base::e>>;
#ifndef PASS
using other = per_row<const lse<log_base::two>>;
#else
using other = natural;
#endif

status merge(const rows& a, const natural& a_lse, const rows& b, const other& b_lse,
             const rows& output) {
  return reference::lse_combine<log_base::e>(separate_shards(shard{a, a_lse}, shard{b, b_lse}),
                                             output);
}
