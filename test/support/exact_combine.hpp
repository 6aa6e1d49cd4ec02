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

/// Half a unit in the last place of T, relative to a normal value; 0 for fp32, which the arithmetic
/// is done in. And half a step of its subnormal values.
template <class T>
constexpr double unit_roundoff =
    headwise::element_kind_of<T> == headwise::element_kind::bf16  ? 0x1p-8
    : headwise::element_kind_of<T> == headwise::element_kind::f16 ? 0x1p-11
                                                                  : 0.0;
template <class T>
constexpr double subnormal_roundoff =
    headwise::element_kind_of<T> == headwise::element_kind::bf16  ? 0x1p-134
    : headwise::element_kind_of<T> == headwise::element_kind::f16 ? 0x1p-25
                                                                  : 0.0;

/// How far the combine may be from float64 on the same partials (docs/numerics.md, 1). `magnitude`
/// is the sum of w |o|, `largest` the largest |o|.
template <class T>
double combine_bound(headwise::index_t ranks, double exact, double magnitude, double largest) {
  const double c = 2.0 * static_cast<double>(ranks) + 4.0;
  const double rounding = (std::max)(unit_roundoff<T> * std::fabs(exact), subnormal_roundoff<T>);
  return rounding + c * 0x1p-24 * magnitude + 0x1p-110 * largest + 0x1p-146;
}

/// The same of a merged LSE.
inline double lse_bound(headwise::log_base base, headwise::index_t ranks, double exact) {
  const double per_rank = base == headwise::log_base::two ? 1.5 : 1.0;
  const double c = per_rank * static_cast<double>(ranks) + 4.0;
  return 0x1p-24 * (std::fabs(exact) + c);
}

}  // namespace support
