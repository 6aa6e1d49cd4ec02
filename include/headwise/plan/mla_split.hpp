// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>
#include <headwise/plan/capacity.hpp>

// How the keys of a decode step are shared out over the blocks of a grid. The tiles of all
// sequences stand in one row, and every group of blocks takes as many of them, one behind the
// other: a sequence may begin in one group and end in another, and then its parts are merged.
// Nothing here depends on memory, so that each block works out its share for itself.
//
//   sequences   |0 0 0 0 0|1|2 2 2 2 2 2|     tiles
//   groups      |0 0 0 0|1 1 1 1|2 2 2 2|     3 groups: sequence 0 has two parts, 2 has two

namespace headwise::inline v0 {

namespace detail {

/// a * b / c for numbers that are not negative; in 32 bits where the product fits, which is several
/// times as fast on a GPU. Precondition: the product fits in 63 bits.
HEADWISE_HD constexpr index_t scale_down(index_t a, index_t b, index_t c) noexcept {
  const index_t product = a * b;
  if ((product | c) >> 32 == 0) {
    return index_t{static_cast<std::uint32_t>(product) / static_cast<std::uint32_t>(c)};
  }
  return product / c;
}

}  // namespace detail

/// Tiles in a row, shared out over groups. Precondition: 1 <= groups <= tiles.
struct mla_split {
  index_t tiles = 1;  ///< of all sequences
  index_t groups = 1;

  /// First tile of a group; that of group `groups` is the end.
  HEADWISE_HD constexpr index_t first_tile(index_t group) const noexcept {
    return detail::scale_down(tiles, group, groups);
  }
  /// The group that has a tile: the last whose first tile is not behind it.
  HEADWISE_HD constexpr index_t group_of(index_t tile) const noexcept {
    const index_t before_next = (tile + 1) * groups - 1;
    return detail::scale_down(before_next, 1, tiles);
  }
};

/// One group's part of a sequence whose tiles begin at `first` in the row.
struct mla_part {
  index_t index = 0;        ///< among the parts of the sequence
  index_t count = 1;        ///< of its parts
  index_t first_group = 0;  ///< that has its first part
  index_t first_place = 0;  ///< place(0)

  HEADWISE_HD static constexpr mla_part of(const mla_split& split, index_t first, index_t tiles,
                                           index_t group) noexcept {
    const index_t first_group = split.group_of(first);
    const index_t last_group = split.group_of(first + tiles - 1);
    const bool ends_there = split.first_tile(first_group) < first;
    return {group - first_group, last_group - first_group + 1, first_group,
            2 * first_group + (ends_there ? 1 : 0)};
  }
  /// Where the result of the i-th part of a sequence waits for the others: each group has two
  /// places, one for the part that it begins with and one for that which it ends with.
  HEADWISE_HD constexpr index_t place(index_t i) const noexcept {
    return i == 0 ? first_place : 2 * (first_group + i);
  }
};

}  // namespace headwise::inline v0
