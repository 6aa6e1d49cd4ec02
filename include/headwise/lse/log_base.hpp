// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>
#include <headwise/core/element.hpp>
#include <headwise/core/math.hpp>

#include <type_traits>

namespace headwise::inline v0 {

/// The base of the logarithm that a producer's LSE is in. docs/numerics.md has a table of
/// producers.
enum class log_base : std::uint8_t { e, two };

constexpr const char* to_string(log_base base) noexcept {
  return base == log_base::e ? "e" : "two";
}

/// A log-sum-exp: log_Base of the sum of Base^logit over the keys that a rank attended to. The base
/// is part of the type, so that a base-2 LSE cannot be merged as if it were a natural one. Views of
/// `lse<Base>` may be laid over fp32 memory; always 4 bytes.
template <log_base Base>
struct lse {
  static constexpr log_base base = Base;
  float value;
};

/// lse<Base> binds wherever an fp32 element does.
template <log_base Base>
struct element_traits<lse<Base>> {
  static constexpr element_kind kind = element_kind::f32;
};

/// Whether T is lse<log_base::e> or lse<log_base::two>.
template <class T>
inline constexpr bool is_lse = false;
template <log_base Base>
inline constexpr bool is_lse<lse<Base>> = true;

/// The LSE "no keys": log(0).
template <log_base Base>
HEADWISE_HD constexpr lse<Base> empty_lse() noexcept {
  return {-detail::infinity()};
}

/// The same LSE in the other base, off by at most 0.51 units in the last place. Infinities and NaN
/// survive, and a finite value stays finite (the largest float at most), since an infinity would
/// mean "no keys". Apply a `sentinel` policy before, not after: the conversion scales it too.
///
///     const lse<log_base::e> natural = to_base<log_base::e>(lse<log_base::two>{raw});
template <log_base To, log_base From>
HEADWISE_HD inline lse<To> to_base(lse<From> from) noexcept {
  static_assert(
      To != From,
      "headwise: to_base: this LSE is in that base already; converting it would scale it twice");
  if (!detail::is_finite(from.value)) return {from.value};
  constexpr float factor = To == log_base::two ? detail::log2e : detail::ln2;
  constexpr float rest = To == log_base::two ? detail::log2e_rest : detail::ln2_rest;
  const float value = detail::fma_rn(from.value, factor, detail::mul_rn(from.value, rest));
  if (detail::is_finite(value)) return {value};
  constexpr std::uint32_t largest = 0x7f7fffffu;
  return {detail::bit_cast<float>((detail::float_bits(value) & 0x80000000u) | largest)};
}

/// An LSE as a producer stores it (fp32, fp16 or bf16, or a typed lse), as a number. A 16-bit LSE
/// is converted, not reinterpreted; an fp32 LSE keeps its bits.
template <log_base Base, class T>
HEADWISE_HD constexpr lse<Base> load_lse(const T& element) noexcept {
  if constexpr (is_lse<T>) {
    static_assert(T::base == Base,
                  "headwise: load_lse: this LSE is in the other base; convert it with to_base");
    return element;
  } else {
    static_assert(is_reducible<T>, "headwise: load_lse: an LSE is stored as fp32, fp16 or bf16");
    return {to_float(element)};
  }
}

}  // namespace headwise::inline v0
