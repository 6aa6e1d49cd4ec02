// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Decode attention over caches of bf16: every shape and place of its operands, against the
// reference in float64. Long sequences and graphs are in mla_decode_long.cu, other records in
// mla_decode_formats.cu.

#include <headwise/kernel/mla_decode.cuh>

#include <support/mla_device.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

using namespace headwise;
using mla_test::answers;
using mla_test::arrangement;
using mla_test::at;
using mla_test::check_close;
using mla_test::check_steps;
using mla_test::compare;
using mla_test::decode;
using mla_test::device_cache;
using mla_test::device_lengths;
using mla_test::device_query;
using mla_test::device_results;
using mla_test::device_workspace;
using mla_test::lse_bound;
using mla_test::make_alike;
using mla_test::plane_at;
using mla_test::plane_of;
using mla_test::problem;
using mla_test::reference_answers;
using mla_test::require_ok;
using mla_test::rows_at;
using mla_test::rows_of;
using support::style;

namespace {

constexpr auto e = log_base::e;
constexpr auto two = log_base::two;
constexpr double infinity = std::numeric_limits<double>::infinity();

using wide = kv_bf16<512, 64>;

constexpr kv_shard unsharded{};

kv_shard shard_of(index_t ranks, index_t interleave, index_t rank) {
  return kv_shard::make(interleaving::make(ranks, interleave).value(), rank).value();
}

bool same(const answers& a, const answers& b) { return a.output == b.output && a.lses == b.lses; }

/// A step on the device, whose call a test may change.
struct prepared_step {
  const problem<wide>& step;
  device_query query;
  device_cache<wide> records;
  device_lengths<> lengths;
  device_results<float> results;
  device_workspace workspace;
  mla_options options;

  explicit prepared_step(const problem<wide>& of, const mla_test::paged_cache<wide>& cache)
      : step(of),
        query(of),
        records(cache),
        lengths(of.lengths),
        results({of.tokens(), of.heads, wide::latent}),
        workspace(device_workspace::of<wide>(of.query_tokens * of.heads)),
        options{of.scale, of.query_tokens, {}} {}

  status launch(cudaStream_t stream) const {
    return kernel::mla_decode(query.view(), records.kv, records.block_table(), lengths.view(),
                              options, results.output_view(), results.lse_view(), workspace.all(),
                              stream);
  }
};

}  // namespace

// ---- against the reference --------------------------------------------------------------------

TEST_CASE("mla_decode kernel: what the reference says: bf16, base e") {
  check_steps<wide, bf16, e, std::int32_t>("bf16", {1, 2, 3, 4}, 1);
}
TEST_CASE("mla_decode kernel: what the reference says: fp32, base e") {
  check_steps<wide, float, e, std::int32_t>("fp32", {1, 3}, 2);
}
TEST_CASE("mla_decode kernel: what the reference says: fp16, base two, integers of 64 bits") {
  check_steps<wide, fp16, two, std::int64_t>("fp16", {2}, 3);
}

TEST_CASE("F08: mla_decode kernel: 64 to 200 heads, and the rows of four query tokens") {
  for (const index_t heads : {64, 65, 96, 97, 128, 200}) {
    for (const index_t query_tokens : {1, 4}) {
      CAPTURE(heads);
      CAPTURE(query_tokens);
      const problem<wide> step({40, 3, 129}, query_tokens, heads, 10);
      const auto cache = step.cache(unsharded, 64, 0, 10);
      check_close<float>(decode<float>(step, cache), reference_answers(step, cache));
    }
  }
}

TEST_CASE("mla_decode kernel: pages of every size, and lengths around their ends") {
  for (const index_t page_size : mla_test::page_sizes) {
    CAPTURE(page_size);
    std::vector<std::int32_t> lengths;
    for (const index_t length :
         {index_t{0}, index_t{1}, page_size - 1, page_size, page_size + 1, 2 * page_size - 1,
          2 * page_size, 2 * page_size + 1, index_t{31}, index_t{32}, index_t{33}}) {
      lengths.push_back(static_cast<std::int32_t>(length));
    }
    const problem<wide> step(lengths, 1, 3, 20);
    const auto cache = step.cache(unsharded, page_size, 32, 20);
    check_close<float>(decode<float>(step, cache), reference_answers(step, cache));
  }
}

TEST_CASE("mla_decode kernel: logits close together and far apart") {
  problem<wide> step({700, 3, 200}, 1, 12, 30);
  const auto cache = step.cache(unsharded, 64, 0, 30);
  for (const double scale : {1e-6, 0.05, 0.3, 2.0, 10.0}) {
    CAPTURE(scale);
    step.scale = scale;
    const answers truth = reference_answers(step, cache);
    double highest = 0;
    for (const double lse : truth.lses) highest = std::max(highest, std::fabs(lse));
    check_close<float>(decode<float>(step, cache), truth, lse_bound + 1e-6 * highest);
  }
}

TEST_CASE("C01: mla_decode kernel: a base-2 LSE is log2 of the sum, a natural one its log") {
  problem<wide> step({1, 2, 4, 512}, 1, 2, 40);
  make_alike(step, 5.0f, 0.0f, 0.0f);
  const auto cache = step.cache(unsharded, 16, 0, 40);
  const device_query query(step);
  const device_cache<wide, std::int64_t> records(cache);
  const device_lengths<std::int64_t> lengths(step.lengths);
  const device_results<fp16, two> results({4, 2, 512});
  const auto workspace = device_workspace::of<wide>(2);
  const support::stream stream;
  require_ok(kernel::mla_decode(query.view(), records.kv, records.block_table(), lengths.view(),
                                {.softmax_scale = step.scale}, results.output_view(),
                                results.lse_view(), workspace.all(), stream));
  stream.wait();
  const auto base_two = results.lses.fetch();
  const answers natural = decode<float>(step, cache);
  for (std::size_t r = 0; r < base_two.size(); ++r) {
    const double keys = step.lengths[r / 2];
    CHECK(static_cast<double>(base_two[r].value) == doctest::Approx(std::log2(keys)).epsilon(1e-6));
    CHECK(natural.lses[r] == doctest::Approx(std::log(keys)).epsilon(1e-6));
  }
}

TEST_CASE("C11: mla_decode kernel: logits far below any sentinel count in full") {
  // 240 * 250 = 60,000; both are bf16 numbers.
  problem<wide> step({4, 40}, 1, 3, 50);
  make_alike(step, 7.0f, 250.0f, -240.0f);
  const auto cache = step.cache(unsharded, 16, 0, 50);
  for (const double scale : {1.0, 5.0 / 3.0, 1e30}) {
    CAPTURE(scale);
    step.scale = scale;
    const answers got = decode<float>(step, cache);
    for (const double number : got.output) REQUIRE(std::fabs(number - 7.0) < 1e-5);
    for (std::size_t r = 0; r < got.lses.size(); ++r) {
      const double keys = r < 3 ? 4 : 40;
      CHECK(got.lses[r] == doctest::Approx(-60000.0 * scale + std::log(keys)).epsilon(1e-6));
    }
  }
}

TEST_CASE("C11: mla_decode kernel: shifting all logits by -12,500 leaves the output as it is") {
  // Whole numbers, whose products fp32 holds; fp32 tells logits of that size 2^-10 apart.
  problem<wide> step({700}, 1, 4, 51);
  step.scale = 0.125;
  mla_test::random_source random(51);
  const auto whole = [&] {
    return mla_test::bf16_bits(static_cast<float>(random.in(0, 24) == 0 ? random.in(-2, 2) : 0));
  };
  for (std::uint16_t& bits : step.query) bits = whole();
  for (index_t i = 0; i < 700 * wide::head_dim; ++i) {
    const std::uint16_t bits = whole();
    std::memcpy(step.records[0].data() + 2 * i, &bits, 2);
  }
  const auto set_last_column = [&](float q, float k) {
    const std::uint16_t q_bits = mla_test::bf16_bits(q);
    const std::uint16_t k_bits = mla_test::bf16_bits(k);
    for (index_t h = 0; h < 4; ++h) step.query[at((h + 1) * wide::head_dim - 1)] = q_bits;
    for (index_t i = 0; i < 700; ++i) {
      std::memcpy(step.records[0].data() + (i + 1) * wide::record_bytes - 2, &k_bits, 2);
    }
  };
  set_last_column(0.0f, 0.0f);
  const answers truth = reference_answers(step, step.cache(unsharded, 64, 0, 51));
  set_last_column(-400.0f, 250.0f);
  answers got = decode<float>(step, step.cache(unsharded, 64, 0, 51));
  for (double& lse : got.lses) lse += 12500;
  const mla_test::deviation found = compare(got, truth);
  CHECK(found.wrong_rows == 0);
  CHECK(found.output < 4e-3);
  CHECK(found.lse < 4e-3);
}

TEST_CASE(
    "C13: H11: mla_decode kernel: a padded row of length 0 is exactly empty, others as alone") {
  const auto check = [](std::vector<std::int32_t> lengths, index_t query_tokens, index_t heads) {
    const problem<wide> padded(lengths, query_tokens, heads, 60);
    // Whatever a padded row's table holds.
    for (const std::int32_t entry : {-1, 2147480000, INT32_MAX, INT32_MIN, 3}) {
      CAPTURE(entry);
      const auto cache = padded.cache(unsharded, 4, 0, 60);
      std::vector<std::int32_t> names = cache.table;
      for (std::size_t s = 0; s < lengths.size(); ++s) {
        if (lengths[s] > 0) continue;
        std::fill_n(names.begin() + static_cast<index_t>(s) * cache.table_stride,
                    cache.table_stride, entry);
      }
      auto changed = padded.cache(unsharded, 4, 0, 60);
      changed.table = names;
      const answers got = decode<float>(padded, changed);
      const answers truth = reference_answers(padded, cache);
      check_close<float>(got, truth);
      CHECK(got.empty_rows() ==
            std::count(lengths.begin(), lengths.end(), 0) * query_tokens * heads);
    }
  };
  check({5, 5, 5, 0}, 1, 2);
  check({5, 0, 7, 0}, 2, 16);
  check({0, 0, 0, 0, 0, 0, 300, 0}, 1, 64);
  check({0}, 1, 128);

  // Rows 0 to 2 have the bits that they have without the fourth.
  problem<wide> four({5, 5, 5, 0}, 1, 2, 61);
  problem<wide> three({5, 5, 5}, 1, 2, 61);
  std::copy_n(four.query.begin(), three.query.size(), three.query.begin());
  std::copy_n(four.records.begin(), 3, three.records.begin());
  answers got = decode<float>(four, four.cache(unsharded, 4, 0, 61));
  const answers expected = decode<float>(three, three.cache(unsharded, 4, 0, 62));
  got.output.resize(expected.output.size());
  got.lses.resize(expected.lses.size());
  CHECK(same(got, expected));
}

TEST_CASE("C17: mla_decode kernel: thousands of equal keys weigh 1 together") {
  for (const std::int32_t count : {4096, 8192}) {
    CAPTURE(count);
    problem<wide> step({count}, 1, 1, 70);
    make_alike(step, 1.0f, 0.0f, 0.0f);
    const answers got = decode<fp16, two, std::int64_t>(step, step.cache(unsharded, 64, 0, 70));
    for (const double number : got.output) REQUIRE(number == 1.0);
    CHECK(got.lses[0] == doctest::Approx(count == 4096 ? 8.317766 : 9.010913).epsilon(1e-6));
  }
}

// ---- what a rank holds ------------------------------------------------------------------------

TEST_CASE("D01: mla_decode kernel: a rank without tokens emits (0, -inf), and the group is right") {
  const auto check = [](index_t length, index_t ranks, const std::vector<index_t>& lengths) {
    CAPTURE(length);
    CAPTURE(ranks);
    const problem<wide> step({static_cast<std::int32_t>(length)}, 1, 2, 110);
    std::vector<answers> partials;
    for (index_t rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      const kv_shard shard = shard_of(ranks, 1, rank);
      partials.push_back(decode<float>(step, step.cache(shard, 4, 0, 110), shard));
      CHECK(partials.back().empty_rows() == (lengths[at(rank)] == 0 ? 2 : 0));
    }
    check_close<float>(mla_test::combined(partials),
                       reference_answers(step, step.cache(unsharded, 4, 0, 110)));
  };
  check(3, 4, {1, 1, 1, 0});
  check(1, 8, {1, 0, 0, 0, 0, 0, 0, 0});
}

namespace {

/// Keys that each query token of each rank sees: with equal logits exp(lse) counts them.
std::vector<std::vector<index_t>> keys_seen(index_t ranks, index_t interleave, index_t length,
                                            index_t query_tokens) {
  problem<wide> step({static_cast<std::int32_t>(length)}, query_tokens, 1, 120);
  make_alike(step, 1.0f, 0.0f, 0.0f);
  std::vector<std::vector<index_t>> seen;
  for (index_t rank = 0; rank < ranks; ++rank) {
    const kv_shard shard = shard_of(ranks, interleave, rank);
    const answers got = decode<float>(step, step.cache(shard, 16, 0, 120), shard);
    seen.emplace_back();
    for (const double lse : got.lses) seen.back().push_back(std::lround(std::exp(lse)));
  }
  return seen;
}

}  // namespace

TEST_CASE("D03: mla_decode kernel: the tokens of a rank, of any interleave") {
  const auto lengths = [](index_t length, index_t ranks, index_t interleave) {
    std::vector<index_t> all;
    for (const auto& of_rank : keys_seen(ranks, interleave, length, 1)) all.push_back(of_rank[0]);
    return all;
  };
  using list = std::vector<index_t>;
  CHECK(lengths(10, 4, 1) == list{3, 3, 2, 2});
  CHECK(lengths(10, 4, 4) == list{4, 4, 2, 0});
  CHECK(lengths(17, 4, 16) == list{16, 1, 0, 0});
  CHECK(lengths(65, 2, 64) == list{64, 1});
  CHECK(lengths(130, 3, 64) == list{64, 64, 2});
  CHECK(lengths(7, 6, 1) == list{2, 1, 1, 1, 1, 1});
  CHECK(lengths(0, 4, 1) == list{0, 0, 0, 0});
}

TEST_CASE("D11: mla_decode kernel: the block table has the local width and the stride given") {
  // Two ranks, pages of 64, 256 tokens: two local pages a sequence, rows four entries apart.
  const problem<wide> step({256, 256}, 1, 3, 130);
  const kv_shard shard = shard_of(2, 1, 1);
  auto cache = step.cache(shard, 64, 0, 130);
  std::vector<std::int32_t> names(8, 2147480000);
  for (index_t s = 0; s < 2; ++s) {
    for (index_t p = 0; p < 2; ++p) {
      names[at(4 * s + p)] = cache.table[at(s * cache.table_stride + p)];
    }
  }
  const answers truth = reference_answers(step, cache, shard);
  cache.table = names;
  cache.table_stride = 4;
  cache.table_width = 2;
  check_close<float>(decode<float>(step, cache, shard), truth);
}

TEST_CASE("K01: K03: mla_decode kernel: each query token sees what it may of the whole sequence") {
  using lists = std::vector<std::vector<index_t>>;
  // Four ranks, ten tokens, four of them query tokens: by rank, then by query token.
  CHECK(keys_seen(4, 1, 10, 4) == lists{{2, 2, 3, 3}, {2, 2, 2, 3}, {2, 2, 2, 2}, {1, 2, 2, 2}});
  // Two ranks: counting back from the local length of 5 would give {3, 4, 5} on rank 1.
  CHECK(keys_seen(2, 1, 10, 3) == lists{{4, 5, 5}, {4, 4, 5}});
  CHECK(keys_seen(2, 1, 10, 2) == lists{{5, 5}, {4, 5}});
  CHECK(keys_seen(2, 16, 33, 2) == lists{{16, 17}, {16, 16}});
  CHECK(keys_seen(2, 64, 129, 3) == lists{{64, 64, 65}, {63, 64, 64}});
  CHECK(keys_seen(1, 1, 70, 4) == lists{{67, 68, 69, 70}});
}

TEST_CASE("K01: mla_decode kernel: query tokens in front of the sequence see nothing") {
  for (const index_t heads : {1, 8, 40}) {
    const problem<wide> step({2, 0, 3, 1}, 4, heads, 140);
    const auto cache = step.cache(unsharded, 4, 0, 140);
    const answers got = decode<float>(step, cache);
    check_close<float>(got, reference_answers(step, cache));
    CHECK(got.empty_rows() == (2 + 4 + 1 + 3) * heads);
  }
}

// ---- where operands are -----------------------------------------------------------------------

TEST_CASE("B01: B09: G01: mla_decode kernel: operands at any strides and any alignment") {
  for (const index_t heads : {3, 12, 40}) {
    CAPTURE(heads);
    const problem<wide> step({70, 5, 0, 33}, 2, heads, 150);
    const auto cache = step.cache(unsharded, 16, 16, 150);
    const answers expected = decode<float>(step, cache);
    check_close<float>(expected, reference_answers(step, cache));
    for (const style which : support::all_styles) {
      for (const index_t past : {0, 1, 2, 8}) {
        const int style_number = static_cast<int>(which);
        CAPTURE(style_number);
        CAPTURE(past);
        CHECK(
            same(decode<float>(step, cache, unsharded, {which, which, which, past, {}}), expected));
      }
    }
  }
}

TEST_CASE(
    "B01: B09: mla_decode kernel: an LSE of [head, token], and one whose tokens are 64 apart") {
  const problem<wide> step({9, 30, 2}, 1, 4, 160);
  const prepared_step call(step, step.cache(unsharded, 4, 0, 160));
  const support::stream stream;
  require_ok(call.launch(stream));
  stream.wait();
  const answers expected = call.results.fetch();
  const auto check = [&](std::int64_t token_stride, std::int64_t head_stride) {
    const device_results<float> results(rows_of({3, 4, 512}),
                                        plane_at({3, 4, 1}, token_stride, head_stride));
    require_ok(kernel::mla_decode(call.query.view(), call.records.kv, call.records.block_table(),
                                  call.lengths.view(), call.options, results.output_view(),
                                  results.lse_view(), call.workspace.all(), stream));
    stream.wait();
    CHECK(same(results.fetch(), expected));
  };
  check(64, 1);
  check(1, 3);
  check(1, 7);
  check(5, 1);

  // By name, not by place: axes in another order.
  const device_results<float> results({3, 4, 512});
  const auto lses = make_view<memory_space::device>(
      results.lses.data(), layout(dim<axis::head>(4, 1), dim<axis::token>(3, 4)));
  const auto query = make_view<memory_space::device>(
      static_cast<const bf16*>(call.query.memory.data()),
      layout(dim<axis::head>(4, 576), dim<axis::head_dim>(576, 1), dim<axis::token>(3, 4 * 576)));
  const auto output = make_view<memory_space::device>(
      results.output.data(),
      layout(dim<axis::head>(4, 512), dim<axis::token>(3, 4 * 512), dim<axis::head_dim>(512, 1)));
  const auto table = make_view<memory_space::device>(
      static_cast<const std::int32_t*>(call.records.table.data()),
      layout(dim<axis::page>(call.records.pages.template extent<axis::page>(), 1),
             dim<axis::sequence>(3, call.records.pages.template stride<axis::sequence>())));
  require_ok(kernel::mla_decode(query, call.records.kv, table, call.lengths.view(), call.options,
                                output, lses, call.workspace.all(), stream));
  stream.wait();
  CHECK(same(results.fetch(), expected));
}

TEST_CASE("A01: mla_decode kernel: 22 live heads of a tile of 32, known in the type, one launch") {
  const problem<wide> step({40, 3, 0, 99}, 1, 22, 170);
  const auto cache = step.cache(unsharded, 16, 0, 170);
  const device_query query(step, rows_at({4, 22, 576}, {32 * 576, 576, 1}));
  const device_cache<wide> records(cache);
  const device_lengths<> lengths(step.lengths);
  device_results<bf16> results(rows_at({4, 22, 512}, {32 * 512, 512, 1}),
                               plane_at({4, 22, 1}, 32, 1));
  const auto workspace = device_workspace::of<wide>(22);
  const support::stream stream;
  const mla_options options{.softmax_scale = step.scale};
  const auto answer = reference_answers(step, cache);

  const support::graph plain(stream, [&] {
    require_ok(kernel::mla_decode(query.view(), records.kv, records.block_table(), lengths.view(),
                                  options, results.output_view(), results.lse_view(),
                                  workspace.all(), stream));
  });
  CHECK(plain.kernels() == 1);
  CHECK(plain.nodes() == 1);
  plain.replay(stream);
  check_close<bf16>(results.fetch(), answer);
  const auto bits = results.bits();

  using tile_of_keys = layout<dim<axis::token, dynamic_extent, 32 * 576>, dim<axis::head, 22, 576>,
                              dim<axis::head_dim, 576, 1>>;
  using tile_of_rows = layout<dim<axis::token, dynamic_extent, 32 * 512>, dim<axis::head, 22, 512>,
                              dim<axis::head_dim, 512, 1>>;
  using tile_of_lses = layout<dim<axis::token, dynamic_extent, 32>, dim<axis::head, 22, 1>>;
  const auto device = [](auto* data, auto where) {
    return make_view<memory_space::device>(data, where);
  };
  const support::graph fixed(stream, [&] {
    require_ok(kernel::mla_decode(
        device(static_cast<const bf16*>(query.memory.data()),
               tile_of_keys(dim<axis::token, dynamic_extent, 32 * 576>(4), {}, {})),
        records.kv, records.block_table(), lengths.view(), options,
        device(results.output.data(),
               tile_of_rows(dim<axis::token, dynamic_extent, 32 * 512>(4), {}, {})),
        device(results.lses.data(), tile_of_lses(dim<axis::token, dynamic_extent, 32>(4), {})),
        workspace.all(), stream));
  });
  CHECK(fixed.kernels() == 1);
  CHECK(fixed.nodes() == 1);
  results.poison();
  fixed.replay(stream);
  static_cast<void>(results.fetch());
  CHECK(results.bits() == bits);
}

TEST_CASE("A13: mla_decode kernel: the query is a part of a wider row") {
  for (const index_t heads : {2, 20}) {
    const problem<wide> step({40, 3, 99}, 2, heads, 180);
    const auto cache = step.cache(unsharded, 16, 0, 180);
    // Behind the heads of a token there is something else, which is NaN here.
    const device_query query(step,
                             rows_at({step.tokens(), heads, 576}, {heads * 576 + 1792, 576, 1}));
    const device_cache<wide> records(cache);
    const device_lengths<> lengths(step.lengths);
    const device_results<float> results({step.tokens(), heads, 512});
    const auto workspace = device_workspace::of<wide>(2 * heads);
    const support::stream stream;
    require_ok(kernel::mla_decode(query.view(), records.kv, records.block_table(), lengths.view(),
                                  {.softmax_scale = step.scale, .query_tokens = 2},
                                  results.output_view(), results.lse_view(), workspace.all(),
                                  stream));
    stream.wait();
    CHECK(same(results.fetch(), decode<float>(step, cache)));
  }
}

TEST_CASE("B04: mla_decode kernel: the -inf of an empty row lands in that row's own LSE slot") {
  // Query lengths 3 and 1, two heads; sequence 1 has no keys. One call for each query length.
  const problem<wide> first({5}, 3, 2, 190);
  const problem<wide> second({0}, 1, 2, 191);
  const auto first_cache = first.cache(unsharded, 4, 0, 190);
  const auto second_cache = second.cache(unsharded, 4, 0, 191);
  const answers expected = decode<float>(first, first_cache);
  const device_query first_query(first), second_query(second);
  const device_cache<wide> first_records(first_cache), second_records(second_cache);
  const device_lengths<> first_lengths(first.lengths), second_lengths(second.lengths);
  const support::device_array<float> output(4 * 2 * 512);
  const support::device_array<lse<e>> lses(12);
  const auto workspace = device_workspace::of<wide>(6);
  const support::stream stream;
  const auto rows = [&](index_t from, index_t count) {
    return make_view<memory_space::device>(output.data() + from * 2 * 512,
                                           rows_of({count, 2, 512}));
  };
  const auto run = [&](lse<e>* first_lse, auto first_plane, lse<e>* second_lse, auto second_plane) {
    require_ok(kernel::mla_decode(
        first_query.view(), first_records.kv, first_records.block_table(), first_lengths.view(),
        {.softmax_scale = first.scale, .query_tokens = 3}, rows(0, 3),
        make_view<memory_space::device>(first_lse, first_plane), workspace.all(), stream));
    require_ok(kernel::mla_decode(
        second_query.view(), second_records.kv, second_records.block_table(), second_lengths.view(),
        {.softmax_scale = second.scale}, rows(3, 1),
        make_view<memory_space::device>(second_lse, second_plane), workspace.all(), stream));
    stream.wait();
    std::vector<double> found;
    for (const auto& lse : lses.fetch()) found.push_back(static_cast<double>(lse.value));
    return found;
  };

  SUBCASE("packed: head, then all 4 query tokens") {
    const auto found =
        run(lses.data(), plane_at({3, 2, 1}, 1, 4), lses.data() + 3, plane_at({1, 2, 1}, 1, 4));
    for (index_t i = 0; i < 12; ++i) {
      CAPTURE(i);
      if (i == 3 || i == 7) {
        CHECK(found[at(i)] == -infinity);
      } else if (i < 8) {
        CHECK(found[at(i)] == expected.lses[at(i % 4 * 2 + i / 4)]);
      } else {
        CHECK(std::isnan(found[at(i)]));
      }
    }
  }
  SUBCASE("padded: sequence, head, then up to 3 query tokens") {
    const auto found =
        run(lses.data(), plane_at({3, 2, 1}, 1, 3), lses.data() + 6, plane_at({1, 2, 1}, 1, 3));
    for (index_t i = 0; i < 12; ++i) {
      CAPTURE(i);
      if (i == 6 || i == 9) {
        CHECK(found[at(i)] == -infinity);
      } else if (i < 6) {
        CHECK(found[at(i)] == expected.lses[at(i % 3 * 2 + i / 3)]);
      } else {
        CHECK(std::isnan(found[at(i)]));
      }
    }
  }
}

TEST_CASE(
    "L06: mla_decode kernel: pages in the midst of another tensor, entries of the table apart") {
  // Of blocks of 128 rows the second 64 are the cache's, and of the table every third entry.
  const problem<wide> step({150, 64, 1}, 1, 5, 200);
  auto cache = step.cache(unsharded, 64, 0, 200);
  const answers truth = reference_answers(step, cache);
  const index_t block = 128 * wide::record_bytes;
  std::vector<std::byte> blocks(at(cache.page_count * block), std::byte{0xff});
  for (index_t page = 0; page < cache.page_count; ++page) {
    std::copy_n(cache.memory.begin() + page * cache.page_stride, cache.page_stride,
                blocks.begin() + page * block + block / 2);
  }
  std::vector<std::int32_t> names(cache.table.size() * 3, 2147480000);
  for (std::size_t i = 0; i < cache.table.size(); ++i) names[3 * i] = cache.table[i];
  const support::device_array<std::byte> memory(blocks);
  const support::device_array<std::int32_t> table(names);
  const device_query query(step);
  const device_lengths<> lengths(step.lengths);
  const device_results<float> results({3, 5, 512});
  const auto workspace = device_workspace::of<wide>(5);
  const support::stream stream;
  require_ok(kernel::mla_decode(
      query.view(),
      paged_kv<wide, memory_space::device>{memory.data() + block / 2, cache.page_count, 64, block,
                                           wide::record_bytes},
      make_view<memory_space::device>(
          static_cast<const std::int32_t*>(table.data()),
          mla_test::table_layout(dim<axis::sequence>(3, 3 * cache.table_stride),
                                 dim<axis::page>(cache.table_width, 3))),
      lengths.view(), {.softmax_scale = step.scale}, results.output_view(), results.lse_view(),
      workspace.all(), stream));
  stream.wait();
  check_close<float>(results.fetch(), truth);
}

// ---- what must not reach a result -------------------------------------------------------------

TEST_CASE("mla_decode kernel: NaN and infinities behind the last token and in other pages") {
  for (const index_t page_size : mla_test::page_sizes) {
    CAPTURE(page_size);
    const problem<wide> step({40, 3, 0, 130}, 2, 11, 210);
    auto cache = step.cache(unsharded, page_size, 16, 210);
    const answers truth = reference_answers(step, cache);
    check_close<float>(decode<float>(step, cache), truth);  // all NaN
    // The same with infinities: of each record that is no token's.
    const std::vector<bool> live = mla_test::live_slots(step, cache);
    const std::uint16_t infinite = 0x7f80;
    for (index_t slot = 0; slot < cache.page_count * page_size; ++slot) {
      if (live[at(slot)]) continue;
      std::byte* const record = cache.memory.data() + slot / page_size * cache.page_stride +
                                slot % page_size * cache.row_stride;
      for (index_t d = 0; d < wide::head_dim; ++d) std::memcpy(record + 2 * d, &infinite, 2);
    }
    check_close<float>(decode<float>(step, cache), truth);
  }
}

TEST_CASE("mla_decode kernel: a NaN in a key reaches the sequence that has it, and no other") {
  problem<wide> step({60, 60, 5}, 1, 18, 220);
  const auto clean = step.cache(unsharded, 16, 0, 220);
  const answers expected = decode<float>(step, clean);
  const std::uint16_t nan = 0xffff;
  for (const index_t column : {0, 300, 511, 512, 575}) {
    CAPTURE(column);
    problem<wide> spoilt({60, 60, 5}, 1, 18, 220);
    std::memcpy(spoilt.records[1].data() + 37 * wide::record_bytes + 2 * column, &nan, 2);
    const answers got = decode<float>(spoilt, spoilt.cache(unsharded, 16, 0, 220));
    index_t wrong = 0;
    for (index_t r = 0; r < 3 * 18; ++r) {
      const bool of_second = r / 18 == 1;
      wrong += std::isnan(got.lses[at(r)]) != of_second;
      for (index_t d = 0; d < 512; ++d) {
        const double number = got.output[at(r * 512 + d)];
        wrong += of_second ? !std::isnan(number) : number != expected.output[at(r * 512 + d)];
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("mla_decode kernel: a NaN in a key that only later query tokens see stays with these") {
  // Token 40 of 40: the last of four query tokens sees it, the others do not.
  for (const index_t heads : {2, 16, 40}) {
    CAPTURE(heads);
    problem<wide> step({40}, 4, heads, 230);
    const answers truth = reference_answers(step, step.cache(unsharded, 16, 0, 230));
    const std::uint16_t nan = 0xffff;
    std::memcpy(step.records[0].data() + 39 * wide::record_bytes + 2 * 100, &nan, 2);
    const answers got = decode<float>(step, step.cache(unsharded, 16, 0, 230));
    index_t wrong = 0;
    for (index_t r = 0; r < 4 * heads; ++r) {
      wrong += std::isnan(got.lses[at(r)]) != (r >= 3 * heads);
      for (index_t d = 0; d < 512; ++d) {
        const double number = got.output[at(r * 512 + d)];
        const double off = std::fabs(number - truth.output[at(r * 512 + d)]);
        wrong += r >= 3 * heads ? !std::isnan(number) : !(off < 0.01);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("mla_decode kernel: a NaN in the query stays with its head and its token") {
  for (const index_t heads : {4, 40}) {
    CAPTURE(heads);
    problem<wide> step({60, 70}, 2, heads, 240);
    const auto cache = step.cache(unsharded, 16, 0, 240);
    const answers expected = decode<float>(step, cache);
    const index_t spoilt = 2 * heads + 1;  // head 1 of token 2
    step.query[at(spoilt * wide::head_dim + 530)] = 0xffff;
    const answers got = decode<float>(step, cache);
    index_t wrong = 0;
    for (index_t r = 0; r < 4 * heads; ++r) {
      wrong += std::isnan(got.lses[at(r)]) != (r == spoilt);
      for (index_t d = 0; d < 512; ++d) {
        const double number = got.output[at(r * 512 + d)];
        wrong += r == spoilt ? !std::isnan(number) : number != expected.output[at(r * 512 + d)];
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE(
    "mla_decode kernel: a key whose logit is -inf weighs nothing, the first or the only one") {
  // The last column is 1 in the query and, of some keys, -inf: more than a tile of them in front.
  problem<wide> step({120, 3, 40}, 1, 3, 250);
  const std::uint16_t one = mla_test::bf16_bits(1.0f);
  const std::uint16_t minus_inf = 0xff80;
  for (index_t r = 0; r < 9; ++r) step.query[at((r + 1) * wide::head_dim - 1)] = one;
  for (index_t s = 0; s < 3; ++s) {
    for (index_t i = 0; i < step.lengths[at(s)]; ++i) {
      if (s == 2 || (s == 0 && i >= 70 && i % 3 != 0)) continue;
      std::memcpy(step.records[at(s)].data() + (i + 1) * wide::record_bytes - 2, &minus_inf, 2);
    }
  }
  const auto cache = step.cache(unsharded, 16, 0, 250);
  const answers got = decode<float>(step, cache);
  check_close<float>(got, reference_answers(step, cache));
  CHECK(got.empty_rows() == 3);
}

TEST_CASE("mla_decode kernel: a page that there is not has no keys") {
  // Where the reference refuses, the device leaves keys out.
  const problem<wide> step({100, 64, 33}, 1, 6, 260);
  const auto cache = step.cache(unsharded, 16, 0, 260);
  const auto page_count = static_cast<std::int32_t>(cache.page_count);
  for (const std::int32_t name : {-1, -7, INT32_MIN, page_count, 2147480000, INT32_MAX}) {
    CAPTURE(name);
    auto changed = step.cache(unsharded, 16, 0, 260);
    std::vector<std::int64_t> slots(at(3 * 112), -1);
    for (index_t s = 0; s < 3; ++s) {
      // Of the first sequence an interior page and the last one, of the third all.
      for (index_t p = 0; p < 7; ++p) {
        std::int32_t& entry = changed.table[at(s * changed.table_stride + p)];
        if ((s == 0 && (p == 2 || p == 6)) || (s == 2 && p < 3)) entry = name;
      }
      for (index_t i = 0; i < step.lengths[at(s)]; ++i) {
        const index_t entry = changed.table[at(s * changed.table_stride + i / 16)];
        if (entry != name) slots[at(s * 112 + i)] = entry * 16 + i % 16;
      }
    }
    const answers got = decode<float>(step, changed);
    check_close<float>(got, reference_answers(step, cache, slots));
    CHECK(got.empty_rows() == 6);
  }
}

TEST_CASE("mla_decode kernel: names of pages and lengths of 64 bits that leave 32") {
  const problem<wide> step({100, 64, 33, 20}, 1, 6, 270);
  const auto cache = step.cache(unsharded, 16, 0, 270);
  std::vector<std::int64_t> names(cache.table.begin(), cache.table.end());
  std::vector<std::int64_t> slots(at(4 * 112), -1);
  const std::int64_t beyond = std::int64_t{1} << 32;
  // Pages whose low 32 bits are pages; a length below zero whose low 32 bits are a length.
  names[0] += beyond;
  names[2] = INT64_MIN + names[2];
  const std::vector<std::int64_t> lengths = {100, 64, 33 - (beyond << 8), INT64_MIN};
  for (index_t s = 0; s < 2; ++s) {
    for (index_t i = 0; i < lengths[at(s)]; ++i) {
      const std::int64_t name = names[at(s * cache.table_stride + i / 16)];
      if (name >= 0 && name < cache.page_count) slots[at(s * 112 + i)] = name * 16 + i % 16;
    }
  }
  const device_query query(step);
  const device_cache<wide, std::int64_t> records(cache, names);
  const device_lengths<std::int64_t> given(lengths);
  const device_results<fp16, two> results({4, 6, 512});
  const auto workspace = device_workspace::of<wide>(6);
  const support::stream stream;
  require_ok(kernel::mla_decode(query.view(), records.kv, records.block_table(), given.view(),
                                {.softmax_scale = step.scale}, results.output_view(),
                                results.lse_view(), workspace.all(), stream));
  stream.wait();
  const answers got = results.fetch();
  check_close<fp16>(got, reference_answers(step, cache, slots));
  CHECK(got.empty_rows() == 12);
}

TEST_CASE("mla_decode kernel: a length below zero is 0, one beyond the table ends with its pages") {
  // The table has room for 7 pages of 16 in each row, and all of them are there.
  const problem<wide> step({112, 112, 112, 112, 112, 112}, 1, 6, 280);
  auto cache = step.cache(unsharded, 16, 0, 280);
  cache.table_width = 7;
  const std::vector<std::int32_t> lengths = {-1, INT32_MIN, 113, INT32_MAX, 112, -113};
  const device_query query(step);
  const device_cache<wide> records(cache);
  const device_lengths<> given(lengths);
  const device_results<float> results({6, 6, 512});
  const auto workspace = device_workspace::of<wide>(6);
  const support::stream stream;
  const auto run = [&](kv_shard shard) {
    require_ok(kernel::mla_decode(query.view(), records.kv, records.block_table(), given.view(),
                                  {.softmax_scale = step.scale, .shard = shard},
                                  results.output_view(), results.lse_view(), workspace.all(),
                                  stream));
    stream.wait();
    return results.fetch();
  };
  const answers truth = reference_answers(step, cache);
  const auto check = [&](const answers& got, const std::vector<bool>& empty) {
    answers expected = truth;
    for (index_t s = 0; s < 6; ++s) {
      if (!empty[at(s)]) continue;
      std::fill_n(expected.row(s, 0), 6 * 512, 0.0);
      std::fill_n(&expected.lse(s, 0), 6, -infinity);
    }
    check_close<float>(got, expected);
  };
  check(run(unsharded), {true, true, false, false, false, true});
  // As one of two ranks: of 113 and 112 tokens it has half, so only the longest fills the table.
  const answers of_half = run(shard_of(2, 1, 0));
  for (const index_t s : {0, 1, 5}) CHECK(of_half.is_empty(s * 6));
  for (index_t d = 0; d < 6 * 512; ++d) {
    REQUIRE(std::fabs(of_half.output[at(3 * 6 * 512 + d)] - truth.output[at(3 * 6 * 512 + d)]) <
            0.01);
  }

  // With several query tokens, all of those of a sequence that is not there are empty.
  const problem<wide> several({112, 112, 112}, 2, 6, 281);
  const auto several_cache = several.cache(unsharded, 16, 0, 281);
  const prepared_step call(several, several_cache);
  const device_lengths<> below(std::vector<std::int32_t>{INT32_MIN, INT32_MIN + 1, -2});
  require_ok(kernel::mla_decode(call.query.view(), call.records.kv, call.records.block_table(),
                                below.view(), call.options, call.results.output_view(),
                                call.results.lse_view(), call.workspace.all(), stream));
  stream.wait();
  CHECK(call.results.fetch().empty_rows() == 3 * 2 * 6);
}

// ---- calls that come to nothing ---------------------------------------------------------------

namespace {

/// What a call says that is only recorded: none that should have been refused runs.
template <class Call>
status recorded(const support::stream& stream, const Call& call, index_t launches) {
  status said;
  const support::graph captured(stream, [&] { said = call(); });
  CHECK(captured.nodes() == launches);
  return said;
}

}  // namespace

TEST_CASE("J02: J03: mla_decode kernel: without sequences or heads nothing is launched") {
  const support::stream stream;
  const device_workspace workspace(16);
  const problem<wide> none_of_them({}, 2, 3, 300);
  const auto no_cache = none_of_them.cache(unsharded, 4, 0, 300);
  const device_cache<wide> records(no_cache);
  const auto run = [&](index_t sequences, index_t heads) {
    const auto device = [](auto* data, auto where) {
      return make_view<memory_space::device>(data, where);
    };
    const support::device_array<std::int32_t> table(8), lengths(8);
    return recorded(
        stream,
        [&] {
          return kernel::mla_decode(
              device(static_cast<const bf16*>(nullptr), rows_of({2 * sequences, heads, 576})),
              records.kv,
              device(
                  static_cast<const std::int32_t*>(table.data()),
                  mla_test::table_layout(dim<axis::sequence>(sequences, 1), dim<axis::page>(1, 1))),
              device(static_cast<const std::int32_t*>(lengths.data()),
                     mla_test::along<axis::sequence>(dim<axis::sequence>(sequences, 1))),
              {.softmax_scale = 1.0, .query_tokens = 2},
              device(static_cast<float*>(nullptr), rows_of({2 * sequences, heads, 512})),
              device(static_cast<lse<e>*>(nullptr), plane_of({2 * sequences, heads, 1})),
              workspace.all(), stream);
        },
        0);
  };
  CHECK(run(0, 3).ok());
  CHECK(run(0, 0).ok());
  CHECK(run(4, 0).ok());
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(kernel::mla_decode_bytes<wide>(0).value() >= 0);
}

TEST_CASE("mla_decode kernel: sequences without tokens need no cache and no table") {
  const problem<wide> empty({0, 0}, 1, 2, 310);
  const device_query query(empty);
  const device_lengths<> lengths(empty.lengths);
  const device_results<float> results({2, 2, 512});
  const auto workspace = device_workspace::of<wide>(2);
  const support::stream stream;
  require_ok(kernel::mla_decode(
      query.view(), paged_kv<wide, memory_space::device>::packed(nullptr, 0, 64),
      make_view<memory_space::device>(
          static_cast<const std::int32_t*>(nullptr),
          mla_test::table_layout(dim<axis::sequence>(2, 0), dim<axis::page>(0, 1))),
      lengths.view(), {.softmax_scale = 1.0}, results.output_view(), results.lse_view(),
      workspace.all(), stream));
  stream.wait();
  CHECK(results.fetch().empty_rows() == 4);
}

TEST_CASE("G06: mla_decode kernel: an output is as wide as the latent part") {
  const problem<wide> step({3}, 1, 1, 320);
  const prepared_step call(step, step.cache(unsharded, 4, 0, 320));
  const support::stream stream;
  for (const index_t width : {576, 511, 513, 0}) {
    CAPTURE(width);
    const device_results<float> results(rows_of({1, 1, width}), plane_of({1, 1, 1}));
    const status said = recorded(
        stream,
        [&] {
          return kernel::mla_decode(call.query.view(), call.records.kv, call.records.block_table(),
                                    call.lengths.view(), call.options, results.output_view(),
                                    results.lse_view(), call.workspace.all(), stream);
        },
        0);
    CHECK(said.code == errc::shape_mismatch);
    CHECK(said.operand == std::string("output"));
    CHECK(said.axis == std::string("head_dim"));
    CHECK(said.got == width);
    CHECK(said.expected == 512);
    CHECK(results.untouched());
  }
}

TEST_CASE("K05: M01: M03: mla_decode kernel: a workspace is of rows, heads times query tokens") {
  const auto bytes = [](index_t rows) { return kernel::mla_decode_bytes<wide>(rows).value(); };
  for (index_t rows = 1; rows < 700; ++rows) REQUIRE(bytes(rows) <= bytes(rows + 1));
  const support::stream stream;
  for (const index_t heads : {1, 8, 12, 32, 64, 128}) {
    for (const index_t query_tokens : {1, 4}) {
      CAPTURE(heads);
      CAPTURE(query_tokens);
      const index_t needed = bytes(heads * query_tokens);
      const problem<wide> step({9, 40}, query_tokens, heads, 330);
      const prepared_step call(step, step.cache(unsharded, 16, 0, 330));
      const auto with = [&](std::span<std::byte> workspace) {
        return kernel::mla_decode(call.query.view(), call.records.kv, call.records.block_table(),
                                  call.lengths.view(), call.options, call.results.output_view(),
                                  call.results.lse_view(), workspace, stream);
      };
      const auto all = call.workspace.all();
      const auto room = static_cast<std::size_t>(needed);
      REQUIRE(all.size() == room);
      for (const std::size_t less : {room, room / 2, std::size_t{1}}) {
        const status said = recorded(
            stream, [&] { return with(all.first(room - less)); }, 0);
        CHECK(said.code == errc::capacity_exceeded);
        CHECK(said.operand == std::string("workspace"));
        CHECK(said.got == needed);
        CHECK(said.expected == static_cast<index_t>(room - less));
      }
      CHECK(recorded(
                stream, [&] { return with(all); }, 1)
                .ok());
    }
  }
  // What it takes does not grow with the batch: 3,145 sequences in the room of one.
  const problem<wide> batch(std::vector<std::int32_t>(3145, 2), 1, 2, 331);
  const auto cache = batch.cache(unsharded, 2, 0, 331);
  check_close<bf16>(decode<bf16>(batch, cache), reference_answers(batch, cache));
}

TEST_CASE("mla_decode kernel: what is not aligned as it must be is refused") {
  const problem<wide> step({40, 7}, 1, 3, 340);
  const auto cache = step.cache(unsharded, 4, 16, 340);
  const prepared_step call(step, cache);
  const support::stream stream;
  const auto refused = [&](const paged_kv<wide, memory_space::device>& kv,
                           std::span<std::byte> workspace, const char* operand) {
    CAPTURE(operand);
    const status said = recorded(
        stream,
        [&] {
          return kernel::mla_decode(call.query.view(), kv, call.records.block_table(),
                                    call.lengths.view(), call.options, call.results.output_view(),
                                    call.results.lse_view(), workspace, stream);
        },
        0);
    CHECK(said.code == errc::misaligned);
    CHECK(said.operand == std::string(operand));
  };
  const device_workspace roomy(static_cast<index_t>(call.workspace.all().size()) + 16);
  for (const std::size_t off : {std::size_t{1}, std::size_t{4}, std::size_t{8}}) {
    refused(call.records.kv, roomy.all().subspan(off), "workspace");
  }
  // Records: where they begin, and each step from one to the next.
  for (const index_t off : {2, 4, 8}) {
    CAPTURE(off);
    auto kv = call.records.kv;
    kv.data += off;
    refused(kv, call.workspace.all(), "kv");
    kv = call.records.kv;
    kv.row_stride += off;
    kv.page_stride += 4 * off;
    refused(kv, call.workspace.all(), "kv");
    kv = call.records.kv;
    kv.page_stride += off;
    refused(kv, call.workspace.all(), "kv");
  }
  CHECK(call.results.untouched());
}

TEST_CASE("mla_decode kernel: a wrong call says what the reference says and writes nothing") {
  const problem<wide> step({9, 4}, 2, 3, 350);
  const auto cache = step.cache(unsharded, 4, 0, 350);
  const prepared_step call(step, cache);
  const support::stream stream;

  struct arguments {
    mla_options options;
    index_t sequences = 2;
    index_t rows_of_table = 2;
    mla_test::shape query{4, 3, 576};
    mla_test::shape output{4, 3, 512};
    mla_test::shape lses{4, 3, 1};
    index_t page_size = 4;
    index_t page_count;
    bool records = true;
    index_t latent_stride = 1;
  };
  const auto refused = [&](const std::function<void(arguments&)>& change) {
    arguments given{.options = call.options, .page_count = cache.page_count};
    change(given);
    const auto run = [&](auto space, auto decode, auto* query, auto* records, auto* table,
                         auto* lengths, auto* output, auto* lses) {
      constexpr memory_space where = decltype(space)::value;
      return decode(
          make_view<where>(query, rows_of(given.query)),
          paged_kv<wide, where>{given.records ? records : nullptr, given.page_count,
                                given.page_size, cache.page_stride, cache.row_stride},
          make_view<where>(table, mla_test::table_layout(
                                      dim<axis::sequence>(given.rows_of_table, cache.table_stride),
                                      dim<axis::page>(cache.table_width, 1))),
          make_view<where>(
              lengths, mla_test::along<axis::sequence>(dim<axis::sequence>(given.sequences, 1))),
          make_view<where>(output,
                           rows_at(given.output, {given.output.heads * given.output.width,
                                                  given.output.width, given.latent_stride})),
          make_view<where>(lses, plane_of(given.lses)));
    };
    std::vector<float> output(4 * 3 * 512);
    std::vector<lse<e>> lses(4 * 3);
    const status expected = run(
        std::integral_constant<memory_space, memory_space::host>{},
        [&](auto query, auto kv, auto table, auto lengths, auto rows, auto row_lses) {
          return reference::mla_decode(query, kv, table, lengths, given.options, rows, row_lses);
        },
        reinterpret_cast<const bf16*>(step.query.data()), cache.memory.data(), cache.table.data(),
        step.lengths.data(), output.data(), lses.data());
    REQUIRE(!expected.ok());
    const status said = recorded(
        stream,
        [&] {
          return run(
              std::integral_constant<memory_space, memory_space::device>{},
              [&](auto query, auto kv, auto table, auto lengths, auto rows, auto row_lses) {
                return kernel::mla_decode(query, kv, table, lengths, given.options, rows, row_lses,
                                          call.workspace.all(), stream);
              },
              static_cast<const bf16*>(call.query.memory.data()),
              static_cast<const std::byte*>(call.records.records.data()),
              static_cast<const std::int32_t*>(call.records.table.data()),
              static_cast<const std::int32_t*>(call.lengths.memory.data()),
              call.results.output.data(), call.results.lses.data());
        },
        0);
    CHECK(said.code == expected.code);
    CHECK(support::sentence(said) == support::sentence(expected));
  };
  using one = arguments&;
  for (const double scale : {0.0, -1.0, std::nan(""), infinity}) {
    refused([&](one a) { a.options.softmax_scale = scale; });
  }
  refused([](one a) { a.options.query_tokens = 0; });
  refused([](one a) { a.options.query_tokens = 1; });
  refused([](one a) { a.options.shard.rank = 1; });
  refused([](one a) { a.options.shard.split.ranks = 17; });
  refused([](one a) { a.options.shard.split.interleave = 0; });
  refused([](one a) { a.sequences = 1; });
  refused([](one a) { a.rows_of_table = 1; });
  refused([](one a) { a.query.width = 512; });
  refused([](one a) { a.output.heads = 2; });
  refused([](one a) { a.output.tokens = 3; });
  refused([](one a) { a.lses.heads = 2; });
  refused([](one a) { a.lses.tokens = 3; });
  refused([](one a) { a.latent_stride = 0; });
  refused([](one a) { a.page_size = 0; });
  refused([](one a) { a.page_count = -1; });
  refused([](one a) { a.records = false; });
  CHECK(call.results.untouched());
}
