// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/core/element.hpp>
#include <headwise/lse/log_base.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace support {

/// One row, or one column of it, merged in float64 from partials that are taken as exact.
struct exact_row {
  double lse = -std::numeric_limits<double>::infinity();
  std::vector<double> weights;  ///< [rank], normalised; 0 where a rank has no keys

  template <class Outputs>
  double output(const Outputs& outputs) const {
    double sum = 0;
    for (std::size_t r = 0; r < weights.size(); ++r) {
      if (weights[r] != 0) sum += weights[r] * static_cast<double>(outputs[r]);
    }
    return sum;
  }
  /// Sum of w |o|: what rounding errors are measured by.
  template <class Outputs>
  double magnitude(const Outputs& outputs) const {
    double sum = 0;
    for (std::size_t r = 0; r < weights.size(); ++r) {
      if (weights[r] != 0) sum += weights[r] * std::fabs(static_cast<double>(outputs[r]));
    }
    return sum;
  }
};

/// LSEs that are not finite mean "no keys".
template <class Lses>
exact_row merge_exactly(headwise::log_base base, const Lses& lses) {
  exact_row row;
  row.weights.assign(lses.size(), 0.0);
  double highest = -std::numeric_limits<double>::infinity();
  for (const auto l : lses) {
    if (std::isfinite(l)) highest = (std::max)(highest, static_cast<double>(l));
  }
  if (!std::isfinite(highest)) return row;
  const bool two = base == headwise::log_base::two;
  double sum = 0;
  for (std::size_t r = 0; r < lses.size(); ++r) {
    if (!std::isfinite(lses[r])) continue;
    const double below = static_cast<double>(lses[r]) - highest;
    row.weights[r] = two ? std::exp2(below) : std::exp(below);
    sum += row.weights[r];
  }
  for (double& weight : row.weights) weight /= sum;
  row.lse = highest + (two ? std::log2(sum) : std::log(sum));
  return row;
}

/// Half a unit in the last place of T, relative to a normal value, and of its subnormal ones.
template <class T>
constexpr double unit_roundoff =
    headwise::element_kind_of<T> == headwise::element_kind::bf16  ? 0x1p-8
    : headwise::element_kind_of<T> == headwise::element_kind::f16 ? 0x1p-11
                                                                  : 0x1p-24;
template <class T>
constexpr double subnormal_roundoff =
    headwise::element_kind_of<T> == headwise::element_kind::bf16  ? 0x1p-134
    : headwise::element_kind_of<T> == headwise::element_kind::f16 ? 0x1p-25
                                                                  : 0x1p-150;

/// How far the combine may be from float64 on the same partials (docs/numerics.md): the rounding of
/// the result; c units of 2^-24 of the sum of w |o|, for errors of the weights (N + 5: exponential,
/// sum, reciprocal, product) and of N fused steps; and weights below 2^-115, which are zero.
template <class T>
double combine_bound(int ranks, double exact, double magnitude, double largest) {
  const double in_fp32 = (2 * ranks + 5) * 0x1p-24 * magnitude + ranks * 0x1p-115 * largest;
  return unit_roundoff<T> * (std::fabs(exact) + in_fp32) + subnormal_roundoff<T> + in_fp32;
}

/// The same of a merged LSE: of the logarithm and of the sum that is put into it.
inline double lse_bound(int ranks, double exact) {
  return 0x1p-24 * std::fabs(exact) + (2 * ranks + 5) * 0x1p-24;
}

}  // namespace support
