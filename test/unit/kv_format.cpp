// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/reference/kv_format.hpp>

#include <support/mla_problem.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

using namespace headwise;
using mla_test::at;

namespace {

using fp8 = kv_fp8_ds_mla<512, 64>;
using fp8_numbers = std::span<const float, 576>;
using fp8_bytes = std::span<std::byte, 656>;

static_assert(kv_bf16<512, 64>::record_bytes == 1152);
static_assert(kv_bf16<512, 0>::record_bytes == 1024);
static_assert(kv_bf16<256, 64>::head_dim == 320);
static_assert(kv_fp8_ds_mla<512, 0>::record_bytes == 528);
static_assert(kv_fp8_ds_mla<256, 64>::record_bytes == 256 + 8 + 128);
static_assert(kv_record<fp8> && kv_record<kv_bf16<1, 0>>);
static_assert(!kv_record<float>);

template <class T>
T at_byte(const std::vector<std::byte>& record, index_t offset) {
  T value;
  std::memcpy(&value, record.data() + offset, sizeof value);
  return value;
}

std::vector<std::byte> encoded(const std::vector<float>& numbers, kv_scale kind) {
  std::vector<std::byte> record(656, std::byte{0xcc});
  reference::encode(fp8{}, fp8_numbers(numbers), fp8_bytes(record), kind);
  return record;
}

template <class Record>
std::vector<double> decoded(Record, const std::byte* record) {
  constexpr auto bytes = static_cast<std::size_t>(Record::record_bytes);
  constexpr auto width = static_cast<std::size_t>(Record::head_dim);
  std::vector<double> numbers(width, -1e300);
  reference::decode(Record{}, std::span<const std::byte, bytes>(record, bytes),
                    std::span<double, width>(numbers));
  return numbers;
}

}  // namespace

TEST_CASE("L01: kv_format: a power-of-two scale is 2^ceil(log2(max(amax / 448, 1e-4)))") {
  using reference::kv_scale_for;
  constexpr kv_scale rounded = kv_scale::power_of_two;
  CHECK(kv_scale_for(0.0f, rounded) == 0x1p-13f);
  CHECK(kv_scale_for(448.0f, rounded) == 1.0f);
  CHECK(kv_scale_for(449.0f, rounded) == 2.0f);
  CHECK(kv_scale_for(100.0f, rounded) == 0.25f);
  CHECK(kv_scale_for(0.05f, rounded) == 0x1p-13f);
  // Neighbours of a power of two, and the ends.
  CHECK(kv_scale_for(std::nextafter(448.0f, 0.0f), rounded) == 1.0f);
  CHECK(kv_scale_for(std::nextafter(448.0f, 1000.0f), rounded) == 2.0f);
  CHECK(kv_scale_for(448.0f * 0x1p-13f, rounded) == 0x1p-13f);
  CHECK(kv_scale_for(std::nextafter(448.0f * 0x1p-13f, 1.0f), rounded) == 0x1p-12f);
  CHECK(kv_scale_for(std::numeric_limits<float>::max(), rounded) == 0x1p+120f);

  mla_test::random_source random(1);
  for (int i = 0; i < 2000; ++i) {
    const float amax = std::ldexp(static_cast<float>(random.in(1 << 23, (1 << 24) - 1)),
                                  static_cast<int>(random.in(-40, 40)) - 23);
    const double exact = std::max(static_cast<double>(amax) / 448.0, 1e-4);
    CAPTURE(amax);
    REQUIRE(static_cast<double>(kv_scale_for(amax, rounded)) ==
            std::exp2(std::ceil(std::log2(exact))));
  }
}

TEST_CASE("kv_format: an exact scale is amax / 448 in fp32") {
  using reference::kv_scale_for;
  CHECK(kv_scale_for(448.0f, kv_scale::exact) == 1.0f);
  CHECK(kv_scale_for(449.0f, kv_scale::exact) == 449.0f / 448.0f);
  CHECK(kv_scale_for(1e-3f, kv_scale::exact) == 1e-3f / 448.0f);
  CHECK(kv_scale_for(0.0f, kv_scale::exact) == std::numeric_limits<float>::min());
}

TEST_CASE("L01: kv_format: a 656-byte record is 512 e4m3, 4 fp32 scales, 64 bf16") {
  static_assert(fp8::record_bytes == 656);
  std::vector<float> numbers(576, 0.0f);
  // The largest of each group of 128, at an end of it, and in the latent part only.
  numbers[0] = 448.0f;
  numbers[255] = -449.0f;
  numbers[256] = 100.0f;
  numbers[300] = -0.25f * 0x1p-9f;
  for (index_t d = 512; d < 576; ++d) numbers[at(d)] = 1000.0f + static_cast<float>(d);
  const auto record = encoded(numbers, kv_scale::power_of_two);

  CHECK(at_byte<float>(record, 512) == 1.0f);
  CHECK(at_byte<float>(record, 516) == 2.0f);
  CHECK(at_byte<float>(record, 520) == 0.25f);
  CHECK(at_byte<float>(record, 524) == 0x1p-13f);
  CHECK(record[0] == std::byte{0x7e});  // 448
  CHECK(record[1] == std::byte{0});
  CHECK(record[255] == std::byte{0xf6});                          // -224.5 to -224
  CHECK(record[256] == std::byte{0x7c});                          // 400 to 384, a tie
  CHECK(record[300] == std::byte{0x81});                          // the least there is
  CHECK(at_byte<std::uint16_t>(record, 528) == 0x44bd);           // 1512 to 1512
  CHECK(at_byte<std::uint16_t>(record, 528 + 2 * 63) == 0x44c5);  // 1575 to 1576
}

TEST_CASE("kv_format: decode is e4m3 * scale, exact, for every code and any scale") {
  mla_test::random_source random(2);
  std::vector<std::byte> record(656);
  std::vector<double> expected(576);
  for (int round = 0; round < 20; ++round) {
    float scales[4];
    for (index_t group = 0; group < 4; ++group) {
      // GLM stores what amax / 448 is, with all 24 bits.
      scales[group] = std::ldexp(static_cast<float>(random.in(1 << 23, (1 << 24) - 1)),
                                 static_cast<int>(random.in(-120, 90)));
      std::memcpy(record.data() + 512 + 4 * group, &scales[group], 4);
    }
    for (index_t i = 0; i < 512; ++i) {
      const auto code = static_cast<unsigned>((i + 128 * round + 64 * (i / 256)) % 256);
      record[at(i)] = static_cast<std::byte>(code);
      const bool is_nan = (code & 0x7f) == 0x7f;
      expected[at(i)] = is_nan ? std::numeric_limits<double>::quiet_NaN()
                               : mla_test::e4m3_number(code) * static_cast<double>(scales[i / 128]);
    }
    mla_test::write_bf16_row(record.data() + 528, expected.data() + 512, 64, random);
    const auto numbers = decoded(fp8{}, record.data());
    index_t wrong = 0;
    for (std::size_t d = 0; d < 576; ++d) {
      wrong += std::isnan(expected[d]) ? !std::isnan(numbers[d]) : numbers[d] != expected[d];
    }
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("kv_format: encode then decode is off by half a unit of e4m3 at most") {
  mla_test::random_source random(3);
  for (const kv_scale kind : {kv_scale::power_of_two, kv_scale::exact}) {
    for (int round = 0; round < 50; ++round) {
      const int exponent = static_cast<int>(random.in(-20, 20));
      std::vector<float> numbers;
      for (index_t d = 0; d < 576; ++d) {
        numbers.push_back(std::ldexp(static_cast<float>(random.in(-8000000, 8000000)),
                                     exponent - 23 - static_cast<int>(random.in(0, 9))));
      }
      const auto record = encoded(numbers, kind);
      const auto back = decoded(fp8{}, record.data());
      index_t wrong = 0;
      for (index_t d = 0; d < 512; ++d) {
        const double number = static_cast<double>(numbers[at(d)]);
        const double scale = static_cast<double>(at_byte<float>(record, 512 + d / 128 * 4));
        // Four significant bits, or multiples of 2^-9 below them. Dividing by an exact scale rounds
        // too, far further down.
        const double allowed =
            std::max(std::fabs(number) * 0x1p-4, scale * 0x1p-10) * (1 + 0x1p-20);
        wrong += !(std::fabs(back[at(d)] - number) <= allowed);
      }
      for (index_t d = 512; d < 576; ++d) {
        const double number = static_cast<double>(numbers[at(d)]);
        wrong += !(std::fabs(back[at(d)] - number) <= std::fabs(number) * 0x1p-8);
      }
      REQUIRE(wrong == 0);
      // The largest of a group uses the range: its code is at least 224, or 448 where exact.
      if (exponent > -4) {
        for (index_t group = 0; group < 4; ++group) {
          double highest = 0;
          for (index_t i = 0; i < 128; ++i) {
            const auto code = std::to_integer<unsigned>(record[at(128 * group + i)]) & 0x7f;
            highest = std::max(highest, mla_test::e4m3_number(code));
          }
          CHECK(highest >= (kind == kv_scale::exact ? 448.0 : 224.0));
        }
      }
    }
  }
}

TEST_CASE("kv_format: NaN stays NaN, infinities saturate, and neither changes a scale") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const kv_scale kind : {kv_scale::power_of_two, kv_scale::exact}) {
    std::vector<float> numbers(576, 0.0f);
    numbers[0] = 448.0f;
    numbers[1] = nan;
    numbers[2] = inf;
    numbers[3] = -inf;
    numbers[575] = nan;
    const auto record = encoded(numbers, kind);
    CHECK(at_byte<float>(record, 512) == 1.0f);
    const auto back = decoded(fp8{}, record.data());
    CHECK(back[0] == 448.0);
    CHECK(std::isnan(back[1]));
    CHECK(back[2] == 448.0);
    CHECK(back[3] == -448.0);
    CHECK(back[4] == 0.0);
    CHECK(std::isnan(back[575]));
  }
}

TEST_CASE("kv_format: a bf16 row is rounded to nearest even") {
  using row = kv_bf16<3, 2>;
  const std::vector<float> numbers = {1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, -0.0f, 1e-40f, 3e38f};
  std::vector<std::byte> record(10);
  reference::encode(row{}, std::span<const float, 5>(numbers), std::span<std::byte, 10>(record));
  CHECK(at_byte<std::uint16_t>(record, 0) == 0x3f80);
  CHECK(at_byte<std::uint16_t>(record, 2) == 0x3f82);
  CHECK(at_byte<std::uint16_t>(record, 4) == 0x8000);
  CHECK(at_byte<std::uint16_t>(record, 6) == 0x0001);
  CHECK(at_byte<std::uint16_t>(record, 8) == 0x7f62);
  const auto back = decoded(row{}, record.data());
  CHECK(back[0] == 1.0);
  CHECK(back[1] == 1.0 + 0x1p-6);
  CHECK(std::signbit(back[2]));
  CHECK(back[3] == 0x1p-133);
}

TEST_CASE("kv_format: records need no alignment") {
  mla_test::random_source random(4);
  std::vector<std::byte> memory(656 + 16);
  std::vector<double> expected(576);
  for (index_t shift = 0; shift < 16; ++shift) {
    mla_test::write_record(mla_test::record_format::of(fp8{}), memory.data() + shift,
                           expected.data(), random);
    CHECK(decoded(fp8{}, memory.data() + shift) == expected);
    std::vector<float> numbers(576, 0.0f);
    for (index_t d = 0; d < 576; ++d) numbers[at(d)] = mla_test::some_number(random);
    std::vector<std::byte> aligned(656);
    reference::encode(fp8{}, fp8_numbers(numbers), fp8_bytes(aligned));
    reference::encode(fp8{}, fp8_numbers(numbers), fp8_bytes(memory.data() + shift, 656));
    CHECK(std::memcmp(aligned.data(), memory.data() + shift, 656) == 0);
  }
}

TEST_CASE("L05: paged_kv: a row lies at page * page stride, not at page * page size") {
  const paged_kv<fp8> kv{nullptr, 4, 64, 96 * 656, 656};
  CHECK(kv.offset(2, 5) == 129232);
  CHECK(kv.offset(2, 5) / 656 == 197);
  CHECK(kv.slot_count() == 256);
  const std::vector<std::byte> memory(4 * 96 * 656);
  const paged_kv<fp8> placed{memory.data(), 4, 64, 96 * 656, 656};
  CHECK(placed.record(2, 5) - memory.data() == 129232);
  CHECK(placed.record(2 * 64 + 5) - memory.data() == 129232);  // a slot counts rows, not strides
}

TEST_CASE("L06: paged_kv: two tensors may share blocks") {
  // Strides (131072, 1024, ...) of bf16 elements, the second tensor 65536 elements behind the
  // first.
  using row = kv_bf16<512, 0>;
  const std::vector<std::byte> memory(8 * 131072 * 2);
  const paged_kv<row> first{memory.data(), 8, 64, 131072 * 2, 1024 * 2};
  const paged_kv<row> second{memory.data() + 65536 * 2, 8, 64, 131072 * 2, 1024 * 2};
  CHECK(validate("kv", second).ok());
  CHECK((second.record(1, 0) - memory.data()) / 2 == 196608);
  CHECK((first.record(1, 3) - memory.data()) / 2 == 131072 + 3 * 1024);
}

TEST_CASE("F01: paged_kv: offsets are 64 bits wide") {
  const paged_kv<kv_bf16<512, 64>> kv{nullptr, index_t{1} << 20, 480, 480 * 1152, 1152};
  CHECK(kv.offset(7767, 479) == index_t{7767} * 480 * 1152 + 479 * 1152);
  CHECK(kv.offset((1 << 20) - 1, 0) == index_t{579820584960} - 552960);
}

TEST_CASE("paged_kv: packed pages have no gaps") {
  const std::vector<std::byte> memory(3 * 53 * 656);
  const auto kv = paged_kv<fp8>::packed(memory.data(), 3, 53);
  CHECK(kv.page_stride == 53 * 656);
  CHECK(kv.row_stride == 656);
  CHECK(kv.record(2, 52) - memory.data() == (3 * 53 - 1) * 656);
  CHECK(validate("kv", kv).ok());
}

TEST_CASE("paged_kv: what no cache may be is refused with the operand and both values") {
  const std::byte memory[1] = {};
  const paged_kv<fp8> fine{memory, 4, 64, 64 * 656, 656};
  REQUIRE(validate("kv", fine).ok());
  const auto refused = [&](const std::function<void(paged_kv<fp8>&)>& change, errc code,
                           index_t got, index_t expected) {
    paged_kv<fp8> kv = fine;
    change(kv);
    const status found = validate("kv_cache", kv);
    CHECK(found.code == code);
    CHECK(found.operand == std::string("kv_cache"));
    CHECK(found.got == got);
    CHECK(found.expected == expected);
  };
  using one = paged_kv<fp8>&;
  refused([](one kv) { kv.page_count = -1; }, errc::invalid_argument, -1, 0);
  refused([](one kv) { kv.page_size = 0; }, errc::invalid_argument, 0, 1);
  refused([](one kv) { kv.data = nullptr; }, errc::invalid_argument, 4, 0);
  refused([](one kv) { kv.row_stride = 576; }, errc::stride_mismatch, 576, 656);
  refused([](one kv) { kv.page_stride = 64; }, errc::stride_mismatch, 64, 656);
  refused([](one kv) { kv.row_stride = -656; }, errc::stride_mismatch, -656, 656);
  refused([](one kv) { kv.page_stride = INT64_MAX; }, errc::capacity_exceeded, 4, 0);
  // One page, or one row per page, makes no use of its stride.
  CHECK(validate("kv", paged_kv<fp8>{memory, 1, 64, 0, 656}).ok());
  CHECK(validate("kv", paged_kv<fp8>{memory, 4, 1, 656, 0}).ok());
  CHECK(validate("kv", paged_kv<fp8>{nullptr, 0, 64, 64 * 656, 656}).ok());
}
