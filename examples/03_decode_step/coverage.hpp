// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// Few runs out of many possible ones, so that each pair of levels of two factors meets in one.

#include <cstddef>
#include <cstdint>
#include <set>
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

/// Which pairs of levels the runs so far have had. `counts`: the number of levels of each factor.
class pair_coverage {
 public:
  explicit pair_coverage(std::vector<int> counts) : counts_(std::move(counts)) {}

  std::size_t total() const {
    std::size_t pairs = 0;
    for (std::size_t a = 0; a < counts_.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b)
        pairs += static_cast<std::size_t>(counts_[a] * counts_[b]);
    }
    return pairs;
  }
  std::size_t covered() const { return seen_.size(); }
  const std::vector<int>& counts() const { return counts_; }

  template <class Choice>
  void add(const Choice& run) {
    for (std::size_t a = 0; a < counts_.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) seen_.insert(key(a, run[a], b, run[b]));
    }
  }

  /// The pairs that level `of_a` of factor a makes with those already set (-1: not set) and that no
  /// run had.
  template <class Choice>
  int gain(const Choice& run, std::size_t a, int of_a) const {
    int fresh = 0;
    for (std::size_t b = 0; b < counts_.size(); ++b) {
      if (b == a || run[b] < 0) continue;
      fresh += seen_.count(a > b ? key(a, of_a, b, run[b]) : key(b, run[b], a, of_a)) == 0 ? 1 : 0;
    }
    return fresh;
  }

 private:
  static std::uint64_t key(std::size_t a, int of_a, std::size_t b, int of_b) {
    return ((a * 64 + b) * 4096 + static_cast<std::size_t>(of_a)) * 4096 +
           static_cast<std::size_t>(of_b);
  }

  std::vector<int> counts_;
  std::set<std::uint64_t> seen_;
};

/// Runs that together have every pair: again and again the best of 40 candidates, each built factor
/// by factor in an order of its own.
template <class Choice>
std::vector<Choice> cover_pairs(const std::vector<int>& counts) {
  pair_coverage coverage(counts);
  std::vector<Choice> runs;
  std::uint64_t random = 0;
  while (coverage.covered() < coverage.total()) {
    Choice best{};
    int best_gain = -1;
    for (int candidate = 0; candidate < 40; ++candidate) {
      Choice run;
      run.fill(-1);
      int gain = 0;
      std::vector<std::size_t> order(counts.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      for (std::size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[(random = mix(random)) % i]);
      }
      for (const std::size_t factor : order) {
        const int levels = counts[factor];
        const int first = static_cast<int>((random = mix(random)) % static_cast<unsigned>(levels));
        int best_level = first;
        for (int i = 1; i < levels; ++i) {
          const int level = (first + i) % levels;
          if (coverage.gain(run, factor, level) > coverage.gain(run, factor, best_level)) {
            best_level = level;
          }
        }
        gain += coverage.gain(run, factor, best_level);
        run[factor] = best_level;
      }
      if (gain > best_gain) {
        best_gain = gain;
        best = run;
      }
    }
    // Early factors have nothing to meet yet, so a candidate may gain nothing; then the next draw.
    if (best_gain > 0) {
      coverage.add(best);
      runs.push_back(best);
    }
  }
  return runs;
}

/// Every combination, the last factor fastest.
template <class Choice>
std::vector<Choice> cross_product(const std::vector<int>& counts) {
  std::vector<Choice> runs(1);
  runs[0].fill(0);
  for (std::size_t factor = 0; factor < counts.size(); ++factor) {
    std::vector<Choice> longer;
    for (const Choice& run : runs) {
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
