// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/view/view.hpp>

#include <type_traits>

// How the elements of one view get into another: decided once, from the types where they say
// enough, from the values otherwise. Nothing here touches memory.

namespace headwise::inline v0 {

/// From worst to best; a better kind may be carried out as any worse one.
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

/// A copy after coalescing: `outer` dims, in the order of the target's addresses, around runs of
/// `run` elements. All numbers count elements. In the promise of a type, extents that only the
/// values know are dynamic_extent, and strides dynamic_stride.
struct copy_steps {
  copy_kind kind = copy_kind::contiguous;
  int outer = 0;
  index_t run = 1;
  index_t extents[max_copy_rank] = {};
  index_t source_strides[max_copy_rank] = {};
  index_t target_strides[max_copy_rank] = {};
  int vector_bytes = 16;  ///< widest power of two up to 16 that divides every run and stride
  bool empty = false;     ///< no element to copy

  /// Number of runs. Precondition: all extents are known.
  HEADWISE_HD constexpr index_t run_count() const noexcept {
    index_t count = empty ? 0 : 1;
    for (int i = 0; i < outer; ++i) count *= extents[i];
    return count;
  }
};

namespace detail {

/// What a type leaves open: dynamic_extent and dynamic_stride are the same number.
inline constexpr index_t unknown = -1;
static_assert(dynamic_extent == unknown && dynamic_stride == unknown);

/// Without a sign, because the extent of a valid view times its stride may be one stride more than
/// what 63 bits hold.
HEADWISE_HD constexpr std::uint64_t product(index_t a, index_t b) noexcept {
  return static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b);
}

struct copy_dim {
  index_t extent = 1;
  index_t source = 0;
  index_t target = 0;
  std::uint64_t divisor = 1;  ///< divides the extent; the extent itself where that is known
};

HEADWISE_HD constexpr copy_dim make_copy_dim(index_t extent, index_t source,
                                             index_t target) noexcept {
  return {extent, source, target, extent == unknown ? 1 : static_cast<std::uint64_t>(extent)};
}

/// Whether `outer` goes on where `inner` ends, on both sides. Unknown numbers prove nothing.
HEADWISE_HD constexpr bool may_merge(const copy_dim& outer, const copy_dim& inner) noexcept {
  return inner.extent != unknown && outer.source != unknown && outer.target != unknown &&
         inner.source != unknown && inner.target != unknown &&
         static_cast<std::uint64_t>(outer.source) == product(inner.extent, inner.source) &&
         static_cast<std::uint64_t>(outer.target) == product(inner.extent, inner.target);
}

HEADWISE_HD constexpr copy_dim merge(const copy_dim& outer, const copy_dim& inner) noexcept {
  copy_dim both = inner;
  both.extent =
      outer.extent == unknown ? unknown : static_cast<index_t>(product(outer.extent, inner.extent));
  both.divisor = outer.divisor * inner.divisor;
  return both;
}

/// The largest power of two up to 16 that divides all the numbers of bytes it was told of.
struct vector_width {
  std::uint64_t bits = 16;
  HEADWISE_HD constexpr void divides(std::uint64_t bytes) noexcept { bits |= bytes; }
  HEADWISE_HD constexpr int width() const noexcept { return static_cast<int>(bits & (~bits + 1)); }
};

HEADWISE_HD constexpr std::uint64_t stride_bytes(index_t stride, std::uint64_t element) noexcept {
  return stride == unknown ? element : static_cast<std::uint64_t>(stride) * element;
}

/// By target stride, the largest first.
HEADWISE_HD constexpr void sort_by_target(copy_dim* dims, int count) noexcept {
  for (int i = 1; i < count; ++i) {
    for (int j = i; j > 0 && dims[j - 1].target < dims[j].target; --j) {
      const copy_dim swapped = dims[j];
      dims[j] = dims[j - 1];
      dims[j - 1] = swapped;
    }
  }
}

/// The one coalescing algorithm, for types (with unknown numbers) and for values (without). `dims`
/// are outermost first and are consumed.
HEADWISE_HD constexpr copy_steps coalesce(copy_dim* dims, int count,
                                          index_t element_bytes) noexcept {
  copy_steps steps{};
  int kept = 0;
  bool order_known = true;
  for (int i = 0; i < count; ++i) {
    if (dims[i].extent == 0) steps.empty = true;
    if (dims[i].extent == 1) continue;
    dims[kept++] = dims[i];
    if (dims[i].target == unknown) order_known = false;
  }
  if (steps.empty) return steps;
  // In the order of addresses equal permutations of both sides coalesce. Where a type leaves a
  // stride open the order of its dims stays, and what it proves still holds: a dim of stride 1 is
  // the innermost one of every value, and between two dims that continue each other no third fits,
  // or elements of the target would share memory.
  if (order_known) sort_by_target(dims, kept);
  int merged = 0;
  for (int i = 0; i < kept; ++i) {
    if (merged > 0 && may_merge(dims[merged - 1], dims[i])) {
      dims[merged - 1] = merge(dims[merged - 1], dims[i]);
    } else {
      dims[merged++] = dims[i];
    }
  }

  const auto bytes = static_cast<std::uint64_t>(element_bytes);
  vector_width vector;
  steps.outer = merged;
  if (merged == 0) {
    vector.divides(bytes);
  } else if (dims[merged - 1].source == 1 && dims[merged - 1].target == 1) {
    const copy_dim& run = dims[merged - 1];
    steps.run = run.extent;
    steps.outer = merged - 1;
    steps.kind = steps.outer == 0 ? copy_kind::contiguous : copy_kind::runs;
    vector.divides(run.divisor * bytes);
  } else {
    steps.kind = copy_kind::strided;
    vector.divides(bytes);
  }
  for (int i = 0; i < steps.outer; ++i) {
    steps.extents[i] = dims[i].extent;
    steps.source_strides[i] = dims[i].source;
    steps.target_strides[i] = dims[i].target;
    vector.divides(stride_bytes(dims[i].source, bytes));
    vector.divides(stride_bytes(dims[i].target, bytes));
  }
  steps.vector_bytes = vector.width();
  return steps;
}

template <class Source, class... Dims>
HEADWISE_HD constexpr copy_steps static_steps(std::type_identity<layout<Dims...>>,
                                              index_t element_bytes) noexcept {
  copy_dim dims[max_copy_rank] = {};
  int count = 0;
  // An extent that one of the two types knows is the extent of both.
  ((dims[count++] = make_copy_dim(Dims::static_extent != dynamic_extent
                                      ? Dims::static_extent
                                      : dim_type<Source, typename Dims::axis_type>::static_extent,
                                  dim_type<Source, typename Dims::axis_type>::static_stride,
                                  Dims::static_stride)),
   ...);
  return coalesce(dims, count, element_bytes);
}

template <class Source, class Target>
inline constexpr bool same_axes = false;
template <class Source, class... Dims>
inline constexpr bool same_axes<Source, layout<Dims...>> =
    Source::rank == sizeof...(Dims) && (Source::template has_axis<typename Dims::axis_type> && ...);

/// False where the types alone show that two layouts differ in the extent of this axis.
template <class Axis, class One, class Other>
inline constexpr bool extent_may_agree =
    dim_type<One, Axis>::static_extent == dynamic_extent ||
    dim_type<Other, Axis>::static_extent == dynamic_extent ||
    dim_type<One, Axis>::static_extent == dim_type<Other, Axis>::static_extent;

template <class Source, class Target, bool SameAxes = same_axes<Source, Target>>
inline constexpr bool extents_may_agree = true;  // not asked of layouts over different axes
template <class Source, class... Dims>
inline constexpr bool extents_may_agree<Source, layout<Dims...>, true> =
    (extent_may_agree<typename Dims::axis_type, Source, layout<Dims...>> && ...);

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
/// plan_copy() of two such values is never worse, and may be better: 22 of 32 heads of a single
/// token are one run.
template <view_type Source, view_type Target>
struct copy_plan {
  static_assert(detail::same_axes<typename Source::layout_type, typename Target::layout_type>,
                "headwise: a copy needs the same axes on both sides");
  static_assert(
      detail::extents_may_agree<typename Source::layout_type, typename Target::layout_type>,
      "headwise: a copy needs the same extents on both sides");
  static_assert(detail::same_bits<typename Source::value_type, typename Target::value_type>,
                "headwise: a copy moves bits and does not convert between element types");
  static_assert(std::is_trivially_copyable_v<typename Source::value_type> &&
                    std::is_trivially_copyable_v<typename Target::value_type>,
                "headwise: a copy moves bits, so its elements are trivially copyable");
  static_assert(Target::rank <= max_copy_rank, "headwise: more dims than a copy can have");

  static constexpr copy_steps steps = detail::static_steps<typename Source::layout_type>(
      std::type_identity<typename Target::layout_type>{}, sizeof(typename Target::value_type));
  static constexpr copy_kind kind = steps.kind;
  /// Holds for pointers that are aligned to it.
  static constexpr int vector_bytes = steps.vector_bytes;
};

/// The plan of two values, pointer alignment included. A kind that the types promise is kept: where
/// they say `runs`, the value says so of runs of one element too. Precondition: check_copy().
template <class T, class Other, class From, class... Dims, memory_space SpaceA, memory_space SpaceB>
HEADWISE_HD copy_steps plan_copy(const view<T, From, SpaceA>& source,
                                 const view<Other, layout<Dims...>, SpaceB>& target) noexcept {
  constexpr copy_kind promised =
      copy_plan<view<T, From, SpaceA>, view<Other, layout<Dims...>, SpaceB>>::kind;
  detail::copy_dim dims[max_copy_rank] = {};
  int count = 0;
  ((dims[count++] = detail::make_copy_dim(target.template extent<typename Dims::axis_type>(),
                                          source.template stride<typename Dims::axis_type>(),
                                          target.template stride<typename Dims::axis_type>())),
   ...);
  copy_steps steps = detail::coalesce(dims, count, sizeof(Other));
  steps.kind = detail::greater(steps.kind, promised);
  detail::vector_width vector;
  vector.divides(static_cast<std::uint64_t>(steps.vector_bytes));
  vector.divides(reinterpret_cast<std::uintptr_t>(source.data()));
  vector.divides(reinterpret_cast<std::uintptr_t>(target.data()));
  steps.vector_bytes = vector.width();
  return steps;
}

/// Refuses a target whose elements share memory: taken by size of stride, each dim steps over all
/// that the smaller ones cover. (Dims that interleave without sharing are refused too.)
/// Errors: those of validate(); overlap, with the axis, its stride, and the least that it can be.
template <class T, class... Dims, memory_space Space>
constexpr status validate_target(const char* operand,
                                 const view<T, layout<Dims...>, Space>& target) noexcept {
  static_assert(!std::is_const_v<T>,
                "headwise: a target is written to, its elements are not const");
  const status well_formed = validate(operand, target);
  if (!well_formed.ok() || target.empty()) return well_formed;
  const auto extents = target.layout().extents();
  const auto strides = target.layout().strides();
  const char* const names[] = {Dims::axis_type::name..., ""};
  int order[sizeof...(Dims) + 1] = {};
  for (int i = 0; i < target.rank; ++i) {
    int j = i;
    for (; j > 0 && strides[order[j - 1]] > strides[i]; --j) order[j] = order[j - 1];
    order[j] = i;
  }
  index_t covered = 1;
  for (int i = 0; i < target.rank; ++i) {
    const int which = order[i];
    if (extents[which] == 1) continue;
    if (strides[which] < covered) {
      return failure(
          errc::overlap, operand,
          "elements of a target share memory or interleave; expected is the least stride",
          strides[which], covered, names[which]);
    }
    covered += (extents[which] - 1) * strides[which];
  }
  return {};
}

namespace detail {

/// Errors: shape_mismatch, with the axis and both extents.
template <class... Dims, class T, class From, memory_space SpaceA>
constexpr status same_extents(const char* operand, const view<T, From, SpaceA>& what,
                              const char* message, const layout<Dims...>& expected) noexcept {
  static_assert(extents_may_agree<From, layout<Dims...>>,
                "headwise: two operands of one call differ in a static extent");
  const index_t got[] = {what.template extent<typename Dims::axis_type>()..., 0};
  const auto wanted = expected.extents();
  const char* const names[] = {Dims::axis_type::name..., ""};
  for (int i = 0; i < static_cast<int>(sizeof...(Dims)); ++i) {
    if (got[i] == wanted[i]) continue;
    return failure(errc::shape_mismatch, operand, message, got[i], wanted[i], names[i]);
  }
  return {};
}

}  // namespace detail

/// Whether `source` can be copied into `target`. Errors: those of validate(), overlap,
/// shape_mismatch with the axis and both extents.
template <class T, class Other, class From, class To, memory_space SpaceA, memory_space SpaceB>
constexpr status check_copy(const char* source_name, const view<T, From, SpaceA>& source,
                            const char* target_name,
                            const view<Other, To, SpaceB>& target) noexcept {
  static_assert(detail::same_axes<From, To>, "headwise: a copy needs the same axes on both sides");
  const status source_ok = validate(source_name, source);
  if (!source_ok.ok()) return source_ok;
  const status target_ok = validate_target(target_name, target);
  if (!target_ok.ok()) return target_ok;
  return detail::same_extents(source_name, source, "must have the extent of the target",
                              target.layout());
}

}  // namespace headwise::inline v0
