// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The choice of the demo's runs, against plain counting.

#include "../../examples/03_decode_step/coverage.hpp"

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <tuple>
#include <vector>

namespace {

using choice = std::array<int, 5>;

std::size_t pairs_in(const std::vector<choice>& runs) {
  std::set<std::tuple<std::size_t, int, std::size_t, int>> pairs;
  for (const choice& run : runs) {
    for (std::size_t a = 0; a < run.size(); ++a) {
      for (std::size_t b = a + 1; b < run.size(); ++b) pairs.insert({a, run[a], b, run[b]});
    }
  }
  return pairs.size();
}

}  // namespace

TEST_CASE("demo: the runs have every pair of values, and are few") {
  const std::vector<int> counts{5, 3, 2, 2, 1};
  const auto runs = demo::cover_pairs<choice>(counts);
  CHECK(pairs_in(runs) == 5 * 3 + 5 * 2 + 5 * 2 + 5 + 3 * 2 + 3 * 2 + 3 + 2 * 2 + 2 + 2);
  CHECK(runs.size() >= 15);
  CHECK(runs.size() <= 18);
  for (const choice& run : runs) {
    for (std::size_t f = 0; f < counts.size(); ++f) CHECK((run[f] >= 0 && run[f] < counts[f]));
  }
  CHECK(demo::cover_pairs<choice>(counts) == runs);
}

TEST_CASE("demo: one value of each factor makes one run") {
  const std::vector<int> counts{1, 1, 1, 1, 1};
  CHECK(demo::cover_pairs<choice>(counts) == std::vector<choice>{choice{}});
}

TEST_CASE("demo: covered pairs are counted once, and only those that met") {
  demo::pair_coverage coverage({2, 2, 3, 1, 1});
  CHECK(coverage.total() == 4 + 6 + 2 + 2 + 6 + 2 + 2 + 3 + 3 + 1);
  CHECK(coverage.covered() == 0);
  coverage.add(choice{0, 0, 0, 0, 0});
  CHECK(coverage.covered() == 10);
  coverage.add(choice{0, 0, 0, 0, 0});
  CHECK(coverage.covered() == 10);
  coverage.add(choice{0, 0, 2, 0, 0});
  CHECK(coverage.covered() == 14);
}

TEST_CASE("demo: the cross product has every combination once") {
  const auto runs = demo::cross_product<choice>({2, 3, 1, 2, 1});
  CHECK(runs.size() == 12);
  CHECK(std::set<choice>(runs.begin(), runs.end()).size() == 12);
  CHECK(runs.front() == choice{0, 0, 0, 0, 0});
  CHECK(runs.back() == choice{1, 2, 0, 1, 0});
}
