// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: mla_decode: the reference runs on the host and cannot read a cache in device memory

#include <headwise/reference/mla_decode.hpp>

using namespace headwise;

using record = kv_bf16<512, 64>;

template <class T, class... Extents>
using packed_view = view<T, packed_layout_t<Extents...>>;
using tokens = extent<axis::token>;

int main() {
  const packed_view<const bf16, tokens, extent<axis::head, 16>, extent<axis::head_dim, 576>> query;
  const packed_view<const std::int32_t, extent<axis::sequence>, extent<axis::page>> block_table;
  const packed_view<const std::int32_t, extent<axis::sequence>> lengths;
#ifndef PASS
  const paged_kv<record, memory_space::device> kv;
  const packed_view<bf16, tokens, extent<axis::head, 16>, extent<axis::head_dim, 512>> output;
  const packed_view<lse<log_base::e>, tokens, extent<axis::head, 16>> lses;
#else
  const paged_kv<record> kv;
  const packed_view<bf16, tokens, extent<axis::head, 16>, extent<axis::head_dim, 512>> output;
  const packed_view<lse<log_base::e>, tokens, extent<axis::head, 16>> lses;
#endif
  static_cast<void>(
      reference::mla_decode(query, kv, block_table, lengths, {.softmax_scale = 0.1}, output, lses));
}
