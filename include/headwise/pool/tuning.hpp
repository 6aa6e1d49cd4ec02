// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/pool/layout.hpp>

#include <span>

// From times to a protocol table. tune.cuh takes the times.

namespace headwise::inline v0 {

inline constexpr int protocol_count = 3;

/// What a call of one size took with each protocol; the slowest rank counts.
struct protocol_times {
  index_t bytes = 0;  ///< payload per peer
  /// Nanoseconds, by protocol; not positive: none was taken, as the channel has no room.
  double nanoseconds[protocol_count] = {};
};

namespace detail {

/// What the sizes [first, last) lose with one protocol: the sum of how much longer each takes than
/// with its best.
constexpr double loss_of(std::span<const protocol_times> times, std::size_t first, std::size_t last,
                         int which) noexcept {
  constexpr double never = 1e30;
  double loss = 0.0;
  for (std::size_t i = first; i < last; ++i) {
    double best = never;
    for (const double taken : times[i].nanoseconds) {
      if (taken > 0.0) best = lesser(best, taken);
    }
    const double own = times[i].nanoseconds[which];
    // A size that was measured with nothing says nothing.
    if (best < never) loss += own > 0.0 ? own / best - 1.0 : never;
  }
  return loss;
}

}  // namespace detail

inline constexpr int most_tuned_sizes = 40;

/// The steps that lose least against the best protocol of each size; a further step has to win
/// `worth` over all sizes (0.02: two hundredths of the time of one of them), so that noise makes
/// none. Between two sizes the step is half way. `times` ascend.
/// Errors: invalid_argument (no sizes, more than 40, or not ascending).
constexpr result<protocol_table::steps> best_steps(std::span<const protocol_times> times,
                                                   double worth = 0.02) noexcept {
  constexpr int most = protocol_table::max_steps;
  if (times.empty() || times.size() > most_tuned_sizes) {
    return failure(errc::invalid_argument, "times", "of 1 to 40 sizes",
                   static_cast<index_t>(times.size()), most_tuned_sizes);
  }
  for (std::size_t i = 1; i < times.size(); ++i) {
    if (times[i].bytes > times[i - 1].bytes) continue;
    return failure(errc::invalid_argument, "times", "their sizes do not ascend", times[i].bytes,
                   times[i - 1].bytes);
  }
  // least[k][n]: what the first n sizes lose with at most k + 1 steps, and how the last one is.
  struct choice {
    double loss = 1e300;
    std::size_t from = 0;
    int which = 0;
  };
  choice least[most][most_tuned_sizes + 1] = {};
  for (int k = 0; k < most; ++k) {
    least[k][0].loss = 0.0;
    for (std::size_t n = 1; n <= times.size(); ++n) {
      choice& own = least[k][n];
      if (k > 0) own = least[k - 1][n];
      for (std::size_t from = 0; from < n; ++from) {
        if (k == 0 && from > 0) break;
        const double before = k == 0 ? 0.0 : least[k - 1][from].loss + (from > 0 ? worth : 0.0);
        for (int which = 0; which < protocol_count; ++which) {
          const double loss = before + detail::loss_of(times, from, n, which);
          if (loss < own.loss) own = {loss, from, which};
        }
      }
    }
  }
  // Back from the end; a step that was no better than one fewer stands a row above.
  protocol_table::step reversed[most] = {};
  int count = 0;
  std::size_t n = times.size();
  for (int k = most - 1; n > 0; --k) {
    while (k > 0 && least[k][n].loss == least[k - 1][n].loss) --k;
    const choice& own = least[k][n];
    const index_t up_to = n == times.size()
                              ? INT64_MAX
                              : times[n - 1].bytes + (times[n].bytes - times[n - 1].bytes) / 2;
    reversed[count++] = {up_to, static_cast<protocol>(own.which)};
    n = own.from;
  }
  protocol_table::steps steps;
  for (int i = 0; i < most; ++i) steps.at[i] = reversed[i < count ? count - 1 - i : 0];
  return steps;
}

}  // namespace headwise::inline v0
