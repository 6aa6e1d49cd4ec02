// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// How far results are from what they should be, and a number for their bits.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace demo {

/// The comparison that came closest to its bound, or went furthest beyond.
struct worst_case {
  double error = 0;
  double bound = 0;
  double ratio = 0;
  std::int64_t compared = 0;
  std::int64_t beyond = 0;

  void compare(double got, double expected, double allowed) {
    ++compared;
    const double off = got == expected ? 0.0 : std::fabs(got - expected);
    const bool within = off <= allowed;  // not of a NaN
    double part = off == 0 ? 0.0 : off / allowed;
    if (!within) {
      ++beyond;
      if (!(part > 1)) part = std::numeric_limits<double>::infinity();
    }
    if (compared > 1 && part <= ratio) return;
    error = off;
    bound = allowed;
    ratio = part;
  }
};

/// FNV-1a over the bits of all results.
class digest {
 public:
  template <class T>
  void add(const T* first, std::int64_t count) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(first);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count) * sizeof(T); ++i) {
      hash_ = (hash_ ^ bytes[i]) * 0x100000001b3u;
    }
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace demo
