// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/reference/mla_decode.hpp>

#include <support/mla_problem.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

using namespace headwise;
using mla_test::at;
using mla_test::outputs;
using mla_test::paged_cache;
using mla_test::problem;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

using wide = kv_bf16<512, 64>;
using wide_fp8 = kv_fp8_ds_mla<512, 64>;
using little = kv_bf16<16, 4>;  // for what does not depend on the width

constexpr kv_shard unsharded{};

kv_shard shard_of(index_t ranks, index_t interleave, index_t rank) {
  return kv_shard::make(interleaving::make(ranks, interleave).value(), rank).value();
}

template <class Record, class Element = double, log_base Base = log_base::e>
outputs<Element, Record::latent, Base> decode(const problem<Record>& step,
                                              const paged_cache<Record>& cache, kv_shard shard) {
  outputs<Element, Record::latent, Base> result(step.tokens(), step.heads);
  const status done = reference::mla_decode(
      step.query_view(), cache.kv, cache.block_table(), step.lengths_view(),
      {.softmax_scale = step.scale, .query_tokens = step.query_tokens, .shard = shard},
      result.output_view(), result.lse_view());
  REQUIRE(done.ok());
  return result;
}

/// The largest error over all rows: of outputs in units of sum(weight * |value|), of LSEs absolute.
struct errors {
  double output = 0;
  double lse = 0;

  void take(const double* row, float lse_of, const mla_test::answer& truth) {
    for (std::size_t d = 0; d < truth.output.size(); ++d) {
      const double off = std::fabs(row[d] - truth.output[d]);
      // A NaN is an error without bound.
      output = off == 0          ? output
               : std::isnan(off) ? infinity
                                 : std::max(output, off / truth.magnitude[d]);
    }
    if (std::isinf(truth.lse) && static_cast<double>(lse_of) == truth.lse) return;
    const double off = std::fabs(static_cast<double>(lse_of) - truth.lse);
    lse = std::isnan(off) ? infinity : std::max(lse, off);
  }
};

bool is_empty_row(const mla_test::any_outputs<double>& result, index_t token, index_t head) {
  const double* row = result.row(token, head);
  return static_cast<double>(result.lse_of(token, head)) == -infinity &&
         std::all_of(row, row + result.width,
                     [](double number) { return number == 0 && !std::signbit(number); });
}

/// One sequence of tokens that are all alike: `latent` everywhere, `rope` in the first rope column.
/// With a query of `q_rope` there, and 0 elsewhere, each logit is q_rope * rope * scale.
template <class Record>
struct equal_keys {
  std::vector<std::byte> memory;
  std::vector<std::uint16_t> query;
  std::int32_t length;

  equal_keys(index_t count, float latent, float rope, float q_rope)
      : length(static_cast<std::int32_t>(count)) {
    const std::uint16_t parts[] = {mla_test::bf16_bits(latent), mla_test::bf16_bits(rope)};
    for (index_t i = 0; i < count; ++i) {
      for (index_t d = 0; d < Record::head_dim; ++d) {
        const auto* part = reinterpret_cast<const std::byte*>(&parts[d < Record::latent ? 0 : 1]);
        memory.insert(memory.end(), part, part + 2);
      }
    }
    query.assign(at(Record::head_dim), 0);
    if (Record::rope > 0) query[at(Record::latent)] = mla_test::bf16_bits(q_rope);
  }
  auto kv() const { return paged_kv<Record>::packed(memory.data(), length, 1); }
  auto query_view() const {
    return view(reinterpret_cast<const bf16*>(query.data()),
                packed(extent<axis::token>(1), extent<axis::head>(1),
                       extent<axis::head_dim, Record::head_dim>()));
  }
};

template <class T>
auto vector_view(const std::vector<T>& list) {
  return view(list.data(), packed(extent<axis::sequence>(static_cast<index_t>(list.size()))));
}

auto slots_view(const std::vector<std::int32_t>& slots, index_t tokens) {
  return view(
      slots.data(),
      packed(extent<axis::token>(tokens),
             extent<axis::key>(tokens == 0 ? 0 : static_cast<index_t>(slots.size()) / tokens)));
}

}  // namespace

TEST_CASE("mla_decode: agrees with attention in long double") {
  errors all;
  const auto compare = [&](const char* what, const mla_test::any_problem& step,
                           const mla_test::any_outputs<double>& result) {
    CAPTURE(what);
    errors found;
    for (index_t t = 0; t < step.tokens(); ++t) {
      for (index_t h = 0; h < step.heads; ++h) {
        found.take(result.row(t, h), result.lse_of(t, h), step.attend_all(t, h));
      }
    }
    CHECK(found.output < 0x1p-44);
    CHECK(found.lse < 0x1p-20);  // LSEs are below 16, an fp32 is off by 2^-21 at most
    all.output = std::max(all.output, found.output);
    all.lse = std::max(all.lse, found.lse);
  };
  const auto check = [&]<class Record>(const char* what, Record, index_t q, index_t heads,
                                       std::uint64_t seed) {
    const problem<Record> step({37, 0, 1, 16, 100}, q, heads, seed);
    compare(what, step, decode(step, step.cache(unsharded, 16, 6, seed), unsharded));
  };
  check("bf16 512 + 64", wide{}, 1, 5, 1);
  check("fp8 512 + 64, three query tokens", wide_fp8{}, 3, 3, 2);
  check("bf16 512 + 0", kv_bf16<512, 0>{}, 1, 2, 3);
  check("fp8 512 + 0", kv_fp8_ds_mla<512, 0>{}, 2, 2, 4);
  check("bf16 256 + 64", kv_bf16<256, 64>{}, 1, 2, 5);
  check("fp8 256 + 64", kv_fp8_ds_mla<256, 64>{}, 1, 2, 6);
  check("bf16 1024 + 64", kv_bf16<1024, 64>{}, 1, 1, 7);
  check("widths that are multiples of nothing", kv_bf16<13, 5>{}, 4, 19, 8);
  std::printf(
      "mla_decode: largest error of an output 2^%.2f of sum(weight * |value|), of an fp32 LSE "
      "%.3g\n",
      std::log2(all.output), all.lse);
}

TEST_CASE("mla_decode: a truth of many keys, and of weights far apart") {
  problem<wide_fp8> step({700}, 1, 2, 11);
  const auto cache = step.cache(unsharded, 64, 0, 11);
  for (const double scale : {1e-6, 0.1, 3.0, 100.0}) {
    CAPTURE(scale);
    step.scale = scale;
    const auto result = decode(step, cache, unsharded);
    errors found;
    double highest = 1;
    for (index_t h = 0; h < 2; ++h) {
      const auto truth = step.attend_all(0, h);
      highest = std::max(highest, std::fabs(truth.lse));
      found.take(result.row(0, h), result.lse_of(0, h), truth);
    }
    // A logit of size x is off by some 2^-52 of x, and its weight by as much relative to itself.
    CHECK(found.output < 0x1p-44 * highest);
    CHECK(found.lse < 0x1p-23 * highest);
  }
}

TEST_CASE("mla_decode: fp32, fp16 and bf16 outputs are the float64 result rounded once") {
  const problem<wide> step({50, 3}, 2, 4, 21);
  const auto cache = step.cache(unsharded, 8, 0, 21);
  const auto exact = decode(step, cache, unsharded);
  const auto as_float = decode<wide, float>(step, cache, unsharded);
  const auto as_half = decode<wide, fp16>(step, cache, unsharded);
  const auto as_bf16 = decode<wide, bf16>(step, cache, unsharded);

  const auto nearest = [](double value, double got, int bits) {
    const double unit = std::ldexp(1.0, std::ilogb(value) - bits + 1);
    return std::fabs(got - value) <= unit / 2 && std::fmod(got, unit) == 0;
  };
  index_t wrong = 0;
  for (std::size_t i = 0; i < exact.output.size(); ++i) {
    const double value = exact.output[i];
    REQUIRE(std::fabs(value) > 1e-7);  // the formula of fp16 below is for normal numbers
    wrong += as_float.output[i] != static_cast<float>(value);
    wrong += !nearest(value, static_cast<double>(to_float(as_bf16.output[i])), 8);
    if (std::fabs(value) > 0x1p-14) {
      wrong += !nearest(value, static_cast<double>(to_float(as_half.output[i])), 11);
    }
  }
  CHECK(wrong == 0);
  CHECK(as_float.lse_of(1, 1) == as_bf16.lse_of(1, 1));
}

TEST_CASE("mla_decode: a 16-bit output is not rounded to fp32 first") {
  // Weights of one half each, a hair apart: 1 + 2^-8 and a little, where bf16 has 1 and 1 + 2^-7.
  equal_keys<little> step(2, 1.0f, 0.0f, 1.0f);
  const std::uint16_t larger = mla_test::bf16_bits(1.0f + 0x1p-7f);
  const std::uint16_t rope = mla_test::bf16_bits(1.0f);
  std::byte* second = step.memory.data() + little::record_bytes;
  for (index_t d = 0; d < little::latent; ++d) std::memcpy(second + 2 * d, &larger, 2);
  std::memcpy(second + 2 * little::latent, &rope, 2);

  outputs<bf16, little::latent> result(1, 1);
  const std::vector<std::int32_t> slots = {0, 1};
  REQUIRE(reference::mla_decode_sparse(step.query_view(), step.kv(), slots_view(slots, 1), 0x1p-30,
                                       result.output_view(), result.lse_view())
              .ok());
  CHECK(result.output[0].bits == larger);
}

TEST_CASE("mla_decode: a base-2 LSE is log2 of the same sum") {
  const problem<little> step({40, 7}, 1, 3, 31);
  const auto cache = step.cache(unsharded, 4, 0, 31);
  const auto natural = decode(step, cache, unsharded);
  const auto base_2 = decode<little, double, log_base::two>(step, cache, unsharded);
  for (index_t t = 0; t < 2; ++t) {
    for (index_t h = 0; h < 3; ++h) {
      const double truth = step.attend_all(t, h).lse;
      CHECK(static_cast<double>(natural.lse_of(t, h)) == doctest::Approx(truth).epsilon(1e-7));
      CHECK(static_cast<double>(base_2.lse_of(t, h)) ==
            doctest::Approx(truth / std::log(2.0)).epsilon(1e-7));
    }
  }
}

TEST_CASE("mla_decode: queries may be fp32, fp16 or bf16, in any layout") {
  const problem<little> step({20, 9}, 1, 3, 41);
  const auto cache = step.cache(unsharded, 4, 0, 41);
  const auto expected = decode(step, cache, unsharded);
  constexpr index_t width = little::head_dim;

  const auto same_for = [&]<class Element>(std::vector<Element> query, auto query_view) {
    outputs<double, little::latent> result(2, 3);
    REQUIRE(reference::mla_decode(query_view(query.data()), cache.kv, cache.block_table(),
                                  step.lengths_view(), {.softmax_scale = step.scale},
                                  result.output_view(), result.lse_view())
                .ok());
    CHECK(result.same_bits(expected));
  };
  std::vector<float> floats(at(3 * 2 * 40), std::numeric_limits<float>::quiet_NaN());
  for (index_t t = 0; t < 2; ++t) {
    for (index_t h = 0; h < 3; ++h) {
      for (index_t d = 0; d < width; ++d) {
        floats[at(h * 80 + t * 40 + d)] =
            static_cast<float>(step.query_numbers[at((t * 3 + h) * width + d)]);
      }
    }
  }
  // Head outermost, rows padded with NaN.
  same_for(floats, [](const float* data) {
    return view(data, layout(dim<axis::head>(3, 80), dim<axis::token>(2, 40),
                             dim<axis::head_dim>(width, 1)));
  });
  std::vector<fp16> halves;
  for (const double number : step.query_numbers) {
    halves.push_back(from_float<fp16>(static_cast<float>(number)));
  }
  same_for(halves, [](const fp16* data) {
    return view(
        data, packed(extent<axis::token>(2), extent<axis::head>(3), extent<axis::head_dim>(width)));
  });
}

TEST_CASE("A13: mla_decode: the query is a strided part of a wider row") {
  const problem<little> step({6, 11}, 1, 2, 43);
  const auto cache = step.cache(unsharded, 4, 0, 43);
  const auto expected = decode(step, cache, unsharded);
  std::vector<std::uint16_t> fused(2 * 256, 0x7fff);
  for (index_t t = 0; t < 2; ++t) {
    for (index_t i = 0; i < 2 * little::head_dim; ++i) {
      fused[at(256 * t + i)] = step.query[at(t * 2 * little::head_dim + i)];
    }
  }
  outputs<double, little::latent> result(2, 2);
  const view query(reinterpret_cast<const bf16*>(fused.data()),
                   layout(dim<axis::token, dynamic_extent, 256>(2),
                          dim<axis::head, 2, little::head_dim>(2, little::head_dim),
                          dim<axis::head_dim, little::head_dim, 1>(little::head_dim, 1)));
  REQUIRE(reference::mla_decode(query, cache.kv, cache.block_table(), step.lengths_view(),
                                {.softmax_scale = step.scale}, result.output_view(),
                                result.lse_view())
              .ok());
  CHECK(result.same_bits(expected));
}

TEST_CASE("mla_decode: any number of heads, in head-sliced views of padded buffers") {
  for (const index_t heads : {1, 3, 4, 6, 8, 12, 16, 17, 20, 24, 48, 63, 66, 96, 126, 128}) {
    CAPTURE(heads);
    const index_t padded_heads = heads + 10;
    const problem<little> step({5, 1}, 1, heads, 50);
    const auto cache = step.cache(unsharded, 4, 0, 50);

    outputs<double, little::latent> buffer(2, padded_heads);
    std::vector<std::uint16_t> query(at(2 * padded_heads * little::head_dim), 0xffff);
    for (index_t t = 0; t < 2; ++t) {
      std::copy_n(step.query.data() + t * heads * little::head_dim, heads * little::head_dim,
                  query.data() + t * padded_heads * little::head_dim);
    }
    const view all_query(reinterpret_cast<const bf16*>(query.data()),
                         packed(extent<axis::token>(2), extent<axis::head>(padded_heads),
                                extent<axis::head_dim, little::head_dim>()));
    REQUIRE(reference::mla_decode(slice<axis::head>(all_query, 0, heads).value(), cache.kv,
                                  cache.block_table(), step.lengths_view(),
                                  {.softmax_scale = step.scale},
                                  slice<axis::head>(buffer.output_view(), 0, heads).value(),
                                  slice<axis::head>(buffer.lse_view(), 0, heads).value())
                .ok());
    errors found;
    index_t touched = 0;
    for (index_t t = 0; t < 2; ++t) {
      for (index_t h = 0; h < heads; ++h) {
        found.take(buffer.row(t, h), buffer.lse_of(t, h), step.attend_all(t, h));
      }
      for (index_t h = heads; h < padded_heads; ++h) {
        touched += !std::isnan(buffer.lse_of(t, h));
        for (index_t d = 0; d < little::latent; ++d) touched += !std::isnan(buffer.row(t, h)[d]);
      }
    }
    CHECK(found.output < 0x1p-44);
    CHECK(found.lse < 0x1p-21);
    CHECK(touched == 0);
  }
}

TEST_CASE("mla_decode: the same data through packed, transposed and sliced LSE and output views") {
  const problem<little> step({9, 30, 2}, 1, 4, 60);
  const auto cache = step.cache(unsharded, 4, 0, 60);
  const auto expected = decode(step, cache, unsharded);

  std::vector<double> output(at(4 * 1000), -1.0);
  std::vector<lse<log_base::e>> lses(at(4 * 7), {-1.0f});
  // [head, token], a head pitch of 7 and of 1000.
  REQUIRE(reference::mla_decode(
              step.query_view(), cache.kv, cache.block_table(), step.lengths_view(),
              {.softmax_scale = step.scale},
              view(output.data(), layout(dim<axis::head>(4, 1000), dim<axis::token>(3, 20),
                                         dim<axis::head_dim>(little::latent, 1))),
              view(lses.data(), layout(dim<axis::head>(4, 7), dim<axis::token>(3, 1))))
              .ok());
  index_t wrong = 0;
  index_t written = 0;
  for (index_t t = 0; t < 3; ++t) {
    for (index_t h = 0; h < 4; ++h) {
      wrong += lses[at(7 * h + t)].value != expected.lse_of(t, h);
      for (index_t d = 0; d < little::latent; ++d) {
        wrong += output[at(1000 * h + 20 * t + d)] != expected.row(t, h)[d];
      }
    }
  }
  for (const double number : output) written += number != -1.0;
  for (const auto& number : lses) written += number.value != -1.0f;
  CHECK(wrong == 0);
  CHECK(written == 3 * 4 * (little::latent + 1));
}

TEST_CASE("mla_decode: bits depend on the row alone, not on batch, heads, pages or strides") {
  const problem<wide> step({70, 5, 33}, 2, 3, 70);
  const auto expected = decode(step, step.cache(unsharded, 64, 0, 70), unsharded);
  for (const index_t page_size : {1, 16, 53}) {
    const auto result =
        decode(step, step.cache(unsharded, page_size, 2 * page_size, 71), unsharded);
    CHECK(result.same_bits(expected));
  }
  const auto cache = step.cache(unsharded, 16, 0, 72);
  for (index_t s = 0; s < 3; ++s) {
    for (index_t h = 0; h < 3; ++h) {
      CAPTURE(s);
      CAPTURE(h);
      outputs<double, wide::latent> one(2, 1);
      const auto query = slice<axis::head>(
          slice<axis::token>(step.query_view(), 2 * s, index_t{2}).value(), h, index_t{1});
      REQUIRE(
          reference::mla_decode(query.value(), cache.kv,
                                slice<axis::sequence>(cache.block_table(), s, index_t{1}).value(),
                                slice<axis::sequence>(step.lengths_view(), s, index_t{1}).value(),
                                {.softmax_scale = step.scale, .query_tokens = 2}, one.output_view(),
                                one.lse_view())
              .ok());
      for (index_t j = 0; j < 2; ++j) {
        CHECK(std::memcmp(one.row(j, 0), expected.row(2 * s + j, h), sizeof(double) * 512) == 0);
        CHECK(one.lse_of(j, 0) == expected.lse_of(2 * s + j, h));
      }
    }
  }
}

TEST_CASE("B04: mla_decode: the -inf of an empty row lands in that row's own LSE slot") {
  // Query lengths 3 and 1, two heads; sequence 1 has no keys. One call per query length.
  const problem<little> first({5}, 3, 2, 80);
  const problem<little> second({0}, 1, 2, 81);
  const auto first_cache = first.cache(unsharded, 4, 0, 80);
  const auto second_cache = second.cache(unsharded, 4, 0, 81);
  const auto expected = decode(first, first_cache, unsharded);
  std::vector<double> output(at(4 * 2 * little::latent));
  const view out(output.data(), packed(extent<axis::token>(4), extent<axis::head>(2),
                                       extent<axis::head_dim, little::latent>()));

  const auto run = [&](auto first_lse, auto second_lse) {
    REQUIRE(reference::mla_decode(first.query_view(), first_cache.kv, first_cache.block_table(),
                                  first.lengths_view(),
                                  {.softmax_scale = first.scale, .query_tokens = 3},
                                  slice<axis::token>(out, 0, index_t{3}).value(), first_lse)
                .ok());
    REQUIRE(reference::mla_decode(second.query_view(), second_cache.kv, second_cache.block_table(),
                                  second.lengths_view(), {.softmax_scale = second.scale},
                                  slice<axis::token>(out, 3, index_t{1}).value(), second_lse)
                .ok());
  };
  constexpr float untouched = 1234;

  SUBCASE("packed: head, then all 4 query tokens") {
    std::vector<lse<log_base::e>> lses(10, {untouched});
    const view all(lses.data(), layout(dim<axis::head>(2, 4), dim<axis::token>(4, 1)));
    run(slice<axis::token>(all, 0, index_t{3}).value(),
        slice<axis::token>(all, 3, index_t{1}).value());
    for (index_t i = 0; i < 10; ++i) {
      CAPTURE(i);
      const float value = lses[at(i)].value;
      if (i == 3 || i == 7) {
        CHECK(static_cast<double>(value) == -infinity);
      } else if (i < 8) {
        CHECK(value == expected.lse_of(i % 4, i / 4));
      } else {
        CHECK(value == untouched);
      }
    }
  }
  SUBCASE("padded: sequence, head, then up to 3 query tokens") {
    std::vector<lse<log_base::e>> lses(12, {untouched});
    run(view(lses.data(), layout(dim<axis::token>(3, 1), dim<axis::head>(2, 3))),
        view(lses.data() + 6, layout(dim<axis::token>(1, 1), dim<axis::head>(2, 3))));
    for (index_t i = 0; i < 12; ++i) {
      CAPTURE(i);
      const float value = lses[at(i)].value;
      if (i == 6 || i == 9) {
        CHECK(static_cast<double>(value) == -infinity);
      } else if (i < 6) {
        CHECK(value == expected.lse_of(i % 3, i / 3));
      } else {
        CHECK(value == untouched);
      }
    }
  }
}

TEST_CASE("C11: mla_decode: logits far below any sentinel count in full") {
  // 240 * 250 = 60,000; both are bf16 numbers.
  const equal_keys<little> step(4, 7.0f, 250.0f, -240.0f);
  outputs<double, little::latent> result(1, 1);
  const std::vector<std::int32_t> table = {0, 1, 2, 3};
  const view block_table(table.data(), packed(extent<axis::sequence>(1), extent<axis::page>(4)));
  const view lengths(&step.length, packed(extent<axis::sequence>(1)));
  for (const double scale : {1.0, 5.0 / 3.0, 1e30}) {
    REQUIRE(reference::mla_decode(step.query_view(), step.kv(), block_table, lengths,
                                  {.softmax_scale = scale}, result.output_view(), result.lse_view())
                .ok());
    CHECK(result.output == std::vector<double>(at(little::latent), 7.0));
    CHECK(result.lse_of(0, 0) == static_cast<float>(-60000.0 * scale + std::log(4.0)));
  }
}

TEST_CASE(
    "C11: mla_decode: shifting all logits by -100,000 changes the LSE by that and the output by "
    "nothing") {
  problem<little> step({20}, 1, 1, 90);
  step.scale = 1;
  // The last rope column: q * k = -100,000 / 2^5 * 2^5, the same for all keys.
  const auto set_last_column = [&](float q, float k) {
    const std::uint16_t q_bits = mla_test::bf16_bits(q);
    const std::uint16_t k_bits = mla_test::bf16_bits(k);
    step.query.back() = q_bits;
    for (index_t i = 0; i < 20; ++i) {
      std::memcpy(step.records[0].data() + (i + 1) * little::record_bytes - 2, &k_bits, 2);
    }
  };
  set_last_column(0.0f, 0.0f);
  const auto unshifted = decode(step, step.cache(unsharded, 4, 0, 90), unsharded);
  set_last_column(-400.0f, 250.0f);
  const auto shifted = decode(step, step.cache(unsharded, 4, 0, 90), unsharded);
  CHECK(static_cast<double>(shifted.lse_of(0, 0)) ==
        doctest::Approx(static_cast<double>(unshifted.lse_of(0, 0)) - 100000.0).epsilon(1e-7));
  for (index_t d = 0; d < little::latent; ++d) {
    CHECK(shifted.output[at(d)] == doctest::Approx(unshifted.output[at(d)]).epsilon(1e-12));
  }
}

TEST_CASE("C12: mla_decode: holes in front of the first key, or anywhere, are no keys") {
  equal_keys<little> step(5, 0.0f, 0.0f, 1.0f);
  for (int i = 0; i < 5; ++i) {  // values 1, 2, 3, 4 and a row of NaN that nobody asks for
    const std::uint16_t bits = i < 4 ? mla_test::bf16_bits(static_cast<float>(i + 1)) : 0xffff;
    for (index_t d = 0; d < little::latent; ++d) {
      std::memcpy(step.memory.data() + i * little::record_bytes + 2 * d, &bits, 2);
    }
  }
  const auto run = [&](std::vector<std::int32_t> slots) {
    outputs<double, little::latent> result(1, 1);
    REQUIRE(reference::mla_decode_sparse(step.query_view(), step.kv(), slots_view(slots, 1), 1.0,
                                         result.output_view(), result.lse_view())
                .ok());
    return result;
  };
  const auto expected = run({0, 1, 2, 3});
  CHECK(expected.output == std::vector<double>(at(little::latent), 2.5));
  CHECK(expected.lse_of(0, 0) == doctest::Approx(1.386294).epsilon(1e-6));

  for (const index_t holes : {1, 15, 16, 17, 64, 200}) {
    CAPTURE(holes);
    std::vector<std::int32_t> slots(at(holes), -1);
    for (const std::int32_t slot : {0, 1, 2, 3}) slots.push_back(slot);
    CHECK(run(slots).same_bits(expected));
    std::mt19937_64 engine(1);
    for (int i = 0; i < 20; ++i) {
      std::shuffle(slots.begin(), slots.end(), engine);
      const auto shuffled = run(slots);
      CHECK(shuffled.output == expected.output);
      CHECK(shuffled.lse_of(0, 0) == expected.lse_of(0, 0));
    }
  }
  CHECK(is_empty_row(run(std::vector<std::int32_t>(300, -1)), 0, 0));
  CHECK(is_empty_row(run({-1}), 0, 0));
}

TEST_CASE("C13: H11: mla_decode: a padded row of length 0 is exactly empty and touches nothing") {
  const problem<wide> three({5, 5, 5}, 1, 2, 100);
  problem<wide> four({5, 5, 5, 0}, 1, 2, 100);
  std::copy(three.query.begin(), three.query.end(), four.query.begin());
  four.records[0] = three.records[0];
  four.records[1] = three.records[1];
  four.records[2] = three.records[2];
  const auto cache = four.cache(unsharded, 4, 0, 100);
  const auto expected = decode(three, three.cache(unsharded, 4, 0, 101), unsharded);

  SUBCASE("dense: no entry of the padded row's table is looked at") {
    auto result = decode(four, cache, unsharded);
    CHECK(is_empty_row(result, 3, 0));
    CHECK(is_empty_row(result, 3, 1));
    result.output.resize(expected.output.size());
    result.lses.resize(expected.lses.size());
    CHECK(result.same_bits(expected));
  }
  SUBCASE("sparse: slots of -1") {
    std::vector<std::int32_t> slots;
    for (index_t s = 0; s < 4; ++s) {
      for (index_t i = 0; i < 5; ++i) {
        const auto page = cache.table[at(s * cache.table_stride + i / 4)];
        slots.push_back(s == 3 ? -1 : static_cast<std::int32_t>(page * 4 + i % 4));
      }
    }
    outputs<double, wide::latent> result(4, 2);
    REQUIRE(reference::mla_decode_sparse(four.query_view(), cache.kv, slots_view(slots, 4),
                                         four.scale, result.output_view(), result.lse_view())
                .ok());
    CHECK(is_empty_row(result, 3, 0));
    CHECK(is_empty_row(result, 3, 1));
    result.output.resize(expected.output.size());
    result.lses.resize(expected.lses.size());
    CHECK(result.same_bits(expected));
  }
}

TEST_CASE("C17: mla_decode: thousands of equal keys weigh 1 together") {
  for (const index_t count : {4096, 8192}) {
    CAPTURE(count);
    const equal_keys<wide> step(count, 1.0f, 0.0f, 0.0f);
    std::vector<std::int32_t> table(at(count));
    std::iota(table.begin(), table.end(), 0);
    const view block_table(table.data(),
                           packed(extent<axis::sequence>(1), extent<axis::page>(count)));
    const view lengths(&step.length, packed(extent<axis::sequence>(1)));
    outputs<fp16, wide::latent> result(1, 1);
    REQUIRE(reference::mla_decode(step.query_view(), step.kv(), block_table, lengths,
                                  {.softmax_scale = 1.0}, result.output_view(), result.lse_view())
                .ok());
    for (const fp16 number : result.output) REQUIRE(to_float(number) == 1.0f);
    CHECK(static_cast<double>(result.lse_of(0, 0)) ==
          doctest::Approx(count == 4096 ? 8.317766 : 9.010913).epsilon(1e-7));
  }
}

TEST_CASE("D01: mla_decode: a rank without tokens emits (0, -inf), and the group is right") {
  const auto check = [](index_t length, index_t ranks, std::vector<index_t> lengths) {
    CAPTURE(length);
    CAPTURE(ranks);
    const problem<little> step({static_cast<std::int32_t>(length)}, 1, 2, 110);
    std::vector<outputs<double, little::latent>> partials;
    for (index_t rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      const kv_shard shard = shard_of(ranks, 1, rank);
      REQUIRE(shard.local_length(length) == lengths[at(rank)]);
      partials.push_back(decode(step, step.cache(shard, 4, 0, 110), shard));
      if (lengths[at(rank)] == 0) {
        CHECK(is_empty_row(partials.back(), 0, 0));
        CHECK(is_empty_row(partials.back(), 0, 1));
      } else {
        CHECK_FALSE(is_empty_row(partials.back(), 0, 0));
      }
    }
    for (index_t h = 0; h < 2; ++h) {
      std::vector<mla_test::answer> parts;
      for (const auto& partial : partials) {
        const double* row = partial.row(0, h);
        parts.push_back(
            {{row, row + little::latent}, static_cast<double>(partial.lse_of(0, h)), {}});
      }
      const auto merged = mla_test::merge(parts);
      const auto truth = step.attend_all(0, h);
      for (index_t d = 0; d < little::latent; ++d) {
        CHECK(std::fabs(merged.output[at(d)] - truth.output[at(d)]) < 1e-6);
      }
      CHECK(std::fabs(merged.lse - truth.lse) < 1e-6);
    }
  };
  check(3, 4, {1, 1, 1, 0});
  check(1, 8, {1, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("D08: mla_decode: entries of other ranks, dropped or left as holes, give the same bits") {
  const problem<wide_fp8> step({90}, 1, 2, 120);
  const kv_shard shard = shard_of(3, 4, 1);
  const auto cache = step.cache(shard, 8, 0, 120);
  std::vector<std::int32_t> holes;
  std::vector<std::int32_t> dropped;
  for (index_t position = 89; position >= 0; position -= 2) {
    if (!shard.owns(position)) {
      holes.push_back(-1);
      continue;
    }
    const index_t local = shard.local(position);
    const auto slot = static_cast<std::int32_t>(cache.table[at(local / 8)] * 8 + local % 8);
    holes.push_back(slot);
    dropped.push_back(slot);
  }
  const index_t left = static_cast<index_t>(dropped.size());
  REQUIRE(left > 3);
  REQUIRE(dropped.size() < holes.size());
  const auto run = [&](const std::vector<std::int32_t>& slots) {
    outputs<float, wide_fp8::latent> result(1, 2);
    REQUIRE(reference::mla_decode_sparse(step.query_view(), cache.kv, slots_view(slots, 1),
                                         step.scale, result.output_view(), result.lse_view())
                .ok());
    return result;
  };
  const auto expected = run(dropped);
  CHECK(run(holes).same_bits(expected));

  // Compacted to a prefix, with a count, and anything behind it.
  dropped.resize(holes.size(), 2147480000);
  const std::int32_t count = static_cast<std::int32_t>(left);
  outputs<float, wide_fp8::latent> counted(1, 2);
  REQUIRE(reference::mla_decode_sparse(step.query_view(), cache.kv, slots_view(dropped, 1),
                                       view(&count, packed(extent<axis::token>(1))), step.scale,
                                       counted.output_view(), counted.lse_view())
              .ok());
  CHECK(counted.same_bits(expected));
}

TEST_CASE(
    "mla_decode: a slot list of the same keys in the same order has the bits of a block table") {
  const problem<wide_fp8> step({40, 17}, 1, 2, 125);
  const auto cache = step.cache(unsharded, 8, 16, 125);
  std::vector<std::int32_t> slots(at(2 * 40), -1);
  for (index_t s = 0; s < 2; ++s) {
    for (index_t i = 0; i < step.lengths[at(s)]; ++i) {
      const auto page = cache.table[at(s * cache.table_stride + i / 8)];
      slots[at(s * 40 + i)] = static_cast<std::int32_t>(page * 8 + i % 8);
    }
  }
  outputs<double, wide_fp8::latent> result(2, 2);
  REQUIRE(reference::mla_decode_sparse(step.query_view(), cache.kv, slots_view(slots, 2),
                                       step.scale, result.output_view(), result.lse_view())
              .ok());
  CHECK(result.same_bits(decode(step, cache, unsharded)));
}

TEST_CASE("D11: mla_decode: the block table has the local width and the stride that is given") {
  // Two ranks, pages of 64, 256 tokens: two local pages per sequence, rows four entries apart.
  const problem<little> step({256, 256}, 1, 1, 130);
  const kv_shard shard = shard_of(2, 1, 1);
  const auto cache = step.cache(shard, 64, 0, 130);
  std::vector<std::int32_t> table(8, 2147480000);
  for (index_t s = 0; s < 2; ++s) {
    for (index_t p = 0; p < 2; ++p) {
      table[at(4 * s + p)] = cache.table[at(s * cache.table_stride + p)];
    }
  }
  const view block_table(table.data(), layout(dim<axis::sequence>(2, 4), dim<axis::page>(2, 1)));
  outputs<double, little::latent> result(2, 1);
  REQUIRE(reference::mla_decode(step.query_view(), cache.kv, block_table, step.lengths_view(),
                                {.softmax_scale = step.scale, .shard = shard}, result.output_view(),
                                result.lse_view())
              .ok());
  errors found;
  for (index_t s = 0; s < 2; ++s) {
    found.take(result.row(s, 0), result.lse_of(s, 0), step.attend_shard(s, 0, shard));
  }
  CHECK(found.output < 0x1p-44);
  CHECK(found.lse < 0x1p-20);

  // The global width is no width of a local table: as its row 1 would be read at entry 2.
  outputs<double, little::latent> untouched(2, 1);
  const view too_narrow(table.data(), layout(dim<axis::sequence>(2, 4), dim<axis::page>(1, 1)));
  const status narrow = reference::mla_decode(
      step.query_view(), cache.kv, too_narrow, step.lengths_view(),
      {.softmax_scale = step.scale, .shard = shard}, untouched.output_view(), untouched.lse_view());
  CHECK(narrow.code == errc::shape_mismatch);
  CHECK(narrow.operand == std::string("block_table"));
  CHECK(narrow.got == 1);
  CHECK(narrow.expected == 2);
  CHECK(untouched.untouched());
}

TEST_CASE("G06: mla_decode: an output is as wide as the latent part") {
  const problem<wide> step({3}, 1, 1, 140);
  const auto cache = step.cache(unsharded, 4, 0, 140);
  for (const index_t width : {576, 511, 513, 0}) {
    CAPTURE(width);
    std::vector<double> output(576, -1);
    outputs<double, wide::latent> other(1, 1);
    const status wrong = reference::mla_decode(
        step.query_view(), cache.kv, cache.block_table(), step.lengths_view(),
        {.softmax_scale = 1.0},
        view(output.data(),
             packed(extent<axis::token>(1), extent<axis::head>(1), extent<axis::head_dim>(width))),
        other.lse_view());
    CHECK(wrong.code == errc::shape_mismatch);
    CHECK(wrong.operand == std::string("output"));
    CHECK(wrong.axis == std::string("head_dim"));
    CHECK(wrong.got == width);
    CHECK(wrong.expected == 512);
    CHECK(output == std::vector<double>(576, -1));
    CHECK(other.untouched());
  }
}

TEST_CASE("K01: K03: mla_decode: each query token sees what it may of the whole sequence") {
  // Equal logits, so that exp(lse) counts the keys.
  const auto seen = [](index_t ranks, index_t interleave, index_t length, index_t query_tokens,
                       index_t rank) {
    problem<little> step({static_cast<std::int32_t>(length)}, query_tokens, 1, 150);
    std::fill(step.query.begin(), step.query.end(), std::uint16_t{0});
    const kv_shard shard = shard_of(ranks, interleave, rank);
    const auto result = decode(step, step.cache(shard, 4, 0, 150), shard);
    std::vector<index_t> counts;
    for (index_t j = 0; j < query_tokens; ++j) {
      counts.push_back(std::lround(std::exp(static_cast<double>(result.lse_of(j, 0)))));
    }
    return counts;
  };
  using list = std::vector<index_t>;
  // Four ranks, ten tokens, four of them query tokens: by rank, then by query token.
  CHECK(seen(4, 1, 10, 4, 0) == list{2, 2, 3, 3});
  CHECK(seen(4, 1, 10, 4, 1) == list{2, 2, 2, 3});
  CHECK(seen(4, 1, 10, 4, 2) == list{2, 2, 2, 2});
  CHECK(seen(4, 1, 10, 4, 3) == list{1, 2, 2, 2});
  // Two ranks: counting back from the local length of 5 would give {3, 4, 5}.
  CHECK(seen(2, 1, 10, 3, 1) == list{4, 4, 5});
  CHECK(seen(2, 1, 10, 2, 0) == list{5, 5});
  CHECK(seen(2, 16, 33, 2, 1) == list{16, 16});
  CHECK(seen(2, 64, 129, 3, 0) == list{64, 64, 65});
}

TEST_CASE("K01: mla_decode: query tokens in front of the sequence see nothing") {
  const problem<little> step({2}, 4, 1, 160);
  const auto result = decode(step, step.cache(unsharded, 4, 0, 160), unsharded);
  CHECK(is_empty_row(result, 0, 0));
  CHECK(is_empty_row(result, 1, 0));
  errors found;
  for (index_t j = 2; j < 4; ++j) {
    REQUIRE(step.visible(j) == j - 1);
    found.take(result.row(j, 0), result.lse_of(j, 0), step.attend_all(j, 0));
  }
  CHECK(found.output < 0x1p-44);
  CHECK(found.lse < 0x1p-21);
}

TEST_CASE("L02: mla_decode: key and value are one record with one scale") {
  // Stored 0.5 with a scale of 2, so 1.0; a scale of its own for values does not exist.
  std::vector<std::byte> record(656, std::byte{0x30});  // e4m3 0.5
  for (int group = 0; group < 4; ++group) {
    const float k_scale = 2.0f;
    std::memcpy(record.data() + 512 + 4 * group, &k_scale, 4);
  }
  std::fill(record.begin() + 528, record.end(), std::byte{0});
  std::vector<std::uint16_t> query(576, 0);
  query[100] = mla_test::bf16_bits(3.0f);
  outputs<float, 512> result(1, 1);
  const std::int32_t slot = 0;
  REQUIRE(reference::mla_decode_sparse(
              view(reinterpret_cast<const bf16*>(query.data()),
                   packed(extent<axis::token>(1), extent<axis::head>(1),
                          extent<axis::head_dim, 576>())),
              paged_kv<wide_fp8>::packed(record.data(), 1, 1),
              view(&slot, packed(extent<axis::token>(1), extent<axis::key>(1))), 0.25,
              result.output_view(), result.lse_view())
              .ok());
  CHECK(result.output == std::vector<float>(512, 1.0f));
  CHECK(result.lse_of(0, 0) == 3.0f * 1.0f * 0.25f);
}

TEST_CASE(
    "L05: L06: mla_decode: pages lie where the page stride says, in the midst of other tensors") {
  const auto check = [](index_t page_size, index_t page_stride_rows, index_t first_row) {
    const problem<wide_fp8> step({150}, 1, 1, 170);
    const index_t row = wide_fp8::record_bytes;
    std::vector<std::byte> memory(at(4 * page_stride_rows * row + 4), std::byte{0xff});
    // Records at odd addresses, too: alignment is not promised.
    std::byte* base = memory.data() + first_row * row + 1;
    const paged_kv<wide_fp8> kv{base, 4, page_size, page_stride_rows * row, row};
    const std::vector<std::int32_t> table = {2, 0, 3};
    for (index_t i = 0; i < 150; ++i) {
      const index_t at_row = table[at(i / page_size)] * page_stride_rows + i % page_size;
      std::memcpy(base + at_row * row, step.records[0].data() + i * row, at(row));
    }
    outputs<double, 512> result(1, 1);
    const view block_table(table.data(), packed(extent<axis::sequence>(1), extent<axis::page>(3)));
    REQUIRE(reference::mla_decode(step.query_view(), kv, block_table, step.lengths_view(),
                                  {.softmax_scale = step.scale}, result.output_view(),
                                  result.lse_view())
                .ok());
    errors found;
    found.take(result.row(0, 0), result.lse_of(0, 0), step.attend_all(0, 0));
    CHECK(found.output < 0x1p-44);
    CHECK(found.lse < 0x1p-20);
  };
  check(64, 96, 0);    // pages of 64 rows, 96 rows apart
  check(64, 128, 64);  // the second of two tensors that share blocks
}

TEST_CASE(
    "mla_decode: rows behind the last token, other pages and unused table entries are never read") {
#if defined(__linux__)
  // One token per page of memory, two sequences; all that holds no token cannot be read at all.
  const index_t page = sysconf(_SC_PAGESIZE);
  const problem<little> step({3, 2}, 2, 1, 180);
  constexpr index_t pages = 12;
  void* mapped =
      mmap(nullptr, at(pages * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  auto* memory = static_cast<std::byte*>(mapped);
  const auto fill = [&](index_t number, index_t sequence, index_t token) {
    std::memcpy(memory + number * page,
                step.records[at(sequence)].data() + token * little::record_bytes,
                at(little::record_bytes));
  };
  // The cache begins at page 2: slot -1 would be page 1.
  fill(4, 0, 0);
  fill(6, 0, 1);
  fill(2, 0, 2);
  fill(10, 1, 0);
  fill(8, 1, 1);
  for (const index_t locked : {0, 1, 3, 5, 7, 9, 11}) {
    REQUIRE(mprotect(memory + locked * page, at(page), PROT_NONE) == 0);
  }
  const paged_kv<little> kv{memory + 2 * page, 10, 1, page, little::record_bytes};
  const std::vector<std::int32_t> table = {2, 4, 0, 1, -1, 8, 6, 1, 2147483647, 3};
  const view block_table(table.data(), packed(extent<axis::sequence>(2), extent<axis::page>(5)));
  outputs<double, little::latent> result(4, 1);
  REQUIRE(reference::mla_decode(step.query_view(), kv, block_table, step.lengths_view(),
                                {.softmax_scale = step.scale, .query_tokens = 2},
                                result.output_view(), result.lse_view())
              .ok());
  errors found;
  for (index_t t = 0; t < 4; ++t) {
    found.take(result.row(t, 0), result.lse_of(t, 0), step.attend_all(t, 0));
  }
  CHECK(found.output < 0x1p-44);

  const std::vector<std::int32_t> slots = {-1, 2, -1, -1, 8, -1, -1, -1, -1, -1, -1, 6};
  REQUIRE(reference::mla_decode_sparse(step.query_view(), kv, slots_view(slots, 4), step.scale,
                                       result.output_view(), result.lse_view())
              .ok());
  CHECK_FALSE(is_empty_row(result, 0, 0));
  CHECK(is_empty_row(result, 2, 0));
  munmap(mapped, at(pages * page));
#endif
}

TEST_CASE("F01: F03: mla_decode: offsets beyond 2^31 and 2^32 bytes lead to the right page") {
#if defined(__linux__)
  // 480 rows of 576 bf16: page 7,767 crosses 2^31 elements, page 7,768 begins behind 2^32 bytes.
  constexpr index_t page_size = 480;
  constexpr index_t page_stride = page_size * wide::record_bytes;
  constexpr index_t page_count = 7780;
  void* mapped = mmap(nullptr, at(page_count * page_stride), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    WARN_MESSAGE(mapped != MAP_FAILED, "no 4 GiB of addresses here: not run");
    return;
  }
  auto* memory = static_cast<std::byte*>(mapped);
  const auto kv = paged_kv<wide>::packed(memory, page_count, page_size);
  const std::vector<std::int32_t> table = {7768, 7767, 3883, 7779};
  const problem<wide> step({3 * 480 + 5}, 1, 1, 190);
  for (index_t i = 0; i < step.lengths[0]; ++i) {
    std::memcpy(memory + table[at(i / page_size)] * page_stride + i % page_size * 1152,
                step.records[0].data() + i * 1152, 1152);
  }
  outputs<double, 512> result(1, 1);
  const view block_table(table.data(), packed(extent<axis::sequence>(1), extent<axis::page>(4)));
  REQUIRE(reference::mla_decode(step.query_view(), kv, block_table, step.lengths_view(),
                                {.softmax_scale = step.scale}, result.output_view(),
                                result.lse_view())
              .ok());
  errors found;
  found.take(result.row(0, 0), result.lse_of(0, 0), step.attend_all(0, 0));
  CHECK(found.output < 0x1p-44);
  CHECK(found.lse < 0x1p-20);
  munmap(mapped, at(page_count * page_stride));
#endif
}

TEST_CASE("mla_decode: a NaN reaches the rows that use it, and no other") {
  problem<little> step({6, 6}, 1, 2, 200);
  const std::uint16_t nan = 0x7fff;
  std::memcpy(step.records[1].data() + 3 * little::record_bytes + 4, &nan, 2);
  const problem<little> clean({6, 6}, 1, 2, 200);
  const auto expected = decode(clean, clean.cache(unsharded, 4, 0, 200), unsharded);
  const auto result = decode(step, step.cache(unsharded, 4, 0, 200), unsharded);
  for (index_t h = 0; h < 2; ++h) {
    CHECK(std::memcmp(result.row(0, h), expected.row(0, h), sizeof(double) * 16) == 0);
    CHECK(std::isnan(result.lse_of(1, h)));
    for (index_t d = 0; d < little::latent; ++d) CHECK(std::isnan(result.row(1, h)[d]));
  }
  // A query's NaN stays with its head.
  problem<little> query_nan({6, 6}, 1, 2, 200);
  query_nan.query[3] = nan;
  const auto other = decode(query_nan, query_nan.cache(unsharded, 4, 0, 200), unsharded);
  CHECK(std::isnan(other.row(0, 0)[0]));
  CHECK(std::memcmp(other.row(0, 1), expected.row(0, 1), sizeof(double) * 16) == 0);
}

TEST_CASE("mla_decode: a NaN key leaves nothing behind for a shorter row after it") {
  problem<little> step({16, 5, 1}, 1, 1, 205);
  const std::uint16_t nan = 0x7fff;
  for (index_t i = 0; i < 16; ++i) {
    std::memcpy(step.records[0].data() + i * little::record_bytes, &nan, 2);
  }
  const auto result = decode(step, step.cache(unsharded, 4, 0, 205), unsharded);
  CHECK(std::isnan(result.row(0, 0)[0]));
  errors found;
  for (index_t t = 1; t < 3; ++t) {
    found.take(result.row(t, 0), result.lse_of(t, 0), step.attend_all(t, 0));
  }
  CHECK(found.output < 0x1p-44);
  CHECK(found.lse < 0x1p-21);
}

TEST_CASE(
    "mla_decode: a key whose logit is -inf weighs nothing, be it the first, or the only one") {
  problem<little> step({50, 3}, 1, 1, 207);
  const std::uint16_t minus_inf = 0xff80;
  const std::uint16_t one = mla_test::bf16_bits(1.0f);
  for (const index_t t : {0, 1}) step.query[at((t + 1) * little::head_dim - 1)] = one;
  step.query_numbers[at(little::head_dim - 1)] = 1;
  std::vector<index_t> others;
  for (index_t i = 0; i < 50; ++i) {
    if (i >= 20 && i % 3 != 0) {
      others.push_back(i);
      continue;
    }
    std::memcpy(step.records[0].data() + (i + 1) * little::record_bytes - 2, &minus_inf, 2);
  }
  for (index_t i = 0; i < 3; ++i) {
    std::memcpy(step.records[1].data() + (i + 1) * little::record_bytes - 2, &minus_inf, 2);
  }
  const auto result = decode(step, step.cache(unsharded, 4, 0, 207), unsharded);
  errors found;
  found.take(result.row(0, 0), result.lse_of(0, 0), step.attend(0, 0, others));
  CHECK(found.output < 0x1p-44);
  CHECK(found.lse < 0x1p-21);
  CHECK(is_empty_row(result, 1, 0));
}

TEST_CASE("mla_decode: nothing to do is no error") {
  const problem<little> step({}, 1, 2, 210);
  const auto cache = step.cache(unsharded, 4, 0, 210);
  outputs<double, little::latent> result(0, 2);
  CHECK(reference::mla_decode(step.query_view(), cache.kv, cache.block_table(), step.lengths_view(),
                              {.softmax_scale = 1.0}, result.output_view(), result.lse_view())
            .ok());
  // A cache without pages, and a table without columns, for sequences that are all empty.
  const problem<little> empty({0, 0}, 1, 2, 211);
  outputs<double, little::latent> rows(2, 2);
  const view no_pages(static_cast<const std::int32_t*>(nullptr),
                      packed(extent<axis::sequence>(2), extent<axis::page>(0)));
  CHECK(reference::mla_decode(empty.query_view(), paged_kv<little>::packed(nullptr, 0, 64),
                              no_pages, empty.lengths_view(), {.softmax_scale = 1.0},
                              rows.output_view(), rows.lse_view())
            .ok());
  for (index_t t = 0; t < 2; ++t) {
    for (index_t h = 0; h < 2; ++h) CHECK(is_empty_row(rows, t, h));
  }
  const view no_slots(static_cast<const std::int32_t*>(nullptr),
                      packed(extent<axis::token>(2), extent<axis::key>(0)));
  outputs<double, little::latent> sparse(2, 2);
  CHECK(reference::mla_decode_sparse(empty.query_view(), paged_kv<little>::packed(nullptr, 0, 64),
                                     no_slots, 1.0, sparse.output_view(), sparse.lse_view())
            .ok());
  CHECK(is_empty_row(sparse, 1, 1));
}

TEST_CASE("mla_decode: a wrong call says what is wrong and writes nothing") {
  const problem<little> step({9, 4}, 2, 3, 220);
  const auto cache = step.cache(unsharded, 4, 0, 220);
  outputs<double, little::latent> result(4, 3);
  const mla_options right{.softmax_scale = 0.1, .query_tokens = 2, .shard = {}};

  struct arguments {
    paged_kv<little> kv;
    std::vector<std::int32_t> table;
    index_t table_width;
    std::vector<std::int32_t> lengths;
    mla_options options;
    index_t heads = 3;
    index_t lse_heads = 3;
    index_t tokens = 4;
    index_t latent_stride = 1;
  };
  const auto call = [&](const arguments& given) {
    const view table(
        given.table.data(),
        layout(dim<axis::sequence>(static_cast<index_t>(given.lengths.size()), cache.table_stride),
               dim<axis::page>(given.table_width, 1)));
    const view out(result.output.data(),
                   layout(dim<axis::token>(given.tokens, 48), dim<axis::head>(given.heads, 16),
                          dim<axis::head_dim>(16, given.latent_stride)));
    const view lses(result.lses.data(),
                    layout(dim<axis::token>(4, 3), dim<axis::head>(given.lse_heads, 1)));
    return reference::mla_decode(step.query_view(), given.kv, table, vector_view(given.lengths),
                                 given.options, out, lses);
  };
  const arguments fine{cache.kv, cache.table, cache.table_width, step.lengths, right};
  const auto wrong = [&](const std::function<void(arguments&)>& change, errc code,
                         const char* operand, index_t got, index_t expected) {
    CAPTURE(operand);
    CAPTURE(got);
    arguments given = fine;
    change(given);
    const status found = call(given);
    CHECK(found.code == code);
    CHECK(found.operand == std::string(operand));
    CHECK(found.got == got);
    CHECK(found.expected == expected);
    CHECK(std::string(found.where.file).find("mla_decode.cpp") != std::string::npos);
    CHECK(result.untouched());
  };
  using one = arguments&;
  wrong([](one a) { a.lengths[1] = -1; }, errc::invalid_argument, "lengths", -1, 0);
  wrong([](one a) { a.lengths[0] = 1000; }, errc::shape_mismatch, "block_table", cache.table_width,
        250);
  wrong([](one a) { a.table[0] = -1; }, errc::out_of_range, "block_table", -1, cache.kv.page_count);
  wrong([&](one a) { a.table[at(cache.table_stride)] = 2147480000; }, errc::out_of_range,
        "block_table", 2147480000, cache.kv.page_count);
  wrong([](one a) { a.options.softmax_scale = 0; }, errc::invalid_argument, "softmax_scale", 0, 0);
  wrong([](one a) { a.options.softmax_scale = -1; }, errc::invalid_argument, "softmax_scale", 0, 0);
  wrong([](one a) { a.options.softmax_scale = std::nan(""); }, errc::invalid_argument,
        "softmax_scale", 0, 0);
  wrong([](one a) { a.options.softmax_scale = infinity; }, errc::invalid_argument, "softmax_scale",
        0, 0);
  wrong([](one a) { a.options.query_tokens = 0; }, errc::invalid_argument, "query_tokens", 0, 1);
  wrong([](one a) { a.options.query_tokens = 1; }, errc::shape_mismatch, "query", 4, 2);
  wrong([](one a) { a.options.shard.rank = 1; }, errc::out_of_range, "rank", 1, 1);
  wrong([](one a) { a.options.shard.split.ranks = 17; }, errc::unsupported, "ranks", 17, 16);
  wrong([](one a) { a.options.shard.split.interleave = 0; }, errc::invalid_argument, "interleave",
        0, 1);
  wrong([](one a) { a.heads = 2; }, errc::shape_mismatch, "output", 2, 3);
  wrong([](one a) { a.lse_heads = 2; }, errc::shape_mismatch, "lse", 2, 3);
  wrong([](one a) { a.tokens = 3; }, errc::shape_mismatch, "output", 3, 4);
  wrong([](one a) { a.latent_stride = 0; }, errc::overlap, "output", 0, 1);
  wrong([](one a) { a.kv.data = nullptr; }, errc::invalid_argument, "kv", cache.kv.page_count, 0);
  wrong([](one a) { a.kv.page_size = 0; }, errc::invalid_argument, "kv", 0, 1);
  wrong([](one a) { a.kv.page_count = -1; }, errc::invalid_argument, "kv", -1, 0);
  wrong([](one a) { a.kv.row_stride = 20; }, errc::stride_mismatch, "kv", 20, 40);
  wrong([](one a) { a.kv.page_stride = 39; }, errc::stride_mismatch, "kv", 39, 40);
  wrong([](one a) { a.kv.page_stride = INT64_MAX / 2; }, errc::capacity_exceeded, "kv",
        cache.kv.page_count, 0);
  CHECK(call(fine).ok());
}

TEST_CASE("mla_decode: a wrong list of slots says what is wrong and writes nothing") {
  const problem<little> step({8}, 1, 1, 230);
  const auto cache = step.cache(unsharded, 8, 0, 230);
  const auto slot_count = static_cast<std::int32_t>(cache.kv.slot_count());
  outputs<double, little::latent> result(1, 1);
  const auto call = [&](std::vector<std::int32_t> slots, std::int32_t count, index_t tokens = 1) {
    return reference::mla_decode_sparse(step.query_view(), cache.kv, slots_view(slots, tokens),
                                        view(&count, packed(extent<axis::token>(1))), 1.0,
                                        result.output_view(), result.lse_view());
  };
  const auto wrong = [&](const status& found, errc code, const char* operand, index_t got,
                         index_t expected) {
    CHECK(found.code == code);
    CHECK(found.operand == std::string(operand));
    CHECK(found.got == got);
    CHECK(found.expected == expected);
    CHECK(result.untouched());
  };
  wrong(call({0, slot_count}, 2), errc::out_of_range, "slots", slot_count, slot_count);
  wrong(call({0, -2}, 2), errc::out_of_range, "slots", -2, slot_count);
  wrong(call({0, 1}, 3), errc::out_of_range, "counts", 3, 2);
  wrong(call({0, 1}, -1), errc::out_of_range, "counts", -1, 2);
  wrong(call({0, 1}, 1, 2), errc::shape_mismatch, "slots", 2, 1);
  const std::int32_t one = 1;
  const std::vector<std::int32_t> slots = {0};
  wrong(reference::mla_decode_sparse(step.query_view(), cache.kv, slots_view(slots, 1),
                                     view(&one, layout(dim<axis::token>(2, 0))), 1.0,
                                     result.output_view(), result.lse_view()),
        errc::shape_mismatch, "counts", 2, 1);
  CHECK(call({0, slot_count}, 1).ok());
}
