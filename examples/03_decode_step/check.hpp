// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// What a step must have come to: the same attention, unsharded and in float64, and the bound of
// docs/numerics.md on how far off rounding may be.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "step.hpp"

namespace demo {

/// The comparison that came closest to its bound, or went furthest beyond.
struct worst_case {
  double error = 0;
  double bound = 0;
  double ratio = 0;
  index_t compared = 0;
  index_t beyond = 0;

  void compare(double got, double expected, double allowed) {
    ++compared;
    const double off = got == expected ? 0.0 : std::fabs(got - expected);
    // Said so that a NaN is beyond any bound.
    const bool within = off <= allowed;
    if (!within) ++beyond;
    double part = off == 0 ? 0.0 : off / allowed;
    if (!within && !(part > 1)) part = std::numeric_limits<double>::infinity();
    if (part < ratio || (part == ratio && compared > 1)) return;
    error = off;
    bound = allowed;
    ratio = part;
  }
};

/// FNV-1a over the bits of all results.
class digest {
 public:
  template <class T>
  void add(const T* first, index_t count) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(first);
    for (index_t i = 0; i < count * index_t{sizeof(T)}; ++i) add(bytes[i]);
  }
  std::uint64_t value() const { return hash_; }

 private:
  void add(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; }
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

/// What came of a run.
struct outcome {
  step_facts facts;
  worst_case output;
  worst_case merged;
  digest bits;
  std::vector<std::string> faults;
  double step_seconds = 0;
  double check_seconds = 0;

  bool ok() const { return faults.empty(); }
  void require(bool holds, const std::string& what) {
    if (!holds) faults.push_back(what);
  }
  void require(const status& done, const std::string& what) {
    if (done.ok()) return;
    char text[256];
    format_status(done, text, sizeof text);
    faults.push_back(what + ": " + text);
  }
};

template <class F>
void on_threads(index_t count, const F& f) {
  std::vector<std::thread> threads;
  for (index_t i = 0; i < count; ++i) threads.emplace_back(f, i);
  for (std::thread& one : threads) one.join();
}

/// Attention over all keys in one cache, for all heads of the model and for one that is a dummy.
template <class Record, log_base Base>
struct truth {
  index_t heads;
  poisoned<double> output;    // [row, head, latent]
  poisoned<lse<Base>> merged;  // [row, head]

  truth(const setting& how, std::span<const std::int32_t> candidates, outcome& result)
      : heads(how.shape.heads + 1), output(how.rows() * heads * latent), merged(how.rows() * heads) {
    const kv_cache<Record> cache(how, kv_shard{});
    poisoned<bf16> query_memory(how.rows() * heads * head_dim);
    const auto query = heads_view<head_dim>(query_memory.data(), how.rows(), heads);
    const auto all = heads_view<latent>(output.data(), how.rows(), heads);
    const auto all_lse = lse_view(merged.data(), how.rows(), heads);
    // Heads do not know of each other, so half of them may go on another core.
    status done[2];
    on_threads(2, [&](index_t half) {
      const index_t first = half * (heads / 2);
      const index_t count = half == 0 ? heads / 2 : heads - heads / 2;
      for (index_t row = 0; row < how.rows(); ++row) {
        for (index_t h = first; h < first + count; ++h) {
          const index_t head = h < how.shape.heads ? h : how.heads().padded();
          fill_query(how, row, head, fix<axis::head>(fix<axis::token>(query, row), h));
        }
      }
      done[half] = attend(how, cache, candidates, slice<axis::head>(query, first, count).value(),
                          slice<axis::head>(all, first, count).value(),
                          slice<axis::head>(all_lse, first, count).value());
    });
    for (const status& half : done) result.require(half, "unsharded attention");
  }
};

/// Half a unit in the last place, relative.
template <class T>
inline constexpr double rounding = element_kind_of<T> == element_kind::f32   ? 0x1p-24
                                   : element_kind_of<T> == element_kind::f16 ? 0x1p-11
                                                                             : 0x1p-8;
/// The same below the normal range, absolute; twice, as partials and outputs are rounded.
template <class T>
inline constexpr double tiny = element_kind_of<T> == element_kind::f16 ? 0x1p-24 : 0x1p-126;

/// One rank's results against the truth. `ranks`: the memory of all ranks of its group.
template <class Record, class Payload, log_base Base>
void check_results(const gathered_heads& group, index_t rank,
                   const std::vector<rank_memory<Payload, Base>>& ranks,
                   const truth<Record, Base>& expected, outcome& result) {
  constexpr double unit = Base == log_base::two ? 0.6931471805599453 : 1.0;  // of an LSE, in nats
  constexpr double u32 = 0x1p-24;
  const auto& mine = ranks[static_cast<std::size_t>(rank)];
  for (index_t row = 0; row < mine.rows; ++row) {
    for (index_t own = 0; own < mine.own_heads; ++own) {
      const index_t head = group.first(rank) + own;
      const index_t model_head = std::min(group.global(head), expected.heads - 1);
      const index_t at = row * mine.own_heads + own;
      const double all = static_cast<double>(expected.merged[row * expected.heads + model_head].value);
      const double* want = &expected.output[(row * expected.heads + model_head) * latent];

      // What each rank contributes, and how far off its LSE may be for having been rounded to fp32.
      double weights[max_ranks] = {};
      double lse_off = 0;
      for (std::size_t s = 0; s < ranks.size(); ++s) {
        const double one = static_cast<double>(ranks[s].partial_lse[row * mine.tiled + head].value);
        if (!std::isfinite(one)) continue;
        weights[s] = std::exp((one - all) * unit);
        lse_off = std::max(lse_off, std::fabs(one) * u32);
      }
      const double n = static_cast<double>(ranks.size());
      const bool empty = !std::isfinite(all);
      const double relative = rounding<Payload> + u32 * (2 * n + 4) + 2 * unit * lse_off;
      for (index_t d = 0; d < latent; ++d) {
        double spread = 0;
        for (std::size_t s = 0; s < ranks.size(); ++s) {
          if (weights[s] == 0) continue;
          spread += weights[s] * std::fabs(static_cast<double>(to_float(
                                     ranks[s].partial[(row * mine.tiled + head) * latent + d])));
        }
        const double allowed =
            rounding<Payload> * std::fabs(want[d]) + relative * spread + tiny<Payload> + 0x1p-40;
        result.output.compare(static_cast<double>(to_float(mine.output[at * latent + d])), want[d],
                              empty ? 0.0 : allowed);
      }
      result.merged.compare(static_cast<double>(mine.merged[at].value), all,
                            empty ? 0.0 : lse_off + u32 * (2 * std::fabs(all) + (n + 4) / unit));
    }
  }
}

/// Nothing was written that is not part of a result.
template <class Payload, log_base Base>
void check_untouched(const rank_memory<Payload, Base>& mine, const std::string& who,
                     outcome& result) {
  const index_t unused = mine.tiled - mine.heads;
  bool intact = true;
  for (index_t row = 0; row < mine.rows; ++row) {
    const index_t first = row * mine.tiled + mine.heads;
    intact = intact && is_poison(mine.gathered.data() + first * head_dim, unused * head_dim) &&
             is_poison(mine.partial.data() + first * latent, unused * latent) &&
             is_poison(mine.partial_lse.data() + first, unused);
  }
  result.require(intact, who + ": heads behind the live ones were written");
  result.require(mine.query.guards_intact() && mine.gathered.guards_intact() &&
                     mine.partial.guards_intact() && mine.partial_lse.guards_intact() &&
                     mine.output.guards_intact() && mine.merged.guards_intact() &&
                     mine.gather_workspace.guards_intact() &&
                     mine.scatter_workspace.guards_intact(),
                 who + ": memory around a buffer was written");
}

}  // namespace demo
