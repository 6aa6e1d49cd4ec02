// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/view/view.hpp>

// Views of views: slice, fix, permute, split, rename. Each keeps the parent's memory and strides,
// and whatever of them was static stays static.

namespace headwise::inline v0 {

namespace detail {

/// Where a part of a view begins. A part without elements begins where the whole does: that may be
/// null, and what lies behind it need not be there.
template <class T, class Layout>
HEADWISE_HD constexpr T* moved(T* data, index_t index, index_t stride,
                               const Layout& part) noexcept {
  return part.empty() ? data : data + index * stride;
}

/// The stride of a dim around `count` elements that are `stride` apart. Where it leaves 64 bits the
/// dim is one that no valid view steps along (a single group, or no elements).
HEADWISE_HD constexpr index_t stride_around(index_t stride, index_t count) noexcept {
  return count != 0 && stride > INT64_MAX / count ? INT64_MAX : stride * count;
}

/// The dim that stands for Axis after the change: `changed` itself, or the parent's.
template <class Axis, class Parent, class Changed>
HEADWISE_HD constexpr auto replaced_dim(const Parent& parent,
                                        [[maybe_unused]] const Changed& changed) noexcept {
  if constexpr (std::is_same_v<Axis, typename Parent::axis_type>) {
    return changed;
  } else {
    return parent;
  }
}

template <class Axis, class Changed, class... Dims>
HEADWISE_HD constexpr auto replace_dim(const layout<Dims...>& parent,
                                       const Changed& changed) noexcept {
  return layout(replaced_dim<Axis>(static_cast<const Dims&>(parent), changed)...);
}

/// `Count` entries of Axis from `first` on, unchecked.
template <class Axis, index_t Count, class T, class Layout, memory_space Space>
HEADWISE_HD constexpr auto slice_unchecked(const view<T, Layout, Space>& parent, index_t first,
                                           index_t count) noexcept {
  const index_t stride = parent.template stride<Axis>();
  const dim<Axis, Count, dim_type<Layout, Axis>::static_stride> kept(count, stride);
  const auto sliced = replace_dim<Axis>(parent.layout(), kept);
  return view<T, std::remove_cv_t<decltype(sliced)>, Space>(
      moved(parent.data(), first, stride, sliced), sliced);
}

constexpr status check_slice(index_t first, index_t count, index_t extent,
                             const char* axis) noexcept {
  if (first < 0) {
    return failure(errc::out_of_range, "slice", "the range begins before the axis", first, 0, axis);
  }
  if (count < 0) {
    return failure(errc::out_of_range, "slice", "a count is not negative", count, 0, axis);
  }
  if (first > extent) {
    return failure(errc::out_of_range, "slice", "the range begins beyond the axis", first, extent,
                   axis);
  }
  if (count > extent - first) {
    const index_t end = count > INT64_MAX - first ? INT64_MAX : first + count;
    return failure(errc::out_of_range, "slice", "the range ends beyond the axis", end, extent,
                   axis);
  }
  return {};
}

template <class Axis, index_t Count, class T, class Layout, memory_space Space>
constexpr auto slice_checked(const view<T, Layout, Space>& parent, index_t first,
                             index_t count) noexcept {
  using slice_view = decltype(slice_unchecked<Axis, Count>(parent, first, count));
  const status fits = check_slice(first, count, parent.template extent<Axis>(), Axis::name);
  if (!fits.ok()) return result<slice_view>(fits);
  return result<slice_view>(slice_unchecked<Axis, Count>(parent, first, count));
}

}  // namespace detail

/// `Count` entries of Axis from `First` on: slice<axis::head>(v, constant<0>, constant<22>). The
/// range is checked at compile time against a static extent.
template <axis_type Axis, class T, class Layout, memory_space Space, index_t First, index_t Count>
  requires(detail::dim_type<Layout, Axis>::static_extent != dynamic_extent)
HEADWISE_HD constexpr auto slice(const view<T, Layout, Space>& parent, constant_t<First>,
                                 constant_t<Count>) noexcept {
  constexpr index_t extent = detail::dim_type<Layout, Axis>::static_extent;
  static_assert(First >= 0 && First <= extent && Count >= 0 && Count <= extent - First,
                "headwise: slice leaves the axis");
  return detail::slice_unchecked<Axis, Count>(parent, First, Count);
}

/// The same where the parent's extent or `first` are run-time values; returns a result.
/// Errors: out_of_range, with the axis, the end that was asked for, and the extent.
template <axis_type Axis, class T, class Layout, memory_space Space, index_t Count>
constexpr auto slice(const view<T, Layout, Space>& parent, index_t first,
                     constant_t<Count>) noexcept {
  static_assert(Count >= 0, "headwise: slice leaves the axis");
  return detail::slice_checked<Axis, Count>(parent, first, Count);
}
/// The same where `count` is a run-time value too.
template <axis_type Axis, class T, class Layout, memory_space Space>
constexpr auto slice(const view<T, Layout, Space>& parent, index_t first, index_t count) noexcept {
  return detail::slice_checked<Axis, dynamic_extent>(parent, first, count);
}

namespace detail {

template <class... Dims>
struct dim_list {};

template <class... Lists>
struct concatenated;
template <>
struct concatenated<> {
  using type = dim_list<>;
};
template <class... First>
struct concatenated<dim_list<First...>> {
  using type = dim_list<First...>;
};
template <class... First, class... Second, class... Rest>
struct concatenated<dim_list<First...>, dim_list<Second...>, Rest...>
    : concatenated<dim_list<First..., Second...>, Rest...> {};

/// The dims of a layout with the one of Axis replaced by the dims of a list.
template <class Axis, class List, class... Dims>
using dims_with =
    typename concatenated<std::conditional_t<std::is_same_v<Axis, typename Dims::axis_type>, List,
                                             dim_list<Dims>>...>::type;

template <class... Dims, class... Kept>
HEADWISE_HD constexpr auto keep_dims([[maybe_unused]] const layout<Dims...>& parent,
                                     dim_list<Kept...>) noexcept {
  return layout<Kept...>(static_cast<const Kept&>(parent)...);
}

template <class Axis, class T, class... Dims, memory_space Space>
HEADWISE_HD constexpr auto fix_unchecked(const view<T, layout<Dims...>, Space>& parent,
                                         index_t index) noexcept {
  const auto rest = keep_dims(parent.layout(), dims_with<Axis, dim_list<>, Dims...>{});
  return view<T, std::remove_cv_t<decltype(rest)>, Space>(
      moved(parent.data(), index, parent.template stride<Axis>(), rest), rest);
}

template <class Wanted, class Parent, class Outer, class Inner>
HEADWISE_HD constexpr Wanted split_part([[maybe_unused]] const Parent& parent,
                                        [[maybe_unused]] const Outer& outer,
                                        [[maybe_unused]] const Inner& inner) noexcept {
  if constexpr (std::is_same_v<Wanted, Outer>) {
    return outer;
  } else if constexpr (std::is_same_v<Wanted, Inner>) {
    return inner;
  } else {
    return static_cast<const Wanted&>(parent);
  }
}

template <class Outer, class Inner, class Parent, class... Flat>
HEADWISE_HD constexpr auto split_layout(const Parent& parent, const Outer& outer,
                                        const Inner& inner, dim_list<Flat...>) noexcept {
  return layout<Flat...>(split_part<Flat>(parent, outer, inner)...);
}

/// Axis as Outer, of static extent `OuterCount`, around Inner, of static extent `InnerCount`;
/// unchecked.
template <class Axis, class Outer, class Inner, index_t OuterCount, index_t InnerCount, class T,
          class... Dims, memory_space Space>
HEADWISE_HD constexpr auto split_unchecked(const view<T, layout<Dims...>, Space>& parent,
                                           index_t outer_count, index_t inner_count) noexcept {
  constexpr index_t static_stride = dim_type<layout<Dims...>, Axis>::static_stride;
  constexpr bool known = static_stride != dynamic_stride && InnerCount != dynamic_extent;
  const index_t stride = parent.template stride<Axis>();
  using outer_dim =
      dim<Outer, OuterCount, known ? stride_around(static_stride, InnerCount) : dynamic_stride>;
  using inner_dim = dim<Inner, InnerCount, static_stride>;
  const outer_dim outer(outer_count, stride_around(stride, inner_count));
  const inner_dim inner(inner_count, stride);
  const auto parts = split_layout(parent.layout(), outer, inner,
                                  dims_with<Axis, dim_list<outer_dim, inner_dim>, Dims...>{});
  return view<T, std::remove_cv_t<decltype(parts)>, Space>(parent.data(), parts);
}

constexpr status check_split(index_t count, index_t extent, const char* axis) noexcept {
  if (count <= 0) {
    return failure(errc::invalid_argument, "split", "an axis is split into at least one group",
                   count, 1, axis);
  }
  if (extent % count != 0) {
    const index_t below = extent - extent % count;
    return failure(errc::shape_mismatch, "split",
                   "the extent is not a multiple of the number of groups; expected is the next one",
                   extent, below > INT64_MAX - count ? below : below + count, axis);
  }
  return {};
}

template <class Axis, class Outer, class Inner, index_t OuterCount, class T, class Layout,
          memory_space Space>
constexpr auto split_checked(const view<T, Layout, Space>& parent, index_t count) noexcept {
  using split_view = decltype(split_unchecked<Axis, Outer, Inner, OuterCount, dynamic_extent>(
      parent, count, count));
  const index_t extent = parent.template extent<Axis>();
  const status divides = check_split(count, extent, Axis::name);
  if (!divides.ok()) return result<split_view>(divides);
  return result<split_view>(split_unchecked<Axis, Outer, Inner, OuterCount, dynamic_extent>(
      parent, count, extent / count));
}

}  // namespace detail

/// The view at one index of Axis, without that axis. Precondition: 0 <= index < extent.
template <axis_type Axis, class T, class Layout, memory_space Space>
HEADWISE_HD constexpr auto fix(const view<T, Layout, Space>& parent, index_t index) noexcept {
  HEADWISE_ASSERT(index >= 0 && index < parent.template extent<Axis>());
  return detail::fix_unchecked<Axis>(parent, index);
}
/// The same with an index that is checked at compile time where the extent is static.
template <axis_type Axis, class T, class Layout, memory_space Space, index_t Index>
HEADWISE_HD constexpr auto fix(const view<T, Layout, Space>& parent, constant_t<Index>) noexcept {
  constexpr index_t extent = detail::dim_type<Layout, Axis>::static_extent;
  static_assert(Index >= 0 && (extent == dynamic_extent || Index < extent),
                "headwise: fix leaves the axis");
  HEADWISE_ASSERT(Index < parent.template extent<Axis>());
  return detail::fix_unchecked<Axis>(parent, Index);
}

/// The same elements with the axes in another order: every axis of the view is named once.
template <axis_type... Axes, class T, class Layout, memory_space Space>
HEADWISE_HD constexpr auto permute(const view<T, Layout, Space>& parent) noexcept {
  static_assert(sizeof...(Axes) == Layout::rank && (Layout::template has_axis<Axes> && ...),
                "headwise: permute names every axis of the view once");
  using permuted = layout<detail::dim_type<Layout, Axes>...>;
  return view<T, permuted, Space>(parent.data(), permuted(parent.layout().template get<Axes>()...));
}

/// Axis as two axes: Outer counts `Count` groups of extent / Count neighbours, Inner counts within
/// a group. So [token, head] becomes [token, rank, head], the heads of each rank together.
template <axis_type Axis, axis_type Outer, axis_type Inner, class T, class Layout,
          memory_space Space, index_t Count>
  requires(detail::dim_type<Layout, Axis>::static_extent != dynamic_extent)
HEADWISE_HD constexpr auto split(const view<T, Layout, Space>& parent, constant_t<Count>) noexcept {
  constexpr index_t extent = detail::dim_type<Layout, Axis>::static_extent;
  constexpr index_t groups = Count > 0 ? Count : 1;
  static_assert(Count > 0 && extent % groups == 0, "headwise: split does not divide the axis");
  return detail::split_unchecked<Axis, Outer, Inner, groups, extent / groups>(parent, groups,
                                                                              extent / groups);
}

/// The same where the parent's extent is a run-time value; returns a result.
/// Errors: shape_mismatch, with the extent and the next multiple of `Count`.
template <axis_type Axis, axis_type Outer, axis_type Inner, class T, class Layout,
          memory_space Space, index_t Count>
  requires(detail::dim_type<Layout, Axis>::static_extent == dynamic_extent)
constexpr auto split(const view<T, Layout, Space>& parent, constant_t<Count>) noexcept {
  static_assert(Count > 0, "headwise: split does not divide the axis");
  return detail::split_checked<Axis, Outer, Inner, Count>(parent, Count);
}
/// The same where the number of groups is a run-time value. Errors: invalid_argument too.
template <axis_type Axis, axis_type Outer, axis_type Inner, class T, class Layout,
          memory_space Space>
constexpr auto split(const view<T, Layout, Space>& parent, index_t count) noexcept {
  return detail::split_checked<Axis, Outer, Inner, dynamic_extent>(parent, count);
}

/// The same view with axis From called To.
template <axis_type From, axis_type To, class T, class Layout, memory_space Space>
HEADWISE_HD constexpr auto rename(const view<T, Layout, Space>& parent) noexcept {
  using from_dim = detail::dim_type<Layout, From>;
  const dim<To, from_dim::static_extent, from_dim::static_stride> renamed(
      parent.template extent<From>(), parent.template stride<From>());
  const auto names = detail::replace_dim<From>(parent.layout(), renamed);
  return view<T, std::remove_cv_t<decltype(names)>, Space>(parent.data(), names);
}

}  // namespace headwise::inline v0
