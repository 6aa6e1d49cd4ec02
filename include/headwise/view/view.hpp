// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/config.hpp>
#include <headwise/core/element.hpp>
#include <headwise/core/memory_space.hpp>
#include <headwise/core/status.hpp>
#include <headwise/view/layout.hpp>

#include <type_traits>

namespace headwise::inline v0 {

namespace detail {

template <class T>
struct view_pointer {
  T* data = nullptr;
};

/// The two parts of a view as bases, so that a static layout takes no storage. Not as a member with
/// [[no_unique_address]]: in objects that it initialises at compile time g++ 12 writes the empty
/// member's zeros over the pointer.
template <class T, class Layout>
struct view_parts : view_pointer<T>, Layout {
  constexpr view_parts() = default;
  HEADWISE_HD constexpr view_parts(T* first, const Layout& dims) noexcept
      : view_pointer<T>{first}, Layout(dims) {}
};

/// A view of Other over From is one of T over To too.
template <class Other, class From, class T, class To>
inline constexpr bool view_widens = says_no_more_than<To, From> &&
                                    (std::is_same_v<Other, T> || std::is_same_v<const Other, T>);

}  // namespace detail

/// Elements of somebody else's memory: a pointer and the run-time values of its layout, nothing
/// more. Owns nothing; trivially copyable; goes to kernels by value. With a fully static layout its
/// size is that of a pointer.
template <class T, class Layout, memory_space Space = memory_space::host>
class view {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using layout_type = Layout;
  static constexpr memory_space space = Space;
  static constexpr int rank = Layout::rank;

  constexpr view() = default;
  HEADWISE_HD constexpr view(T* data, Layout layout) noexcept : parts_(data, layout) {}
  HEADWISE_HD constexpr explicit view(T* data) noexcept requires(Layout::is_static)
      : parts_(data, Layout{}) {}
  /// A view of T is a view of const T, and a static layout is a dynamic one.
  template <class Other, class From>
    requires(detail::view_widens<Other, From, T, Layout>)
  HEADWISE_HD constexpr view(const view<Other, From, Space>& other) noexcept  // NOLINT: implicit
      : parts_(other.data(), other.layout()) {}

  HEADWISE_HD constexpr T* data() const noexcept { return parts_.data; }
  HEADWISE_HD constexpr const Layout& layout() const noexcept { return parts_; }

  template <class Axis>
  HEADWISE_HD constexpr index_t extent() const noexcept {
    return layout().template extent<Axis>();
  }
  template <class Axis>
  HEADWISE_HD constexpr index_t stride() const noexcept {
    return layout().template stride<Axis>();
  }
  HEADWISE_HD constexpr index_t size() const noexcept { return layout().size(); }
  HEADWISE_HD constexpr bool empty() const noexcept { return layout().empty(); }
  HEADWISE_HD constexpr index_t span_size() const noexcept { return layout().span_size(); }
  HEADWISE_HD constexpr bool is_contiguous() const noexcept { return layout().is_contiguous(); }

  /// The element at these indices, outermost first.
  template <class... Indices>
    requires(Space != memory_space::device)
  HEADWISE_HD constexpr T& operator()(Indices... indices) const noexcept {
    static_assert(sizeof...(Indices) == rank, "headwise: an element has one index per axis");
    return data()[layout().offset(indices...)];
  }
#if defined(__CUDACC__)
  template <class... Indices>
    requires(Space == memory_space::device)
  __device__ constexpr T& operator()(Indices... indices) const noexcept {
    static_assert(sizeof...(Indices) == rank, "headwise: an element has one index per axis");
    return data()[layout().offset(indices...)];
  }
#else
  template <class... Indices>
    requires(Space == memory_space::device)
  T& operator()(Indices...) const noexcept {
    static_assert(detail::always_false<Indices...>,
                  "headwise: host code reads an element of a view of device memory");
    return *data();
  }
#endif

 private:
  detail::view_parts<T, Layout> parts_{};
};

template <class T, class Layout>
view(T*, Layout) -> view<T, Layout>;

/// A view with its types deduced: make_view<memory_space::device>(pointer, packed(...)).
template <memory_space Space = memory_space::host, class T, class Layout>
HEADWISE_HD constexpr view<T, Layout, Space> make_view(T* data, Layout layout) noexcept {
  return {data, layout};
}

namespace detail {

template <class T>
inline constexpr bool is_view = false;
template <class T, class Layout, memory_space Space>
inline constexpr bool is_view<view<T, Layout, Space>> = true;

template <class... Axes>
struct axis_list {};
template <class View>
struct axes_of;
template <class T, class... Dims, memory_space Space>
struct axes_of<view<T, layout<Dims...>, Space>> {
  using type = axis_list<typename Dims::axis_type...>;
};

}  // namespace detail

template <class T>
concept view_type = detail::is_view<std::remove_cv_t<T>>;

/// A view whose axes are exactly these, in this order.
template <class View, class... Axes>
concept view_of =
    view_type<View> && std::is_same_v<typename detail::axes_of<std::remove_cv_t<View>>::type,
                                      detail::axis_list<Axes...>>;

/// A view that names these axes and no other, in any order.
template <class View, class... Axes>
concept view_over = view_type<View> && View::rank == sizeof...(Axes) &&
                    (View::layout_type::template has_axis<Axes> && ...);

/// Refuses what no view may be: negative extents or strides, more bytes than a pointer can reach, a
/// null pointer with elements behind it, a pointer that is not aligned for its element type.
/// `operand` is the name to report. Errors: invalid_argument, out_of_range, misaligned.
template <class T, class... Dims, memory_space Space>
constexpr status validate(const char* operand,
                          const view<T, layout<Dims...>, Space>& what) noexcept {
  const auto extents = what.layout().extents();
  const auto strides = what.layout().strides();
  const char* const names[] = {Dims::axis_type::name..., ""};
  for (int i = 0; i < what.rank; ++i) {
    if (extents[i] < 0) {
      return failure(errc::invalid_argument, operand, "an extent is not negative", extents[i], 0,
                     names[i]);
    }
    if (strides[i] < 0) {
      return failure(errc::invalid_argument, operand, "a stride is not negative", strides[i], 0,
                     names[i]);
    }
  }
  if (what.empty()) return {};
  // All of it must lie within what a pointer difference can say, so that no offset overflows.
  index_t left = INT64_MAX / static_cast<index_t>(sizeof(T)) - 1;
  for (int i = 0; i < what.rank; ++i) {
    if (strides[i] == 0) continue;
    const index_t most = left / strides[i];
    if (extents[i] - 1 > most) {
      return failure(errc::out_of_range, operand,
                     "the view leaves the address space; expected is the largest extent that fits",
                     extents[i], most + 1, names[i]);
    }
    left -= (extents[i] - 1) * strides[i];
  }
  if (what.data() == nullptr) {
    return failure(errc::invalid_argument, operand, "a view with elements has a null pointer");
  }
  if (!std::is_constant_evaluated()) {
    const auto address = reinterpret_cast<std::uintptr_t>(what.data());
    if (address % alignof(T) != 0) {
      return failure(errc::misaligned, operand, "the pointer is not aligned for its element type",
                     static_cast<index_t>(address % alignof(T)), 0);
    }
  }
  return {};
}

}  // namespace headwise::inline v0
