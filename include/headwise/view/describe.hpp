// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/view/view.hpp>

namespace headwise::inline v0 {

namespace detail {

template <class Dim>
constexpr void put_dim(text_sink& out, const Dim& which, bool first) noexcept {
  if (!first) out.put(", ");
  out.put(Dim::axis_type::name);
  out.put('=');
  if (Dim::static_extent == dynamic_extent) out.put('?');
  out.put(which.extent());
  out.put(':');
  if (Dim::static_stride == dynamic_stride) out.put('?');
  out.put(which.stride());
}

}  // namespace detail

/// Writes a view's type and values, such as "bf16 host [token=?4:16384, head=22:512,
/// head_dim=512:1]": axis=extent:stride in elements, '?' before a value that is not part of the
/// type. Always terminated; returns the length of the whole text, as snprintf does.
template <class T, class... Dims, memory_space Space>
constexpr std::size_t describe_view(const view<T, layout<Dims...>, Space>& what, char* buffer,
                                    std::size_t capacity) noexcept {
  detail::text_sink out{buffer, capacity};
  if constexpr (std::is_const_v<T>) out.put("const ");
  if constexpr (element_kind_of<T> == element_kind::opaque) {
    out.put(static_cast<index_t>(sizeof(T)));
    out.put(" bytes");
  } else {
    out.put(to_string(element_kind_of<T>));
  }
  out.put(' ');
  out.put(to_string(Space));
  out.put(" [");
  bool first = true;
  ((detail::put_dim(out, static_cast<const Dims&>(what.layout()), first), first = false), ...);
  static_cast<void>(first);
  out.put(']');
  return out.finish();
}

}  // namespace headwise::inline v0
