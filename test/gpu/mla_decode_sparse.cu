// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Decode attention to lists of slots: holes anywhere, counts, what localize_topk leaves, against
// the reference in float64.

#include <headwise/kernel/localize_topk.cuh>
#include <headwise/kernel/mla_decode.cuh>

#include <support/mla_device.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace headwise;
using mla_test::answers;
using mla_test::at;
using mla_test::check_close;
using mla_test::combined;
using mla_test::decode_sparse;
using mla_test::device_cache;
using mla_test::device_counts;
using mla_test::device_query;
using mla_test::device_results;
using mla_test::device_slots;
using mla_test::device_workspace;
using mla_test::largest_deviations;
using mla_test::make_alike;
using mla_test::problem;
using mla_test::reference_answers;
using mla_test::require_ok;
using mla_test::rows_of;

namespace {

constexpr auto e = log_base::e;

using wide = kv_bf16<512, 64>;
using fp8 = kv_fp8_ds_mla<512, 64>;

constexpr kv_shard unsharded{};

template <class Slot>
using list = std::vector<Slot>;

/// The slot of a token.
template <class Record>
index_t slot_of(const mla_test::paged_cache<Record>& cache, index_t sequence, index_t local) {
  const index_t page = cache.table[at(sequence * cache.table_stride + local / cache.page_size)];
  return page * cache.page_size + local % cache.page_size;
}

/// Where the holes of a row are.
enum class holes { none, leading, interior, trailing, everywhere };
constexpr holes all_holes[] = {holes::none, holes::leading, holes::interior, holes::trailing,
                               holes::everywhere};

/// `keys` entries for each query token: tokens of its sequence, some of them twice, and holes.
template <class Slot, class Record>
list<Slot> any_lists(const problem<Record>& step, const mla_test::paged_cache<Record>& cache,
                     index_t keys, holes where, mla_test::random_source& random) {
  list<Slot> slots;
  for (index_t t = 0; t < step.tokens(); ++t) {
    const index_t sequence = t / step.query_tokens;
    const index_t length = step.lengths[at(sequence)];
    const index_t first = random.in(0, keys);
    for (index_t i = 0; i < keys; ++i) {
      const bool hole = length == 0 || where == holes::everywhere ||
                        (where == holes::leading && i < first) ||
                        (where == holes::trailing && i >= first) ||
                        (where == holes::interior && random.in(0, 2) == 0);
      slots.push_back(
          static_cast<Slot>(hole ? -1 : slot_of(cache, sequence, random.in(0, length - 1))));
    }
  }
  return slots;
}

/// Lists of every length, for every number of heads.
template <class Record, class Element, class Slot>
void check_lists(const char* what, std::uint64_t seed) {
  largest_deviations largest(what);
  mla_test::random_source random(seed);
  index_t turn = 0;
  for (const index_t heads : mla_test::head_counts) {
    for (const index_t keys : {1, 15, 32, 33, 70, 200}) {
      if (++turn % 2 == 0) continue;
      const index_t page_size = mla_test::turn(mla_test::page_sizes, turn);
      const holes where = mla_test::turn(all_holes, turn / 2);
      const int where_number = static_cast<int>(where);
      CAPTURE(heads);
      CAPTURE(keys);
      CAPTURE(page_size);
      CAPTURE(where_number);
      const problem<Record> step({300, 0, 70}, random.in(1, 2), heads, seed);
      const auto cache = step.cache(unsharded, page_size, 16, seed);
      const auto slots = any_lists<Slot>(step, cache, keys, where, random);
      const answers got =
          decode_sparse<Element>(step, cache, slots, none, mla_test::any_arrangement(random));
      largest.take(check_close<Element>(got, reference_answers(step, cache, slots)));
      if (where == holes::everywhere) CHECK(got.empty_rows() == step.tokens() * heads);
    }
  }
}

}  // namespace

// ---- against the reference --------------------------------------------------------------------

TEST_CASE("mla_decode kernel: lists of slots: fp8, bf16") {
  check_lists<fp8, bf16, std::int32_t>("lists, fp8, bf16", 501);
}
TEST_CASE("mla_decode kernel: lists of slots of 64 bits: bf16, fp32") {
  check_lists<wide, float, std::int64_t>("lists, bf16, fp32", 502);
}

TEST_CASE("mla_decode kernel: 2,048 slots a token, however they are shared out") {
  largest_deviations largest("2,048 slots");
  mla_test::random_source random(510);
  for (const index_t heads : {16, 64, 128}) {
    const problem<fp8> step({3000, 2100}, 1, heads, 510);
    const auto cache = step.cache(unsharded, 64, 0, 510);
    const auto slots = any_lists<std::int32_t>(step, cache, 2048, holes::interior, random);
    const answers truth = reference_answers(step, cache, slots);
    for (const int multiprocessors : {0, 1, 2, 7, 66, 132}) {
      for (const int least_tiles : {1, 4}) {
        CAPTURE(heads);
        CAPTURE(multiprocessors);
        CAPTURE(least_tiles);
        const mla_test::arrangement as{.how = {multiprocessors, least_tiles}};
        const answers got = decode_sparse<bf16>(step, cache, slots, none, as);
        largest.take(check_close<bf16>(got, truth));
        const answers again = decode_sparse<bf16>(step, cache, slots, none, as);
        const bool same = again.output == got.output && again.lses == got.lses;
        CHECK(same);
      }
    }
  }
}

TEST_CASE("C12: mla_decode kernel: holes in front of the first key, or anywhere, are no keys") {
  problem<wide> step({5}, 1, 1, 520);
  make_alike(step, 0.0f, 0.0f, 0.0f);
  for (index_t i = 0; i < 5; ++i) {  // values 1, 2, 3, 4 and a row of NaN that nobody asks for
    const std::uint16_t bits = i < 4 ? mla_test::bf16_bits(static_cast<float>(i + 1)) : 0xffff;
    for (index_t d = 0; d < 512; ++d) {
      std::memcpy(step.records[0].data() + i * wide::record_bytes + 2 * d, &bits, 2);
    }
  }
  const auto cache = step.cache(unsharded, 5, 0, 520);
  const auto check = [&](const list<std::int64_t>& slots) {
    const answers got = decode_sparse<float>(step, cache, slots);
    for (const double number : got.output) REQUIRE(std::fabs(number - 2.5) < 1e-6);
    CHECK(got.lses[0] == doctest::Approx(std::log(4.0)).epsilon(1e-6));
  };
  list<std::int64_t> keys;
  for (index_t i = 0; i < 4; ++i) keys.push_back(slot_of(cache, 0, i));
  check(keys);
  std::mt19937_64 engine(1);
  for (const std::size_t count :
       std::initializer_list<std::size_t>{1, 15, 16, 17, 31, 32, 64, 200, 2000}) {
    CAPTURE(count);
    list<std::int64_t> slots(count, -1);
    slots.insert(slots.end(), keys.begin(), keys.end());
    check(slots);
    for (int i = 0; i < 5; ++i) {
      std::shuffle(slots.begin(), slots.end(), engine);
      check(slots);
    }
  }
  for (const std::size_t count : std::initializer_list<std::size_t>{1, 32, 300, 5000}) {
    CHECK(decode_sparse<float>(step, cache, list<std::int64_t>(count, -1)).empty_rows() == 1);
  }
}

TEST_CASE("C12: mla_decode kernel: the order of a list, holes included, changes roundings alone") {
  const problem<fp8> step({700, 90}, 1, 12, 530);
  const auto cache = step.cache(unsharded, 53, 0, 530);
  mla_test::random_source random(530);
  auto slots = any_lists<std::int32_t>(step, cache, 300, holes::interior, random);
  const answers truth = reference_answers(step, cache, slots);
  for (int i = 0; i < 10; ++i) {
    for (index_t t = 0; t < 2; ++t) {
      std::shuffle(slots.begin() + t * 300, slots.begin() + (t + 1) * 300, random.engine);
    }
    check_close<bf16>(decode_sparse<bf16>(step, cache, slots), truth);
  }
}

TEST_CASE("C13: H11: mla_decode kernel: a padded row of -1 is exactly empty, others as alone") {
  const problem<wide> step({5, 5, 5, 0}, 1, 18, 540);
  const auto cache = step.cache(unsharded, 4, 0, 540);
  list<std::int64_t> slots;
  for (index_t s = 0; s < 4; ++s) {
    for (index_t i = 0; i < 5; ++i) slots.push_back(s == 3 ? -1 : slot_of(cache, s, i));
  }
  const answers got = decode_sparse<float>(step, cache, slots);
  check_close<float>(got, reference_answers(step, cache));
  CHECK(got.empty_rows() == 18);
  for (index_t r = 3 * 18; r < 4 * 18; ++r) CHECK(got.is_empty(r));
}

TEST_CASE("D08: mla_decode kernel: entries of other ranks, dropped or left as holes") {
  const problem<fp8> step({90}, 1, 20, 550);
  const kv_shard shard = kv_shard::make(interleaving::make(3, 4).value(), 1).value();
  const auto cache = step.cache(shard, 8, 0, 550);
  list<std::int32_t> left_in;
  list<std::int32_t> dropped;
  for (index_t position = 89; position >= 0; position -= 2) {
    const bool own = shard.owns(position);
    const auto slot =
        own ? static_cast<std::int32_t>(slot_of(cache, 0, shard.local(position))) : -1;
    left_in.push_back(slot);
    if (own) dropped.push_back(slot);
  }
  REQUIRE(dropped.size() > 3);
  REQUIRE(dropped.size() < left_in.size());
  const answers truth = reference_answers(step, cache, dropped);
  check_close<bf16>(decode_sparse<bf16>(step, cache, left_in), truth);
  check_close<bf16>(decode_sparse<bf16>(step, cache, dropped), truth);
  // Compacted to a prefix, with a count, and anything behind it.
  const device_counts<> count(std::vector<std::size_t>{dropped.size()});
  dropped.resize(left_in.size(), 2147480000);
  check_close<float>(decode_sparse<float>(step, cache, dropped, count.view()), truth);
}

// ---- counts -----------------------------------------------------------------------------------

TEST_CASE("mla_decode kernel: of a list only so many entries are read as its count says") {
  const problem<fp8> step({300, 40, 300, 300, 300, 300}, 1, 9, 560);
  const auto cache = step.cache(unsharded, 16, 0, 560);
  mla_test::random_source random(560);
  auto slots = any_lists<std::int32_t>(step, cache, 200, holes::interior, random);
  // What cannot be a count is the nearest one that can be.
  const std::vector<std::int32_t> counts = {200, 33, 0, -5, 201, INT32_MAX};
  auto expected = slots;
  const index_t in_use[] = {200, 33, 0, 0, 200, 200};
  for (index_t t = 0; t < 6; ++t) {
    for (index_t i = in_use[t]; i < 200; ++i) {
      // A token that is there, one that no list may name, and entries that lead far outside.
      const index_t others[] = {slot_of(cache, t, 1), 2147480000, -1, INT32_MIN};
      slots[at(t * 200 + i)] = static_cast<std::int32_t>(others[i % 4]);
      expected[at(t * 200 + i)] = -1;
    }
  }
  const device_counts<> given(counts);
  const answers got = decode_sparse<float>(step, cache, slots, given.view());
  check_close<float>(got, reference_answers(step, cache, expected));
  CHECK(got.empty_rows() == 2 * 9);
}

TEST_CASE("mla_decode kernel: slots that there are not are no keys") {
  // Where the reference refuses, the device leaves them out.
  const problem<wide> step({100, 64}, 1, 6, 570);
  const auto cache = step.cache(unsharded, 16, 0, 570);
  const index_t slot_count = cache.kv.slot_count();
  mla_test::random_source random(570);
  auto slots = any_lists<std::int64_t>(step, cache, 90, holes::none, random);
  auto expected = slots;
  const std::int64_t strange[] = {slot_count, -2,         INT64_MIN,
                                  INT64_MAX,  2147480000, (std::int64_t{1} << 32) + slots[0]};
  for (std::size_t i = 0; i < slots.size(); i += 3) {
    slots[i] = strange[i / 3 % 6];
    expected[i] = -1;
  }
  check_close<float>(decode_sparse<float>(step, cache, slots),
                     reference_answers(step, cache, expected));
}

// ---- behind localize_topk ---------------------------------------------------------------------

namespace {

/// What a rank makes of positions in whole sequences: localized and attended to, on one stream.
answers attend_to_positions(const problem<fp8>& step, const mla_test::paged_cache<fp8>& cache,
                            const std::vector<std::int32_t>& positions, kv_shard shard) {
  const index_t tokens = step.tokens();
  const device_slots<std::int32_t> wanted(positions, tokens);
  const device_slots<std::int32_t> slots(list<std::int32_t>(positions.size(), -77), tokens);
  const device_counts<> counts(list<std::int32_t>(at(tokens), -77));
  const device_query query(step);
  const device_cache<fp8> records(cache);
  const mla_test::device_lengths<> lengths(step.lengths);
  const device_results<float> results({tokens, step.heads, fp8::latent});
  const auto workspace = device_workspace::of<fp8>(step.heads);
  const support::stream stream;
  require_ok(kernel::localize_topk(
      wanted.view(), records.block_table(), lengths.view(),
      {.page_size = cache.page_size, .query_tokens = step.query_tokens, .shard = shard},
      make_view<memory_space::device>(slots.memory.data(), slots.rows),
      make_view<memory_space::device>(counts.memory.data(),
                                      mla_test::along<axis::token>(dim<axis::token>(tokens, 1))),
      stream));
  require_ok(kernel::mla_decode_sparse(query.view(), records.kv, slots.view(), step.scale,
                                       results.output_view(), results.lse_view(), workspace.all(),
                                       on_stream{stream, true}, counts.view()));
  stream.wait();
  return results.fetch();
}

}  // namespace

TEST_CASE("D06: mla_decode kernel: what localize_topk leaves of global positions, on each rank") {
  const problem<fp8> step({11}, 1, 2, 580);
  const std::vector<std::int32_t> positions = {0, 5, 9, 10, -1};
  const std::vector<std::vector<index_t>> owned = {{0}, {5, 9}, {10}, {}};
  std::vector<answers> partials;
  for (index_t rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    const kv_shard shard = kv_shard::make(interleaving::make(4, 1).value(), rank).value();
    partials.push_back(attend_to_positions(step, step.cache(shard, 4, 0, 580), positions, shard));
    answers truth({1, 2, 512});
    for (index_t h = 0; h < 2; ++h) {
      const auto row = step.attend(0, h, owned[at(rank)]);
      std::copy(row.output.begin(), row.output.end(), truth.row(0, h));
      truth.lse(0, h) = row.lse;
    }
    check_close<float>(partials.back(), truth);
  }
  CHECK(partials[3].empty_rows() == 2);
}

TEST_CASE("D06: D08: mla_decode kernel: the top-k of a group is the same keys as on one rank") {
  // Positions of the whole sequence, most recent ones too, which the first query token must not
  // see.
  const problem<fp8> step({700, 3, 350}, 2, 6, 590);
  mla_test::random_source random(590);
  std::vector<std::int32_t> positions;
  answers truth({6, 6, 512});
  for (index_t t = 0; t < 6; ++t) {
    const index_t length = step.lengths[at(t / 2)];
    std::vector<std::int32_t> row;
    for (index_t i = 0; i < length; ++i) row.push_back(static_cast<std::int32_t>(i));
    std::shuffle(row.begin(), row.end(), random.engine);
    row.resize(64, -1);
    row[0] = static_cast<std::int32_t>(length - 1);
    row.erase(std::remove(row.begin() + 1, row.end(), row[0]), row.end());
    row.resize(64, -1);
    std::vector<index_t> visible;
    for (const std::int32_t position : row) {
      if (position >= 0 && position < step.visible(t)) visible.push_back(position);
    }
    positions.insert(positions.end(), row.begin(), row.end());
    for (index_t h = 0; h < 6; ++h) {
      const auto answer = step.attend(t, h, visible);
      std::copy(answer.output.begin(), answer.output.end(), truth.row(t, h));
      truth.lse(t, h) = answer.lse;
    }
  }
  for (const interleaving split : mla_test::groups) {
    CAPTURE(split.ranks);
    std::vector<answers> partials;
    for (index_t rank = 0; rank < split.ranks; ++rank) {
      const kv_shard shard{split, rank};
      partials.push_back(
          attend_to_positions(step, step.cache(shard, 64, 0, 590), positions, shard));
    }
    check_close<float>(combined(partials), truth);
  }
}

// ---- graphs, far slots, wrong calls -----------------------------------------------------------

TEST_CASE("H04: H09: mla_decode kernel: a graph reads slots and counts at each replay") {
  const problem<fp8> step({3000, 700, 64}, 1, 16, 600);
  const auto cache = step.cache(unsharded, 64, 0, 600);
  mla_test::random_source random(600);
  constexpr index_t keys = 1024;
  device_slots<std::int32_t> slots(list<std::int32_t>(3 * keys, -1), 3);
  device_counts<> counts(std::vector<index_t>{1, 1, 1});
  const device_query query(step);
  const device_cache<fp8> records(cache);
  device_results<float> results({3, 16, 512});
  const auto workspace = device_workspace::of<fp8>(16);
  const support::stream stream;
  const support::graph captured(stream, [&] {
    require_ok(kernel::mla_decode_sparse(query.view(), records.kv, slots.view(), step.scale,
                                         results.output_view(), results.lse_view(), workspace.all(),
                                         stream, counts.view()));
  });
  CHECK(captured.kernels() == 1);
  CHECK(captured.nodes() == 1);
  const std::vector<std::int32_t> rounds[] = {{1, 1, 1}, {1024, 1000, 64}, {0, 700, 0}, {33, 0, 1}};
  for (const auto& in_use : rounds) {
    auto now = any_lists<std::int32_t>(step, cache, keys, holes::interior, random);
    slots.memory.upload(now);
    counts.memory.upload(in_use);
    results.poison();
    captured.replay(stream);
    for (index_t t = 0; t < 3; ++t) {
      std::fill(now.begin() + t * keys + in_use[at(t)], now.begin() + (t + 1) * keys, -1);
    }
    check_close<float>(results.fetch(), reference_answers(step, cache, now));
  }
}

TEST_CASE("F01: F03: mla_decode kernel: slots beyond 2^31 and 2^32 bytes") {
  const mla_test::vast_memory memory(std::size_t{5} << 30);
  if (!memory.there()) return;
  const auto check = [&](index_t page_size, index_t page_stride) {
    CAPTURE(page_stride);
    memory.poison();
    const index_t page_count = (index_t{5} << 30) / page_stride;
    const paged_kv<wide, memory_space::device> kv{memory.data(), page_count, page_size, page_stride,
                                                  wide::record_bytes};
    // Around where offsets leave 31 and 32 bits, at both ends, and in between.
    list<index_t> slots;
    for (const int power : {31, 32}) {
      const index_t page = (index_t{1} << power) / page_stride;
      for (index_t slot = (page - 1) * page_size; slot < (page + 2) * page_size; slot += 7) {
        slots.push_back(slot);
      }
    }
    slots.push_back(0);
    for (index_t slot = 1; slot < kv.slot_count(); slot += kv.slot_count() / 40) {
      slots.push_back(slot);
    }
    slots.push_back(kv.slot_count() - 1);
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    mla_test::write_records(memory.data(), kv, slots, slots, 610);
    const auto keys = static_cast<index_t>(slots.size());
    const support::device_array<bf16> query(16 * wide::head_dim);
    mla_test::write_query(query, 16, wide::head_dim, 611);
    REQUIRE_CUDA(cudaDeviceSynchronize());
    const answers truth = mla_test::device_answers(query, kv, slots, keys, {keys}, 1, 16, 0.02);
    const device_slots<std::int64_t> lists(list<std::int64_t>(slots.begin(), slots.end()), 1);
    const device_results<float> results({1, 16, 512});
    const auto workspace = device_workspace::of<wide>(16);
    const support::stream stream;
    require_ok(kernel::mla_decode_sparse(mla_test::device_view<const bf16, mla_test::rows_layout>(
                                             query.data(), rows_of({1, 16, wide::head_dim})),
                                         kv, lists.view(), 0.02, results.output_view(),
                                         results.lse_view(), workspace.all(), stream));
    stream.wait();
    check_close<float>(results.fetch(), truth);
  };
  check(480, 480 * wide::record_bytes);
  check(28, 32768);
  check(14, 16384);
  check(1, wide::record_bytes);
}

TEST_CASE("F06: mla_decode kernel: lists of 65,536 query tokens") {
  const problem<wide> step({40}, 1, 1, 620);
  const auto cache = step.cache(unsharded, 16, 0, 620);
  constexpr index_t tokens = 65536;
  std::vector<std::int64_t> slots;
  std::vector<index_t> lists;
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t i = 0; i < 2; ++i) {
      const index_t slot = t % 5 == 0 && i == 0 ? -1 : slot_of(cache, 0, (t * 7 + i * 13) % 40);
      slots.push_back(slot);
      lists.push_back(slot);
    }
  }
  const support::device_array<bf16> query(tokens * wide::head_dim);
  mla_test::write_query(query, tokens, wide::head_dim, 621);
  REQUIRE_CUDA(cudaDeviceSynchronize());
  const device_cache<wide> records(cache);
  const answers truth = mla_test::device_answers(query, records.kv, lists, 2,
                                                 std::vector<index_t>(at(tokens), 2), 1, 1, 0.02);
  const device_slots<std::int64_t> given(slots, tokens);
  const device_results<float> results({tokens, 1, 512});
  const auto workspace = device_workspace::of<wide>(1);
  const support::stream stream;
  require_ok(kernel::mla_decode_sparse(mla_test::device_view<const bf16, mla_test::rows_layout>(
                                           query.data(), rows_of({tokens, 1, wide::head_dim})),
                                       records.kv, given.view(), 0.02, results.output_view(),
                                       results.lse_view(), workspace.all(), stream));
  stream.wait();
  check_close<float>(results.fetch(), truth);
}

TEST_CASE("J02: mla_decode kernel: lists of no query tokens, and of no keys") {
  const problem<wide> step({5, 9}, 1, 3, 630);
  const device_cache<wide> records(step.cache(unsharded, 4, 0, 630));
  const device_query query(step);
  const device_results<float> results({2, 3, 512});
  const auto workspace = device_workspace::of<wide>(3);
  const support::stream stream;
  const auto run = [&](index_t tokens) {
    const auto device = [](auto* data, auto where) {
      return make_view<memory_space::device>(data, where);
    };
    return kernel::mla_decode_sparse(
        device(static_cast<const bf16*>(query.memory.data()), rows_of({tokens, 3, 576})),
        records.kv,
        device(static_cast<const std::int64_t*>(nullptr),
               mla_test::list_layout(dim<axis::token>(tokens, 0), dim<axis::key>(0, 1))),
        step.scale, device(results.output.data(), rows_of({tokens, 3, 512})),
        device(results.lses.data(), mla_test::plane_of({tokens, 3, 1})), workspace.all(), stream);
  };
  const support::graph nothing(stream, [&] { require_ok(run(0)); });
  CHECK(nothing.nodes() == 0);
  CHECK(results.untouched());
  require_ok(run(2));
  stream.wait();
  CHECK(results.fetch().empty_rows() == 6);
}

TEST_CASE(
    "M03: mla_decode kernel: a wrong list, count or workspace is refused, nothing is written") {
  const problem<fp8> step({5, 9}, 1, 3, 640);
  const device_cache<fp8> records(step.cache(unsharded, 4, 16, 640));
  const device_query query(step);
  const device_results<float> results({2, 3, 512});
  const auto workspace = device_workspace::of<fp8>(3);
  const support::device_array<std::int32_t> slots(12), counts(3);
  const support::stream stream;
  struct arguments {
    index_t tokens_of_list = 2;
    index_t tokens_of_counts = 2;
    double scale = 0.02;
    std::size_t room;
    std::size_t past = 0;
    paged_kv<fp8, memory_space::device> kv;
  };
  const arguments fine{.room = workspace.all().size(), .kv = records.kv};
  const auto call = [&](const arguments& given) {
    status said;
    const support::graph recorded(stream, [&] {
      const auto device = [](auto* data, auto where) {
        return make_view<memory_space::device>(data, where);
      };
      said = kernel::mla_decode_sparse(
          query.view(), given.kv,
          device(static_cast<const std::int32_t*>(slots.data()),
                 mla_test::list_layout(dim<axis::token>(given.tokens_of_list, 4),
                                       dim<axis::key>(4, 1))),
          given.scale, results.output_view(), results.lse_view(),
          workspace.all().subspan(given.past, given.room - given.past), stream,
          device(static_cast<const std::int32_t*>(counts.data()),
                 mla_test::along<axis::token>(dim<axis::token>(given.tokens_of_counts, 1))));
    });
    CHECK(recorded.nodes() == (said.ok() ? 1 : 0));
    return said;
  };
  const auto refused = [&](errc code, const char* operand, auto change) {
    CAPTURE(operand);
    arguments given = fine;
    change(given);
    const status said = call(given);
    CHECK(said.code == code);
    CHECK(said.operand == std::string(operand));
  };
  CHECK(call(fine).ok());
  refused(errc::shape_mismatch, "slots", [](arguments& a) { a.tokens_of_list = 1; });
  refused(errc::shape_mismatch, "slots", [](arguments& a) { a.tokens_of_list = 3; });
  refused(errc::shape_mismatch, "counts", [](arguments& a) { a.tokens_of_counts = 1; });
  refused(errc::shape_mismatch, "counts", [](arguments& a) { a.tokens_of_counts = 3; });
  refused(errc::invalid_argument, "softmax_scale", [](arguments& a) { a.scale = 0; });
  refused(errc::capacity_exceeded, "workspace", [](arguments& a) { --a.room; });
  refused(errc::capacity_exceeded, "workspace", [](arguments& a) { a.room = 0; });
  refused(errc::misaligned, "kv", [](arguments& a) { a.kv.data += 4; });
  refused(errc::misaligned, "kv", [](arguments& a) { a.kv.row_stride += 4; });
  CHECK(results.untouched());
}
