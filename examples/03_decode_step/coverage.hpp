// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// Few runs out of many possible ones, such that each two levels of two factors meet in one of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace demo {

/// splitmix64: the same numbers with every compiler and library.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Which pairs of levels the runs so far have had. A run is the number of a level for each factor,
/// or -1 where that is open yet.
class pair_coverage {
 public:
  /// `counts`: how many levels each factor has.
  explicit pair_coverage(std::vector<int> counts) : counts_(std::move(counts)) {}

  const std::vector<int>& counts() const { return counts_; }
  std::size_t covered() const { return seen_.size(); }
  std::size_t total() const {
    int pairs = 0;
    for (std::size_t a = 0; a < counts_.size(); ++a) {
      for (std::size_t b = a + 1; b < counts_.size(); ++b) pairs += counts_[a] * counts_[b];
    }
    return static_cast<std::size_t>(pairs);
  }

  template <class Run>
  void add(const Run& run) {
    for (std::size_t a = 0; a < counts_.size(); ++a) {
      for (std::size_t b = a + 1; b < counts_.size(); ++b) seen_.insert({a, run[a], b, run[b]});
    }
  }

  /// How many pairs of one factor's level in this run have not met before.
  template <class Run>
  int fresh(const Run& run, std::size_t factor) const {
    int pairs = 0;
    for (std::size_t other = 0; other < counts_.size(); ++other) {
      if (other == factor || run[other] < 0) continue;
      const auto [a, b] = std::minmax(factor, other);
      pairs += seen_.count({a, run[a], b, run[b]}) == 0 ? 1 : 0;
    }
    return pairs;
  }

 private:
  std::vector<int> counts_;
  std::set<std::tuple<std::size_t, int, std::size_t, int>> seen_;
};

/// Again and again the best of 40 candidates, each built factor by factor in an order of its own.
template <class Run>
std::vector<Run> cover_pairs(const std::vector<int>& counts) {
  pair_coverage coverage(counts);
  std::vector<Run> runs;
  std::vector<std::size_t> order(counts.size());
  std::uint64_t random = 0;
  while (coverage.covered() < coverage.total()) {
    Run best{};
    int best_gain = 0;
    for (int candidate = 0; candidate < 40; ++candidate) {
      std::iota(order.begin(), order.end(), std::size_t{0});
      for (std::size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[(random = mix(random)) % i]);
      }
      Run run;
      run.fill(-1);
      int gain = 0;
      for (const std::size_t factor : order) {
        const int first = static_cast<int>((random = mix(random)) % 4096);
        std::pair<int, int> chosen{-1, 0};
        for (int i = 0; i < counts[factor]; ++i) {
          run[factor] = (first + i) % counts[factor];
          const int fresh = coverage.fresh(run, factor);
          if (fresh > chosen.first) chosen = {fresh, run[factor]};
        }
        gain += chosen.first;
        run[factor] = chosen.second;
      }
      if (gain > best_gain) {
        best_gain = gain;
        best = run;
      }
    }
    if (best_gain == 0) continue;  // other draws will find the pairs that are left
    coverage.add(best);
    runs.push_back(best);
  }
  return runs;
}

/// Every combination, the last factor fastest.
template <class Run>
std::vector<Run> cross_product(const std::vector<int>& counts) {
  std::vector<Run> runs(1);
  runs[0].fill(0);
  for (std::size_t factor = 0; factor < counts.size(); ++factor) {
    std::vector<Run> longer;
    for (const Run& run : runs) {
      for (int level = 0; level < counts[factor]; ++level) {
        longer.push_back(run);
        longer.back()[factor] = level;
      }
    }
    runs = std::move(longer);
  }
  return runs;
}

}  // namespace demo
