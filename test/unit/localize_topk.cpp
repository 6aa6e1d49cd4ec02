// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/reference/localize_topk.hpp>

#include <support/mla_problem.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

using namespace headwise;
using mla_test::at;

namespace {

using list = std::vector<std::int32_t>;

constexpr std::int32_t poison = 123456;

kv_shard shard_of(index_t ranks, index_t interleave, index_t rank) {
  return kv_shard::make(interleaving::make(ranks, interleave).value(), rank).value();
}

auto keys_view(const list& data, index_t tokens) {
  return view(data.data(), packed(extent<axis::token>(tokens),
                                  extent<axis::key>(static_cast<index_t>(data.size()) / tokens)));
}
auto table_view(const list& data, index_t sequences) {
  return view(data.data(),
              packed(extent<axis::sequence>(sequences),
                     extent<axis::page>(static_cast<index_t>(data.size()) / sequences)));
}
auto lengths_view(const list& data) {
  return view(data.data(), packed(extent<axis::sequence>(static_cast<index_t>(data.size()))));
}

struct located {
  list slots;
  list counts;
  status done;
};

located localize(const list& positions, const list& table, const list& lengths,
                 const localize_options& options) {
  const index_t tokens = static_cast<index_t>(lengths.size()) * options.query_tokens;
  located found{list(positions.size(), poison), list(at(tokens), poison), {}};
  found.done = reference::localize_topk(
      keys_view(positions, tokens), table_view(table, static_cast<index_t>(lengths.size())),
      lengths_view(lengths), options,
      view(found.slots.data(), keys_view(positions, tokens).layout()),
      view(found.counts.data(), packed(extent<axis::token>(tokens))));
  return found;
}

}  // namespace

TEST_CASE("D06: localize_topk: global positions become slots through the local block table") {
  const list positions = {0, 5, 9, 10, -1};
  const list lengths = {11};
  const auto on_rank = [&](index_t rank, const list& table) {
    const localize_options options{.page_size = 4, .shard = shard_of(4, 1, rank)};
    const located found = localize(positions, table, lengths, options);
    REQUIRE(found.done.ok());
    return found;
  };
  CHECK(on_rank(1, {7}).slots == list{29, 30, -1, -1, -1});
  CHECK(on_rank(1, {7}).counts == list{2});
  // With page 0 a slot is the local index itself.
  CHECK(on_rank(1, {0}).slots == list{1, 2, -1, -1, -1});
  CHECK(on_rank(0, {0}).slots == list{0, -1, -1, -1, -1});
  CHECK(on_rank(2, {0}).slots == list{2, -1, -1, -1, -1});
  CHECK(on_rank(3, {0}).slots == list{-1, -1, -1, -1, -1});
  CHECK(on_rank(3, {0}).counts == list{0});
}

TEST_CASE("D06: localize_topk: a rank that holds none of the top-k has an empty result") {
  using record = kv_bf16<16, 4>;
  const mla_test::problem<record> step({11}, 1, 2, 1);
  const list positions = {0, 5, 9, 10, -1};
  std::vector<mla_test::answer> parts[2];
  for (index_t rank = 0; rank < 4; ++rank) {
    const kv_shard shard = shard_of(4, 1, rank);
    const auto cache = step.cache(shard, 4, 0, 2);
    list slots(5, poison);
    list counts(1, poison);
    REQUIRE(reference::localize_topk(keys_view(positions, 1), cache.block_table(),
                                     step.lengths_view(), {.page_size = 4, .shard = shard},
                                     view(slots.data(), keys_view(positions, 1).layout()),
                                     view(counts.data(), packed(extent<axis::token>(1))))
                .ok());
    mla_test::outputs<double, 16> result(1, 2);
    REQUIRE(reference::mla_decode_sparse(step.query_view(), cache.kv, keys_view(slots, 1),
                                         view(counts.data(), packed(extent<axis::token>(1))),
                                         step.scale, result.output_view(), result.lse_view())
                .ok());
    for (index_t h = 0; h < 2; ++h) {
      const double* row = result.row(0, h);
      parts[h].push_back({{row, row + 16}, static_cast<double>(result.lse_of(0, h)), {}});
    }
    if (rank == 3) {
      CHECK(result.output == std::vector<double>(32, 0.0));
      CHECK(std::isinf(result.lse_of(0, 0)));
      CHECK(result.lse_of(0, 0) < 0);
    }
  }
  for (index_t h = 0; h < 2; ++h) {
    const auto merged = mla_test::merge(parts[h]);
    const auto truth = step.attend(0, h, {0, 5, 9, 10});
    for (std::size_t d = 0; d < 16; ++d) {
      CHECK(std::fabs(merged.output[d] - truth.output[d]) < 1e-6);
    }
    CHECK(std::fabs(merged.lse - truth.lse) < 1e-6);
  }
}

TEST_CASE("localize_topk: positions keep their order and lose what is not this rank's") {
  // Two ranks: 0, 2 are rank 0's first two tokens, 1, 3 rank 1's.
  const list positions = {0, 1, 2, 3, -1};
  for (index_t rank = 0; rank < 2; ++rank) {
    const located found =
        localize(positions, {0}, {4}, {.page_size = 64, .shard = shard_of(2, 1, rank)});
    REQUIRE(found.done.ok());
    CHECK(found.slots == list{0, 1, -1, -1, -1});
    CHECK(found.counts == list{2});
  }
  // Unsorted, blocks of 4, several pages.
  const located found = localize({21, -1, 3, 16, 4, 0, 7, 23}, {5, 9}, {24},
                                 {.page_size = 8, .shard = shard_of(2, 4, 0)});
  REQUIRE(found.done.ok());
  // Rank 0 holds 0-3, 8-11, 16-19, at local 0-3, 4-7, 8-11: of the list 3, 16 and 0.
  CHECK(found.slots == list{5 * 8 + 3, 9 * 8 + 0, 5 * 8 + 0, -1, -1, -1, -1, -1});
  CHECK(found.counts == list{3});
}

TEST_CASE("localize_topk: a query token's positions end at its causal bound") {
  // Length 6, three query tokens: they see 4, 5 and 6 tokens. One rank, one page.
  const list row = {5, 4, 3, 6, 1000000000, -1, 0};
  list positions;
  for (int j = 0; j < 3; ++j) positions.insert(positions.end(), row.begin(), row.end());
  const located found =
      localize(positions, {0}, {6}, {.page_size = 8, .query_tokens = 3, .shard = {}});
  REQUIRE(found.done.ok());
  CHECK(found.slots == list{3, 0, -1, -1, -1, -1, -1,  //
                            4, 3, 0,  -1, -1, -1, -1,  //
                            5, 4, 3,  0,  -1, -1, -1});
  CHECK(found.counts == list{2, 3, 4});
}

TEST_CASE("localize_topk: sequences that are empty, or shorter than their query tokens") {
  const located found = localize({0, 1, 0, 1, 0, 1, 0, 1}, {-1, 3}, {0, 1},
                                 {.page_size = 4, .query_tokens = 2, .shard = {}});
  REQUIRE(found.done.ok());
  CHECK(found.slots == list{-1, -1, -1, -1, -1, -1, 12, -1});
  CHECK(found.counts == list{0, 0, 0, 1});
}

TEST_CASE("localize_topk: may be done in place") {
  list positions = {9, -1, 0, 5, 13, 2, -1, 1};
  const list expected =
      localize(positions, {1, 0}, {14}, {.page_size = 4, .shard = shard_of(2, 1, 1)}).slots;
  list counts(1);
  const view both(positions.data(), packed(extent<axis::token>(1), extent<axis::key>(8)));
  const list table = {1, 0};
  const list lengths = {14};
  REQUIRE(reference::localize_topk(both, table_view(table, 1), lengths_view(lengths),
                                   {.page_size = 4, .shard = shard_of(2, 1, 1)}, both,
                                   view(counts.data(), packed(extent<axis::token>(1))))
              .ok());
  CHECK(positions == expected);
  CHECK(counts == list{4});
}

TEST_CASE("localize_topk: every operand is read and written through its own strides") {
  // Positions with the key outermost; a block table of local width 2 and row stride 4.
  const list positions = {0, 100, 3, 100, 7, 100, 12, 100, 130, 100, 5, 100};  // 6 keys, 2 tokens
  const list table = {4, 2, 2147480000, -1, 6, 1, 2147480000, -1};
  const list lengths = {131, 140};
  list slots(at(2 * 10), poison);
  std::vector<std::int64_t> counts(4, poison);
  REQUIRE(reference::localize_topk(
              view(positions.data(), layout(dim<axis::key>(6, 2), dim<axis::token>(2, 1))),
              view(table.data(), layout(dim<axis::sequence>(2, 4), dim<axis::page>(2, 1))),
              lengths_view(lengths), {.page_size = 64, .shard = shard_of(2, 1, 0)},
              view(slots.data(), layout(dim<axis::token>(2, 10), dim<axis::key>(6, 1))),
              view(counts.data(), layout(dim<axis::token>(2, 2))))
              .ok());
  // Rank 0 holds even positions; 100 is its token 50 and 130 its token 65, on its second page.
  const list first = {4 * 64 + 0, 4 * 64 + 6, 2 * 64 + 1, -1, -1, -1};
  const list second = {6 * 64 + 50, 6 * 64 + 50, 6 * 64 + 50,
                       6 * 64 + 50, 6 * 64 + 50, 6 * 64 + 50};
  CHECK(list(slots.begin(), slots.begin() + 6) == first);
  CHECK(list(slots.begin() + 6, slots.begin() + 10) == list(4, poison));
  CHECK(list(slots.begin() + 10, slots.begin() + 16) == second);
  CHECK(list(slots.begin() + 16, slots.end()) == list(4, poison));
  CHECK(counts == std::vector<std::int64_t>{3, poison, 6, poison});
}

TEST_CASE("localize_topk: all ranks together keep each visible position once") {
  mla_test::random_source random(5);
  for (int round = 0; round < 200; ++round) {
    const index_t ranks = random.in(1, 16);
    const index_t interleave = random.one_of<index_t>({1, 2, 3, 16, 64});
    const index_t page_size = random.one_of<index_t>({1, 16, 53, 64});
    const index_t length = random.in(0, 300);
    const index_t query_tokens = random.in(1, 4);
    list positions;
    for (index_t i = 0; i < 40 * query_tokens; ++i) {
      positions.push_back(random.in(0, 3) == 0 ? -1 : static_cast<std::int32_t>(random.in(0, 310)));
    }
    list table;
    for (index_t p = 0; p < 310; ++p) table.push_back(static_cast<std::int32_t>(random.in(0, 99)));
    std::vector<list> seen(at(query_tokens));
    for (index_t rank = 0; rank < ranks; ++rank) {
      const kv_shard shard = shard_of(ranks, interleave, rank);
      const located found =
          localize(positions, table, {static_cast<std::int32_t>(length)},
                   {.page_size = page_size, .query_tokens = query_tokens, .shard = shard});
      REQUIRE(found.done.ok());
      for (index_t t = 0; t < query_tokens; ++t) {
        // Walk the row again, by what the words say, one position after the other.
        index_t next = 40 * t;
        for (index_t i = 40 * t; i < 40 * (t + 1); ++i) {
          const index_t position = positions[at(i)];
          if (position < 0 || position > length - query_tokens + t) continue;
          if (position / interleave % ranks != rank) continue;
          const index_t local =
              position / (interleave * ranks) * interleave + position % interleave;
          const index_t slot = table[at(local / page_size)] * page_size + local % page_size;
          REQUIRE(found.slots[at(next++)] == slot);
          seen[at(t)].push_back(positions[at(i)]);
        }
        REQUIRE(found.counts[at(t)] == next - 40 * t);
        for (; next < 40 * (t + 1); ++next) REQUIRE(found.slots[at(next)] == -1);
      }
    }
    for (index_t t = 0; t < query_tokens; ++t) {
      list visible;
      for (index_t i = 40 * t; i < 40 * (t + 1); ++i) {
        const std::int32_t position = positions[at(i)];
        if (position >= 0 && position <= length - query_tokens + t) visible.push_back(position);
      }
      std::sort(visible.begin(), visible.end());
      std::sort(seen[at(t)].begin(), seen[at(t)].end());
      REQUIRE(seen[at(t)] == visible);
    }
  }
}

TEST_CASE("localize_topk: a wrong call says what is wrong and writes nothing") {
  const auto wrong = [](const located& found, errc code, const char* operand, index_t got,
                        index_t expected) {
    CHECK(found.done.code == code);
    CHECK(found.done.operand == std::string(operand));
    CHECK(found.done.got == got);
    CHECK(found.done.expected == expected);
    CHECK(found.slots == list(found.slots.size(), poison));
    CHECK(found.counts == list(found.counts.size(), poison));
  };
  wrong(localize({0}, {0}, {1}, {.page_size = 0, .shard = {}}), errc::invalid_argument, "page_size",
        0, 1);
  wrong(localize({0}, {0}, {-5}, {.page_size = 4, .shard = {}}), errc::invalid_argument, "lengths",
        -5, 0);
  wrong(localize({0}, {0}, {5}, {.page_size = 4, .shard = {}}), errc::shape_mismatch, "block_table",
        1, 2);
  wrong(localize({0}, {-1}, {1}, {.page_size = 4, .shard = {}}), errc::out_of_range, "block_table",
        -1, 536870912);
  // The largest page whose slots an int32 can name, and the next one.
  CHECK(localize({0}, {536870911}, {1}, {.page_size = 4, .shard = {}}).slots == list{2147483644});
  wrong(localize({0}, {536870912}, {1}, {.page_size = 4, .shard = {}}), errc::out_of_range,
        "block_table", 536870912, 536870912);
  kv_shard no_rank;
  no_rank.rank = 3;
  wrong(localize({0}, {0}, {1}, {.page_size = 4, .shard = no_rank}), errc::out_of_range, "rank", 3,
        1);

  const list positions = {0, 1};
  const list table = {0};
  const list lengths = {1};
  list slots(2, poison);
  list counts(2, poison);
  const auto shapes = [&](index_t slot_keys, index_t slot_stride, index_t count_tokens) {
    return reference::localize_topk(
        keys_view(positions, 1), table_view(table, 1), lengths_view(lengths),
        {.page_size = 4, .shard = {}},
        view(slots.data(), layout(dim<axis::token>(1, 2), dim<axis::key>(slot_keys, slot_stride))),
        view(counts.data(), packed(extent<axis::token>(count_tokens))));
  };
  CHECK(shapes(1, 1, 1).operand == std::string("slots"));
  CHECK(shapes(2, 0, 1).code == errc::overlap);
  CHECK(shapes(2, 1, 2).operand == std::string("counts"));
  CHECK(slots == list(2, poison));
  CHECK(counts == list(2, poison));
  CHECK(shapes(2, 1, 1).ok());
}
