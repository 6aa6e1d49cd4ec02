// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Decode attention over records other than 512 + 64 numbers of bf16: fp8 with scales, keys without
// rope, a latent part of 256.

#include <headwise/kernel/mla_decode.cuh>

#include <support/mla_device.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

using namespace headwise;
using mla_test::answers;
using mla_test::at;
using mla_test::check_close;
using mla_test::check_steps;
using mla_test::combined;
using mla_test::decode;
using mla_test::largest_deviations;
using mla_test::long_step;
using mla_test::problem;
using mla_test::reference_answers;
using mla_test::require_ok;

namespace {

constexpr auto e = log_base::e;
constexpr auto two = log_base::two;

using fp8 = kv_fp8_ds_mla<512, 64>;
using without_rope = kv_bf16<512, 0>;
using narrow = kv_bf16<256, 64>;

constexpr kv_shard unsharded{};

/// One of the four scales of a record.
void set_scale(problem<fp8>& step, index_t sequence, index_t token, index_t group, float scale) {
  std::memcpy(
      step.records[at(sequence)].data() + token * fp8::record_bytes + fp8::scale_offset + 4 * group,
      &scale, sizeof scale);
}
/// Calls f(sequence, token, group) for all scales.
template <class F>
void for_each_scale(const problem<fp8>& step, F f) {
  for (index_t s = 0; s < step.sequences(); ++s) {
    for (index_t i = 0; i < step.lengths[at(s)]; ++i) {
      for (index_t g = 0; g < fp8::scale_count; ++g) f(s, i, g);
    }
  }
}

/// A step of which all logits are 0, so that each key weighs the same.
problem<fp8> without_query(std::vector<std::int32_t> lengths, index_t heads, std::uint64_t seed) {
  problem<fp8> step(std::move(lengths), 1, heads, seed);
  std::fill(step.query.begin(), step.query.end(), std::uint16_t{0});
  return step;
}

}  // namespace

// ---- against the reference --------------------------------------------------------------------

TEST_CASE("mla_decode kernel: what the reference says: fp8 with any scales, bf16, base e") {
  check_steps<fp8, bf16, e, std::int32_t>("fp8, bf16", {1, 4}, 401);
}
TEST_CASE("mla_decode kernel: what the reference says: fp8 with any scales, fp32, base two") {
  check_steps<fp8, float, two, std::int32_t>("fp8, fp32", {3}, 402);
}
TEST_CASE("mla_decode kernel: what the reference says: 512 + 0 numbers, fp32, base e") {
  check_steps<without_rope, float, e, std::int32_t>("512 + 0, fp32", {1, 2}, 403);
}
TEST_CASE("mla_decode kernel: what the reference says: 256 + 64 numbers, bf16, base two") {
  check_steps<narrow, bf16, two, std::int32_t>("256 + 64, bf16", {1, 3}, 404);
}

TEST_CASE("L01: mla_decode kernel: scales that are powers of two, as they are found for a record") {
  // The largest magnitude of 128 numbers, and the scale that comes of it.
  const std::pair<float, float> cases[] = {
      {0.0f, 0x1p-13f}, {448.0f, 1.0f}, {449.0f, 2.0f}, {100.0f, 0.25f}, {0.05f, 0x1p-13f}};
  for (const kv_scale kind : {kv_scale::power_of_two, kv_scale::exact}) {
    const int kind_number = static_cast<int>(kind);
    CAPTURE(kind_number);
    problem<fp8> step({200, 40}, 2, 9, 410);
    mla_test::random_source random(410);
    for (index_t s = 0; s < 2; ++s) {
      for (index_t i = 0; i < step.lengths[at(s)]; ++i) {
        std::vector<float> numbers(576);
        std::byte* const record = step.records[at(s)].data() + i * fp8::record_bytes;
        float scales[4] = {};
        for (index_t d = 0; d < 576; ++d) {
          const auto& of_group = cases[(i + d / 128) % 5];
          const auto part = static_cast<float>(random.in(-127, 127)) / 128.0f;
          numbers[at(d)] = d >= 512 ? part : d % 128 == 5 ? of_group.first : part * of_group.first;
          if (d < 512) scales[d / 128] = of_group.second;
        }
        reference::encode(fp8{}, std::span<const float, 576>(numbers),
                          std::span<std::byte, 656>(record, 656), kind);
        if (kind == kv_scale::exact) continue;
        float found[4];
        std::memcpy(found, record + fp8::scale_offset, sizeof found);
        REQUIRE(std::equal(found, found + 4, scales));
      }
    }
    step.scale = 1e-4;
    const auto cache = step.cache(unsharded, 16, 0, 410);
    const answers truth = reference_answers(step, cache);
    check_close<float>(decode<float, two>(step, cache), truth);
    check_close<bf16>(decode<bf16>(step, cache), truth);
  }
}

TEST_CASE("mla_decode kernel: every number of e4m3, subnormal ones too, comes out as it is") {
  problem<fp8> step = without_query({1, 1, 1}, 3, 420);
  const float scales[] = {1.0f, 0x1p-13f, 0x1p20f};
  for (index_t s = 0; s < 3; ++s) {
    unsigned code = static_cast<unsigned>(s);
    for (index_t d = 0; d < 512; ++d, ++code) {
      if ((code & 0x7f) == 0x7f) ++code;
      step.records[at(s)][at(d)] = static_cast<std::byte>(code & 0xff);
    }
    for (index_t g = 0; g < 4; ++g) set_scale(step, s, 0, g, scales[s]);
  }
  const answers got = decode<float, two>(step, step.cache(unsharded, 1, 0, 420));
  index_t wrong = 0;
  for (index_t s = 0; s < 3; ++s) {
    for (index_t h = 0; h < 3; ++h) {
      for (index_t d = 0; d < 512; ++d) {
        const auto code = static_cast<unsigned>(step.records[at(s)][at(d)]);
        const double number = mla_test::e4m3_number(code) * static_cast<double>(scales[s]);
        wrong += got.output[at((s * 3 + h) * 512 + d)] != number;
      }
    }
  }
  CHECK(wrong == 0);
  for (const double logarithm : got.lses) CHECK(logarithm == 0);
}

TEST_CASE("mla_decode kernel: scales far apart, of groups of one key and of keys") {
  problem<fp8> step({300, 33}, 1, 20, 430);
  for_each_scale(step, [&](index_t s, index_t i, index_t g) {
    const int power = static_cast<int>((i * 7 + g * 3) % 17) - 20;
    set_scale(step, s, i, g, std::ldexp(1.0f + static_cast<float>(i % 5) / 7.0f, power));
  });
  const auto cache = step.cache(unsharded, 16, 0, 430);
  check_close<bf16>(decode<bf16>(step, cache), reference_answers(step, cache));
}

TEST_CASE("L02: mla_decode kernel: key and value are one record with one scale") {
  // Stored 0.5 with a scale of 2, so 1.0; a scale of its own for values does not exist.
  problem<fp8> step = without_query({1}, 1, 440);
  std::fill_n(step.records[0].begin(), 512, std::byte{0x30});  // e4m3 0.5
  std::fill(step.records[0].begin() + fp8::rope_offset, step.records[0].end(), std::byte{0});
  for (index_t g = 0; g < 4; ++g) set_scale(step, 0, 0, g, 2.0f);
  step.query[100] = mla_test::bf16_bits(3.0f);
  step.scale = 0.25;
  const answers got = decode<bf16>(step, step.cache(unsharded, 1, 0, 440));
  for (const double number : got.output) REQUIRE(number == 1.0);
  CHECK(got.lses[0] == doctest::Approx(3.0 * 1.0 * 0.25).epsilon(1e-6));
}

TEST_CASE(
    "L05: L06: mla_decode kernel: pages lie where the page stride says, among other tensors") {
  const auto check = [](index_t page_size, index_t page_stride_rows, index_t first_row) {
    const problem<fp8> step({150}, 1, 4, 450);
    const index_t row = fp8::record_bytes;
    std::vector<std::byte> memory(at(4 * page_stride_rows * row), std::byte{0xff});
    const std::vector<std::int32_t> names = {2, 0, 3};
    for (index_t i = 0; i < 150; ++i) {
      const index_t at_row =
          first_row + names[at(i / page_size)] * page_stride_rows + i % page_size;
      std::memcpy(memory.data() + at_row * row, step.records[0].data() + i * row, at(row));
    }
    const mla_test::device_query query(step);
    const support::device_array<std::byte> records(memory);
    const support::device_array<std::int32_t> table(names);
    const mla_test::device_lengths<> lengths(step.lengths);
    const mla_test::device_results<bf16> results({1, 4, 512});
    const auto workspace = mla_test::device_workspace::of<fp8>(4);
    const support::stream stream;
    require_ok(kernel::mla_decode(
        query.view(),
        paged_kv<fp8, memory_space::device>{records.data() + first_row * row, 4, page_size,
                                            page_stride_rows * row, row},
        mla_test::device_view<const std::int32_t, mla_test::table_layout>(
            table.data(), mla_test::table_layout(dim<axis::sequence>(1, 3), dim<axis::page>(3, 1))),
        lengths.view(), {.softmax_scale = step.scale}, results.output_view(), results.lse_view(),
        workspace.all(), stream));
    stream.wait();
    check_close<bf16>(results.fetch(), reference_answers(step, step.cache(unsharded, 64, 0, 450)));
  };
  check(64, 96, 0);    // pages of 64 rows, 96 rows apart
  check(64, 128, 64);  // the second of two tensors that share blocks
}

// ---- what must not reach a result -------------------------------------------------------------

TEST_CASE("mla_decode kernel: an e4m3 NaN in a key reaches the rows that see it, and no other") {
  for (const index_t heads : {2, 12, 40}) {
    for (const unsigned code : {0x7fu, 0xffu}) {
      for (const index_t column : {0, 127, 128, 300, 511}) {
        CAPTURE(heads);
        CAPTURE(code);
        CAPTURE(column);
        problem<fp8> step({60, 40, 5}, 2, heads, 460);
        const answers expected = decode<bf16>(step, step.cache(unsharded, 16, 0, 460));
        // Of the first sequence, a key that all rows see; of the second, one that only the last
        // query token does.
        step.records[0][at(33 * fp8::record_bytes + column)] = static_cast<std::byte>(code);
        step.records[1][at(39 * fp8::record_bytes + column)] = static_cast<std::byte>(code);
        const answers got = decode<bf16>(step, step.cache(unsharded, 16, 0, 460));
        index_t wrong = 0;
        for (index_t r = 0; r < 6 * heads; ++r) {
          const index_t token = r / heads;
          const bool spoilt = token < 2 || token == 3;
          wrong += std::isnan(got.lses[at(r)]) != spoilt;
          for (index_t d = 0; d < 512; ++d) {
            const double number = got.output[at(r * 512 + d)];
            const double off = std::fabs(number - expected.output[at(r * 512 + d)]);
            wrong += spoilt ? !std::isnan(number) : !(off < 0.01);
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("mla_decode kernel: records of fp8 that are no tokens, of any bits") {
  for (const index_t page_size : mla_test::page_sizes) {
    CAPTURE(page_size);
    const problem<fp8> step({40, 3, 0, 130}, 2, 11, 470);
    auto cache = step.cache(unsharded, page_size, 16, 470);
    const answers truth = reference_answers(step, cache);
    check_close<bf16>(decode<bf16>(step, cache), truth);  // all NaN
    const std::vector<bool> live = mla_test::live_slots(step, cache);
    // Numbers with scales that are infinite, rope that is.
    const float infinite = std::numeric_limits<float>::infinity();
    const std::uint16_t infinite_bf16 = 0x7f80;
    for (index_t slot = 0; slot < cache.page_count * page_size; ++slot) {
      if (live[at(slot)]) continue;
      std::byte* const record = cache.memory.data() + slot / page_size * cache.page_stride +
                                slot % page_size * cache.row_stride;
      std::fill_n(record, 512, std::byte{0x38});
      for (index_t g = 0; g < 4; ++g) {
        std::memcpy(record + fp8::scale_offset + 4 * g, &infinite, sizeof infinite);
      }
      for (index_t d = 0; d < 64; ++d) {
        std::memcpy(record + fp8::rope_offset + 2 * d, &infinite_bf16, 2);
      }
    }
    check_close<bf16>(decode<bf16>(step, cache), truth);
  }
}

// ---- long sequences ---------------------------------------------------------------------------

namespace {

/// Long sequences of a record, shared out in several ways, and held by a group of ranks.
template <class Record, class Element, log_base Base>
void check_long(largest_deviations& largest) {
  using step_type = long_step<Record>;
  for (const index_t heads : {4, 16, 48, 128}) {
    CAPTURE(heads);
    const step_type step({9000, 0, 33, 2500}, heads < 40 ? 2 : 1, heads, 480);
    const typename step_type::cache records(step, 64);
    const answers truth = step.truth(records);
    for (const int multiprocessors : {0, 1, 7, 66}) {
      CAPTURE(multiprocessors);
      largest.take(check_close<Element>(
          step.template decode<Element, Base>(records, mla_launch{multiprocessors, 2}), truth));
    }
  }
}

}  // namespace

TEST_CASE("mla_decode kernel: long sequences of fp8") {
  largest_deviations largest("9,000 tokens of fp8");
  check_long<fp8, bf16, e>(largest);
  check_long<fp8, float, two>(largest);
}
TEST_CASE("mla_decode kernel: long sequences of 512 + 0 and of 256 + 64 numbers") {
  largest_deviations largest("9,000 tokens of other widths");
  check_long<without_rope, float, e>(largest);
  check_long<narrow, bf16, two>(largest);
}

TEST_CASE(
    "D01: mla_decode kernel: what ranks have of long sequences of fp8 is the whole together") {
  largest_deviations largest("groups of ranks, fp8");
  const long_step<fp8> step({20011, 977, 5}, 2, 24, 490);
  const answers truth = step.truth(long_step<fp8>::cache(step, 64));
  for (const interleaving split : mla_test::groups) {
    CAPTURE(split.ranks);
    CAPTURE(split.interleave);
    std::vector<answers> partials;
    for (index_t rank = 0; rank < split.ranks; ++rank) {
      const kv_shard shard{split, rank};
      const long_step<fp8>::cache held(step, 64, 0, shard);
      partials.push_back(step.decode<float, two>(held, mla_launch{}, shard));
    }
    largest.take(check_close<float>(combined(partials), truth));
  }
}
