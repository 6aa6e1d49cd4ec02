// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/config.hpp>
#include <headwise/view/axis.hpp>

#include <type_traits>
#include <utility>

namespace headwise::inline v0 {

/// Marks an extent that only the running program knows.
inline constexpr index_t dynamic_extent = -1;
/// Marks a stride that only the running program knows.
inline constexpr index_t dynamic_stride = -1;

/// An index known at compile time, as an argument: slice<axis::head>(v, constant<0>, constant<22>).
/// Where a function has no use for that it is an ordinary number.
template <index_t Value>
struct constant_t {
  static constexpr index_t value = Value;
  HEADWISE_HD constexpr operator index_t() const noexcept { return Value; }  // NOLINT: implicit
};
template <index_t Value>
inline constexpr constant_t<Value> constant{};

/// What a type knows about gaps between the elements of a non-empty view.
enum class contiguity : std::uint8_t {
  always,    ///< the extents and strides in the type leave no gap
  never,     ///< they leave one, whatever the run-time values are
  run_time,  ///< it depends: 22 of 32 heads are contiguous at one token and are not at two
};

namespace detail {

// Static values take no storage; the axis keeps the two fields of different dims different types,
// so that empty ones share an address.
template <class Axis, index_t Extent>
struct extent_field {
  HEADWISE_HD constexpr index_t extent() const noexcept { return Extent; }

 protected:
  constexpr extent_field() = default;
  HEADWISE_HD constexpr explicit extent_field([[maybe_unused]] index_t extent) noexcept {
    HEADWISE_ASSERT(extent == Extent);
  }
};
template <class Axis>
struct extent_field<Axis, dynamic_extent> {
  HEADWISE_HD constexpr index_t extent() const noexcept { return extent_; }

 protected:
  constexpr extent_field() = default;
  HEADWISE_HD constexpr explicit extent_field(index_t extent) noexcept : extent_(extent) {}

 private:
  index_t extent_ = 0;
};

template <class Axis, index_t Stride>
struct stride_field {
  HEADWISE_HD constexpr index_t stride() const noexcept { return Stride; }

 protected:
  constexpr stride_field() = default;
  HEADWISE_HD constexpr explicit stride_field([[maybe_unused]] index_t stride) noexcept {
    HEADWISE_ASSERT(stride == Stride);
  }
};
template <class Axis>
struct stride_field<Axis, dynamic_stride> {
  HEADWISE_HD constexpr index_t stride() const noexcept { return stride_; }

 protected:
  constexpr stride_field() = default;
  HEADWISE_HD constexpr explicit stride_field(index_t stride) noexcept : stride_(stride) {}

 private:
  index_t stride_ = 0;
};

}  // namespace detail

/// One dimension: what it counts, how many there are, and how many elements lie from one to the
/// next. Extent and stride are each part of the type or a run-time value. A default-constructed
/// run-time extent is 0. Strides are not negative; 0 (broadcast) is legal in a source.
template <axis_type Axis, index_t Extent = dynamic_extent, index_t Stride = dynamic_stride>
struct dim : detail::extent_field<Axis, Extent>, detail::stride_field<Axis, Stride> {
  static_assert(Extent >= 0 || Extent == dynamic_extent,
                "headwise: a static extent is not negative");
  static_assert(Stride >= 0 || Stride == dynamic_stride,
                "headwise: a static stride is not negative");

  using axis_type = Axis;
  static constexpr index_t static_extent = Extent;
  static constexpr index_t static_stride = Stride;

  constexpr dim() = default;
  HEADWISE_HD constexpr explicit dim(index_t extent) noexcept requires(Stride != dynamic_stride)
      : detail::extent_field<Axis, Extent>(extent) {}
  /// Precondition: a value that is part of the type is repeated here unchanged.
  HEADWISE_HD constexpr dim(index_t extent, index_t stride) noexcept
      : detail::extent_field<Axis, Extent>(extent), detail::stride_field<Axis, Stride>(stride) {}
};

namespace detail {

template <int Position, class... Types>
struct nth_type;
template <int Position, class First, class... Rest>
struct nth_type<Position, First, Rest...> : nth_type<Position - 1, Rest...> {};
template <class First, class... Rest>
struct nth_type<0, First, Rest...> {
  using type = First;
};

/// The one base dim<Axis, ...> of a layout, found by deduction.
template <class Axis, index_t Extent, index_t Stride>
HEADWISE_HD constexpr const dim<Axis, Extent, Stride>& dim_of(
    const dim<Axis, Extent, Stride>& which) noexcept {
  return which;
}

/// A plain row of numbers that constexpr functions may return on host and device.
template <int Count>
struct index_row {
  index_t values[static_cast<std::size_t>(Count == 0 ? 1 : Count)] = {};
  HEADWISE_HD constexpr index_t& operator[](int i) noexcept { return values[i]; }
  HEADWISE_HD constexpr const index_t& operator[](int i) const noexcept { return values[i]; }
};

/// To has the axes of From, in its order, and leaves open or repeats what From says of them.
template <class To, class From>
inline constexpr bool says_no_more_than = false;

}  // namespace detail

/// Dims, outermost first: the map from one index per axis to an offset in elements.
template <class... Dims>
struct layout : Dims... {
  static constexpr int rank = static_cast<int>(sizeof...(Dims));

  /// All extents and strides are in the type: the layout itself takes no storage.
  static constexpr bool is_static =
      ((Dims::static_extent != dynamic_extent && Dims::static_stride != dynamic_stride) && ...);

  template <class Axis>
  static constexpr bool has_axis = (std::is_same_v<typename Dims::axis_type, Axis> || ...);
  template <class Axis>
  static constexpr int axis_count = (0 + ... +
                                     (std::is_same_v<typename Dims::axis_type, Axis> ? 1 : 0));
  static_assert(((axis_count<typename Dims::axis_type> == 1) && ...),
                "headwise: a layout names each axis once");

  template <int Position>
  using dim_at = typename detail::nth_type<Position, Dims...>::type;

  static constexpr detail::index_row<rank> static_extents{{Dims::static_extent...}};
  static constexpr detail::index_row<rank> static_strides{{Dims::static_stride...}};

  constexpr layout() = default;
  HEADWISE_HD constexpr explicit(sizeof...(Dims) == 1) layout(Dims... dims) noexcept
      requires(sizeof...(Dims) > 0)
      : Dims(dims)... {}
  /// Static extents and strides become run-time values where this type leaves them open. The way
  /// back, refine(), can fail.
  template <class... From>
    requires(!std::is_same_v<layout<From...>, layout> &&
             detail::says_no_more_than<layout, layout<From...>>)
  HEADWISE_HD constexpr layout(const layout<From...>& other) noexcept  // NOLINT: implicit
      : Dims(static_cast<const From&>(other).extent(),
             static_cast<const From&>(other).stride())... {}

  /// The dim that counts Axis.
  template <class Axis>
  HEADWISE_HD constexpr const auto& get() const noexcept {
    static_assert(has_axis<Axis>, "headwise: this layout has no such axis");
    return detail::dim_of<Axis>(*this);
  }
  template <class Axis>
  HEADWISE_HD constexpr index_t extent() const noexcept {
    return get<Axis>().extent();
  }
  template <class Axis>
  HEADWISE_HD constexpr index_t stride() const noexcept {
    return get<Axis>().stride();
  }

  HEADWISE_HD constexpr detail::index_row<rank> extents() const noexcept {
    return {{static_cast<const Dims&>(*this).extent()...}};
  }
  HEADWISE_HD constexpr detail::index_row<rank> strides() const noexcept {
    return {{static_cast<const Dims&>(*this).stride()...}};
  }

  /// Elements from the first one to the one at these indices, outermost first; 64-bit throughout.
  template <class... Indices>
    requires(sizeof...(Indices) == sizeof...(Dims) && (std::is_integral_v<Indices> && ...))
  HEADWISE_HD constexpr index_t offset(Indices... indices) const noexcept {
    HEADWISE_ASSERT(((static_cast<index_t>(indices) >= 0 &&
                      static_cast<index_t>(indices) < static_cast<const Dims&>(*this).extent()) &&
                     ...));
    return (index_t{0} + ... +
            (static_cast<index_t>(indices) * static_cast<const Dims&>(*this).stride()));
  }

  /// True where there is no element.
  HEADWISE_HD constexpr bool empty() const noexcept {
    return ((static_cast<const Dims&>(*this).extent() == 0) || ...);
  }

  /// Number of elements. Where there are none the other extents may be of any size.
  HEADWISE_HD constexpr index_t size() const noexcept {
    if (empty()) return 0;
    return (index_t{1} * ... * static_cast<const Dims&>(*this).extent());
  }

  /// Elements of memory from the first to one past the last: 1 + sum((extent - 1) * stride), and 0
  /// where there is no element.
  HEADWISE_HD constexpr index_t span_size() const noexcept {
    if (empty()) return 0;
    return (index_t{1} + ... +
            ((static_cast<const Dims&>(*this).extent() - 1) *
             static_cast<const Dims&>(*this).stride()));
  }

  /// True where the elements, in the order of the dims, follow each other without a gap. An extent
  /// of 1 ignores its stride; a view without elements is contiguous.
  HEADWISE_HD constexpr bool is_contiguous() const noexcept {
    const detail::index_row<rank> e = extents();
    const detail::index_row<rank> s = strides();
    if (empty()) return true;
    index_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (e[i] != 1 && s[i] != expected) return false;
      expected *= e[i];
    }
    return true;
  }

  /// What the type alone says of is_contiguous(), for views that are not empty. A type that can
  /// only be empty is `always`.
  HEADWISE_HD static constexpr contiguity static_contiguity() noexcept {
    // Copies: device code may not address a static member.
    const detail::index_row<rank> extents_in_type{{Dims::static_extent...}};
    const detail::index_row<rank> strides_in_type{{Dims::static_stride...}};
    constexpr index_t unknown = -1;
    bool decided = true;
    index_t expected = 1;
    if (((Dims::static_extent == 0) || ...)) return contiguity::always;
    for (int i = rank - 1; i >= 0; --i) {
      const index_t e = extents_in_type[i];
      const index_t s = strides_in_type[i];
      if (e == 1) continue;
      if (expected == unknown || s == dynamic_stride) {
        decided = false;
      } else if (s != expected) {
        if (e != dynamic_extent) return contiguity::never;
        decided = false;
      }
      expected = expected == unknown || e == dynamic_extent ? unknown : expected * e;
    }
    return decided ? contiguity::always : contiguity::run_time;
  }
};

template <class... Dims>
layout(Dims...) -> layout<Dims...>;

namespace detail {

template <class... To, class... From>
  requires(sizeof...(To) == sizeof...(From))
inline constexpr bool says_no_more_than<layout<To...>, layout<From...>> =
    ((std::is_same_v<typename To::axis_type, typename From::axis_type> &&
      (To::static_extent == dynamic_extent || To::static_extent == From::static_extent) &&
      (To::static_stride == dynamic_stride || To::static_stride == From::static_stride)) &&
     ...);

/// The dim of a layout that counts Axis.
template <class Layout, class Axis>
using dim_type = std::remove_cvref_t<decltype(std::declval<const Layout&>().template get<Axis>())>;

}  // namespace detail

/// An axis with its size and no stride yet; packed() finds the strides.
template <axis_type Axis, index_t Extent = dynamic_extent>
struct extent : detail::extent_field<Axis, Extent> {
  static_assert(Extent >= 0 || Extent == dynamic_extent,
                "headwise: a static extent is not negative");
  using axis_type = Axis;
  static constexpr index_t static_extent = Extent;

  constexpr extent() requires(Extent != dynamic_extent) = default;
  HEADWISE_HD constexpr explicit extent(index_t count) noexcept
      : detail::extent_field<Axis, Extent>(count) {}

  HEADWISE_HD constexpr index_t count() const noexcept {
    return detail::extent_field<Axis, Extent>::extent();
  }
};

namespace detail {

/// The product of the static extents behind position `first`, or dynamic_stride where one of them
/// is not static.
template <int Count>
HEADWISE_HD constexpr index_t static_product_behind(const index_row<Count>& extents,
                                                    int first) noexcept {
  index_t product = 1;
  for (int i = first + 1; i < Count; ++i) {
    if (extents[i] == dynamic_extent) return dynamic_stride;
    product *= extents[i];
  }
  return product;
}

template <class Positions, class... Extents>
struct packed_layout;
template <int... Position, class... Extents>
struct packed_layout<std::integer_sequence<int, Position...>, Extents...> {
  static constexpr index_row<sizeof...(Position)> sizes{{Extents::static_extent...}};
  using type = layout<dim<typename Extents::axis_type, Extents::static_extent,
                          static_product_behind(sizes, Position)>...>;

  HEADWISE_HD static constexpr type make(Extents... extents) noexcept {
    const index_row<sizeof...(Position)> counts{{extents.count()...}};
    return type(dim<typename Extents::axis_type, Extents::static_extent,
                    static_product_behind(sizes, Position)>(
        counts[Position], static_product_behind(counts, Position))...);
  }
};

}  // namespace detail

/// The layout without gaps of these extents, outermost first. Strides are static where all extents
/// further in are.
///
///     packed(extent<axis::token>(batch), extent<axis::head, 32>(), extent<axis::head_dim, 512>())
template <axis_type... Axes, index_t... Extents>
HEADWISE_HD constexpr auto packed(extent<Axes, Extents>... extents) noexcept {
  return detail::packed_layout<std::make_integer_sequence<int, sizeof...(Axes)>,
                               extent<Axes, Extents>...>::make(extents...);
}

/// The type of packed(...).
template <class... Extents>
using packed_layout_t =
    typename detail::packed_layout<std::make_integer_sequence<int, sizeof...(Extents)>,
                                   Extents...>::type;

}  // namespace headwise::inline v0
