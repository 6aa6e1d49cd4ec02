// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>

#include <type_traits>

namespace headwise::inline v0 {

/// What the bits of an element mean. `opaque` elements can be moved, never computed with.
enum class element_kind : std::uint8_t { opaque, f32, f64, f16, bf16, e4m3 };

constexpr const char* to_string(element_kind kind) noexcept {
  switch (kind) {
    case element_kind::opaque: return "opaque";
    case element_kind::f32: return "f32";
    case element_kind::f64: return "f64";
    case element_kind::f16: return "f16";
    case element_kind::bf16: return "bf16";
    case element_kind::e4m3: return "e4m3";
  }
  return "unknown";
}

/// Storage types: bits and nothing else, so that host code needs no CUDA header.
struct bf16 {
  std::uint16_t bits;
  friend constexpr bool operator==(bf16, bf16) = default;  ///< compares bits
};
struct fp16 {
  std::uint16_t bits;
  friend constexpr bool operator==(fp16, fp16) = default;  ///< compares bits
};
/// OCP OFP8 E4M3: largest finite value 448, no infinity, NaN is 0x7f and 0xff.
struct fp8_e4m3 {
  std::uint8_t bits;
  friend constexpr bool operator==(fp8_e4m3, fp8_e4m3) = default;  ///< compares bits
};

/// How Headwise reads a type's bits. An engine binds its own 16-bit type without a cast:
///
///     template <>
///     struct headwise::element_traits<engine::bfloat> {
///       static constexpr headwise::element_kind kind = headwise::element_kind::bf16;
///     };
///
/// core/cuda_element.cuh does so for the types of the CUDA Toolkit.
template <class T>
struct element_traits {
  static constexpr element_kind kind = element_kind::opaque;
};
template <>
struct element_traits<float> {
  static constexpr element_kind kind = element_kind::f32;
};
template <>
struct element_traits<double> {
  static constexpr element_kind kind = element_kind::f64;
};
template <>
struct element_traits<fp16> {
  static constexpr element_kind kind = element_kind::f16;
};
template <>
struct element_traits<bf16> {
  static constexpr element_kind kind = element_kind::bf16;
};
template <>
struct element_traits<fp8_e4m3> {
  static constexpr element_kind kind = element_kind::e4m3;
};

template <class T>
inline constexpr element_kind element_kind_of = element_traits<std::remove_cv_t<T>>::kind;

/// A payload that the algebra may sum: fp32, fp16, bf16. fp8 is moved as bytes, never reduced.
template <class T>
inline constexpr bool is_reducible =
    element_kind_of<T> == element_kind::f32 || element_kind_of<T> == element_kind::f16 ||
    element_kind_of<T> == element_kind::bf16;

namespace detail {

HEADWISE_HD constexpr std::uint32_t float_bits(float value) noexcept {
  return bit_cast<std::uint32_t>(value);
}

/// By bits, so that -ffast-math and -use_fast_math cannot fold the question away.
HEADWISE_HD constexpr bool is_nan(float value) noexcept {
  return (float_bits(value) & 0x7fffffffu) > 0x7f800000u;
}
HEADWISE_HD constexpr bool is_finite(float value) noexcept {
  return (float_bits(value) & 0x7f800000u) != 0x7f800000u;
}

/// The NaN that CUDA's arithmetic produces; the combine writes no other one.
HEADWISE_HD constexpr float canonical_nan() noexcept { return bit_cast<float>(0x7fffffffu); }
HEADWISE_HD constexpr float infinity() noexcept { return bit_cast<float>(0x7f800000u); }

HEADWISE_HD constexpr float bf16_to_float(std::uint16_t bits) noexcept {
  return bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest even; any NaN becomes 0x7fff, as cvt.rn.bf16.f32 has it.
HEADWISE_HD constexpr std::uint16_t float_to_bf16(float value) noexcept {
  if (is_nan(value)) return 0x7fff;
  const std::uint32_t bits = float_bits(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

HEADWISE_HD constexpr float fp16_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  std::uint32_t exponent = (bits >> 10) & 0x1fu;
  std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    if (mantissa == 0) return bit_cast<float>(sign);
    // A subnormal half is a normal float: shift until the leading one is the hidden bit.
    exponent = 1;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      --exponent;  // wraps below zero on purpose; the bias below makes it positive again
    }
    mantissa &= 0x3ffu;
  }
  return bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/// Round to nearest even; overflow becomes infinity, any NaN 0x7fff, as cvt.rn.f16.f32 has it.
HEADWISE_HD constexpr std::uint16_t float_to_fp16(float value) noexcept {
  if (is_nan(value)) return 0x7fff;
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 2^16
  std::uint32_t rounded = 0;
  if (magnitude >= 0x38800000u) {  // normal half: drop 13 bits
    rounded = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else if (magnitude >= 0x33000000u) {  // subnormal half: drop 14 to 24 bits
    const std::uint32_t shift = 126u - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    rounded = (mantissa + ((1u << (shift - 1)) - 1u) + ((mantissa >> shift) & 1u)) >> shift;
  }
  return static_cast<std::uint16_t>(sign | rounded);
}

HEADWISE_HD constexpr float e4m3_to_float(std::uint8_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x80u) << 24;
  const std::uint32_t exponent = (bits >> 3) & 0xfu;
  const std::uint32_t mantissa = bits & 7u;
  if (exponent == 15 && mantissa == 7) return bit_cast<float>(sign | 0x7fffffffu);
  if (exponent == 0) {  // multiples of 2^-9
    const float magnitude = static_cast<float>(mantissa) * 0.001953125f;
    return bit_cast<float>(sign | float_bits(magnitude));
  }
  return bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

/// Round to nearest even; magnitudes beyond 448 and infinities saturate to 448, any NaN is 0x7f.
HEADWISE_HD constexpr std::uint8_t float_to_e4m3(float value) noexcept {
  if (is_nan(value)) return 0x7f;
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t rounded = 0;
  if (magnitude >= 0x43e80000u) {  // 464, half way to the 480 that does not exist
    rounded = 0x7e;
  } else if (magnitude >= 0x3c800000u) {  // >= 2^-6: drop 20 bits
    rounded = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  } else if (magnitude >= 0x3a800000u) {  // >= 2^-10, half of the least subnormal: drop 21 to 24
    const std::uint32_t shift = 141u - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    rounded = (mantissa + ((1u << (shift - 1)) - 1u) + ((mantissa >> shift) & 1u)) >> shift;
  }
  if (rounded > 0x7e) rounded = 0x7e;
  return static_cast<std::uint8_t>(sign | rounded);
}

}  // namespace detail

/// The exact value of an fp32, fp16, bf16 or e4m3 element.
template <class T>
  requires(element_kind_of<T> != element_kind::opaque && element_kind_of<T> != element_kind::f64)
HEADWISE_HD constexpr float to_float(const T& element) noexcept {
  constexpr element_kind kind = element_kind_of<T>;
  if constexpr (kind == element_kind::f32) {
    return detail::bit_cast<float>(element);
  } else if constexpr (kind == element_kind::f16) {
    return detail::fp16_to_float(detail::bit_cast<std::uint16_t>(element));
  } else if constexpr (kind == element_kind::bf16) {
    return detail::bf16_to_float(detail::bit_cast<std::uint16_t>(element));
  } else {
    return detail::e4m3_to_float(detail::bit_cast<std::uint8_t>(element));
  }
}

/// Rounds to nearest even into T. NaN becomes the one NaN that CUDA's conversions produce.
template <class T>
  requires(element_kind_of<T> != element_kind::opaque && element_kind_of<T> != element_kind::f64)
HEADWISE_HD constexpr T from_float(float value) noexcept {
  constexpr element_kind kind = element_kind_of<T>;
  if constexpr (kind == element_kind::f32) {
    return detail::bit_cast<T>(detail::is_nan(value) ? detail::canonical_nan() : value);
  } else if constexpr (kind == element_kind::f16) {
    return detail::bit_cast<T>(detail::float_to_fp16(value));
  } else if constexpr (kind == element_kind::bf16) {
    return detail::bit_cast<T>(detail::float_to_bf16(value));
  } else {
    return detail::bit_cast<T>(detail::float_to_e4m3(value));
  }
}

}  // namespace headwise::inline v0
