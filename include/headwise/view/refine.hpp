// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/view/view.hpp>

namespace headwise::inline v0 {

namespace detail {

template <class To, class From>
constexpr status refine_dim(const From& from, const char* operand, bool empty) noexcept {
  using axis = typename To::axis_type;
  static_assert(std::is_same_v<axis, typename From::axis_type>,
                "headwise: refine keeps the axes and their order");
  if (To::static_extent != dynamic_extent && from.extent() != To::static_extent) {
    return failure(errc::shape_mismatch, operand, "the extent is not the one of the static layout",
                   from.extent(), To::static_extent, axis::name);
  }
  // The stride of an extent of 1, or of a view without elements, is never used.
  const bool used = from.extent() != 1 && !empty;
  if (used && To::static_stride != dynamic_stride && from.stride() != To::static_stride) {
    return failure(errc::stride_mismatch, operand, "the stride is not the one of the static layout",
                   from.stride(), To::static_stride, axis::name);
  }
  return {};
}

template <class... To, class... From>
constexpr status refine_layout(std::type_identity<layout<To...>>, const layout<From...>& from,
                               [[maybe_unused]] const char* operand) noexcept {
  static_assert(sizeof...(To) == sizeof...(From),
                "headwise: refine keeps the axes and their order");
  status first{};
  [[maybe_unused]] const bool empty = from.empty();
  static_cast<void>((
      (first = refine_dim<To>(static_cast<const From&>(from), operand, empty), first.ok()) && ...));
  return first;
}

template <class... To, class... From>
constexpr auto refined(std::type_identity<layout<To...>>, const layout<From...>& from) noexcept {
  return layout<To...>(
      To(static_cast<const From&>(from).extent(), To::static_stride == dynamic_stride
                                                      ? static_cast<const From&>(from).stride()
                                                      : To::static_stride)...);
}

}  // namespace detail

/// The same memory under a layout that says more at compile time, or the status that names the
/// first axis which differs, with both values. Axes and their order stay; extents and strides that
/// `Layout` leaves open keep their run-time values. Errors: shape_mismatch (an extent),
/// stride_mismatch (a stride that is used).
template <class Layout, class T, class From, memory_space Space>
constexpr result<view<T, Layout, Space>> refine(const view<T, From, Space>& from,
                                                const char* operand = "view") noexcept {
  const std::type_identity<Layout> to{};
  const status fits = detail::refine_layout(to, from.layout(), operand);
  if (!fits.ok()) return fits;
  return view<T, Layout, Space>(from.data(), detail::refined(to, from.layout()));
}

/// The static layouts that a call is compiled for, tried in this order.
template <class... Layouts>
struct layouts {};

/// Calls f with `from` refined to the first of the layouts that fits, or with `from` itself: one
/// instantiation of f per layout in the list, and one more. f returns the same type for all.
template <class T, class From, memory_space Space, class F>
constexpr auto dispatch(const view<T, From, Space>& from, layouts<>, F&& f) {
  return f(from);
}
template <class T, class From, memory_space Space, class First, class... Rest, class F>
constexpr auto dispatch(const view<T, From, Space>& from, layouts<First, Rest...>, F&& f) {
  const result<view<T, First, Space>> refined = refine<First>(from);
  if (refined.ok()) return f(refined.value());
  return dispatch(from, layouts<Rest...>{}, f);
}

}  // namespace headwise::inline v0
