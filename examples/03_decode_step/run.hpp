// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// One run: the decode step of every group of the tensor-parallel ranks, and its check.

#include "check.hpp"

#include <chrono>

namespace demo {

/// The decode step of all ranks of one group.
template <class Place, class Payload, log_base Base>
step_facts run_group(const setting& how, const gathered_heads& group,
                     std::span<const std::int32_t> candidates,
                     typename Place::group_type& transport,
                     std::vector<rank_memory<Payload, Base>>& ranks, outcome& result) {
  std::vector<status> done(ranks.size());
  std::vector<step_facts> facts(ranks.size());
  on_threads(how.shape.dcp, [&](index_t r) {
    const auto me = static_cast<std::size_t>(r);
    rank_memory<Payload, Base>& mine = ranks[me];
    const auto query = heads_view<head_dim>(mine.query.data(), mine.rows, mine.own_heads);
    for (index_t row = 0; row < mine.rows; ++row) {
      for (index_t h = 0; h < mine.own_heads; ++h) {
        fill_query(how, row, group.global(group.first(r) + h),
                   fix<axis::head>(fix<axis::token>(query, row), h));
      }
    }
    Place place;
    const status opened = place.open(r, mine);
    auto handle = place.join(transport, r);
    done[me] = with_cache(how, kv_shard{how.split(), r}, [&](const auto& cache) {
      if (!opened.ok()) return handle.refuse(opened);
      return decode_step(how, cache, candidates, place, handle, mine, facts[me]);
    });
  });
  for (index_t r = 0; r < how.shape.dcp; ++r) {
    result.require(done[static_cast<std::size_t>(r)],
                   "rank " + std::to_string(group.group.member(r)));
  }
  return facts[0];
}

/// Combines again with NaN in place of all that the dummies brought: the real heads keep their
/// bits.
template <class Place, class Payload, log_base Base>
void check_dummies(const setting& how, const gathered_heads& group,
                   typename Place::group_type& transport,
                   std::vector<rank_memory<Payload, Base>>& ranks, outcome& result) {
  const auto before = ranks;
  std::vector<status> done(ranks.size());
  on_threads(how.shape.dcp, [&](index_t r) {
    rank_memory<Payload, Base>& mine = ranks[static_cast<std::size_t>(r)];
    for (index_t row = 0; row < mine.rows; ++row) {
      const index_t first = row * mine.tiled + group.real();
      make_poison(mine.partial.data() + first * latent, group.dummies() * latent);
      make_poison(mine.partial_lse.data() + first, group.dummies());
    }
    Place place;
    const status opened = place.open(r, mine);
    auto handle = place.join(transport, r);
    step_facts again;
    done[static_cast<std::size_t>(r)] =
        opened.ok() ? combine(how, place, handle, mine, again) : handle.refuse(opened);
  });
  bool same = true;
  for (index_t r = 0; r < how.shape.dcp; ++r) {
    const auto& now = ranks[static_cast<std::size_t>(r)];
    const auto& then = before[static_cast<std::size_t>(r)];
    const index_t real = std::clamp<index_t>(group.real() - group.first(r), 0, now.own_heads);
    for (index_t row = 0; row < now.rows; ++row) {
      const index_t first = row * now.own_heads;
      same = same && done[static_cast<std::size_t>(r)].ok() &&
             same_bits(&now.output[first * latent], &then.output[first * latent], real * latent) &&
             same_bits(&now.merged[first], &then.merged[first], real);
    }
  }
  result.require(same, "dummy heads changed the bits of real ones");
}

template <class Place, class Payload, log_base Base>
outcome run_as(const setting& how) {
  using clock = std::chrono::steady_clock;
  outcome result;
  auto start = clock::now();
  const auto lap = [&start] {
    const auto since = std::exchange(start, clock::now());
    return std::chrono::duration<double>(start - since).count();
  };
  const auto candidates = choose_candidates(how);
  const truth expected(how, candidates, result);
  result.check_seconds += lap();

  for (index_t g = 0; g < how.shape.tp / how.shape.dcp && result.ok(); ++g) {
    const gathered_heads group = how.gathered(g);
    std::vector<rank_memory<Payload, Base>> ranks(static_cast<std::size_t>(how.shape.dcp),
                                                  rank_memory<Payload, Base>(how, group));
    // Attention to a long sequence on a slow machine must not look like a lost rank.
    typename Place::group_type transport(static_cast<int>(how.shape.dcp), std::chrono::minutes(30));
    result.facts = run_group<Place>(how, group, candidates, transport, ranks, result);
    result.step_seconds += lap();
    if (!result.ok()) break;

    for (index_t r = 0; r < how.shape.dcp; ++r) {
      auto& mine = ranks[static_cast<std::size_t>(r)];
      check_results(group, r, ranks, expected, result);
      check_untouched(mine, "rank " + std::to_string(group.group.member(r)), result);
      result.bits.add(mine.output.data(), mine.output.size());
      result.bits.add(mine.merged.data(), mine.merged.size());
    }
    if (group.dummies() > 0) check_dummies<Place>(how, group, transport, ranks, result);
    result.check_seconds += lap();
  }
  result.require(result.output.beyond == 0, std::to_string(result.output.beyond) + " of " +
                                                std::to_string(result.output.compared) +
                                                " outputs are beyond the bound");
  result.require(result.merged.beyond == 0, std::to_string(result.merged.beyond) + " of " +
                                                std::to_string(result.merged.compared) +
                                                " merged LSEs are beyond the bound");
  return result;
}

template <class Place, class Payload>
outcome run_at(const setting& how) {
  return how.base == log_base::e ? run_as<Place, Payload, log_base::e>(how)
                                 : run_as<Place, Payload, log_base::two>(how);
}

/// A run with its types, at the place that this program is for. One source file for each payload,
/// to be compiled side by side.
template <class Payload>
outcome run_with(const setting& how);
template <>
outcome run_with<bf16>(const setting& how);
template <>
outcome run_with<fp16>(const setting& how);
template <>
outcome run_with<float>(const setting& how);

/// Why this program cannot run there, on this machine; empty where it can.
std::string why_not_on(device_kind device);

inline outcome run(const setting& how) {
  switch (how.payload) {
    case payload_kind::bf16: return run_with<bf16>(how);
    case payload_kind::fp16: return run_with<fp16>(how);
    case payload_kind::fp32: break;
  }
  return run_with<float>(how);
}

}  // namespace demo
