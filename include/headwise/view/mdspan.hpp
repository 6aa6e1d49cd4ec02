// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/view/view.hpp>

#include <concepts>

// Views from and to mdspan. Opt-in, and written against the interface that std::mdspan,
// Kokkos::mdspan and cuda::std::mdspan share, so that none of their headers is needed here.

namespace headwise::inline v0 {

/// An mdspan of plain elements behind a plain pointer. A scaling or atomic accessor is not one: a
/// view has no place for it.
template <class M>
concept mdspan_like = requires(const M& m) {
  typename M::extents_type;
  typename M::mapping_type;
  requires std::same_as<typename M::reference, typename M::element_type&>;
  requires std::same_as<typename M::data_handle_type, typename M::element_type*>;
  m.data_handle();
  { m.mapping() } -> std::convertible_to<typename M::mapping_type>;
  { M::is_always_strided() } -> std::convertible_to<bool>;
  M::rank();
};

namespace detail {

template <class M, int R>
constexpr index_t mdspan_extent() noexcept {
  constexpr auto extent = M::static_extent(static_cast<typename M::rank_type>(R));
  return extent == static_cast<decltype(extent)>(-1) ? dynamic_extent
                                                     : static_cast<index_t>(extent);
}

/// The stride at R of a packed mapping whose run-time extents are all `count`.
template <class M, int R, int... Dynamic>
constexpr index_t mdspan_probe([[maybe_unused]] int count,
                               std::integer_sequence<int, Dynamic...>) noexcept {
  using extents = typename M::extents_type;
  using mapping = typename M::mapping_type;
  const mapping probe(
      extents((static_cast<void>(Dynamic), static_cast<typename M::index_type>(count))...));
  return static_cast<index_t>(probe.stride(static_cast<typename M::rank_type>(R)));
}

/// A mapping that extents alone define and that leaves no gap (layout_right, layout_left) has
/// products of extents as its strides. Such a product is static exactly where it does not change
/// with the run-time extents; 1 and 0 tell, and cannot overflow.
template <class M, int R>
constexpr index_t mdspan_stride() noexcept {
  using mapping = typename M::mapping_type;
  if constexpr (std::is_constructible_v<mapping, typename M::extents_type>) {
    if constexpr (mapping::is_always_exhaustive() && mapping::is_always_strided()) {
      using dynamic = std::make_integer_sequence<int, static_cast<int>(M::rank_dynamic())>;
      constexpr index_t stride = mdspan_probe<M, R>(1, dynamic{});
      if constexpr (stride == mdspan_probe<M, R>(0, dynamic{})) return stride;
    }
  }
  return dynamic_stride;
}

template <memory_space Space, class M, class... Axes, int... R>
constexpr auto view_of_mdspan([[maybe_unused]] const M& from, axis_list<Axes...>,
                              std::integer_sequence<int, R...>) noexcept {
  using converted = layout<dim<Axes, mdspan_extent<M, R>(), mdspan_stride<M, R>()>...>;
  return view<typename M::element_type, converted, Space>(
      from.data_handle(),
      converted(dim<Axes, mdspan_extent<M, R>(), mdspan_stride<M, R>()>(
          static_cast<index_t>(from.extent(static_cast<typename M::rank_type>(R))),
          static_cast<index_t>(from.stride(static_cast<typename M::rank_type>(R))))...));
}

/// The largest value of an integer type, at most that of index_t.
template <class Integer>
constexpr index_t largest() noexcept {
  constexpr int bits = static_cast<int>(8 * sizeof(Integer)) - (std::is_signed_v<Integer> ? 1 : 0);
  return static_cast<index_t>(~std::uint64_t{0} >> (64 - (bits < 63 ? bits : 63)));
}

template <class M, int R, class Dim>
constexpr status mdspan_accepts(const Dim& from, const char* operand) noexcept {
  constexpr index_t wanted = mdspan_extent<M, R>();
  using axis = typename Dim::axis_type;
  static_assert(wanted == dynamic_extent || Dim::static_extent == dynamic_extent ||
                    wanted == Dim::static_extent,
                "headwise: a static extent of the mdspan is not the one of the view");
  if (wanted != dynamic_extent && from.extent() != wanted) {
    return failure(errc::shape_mismatch, operand, "the extent is not the static one of the mdspan",
                   from.extent(), wanted, axis::name);
  }
  constexpr index_t most = largest<typename M::index_type>();
  if (from.extent() > most || from.stride() > most) {
    return failure(errc::out_of_range, operand,
                   "an extent or a stride does not fit into the index type of the mdspan",
                   from.extent() > most ? from.extent() : from.stride(), most, axis::name);
  }
  return {};
}

/// Strides are given to a mapping that takes them, and compared with those of one that does not.
template <class M, class T, class... Dims, memory_space Space, int... R>
constexpr result<M> mdspan_of_view([[maybe_unused]] const view<T, layout<Dims...>, Space>& from,
                                   [[maybe_unused]] const char* operand,
                                   std::integer_sequence<int, R...>) noexcept {
  using mapping = typename M::mapping_type;
  using extents = typename M::extents_type;
  using index = typename M::index_type;
  const auto& parent = from.layout();
  status first{};
  static_cast<void>(
      ((first = mdspan_accepts<M, R>(static_cast<const Dims&>(parent), operand), first.ok()) &&
       ...));
  if (!first.ok()) return first;
  if (parent.span_size() > largest<index>()) {
    return failure(errc::out_of_range, operand,
                   "the span does not fit into the index type of the mdspan", parent.span_size(),
                   largest<index>());
  }
  const extents counts(static_cast<index>(static_cast<const Dims&>(parent).extent())...);
  const index_row<sizeof...(Dims)> sizes = parent.extents();
  const index_row<sizeof...(Dims)> strides = parent.strides();
  const char* const names[] = {Dims::axis_type::name..., ""};
  const bool empty = parent.empty();

  if constexpr (std::is_constructible_v<mapping, extents>) {
    const mapping packed(counts);
    index_t expected[sizeof...(Dims) + 1] = {
        static_cast<index_t>(packed.stride(static_cast<typename M::rank_type>(R)))..., 0};
    for (int i = 0; i < static_cast<int>(sizeof...(Dims)); ++i) {
      if (sizes[i] == 1 || empty || strides[i] == expected[i]) continue;
      return failure(errc::stride_mismatch, operand, "the stride is not the one of the mdspan",
                     strides[i], expected[i], names[i]);
    }
    return M(from.data(), packed);
  } else {
    decltype(std::declval<const mapping&>().strides()) given{};
    for (int i = 0; i < static_cast<int>(sizeof...(Dims)); ++i) {
      // Strides of an mdspan are positive, those that nobody uses too.
      const bool used = sizes[i] != 1 && !empty;
      if (used && strides[i] == 0) {
        return failure(errc::unsupported, operand, "an mdspan has no stride of 0", strides[i], 1,
                       names[i]);
      }
      given[static_cast<std::size_t>(i)] = static_cast<index>(strides[i] == 0 ? 1 : strides[i]);
    }
    return M(from.data(), mapping(counts, given));
  }
}

}  // namespace detail

/// The view of an mdspan's elements, one axis named per dimension, outermost first:
///
///     from_mdspan<axis::token, axis::head>(lse)
///     from_mdspan<memory_space::device, axis::token, axis::head>(lse)
///
/// Static extents stay static; so do the strides of layout_right and layout_left that the static
/// extents decide. (layout_stride keeps its strides as run-time values: refine() them.)
/// Precondition: the mdspan is one that validate() accepts as a view.
template <memory_space Space, axis_type... Axes, mdspan_like M>
constexpr auto from_mdspan(const M& from) noexcept {
  static_assert(M::is_always_strided(), "headwise: a view needs an mdspan with strides");
  static_assert(M::rank() == sizeof...(Axes), "headwise: from_mdspan names one axis per dimension");
  if constexpr (M::rank() == sizeof...(Axes)) {
    return detail::view_of_mdspan<Space>(
        from, detail::axis_list<Axes...>{},
        std::make_integer_sequence<int, static_cast<int>(sizeof...(Axes))>{});
  }
}
template <axis_type... Axes, mdspan_like M>
constexpr auto from_mdspan(const M& from) noexcept {
  return from_mdspan<memory_space::host, Axes...>(from);
}

/// The view as an mdspan of the type M, dims in the order of the axes; axis names get lost.
/// Errors: shape_mismatch (a static extent of M), stride_mismatch (M's mapping has other strides),
/// out_of_range (M's index type is too narrow), unsupported (a broadcast stride of 0).
/// Precondition: no two elements share memory, as mdspan has it.
template <mdspan_like M, class T, class Layout, memory_space Space>
constexpr result<M> to_mdspan(const view<T, Layout, Space>& from,
                              const char* operand = "view") noexcept {
  static_assert(M::rank() == Layout::rank, "headwise: the mdspan has another number of dimensions");
  static_assert(std::is_convertible_v<T(*)[1], typename M::element_type(*)[1]>,
                "headwise: the mdspan has another element type");
  return detail::mdspan_of_view<M>(
      from, operand, std::make_integer_sequence<int, static_cast<int>(Layout::rank)>{});
}

}  // namespace headwise::inline v0
