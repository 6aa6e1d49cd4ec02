// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/plan/copy_plan.hpp>

#include <cstring>

namespace headwise::inline v0 {

namespace detail {

/// A copy whose loops the types know, all but the outermost one's length: a loop per dim, in the
/// order of the target's addresses, down to the run that the innermost dims make up.
template <class Source, class Target>
struct static_copy;
template <class Source, class Other, class... Dims, memory_space Space>
struct static_copy<Source, view<Other, layout<Dims...>, Space>> {
  static constexpr int rank = static_cast<int>(sizeof...(Dims));
  using numbers = index_row<rank>;
  static constexpr numbers sources{
      {dim_type<typename Source::layout_type, typename Dims::axis_type>::static_stride...}};
  static constexpr numbers targets{{Dims::static_stride...}};
  static constexpr numbers extents{{Dims::static_extent...}};

  static constexpr numbers order = [] {
    numbers by_target;
    for (int i = 0; i < rank; ++i) {
      int j = i;
      for (; j > 0 && targets[static_cast<int>(by_target[j - 1])] < targets[i]; --j) {
        by_target[j] = by_target[j - 1];
      }
      by_target[j] = i;
    }
    return by_target;
  }();

  static constexpr bool possible = [] {
    for (int i = 0; i < rank; ++i) {
      const int which = static_cast<int>(order[i]);
      if (sources[which] == dynamic_stride || targets[which] == dynamic_stride) return false;
      if (i > 0 && extents[which] == dynamic_extent) return false;
    }
    return true;
  }();

  /// Elements of the one run that the dims from loop `first` on make up, or 0 if they do not.
  static constexpr index_t run_from(int first) noexcept {
    index_t run = 1;
    for (int i = rank - 1; i >= first; --i) {
      const int which = static_cast<int>(order[i]);
      if (extents[which] == 1) continue;
      if (extents[which] == dynamic_extent || sources[which] != run || targets[which] != run) {
        return 0;
      }
      run *= extents[which];
    }
    return run;
  }

  template <int Loop = 0>
  static void copy(const std::byte* source, std::byte* target, const numbers& counts) noexcept {
    constexpr index_t bytes = sizeof(Other);
    constexpr index_t run = run_from(Loop);
    if constexpr (run != 0) {
      std::memcpy(target, source, static_cast<std::size_t>(run * bytes));
    } else {
      constexpr int which = static_cast<int>(order[Loop]);
      for (index_t i = 0; i < counts[which]; ++i) {
        copy<Loop + 1>(source + i * (sources[which] * bytes), target + i * (targets[which] * bytes),
                       counts);
      }
    }
  }
};

/// The runs of a plan, outermost dim first.
template <index_t Bytes>
void copy_runs(const copy_steps& steps, int level, const std::byte* source,
               std::byte* target) noexcept {
  if (level < steps.outer) {
    for (index_t i = 0; i < steps.extents[level]; ++i) {
      copy_runs<Bytes>(steps, level + 1, source + i * steps.source_strides[level] * Bytes,
                       target + i * steps.target_strides[level] * Bytes);
    }
  } else if (steps.run == 1) {
    std::memcpy(target, source, static_cast<std::size_t>(Bytes));
  } else {
    std::memcpy(target, source, static_cast<std::size_t>(steps.run * Bytes));
  }
}

/// reference::materialize() of operands that have been checked.
template <class Source, class Target>
void copy_elements(const Source& source, const Target& target) noexcept {
  static_assert(host_accessible(Source::space) && host_accessible(Target::space),
                "headwise: the host reference copies between views of host memory");
  using loops = static_copy<Source, Target>;
  constexpr index_t bytes = sizeof(typename Target::value_type);
  if (target.empty()) return;
  const auto* const from = reinterpret_cast<const std::byte*>(source.data());
  auto* const to = reinterpret_cast<std::byte*>(target.data());
  if constexpr (copy_plan<Source, Target>::kind == copy_kind::contiguous) {
    std::memcpy(to, from, static_cast<std::size_t>(target.size() * bytes));
  } else if constexpr (loops::possible) {
    loops::copy(from, to, target.layout().extents());
  } else {
    copy_runs<bytes>(plan_copy(source, target), 0, from, to);
  }
}

}  // namespace detail

namespace reference {

/// Copies every element of `source` to the same indices of `target`, bit for bit; the axes may
/// stand in another order. Usually `target` is packed, and then this is what others call
/// contiguous(). Gaps of `target` are left alone. Precondition: the two share no memory.
/// Errors: those of check_copy(); then nothing is written.
template <class T, class Other, class From, class To, memory_space SpaceA, memory_space SpaceB>
status materialize(const view<T, From, SpaceA>& source,
                   const view<Other, To, SpaceB>& target) noexcept {
  const status can = check_copy("source", source, "target", target);
  if (can.ok()) detail::copy_elements(source, target);
  return can;
}

}  // namespace reference

}  // namespace headwise::inline v0
