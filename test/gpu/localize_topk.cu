// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/kernel/localize_topk.cuh>
#include <headwise/reference/localize_topk.hpp>

#include <support/device.hpp>
#include <support/random.hpp>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

using namespace headwise;
using support::device_array;
using support::random_source;

namespace {

using rows = layout<dim<axis::token>, dim<axis::key>>;
using page_rows = layout<dim<axis::sequence>, dim<axis::page>>;
using per_sequence = layout<dim<axis::sequence>>;
using per_token = layout<dim<axis::token>>;

using list = std::vector<std::int32_t>;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

kv_shard shard_of(index_t ranks, index_t interleave, index_t rank) {
  return kv_shard::make(interleaving::make(ranks, interleave).value(), rank).value();
}

/// An operand whose gaps could pass for elements.
template <class T, class Layout>
struct filled_operand : support::operand<T, Layout> {
  filled_operand(const Layout& of, T gaps, index_t past = 0)
      : support::operand<T, Layout>(of, past) {
    fill_all(gaps);
  }
  void fill_all(T value) {
    std::fill(this->host.data(), this->host.data() + this->host.size(), value);
  }
};

/// Rows that are packed, padded, of every second or third element, or that lie side by side.
rows any_rows(random_source& random, index_t tokens, index_t keys) {
  const index_t step = random.one_in(2) ? 1 : random.in(2, 3);
  if (random.one_in(4)) {
    return rows(dim<axis::token>(tokens, step),
                dim<axis::key>(keys, tokens * step + random.in(0, 3)));
  }
  return rows(dim<axis::token>(tokens, keys * step + random.in(0, 5)), dim<axis::key>(keys, step));
}

template <class Position, class Page, class Length, class Slot, class Count>
struct types {
  using position = Position;
  using page = Page;
  using length = Length;
  using slot = Slot;
  using count = Count;
};
using all_int32 = types<std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t>;
using all_int64 = types<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
using all_sorts = types<std::uint32_t, std::uint16_t, std::int16_t, std::int64_t, std::uint16_t>;

/// A call with random operands. What lies between their elements could pass for some.
template <class Types>
struct problem {
  using position = typename Types::position;
  using page = typename Types::page;
  using length = typename Types::length;
  using slot = typename Types::slot;
  using count = typename Types::count;

  static constexpr slot poison = -77;

  localize_options options;
  index_t sequences;
  index_t keys;
  index_t longest;  ///< sequence
  filled_operand<position, rows> positions;
  filled_operand<page, page_rows> table;
  filled_operand<length, per_sequence> lengths;
  filled_operand<slot, rows> slots;
  filled_operand<count, per_token> counts;

  problem(random_source& random, const localize_options& told, index_t sequence_count,
          index_t key_count, index_t longest_sequence)
      : options(told),
        sequences(sequence_count),
        keys(key_count),
        longest(longest_sequence),
        positions(any_rows(random, tokens(), keys), position{0}, random.in(0, 3)),
        table(table_shape(random), page{3}, random.in(0, 3)),
        lengths(per_sequence(dim<axis::sequence>(sequences, random.in(1, 3))),
                static_cast<length>(longest), random.in(0, 3)),
        slots(any_rows(random, tokens(), keys), poison, random.in(0, 3)),
        counts(per_token(dim<axis::token>(tokens(), random.in(1, 3))), static_cast<count>(poison),
               random.in(0, 3)) {
    fill(random);
  }

  index_t tokens() const { return sequences * options.query_tokens; }

  page_rows table_shape(random_source& random) const {
    const index_t width = options.shard.pages(longest, options.page_size) + random.in(0, 2);
    const index_t step = random.in(1, 2);
    return page_rows(dim<axis::sequence>(sequences, width * step + random.in(0, 3)),
                     dim<axis::page>(width, step));
  }

  void fill(random_source& random) {
    const index_t largest = std::numeric_limits<slot>::max() / options.page_size;
    const index_t last_page = largest - 1 < index_t{std::numeric_limits<page>::max()}
                                  ? largest - 1
                                  : index_t{std::numeric_limits<page>::max()};
    for (index_t s = 0; s < sequences; ++s) {
      const index_t of_sequence = random.one_in(5) ? 0 : random.in(0, longest);
      lengths.here()(s) = static_cast<length>(of_sequence);
      const index_t used = options.shard.pages(of_sequence, options.page_size);
      for (index_t p = 0; p < table.shape.template extent<axis::page>(); ++p) {
        const index_t entry = p >= used          ? random.one_of({-1, 2147480000})
                              : random.one_in(2) ? random.in(0, 99 < last_page ? 99 : last_page)
                                                 : random.in(0, last_page);
        table.here()(s, p) = static_cast<page>(entry);
      }
      for (index_t j = 0; j < options.query_tokens; ++j) {
        fill_row(random, s * options.query_tokens + j, of_sequence);
      }
    }
    slots.fill_all(poison);
    counts.fill_all(static_cast<count>(poison));
  }

  void fill_row(random_source& random, index_t t, index_t of_sequence) {
    const index_t kind = random.in(0, 5);
    for (index_t i = 0; i < keys; ++i) {
      index_t wanted = random.in(0, of_sequence + 3);
      if (kind == 0) wanted = of_sequence - 1 - i;  // a run of neighbours, then holes
      if (kind == 1) wanted = -1;
      if (kind > 3 && random.one_in(3)) {
        wanted = random.one_of({-1, -2, std::numeric_limits<std::int32_t>::min(),
                                std::numeric_limits<std::int32_t>::max()});
      }
      positions.here()(t, i) = static_cast<position>(wanted);
    }
  }

  void upload() {
    positions.upload();
    table.upload();
    lengths.upload();
    slots.upload();
    counts.upload();
  }

  status launch(cudaStream_t stream) const {
    return kernel::localize_topk(positions.there(), table.there(), lengths.there(), options,
                                 slots.there(), counts.there(), stream);
  }
  status launch_in_place(cudaStream_t stream) const {
    return kernel::localize_topk(positions.there(), table.there(), lengths.there(), options,
                                 positions.there(), counts.there(), stream);
  }

  /// After upload() and a launch: every byte of every operand is what the reference leaves there.
  void check_against_reference() {
    REQUIRE(reference::localize_topk(positions.here(), table.here(), lengths.here(), options,
                                     slots.here(), counts.here())
                .ok());
    check_same();
  }
  void check_in_place_against_reference() {
    REQUIRE(reference::localize_topk(positions.here(), table.here(), lengths.here(), options,
                                     positions.here(), counts.here())
                .ok());
    check_same();
  }
  void check_same() {
    REQUIRE(slots.differences() == 0);
    REQUIRE(counts.differences() == 0);
    REQUIRE(positions.differences() == 0);
    REQUIRE(table.differences() == 0);
    REQUIRE(lengths.differences() == 0);
  }
};

/// Calls f(options, keys) over ranks, interleaves, page sizes and numbers of keys.
template <class F>
void for_each_shape(random_source& random, F f) {
  for (const index_t ranks : {1, 2, 3, 4, 6, 8, 16}) {
    for (const index_t interleave : {1, 4, 64}) {
      for (const index_t page_size : {1, 16, 53, 64, 128}) {
        if (page_size % interleave != 0) continue;
        for (const index_t keys : {1, 5, 31, 33, 256, 257, 2048, 2051}) {
          CAPTURE(ranks);
          CAPTURE(interleave);
          CAPTURE(page_size);
          CAPTURE(keys);
          f(localize_options{.page_size = page_size,
                             .query_tokens = random.in(1, 4),
                             .shard = shard_of(ranks, interleave, random.in(0, ranks - 1))},
            keys);
        }
      }
    }
  }
}

/// Operands without gaps, but for the rows of the table.
template <class Integer>
struct packed_call {
  Integer* positions;
  Integer* table;
  Integer* lengths;
  Integer* slots;
  Integer* counts;
  index_t keys;
  index_t sequences = 1;
  index_t pages = 1;
  index_t table_stride = 1;

  template <memory_space Space = memory_space::device>
  status launch(const localize_options& options, cudaStream_t stream) const {
    const index_t tokens = sequences * options.query_tokens;
    const rows shape(dim<axis::token>(tokens, keys), dim<axis::key>(keys, 1));
    const page_rows table_shape(dim<axis::sequence>(sequences, table_stride),
                                dim<axis::page>(pages, 1));
    return kernel::localize_topk(
        make_view<Space>(positions, shape), make_view<Space>(table, table_shape),
        make_view<Space>(lengths, per_sequence(dim<axis::sequence>(sequences, 1))), options,
        make_view<Space>(slots, shape),
        make_view<Space>(counts, per_token(dim<axis::token>(tokens, 1))), stream);
  }
};

struct located {
  list slots;
  list counts;
};

/// Packed operands of int32. `pages`: how many entries of a row of the table are the call's, if not
/// all.
located localize(const list& positions, const list& table, const list& lengths,
                 const localize_options& options, index_t pages = -1) {
  const auto sequences = static_cast<index_t>(lengths.size());
  const index_t tokens = sequences * options.query_tokens;
  const auto keys = static_cast<index_t>(positions.size()) / tokens;
  const auto stride = static_cast<index_t>(table.size()) / sequences;
  const device_array<std::int32_t> in(positions), names(table), ends(lengths);
  const device_array<std::int32_t> out(list(positions.size(), -77)), counts(list(at(tokens), -77));
  const packed_call<std::int32_t> call{
      in.data(),     names.data(), ends.data(), out.data(),
      counts.data(), keys,         sequences,   pages < 0 ? stride : pages,
      stride};
  const support::stream stream;
  REQUIRE(call.launch(options, stream).ok());
  stream.wait();
  REQUIRE(out.stray_bytes() == 0);
  REQUIRE(counts.stray_bytes() == 0);
  return {out.fetch(), counts.fetch()};
}

}  // namespace

TEST_CASE("D06: localize_topk kernel: positions become slots through the local block table") {
  const list positions = {0, 5, 9, 10, -1};
  const auto on_rank = [&](index_t rank, const list& table) {
    return localize(positions, table, {11}, {.page_size = 4, .shard = shard_of(4, 1, rank)});
  };
  CHECK(on_rank(1, {7}).slots == list{29, 30, -1, -1, -1});
  CHECK(on_rank(1, {7}).counts == list{2});
  CHECK(on_rank(0, {0}).slots == list{0, -1, -1, -1, -1});
  CHECK(on_rank(2, {0}).slots == list{2, -1, -1, -1, -1});
  CHECK(on_rank(3, {0}).slots == list{-1, -1, -1, -1, -1});
  CHECK(on_rank(3, {0}).counts == list{0});
}

TEST_CASE("localize_topk kernel: a global position is no local index") {
  for (index_t rank = 0; rank < 2; ++rank) {
    const located found =
        localize({0, 1, 2, 3, -1}, {0}, {4}, {.page_size = 64, .shard = shard_of(2, 1, rank)});
    CHECK(found.slots == list{0, 1, -1, -1, -1});
    CHECK(found.counts == list{2});
  }
}

TEST_CASE("localize_topk kernel: positions keep their order, and end at the causal bound") {
  // Rank 0 holds 0-3, 8-11, 16-19, at local 0-3, 4-7, 8-11: of the list 3, 16 and 0.
  const located found = localize({21, -1, 3, 16, 4, 0, 7, 23}, {5, 9}, {24},
                                 {.page_size = 8, .shard = shard_of(2, 4, 0)});
  CHECK(found.slots == list{43, 72, 40, -1, -1, -1, -1, -1});
  CHECK(found.counts == list{3});
  // Length 6, three query tokens: they see 4, 5 and 6 tokens.
  const list row = {5, 4, 3, 6, 1000000000, -1, 0};
  list thrice;
  for (int j = 0; j < 3; ++j) thrice.insert(thrice.end(), row.begin(), row.end());
  const located bounded =
      localize(thrice, {0}, {6}, {.page_size = 8, .query_tokens = 3, .shard = {}});
  CHECK(bounded.slots == list{3, 0, -1, -1, -1, -1, -1,  //
                              4, 3, 0,  -1, -1, -1, -1,  //
                              5, 4, 3,  0,  -1, -1, -1});
  CHECK(bounded.counts == list{2, 3, 4});
}

TEST_CASE("D11: localize_topk kernel: a block table of local width is read by its row stride") {
  const located found = localize({0, 130, 0, 130}, {4, 2, 2147480000, -1, 6, 1, 2147480000, -1},
                                 {256, 256}, {.page_size = 64, .shard = shard_of(2, 1, 0)}, 2);
  CHECK(found.slots == list{4 * 64, 2 * 64 + 1, 6 * 64, 1 * 64 + 1});
  CHECK(found.counts == list{2, 2});
}

TEST_CASE_TEMPLATE("localize_topk kernel: the slots and counts of the reference", Types, all_int32,
                   all_int64, all_sorts) {
  random_source random(11);
  const support::stream stream;
  for_each_shape(random, [&](const localize_options& options, index_t keys) {
    problem<Types> call(random, options, random.in(1, 4), keys,
                        random.one_of({1, 3, 70, 1000, 6000}));
    call.upload();
    REQUIRE(call.launch(stream).ok());
    stream.wait();
    call.check_against_reference();
  });
}

TEST_CASE_TEMPLATE("localize_topk kernel: in place", Types, all_int32, all_int64) {
  random_source random(12);
  const support::stream stream;
  for_each_shape(random, [&](const localize_options& options, index_t keys) {
    problem<Types> call(random, options, random.in(1, 4), keys, random.one_of({1, 70, 3000, 6000}));
    call.upload();
    REQUIRE(call.launch_in_place(stream).ok());
    stream.wait();
    call.check_in_place_against_reference();
  });
  // Many tiles, of which the one rank keeps nearly all, and one of sixteen few.
  for (const index_t ranks : {1, 16}) {
    CAPTURE(ranks);
    problem<Types> call(random, {.page_size = 64, .shard = shard_of(ranks, 1, ranks - 1)}, 6, 20011,
                        20000);
    call.upload();
    REQUIRE(call.launch_in_place(stream).ok());
    stream.wait();
    call.check_in_place_against_reference();
  }
}

TEST_CASE("localize_topk kernel: static strides, and keys outside of tokens") {
  constexpr index_t tokens = 3;
  constexpr index_t keys = 300;
  random_source random(13);
  const localize_options options{.page_size = 16, .query_tokens = 3, .shard = shard_of(2, 4, 1)};
  filled_operand<std::int32_t, layout<dim<axis::key, keys, 4>, dim<axis::token, tokens, 1>>>
      positions({}, 7);
  filled_operand<std::int32_t, layout<dim<axis::page, 40, 2>, dim<axis::sequence, 1, 1>>> table({},
                                                                                                7);
  filled_operand<std::int32_t, layout<dim<axis::sequence, 1, 1>>> lengths({}, 1000);
  filled_operand<std::int32_t, layout<dim<axis::token, tokens, keys + 4>, dim<axis::key, keys, 1>>>
      slots({}, -77);
  filled_operand<std::int32_t, layout<dim<axis::token, tokens, 2>>> counts({}, -77);
  for (index_t i = 0; i < keys; ++i) {
    for (index_t t = 0; t < tokens; ++t) {
      positions.here()(i, t) = static_cast<std::int32_t>(random.in(-100, 1010));
    }
  }
  for (index_t p = 0; p < 40; ++p) {
    table.here()(p, 0) = static_cast<std::int32_t>(random.in(0, 9999));
  }
  positions.upload();
  table.upload();
  lengths.upload();
  slots.upload();
  counts.upload();
  const support::stream stream;
  REQUIRE(kernel::localize_topk(positions.there(), table.there(), lengths.there(), options,
                                slots.there(), counts.there(), stream)
              .ok());
  stream.wait();
  REQUIRE(reference::localize_topk(positions.here(), table.here(), lengths.here(), options,
                                   slots.here(), counts.here())
              .ok());
  CHECK(slots.differences() == 0);
  CHECK(counts.differences() == 0);
}

TEST_CASE("localize_topk kernel: more tokens than a grid's second dimension has blocks") {
  random_source random(14);
  const support::stream stream;
  problem<all_int32> call(random, {.page_size = 4, .query_tokens = 2, .shard = shard_of(2, 2, 1)},
                          35000, 3, 9);
  call.upload();
  REQUIRE(call.launch(stream).ok());
  stream.wait();
  call.check_against_reference();
}

TEST_CASE("localize_topk kernel: rows more than 2^31 elements apart") {
  constexpr index_t apart = (index_t{1} << 31) + 5;
  const device_array<std::int8_t> positions(apart + 2), table(apart + 1);
  const device_array<std::int32_t> lengths(list{2, 2}), counts(2);
  const auto put = [](std::int8_t* to, std::int8_t value) {
    REQUIRE_CUDA(cudaMemcpy(to, &value, 1, cudaMemcpyHostToDevice));
  };
  const auto get = [](const std::int8_t* from) {
    std::int8_t value = 0;
    REQUIRE_CUDA(cudaMemcpy(&value, from, 1, cudaMemcpyDeviceToHost));
    return int{value};
  };
  for (const index_t row : {index_t{0}, apart}) {
    put(positions.data() + row, 100);
    put(positions.data() + row + 1, 1);
    put(table.data() + row, row == 0 ? 3 : 5);
  }
  const auto both = make_view<memory_space::device>(
      positions.data(), rows(dim<axis::token>(2, apart), dim<axis::key>(2, 1)));
  REQUIRE_CUDA(cudaDeviceSynchronize());  // the stream does not wait for what was put
  const support::stream stream;
  REQUIRE(
      kernel::localize_topk(
          both,
          make_view<memory_space::device>(
              table.data(), page_rows(dim<axis::sequence>(2, apart), dim<axis::page>(1, 1))),
          make_view<memory_space::device>(lengths.data(), per_sequence(dim<axis::sequence>(2, 1))),
          {.page_size = 4, .shard = {}}, both,
          make_view<memory_space::device>(counts.data(), per_token(dim<axis::token>(2, 1))), stream)
          .ok());
  stream.wait();
  CHECK(get(positions.data()) == 3 * 4 + 1);
  CHECK(get(positions.data() + 1) == -1);
  CHECK(get(positions.data() + apart) == 5 * 4 + 1);
  CHECK(get(positions.data() + apart + 1) == -1);
  CHECK(counts.fetch() == list{1, 1});
}

TEST_CASE("localize_topk kernel: what cannot be a slot is dropped") {
  // Pages of 4 rows, two of them listed, in a row of three entries: the third is another's.
  const auto with = [](const list& table, std::int32_t length, const list& positions) {
    located found = localize(positions, table, {length}, {.page_size = 4, .shard = {}}, 2);
    found.slots.push_back(found.counts[0]);
    return found.slots;
  };
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  // A table that is narrower than the length says.
  CHECK(with({5, 6, 7}, most, {8, 3, 11, 7, 2147483646}) == list{23, 27, -1, -1, -1, 2});
  CHECK(with({-1, 6, 7}, 8, {0, 4, 3, 5}) == list{24, 25, -1, -1, 2});
  CHECK(with({std::numeric_limits<std::int32_t>::min(), -2, 7}, 8, {0, 4}) == list{-1, -1, 0});
  // The largest page whose slots an int32 can name, and the next one.
  CHECK(with({536870911, 536870912, 7}, 8, {0, 4, 3, 7}) ==
        list{2147483644, 2147483647, -1, -1, 2});
  CHECK(with({2147480000, 1, 7}, 8, {0, 4}) == list{4, -1, 1});
  // Lengths that are none.
  CHECK(with({5, 6, 7}, -5, {0, 1}) == list{-1, -1, 0});
  CHECK(with({5, 6, 7}, std::numeric_limits<std::int32_t>::min(), {0, 1}) == list{-1, -1, 0});
}

TEST_CASE("localize_topk kernel: 64-bit numbers at their ends") {
  using list64 = std::vector<std::int64_t>;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  const device_array<std::int64_t> positions(list64{most - 1, 1, least, 0, most, 2});
  const device_array<std::int64_t> table(list64{most / 2 - 1, 7});
  const device_array<std::int64_t> slots(list64(6, -77)), counts(list64{-77});
  const support::stream stream;
  const auto counts_for = [&](std::int64_t length, index_t page_size) {
    const device_array<std::int64_t> lengths(list64{length});
    const packed_call<std::int64_t> call{positions.data(), table.data(),  lengths.data(),
                                         slots.data(),     counts.data(), 6};
    REQUIRE(call.launch({.page_size = page_size, .shard = {}}, stream).ok());
    stream.wait();
    return counts.fetch()[0];
  };
  CHECK(counts_for(most, 2) == 2);
  CHECK(slots.fetch() == list64{most - 2, most - 3, -1, -1, -1, -1});
  CHECK(counts_for(most, 4) == 0);
  CHECK(slots.fetch() == list64(6, -1));
  CHECK(counts_for(least, 2) == 0);
}

TEST_CASE("H04: localize_topk kernel: a graph reads lengths, positions and table at each replay") {
  random_source random(15);
  const support::stream stream;
  for (const index_t keys : {5, 2048, 2051}) {
    CAPTURE(keys);
    problem<all_int32> call(
        random, {.page_size = 64, .query_tokens = 2, .shard = shard_of(4, 1, 2)}, 4, keys, 6000);
    problem<all_int32> in_place(random, call.options, 3, keys, 6000);
    const support::graph graph(stream, [&] {
      REQUIRE(call.launch(stream).ok());
      REQUIRE(in_place.launch_in_place(stream).ok());
    });
    CHECK(graph.kernels() == 2);
    CHECK(graph.nodes() == 2);
    for (int replay = 0; replay < 5; ++replay) {
      CAPTURE(replay);
      call.fill(random);
      in_place.fill(random);
      call.upload();
      in_place.upload();
      graph.replay(stream);
      call.check_against_reference();
      in_place.check_in_place_against_reference();
    }
  }
  // The numbers of the report: a length of 3 when captured, 7 when replayed.
  const device_array<std::int32_t> positions(list{6, 2, 3});
  const device_array<std::int32_t> table(list{1});
  device_array<std::int32_t> lengths(list{3});
  const device_array<std::int32_t> slots(list(3, -77)), counts(list{-77});
  const packed_call<std::int32_t> call{positions.data(), table.data(),  lengths.data(),
                                       slots.data(),     counts.data(), 3};
  const support::graph graph(
      stream, [&] { REQUIRE(call.launch({.page_size = 8, .shard = {}}, stream).ok()); });
  graph.replay(stream);
  CHECK(slots.fetch() == list{10, -1, -1});
  lengths.upload({7});
  graph.replay(stream);
  CHECK(slots.fetch() == list{14, 10, 11});
  CHECK(counts.fetch() == list{3});
}

TEST_CASE("localize_topk kernel: without tokens nothing is launched, without keys counts are 0") {
  random_source random(16);
  const support::stream stream;
  const problem<all_int32> none(random, {.page_size = 16, .shard = {}}, 0, 5, 100);
  const support::graph empty(stream, [&] { REQUIRE(none.launch(stream).ok()); });
  CHECK(empty.nodes() == 0);
  problem<all_int32> keyless(random, {.page_size = 16, .query_tokens = 2, .shard = {}}, 3, 0, 100);
  keyless.upload();
  REQUIRE(keyless.launch(stream).ok());
  stream.wait();
  keyless.check_against_reference();
  CHECK(keyless.counts.here()(5) == 0);
}

TEST_CASE("localize_topk kernel: operands in pinned memory") {
  // Positions 0 to 4, table, length, slots and count, one behind the other.
  std::int32_t* memory = nullptr;
  REQUIRE_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&memory), 64, cudaHostAllocDefault));
  const list before = {0, 5, 9, 10, -1, 7, 11, -77, -77, -77, -77, -77, -77, -77};
  std::copy(before.begin(), before.end(), memory);
  const support::stream stream;
  const packed_call<std::int32_t> call{memory, memory + 5, memory + 6, memory + 7, memory + 12, 5};
  const status done =
      call.launch<memory_space::pinned>({.page_size = 4, .shard = shard_of(4, 1, 1)}, stream);
  const cudaError_t waited = cudaStreamSynchronize(stream);
  const list after(memory, memory + 14);
  REQUIRE_CUDA(cudaFreeHost(memory));
  REQUIRE_CUDA(waited);
  REQUIRE(done.ok());
  CHECK(after == list{0, 5, 9, 10, -1, 7, 11, 29, 30, -1, -1, -1, 2, -77});
}

TEST_CASE("localize_topk kernel: a wrong call says what the reference says and writes nothing") {
  random_source random(17);
  const support::stream stream;
  const auto refused = [&](auto spoil) {
    problem<all_int32> call(random, {.page_size = 4, .shard = shard_of(2, 1, 0)}, 3, 7, 50);
    spoil(call);
    call.upload();
    const status said = call.launch(stream);
    const status expected =
        reference::localize_topk(call.positions.here(), call.table.here(), call.lengths.here(),
                                 call.options, call.slots.here(), call.counts.here());
    REQUIRE(!expected.ok());
    CHECK(said.code == expected.code);
    CHECK(std::string(said.operand) == expected.operand);
    CHECK(std::string(said.message) == expected.message);
    CHECK(said.got == expected.got);
    CHECK(said.expected == expected.expected);
    CHECK(std::string(said.axis) == expected.axis);
    stream.wait();
    call.check_same();
  };
  using call_type = problem<all_int32>;
  refused([](call_type& call) { call.options.page_size = 0; });
  refused([](call_type& call) { call.options.query_tokens = 0; });
  refused([](call_type& call) { call.options.query_tokens = 2; });
  refused([](call_type& call) { call.options.shard.rank = 2; });
  refused([](call_type& call) { call.options.shard.split.ranks = 17; });
  refused([](call_type& call) {
    call.slots.shape = rows(dim<axis::token>(3, 6), dim<axis::key>(6, 1));
  });
  refused([](call_type& call) {
    call.slots.shape = rows(dim<axis::token>(3, 6), dim<axis::key>(7, 1));
  });
  refused([](call_type& call) { call.counts.shape = per_token(dim<axis::token>(2, 1)); });
  refused([](call_type& call) { call.lengths.shape = per_sequence(dim<axis::sequence>(2, 1)); });
  refused([](call_type& call) {
    call.table.shape = page_rows(dim<axis::sequence>(2, 1), dim<axis::page>(1, 1));
  });
}
