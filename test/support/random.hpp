// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <utility>

namespace support {

/// Random numbers of a test.
class random_source {
 public:
  /// The same ones in every run.
  explicit random_source(std::uint64_t seed) : engine_(seed) {}
  /// Those of a property test: others in every run. Prints the law, the seed and the number of
  /// iterations; HEADWISE_SEED repeats a run.
  random_source(const char* law, int iterations) {
    const char* const given = std::getenv("HEADWISE_SEED");
    const std::uint64_t seed =
        given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
    engine_.seed(seed);
    std::printf("property: %s, seed %llu, %d iterations\n", law,
                static_cast<unsigned long long>(seed), iterations);
  }

  std::uint64_t bits() { return engine_(); }
  /// From low to high, both included.
  headwise::index_t in(headwise::index_t low, headwise::index_t high) {
    const auto width = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<headwise::index_t>(engine_() % width);
  }
  bool one_in(headwise::index_t n) { return in(1, n) == 1; }
  headwise::index_t one_of(std::initializer_list<headwise::index_t> values) {
    return values.begin()[in(0, static_cast<headwise::index_t>(values.size()) - 1)];
  }
  double real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  template <class T>
  void shuffle(T* values, int count) {
    for (int i = count - 1; i > 0; --i) std::swap(values[i], values[in(0, i)]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace support
