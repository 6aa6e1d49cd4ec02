// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>
#include <headwise/core/element.hpp>

#if defined(__clang__) && defined(__x86_64__) && !defined(__FMA__)
#include <cmath>
#endif

// The only floating-point arithmetic that a combine uses. Its bits are the same on the host and on
// the device, whatever -O, -march, -ffp-contract, -ffast-math, -fmad or -use_fast_math say:
//
//  - Every operation is one of the three primitives below. Each rounds once, to nearest even, and
//    hands the compiler a value that it cannot look behind, so no product is ever contracted into a
//    sum and no sum is reassociated.
//  - Transcendental functions are range reduction and a polynomial in fma, not a library's.
//  - Values are classified, and ordered, by their bits, so that promises such as
//    -ffinite-math-only cannot fold the question away.
//  - No result is subnormal, so that flushing modes change nothing (weights below 2^-115 are zero).
//
// The host must run in the default rounding mode. docs/numerics.md gives error bounds and where the
// constants come from.

namespace headwise::inline v0::detail {

#if !defined(__CUDA_ARCH__)
/// Ends what the optimiser may know about x: no contraction or reassociation crosses this point.
inline float settled(float x) noexcept {
#if defined(__SSE__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#else
  asm("" : "+m"(x));
#endif
  return x;
}
#endif

// In PTX an explicit .rn is never fused, and without .ftz nothing is flushed; the intrinsics
// (__fmaf_rn, ...) turn into .ftz forms under -use_fast_math.

HEADWISE_HD inline float fma_rn(float a, float b, float c) noexcept {
#if defined(__CUDA_ARCH__)
  float result;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
  return result;
#elif defined(__clang__) && defined(__x86_64__) && !defined(__FMA__)
  // A library call here in any case. Known by its name, -ffast-math makes two operations of it.
  float (*fused)(float, float, float) = ::fmaf;
  asm("" : "+r"(fused));
  return fused(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

HEADWISE_HD inline float mul_rn(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  float result;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return settled(a * b);
#endif
}

HEADWISE_HD inline float add_rn(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  float result;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return settled(a + b);
#endif
}

/// -x as an integer operation: a negation of a subnormal is flushed under -use_fast_math.
HEADWISE_HD constexpr float negated(float x) noexcept {
  return bit_cast<float>(float_bits(x) ^ 0x80000000u);
}

/// A total order of everything but NaN, as integers: -inf lowest, -0 below +0.
HEADWISE_HD constexpr std::int32_t ordered_bits(float x) noexcept {
  const auto bits = static_cast<std::int32_t>(float_bits(x));
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
HEADWISE_HD constexpr float from_ordered_bits(std::int32_t bits) noexcept {
  return bit_cast<float>(bits < 0 ? bits ^ 0x7fffffff : bits);
}

/// log2(e) and ln(2), each as a float and what that float leaves over.
inline constexpr float log2e = 0x1.715476p+0f;
inline constexpr float log2e_rest = 0x1.4ae0c0p-26f;
inline constexpr float ln2 = 0x1.62e430p-1f;
inline constexpr float ln2_rest = -0x1.05c610p-29f;

/// head + tail == a - b exactly, and head is the rounded difference. Where head overflows, tail
/// means nothing.
struct exact_difference {
  float head;
  float tail;
};

/// Dekker's fast two-sum, fed in order of magnitude. Without the tail a weight would be off by
/// |a - b| units of 2^-24, up to 80 of them.
HEADWISE_HD inline exact_difference subtract_exactly(float a, float b) noexcept {
  const bool a_leads = (float_bits(a) & 0x7fffffffu) > (float_bits(b) & 0x7fffffffu);
  const float large = a_leads ? a : negated(b);
  const float little = a_leads ? negated(b) : a;
  const float head = add_rn(large, little);
  return {head, add_rn(little, negated(add_rn(head, negated(large))))};
}

/// Weights with a smaller power of two are exactly zero. Divided by a sum of up to 1,024 weights
/// the least one is still a normal number.
inline constexpr std::int32_t least_weight_exponent = -115;

/// Differences below it weigh nothing in either base. They include -inf, where two finite LSEs are
/// so far apart that their difference overflows.
HEADWISE_HD constexpr bool weighs_nothing(float difference) noexcept {
  return ordered_bits(difference) < ordered_bits(-128.0f);
}

/// Adding it to |x| < 2^22 rounds x to an integer, which then stands in the low bits of the sum.
inline constexpr float rounding_shift = 0x1.8p+23f;

/// 2^f for |f| <= 0.50001, relative error at most 1.12 * 2^-24; exactly 1 at f = 0.
HEADWISE_HD inline float exp2_fraction(float f) noexcept {
  float p = 0x1.41fbb8p-13f;
  p = fma_rn(p, f, 0x1.5f3e08p-10f);
  p = fma_rn(p, f, 0x1.3b2e8cp-7f);
  p = fma_rn(p, f, 0x1.c6af1cp-5f);
  p = fma_rn(p, f, 0x1.ebfbd8p-3f);
  p = fma_rn(p, f, 0x1.62e430p-1f);
  return fma_rn(p, f, 1.0f);
}

/// 2^(n + f), where `shifted` is n + rounding_shift, or 0 where `difference` weighs nothing.
/// Kernels compute several of these side by side, so what is not wanted is selected out at the end.
HEADWISE_HD inline float exp2_scaled(float difference, float shifted, float f) noexcept {
  const std::uint32_t n = float_bits(shifted) - float_bits(rounding_shift);
  const float scaled = bit_cast<float>(float_bits(exp2_fraction(f)) + (n << 23));
  const bool nothing =
      weighs_nothing(difference) || static_cast<std::int32_t>(n) < least_weight_exponent;
  return nothing ? 0.0f : scaled;
}

/// 2^(l - m) for finite l <= m.
HEADWISE_HD inline float exp2_of_difference(float l, float m) noexcept {
  const exact_difference d = subtract_exactly(l, m);
  const float shifted = add_rn(d.head, rounding_shift);
  const float n = add_rn(shifted, -rounding_shift);
  return exp2_scaled(d.head, shifted, add_rn(add_rn(d.head, negated(n)), d.tail));
}

/// e^(l - m) for finite l <= m.
HEADWISE_HD inline float exp_of_difference(float l, float m) noexcept {
  const exact_difference d = subtract_exactly(l, m);
  const float shifted = fma_rn(d.head, log2e, rounding_shift);
  const float n = add_rn(shifted, -rounding_shift);
  const float rest = fma_rn(d.head, log2e_rest, mul_rn(d.tail, log2e));
  return exp2_scaled(d.head, shifted, add_rn(fma_rn(d.head, log2e, negated(n)), rest));
}

/// x == fraction * 2^exponent, fraction in [sqrt(1/2), sqrt(2)).
struct split_float {
  float fraction;
  std::int32_t exponent;
};

/// For positive normal x.
HEADWISE_HD inline split_float split(float x) noexcept {
  constexpr std::uint32_t sqrt_half = 0x3f3504f3u;
  const auto above = static_cast<std::int32_t>(float_bits(x) - sqrt_half);
  const std::int32_t exponent = above >> 23;  // arithmetic: rounds down
  return {bit_cast<float>(float_bits(x) - (static_cast<std::uint32_t>(exponent) << 23)), exponent};
}

/// ln(z) for z in [sqrt(1/2), sqrt(2)), absolute error at most 0.46 * 2^-24; exactly 0 at z = 1.
HEADWISE_HD inline float log_fraction(float z) noexcept {
  const float t = add_rn(z, -1.0f);  // exact
  float p = 0x1.65ba72p-4f;
  p = fma_rn(p, t, -0x1.27c4e8p-3f);
  p = fma_rn(p, t, 0x1.32c69ap-3f);
  p = fma_rn(p, t, -0x1.52fdecp-3f);
  p = fma_rn(p, t, 0x1.98a668p-3f);
  p = fma_rn(p, t, -0x1.000688p-2f);
  p = fma_rn(p, t, 0x1.5557acp-2f);
  p = fma_rn(p, t, -0x1.fffff4p-2f);
  return fma_rn(mul_rn(t, t), p, t);
}

/// m + log2(sum), sum >= 1. A sum of exactly 1 gives m back bit for bit.
HEADWISE_HD inline float add_log2(float m, float sum) noexcept {
  if (float_bits(sum) == float_bits(1.0f)) return m;
  const split_float s = split(sum);
  return add_rn(m, fma_rn(log_fraction(s.fraction), log2e, static_cast<float>(s.exponent)));
}

/// m + ln(sum), sum >= 1. A sum of exactly 1 gives m back bit for bit.
HEADWISE_HD inline float add_log(float m, float sum) noexcept {
  if (float_bits(sum) == float_bits(1.0f)) return m;
  const split_float s = split(sum);
  return add_rn(m, fma_rn(static_cast<float>(s.exponent), ln2, log_fraction(s.fraction)));
}

/// 1 / x for normal x in [1, 2^100]: a quadratic that is off by at most 1/99, then three Newton
/// steps. Correctly rounded, but for x = 2^k * (2 - 2^-23), where it is the float below. A division
/// would do as well, were it not for -freciprocal-math.
HEADWISE_HD inline float reciprocal(float x) noexcept {
  const split_float s = split(x);
  const float z = s.fraction;
  float r = fma_rn(fma_rn(z, 0x1.d41724p-1f, -0x1.745d18p+1f), z, 0x1.7ffafcp+1f);
  for (int step = 0; step < 3; ++step) r = fma_rn(fma_rn(negated(z), r, 1.0f), r, r);
  return bit_cast<float>(float_bits(r) - (static_cast<std::uint32_t>(s.exponent) << 23));
}

}  // namespace headwise::inline v0::detail
