// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <cstring>

#include <headwise/plan/copy_plan.hpp>

namespace headwise::inline v0 {

namespace detail {

/// The source's strides in the order of the target's dims.
template <class Source, class... Dims>
consteval auto source_strides_of(std::type_identity<layout<Dims...>>) noexcept {
  return index_row<sizeof...(Dims)>{{std::remove_cvref_t<
      decltype(Source{}.template get<typename Dims::axis_type>())>::static_stride...}};
}

/// Strides that the types know: one loop per dim, and a single transfer from the first dim on whose
/// elements, to the end, are one run on both sides.
template <class Source, class Target>
struct static_copy {
  static constexpr int rank = Target::rank;
  static constexpr auto source_strides =
      source_strides_of<typename Source::layout_type>(std::type_identity<typename Target::layout_type>{});
  static constexpr auto target_strides = Target::layout_type::static_strides;
  static constexpr auto extents = Target::layout_type::static_extents;

  static constexpr bool strides_known = [] {
    for (int i = 0; i < rank; ++i) {
      if (source_strides[i] == dynamic_stride || target_strides[i] == dynamic_stride) return false;
    }
    return true;
  }();

  /// Elements of the one run that the dims from `first` on make up, or 0 if they do not.
  static constexpr index_t run_from(int first) noexcept {
    index_t run = 1;
    for (int i = rank - 1; i >= first; --i) {
      if (extents[i] == 1) continue;
      if (extents[i] == dynamic_extent || source_strides[i] != run || target_strides[i] != run) {
        return 0;
      }
      run *= extents[i];
    }
    return run;
  }

  template <int I>
  static void copy(const void* source, void* target,
                   const index_row<rank>& counts) noexcept {
    constexpr index_t bytes = sizeof(typename Target::value_type);
    constexpr index_t run = run_from(I);
    if constexpr (run != 0) {
      std::memcpy(target, source, static_cast<std::size_t>(run * bytes));
    } else {
      const auto* from = static_cast<const std::byte*>(source);
      auto* to = static_cast<std::byte*>(target);
      for (index_t i = 0; i < counts[I]; ++i) {
        copy<I + 1>(from + i * source_strides[I] * bytes, to + i * target_strides[I] * bytes, counts);
      }
    }
  }
};

/// Runs of a plan, outermost dim first.
inline void copy_runs(const copy_steps& steps, int level, const std::byte* source,
                      std::byte* target, index_t bytes) noexcept {
  if (level == steps.outer) {
    std::memcpy(target, source, static_cast<std::size_t>(steps.run * bytes));
    return;
  }
  for (index_t i = 0; i < steps.extents[level]; ++i) {
    copy_runs(steps, level + 1, source + i * steps.source_strides[level] * bytes,
              target + i * steps.target_strides[level] * bytes, bytes);
  }
}

}  // namespace detail

namespace reference {

/// Copies every element of `source` to the same indices of `target`, bit for bit; the axes may stand
/// in another order. Usually `target` is packed, and then this is what others call contiguous().
/// Gaps of `target` are left alone. The memory of the two does not overlap.
/// Errors: those of check_copy(); then nothing is written.
template <class T, class U, class From, class To, memory_space A, memory_space B>
status materialize(const view<T, From, A>& source, const view<U, To, B>& target) noexcept {
  static_assert(host_accessible(A) && host_accessible(B),
                "headwise: the host reference copies between views of host memory");
  using source_view = view<T, From, A>;
  using target_view = view<U, To, B>;
  using plan = copy_plan<source_view, target_view>;
  const status can = check_copy("source", source, "target", target);
  if (!can.ok() || target.size() == 0) return can;
  if constexpr (plan::kind == copy_kind::contiguous) {
    std::memcpy(target.data(), source.data(), static_cast<std::size_t>(target.size()) * sizeof(U));
  } else if constexpr (detail::static_copy<source_view, target_view>::strides_known) {
    detail::static_copy<source_view, target_view>::template copy<0>(source.data(), target.data(),
                                                                    target.layout().extents());
  } else {
    detail::copy_runs(plan_copy(source, target), 0,
                      reinterpret_cast<const std::byte*>(source.data()),
                      reinterpret_cast<std::byte*>(target.data()), sizeof(U));
  }
  return {};
}

}  // namespace reference

}  // namespace headwise::inline v0
