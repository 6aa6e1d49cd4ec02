// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/plan/copy_plan.hpp>

#include <support/guarded.hpp>

#include <algorithm>
#include <compare>
#include <vector>

// What a copy is, found by listing every element. Plans are compared with it.

namespace support {

/// Where an element goes, and where it comes from, in elements from the views' pointers.
struct move_of {
  index_t target;
  index_t source;
  friend auto operator<=>(const move_of&, const move_of&) = default;
};

inline std::vector<move_of> sorted_moves(const std::vector<index_t>& targets,
                                         const std::vector<index_t>& sources) {
  std::vector<move_of> moves;
  for (std::size_t i = 0; i < targets.size(); ++i) moves.push_back({targets[i], sources[i]});
  std::sort(moves.begin(), moves.end());
  return moves;
}

/// Every element, in the order of the target's addresses.
template <class Source, class T, class... Dims, headwise::memory_space Space>
std::vector<move_of> moves_of(const Source& source,
                              const headwise::view<T, headwise::layout<Dims...>, Space>& target) {
  const places of = places_of(target);
  return sorted_moves(
      offsets_of(of.extents, of.strides),
      offsets_of(of.extents, {source.template stride<typename Dims::axis_type>()...}));
}

/// What carrying out the steps moves, in the same order.
inline std::vector<move_of> moves_of(const headwise::copy_steps& steps) {
  std::vector<move_of> starts;
  if (!steps.empty) starts.push_back({0, 0});
  for (int i = 0; i < steps.outer; ++i) {
    std::vector<move_of> next;
    for (const move_of& start : starts) {
      for (index_t k = 0; k < steps.extents[i]; ++k) {
        next.push_back({start.target + k * steps.target_strides[i],
                        start.source + k * steps.source_strides[i]});
      }
    }
    starts = next;
  }
  std::vector<move_of> moves;
  for (const move_of& start : starts) {
    for (index_t k = 0; k < steps.run; ++k) moves.push_back({start.target + k, start.source + k});
  }
  std::sort(moves.begin(), moves.end());
  return moves;
}

/// The longest run into which all moves divide evenly, contiguous on both sides.
inline index_t longest_equal_run(const std::vector<move_of>& moves) {
  const auto count = static_cast<index_t>(moves.size());
  for (index_t run = count; run > 1; --run) {
    if (count % run != 0) continue;
    bool fits = true;
    for (index_t i = 0; fits && i < count; ++i) {
      const move_of& first = moves[static_cast<std::size_t>(i - i % run)];
      const move_of& here = moves[static_cast<std::size_t>(i)];
      fits = here.target == first.target + i % run && here.source == first.source + i % run;
    }
    if (fits) return run;
  }
  return 1;
}

inline headwise::copy_kind kind_of(const std::vector<move_of>& moves) {
  const index_t run = longest_equal_run(moves);
  if (run >= static_cast<index_t>(moves.size())) return headwise::copy_kind::contiguous;
  return run > 1 ? headwise::copy_kind::runs : headwise::copy_kind::strided;
}

/// The widest vector, up to 16 bytes, that every run of `run` elements can be moved by, with the
/// views' first elements at these addresses.
inline int widest_vector(const std::vector<move_of>& moves, index_t run, index_t element_bytes,
                         std::uintptr_t source, std::uintptr_t target) {
  index_t width = 16;
  const auto narrow = [&width](index_t bytes) {
    while (bytes % width != 0) width /= 2;
  };
  narrow(run * element_bytes);
  for (std::size_t i = 0; i < moves.size(); i += static_cast<std::size_t>(run)) {
    narrow(static_cast<index_t>(source) + moves[i].source * element_bytes);
    narrow(static_cast<index_t>(target) + moves[i].target * element_bytes);
  }
  return static_cast<int>(width);
}

}  // namespace support
