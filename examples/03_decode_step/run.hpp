// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// One run: the decode step of every group of the tensor-parallel ranks, and its check.

#include <chrono>

#include "check.hpp"

namespace demo {

/// Replaces the dummies' partial results by NaN and combines again: the real heads keep their bits.
template <class Payload, log_base Base>
void check_dummies(const setting& how, const gathered_heads& group, in_process_group& transport,
                   std::vector<rank_memory<Payload, Base>>& ranks, const std::string& who,
                   outcome& result) {
  const auto before = ranks;
  std::vector<status> done(ranks.size());
  on_threads(how.shape.dcp, [&](index_t r) {
    auto& mine = ranks[static_cast<std::size_t>(r)];
    const index_t dummies = group.dummies();
    for (index_t row = 0; row < mine.rows; ++row) {
      const index_t first = row * mine.tiled + group.real();
      std::fill_n(reinterpret_cast<std::byte*>(mine.partial.data() + first * latent),
                  dummies * latent * index_t{sizeof(Payload)}, poison);
      std::fill_n(reinterpret_cast<std::byte*>(mine.partial_lse.data() + first),
                  dummies * index_t{sizeof(float)}, poison);
    }
    in_process handle = transport.rank(static_cast<int>(r)).value();
    step_facts again;
    done[static_cast<std::size_t>(r)] = combine(how, handle, mine, again);
  });
  bool same = true;
  for (index_t r = 0; r < how.shape.dcp; ++r) {
    result.require(done[static_cast<std::size_t>(r)], who + ", without dummies");
    const auto& now = ranks[static_cast<std::size_t>(r)];
    const auto& then = before[static_cast<std::size_t>(r)];
    const index_t real = std::clamp<index_t>(group.real() - group.first(r), 0, now.own_heads);
    for (index_t row = 0; row < now.rows; ++row) {
      const index_t first = row * now.own_heads;
      const auto same_bits = [](const auto* a, const auto* b, index_t count) {
        return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof *a) == 0;
      };
      same = same &&
             same_bits(&now.output[first * latent], &then.output[first * latent], real * latent) &&
             same_bits(&now.merged[first], &then.merged[first], real);
    }
  }
  result.require(same, who + ": dummy heads changed the bits of real ones");
}

template <class Record, class Payload, log_base Base>
outcome run_as(const setting& how) {
  using clock = std::chrono::steady_clock;
  const auto seconds_since = [](clock::time_point then) {
    return std::chrono::duration<double>(clock::now() - then).count();
  };
  outcome result;
  const auto candidates = choose_candidates(how);
  auto start = clock::now();
  const truth<Record, Base> expected(how, candidates, result);
  result.check_seconds += seconds_since(start);

  const auto ranks_per_group = static_cast<std::size_t>(how.shape.dcp);
  for (index_t g = 0; g < how.shape.tp / how.shape.dcp && result.ok(); ++g) {
    const gathered_heads group = how.gathered(g);
    std::vector<rank_memory<Payload, Base>> ranks(ranks_per_group,
                                                  rank_memory<Payload, Base>(how, group));
    // Attention of the longest sequence, on a slow machine, must not look like a lost rank.
    in_process_group transport(static_cast<int>(how.shape.dcp), std::chrono::minutes(30));
    std::vector<status> done(ranks_per_group);
    std::vector<step_facts> facts(ranks_per_group);
    start = clock::now();
    on_threads(how.shape.dcp, [&](index_t r) {
      const auto me = static_cast<std::size_t>(r);
      auto& mine = ranks[me];
      const auto query = heads_view<head_dim>(mine.query.data(), mine.rows, mine.own_heads);
      for (index_t row = 0; row < mine.rows; ++row) {
        for (index_t h = 0; h < mine.own_heads; ++h) {
          fill_query(how, row, group.global(group.first(r) + h),
                     fix<axis::head>(fix<axis::token>(query, row), h));
        }
      }
      const kv_cache<Record> cache(how, kv_shard{how.split(), r});
      in_process handle = transport.rank(static_cast<int>(r)).value();
      done[me] = decode_step(how, cache, candidates, handle, mine, facts[me]);
    });
    result.step_seconds += seconds_since(start);
    result.facts = facts[0];

    start = clock::now();
    for (index_t r = 0; r < how.shape.dcp; ++r) {
      const auto me = static_cast<std::size_t>(r);
      const std::string who = "rank " + std::to_string(group.group.member(r));
      result.require(done[me], who);
      if (!done[me].ok()) continue;
      check_results(group, r, ranks, expected, result);
      check_untouched(ranks[me], who, result);
      result.bits.add(ranks[me].output.data(), ranks[me].output.size());
      result.bits.add(ranks[me].merged.data(), ranks[me].merged.size());
    }
    if (group.dummies() > 0 && result.ok()) {
      check_dummies(how, group, transport, ranks, "group " + std::to_string(g), result);
    }
    result.check_seconds += seconds_since(start);
  }
  const auto beyond = [&](const worst_case& what, const char* name) {
    result.require(what.beyond == 0, std::to_string(what.beyond) + " of " +
                                         std::to_string(what.compared) + " " + name +
                                         " are beyond the bound");
  };
  beyond(result.output, "outputs");
  beyond(result.merged, "merged LSEs");
  return result;
}

/// A run as its types want it.
template <class Payload, log_base Base>
outcome run_with(const setting& how) {
  return how.cache == cache_kind::bf16
             ? run_as<kv_bf16<latent, rope>, Payload, Base>(how)
             : run_as<kv_fp8_ds_mla<latent, rope>, Payload, Base>(how);
}

inline outcome run(const setting& how) {
  const auto with_base = [&]<class Payload>(Payload) {
    return how.base == log_base::e ? run_with<Payload, log_base::e>(how)
                                   : run_with<Payload, log_base::two>(how);
  };
  switch (how.payload) {
    case payload_kind::bf16: return with_base(bf16{});
    case payload_kind::fp16: return with_base(fp16{});
    case payload_kind::fp32: break;
  }
  return with_base(0.0f);
}

}  // namespace demo
