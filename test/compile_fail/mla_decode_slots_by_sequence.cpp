// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: mla_decode: slots are a view of integers over token and key

// A block table where a list of slots is wanted: pages read as slots.

#include <headwise/reference/mla_decode.hpp>

using namespace headwise;

template <class T, class... Extents>
using packed_view = view<T, packed_layout_t<Extents...>>;
using tokens = extent<axis::token>;
using heads = extent<axis::head>;

int main() {
  const packed_view<const bf16, tokens, heads, extent<axis::head_dim, 576>> query;
  const packed_view<bf16, tokens, heads, extent<axis::head_dim, 512>> output;
  const packed_view<lse<log_base::two>, tokens, heads> lses;
  const paged_kv<kv_bf16<512, 64>> kv;
#ifndef PASS
  const packed_view<const std::int32_t, extent<axis::sequence>, extent<axis::page>> slots;
#else
  const packed_view<const std::int32_t, tokens, extent<axis::key>> slots;
#endif
  static_cast<void>(reference::mla_decode_sparse(query, kv, slots, 0.1, output, lses));
}
