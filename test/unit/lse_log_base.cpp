// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/lse/log_base.hpp>
#include <headwise/lse/partial.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <string_view>
#include <type_traits>

using namespace headwise;

namespace {

using natural = lse<log_base::e>;
using binary = lse<log_base::two>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float largest = std::numeric_limits<float>::max();

}  // namespace

TEST_CASE("lse: a base is part of the type, and costs nothing") {
  static_assert(!std::is_same_v<natural, binary>);
  static_assert(!std::is_convertible_v<natural, binary>);
  static_assert(!std::is_convertible_v<float, natural>);
  static_assert(!std::is_convertible_v<natural, float>);
  static_assert(sizeof(natural) == 4 && alignof(natural) == 4);
  static_assert(std::is_trivially_copyable_v<binary> && std::is_standard_layout_v<binary>);
  static_assert(natural::base == log_base::e && binary::base == log_base::two);
  static_assert(is_lse<natural> && is_lse<binary> && !is_lse<float>);
  CHECK(std::string_view(to_string(log_base::e)) == "e");
  CHECK(std::string_view(to_string(log_base::two)) == "two");
}

TEST_CASE("lse: an lse binds as an fp32 element") {
  static_assert(element_kind_of<natural> == element_kind::f32);
  static_assert(element_kind_of<const binary> == element_kind::f32);
  CHECK(to_float(binary{-7.25f}) == -7.25f);
  CHECK(from_float<natural>(0.5f).value == 0.5f);
}

TEST_CASE("lse: conversion scales by log2(e) or ln(2)") {
  CHECK(to_base<log_base::two>(natural{1.0f}).value == 0x1.715476p+0f);
  CHECK(to_base<log_base::e>(binary{1.0f}).value == 0x1.62e43p-1f);
  CHECK(to_base<log_base::e>(binary{2.0f}).value == doctest::Approx(1.386294).epsilon(1e-6));
  CHECK(to_base<log_base::two>(natural{0.0f}).value == 0.0f);

  std::mt19937 random(7);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const float value = std::bit_cast<float>((bits & 0x807fffffu) | (90u + bits % 70u) << 23);
    const auto check = [&worst](float got, double exact) {
      const float ulp = std::nextafter(std::fabs(got), infinity) - std::fabs(got);
      worst =
          std::max(worst, std::fabs(static_cast<double>(got) - exact) / static_cast<double>(ulp));
    };
    check(to_base<log_base::two>(natural{value}).value,
          static_cast<double>(value) * 1.4426950408889634);
    check(to_base<log_base::e>(binary{value}).value,
          static_cast<double>(value) * 0.6931471805599453);
  }
  std::printf("measured: conversion between the bases: %.4f units in the last place\n", worst);
  CHECK(worst <= 0.51);
}

TEST_CASE("lse: infinities and NaN survive a conversion, and finite values stay finite") {
  CHECK(to_base<log_base::two>(natural{infinity}).value == infinity);
  CHECK(to_base<log_base::e>(binary{-infinity}).value == -infinity);
  CHECK(std::isnan(to_base<log_base::two>(natural{std::nanf("")}).value));
  CHECK(to_base<log_base::two>(natural{largest}).value == largest);
  CHECK(to_base<log_base::two>(natural{-3e38f}).value == -largest);
  CHECK_FALSE(is_empty(to_base<log_base::two>(natural{-3e38f})));
  CHECK(std::signbit(to_base<log_base::two>(natural{-0.0f}).value));
}

TEST_CASE("B05: a 16-bit LSE is converted, not reinterpreted") {
  const bf16 stored[2] = {{0x4040}, {0x4040}};
  CHECK(load_lse<log_base::e>(stored[0]).value == 3.0f);
  CHECK(load_lse<log_base::two>(stored[1]).value == 3.0f);
  CHECK(load_lse<log_base::e>(fp16{0x4200}).value == 3.0f);
  CHECK(std::bit_cast<float>(stored) ==
        3.0039215f);  // what reinterpretation would make of the pair
  CHECK(load_lse<log_base::e>(bf16{0xff80}).value == -infinity);
  CHECK(load_lse<log_base::e>(fp16{0x7c00}).value == infinity);
  CHECK(std::isnan(load_lse<log_base::e>(fp16{0x7e00}).value));
}

TEST_CASE("B05: an fp32 LSE keeps its bits, a typed one its base") {
  for (const std::uint32_t bits : {0x40400000u, 0x80000000u, 0x00000001u, 0xff800000u}) {
    const float stored = std::bit_cast<float>(bits);
    CHECK(std::bit_cast<std::uint32_t>(load_lse<log_base::e>(stored).value) == bits);
  }
  CHECK(load_lse<log_base::two>(binary{1.5f}).value == 1.5f);
}
