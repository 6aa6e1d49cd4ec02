// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/plan/kv_shard.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

using namespace headwise;

namespace {

std::vector<index_t> lengths_of(index_t length, index_t ranks, index_t interleave) {
  const auto split = interleaving::make(ranks, interleave);
  REQUIRE(split.ok());
  const shard_lengths all = split.value().local_length(length);
  CHECK(all.size() == ranks);
  std::vector<index_t> found(all.begin(), all.end());
  for (index_t rank = 0; rank < ranks; ++rank) {
    CHECK(split.value().local_length(length, rank) == found[static_cast<std::size_t>(rank)]);
    CHECK(all[rank] == found[static_cast<std::size_t>(rank)]);
  }
  return found;
}

using list = std::vector<index_t>;

// Attention of one head over scalar keys and values, in float64.
struct partial_result {
  double output = 0;
  double lse = -std::numeric_limits<double>::infinity();
};

partial_result attend(const std::vector<double>& scores, const std::vector<double>& values) {
  double sum = 0;
  double weighted = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    sum += std::exp(scores[i]);
    weighted += std::exp(scores[i]) * values[i];
  }
  if (scores.empty()) return {};
  return {weighted / sum, std::log(sum)};
}

partial_result merge(const std::vector<partial_result>& parts) {
  double sum = 0;
  double weighted = 0;
  for (const partial_result& part : parts) {
    if (std::isinf(part.lse)) continue;
    sum += std::exp(part.lse);
    weighted += std::exp(part.lse) * part.output;
  }
  if (sum == 0) return {};
  return {weighted / sum, std::log(sum)};
}

}  // namespace

TEST_CASE("D01: with fewer tokens than ranks the last ranks own none") {
  CHECK(lengths_of(3, 4, 1) == list{1, 1, 1, 0});
  CHECK(lengths_of(1, 8, 1) == list{1, 0, 0, 0, 0, 0, 0, 0});
  CHECK(lengths_of(1, 6, 1) == list{1, 0, 0, 0, 0, 0});
  static_assert(interleaving{4, 1}.local_length(3, 3) == 0);

  // Attention over each rank's own tokens, merged, is attention over all of them.
  const std::vector<double> scores = {0.5, -1.25, 2.0};
  const std::vector<double> values = {3.0, -7.0, 11.0};
  const interleaving split{4, 1};
  std::vector<partial_result> parts;
  for (index_t rank = 0; rank < 4; ++rank) {
    std::vector<double> own_scores;
    std::vector<double> own_values;
    for (index_t i = 0; i < split.local_length(3, rank); ++i) {
      const auto token = static_cast<std::size_t>(split.global(rank, i));
      own_scores.push_back(scores.at(token));
      own_values.push_back(values.at(token));
    }
    parts.push_back(attend(own_scores, own_values));
  }
  CHECK(parts[3].output == 0.0);
  CHECK(parts[3].lse == -std::numeric_limits<double>::infinity());
  const partial_result whole = attend(scores, values);
  CHECK(merge(parts).output == doctest::Approx(whole.output).epsilon(1e-14));
  CHECK(merge(parts).lse == doctest::Approx(whole.lse).epsilon(1e-14));
}

TEST_CASE("D03: lengths per rank with blocks of one and of many tokens") {
  CHECK(lengths_of(10, 4, 1) == list{3, 3, 2, 2});
  CHECK(lengths_of(10, 4, 4) == list{4, 4, 2, 0});
  CHECK(lengths_of(17, 4, 16) == list{16, 1, 0, 0});
  CHECK(lengths_of(65, 2, 64) == list{64, 1});
  CHECK(lengths_of(130, 3, 64) == list{64, 64, 2});
  CHECK(lengths_of(7, 6, 1) == list{2, 1, 1, 1, 1, 1});
  CHECK(lengths_of(0, 4, 1) == list{0, 0, 0, 0});
  CHECK(lengths_of(5, 2, 1) == list{3, 2});
  CHECK(lengths_of(5, 2, 4) == list{4, 1});
  CHECK(lengths_of(10, 1, 1) == list{10});
  CHECK(lengths_of(-3, 2, 1) == list{0, 0});  // as the bound of a padded row may be
  static_assert(static_interleaving<3, 64>.local_length(130, 2) == 2);
  static_assert(static_interleaving<4>.local_length(10)[1] == 3);

  // Far beyond 32 bits.
  static_assert(interleaving{3, 1}.local_length((index_t{1} << 40) + 1, 0) == 366503875926);
  static_assert(interleaving{3, 1}.local_length((index_t{1} << 40) + 1, 1) == 366503875926);
  static_assert(interleaving{3, 1}.local_length((index_t{1} << 40) + 1, 2) == 366503875925);
}

TEST_CASE("D03: owner and place of every token, and the way back") {
  const interleaving split{2, 2};
  const index_t owners[9] = {0, 0, 1, 1, 0, 0, 1, 1, 0};
  const index_t places[9] = {0, 1, 0, 1, 2, 3, 2, 3, 4};
  for (index_t token = 0; token < 9; ++token) {
    CAPTURE(token);
    CHECK(split.owner(token) == owners[token]);
    CHECK(split.local(token) == places[token]);
    CHECK(split.global(owners[token], places[token]) == token);
  }
  static_assert(interleaving{4, 16}.owner(64) == 0 && interleaving{4, 16}.local(64) == 16);
  static_assert(interleaving{4, 16}.owner(63) == 3 && interleaving{4, 16}.local(63) == 15);
  static_assert(interleaving{4, 16}.global(3, 15) == 63);

  constexpr kv_shard shard = kv_shard::make({.ranks = 4, .interleave = 1}, 1).value();
  static_assert(shard.owns(5) && shard.owns(9) && !shard.owns(0) && !shard.owns(10));
  static_assert(shard.local(5) == 1 && shard.local(9) == 2 && shard.global(2) == 9);
  static_assert(shard.local_length(10) == 3);
}

TEST_CASE("D05: lengths of one rank and of all ranks are different types") {
  const interleaving split{4, 1};
  static_assert(std::is_same_v<decltype(split.local_length(10, 2)), index_t>);
  static_assert(std::is_same_v<decltype(split.local_length(10)), shard_lengths>);
  static_assert(!std::is_convertible_v<shard_lengths, index_t>);
  static_assert(!std::is_convertible_v<index_t, shard_lengths>);

  const std::vector<std::int32_t> lengths = {10, 3};
  std::vector<shard_lengths> table(2);
  REQUIRE(split.local_lengths(std::span<const std::int32_t>(lengths), std::span(table)).ok());
  CHECK(list(table[0].begin(), table[0].end()) == list{3, 3, 2, 2});
  CHECK(list(table[1].begin(), table[1].end()) == list{1, 1, 1, 0});

  const kv_shard shard{split, 2};
  std::vector<std::int32_t> own = {-7, -7};
  REQUIRE(shard.local_lengths(std::span<const std::int32_t>(lengths), std::span(own)).ok());
  CHECK(own == std::vector<std::int32_t>{2, 1});

  // In place, and with 64-bit lengths.
  std::vector<index_t> both = {10, 3};
  REQUIRE(shard.local_lengths(std::span<const index_t>(both), std::span(both)).ok());
  CHECK(both == list{2, 1});
}

TEST_CASE("D05: an output of the wrong size is refused and not written") {
  const kv_shard shard{{4, 1}, 2};
  const std::vector<index_t> lengths = {10, 3};
  std::vector<index_t> out = {-7, -7, -7};
  const status why =
      shard.local_lengths(std::span<const index_t>(lengths), std::span<index_t>(out));
  CHECK(why.code == errc::shape_mismatch);
  CHECK(std::string(why.operand) == "out");
  CHECK(std::string(why.axis) == "sequence");
  CHECK(why.got == 3);
  CHECK(why.expected == 2);
  CHECK(out == list{-7, -7, -7});

  std::vector<shard_lengths> table(1, shard_lengths{1, {-7}});
  const status also =
      shard.split.local_lengths(std::span<const index_t>(lengths), std::span<shard_lengths>(table));
  CHECK(also.code == errc::shape_mismatch);
  CHECK(table[0][0] == -7);
}

TEST_CASE("D: what is not an interleaving is refused with the value that is wrong") {
  CHECK(interleaving::make(1, 1).ok());
  CHECK(interleaving::make(16, 64).ok());
  for (const index_t ranks : {-1, 0, 17}) {
    CAPTURE(ranks);
    const auto split = interleaving::make(ranks, 1);
    REQUIRE_FALSE(split.ok());
    CHECK(split.why().code == errc::unsupported);
    CHECK(std::string(split.why().operand) == "ranks");
    CHECK(split.why().got == ranks);
  }
  for (const index_t interleave : {index_t{0}, index_t{-1}, INT64_MAX}) {
    CAPTURE(interleave);
    const auto split = interleaving::make(4, interleave);
    REQUIRE_FALSE(split.ok());
    CHECK(split.why().code == errc::invalid_argument);
    CHECK(std::string(split.why().operand) == "interleave");
    CHECK(split.why().got == interleave);
  }
  for (const index_t rank : {-1, 4, 5}) {
    CAPTURE(rank);
    const auto shard = kv_shard::make({.ranks = 4, .interleave = 1}, rank);
    REQUIRE_FALSE(shard.ok());
    CHECK(shard.why().code == errc::out_of_range);
    CHECK(shard.why().got == rank);
    CHECK(shard.why().expected == 4);
  }
  CHECK(kv_shard::make({.ranks = 0, .interleave = 1}, 0).why().code == errc::unsupported);
  CHECK(kv_shard::make({.ranks = 4, .interleave = 0}, 0).why().code == errc::invalid_argument);
  CHECK(kv_shard::make({.ranks = 4, .interleave = 2}, 3).value() == kv_shard{{4, 2}, 3});
}

TEST_CASE("D: a block must not straddle pages") {
  CHECK(interleaving{4, 1}.check_page_size(64).ok());
  CHECK(interleaving{4, 64}.check_page_size(64).ok());
  CHECK(interleaving{4, 16}.check_page_size(64).ok());
  const status straddles = interleaving{4, 48}.check_page_size(64);
  CHECK(straddles.code == errc::invalid_argument);
  CHECK(std::string(straddles.operand) == "page_size");
  CHECK(straddles.got == 64);
  CHECK(straddles.expected == 48);
  CHECK_FALSE(interleaving{4, 128}.check_page_size(64).ok());
  CHECK_FALSE(interleaving{4, 1}.check_page_size(0).ok());
}

TEST_CASE("D: a rank's block table is as wide as its own tokens need") {
  // 256 tokens in pages of 64 on 2 ranks: 2 pages each, where all of them take 4.
  constexpr kv_shard shard{{2, 1}, 1};
  static_assert(shard.pages(256, 64) == 2 && shard.pages(257, 64) == 2);
  static_assert(kv_shard{{2, 1}, 0}.pages(257, 64) == 3);
  CHECK(shard.pages(0, 64) == 0);
  CHECK(shard.pages(1, 64) == 0);
  CHECK(shard.pages(2, 64) == 1);

  static_assert(locate(0, 64) == page_position{0, 0});
  static_assert(locate(63, 64) == page_position{0, 63});
  static_assert(locate(64, 64) == page_position{1, 0});
  // Tokens 5 and 9 of 4 ranks, on rank 1, whose only page of 4 is number 7: slots 29 and 30.
  constexpr kv_shard one{{4, 1}, 1};
  CHECK(page_offset(7, 4, locate(one.local(5), 4).slot, 1) == 29);
  CHECK(page_offset(7, 4, locate(one.local(9), 4).slot, 1) == 30);
}

TEST_CASE("K01: the causal bound of a query token comes from its place in the whole sequence") {
  // 10 tokens, the last 4 of them the queries: they see 7, 8, 9 and 10 tokens.
  const index_t global[4] = {7, 8, 9, 10};
  const index_t expected[4][4] = {{2, 2, 2, 1}, {2, 2, 2, 2}, {3, 2, 2, 2}, {3, 3, 2, 2}};
  for (index_t j = 0; j < 4; ++j) {
    CHECK(global_causal_bound(10, 4, j) == global[j]);
    for (index_t rank = 0; rank < 4; ++rank) {
      CAPTURE(j);
      CAPTURE(rank);
      CHECK(kv_shard{{4, 1}, rank}.causal_bound(10, 4, j) == expected[j][rank]);
    }
  }
  static_assert(kv_shard{{4, 1}, 3}.causal_bound(10, 4, 0) == 1);
  static_assert(kv_shard{{4, 1}, 1}.causal_bound(10, 4, 3) == 3);

  // A single query token sees every token that is there.
  for (index_t rank = 0; rank < 4; ++rank) {
    const kv_shard shard{{4, 16}, rank};
    CHECK(shard.causal_bound(100, 1, 0) == shard.local_length(100));
  }
  // A padded row has no tokens, not a negative number of them.
  for (index_t j = 0; j < 4; ++j) CHECK(global_causal_bound(0, 4, j) == 0);
  CHECK(global_causal_bound(2, 4, 1) == 0);
  CHECK(global_causal_bound(2, 4, 2) == 1);
  CHECK(kv_shard{{4, 1}, 0}.causal_bound(0, 4, 0) == 0);
}

namespace {

struct kernel_with_global_bounds {
  static constexpr causal_bounds causal = causal_bounds::global_positions;
};
struct kernel_with_local_lengths {
  static constexpr causal_bounds causal = causal_bounds::local_lengths;
};
struct kernel_that_does_not_say {};
struct kernel_that_says_something_else {
  static constexpr bool causal = true;
};

}  // namespace

TEST_CASE("K03: a kernel without global causal bounds is refused for several query tokens") {
  static_assert(states_causal_bounds<kernel_with_global_bounds>);
  static_assert(states_causal_bounds<kernel_with_local_lengths>);
  static_assert(!states_causal_bounds<kernel_that_does_not_say>);
  static_assert(!states_causal_bounds<kernel_that_says_something_else>);

  const status why = require_causal_bounds<kernel_with_local_lengths>(2, 2);
  CHECK(why.code == errc::unsupported);
  CHECK(std::string(why.operand) == "query_tokens");
  CHECK(why.got == 2);
  CHECK(why.expected == 1);

  CHECK(require_causal_bounds<kernel_with_local_lengths>(1, 2).ok());
  CHECK(require_causal_bounds<kernel_with_local_lengths>(2, 1).ok());
  CHECK_FALSE(require_causal_bounds<kernel_with_local_lengths>(4, 16).ok());
  CHECK(require_causal_bounds<kernel_with_global_bounds>(4, 16).ok());

  // Two static query tokens on `kernel_with_local_lengths` do not compile:
  // compile_fail/K03_causal_bounds_static.cpp.
  require_static_causal_bounds<kernel_with_global_bounds, 2>();
  require_static_causal_bounds<kernel_with_local_lengths, 1>();
  require_static_causal_bounds<kernel_with_local_lengths, 2, 1>();

  // Why: with 10 tokens of 4 ranks rank 0 holds 0, 4 and 8. The first of two query tokens, at
  // position 8, may see all three; counting back from the 3 that rank 0 has would hide token 8.
  constexpr kv_shard shard{{4, 1}, 0};
  CHECK(shard.causal_bound(10, 2, 0) == 3);
  CHECK(global_causal_bound(shard.local_length(10), 2, 0) == 2);
}

TEST_CASE("F01: page 262145 of a large pool is not page 1") {
  static_assert(std::is_same_v<decltype(page_offset(1, 1, 1, 1)), index_t>);
  constexpr std::int32_t page = 262145;  // as block tables have it
  constexpr std::int32_t stride = 32 * 512;
  static_assert(page_offset(page, stride, 0, 512) == 4294983680);
  static_assert(static_cast<std::uint32_t>(page_offset(page, stride, 0, 512)) == 16384);
  std::int32_t table[1] = {page};
  CHECK(page_offset(table[0], stride, 31, 512) == 4294983680 + 31 * 512);
}

TEST_CASE("F03: the block that reaches 2^31 is as right as the one before") {
  for (std::int32_t block : {65535, 65536, 65537}) {
    CAPTURE(block);
    std::int64_t expected = 0;
    for (std::int32_t i = 0; i < block; ++i) expected += 32768;
    CHECK(page_offset(block, 32768, 0, 1) == expected);
  }
  static_assert(page_offset(65535, 32768, 0, 1) == 2147450880);
  static_assert(page_offset(65536, 32768, 0, 1) == 2147483648);
}

TEST_CASE("F05: row offsets beyond 2^31 elements") {
  // [262144, 32, 256] has 2^31 elements.
  constexpr std::int32_t rows = 262144;
  constexpr std::int32_t heads = 32;
  constexpr std::int32_t dim = 256;
  static_assert(page_offset(0, heads * dim, 0, dim) == 0);
  static_assert(page_offset(rows - 1, heads * dim, heads - 1, dim) + dim - 1 == 2147483647);
  static_assert(page_offset(rows, heads * dim, 0, dim) == 2147483648);

  // The last element of [rank 8, token 8193, head 64, head_dim 512].
  constexpr index_t row = 64 * 512;
  static_assert(page_offset(7, 8193 * row, 8192, row) + page_offset(63, 512, 511, 1) ==
                2147745792 - 1);
  static_assert((checked_size(8) * 8193 * 64 * 512).value() == 2147745792);
  CHECK(page_offset(7, 8193 * row, 0, row) == 7 * std::int64_t{268468224});
}

TEST_CASE("L05: the stride of a page is what the cache says, not its number of slots") {
  // Pages of 64 slots that begin every 96 rows of 656 bytes.
  static_assert(page_offset(2, 96, 5, 1) == 197);
  static_assert(page_offset(2, 96, 5, 1) * 656 == 129232);
  static_assert(page_offset(2, 96 * 656, 5, 656) == 129232);
  CHECK(page_offset(2, 96, 5, 1) != 2 * 64 + 5);
}

TEST_CASE("L06: keys and values in one tensor") {
  // Strides 131072, 1024, 256, 1; the values begin 65536 elements behind the keys.
  constexpr index_t value_begin = 65536;
  static_assert(value_begin + page_offset(1, 131072, 0, 1024) == 196608);
  CHECK(value_begin + page_offset(1, 131072, 3, 1024) + 2 * 256 + 7 == 196608 + 3072 + 519);
}
