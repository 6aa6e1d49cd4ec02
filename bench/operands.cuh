// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/element.hpp>
#include <headwise/view/slice.hpp>

// Views that several benches have: rows of 512 bf16 over token and head, and their LSEs.

namespace bench {

using headwise::bf16;
using headwise::extent;
using headwise::index_t;
namespace axis = headwise::axis;

inline constexpr index_t width = 512;

template <class T, class Layout>
auto on_device(T* data, Layout layout) {
  return headwise::make_view<headwise::memory_space::device>(data, layout);
}

/// The first Heads of Held heads.
template <index_t Heads, index_t Held>
auto partial_output(bf16* data, index_t tokens) {
  const auto all = headwise::packed(extent<axis::token>(tokens), extent<axis::head, Held>(),
                                    extent<axis::head_dim, width>());
  return headwise::slice<axis::head>(on_device(data, all), headwise::constant<0>,
                                     headwise::constant<Heads>);
}
template <index_t Heads, index_t Held, class T>
auto partial_lse(T* data, index_t tokens) {
  const auto all = headwise::packed(extent<axis::token>(tokens), extent<axis::head, Held>());
  return headwise::slice<axis::head>(on_device(data, all), headwise::constant<0>,
                                     headwise::constant<Heads>);
}

/// What partial results are combined into.
inline auto output_view(bf16* data, index_t tokens, index_t heads) {
  return on_device(data, headwise::packed(extent<axis::token>(tokens), extent<axis::head>(heads),
                                          extent<axis::head_dim, width>()));
}
inline auto lse_view(float* data, index_t tokens, index_t heads) {
  return on_device(data, headwise::packed(extent<axis::token>(tokens), extent<axis::head>(heads)));
}

}  // namespace bench
