// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/lse/partial.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

using namespace headwise;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
const float a_nan = std::nanf("");
constexpr std::uint32_t the_nan = 0x7fffffffu;

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

template <class Policy>
partial<log_base::e> two(float lse0, float lse1, float output0, float output1,
                         const Policy& policy) {
  using pair = partial<log_base::e>;
  return combine(pair{output0, {lse0}}, pair{output1, {lse1}}, policy);
}

template <class Policy>
bool empty(float value, const Policy& policy) {
  return is_empty(lse<log_base::e>{value}, policy);
}

}  // namespace

TEST_CASE("C07: under nan_policy::propagate a NaN LSE makes the row NaN") {
  const nan_policy::propagate propagate;
  for (const auto& got :
       {two(a_nan, 0.0f, 1.0f, 2.0f, propagate), two(0.0f, a_nan, 1.0f, 2.0f, propagate),
        two(a_nan, -infinity, 1.0f, 2.0f, propagate)}) {
    CHECK(bits_of(got.output) == the_nan);
    CHECK(bits_of(got.lse.value) == the_nan);
  }
}

TEST_CASE("C07: under nan_policy::propagate both forms of the reduction see the NaN") {
  const lse<log_base::e> lses[3] = {{0.0f}, {a_nan}, {1.0f}};
  float weights[3] = {5.0f, 5.0f, 5.0f};
  const lse<log_base::e> merged =
      combine_weights<log_base::e>(3, lses, weights, nan_policy::propagate{});
  CHECK(bits_of(merged.value) == the_nan);
  for (const float weight : weights) {
    CHECK(bits_of(weight) == the_nan);
    CHECK(std::isnan(accumulate(accumulator_start(), weight, 1.0f)));
  }
}

TEST_CASE("C07: under nan_policy::propagate infinities still say `no keys`") {
  const nan_policy::propagate propagate;
  for (const float none : {infinity, -infinity}) {
    const auto got = two(none, 0.5f, a_nan, 2.0f, propagate);
    CHECK(got.output == 2.0f);
    CHECK(got.lse.value == 0.5f);
    const auto nothing = two(none, none, 1.0f, 2.0f, propagate);
    CHECK(bits_of(nothing.output) == 0u);
    CHECK(nothing.lse.value == -infinity);
  }
}

TEST_CASE("C07: a finite -1e30 is a number in fp32, unless a sentinel says otherwise") {
  const auto numbers = two(-1e30f, -1e30f, 2.0f, 4.0f, nan_policy::empty{});
  CHECK(numbers.output == 3.0f);
  CHECK(numbers.lse.value == -1e30f);

  const auto nothing = two(-1e30f, -1e30f, 2.0f, 4.0f, sentinel{});
  CHECK(bits_of(nothing.output) == 0u);
  CHECK(nothing.lse.value == -infinity);

  const auto one = two(-1e30f, 1.5f, a_nan, 4.0f, sentinel{});
  CHECK(one.output == 4.0f);
  CHECK(one.lse.value == 1.5f);
}

TEST_CASE("C07: as fp16 a sentinel of -1e30 is -inf, and empty without being asked for") {
  const fp16 stored = from_float<fp16>(-1e30f);
  CHECK(is_empty(load_lse<log_base::e>(stored)));
}

TEST_CASE("policy: by default every value that is no number is empty") {
  const nan_policy::empty policy;
  for (const float none : {infinity, -infinity, a_nan, -a_nan}) {
    CHECK(empty(none, policy));
    CHECK(is_empty(lse<log_base::two>{none}));
  }
  for (const float some : {0.0f, -0.0f, -1e30f, 3.4e38f, -3.4e38f, 0x1p-149f}) {
    CHECK_FALSE(empty(some, policy));
  }
}

TEST_CASE("policy: under propagate a NaN is not empty") {
  CHECK_FALSE(empty(a_nan, nan_policy::propagate{}));
  CHECK(empty(infinity, nan_policy::propagate{}));
  CHECK(empty(-infinity, nan_policy::propagate{}));
}

TEST_CASE("policy: a sentinel takes its threshold and all below it") {
  CHECK(empty(-1e29f, sentinel{}));
  CHECK_FALSE(empty(std::nextafter(-1e29f, 0.0f), sentinel{}));
  CHECK(empty(a_nan, sentinel{}));
  CHECK(empty(infinity, sentinel{}));

  const sentinel own{-50000.0f};
  CHECK(empty(-50000.0f, own));
  CHECK(empty(-60000.0f, own));
  CHECK_FALSE(empty(-49999.0f, own));
  CHECK_FALSE(empty(60000.0f, own));
}

TEST_CASE("policy: a sentinel of -1e30 is empty in either base before conversion, and after") {
  const lse<log_base::two> theirs{-1e30f};
  CHECK(is_empty(theirs, sentinel{}));
  CHECK(is_empty(to_base<log_base::e>(theirs), sentinel{}));
}

TEST_CASE("policy: policies cost no storage, but for a sentinel's threshold") {
  static_assert(std::is_empty_v<nan_policy::empty> && std::is_empty_v<nan_policy::propagate>);
  static_assert(sizeof(sentinel) == sizeof(float));
  static_assert(std::is_trivially_copyable_v<sentinel>);
  static_assert(nan_policy::empty{}.is_empty(detail::infinity()));
  CHECK(sentinel{}.threshold == -1e29f);
}

TEST_CASE("sink: an attention sink takes its share of the output and leaves the LSE") {
  // Two keys of score 0 and a sink of score ln 2: the sink holds half of the weight.
  using pair = partial<log_base::e>;
  const pair merged = combine(pair{1.0f, {0.0f}}, pair{3.0f, {0.0f}});
  const float factor = sink_factor(merged.lse, lse<log_base::e>{0.6931472f});
  CHECK(factor == doctest::Approx(0.5).epsilon(1e-6));
  CHECK(apply_sink(merged.output, factor) == doctest::Approx(1.0).epsilon(1e-6));
  CHECK(merged.lse.value == doctest::Approx(0.693147).epsilon(1e-6));
}

TEST_CASE("sink: the factor is 1 / (1 + base^(sink - lse)) in either base") {
  for (float sink = -40.0f; sink <= 40.0f; sink += 0.37f) {
    const double e = 1.0 / (1.0 + std::exp(static_cast<double>(sink) - 1.5));
    const double two = 1.0 / (1.0 + std::exp2(static_cast<double>(sink) - 1.5));
    const auto got_e = static_cast<double>(sink_factor<log_base::e>({1.5f}, {sink}));
    const auto got_two = static_cast<double>(sink_factor<log_base::two>({1.5f}, {sink}));
    CHECK(std::fabs(got_e - e) <= 4.5 * 0x1p-24 * e);
    CHECK(std::fabs(got_two - two) <= 4.5 * 0x1p-24 * two);
  }
}

TEST_CASE("sink: the limits are exact") {
  const lse<log_base::e> some{2.0f};
  CHECK(sink_factor(some, {infinity}) == 0.0f);
  CHECK(sink_factor(some, {-infinity}) == 1.0f);
  CHECK(sink_factor(some, {-3e38f}) == 1.0f);
  CHECK(sink_factor(some, {3e38f}) == 0.0f);
  CHECK(sink_factor(some, some) == 0.5f);
  for (const float sink : {0.0f, infinity, -infinity}) {
    CHECK(sink_factor(empty_lse<log_base::e>(), {sink}) == 0.0f);
    CHECK(sink_factor(lse<log_base::e>{infinity}, {sink}) == 0.0f);
  }
  CHECK(bits_of(sink_factor(some, {a_nan})) == the_nan);
  CHECK(bits_of(sink_factor<log_base::e>({a_nan}, {infinity})) == the_nan);
}

TEST_CASE("sink: a factor of 0 selects the output out, NaN is kept, 1 changes nothing") {
  CHECK(bits_of(apply_sink(a_nan, 0.0f)) == 0u);
  CHECK(bits_of(apply_sink(-infinity, 0.0f)) == 0u);
  CHECK(bits_of(apply_sink(a_nan, 0.5f)) == the_nan);
  CHECK(bits_of(apply_sink(1.0f, a_nan)) == the_nan);
  CHECK(bits_of(apply_sink(-0.1f, 1.0f)) == bits_of(-0.1f));
  CHECK(bits_of(apply_sink(-0.0f, 1.0f)) == 0x80000000u);
}

TEST_CASE("sink: applied after the merge it is what one more key without a value gives") {
  // Two shards and the sink as a third partial of payload 0, in float64.
  const double l0 = 0.3;
  const double l1 = -1.1;
  const double sink = 0.9;
  const double all = std::exp(l0) + std::exp(l1) + std::exp(sink);
  const double exact = (std::exp(l0) * 2.0 + std::exp(l1) * -5.0) / all;
  using pair = partial<log_base::e>;
  const pair merged = combine(pair{2.0f, {0.3f}}, pair{-5.0f, {-1.1f}});
  const float got = apply_sink(merged.output, sink_factor<log_base::e>(merged.lse, {0.9f}));
  CHECK(static_cast<double>(got) == doctest::Approx(exact).epsilon(1e-6));
}
