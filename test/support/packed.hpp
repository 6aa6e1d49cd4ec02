// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/view/view.hpp>

namespace support {

// Operands without gaps, in the usual order of their axes.

template <class T>
auto packed_output(T* data, headwise::index_t tokens, headwise::index_t heads,
                   headwise::index_t head_dim) {
  using namespace headwise;
  return view(data, packed(extent<axis::token>(tokens), extent<axis::head>(heads),
                           extent<axis::head_dim>(head_dim)));
}
template <class T>
auto packed_lse(T* data, headwise::index_t tokens, headwise::index_t heads) {
  using namespace headwise;
  return view(data, packed(extent<axis::token>(tokens), extent<axis::head>(heads)));
}
template <class T>
auto packed_outputs(T* data, headwise::index_t ranks, headwise::index_t tokens,
                    headwise::index_t heads, headwise::index_t head_dim) {
  using namespace headwise;
  return view(data, packed(extent<axis::rank>(ranks), extent<axis::token>(tokens),
                           extent<axis::head>(heads), extent<axis::head_dim>(head_dim)));
}
template <class T>
auto packed_lses(T* data, headwise::index_t ranks, headwise::index_t tokens,
                 headwise::index_t heads) {
  using namespace headwise;
  return view(data, packed(extent<axis::rank>(ranks), extent<axis::token>(tokens),
                           extent<axis::head>(heads)));
}

}  // namespace support
