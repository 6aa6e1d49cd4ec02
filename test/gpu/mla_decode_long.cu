// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Decode attention over long sequences and large batches: how they are shared out and put together
// again, groups of ranks, graphs, memory beyond 32-bit offsets. Against a kernel that goes through
// the keys in double.

#include <headwise/kernel/mla_decode.cuh>

#include <support/mla_device.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

using namespace headwise;
using mla_test::answers;
using mla_test::at;
using mla_test::check_close;
using mla_test::combined;
using mla_test::device_lengths;
using mla_test::device_results;
using mla_test::device_workspace;
using mla_test::largest_deviations;
using mla_test::long_step;
using mla_test::lse_bound;
using mla_test::plane_of;
using mla_test::require_ok;
using mla_test::rows_at;
using mla_test::rows_of;
using support::device_array;

namespace {

constexpr auto e = log_base::e;

using wide = kv_bf16<512, 64>;
using wide_step = long_step<wide>;
using cache = wide_step::cache;

using list = std::vector<std::int32_t>;

double highest(const std::vector<double>& lses) {
  double found = 0;
  for (const double lse : lses) {
    if (std::isfinite(lse)) found = std::max(found, std::fabs(lse));
  }
  return found;
}

/// A step whose calls leave their results in one place and work in one workspace.
struct repeated_step {
  wide_step& step;
  const cache& from;
  device_lengths<> lengths;
  device_results<float> results;
  device_workspace workspace;

  repeated_step(wide_step& of, const cache& records, const mla_launch& how = {})
      : step(of),
        from(records),
        lengths(of.lengths),
        results(of.result_shape()),
        workspace(device_workspace::of<wide>(of.query_tokens * of.heads, how)) {}

  status launch(const on_stream& stream, const mla_launch& how = {}) const {
    return step.launch(from, lengths, results, workspace, stream, how);
  }
  std::vector<std::byte> run(const support::stream& stream, const mla_launch& how = {}) {
    results.poison();
    require_ok(launch(stream, how));
    stream.wait();
    return results.bits();
  }
};

}  // namespace

// ---- shared out over the device ---------------------------------------------------------------

TEST_CASE("C19: mla_decode kernel: right, and the same bits twice, however it is shared out") {
  largest_deviations largest("any number of multiprocessors");
  const support::stream stream;
  for (const index_t heads : {3, 16, 40, 128}) {
    for (const index_t query_tokens : {1, 3}) {
      wide_step step({2000, 0, 33, 511, 1, 3000}, query_tokens, heads, 1);
      const cache records(step, 64);
      const answers truth = step.truth(records);
      for (const int multiprocessors : {0, 1, 2, 7, 66, 132}) {
        for (const int least_tiles : {1, 4}) {
          CAPTURE(heads);
          CAPTURE(query_tokens);
          CAPTURE(multiprocessors);
          CAPTURE(least_tiles);
          const mla_launch how{multiprocessors, least_tiles};
          repeated_step call(step, records, how);
          const auto bits = call.run(stream, how);
          largest.take(check_close<float>(call.results.fetch(), truth));
          CHECK(call.run(stream, how) == bits);
          CHECK(call.workspace.stray_bytes() == 0);
        }
      }
    }
  }
}

TEST_CASE("C19: mla_decode kernel: unshared sequences have the same bits in any batch") {
  list lengths;
  for (std::int32_t s = 0; s < 64; ++s) lengths.push_back(s * 37 % 301);
  const support::stream stream;
  for (const index_t heads : {16, 48}) {
    CAPTURE(heads);
    wide_step step(lengths, 1, heads, 2);
    const cache records(step, 16);
    const mla_launch alone{1, 1};
    repeated_step call(step, records, alone);
    static_cast<void>(call.run(stream, alone));
    const answers batch = call.results.fetch();
    check_close<float>(batch, step.truth(records));
    for (const index_t s : {0, 1, 17, 40, 63}) {
      CAPTURE(s);
      const device_results<float> results({1, heads, 512});
      require_ok(kernel::mla_decode(
          slice<axis::token>(step.query_view(), s, index_t{1}).value(), records.kv,
          slice<axis::sequence>(records.block_table(), s, index_t{1}).value(),
          slice<axis::sequence>(call.lengths.view(), s, index_t{1}).value(),
          {.softmax_scale = step.scale}, results.output_view(), results.lse_view(),
          call.workspace.all(), stream, alone));
      stream.wait();
      const answers one = results.fetch();
      CHECK(
          std::equal(one.output.begin(), one.output.end(), batch.output.begin() + s * heads * 512));
      CHECK(std::equal(one.lses.begin(), one.lses.end(), batch.lses.begin() + s * heads));
    }
  }
}

TEST_CASE("C09: mla_decode kernel: parts of a sequence whose sums are far apart") {
  for (const index_t heads : {8, 64}) {
    wide_step step({8192, 700}, 2, heads, 3);
    const cache records(step, 64);
    for (const double scale : {1e-6, 0.3, 3.0, 10.0}) {
      CAPTURE(heads);
      CAPTURE(scale);
      step.scale = scale;
      const answers truth = step.truth(records);
      check_close<float>(step.decode<float>(records), truth,
                         lse_bound + 1e-6 * highest(truth.lses));
    }
  }
}

TEST_CASE("mla_decode kernel: sequences of 8,192 and of 62,000 tokens") {
  largest_deviations largest("8,192 and 62,000 tokens");
  const auto check = [&](const list& lengths, index_t query_tokens, index_t heads,
                         index_t page_size) {
    CAPTURE(query_tokens);
    CAPTURE(heads);
    CAPTURE(page_size);
    const wide_step step(lengths, query_tokens, heads, 4);
    const cache records(step, page_size, 16);
    const answers truth = step.truth(records);
    largest.take(check_close<float>(step.decode<float>(records), truth));
    largest.take(check_close<bf16>(step.decode<bf16>(records), truth));
  };
  check({8192}, 1, 128, 64);
  check({8192, 8192, 8191, 1}, 4, 16, 128);
  check({62000}, 1, 8, 64);
  check({62000, 5, 0, 31000}, 1, 96, 53);
  check({62000}, 2, 16, 1);
}

TEST_CASE("F06: mla_decode kernel: 65,535 sequences, 65,536 and 70,000") {
  const auto check = [](index_t sequences, index_t heads) {
    CAPTURE(sequences);
    CAPTURE(heads);
    list lengths;
    for (index_t s = 0; s < sequences; ++s) lengths.push_back(static_cast<std::int32_t>(s % 4));
    const wide_step step(lengths, 1, heads, 5);
    const cache records(step, 2);
    check_close<float>(step.decode<float>(records), step.truth(records));
  };
  check(65535, 1);
  check(65536, 1);
  check(70000, 1);
  check(1024, 64);
}

// ---- groups of ranks --------------------------------------------------------------------------

TEST_CASE("D01: K01: mla_decode kernel: what ranks have of long sequences is the whole together") {
  largest_deviations largest("groups of 1, 2, 3, 6 and 8 ranks");
  for (const index_t heads : {8, 66}) {
    const wide_step step({20011, 40977, 5, 1}, heads > 8 ? 1 : 3, heads, 6);
    const cache whole(step, 64);
    const answers truth = step.truth(whole);
    for (const interleaving split : mla_test::groups) {
      CAPTURE(heads);
      CAPTURE(split.ranks);
      CAPTURE(split.interleave);
      std::vector<answers> partials;
      for (index_t rank = 0; rank < split.ranks; ++rank) {
        const kv_shard shard{split, rank};
        partials.push_back(step.decode<float>(cache(step, 64, 0, shard), mla_launch{}, shard));
      }
      largest.take(check_close<float>(combined(partials), truth));
    }
  }
}

// ---- workspaces, streams and graphs -----------------------------------------------------------

TEST_CASE("mla_decode kernel: calls of all shapes share a workspace") {
  const support::stream stream;
  const index_t most = 4 * 128;
  const device_workspace shared = device_workspace::of<wide>(most);
  for (const bool again : {false, true}) {
    for (std::size_t i = 0; i < std::size(mla_test::head_counts); ++i) {
      const index_t heads =
          mla_test::head_counts[again ? std::size(mla_test::head_counts) - 1 - i : i];
      const auto query_tokens = static_cast<index_t>(i) % 4 + 1;
      CAPTURE(heads);
      CAPTURE(query_tokens);
      const wide_step step({900, 3, 4000, 0, 65}, query_tokens, heads, 7);
      const cache records(step, 32);
      const device_lengths<> lengths(step.lengths);
      const device_results<float> results(step.result_shape());
      require_ok(step.launch(records, lengths, results, shared, stream));
      stream.wait();
      check_close<float>(results.fetch(), step.truth(records));
    }
  }
  CHECK(shared.stray_bytes() == 0);
}

TEST_CASE("mla_decode kernel: calls that take other numbers of multiprocessors share a workspace") {
  const support::stream stream;
  index_t bytes = 0;
  for (const int multiprocessors : {0, 1, 2, 7, 66, 132}) {
    bytes = std::max(bytes, kernel::mla_decode_bytes<wide>(40, {multiprocessors, 1}).value());
  }
  int all_multiprocessors = 0;
  REQUIRE_CUDA(cudaDeviceGetAttribute(&all_multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  const device_workspace shared(bytes);
  const wide_step step({900, 3, 4000, 0, 65}, 1, 40, 8);
  const cache records(step, 32);
  const answers truth = step.truth(records);
  const device_lengths<> lengths(step.lengths);
  for (const int multiprocessors : {7, 132, 2, 66, 1, 0}) {
    CAPTURE(multiprocessors);
    const device_results<float> results(step.result_shape());
    require_ok(
        step.launch(records, lengths, results, shared, stream, mla_launch{multiprocessors, 1}));
    stream.wait();
    check_close<float>(results.fetch(), truth);
    // The counters of any other call. Were they not zero, it might wait for ever.
    const auto left = shared.fetch();
    const index_t counters = 2 * all_multiprocessors * 4;
    REQUIRE(std::all_of(left.begin(), left.begin() + counters,
                        [](std::byte one) { return one == std::byte{0}; }));
  }
}

TEST_CASE("mla_decode kernel: brought up early, behind the kernel that writes its query") {
  wide_step step({900, 3, 4000, 0, 65}, 1, 24, 9);
  const cache records(step, 32);
  repeated_step call(step, records);
  const support::stream stream;
  constexpr std::uint32_t calls = 12;
  std::vector<std::vector<std::byte>> expected;
  for (std::uint32_t i = 0; i < calls; ++i) {
    step.renew_query(100 + i);
    expected.push_back(call.run(stream));
  }
  std::vector<std::unique_ptr<device_results<float>>> results;
  for (std::uint32_t i = 0; i < calls; ++i) {
    results.push_back(std::make_unique<device_results<float>>(step.result_shape()));
  }
  const auto enqueue = [&](std::uint32_t i) {
    mla_test::write_query(step.query, step.tokens() * step.heads, wide::head_dim, 100 + i, stream);
    require_ok(
        step.launch(records, call.lengths, *results[i], call.workspace, on_stream{stream, true}));
  };
  for (std::uint32_t i = 0; i < calls; ++i) enqueue(i);
  // One behind the other, too: the last query once more.
  require_ok(call.launch(on_stream{stream, true}));
  require_ok(call.launch(on_stream{stream, true}));
  stream.wait();
  for (std::uint32_t i = 0; i < calls; ++i) CHECK(results[i]->bits() == expected[i]);
  CHECK(call.results.bits() == expected.back());
}

TEST_CASE("mla_decode kernel: calls on two streams at once") {
  wide_step step({9000, 3, 4000, 0, 65}, 1, 24, 10);
  wide_step other({20000, 700}, 2, 64, 11);
  const cache records(step, 32);
  const cache other_records(other, 64);
  repeated_step call(step, records);
  repeated_step other_call(other, other_records);
  const support::stream stream, other_stream;
  const auto expected = call.run(stream);
  const auto other_expected = other_call.run(other_stream);
  for (int i = 0; i < 20; ++i) {
    call.results.poison();
    other_call.results.poison();
    for (int k = 0; k < 5; ++k) {
      require_ok(call.launch(stream));
      require_ok(other_call.launch(other_stream));
    }
    stream.wait();
    other_stream.wait();
    REQUIRE(call.results.bits() == expected);
    REQUIRE(other_call.results.bits() == other_expected);
  }
}

TEST_CASE("H04: H09: H11: mla_decode kernel: captured with lengths of 1, replayed with 20,000") {
  for (const index_t heads : {16, 128}) {
    CAPTURE(heads);
    wide_step step({20000, 17, 4096, 1, 777, 64, 33, 12000}, heads == 16 ? 2 : 1, heads, 12);
    const cache records(step, 64);
    repeated_step call(step, records);
    const support::stream stream;
    call.lengths.memory.upload(list(8, 1));
    const support::graph captured(stream, [&] { require_ok(call.launch(stream)); });
    CHECK(captured.kernels() == 1);
    CHECK(captured.nodes() == 1);
    const auto replay = [&](const list& lengths) {
      call.lengths.memory.upload(lengths);
      call.results.poison();
      captured.replay(stream);
      const answers got = call.results.fetch();
      check_close<float>(got, step.truth(records, lengths));
      return got;
    };
    replay(list(8, 1));
    replay(step.lengths);
    const answers padded = replay({20000, 17, 0, 0, 777, 0, 0, 0});
    CHECK(padded.empty_rows() == 5 * step.query_tokens * heads);
    CHECK(replay(list(8, 0)).empty_rows() == step.tokens() * heads);
    replay({3, 5, 4096, 1, 2, 64, 0, 11999});
    replay(step.lengths);
    CHECK(call.workspace.stray_bytes() == 0);
  }
}

TEST_CASE("H11: mla_decode kernel: 100 sequences in a graph of 112") {
  list lengths;
  for (std::int32_t s = 0; s < 112; ++s) lengths.push_back(s < 100 ? 1 + s * 53 % 400 : 0);
  wide_step step(lengths, 1, 12, 13);
  const cache records(step, 16);  // entries of rows of padding name no page
  repeated_step call(step, records);
  const support::stream stream;
  const support::graph captured(stream, [&] { require_ok(call.launch(stream)); });
  for (int i = 0; i < 3; ++i) {
    call.results.poison();
    captured.replay(stream);
    const answers got = call.results.fetch();
    check_close<float>(got, step.truth(records));
    CHECK(got.empty_rows() == 12 * 12);
  }
}

TEST_CASE("H02: mla_decode kernel: graphs of eight sequences and of four in one workspace") {
  wide_step eight({900, 3, 4000, 0, 65, 200, 31, 1}, 1, 24, 14);
  wide_step four({5000, 70, 3, 811}, 3, 24, 15);
  const cache eight_records(eight, 32);
  const cache four_records(four, 64);
  repeated_step of_eight(eight, eight_records);
  repeated_step of_four(four, four_records);
  const device_workspace shared = device_workspace::of<wide>(3 * 24);
  const support::stream stream;
  const auto enqueue = [&](const repeated_step& call) {
    require_ok(call.step.launch(call.from, call.lengths, call.results, shared, stream));
  };
  const support::graph graph_of_eight(stream, [&] { enqueue(of_eight); });
  const support::graph graph_of_four(stream, [&] { enqueue(of_four); });
  std::uint32_t seed = 200;
  const auto check = [&](const support::graph& captured, repeated_step& call) {
    call.step.renew_query(++seed);
    const auto expected = call.run(stream);  // eagerly, in its own workspace
    call.results.poison();
    captured.replay(stream);
    CHECK(call.results.bits() == expected);
  };
  for (int round = 0; round < 3; ++round) {
    check(graph_of_four, of_four);
    check(graph_of_eight, of_eight);
    check(graph_of_four, of_four);
  }
}

TEST_CASE("H01: mla_decode kernel: a graph outlives a larger call in the same workspace") {
  wide_step small({900, 3, 4000, 0}, 1, 8, 16);
  wide_step large({9000, 70, 3, 811, 64, 300}, 4, 128, 17);
  const cache small_records(small, 32);
  const cache large_records(large, 64);
  repeated_step of_small(small, small_records);
  repeated_step of_large(large, large_records);
  const support::stream stream;
  const support::graph captured(stream, [&] {
    require_ok(small.launch(small_records, of_small.lengths, of_small.results, of_large.workspace,
                            stream));
  });
  const auto expected = of_small.run(stream);
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(of_large.run(stream));
    check_close<float>(of_large.results.fetch(), large.truth(large_records));
    of_small.results.poison();
    captured.replay(stream);
    CHECK(of_small.results.bits() == expected);
  }
}

// ---- beyond 32 bits ---------------------------------------------------------------------------

TEST_CASE("F01: F03: mla_decode kernel: pages that begin beyond 2^31 and 2^32 bytes") {
  const mla_test::vast_memory memory(std::size_t{5} << 30);
  if (!memory.there()) return;
  const auto check = [&](index_t page_size, index_t page_stride, const list& names) {
    CAPTURE(page_stride);
    memory.poison();  // so that an offset that has lost bits leads to NaN
    const index_t page_count = (index_t{5} << 30) / page_stride;
    const paged_kv<wide, memory_space::device> kv{memory.data(), page_count, page_size, page_stride,
                                                  wide::record_bytes};
    const auto pages = static_cast<index_t>(names.size());
    const index_t length = (pages - 1) * page_size + 5;
    std::vector<index_t> slots;
    std::vector<index_t> tokens;
    for (index_t i = 0; i < length; ++i) {
      slots.push_back(names[at(i / page_size)] * page_size + i % page_size);
      tokens.push_back(i);
    }
    mla_test::write_records(memory.data(), kv, slots, tokens, 18);
    const device_array<bf16> query(16 * wide::head_dim);
    mla_test::write_query(query, 16, wide::head_dim, 19);
    REQUIRE_CUDA(cudaDeviceSynchronize());
    const answers truth = mla_test::device_answers(query, kv, slots, length, {length}, 1, 16, 0.02);
    const device_array<std::int32_t> table(names);
    const device_lengths<> lengths(std::vector<index_t>{length});
    const device_results<float> results({1, 16, 512});
    const auto workspace = device_workspace::of<wide>(16);
    const support::stream stream;
    require_ok(kernel::mla_decode(
        mla_test::device_view<const bf16, mla_test::rows_layout>(query.data(),
                                                                 rows_of({1, 16, wide::head_dim})),
        kv,
        mla_test::device_view<const std::int32_t, mla_test::table_layout>(
            table.data(),
            mla_test::table_layout(dim<axis::sequence>(1, pages), dim<axis::page>(pages, 1))),
        lengths.view(), {.softmax_scale = 0.02}, results.output_view(), results.lse_view(),
        workspace.all(), stream));
    stream.wait();
    check_close<float>(results.fetch(), truth);
  };
  // 480 rows of 576 numbers: page 3,884 begins behind 2^31 bytes, page 7,768 behind 2^32.
  check(480, 480 * wide::record_bytes, {7768, 3883, 7767, 3884, 7766, 0, 9000});
  // 32,768 bytes apart: page 65,536 begins at 2^31, page 131,072 at 2^32.
  check(28, 32768, {65535, 65536, 131071, 131072, 131073, 163000, 2});
  // 16,384 bytes apart: page 262,145 is 16,384 bytes behind 2^32, where page 1 would be.
  check(14, 16384, {262145, 262144, 262143, 300000, 131072, 131073, 0});
}

TEST_CASE("F05: mla_decode kernel: rows of query, output and LSE more than 2^31 elements apart") {
  constexpr index_t far = (index_t{1} << 30) + 24;  // twice that is beyond 2^31
  constexpr auto bytes_of = [](std::size_t element) {
    return (2 * static_cast<std::size_t>(far) + 4 * 576) * element;
  };
  const mla_test::vast_memory query(bytes_of(2)), output(bytes_of(2)), lses(bytes_of(4));
  if (!query.there() || !output.there() || !lses.there()) return;
  auto* const numbers = reinterpret_cast<bf16*>(query.data());
  auto* const results = reinterpret_cast<bf16*>(output.data());
  auto* const logarithms = reinterpret_cast<lse<e>*>(lses.data());
  const wide_step step({70, 3, 400}, 1, 3, 20);
  const cache records(step, 16);
  const answers truth = step.truth(records);
  const device_lengths<> lengths(step.lengths);
  const auto workspace = device_workspace::of<wide>(3);
  const support::stream stream;
  const std::vector<bf16> packed_query = step.query.fetch();
  const auto check = [&](index_t token_stride, index_t head_stride, index_t lse_token,
                         index_t lse_head) {
    CAPTURE(token_stride);
    output.poison();
    lses.poison();
    for (index_t t = 0; t < 3; ++t) {
      for (index_t h = 0; h < 3; ++h) {
        REQUIRE_CUDA(cudaMemcpy(numbers + t * token_stride + h * head_stride,
                                packed_query.data() + (t * 3 + h) * 576, 576 * sizeof(bf16),
                                cudaMemcpyHostToDevice));
      }
    }
    const auto device = [](auto* data, auto where) {
      return make_view<memory_space::device>(data, where);
    };
    require_ok(kernel::mla_decode(
        device(static_cast<const bf16*>(numbers),
               rows_at({3, 3, 576}, {token_stride, head_stride, 1})),
        records.kv, records.block_table(), lengths.view(), {.softmax_scale = step.scale},
        device(results, rows_at({3, 3, 512}, {token_stride, head_stride, 1})),
        device(logarithms, mla_test::plane_at({3, 3, 1}, lse_token, lse_head)), workspace.all(),
        stream));
    stream.wait();
    answers got({3, 3, 512});
    for (index_t t = 0; t < 3; ++t) {
      for (index_t h = 0; h < 3; ++h) {
        std::vector<bf16> row(512);
        REQUIRE_CUDA(cudaMemcpy(row.data(), results + t * token_stride + h * head_stride,
                                512 * sizeof(bf16), cudaMemcpyDeviceToHost));
        for (index_t d = 0; d < 512; ++d) {
          got.row(t, h)[d] = static_cast<double>(to_float(row[at(d)]));
        }
        lse<e> logarithm{};
        REQUIRE_CUDA(cudaMemcpy(&logarithm, logarithms + t * lse_token + h * lse_head,
                                sizeof logarithm, cudaMemcpyDeviceToHost));
        got.lse(t, h) = static_cast<double>(logarithm.value);
      }
    }
    check_close<bf16>(got, truth);
  };
  check(far, 576, far, 1);
  check(576, far, 1, far);
}
