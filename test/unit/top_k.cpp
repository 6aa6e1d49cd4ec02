// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/reference/top_k.hpp>

#include <support/mla_problem.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

using namespace headwise;
using mla_test::at;

namespace {

using list = std::vector<std::int32_t>;

constexpr std::int32_t poison = 123456;

struct candidate {
  float score;
  std::int32_t position;
};

/// One token's candidates by rank; short ranks are filled up with "none".
list select(const std::vector<std::vector<candidate>>& ranks, index_t k) {
  index_t keys = 0;
  for (const auto& own : ranks) keys = std::max(keys, static_cast<index_t>(own.size()));
  std::vector<float> scores;
  list positions;
  for (const auto& own : ranks) {
    for (index_t i = 0; i < keys; ++i) {
      const bool none = i >= static_cast<index_t>(own.size());
      scores.push_back(none ? 1e30f : own[at(i)].score);
      positions.push_back(none ? -1 : own[at(i)].position);
    }
  }
  const auto shape = packed(extent<axis::rank>(static_cast<index_t>(ranks.size())),
                            extent<axis::token>(1), extent<axis::key>(keys));
  list selected(at(k), poison);
  REQUIRE(
      reference::top_k(view(scores.data(), shape), view(positions.data(), shape),
                       view(selected.data(), packed(extent<axis::token>(1), extent<axis::key>(k))))
          .ok());
  return selected;
}

std::vector<std::vector<candidate>> dealt(const std::vector<candidate>& all, index_t ranks,
                                          mla_test::random_source& random) {
  std::vector<std::vector<candidate>> hands(at(ranks));
  for (const candidate& one : all) hands[at(random.in(0, ranks - 1))].push_back(one);
  return hands;
}

}  // namespace

TEST_CASE("D08: top_k: equal scores go to the lower positions, however candidates are spread") {
  std::vector<candidate> all;
  for (std::int32_t position = 0; position < 6; ++position) all.push_back({1.0f, position});
  CHECK(select({{all[0], all[1]}, {all[2], all[3]}, {all[4], all[5]}}, 2) == list{0, 1});
  CHECK(select({{all[5], all[4]}, {all[3], all[2]}, {all[1], all[0]}}, 2) == list{0, 1});
  CHECK(select({{all[4], all[1]}, {all[5], all[2]}, {all[3], all[0]}}, 2) == list{0, 1});
  mla_test::random_source random(1);
  for (int round = 0; round < 100; ++round) {
    std::shuffle(all.begin(), all.end(), random.engine);
    REQUIRE(select(dealt(all, 3, random), 2) == list{0, 1});
  }
}

TEST_CASE("top_k: best first, and the same as a full sort for any spread over any ranks") {
  mla_test::random_source random(2);
  for (int round = 0; round < 300; ++round) {
    const index_t count = random.in(0, 60);
    const index_t k = random.in(0, 40);
    std::vector<candidate> all;
    for (index_t i = 0; i < count; ++i) {
      // Few different scores: ties are the rule.
      all.push_back(
          {static_cast<float>(random.in(-3, 3)) * 0.5f, static_cast<std::int32_t>(3 * i)});
    }
    std::vector<candidate> sorted = all;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const candidate& a, const candidate& b) { return a.score > b.score; });
    list expected(at(k), -1);
    for (index_t i = 0; i < std::min(k, count); ++i) expected[at(i)] = sorted[at(i)].position;
    std::shuffle(all.begin(), all.end(), random.engine);
    REQUIRE(select(dealt(all, random.in(1, 16), random), k) == expected);
  }
}

TEST_CASE("top_k: what is left over is -1, holes are no candidates, repeats count once") {
  CHECK(select({{{3.0f, 7}, {9.0f, -1}}, {{9.0f, -1}, {4.0f, 2}}}, 4) == list{2, 7, -1, -1});
  CHECK(select({{}, {}}, 3) == list{-1, -1, -1});
  CHECK(select({{{1.0f, 5}, {1.0f, 5}}, {{1.0f, 5}, {0.5f, 4}}}, 3) == list{5, 4, -1});
  CHECK(select({{{1.0f, 5}}}, 0).empty());
}

TEST_CASE("top_k: signed zeros are equal, infinities are scores, NaN comes last") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(select({{{0.0f, 3}, {-0.0f, 1}}, {{0.0f, 2}}}, 3) == list{1, 2, 3});
  CHECK(select({{{nan, 0}, {-inf, 4}}, {{inf, 6}, {nan, 1}, {0.0f, 5}}}, 5) == list{6, 5, 4, 0, 1});
  CHECK(select({{{nan, 0}}, {{-inf, 4}}}, 1) == list{4});
  CHECK(select({{{nan, 8}}, {{nan, 4}}}, 2) == list{4, 8});
}

TEST_CASE("top_k: tokens are independent and every operand has its own strides") {
  // [token, rank, key] scores in bf16 with a gap; [rank, token, key] positions; selected [key,
  // token].
  std::vector<std::uint16_t> scores(at(2 * 2 * 4), 0x7f80);
  list positions(at(2 * 2 * 3), -1);
  const auto put = [&](index_t rank, index_t token, index_t key, float score,
                       std::int32_t position) {
    scores[at(token * 8 + rank * 4 + key)] = mla_test::bf16_bits(score);
    positions[at(rank * 6 + token * 3 + key)] = position;
  };
  put(0, 0, 0, 1.0f, 10);
  put(0, 0, 2, 2.0f, 11);
  put(1, 0, 1, 2.0f, 9);
  put(1, 1, 0, -1.0f, 20);
  put(1, 1, 1, -2.0f, 21);
  list selected(at(2 * 5), poison);
  REQUIRE(reference::top_k(
              view(reinterpret_cast<const bf16*>(scores.data()),
                   layout(dim<axis::token>(2, 8), dim<axis::rank>(2, 4), dim<axis::key>(3, 1))),
              view(positions.data(),
                   packed(extent<axis::rank>(2), extent<axis::token>(2), extent<axis::key>(3))),
              view(selected.data(), layout(dim<axis::key>(2, 5), dim<axis::token>(2, 1))))
              .ok());
  CHECK(selected == list{9, 20, poison, poison, poison, 11, 21, poison, poison, poison});
}

TEST_CASE("top_k: a wrong call says what is wrong and writes nothing") {
  const std::vector<float> scores(12);
  const list positions(12);
  list selected(4, poison);
  const auto call = [&](index_t ranks, index_t tokens, index_t keys, index_t selected_tokens,
                        index_t selected_stride) {
    return reference::top_k(
        view(scores.data(),
             packed(extent<axis::rank>(2), extent<axis::token>(2), extent<axis::key>(3))),
        view(positions.data(), packed(extent<axis::rank>(ranks), extent<axis::token>(tokens),
                                      extent<axis::key>(keys))),
        view(selected.data(),
             layout(dim<axis::token>(selected_tokens, selected_stride), dim<axis::key>(2, 1))));
  };
  const auto wrong = [&](const status& found, errc code, const char* operand, const char* axis_name,
                         index_t got, index_t expected) {
    CHECK(found.code == code);
    CHECK(found.operand == std::string(operand));
    CHECK(found.axis == std::string(axis_name));
    CHECK(found.got == got);
    CHECK(found.expected == expected);
    CHECK(selected == list(4, poison));
  };
  wrong(call(3, 2, 2, 2, 2), errc::shape_mismatch, "positions", "rank", 3, 2);
  wrong(call(2, 1, 3, 2, 2), errc::shape_mismatch, "positions", "token", 1, 2);
  wrong(call(2, 2, 2, 2, 2), errc::shape_mismatch, "positions", "key", 2, 3);
  wrong(call(2, 2, 3, 1, 2), errc::shape_mismatch, "selected", "token", 1, 2);
  CHECK(call(2, 2, 3, 2, 1).code == errc::overlap);
  CHECK(selected == list(4, poison));
  CHECK(call(2, 2, 3, 2, 2).ok());
}
