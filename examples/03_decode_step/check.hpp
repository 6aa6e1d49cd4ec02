// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// What a step must come to: the same attention, unsharded and in float64, and the bound of
// docs/numerics.md on how far off rounding may be.

#include "compare.hpp"
#include "step.hpp"

#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace demo {

/// What came of a run.
struct outcome {
  step_facts facts;
  worst_case output;
  worst_case merged;  ///< in nats, whatever the base
  digest bits;
  std::vector<std::string> faults;
  double step_seconds = 0;
  double check_seconds = 0;

  bool ok() const { return faults.empty(); }
  void require(bool holds, const std::string& what) {
    if (!holds) faults.push_back(what);
  }
  void require(const status& done, const std::string& who) {
    char text[256];
    format_status(done, text, sizeof text);
    require(done.ok(), who + ": " + text);
  }
};

inline void on_threads(index_t count, const std::function<void(index_t)>& f) {
  std::vector<std::thread> threads;
  for (index_t i = 0; i < count; ++i) threads.emplace_back(f, i);
  for (std::thread& one : threads) one.join();
}

/// Attention over all keys in one cache, for all heads of the model and, behind them, one dummy.
struct truth {
  index_t heads;
  poisoned<double> output;            // [row, head, latent]
  poisoned<lse<log_base::e>> merged;  // [row, head]

  truth(const setting& how, std::span<const std::int32_t> candidates, outcome& result);
};

/// Half a unit in the last place of a payload, relative; and absolute below its normal numbers,
/// twice, for partials and outputs.
template <class T>
inline constexpr double rounding = element_kind_of<T> == element_kind::f32   ? 0x1p-24
                                   : element_kind_of<T> == element_kind::f16 ? 0x1p-11
                                                                             : 0x1p-8;
template <class T>
inline constexpr double tiny = element_kind_of<T> == element_kind::f16 ? 0x1p-24 : 0x1p-126;

/// One rank's results against the truth, within the bounds of docs/numerics.md against unsharded
/// attention; on top of them, 2^-40 for what float64 rounds. `ranks`: the memory of its whole
/// group.
template <class Payload, log_base Base>
void check_results(const gathered_heads& group, index_t rank,
                   const std::vector<rank_memory<Payload, Base>>& ranks, const truth& expected,
                   outcome& result) {
  constexpr double nats = Base == log_base::two ? 0.6931471805599453 : 1.0;
  constexpr double u = 0x1p-24;
  constexpr double output_rounding = sizeof(Payload) == 4 ? 0.0 : rounding<Payload>;
  const auto& mine = ranks[static_cast<std::size_t>(rank)];
  const auto n = static_cast<double>(ranks.size());
  for (index_t row = 0; row < mine.rows; ++row) {
    for (index_t own = 0; own < mine.own_heads; ++own) {
      const index_t head = group.first(rank) + own;
      const index_t known = row * expected.heads + std::min(group.global(head), expected.heads - 1);
      const auto all = static_cast<double>(expected.merged[known].value);

      // What each rank contributes, and how far off an LSE is for having been rounded to fp32.
      double weights[max_ranks] = {};
      double lse_off = 0;
      for (std::size_t s = 0; s < ranks.size(); ++s) {
        const float stored = ranks[s].partial_lse[row * mine.tiled + head].value;
        const double one = static_cast<double>(stored) * nats;
        if (!std::isfinite(one)) continue;
        weights[s] = std::exp(one - all);
        lse_off = std::max(lse_off, std::fabs(one) * u);
      }
      const bool empty = !std::isfinite(all);
      // The output is rounded from what was computed, not from what is exact: hence the factor.
      const double relative =
          (1 + output_rounding) * (rounding<Payload> + u * (2 * n + 4) + 2 * lse_off);
      const double lse_steps = nats * ((Base == log_base::two ? 1.5 : 1.0) * n + 4);
      const index_t at = row * mine.own_heads + own;
      for (index_t d = 0; d < latent; ++d) {
        double spread = 0;
        for (std::size_t s = 0; s < ranks.size(); ++s) {
          if (weights[s] == 0) continue;
          const Payload partial = ranks[s].partial[(row * mine.tiled + head) * latent + d];
          spread += weights[s] * std::fabs(static_cast<double>(to_float(partial)));
        }
        const double want = expected.output[known * latent + d];
        const double allowed =
            output_rounding * std::fabs(want) + relative * spread + tiny<Payload> + 0x1p-40;
        result.output.compare(static_cast<double>(to_float(mine.output[at * latent + d])), want,
                              empty ? 0.0 : allowed);
      }
      result.merged.compare(static_cast<double>(mine.merged[at].value) * nats, all,
                            empty ? 0.0 : lse_off + u * (2 * std::fabs(all) + lse_steps));
    }
  }
}

/// Nothing was written that is not part of a result.
template <class Payload, log_base Base>
void check_untouched(rank_memory<Payload, Base>& mine, const std::string& who, outcome& result) {
  const index_t unused = mine.tiled - mine.heads;
  bool intact = true;
  for (index_t row = 0; row < mine.rows; ++row) {
    const index_t first = row * mine.tiled + mine.heads;
    intact = intact && is_poison(mine.gathered.data() + first * head_dim, unused * head_dim) &&
             is_poison(mine.partial.data() + first * latent, unused * latent) &&
             is_poison(mine.partial_lse.data() + first, unused);
  }
  result.require(intact, who + ": heads behind the live ones were written");
  bool guards_intact = true;
  mine.for_each_buffer([&](auto& one) { guards_intact = guards_intact && one.guards_intact(); });
  result.require(guards_intact, who + ": memory around a buffer was written");
}

}  // namespace demo
