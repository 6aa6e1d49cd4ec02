// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/plan/mla_split.hpp>

#include <support/random.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

using namespace headwise;
using support::random_source;

namespace {

constexpr index_t huge = index_t{1} << 40;

/// Where each group begins, and the end, by adding up shares and what is left over of them.
std::vector<index_t> first_tiles(index_t tiles, index_t groups) {
  std::vector<index_t> first{0};
  index_t over = 0;  // of groups, in parts of a tile
  for (index_t g = 0; g < groups; ++g) {
    over += tiles % groups;
    first.push_back(first.back() + tiles / groups + over / groups);
    over %= groups;
  }
  return first;
}

/// Lengths of sequences, in tiles, that are `tiles` together.
std::vector<index_t> any_sequences(random_source& random, index_t tiles) {
  std::vector<index_t> lengths;
  for (index_t left = tiles; left > 0; left -= lengths.back()) {
    const index_t most = random.one_of({1, 2, 5, 40, tiles});
    lengths.push_back(std::min(left, random.in(1, most)));
  }
  return lengths;
}

struct waiting {
  index_t sequence;
  mla_part part;
};

/// Parts of the sequences that several groups share, by group, counted out group by group.
std::map<index_t, std::vector<waiting>> parts_by_group(const mla_split& split,
                                                       const std::vector<index_t>& sequences) {
  std::map<index_t, std::vector<waiting>> found;
  index_t first = 0;
  for (index_t s = 0; s < static_cast<index_t>(sequences.size()); ++s) {
    const index_t tiles = sequences[static_cast<std::size_t>(s)];
    std::set<index_t> groups;
    for (index_t g = 0; g < split.groups; ++g) {
      const index_t from = std::max(first, split.first_tile(g));
      const index_t to = std::min(first + tiles, split.first_tile(g + 1));
      if (from < to) groups.insert(g);
    }
    REQUIRE(!groups.empty());
    index_t index = 0;
    for (const index_t g : groups) {
      const mla_part part = mla_part::of(split, first, tiles, g);
      const bool right = part.first_group == *groups.begin() &&
                         part.count == static_cast<index_t>(groups.size()) && part.index == index++;
      REQUIRE(right);
      if (part.count > 1) found[g].push_back({s, part});
    }
    first += tiles;
  }
  return found;
}

}  // namespace

TEST_CASE("mla_split: groups take all tiles, one behind the other, in shares that differ by one") {
  for (index_t tiles = 1; tiles <= 70; ++tiles) {
    for (index_t groups = 1; groups <= tiles; ++groups) {
      CAPTURE(tiles);
      CAPTURE(groups);
      const mla_split split{tiles, groups};
      const std::vector<index_t> first = first_tiles(tiles, groups);
      REQUIRE(first.back() == tiles);
      index_t wrong = split.first_tile(groups) != tiles;
      for (index_t g = 0; g < groups; ++g) {
        wrong += split.first_tile(g) != first[static_cast<std::size_t>(g)];
        const index_t share = split.first_tile(g + 1) - split.first_tile(g);
        wrong += share < tiles / groups || share > (tiles + groups - 1) / groups;
        for (index_t t = split.first_tile(g); t < split.first_tile(g + 1); ++t) {
          wrong += split.group_of(t) != g;
        }
      }
      REQUIRE(wrong == 0);
    }
  }
}

TEST_CASE("mla_split: as many tiles as sequences of any length have, and more") {
  random_source random(1);
  const auto check = [](index_t tiles, index_t groups) {
    CAPTURE(tiles);
    CAPTURE(groups);
    const mla_split split{tiles, groups};
    const std::vector<index_t> first = first_tiles(tiles, groups);
    REQUIRE(first.back() == tiles);
    index_t wrong = 0;
    for (index_t g = 0; g < groups; ++g) {
      const index_t begin = first[static_cast<std::size_t>(g)];
      const index_t end = first[static_cast<std::size_t>(g + 1)];
      wrong += split.first_tile(g) != begin || split.first_tile(g + 1) != end;
      wrong += split.group_of(begin) != g || split.group_of(end - 1) != g;
      wrong += split.group_of(begin + (end - begin) / 2) != g;
    }
    REQUIRE(wrong == 0);
  };
  for (const index_t groups : {1, 2, 7, 66, 131, 132, 160, 192, 4096}) {
    for (const index_t tiles :
         {groups, groups + 1, 2 * groups - 1, 62000 / 32 + 1 + groups, index_t{65535} + groups,
          // Around where numbers, and products of them, leave 32 bits.
          (index_t{1} << 32) / groups - 1 + groups, (index_t{1} << 32) / groups + 1 + groups,
          (index_t{1} << 31) - 1, index_t{1} << 31, (index_t{1} << 32) - 1, index_t{1} << 32,
          (index_t{1} << 32) + 1, huge - 1, huge}) {
      check(tiles, groups);
    }
    for (int i = 0; i < 50; ++i) {
      check(random.in(groups, index_t{1} << random.in(13, 40)), groups);
    }
  }
}

TEST_CASE(
    "mla_split: every group finds the same parts of a sequence, and the same places for them") {
  random_source random(2);
  for (int i = 0; i < 400; ++i) {
    const index_t tiles = random.in(1, random.one_of({3, 20, 200, 500}));
    const index_t groups = random.one_in(5) ? tiles : random.in(1, std::min<index_t>(tiles, 192));
    CAPTURE(i);
    CAPTURE(tiles);
    CAPTURE(groups);
    const mla_split split{tiles, groups};
    const std::vector<index_t> sequences = any_sequences(random, tiles);
    const auto parts = parts_by_group(split, sequences);

    std::map<index_t, std::pair<index_t, index_t>> taken;  // place: sequence, part
    index_t wrong = 0;
    for (const auto& [group, all] : parts) {
      // That with which the group begins and that with which it ends: each has a place.
      wrong += all.size() > 2;
      for (const waiting& one : all) {
        const index_t own = one.part.place(one.part.index);
        wrong += own / 2 != group;
        wrong += !taken.emplace(own, std::pair{one.sequence, one.part.index}).second;
      }
    }
    for (const auto& [group, all] : parts) {
      for (const waiting& one : all) {
        for (index_t p = 0; p < one.part.count; ++p) {
          const auto found = taken.find(one.part.place(p));
          wrong += found == taken.end() || found->second != std::pair{one.sequence, p};
        }
      }
    }
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("mla_split: a sequence that ends where a group does has no part in the next") {
  // Groups of four tiles: |0 0 0 1|1 1 1 2|2 2 2 2|
  const mla_split split{12, 3};
  CHECK(mla_part::of(split, 0, 3, 0).count == 1);
  const mla_part middle = mla_part::of(split, 3, 4, 1);
  CHECK(middle.count == 2);
  CHECK(middle.index == 1);
  CHECK(middle.first_group == 0);
  CHECK(middle.place(0) == 1);  // the end of group 0
  CHECK(middle.place(1) == 2);  // the beginning of group 1
  const mla_part last = mla_part::of(split, 7, 5, 2);
  CHECK(last.count == 2);
  CHECK(last.place(0) == 3);
  CHECK(last.place(1) == 4);
  // And one that all groups share from its first tile.
  const mla_part all = mla_part::of(split, 0, 12, 2);
  CHECK(all.count == 3);
  CHECK(all.index == 2);
  CHECK(all.place(0) == 0);
  CHECK(all.place(1) == 2);
  CHECK(all.place(2) == 4);
  // A sequence that is a group's own share is whole, whoever its neighbours are.
  CHECK(mla_part::of(split, 4, 4, 1).count == 1);
}

TEST_CASE("mla_split: parts of one sequence of 2^40 tiles") {
  constexpr mla_split split{huge, 192};
  static_assert(split.first_tile(192) == huge && split.group_of(huge - 1) == 191);
  for (const index_t group : {0, 1, 100, 191}) {
    const mla_part part = mla_part::of(split, 0, huge, group);
    CHECK(part.count == 192);
    CHECK(part.index == group);
    CHECK(part.place(part.index) == 2 * group);
  }
  // Behind a sequence of one tile, group 0 ends with it.
  const mla_part second = mla_part::of(split, 1, huge - 1, 7);
  CHECK(second.count == 192);
  CHECK(second.place(0) == 1);
  CHECK(second.place(7) == 14);
}
