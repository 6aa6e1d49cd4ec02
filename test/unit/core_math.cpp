// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The elementary functions against float64, over a stride of all floats of their domain. The cases
// marked `skip` take every float; run them with --no-skip (minutes).

#include <headwise/core/math.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <limits>
#include <random>
#include <utility>

using namespace headwise;

namespace {

constexpr double unit = 0x1p-24;

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

struct worst {
  double error = 0;
  float at = 0;
  long count = 0;

  void see(double found, float where) {
    ++count;
    if (found > error || std::isnan(found)) {
      error = found;
      at = where;
    }
  }
  double print(const char* what) const {
    std::printf("measured: %s: %.4f * 2^-24 at %a, over %ld floats\n", what, error,
                static_cast<double>(at), count);
    return error;
  }
};

// Relative errors of 2^f for all |f| in [2^-27, 0.50001]; below, both are 1 to within 2^-27.
double exp2_fraction_error(std::uint32_t stride) {
  worst seen;
  for (std::uint32_t bits = bits_of(0x1p-27f); bits <= bits_of(0.50001f); bits += stride) {
    for (const float f : {from_bits(bits), -from_bits(bits)}) {
      const double exact = std::exp2(static_cast<double>(f));
      const double got = static_cast<double>(detail::exp2_fraction(f));
      seen.see(std::fabs(got - exact) / exact / unit, f);
    }
  }
  return seen.print("2^f, relative");
}

// Relative errors of base^d for all d in [-128, -2^-27] that are not dropped.
double weight_error(bool base_two, std::uint32_t stride) {
  worst seen;
  for (std::uint32_t bits = bits_of(0x1p-27f); bits <= bits_of(128.0f); bits += stride) {
    const float d = -from_bits(bits);
    const float got =
        base_two ? detail::exp2_of_difference(d, 0.0f) : detail::exp_of_difference(d, 0.0f);
    const double exact =
        base_two ? std::exp2(static_cast<double>(d)) : std::exp(static_cast<double>(d));
    if (got == 0.0f) {
      REQUIRE(exact < 0x1p-115);
      continue;
    }
    REQUIRE(got >= 0x1p-116f);
    seen.see(std::fabs(static_cast<double>(got) - exact) / exact / unit, d);
  }
  return seen.print(base_two ? "2^d, relative" : "e^d, relative");
}

// The one place where e^(l - m) rounds its reduced argument f to 2^-25 and not 2^-26: |f| just
// above 1/2, reached from a head d whose own f lies just below by the part of l - m that d leaves
// over. Every such d and f; the parts that lead to one f differ by less than its rounding, taken in
// full.
double edge_error() {
  worst seen;
  for (std::uint32_t bits = bits_of(0.25f); bits <= bits_of(128.0f); ++bits) {
    const float d = -from_bits(bits);
    const float n =
        detail::fma_rn(d, detail::log2e, detail::rounding_shift) - detail::rounding_shift;
    const float rounded = detail::fma_rn(d, detail::log2e, -n);
    if (std::fabs(rounded) < 0.49999f || n < -115.0f) continue;
    const double product = static_cast<double>(d) * static_cast<double>(detail::log2e);  // exact
    const double first = static_cast<double>(rounded) - (product - static_cast<double>(n));
    const auto left_over =
        static_cast<float>(static_cast<double>(d) * static_cast<double>(detail::log2e_rest));
    // What d leaves over is at most half a unit of its last place.
    const float reach = 0.5f * (std::nextafter(-d, 256.0f) + d) * detail::log2e;
    for (float f = rounded + left_over - reach; f <= rounded + left_over + reach;
         f = std::nextafter(f, 1.0f)) {
      const double exact = std::exp2(static_cast<double>(f));
      const double own = (static_cast<double>(detail::exp2_fraction(f)) - exact) / exact;
      const double second = std::fabs(f) > 0.5f ? 0x1p-25 : 0x1p-26;
      constexpr double ln2 = 0.6931471805599453;
      for (const double both : {first + second, first - second}) {
        seen.see(std::fabs(own + ln2 * both) / unit, f);
      }
    }
  }
  return seen.print("e^(l - m) with |f| at 1/2, relative");
}

// Absolute errors of log(sum) for sums of 1 to 16.
double log_error(bool base_two, std::uint32_t stride) {
  worst seen;
  for (std::uint32_t bits = bits_of(1.0f) + 1; bits <= bits_of(16.0f); bits += stride) {
    const float sum = from_bits(bits);
    const float got = base_two ? detail::add_log2(0.0f, sum) : detail::add_log(0.0f, sum);
    const double exact =
        base_two ? std::log2(static_cast<double>(sum)) : std::log(static_cast<double>(sum));
    seen.see(std::fabs(static_cast<double>(got) - exact) / unit, sum);
  }
  return seen.print(base_two ? "log2(sum), absolute" : "ln(sum), absolute");
}

// 1 / x differs from the correctly rounded quotient at one float per binade.
long reciprocals_off(std::uint32_t stride) {
  long off = 0;
  for (std::uint32_t bits = bits_of(1.0f); bits <= bits_of(16.0f); bits += stride) {
    const float x = from_bits(bits);
    const float exact = static_cast<float>(1.0 / static_cast<double>(x));
    if (bits_of(detail::reciprocal(x)) == bits_of(exact)) continue;
    REQUIRE((bits & 0x7fffffu) == 0x7fffffu);
    REQUIRE(bits_of(detail::reciprocal(x)) == bits_of(exact) - 1);
    ++off;
  }
  return off;
}

constexpr std::uint32_t sparse = 1009;

}  // namespace

TEST_CASE("math: errors of the elementary functions are within what numerics.md states") {
  CHECK(exp2_fraction_error(sparse) <= 1.12);
  CHECK(weight_error(true, sparse) <= 1.12);
  CHECK(weight_error(false, sparse) <= 1.38);
  CHECK(log_error(true, sparse) <= 2.71);
  CHECK(log_error(false, sparse) <= 2.53);
  reciprocals_off(sparse);
}

TEST_CASE("math: the same over every float of the domains" * doctest::skip()) {
  CHECK(exp2_fraction_error(1) <= 1.12);
  CHECK(weight_error(true, 1) <= 1.12);
  CHECK(weight_error(false, 1) <= 1.38);
  CHECK(log_error(true, 1) <= 2.71);
  CHECK(log_error(false, 1) <= 2.53);
  CHECK(edge_error() <= 1.47);
  CHECK(reciprocals_off(1) == 4);
}

TEST_CASE("math: a difference keeps what its rounding loses") {
  std::mt19937 random(20260101);
  double worst_e = 0;
  double worst_two = 0;
  for (int i = 0; i < 300000; ++i) {
    // Magnitudes from 2^-20 to 2^7, so that a difference mostly is no float.
    const auto some = [&random] {
      const int exponent = static_cast<int>(random() % 28) - 20;
      const auto mantissa = static_cast<float>(random() % 0x1000000) * 0x1p-24f;
      return std::ldexp((random() & 1) != 0 ? mantissa : -mantissa, exponent);
    };
    float l = some();
    float m = some();
    if (l > m) std::swap(l, m);
    const double exact = static_cast<double>(l) - static_cast<double>(m);  // 53 bits hold it
    const detail::exact_difference d = detail::subtract_exactly(l, m);
    REQUIRE(static_cast<double>(d.head) + static_cast<double>(d.tail) == exact);
    const auto error = [](float got, double reference) {
      return got == 0.0f ? 0.0 : std::fabs(static_cast<double>(got) - reference) / reference / unit;
    };
    worst_e = std::max(worst_e, error(detail::exp_of_difference(l, m), std::exp(exact)));
    worst_two = std::max(worst_two, error(detail::exp2_of_difference(l, m), std::exp2(exact)));
  }
  std::printf("measured: weight of two LSEs, relative: e %.4f, two %.4f * 2^-24\n", worst_e,
              worst_two);
  CHECK(worst_e <= 1.5);
  CHECK(worst_two <= 1.5);
}

TEST_CASE("math: the values that must be exact are") {
  for (const float m : {0.0f, -0.0f, 1.5f, -300.0f, 3e38f, -3e38f, 0x1p-149f}) {
    CHECK(detail::exp_of_difference(m, m) == 1.0f);
    CHECK(detail::exp2_of_difference(m, m) == 1.0f);
    CHECK(bits_of(detail::add_log(m, 1.0f)) == bits_of(m));
    CHECK(bits_of(detail::add_log2(m, 1.0f)) == bits_of(m));
  }
  for (int k = 1; k <= 115; ++k) {
    CHECK(detail::exp2_of_difference(static_cast<float>(-k), 0.0f) == std::ldexp(1.0f, -k));
  }
  for (int k = 1; k <= 4; ++k) {
    CHECK(detail::add_log2(0.5f, std::ldexp(1.0f, k)) == 0.5f + static_cast<float>(k));
    CHECK(detail::reciprocal(std::ldexp(1.0f, k)) == std::ldexp(1.0f, -k));
  }
  CHECK(detail::reciprocal(1.0f) == 1.0f);
}

TEST_CASE("math: weights end at 2^-115 in exact zeros, also where the difference overflows") {
  CHECK(detail::exp2_of_difference(-115.5f, 0.0f) == 0.0f);
  CHECK(detail::exp2_of_difference(-115.25f, 0.0f) > 0x1p-116f);
  CHECK(detail::exp_of_difference(-80.0f, 0.0f) > 0x1p-116f);
  CHECK(detail::exp_of_difference(-80.2f, 0.0f) == 0.0f);
  for (const float low : {-128.0f, -129.0f, -1e5f, -1e30f, -3.4e38f}) {
    CHECK(detail::exp_of_difference(low, 0.0f) == 0.0f);
    CHECK(detail::exp2_of_difference(low, 0.0f) == 0.0f);
    CHECK(detail::exp_of_difference(low, 3.4e38f) == 0.0f);
    CHECK(detail::exp2_of_difference(low, 3.4e38f) == 0.0f);
  }
}

TEST_CASE("math: a weight is never above 1 and never falls as the LSE rises") {
  float before_e = 0.0f;
  float before_two = 0.0f;
  for (float d = -130.0f; d <= 0.0f; d = std::nextafter(d + 0x1p-12f, 1.0f)) {
    const float e = detail::exp_of_difference(d, 0.0f);
    const float two = detail::exp2_of_difference(d, 0.0f);
    REQUIRE(e >= before_e);
    REQUIRE(two >= before_two);
    before_e = e;
    before_two = two;
  }
  CHECK(before_e <= 1.0f);
  CHECK(before_two <= 1.0f);
}

TEST_CASE("math: ordered_bits orders all floats, and -0 below +0") {
  const float infinity = std::numeric_limits<float>::infinity();
  const float ascending[] = {-infinity, -3e38f,    -1.0f, -0x1p-149f, -0.0f,
                             0.0f,      0x1p-149f, 1.0f,  3e38f,      infinity};
  for (std::size_t i = 1; i < std::size(ascending); ++i) {
    CHECK(detail::ordered_bits(ascending[i - 1]) < detail::ordered_bits(ascending[i]));
  }
}

TEST_CASE("math: a product is rounded before it is added to") {
  // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: rounded, the last term is gone; fused, it survives.
  const float a = 1.0f + 0x1p-12f;
  const float c = -(1.0f + 0x1p-11f);
  CHECK(detail::add_rn(detail::mul_rn(a, a), c) == 0.0f);
  CHECK(detail::fma_rn(a, a, c) == 0x1p-24f);
}
