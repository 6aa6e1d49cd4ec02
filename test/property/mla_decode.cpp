// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Attention over shards, combined, is attention over the whole sequence: any number of ranks, any
// interleave, any pages, any lengths, several query tokens, dense and sparse.

#include <headwise/lse/partial.hpp>
#include <headwise/plan/capacity.hpp>
#include <headwise/reference/localize_topk.hpp>
#include <headwise/reference/mla_decode.hpp>

#include <support/mla_problem.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace headwise;
using mla_test::at;
using mla_test::outputs;
using mla_test::problem;

namespace {

using little = kv_bf16<24, 8>;
using little_fp8 = kv_fp8_ds_mla<128, 8>;

constexpr int iterations = 600;

std::uint64_t seed_of(const char* law) {
  const char* given = std::getenv("HEADWISE_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  std::printf("property: %s, seed %llu, %d iterations\n", law,
              static_cast<unsigned long long>(seed), iterations);
  return seed;
}

struct geometry {
  interleaving split;
  index_t page_size;
  index_t query_tokens;
  index_t heads;
  std::vector<std::int32_t> lengths;

  explicit geometry(mla_test::random_source& random)
      : split(interleaving::make(random.in(1, 16), random.one_of<index_t>({1, 1, 2, 3, 16, 64}))
                  .value()),
        page_size(random.one_of<index_t>({1, 16, 53, 64})),
        query_tokens(random.in(1, 4)),
        heads(random.in(1, 3)) {
    const index_t sequences = random.in(0, 3);
    for (index_t s = 0; s < sequences; ++s) {
      const index_t length =
          random.one_of({index_t{0}, random.in(0, 8), split.ranks, random.in(0, 3 * page_size),
                         page_size * split.ranks + random.in(-1, 1), random.in(0, 200)});
      lengths.push_back(static_cast<std::int32_t>(length));
    }
  }

  std::string text() const {
    std::string all = "ranks " + std::to_string(split.ranks) + "  interleave " +
                      std::to_string(split.interleave) + "  page_size " +
                      std::to_string(page_size) + "  query_tokens " + std::to_string(query_tokens) +
                      "  heads " + std::to_string(heads) + "  lengths";
    for (const std::int32_t length : lengths) all += ' ' + std::to_string(length);
    return all;
  }
};

/// What all ranks' results of one row come to, by the plain formula in long double.
struct combined_row {
  mla_test::answer answer;
  double lse_size = 1;  ///< of the largest partial LSE that counts, at least 1
};

template <class Partials>
combined_row combined(const Partials& partials, index_t token, index_t head, index_t width) {
  std::vector<mla_test::answer> parts;
  for (const auto& partial : partials) {
    const auto* row = partial.row(token, head);
    parts.push_back({{row, row + width}, static_cast<double>(partial.lse_of(token, head)), {}});
  }
  combined_row result{mla_test::merge(parts)};
  for (const auto& part : parts) {
    if (part.lse > result.answer.lse - 40) {
      result.lse_size = std::max(result.lse_size, std::fabs(part.lse));
    }
  }
  return result;
}

/// The largest error of the combined rows against the truth, relative to what the fp32 rounding of
/// partial LSEs makes of it: 2^-24 of an LSE's size, in each weight and in their sum. Outputs are
/// fp64, so that no more is lost.
struct worst {
  double output = 0;
  double lse = 0;
  void take(const combined_row& found, const mla_test::answer& truth) {
    for (std::size_t d = 0; d < truth.output.size(); ++d) {
      const double off = std::fabs(found.answer.output[d] - truth.output[d]);
      if (off == 0) continue;
      output =
          std::isnan(off) ? INFINITY : std::max(output, off / truth.magnitude[d] / found.lse_size);
    }
    if (found.answer.lse == truth.lse) return;
    const double off = std::fabs(found.answer.lse - truth.lse) / found.lse_size;
    lse = std::isnan(off) ? INFINITY : std::max(lse, off);
  }
};

constexpr double output_bound = 0x1p-23 * 1.001;
constexpr double lse_bound = 0x1p-24 * 1.001;

template <class Record>
void shards_are_the_whole(const char* law) {
  const std::uint64_t seed = seed_of(law);
  mla_test::random_source random(seed);
  worst all;
  for (int i = 0; i < iterations; ++i) {
    const geometry shape(random);
    const auto what = [&] { return shape.text() + "  iteration " + std::to_string(i); };
    problem<Record> step(shape.lengths, shape.query_tokens, shape.heads, random.engine());
    step.scale = random.one_of({0.001, 0.05, 0.5});
    std::vector<outputs<double, Record::latent>> partials;
    bool holds = true;
    for (index_t rank = 0; rank < shape.split.ranks; ++rank) {
      const kv_shard shard{shape.split, rank};
      const auto cache =
          step.cache(shard, shape.page_size, random.one_of<index_t>({0, 1, 16}), random.engine());
      partials.emplace_back(step.tokens(), step.heads);
      holds &=
          reference::mla_decode(
              step.query_view(), cache.kv, cache.block_table(), step.lengths_view(),
              {.softmax_scale = step.scale, .query_tokens = shape.query_tokens, .shard = shard},
              partials.back().output_view(), partials.back().lse_view())
              .ok();
      // A rank's own part is right by itself, and exactly empty where it has no key.
      for (index_t t = 0; t < step.tokens(); ++t) {
        const auto own = step.attend_shard(t, 0, shard);
        holds &= std::isinf(own.lse) == std::isinf(partials.back().lse_of(t, 0));
        if (!std::isinf(own.lse)) continue;
        const double* row = partials.back().row(t, 0);
        holds &= std::all_of(row, row + Record::latent,
                             [](double number) { return number == 0 && !std::signbit(number); });
      }
    }
    worst found;
    for (index_t t = 0; t < step.tokens(); ++t) {
      for (index_t h = 0; h < step.heads; ++h) {
        found.take(combined(partials, t, h, Record::latent), step.attend_all(t, h));
      }
    }
    REQUIRE_MESSAGE(holds, what(), "  seed ", seed);
    REQUIRE_MESSAGE(found.output < output_bound, what(), "  seed ", seed);
    REQUIRE_MESSAGE(found.lse < lse_bound, what(), "  seed ", seed);
    all.output = std::max(all.output, found.output);
    all.lse = std::max(all.lse, found.lse);
  }
  std::printf("property: %s: largest relative error of an output 2^%.2f, of an LSE 2^%.2f\n", law,
              std::log2(all.output), std::log2(all.lse));
}

}  // namespace

TEST_CASE("property: attention over shards, combined, is attention over the whole (bf16)") {
  shards_are_the_whole<little>("bf16 shards");
}

TEST_CASE("property: attention over shards, combined, is attention over the whole (fp8_ds_mla)") {
  shards_are_the_whole<little_fp8>("fp8_ds_mla shards");
}

TEST_CASE("property: sparse attention over localised shards, combined, is that over the whole") {
  const std::uint64_t seed = seed_of("localised shards");
  mla_test::random_source random(seed);
  for (int i = 0; i < iterations; ++i) {
    const geometry shape(random);
    const auto what = [&] { return shape.text() + "  iteration " + std::to_string(i); };
    const problem<little> step(shape.lengths, shape.query_tokens, shape.heads, random.engine());
    // Different positions per row, in any order, holes among them, some that are not visible.
    const index_t keys = random.in(1, 40);
    std::vector<std::int32_t> positions;
    for (index_t t = 0; t < step.tokens(); ++t) {
      std::vector<std::int32_t> row;
      for (index_t p = 0; p < std::max(keys, step.visible(t) + 2); ++p) {
        row.push_back(random.in(0, 2) == 0 ? -1 : static_cast<std::int32_t>(p));
      }
      std::shuffle(row.begin(), row.end(), random.engine);
      positions.insert(positions.end(), row.begin(), row.begin() + keys);
    }
    const auto key_shape = packed(extent<axis::token>(step.tokens()), extent<axis::key>(keys));
    std::vector<outputs<double, little::latent>> partials;
    bool holds = true;
    for (index_t rank = 0; rank < shape.split.ranks; ++rank) {
      const kv_shard shard{shape.split, rank};
      const auto cache = step.cache(shard, shape.page_size, 0, random.engine());
      std::vector<std::int32_t> slots(positions.size());
      std::vector<std::int32_t> counts(at(step.tokens()));
      const view slots_view(slots.data(), key_shape);
      const view counts_view(counts.data(), packed(extent<axis::token>(step.tokens())));
      holds &=
          reference::localize_topk(
              view(std::as_const(positions).data(), key_shape), cache.block_table(),
              step.lengths_view(),
              {.page_size = shape.page_size, .query_tokens = shape.query_tokens, .shard = shard},
              slots_view, counts_view)
              .ok();
      partials.emplace_back(step.tokens(), step.heads);
      holds &= reference::mla_decode_sparse(step.query_view(), cache.kv, slots_view, counts_view,
                                            step.scale, partials.back().output_view(),
                                            partials.back().lse_view())
                   .ok();
      // Without the counts, the -1 behind them are holes: the same bits.
      outputs<double, little::latent> uncounted(step.tokens(), step.heads);
      holds &= reference::mla_decode_sparse(step.query_view(), cache.kv, slots_view, step.scale,
                                            uncounted.output_view(), uncounted.lse_view())
                   .ok();
      holds &= uncounted.same_bits(partials.back());
    }
    worst found;
    for (index_t t = 0; t < step.tokens(); ++t) {
      std::vector<index_t> visible;
      for (index_t k = 0; k < keys; ++k) {
        const index_t position = positions[at(t * keys + k)];
        if (position >= 0 && position < step.visible(t)) visible.push_back(position);
      }
      for (index_t h = 0; h < step.heads; ++h) {
        found.take(combined(partials, t, h, little::latent), step.attend(t, h, visible));
      }
    }
    REQUIRE_MESSAGE(holds, what(), "  seed ", seed);
    REQUIRE_MESSAGE(found.output < output_bound, what(), "  seed ", seed);
    REQUIRE_MESSAGE(found.lse < lse_bound, what(), "  seed ", seed);
  }
}

TEST_CASE("property: fp32 partials combined by the library are within its bound") {
  const std::uint64_t seed = seed_of("combine of shards");
  mla_test::random_source random(seed);
  double highest = 0;
  for (int i = 0; i < iterations; ++i) {
    const geometry shape(random);
    const problem<little> step(shape.lengths, shape.query_tokens, 1, random.engine());
    std::vector<outputs<float, little::latent>> partials;
    bool holds = true;
    for (index_t rank = 0; rank < shape.split.ranks; ++rank) {
      const kv_shard shard{shape.split, rank};
      const auto cache = step.cache(shard, shape.page_size, 0, random.engine());
      partials.emplace_back(step.tokens(), 1);
      holds &=
          reference::mla_decode(
              step.query_view(), cache.kv, cache.block_table(), step.lengths_view(),
              {.softmax_scale = step.scale, .query_tokens = shape.query_tokens, .shard = shard},
              partials.back().output_view(), partials.back().lse_view())
              .ok();
    }
    for (index_t t = 0; t < step.tokens(); ++t) {
      std::vector<lse<log_base::e>> lses;
      for (const auto& partial : partials) lses.push_back({partial.lse_of(t, 0)});
      float weights[max_ranks];
      const lse<log_base::e> merged =
          combine_weights<log_base::e>(static_cast<int>(partials.size()), lses.data(), weights);
      const auto truth = step.attend_all(t, 0);
      holds &= std::isinf(truth.lse) == std::isinf(merged.value);
      for (index_t d = 0; d < little::latent; ++d) {
        float sum = accumulator_start();
        for (std::size_t r = 0; r < partials.size(); ++r) {
          sum = accumulate(sum, weights[r], partials[r].row(t, 0)[d]);
        }
        const double off =
            std::fabs(static_cast<double>(finish(sum, merged)) - truth.output[at(d)]);
        if (off == 0) continue;
        // LSEs below 8 in size are off by 2^-22, fp32 outputs by 2^-24, the combine by a few more.
        highest = std::isnan(off) ? INFINITY : std::max(highest, off / truth.magnitude[at(d)]);
      }
    }
    REQUIRE_MESSAGE(holds, shape.text(), "  seed ", seed, "  iteration ", i);
    REQUIRE_MESSAGE(highest < 20 * 0x1p-24, shape.text(), "  seed ", seed, "  iteration ", i);
  }
  std::printf(
      "property: combine of shards: largest error of an output %.2f * 2^-24 of "
      "sum(weight * |value|)\n",
      highest * 0x1p24);
}
