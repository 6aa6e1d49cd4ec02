// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/core/element.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

using namespace headwise;

namespace {

// A small binary format, decoded by arithmetic on its fields: the independent computation.
struct format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int width() const { return 1 + exponent_bits + mantissa_bits; }
  unsigned sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  unsigned top_exponent() const { return (1u << exponent_bits) - 1; }
  unsigned exponent_of(unsigned bits) const { return bits >> mantissa_bits & top_exponent(); }
  unsigned mantissa_of(unsigned bits) const { return bits & ((1u << mantissa_bits) - 1); }

  bool is_nan(unsigned bits) const {
    const unsigned all_ones = (1u << mantissa_bits) - 1;
    return exponent_of(bits) == top_exponent() &&
           (has_infinity ? mantissa_of(bits) != 0 : mantissa_of(bits) == all_ones);
  }
  bool is_infinite(unsigned bits) const {
    return has_infinity && exponent_of(bits) == top_exponent() && mantissa_of(bits) == 0;
  }
  double value(unsigned bits) const {
    const double sign = (bits & sign_bit()) != 0 ? -1.0 : 1.0;
    if (is_infinite(bits)) return sign * std::numeric_limits<double>::infinity();
    const auto mantissa = static_cast<double>(mantissa_of(bits));
    const int exponent = static_cast<int>(exponent_of(bits));
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return sign *
           std::ldexp(mantissa + std::ldexp(1.0, mantissa_bits), exponent - bias() - mantissa_bits);
  }
};

constexpr format half{5, 10, true};
constexpr format brain{8, 7, true};
constexpr format e4m3{4, 3, false};

template <class T>
unsigned encode(float value) {
  return from_float<T>(value).bits;
}

template <class T>
float decode(unsigned bits) {
  return to_float(T{static_cast<decltype(T::bits)>(bits)});
}

// Every bit pattern: its value, its way back, and what becomes of a NaN.
template <class T>
int wrong_round_trips(const format& f, unsigned canonical_nan) {
  int wrong = 0;
  for (unsigned bits = 0; bits < 2 * f.sign_bit(); ++bits) {
    const float got = decode<T>(bits);
    if (f.is_nan(bits)) {
      wrong += !std::isnan(got) || encode<T>(got) != canonical_nan;
      continue;
    }
    const double expected = f.value(bits);
    wrong += static_cast<double>(got) != expected || std::signbit(got) != std::signbit(expected);
    wrong += encode<T>(got) != bits;
  }
  return wrong;
}

// Between each two neighbours, of either sign: the tie goes to the even one, a float just below the
// tie down, one just above it up. `last` is the highest pattern that is rounded up to.
template <class T>
int wrong_roundings(const format& f, unsigned last) {
  int wrong = 0;
  constexpr float far = std::numeric_limits<float>::infinity();
  for (unsigned low = 0; low < last; ++low) {
    const unsigned high = low + 1;
    // Where the upper neighbour is an infinity, the tie is where the next finite value would lie.
    const double low_value = f.value(low);
    const double above = f.is_infinite(high) ? 2 * low_value - f.value(low - 1) : f.value(high);
    const auto tie = static_cast<float>((low_value + above) / 2);
    REQUIRE(static_cast<double>(tie) == (low_value + above) / 2);
    const unsigned even = (low & 1u) == 0 ? low : high;
    for (const unsigned sign : {0u, f.sign_bit()}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      wrong += encode<T>(s * tie) != (sign | even);
      wrong += encode<T>(s * std::nextafter(tie, 0.0f)) != (sign | low);
      wrong += encode<T>(s * std::nextafter(tie, far)) != (sign | high);
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("element: all 65536 fp16 values convert to float and back") {
  CHECK(wrong_round_trips<fp16>(half, 0x7fff) == 0);
}

TEST_CASE("element: all 65536 bf16 values convert to float and back") {
  CHECK(wrong_round_trips<bf16>(brain, 0x7fff) == 0);
}

TEST_CASE("element: all 256 e4m3 values convert to float and back") {
  CHECK(wrong_round_trips<fp8_e4m3>(e4m3, 0x7f) == 0);
  CHECK(to_float(fp8_e4m3{0x7e}) == 448.0f);
  CHECK(to_float(fp8_e4m3{0x01}) == 0x1p-9f);
}

TEST_CASE("element: fp16 rounds to nearest, ties to even, between all neighbours") {
  CHECK(wrong_roundings<fp16>(half, 0x7c00) == 0);
  CHECK(encode<fp16>(65504.0f) == 0x7bff);
  CHECK(encode<fp16>(std::numeric_limits<float>::max()) == 0x7c00);
  CHECK(encode<fp16>(-std::numeric_limits<float>::infinity()) == 0xfc00);
}

TEST_CASE("element: bf16 rounds to nearest, ties to even, between all neighbours") {
  CHECK(wrong_roundings<bf16>(brain, 0x7f80) == 0);
  CHECK(encode<bf16>(std::bit_cast<float>(0x7f7f7fffu)) == 0x7f7f);
  CHECK(encode<bf16>(std::bit_cast<float>(0x7f7f8000u)) == 0x7f80);
  CHECK(encode<bf16>(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(encode<bf16>(-std::numeric_limits<float>::infinity()) == 0xff80);
}

TEST_CASE("element: e4m3 rounds to nearest, ties to even, and saturates at 448") {
  CHECK(wrong_roundings<fp8_e4m3>(e4m3, 0x7e) == 0);
  CHECK(encode<fp8_e4m3>(464.0f) == 0x7e);
  CHECK(encode<fp8_e4m3>(1e30f) == 0x7e);
  CHECK(encode<fp8_e4m3>(-std::numeric_limits<float>::infinity()) == 0xfe);
  CHECK(encode<fp8_e4m3>(0x1p-10f) == 0x00);
  CHECK(encode<fp8_e4m3>(-0x1.000002p-10f) == 0x81);
}

TEST_CASE("element: float subnormals and zeros keep their sign in every format") {
  for (const float tiny : {0.0f, 0x1p-149f, 0x1p-127f}) {
    CHECK(encode<fp16>(tiny) == 0x0000);
    CHECK(encode<fp16>(-tiny) == 0x8000);
    CHECK(encode<fp8_e4m3>(tiny) == 0x00);
    CHECK(encode<fp8_e4m3>(-tiny) == 0x80);
  }
  CHECK(encode<bf16>(0x1p-127f) == 0x0040);
  CHECK(encode<bf16>(-0x1p-149f) == 0x8000);
}

TEST_CASE("element: every float between two fp16 or bf16 values lands on the nearer one") {
  // A stride over all floats; the nearer of two neighbours by plain distance in float64.
  int wrong = 0;
  long tried = 0;
  for (std::uint64_t bits = 0; bits < 0x47800000u; bits += 977, ++tried) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const auto exact = static_cast<double>(value);
    if (value < 65504.0f) {
      const unsigned got = encode<fp16>(value);
      const double error = std::fabs(half.value(got) - exact);
      wrong += std::fabs(half.value(got + 1) - exact) < error;
      if (got != 0) wrong += std::fabs(half.value(got - 1) - exact) < error;
    }
    const unsigned got = encode<bf16>(value);
    const double error = std::fabs(brain.value(got) - exact);
    wrong += std::fabs(brain.value(got + 1) - exact) < error;
    if (got != 0) wrong += std::fabs(brain.value(got - 1) - exact) < error;
  }
  CHECK(tried > 1000000);
  CHECK(wrong == 0);
}

TEST_CASE("element: fp32 keeps its bits, but for NaN, of which there is one") {
  for (const std::uint32_t bits : {0u, 0x80000000u, 1u, 0x3f800001u, 0x7f7fffffu, 0xff800000u}) {
    const float value = std::bit_cast<float>(bits);
    CHECK(std::bit_cast<std::uint32_t>(from_float<float>(value)) == bits);
    CHECK(std::bit_cast<std::uint32_t>(to_float(value)) == bits);
  }
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu}) {
    const float value = std::bit_cast<float>(bits);
    CHECK(std::bit_cast<std::uint32_t>(from_float<float>(value)) == 0x7fffffffu);
  }
}

namespace engine {
struct own_bf16 {
  std::uint16_t raw;
};
struct packed_int4 {
  std::uint8_t raw;
};
}  // namespace engine

template <>
struct headwise::element_traits<engine::own_bf16> {
  static constexpr headwise::element_kind kind = headwise::element_kind::bf16;
};

TEST_CASE("element: an engine's own 16-bit type binds through its traits") {
  static_assert(is_reducible<engine::own_bf16>);
  static_assert(element_kind_of<const engine::own_bf16> == element_kind::bf16);
  CHECK(to_float(engine::own_bf16{0x4040}) == 3.0f);
  CHECK(from_float<engine::own_bf16>(3.0f).raw == 0x4040);
}

TEST_CASE("element: what may be summed, and what only moved") {
  static_assert(is_reducible<float> && is_reducible<fp16> && is_reducible<const bf16>);
  static_assert(!is_reducible<fp8_e4m3> && !is_reducible<double> && !is_reducible<int>);
  static_assert(element_kind_of<engine::packed_int4> == element_kind::opaque);
  CHECK(std::string_view(to_string(element_kind::bf16)) == "bf16");
  CHECK(std::string_view(to_string(element_kind::e4m3)) == "e4m3");
  CHECK(std::string_view(to_string(static_cast<element_kind>(99))) == "unknown");
}
