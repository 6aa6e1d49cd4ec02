// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/view/view.hpp>

// How the elements of one view get into another: decided once, from the types where they say enough,
// from the values otherwise. Nothing here touches memory.

namespace headwise::inline v0 {

/// From worst to best; a better kind is also a correct instance of every worse one.
enum class copy_kind : std::uint8_t {
  strided,     ///< element by element
  runs,        ///< equal runs, contiguous on both sides
  contiguous,  ///< one run: a single transfer
};

constexpr const char* to_string(copy_kind kind) noexcept {
  switch (kind) {
    case copy_kind::strided: return "strided";
    case copy_kind::runs: return "runs";
    case copy_kind::contiguous: return "contiguous";
  }
  return "unknown";
}

/// More dims than any operand has.
inline constexpr int max_copy_rank = 8;

/// A copy after coalescing: `outer` dims around runs of `run` elements, all numbers in elements.
/// A strided copy has runs of 1. In the facts of a type, unknown numbers are dynamic_extent.
struct copy_steps {
  copy_kind kind = copy_kind::contiguous;
  int outer = 0;
  index_t run = 1;
  index_t extents[max_copy_rank] = {};
  index_t source_strides[max_copy_rank] = {};
  index_t target_strides[max_copy_rank] = {};
  int vector_bytes = 1;  ///< widest power of two up to 16 that divides every run and stride
  bool empty = false;    ///< no element to copy

  /// Number of runs. Precondition: all extents are known.
  HEADWISE_HD constexpr index_t run_count() const noexcept {
    index_t count = empty ? 0 : 1;
    for (int i = 0; i < outer; ++i) count *= extents[i];
    return count;
  }
};

namespace detail {

inline constexpr index_t unknown = -1;

struct copy_dim {
  index_t extent;
  index_t source;
  index_t target;
};

/// outer * inner as one dim, or not. Unknown numbers prove nothing.
HEADWISE_HD constexpr bool may_merge(const copy_dim& outer, const copy_dim& inner) noexcept {
  return inner.extent != unknown && outer.source != unknown && outer.target != unknown &&
         inner.source != unknown && inner.target != unknown &&
         outer.source == inner.extent * inner.source && outer.target == inner.extent * inner.target;
}

/// The largest power of two up to 16 that divides all of `bytes` and of the numbers added later.
struct vector_width {
  std::uint64_t bits = 16;
  HEADWISE_HD constexpr void divides(index_t bytes) noexcept {
    bits |= static_cast<std::uint64_t>(bytes);
  }
  HEADWISE_HD constexpr int width() const noexcept { return static_cast<int>(bits & (~bits + 1)); }
};

/// The one coalescing algorithm, for types (with unknown numbers) and for values (without).
/// `dims` are outermost first and are consumed.
HEADWISE_HD constexpr copy_steps coalesce(copy_dim* dims, int count,
                                          index_t element_bytes) noexcept {
  copy_steps steps{};
  int kept = 0;
  bool ordered = true;
  for (int i = 0; i < count; ++i) {
    if (dims[i].extent == 0) steps.empty = true;
    if (dims[i].extent == 1) continue;
    dims[kept++] = dims[i];
    if (dims[i].target == unknown) ordered = false;
  }
  if (steps.empty) return steps;
  // Writing in the order of addresses lets equal permutations of both sides coalesce. A type that
  // leaves a stride open keeps its order: whichever dim is contiguous then still is in the value.
  if (ordered) {
    for (int i = 1; i < kept; ++i) {
      for (int j = i; j > 0 && dims[j - 1].target < dims[j].target; --j) {
        const copy_dim swapped = dims[j];
        dims[j] = dims[j - 1];
        dims[j - 1] = swapped;
      }
    }
  }
  int merged = 0;
  for (int i = 0; i < kept; ++i) {
    if (merged > 0 && may_merge(dims[merged - 1], dims[i])) {
      const index_t around = dims[merged - 1].extent;
      dims[merged - 1] = {around == unknown ? unknown : around * dims[i].extent, dims[i].source,
                          dims[i].target};
    } else {
      dims[merged++] = dims[i];
    }
  }
  steps.outer = merged;
  if (merged > 0 && dims[merged - 1].source == 1 && dims[merged - 1].target == 1) {
    steps.run = dims[merged - 1].extent;
    steps.outer = merged - 1;
    steps.kind = steps.outer == 0 ? copy_kind::contiguous : copy_kind::runs;
  } else if (merged > 0) {
    steps.kind = copy_kind::strided;
  }
  vector_width vector;
  vector.divides(steps.run == unknown ? element_bytes : steps.run * element_bytes);
  for (int i = 0; i < steps.outer; ++i) {
    steps.extents[i] = dims[i].extent;
    steps.source_strides[i] = dims[i].source;
    steps.target_strides[i] = dims[i].target;
    const bool open = dims[i].source == unknown || dims[i].target == unknown;
    vector.divides(open ? element_bytes : dims[i].source * element_bytes);
    vector.divides(open ? element_bytes : dims[i].target * element_bytes);
  }
  steps.vector_bytes = vector.width();
  return steps;
}

template <class Source, class... Dims>
HEADWISE_HD constexpr copy_steps static_steps(std::type_identity<layout<Dims...>>,
                                              index_t element_bytes) noexcept {
  copy_dim dims[max_copy_rank] = {};
  int count = 0;
  ((dims[count++] =
        {Dims::static_extent != dynamic_extent
             ? Dims::static_extent
             : std::remove_cvref_t<decltype(Source{}.template get<
                                            typename Dims::axis_type>())>::static_extent,
         std::remove_cvref_t<
             decltype(Source{}.template get<typename Dims::axis_type>())>::static_stride,
         Dims::static_stride}),
   ...);
  return coalesce(dims, count, element_bytes);
}

template <class Source, class Target>
inline constexpr bool same_axes = false;
template <class Source, class... Dims>
inline constexpr bool same_axes<Source, layout<Dims...>> =
    Source::rank == sizeof...(Dims) &&
    (Source::template has_axis<typename Dims::axis_type> && ...);

/// Same size and same meaning: a copy moves bits and never converts.
template <class Source, class Target>
inline constexpr bool same_bits =
    sizeof(Source) == sizeof(Target) && element_kind_of<Source> == element_kind_of<Target>;

}  // namespace detail

/// What the two types promise about copying Source into Target (the axes may stand in another
/// order), for views that are not empty:
///
///     static_assert(copy_plan<heads_22_of_32, packed_22>::kind == copy_kind::runs);
///
/// The value may turn out better (22 of 32 heads of a single token are one run), never worse: what
/// is `runs` here is copied correctly run by run, be it runs of one element.
template <view_type Source, view_type Target>
struct copy_plan {
  static_assert(detail::same_axes<typename Source::layout_type, typename Target::layout_type>,
                "headwise: a copy needs the same axes on both sides");
  static_assert(detail::same_bits<typename Source::value_type, typename Target::value_type>,
                "headwise: a copy moves bits and does not convert between element types");
  static_assert(Target::rank <= max_copy_rank, "headwise: more dims than a copy can have");

  static constexpr copy_steps steps = detail::static_steps<typename Source::layout_type>(
      std::type_identity<typename Target::layout_type>{}, sizeof(typename Target::value_type));
  static constexpr copy_kind kind = steps.kind;
  /// Holds for pointers that are aligned to it.
  static constexpr int vector_bytes = steps.vector_bytes;
};

/// The plan of two values, pointer alignment included. Precondition: check_copy().
template <class T, class U, class From, class... Dims, memory_space A, memory_space B>
HEADWISE_HD copy_steps plan_copy(const view<T, From, A>& source,
                                 const view<U, layout<Dims...>, B>& target) noexcept {
  detail::copy_dim dims[max_copy_rank] = {};
  int count = 0;
  ((dims[count++] = {target.template extent<typename Dims::axis_type>(),
                     source.template stride<typename Dims::axis_type>(),
                     target.template stride<typename Dims::axis_type>()}),
   ...);
  copy_steps steps = detail::coalesce(dims, count, sizeof(U));
  detail::vector_width vector;
  vector.divides(steps.vector_bytes);
  vector.bits |= reinterpret_cast<std::uintptr_t>(source.data());
  vector.bits |= reinterpret_cast<std::uintptr_t>(target.data());
  steps.vector_bytes = vector.width();
  return steps;
}

namespace detail {

/// True where no two elements of the layout share memory: by size of stride, each dim steps over all
/// that the smaller ones cover. (A sufficient test; interleaved layouts that fail it are refused.)
template <class Layout>
constexpr bool covers_without_overlap(const Layout& which) noexcept {
  if (which.size() == 0) return true;
  auto extents = which.extents();
  auto strides = which.strides();
  for (int i = 1; i < Layout::rank; ++i) {
    for (int j = i; j > 0 && strides[j - 1] > strides[j]; --j) {
      const index_t stride = strides[j];
      const index_t extent = extents[j];
      strides[j] = strides[j - 1];
      extents[j] = extents[j - 1];
      strides[j - 1] = stride;
      extents[j - 1] = extent;
    }
  }
  index_t covered = 1;
  for (int i = 0; i < Layout::rank; ++i) {
    if (extents[i] == 1) continue;
    if (strides[i] < covered) return false;
    covered += (extents[i] - 1) * strides[i];
  }
  return true;
}

}  // namespace detail

/// Refuses a target whose elements share memory. Errors: overlap.
template <class T, class Layout, memory_space Space>
constexpr status validate_target(const char* operand,
                                 const view<T, Layout, Space>& target) noexcept {
  static_assert(!std::is_const_v<T>, "headwise: a target is written to, its elements are not const");
  const status well_formed = validate(operand, target);
  if (!well_formed.ok()) return well_formed;
  if (!detail::covers_without_overlap(target.layout())) {
    return failure(errc::overlap, operand, "two elements of a target share memory",
                   target.span_size(), target.size());
  }
  return {};
}

namespace detail {

template <class... Dims, class T, class U, class From, class To, memory_space A, memory_space B>
constexpr status same_extents(std::type_identity<layout<Dims...>>, const char* source_name,
                              const view<T, From, A>& source,
                              const view<U, To, B>& target) noexcept {
  status first{};
  const auto check = [&]<class Axis>(std::type_identity<Axis>) {
    const index_t got = source.template extent<Axis>();
    const index_t expected = target.template extent<Axis>();
    if (got == expected) return true;
    first = failure(errc::shape_mismatch, source_name, "source and target differ", got, expected,
                    Axis::name);
    return false;
  };
  static_cast<void>((check(std::type_identity<typename Dims::axis_type>{}) && ...));
  return first;
}

}  // namespace detail

/// Whether `source` can be copied into `target`. Errors: those of validate(), overlap,
/// shape_mismatch with the axis and both extents.
template <class T, class U, class From, class To, memory_space A, memory_space B>
constexpr status check_copy(const char* source_name, const view<T, From, A>& source,
                            const char* target_name, const view<U, To, B>& target) noexcept {
  static_assert(detail::same_axes<From, To>, "headwise: a copy needs the same axes on both sides");
  const status source_ok = validate(source_name, source);
  if (!source_ok.ok()) return source_ok;
  const status target_ok = validate_target(target_name, target);
  if (!target_ok.ok()) return target_ok;
  return detail::same_extents(std::type_identity<To>{}, source_name, source, target);
}

}  // namespace headwise::inline v0
