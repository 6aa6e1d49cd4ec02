// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: from_mdspan names one axis per dimension

#include <headwise/view/mdspan.hpp>

using namespace headwise;

// As much of an mdspan as the question takes.
struct table {
  struct extents_type {};
  struct mapping_type {};
  using element_type = float;
  using data_handle_type = float*;
  using reference = float&;
  using index_type = int;
  using rank_type = unsigned;
  static constexpr rank_type rank() { return 2; }
  static constexpr unsigned long static_extent(rank_type) { return 4; }
  static constexpr bool is_always_strided() { return true; }
  data_handle_type data_handle() const { return nullptr; }
  mapping_type mapping() const { return {}; }
  index_type extent(rank_type) const { return 4; }
  index_type stride(rank_type r) const { return r == 0 ? 4 : 1; }
};

#ifndef PASS
void convert(const table& lse) { from_mdspan<axis::token>(lse); }
#else
void convert(const table& lse) { from_mdspan<axis::token, axis::head>(lse); }
#endif
