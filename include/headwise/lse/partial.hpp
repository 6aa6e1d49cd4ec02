// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>
#include <headwise/core/element.hpp>
#include <headwise/core/math.hpp>
#include <headwise/lse/log_base.hpp>

#include <type_traits>

// The algebra of partial attention results, and its one arithmetic. Everything that puts partial
// results together, on the host or in a kernel, does it with these steps:
//
//     float weights[N];
//     const lse<B> merged = combine_weights<B>(N, lses, weights, policy);
//     for each column d:
//       float sum = accumulator_start();
//       for each rank r in order: sum = accumulate(sum, weights[r], partial[r][d]);
//       out[d] = from_float<T>(finish(sum, merged));
//
// Over the reals pairs (output, lse) are a commutative monoid with identity (0, -inf). In floating
// point the identity is exact and the order is fixed: rank 0 first. docs/numerics.md states the
// error and derives it.

namespace headwise::inline v0 {

/// What an LSE that is no number means. A policy answers two questions about an LSE's value.
namespace nan_policy {

/// NaN, +inf and -inf all say "this rank has no keys". The default: producers disagree on which of
/// them an empty row gets.
struct empty {
  HEADWISE_HD constexpr bool is_empty(float value) const noexcept {
    return !detail::is_finite(value);
  }
  HEADWISE_HD constexpr bool is_poison(float) const noexcept { return false; }
};

/// A NaN LSE makes the whole row NaN, output and merged LSE, so that a broken producer is seen.
/// Infinities still say "no keys".
struct propagate {
  HEADWISE_HD constexpr bool is_empty(float value) const noexcept {
    return !detail::is_finite(value) && !detail::is_nan(value);
  }
  HEADWISE_HD constexpr bool is_poison(float value) const noexcept { return detail::is_nan(value); }
};

}  // namespace nan_policy

/// For producers that write a large negative number where others write -inf: values at or below the
/// threshold, which is in the base of the LSE, are empty too. Else as nan_policy::empty.
struct sentinel {
  float threshold = -1e29f;

  HEADWISE_HD constexpr bool is_empty(float value) const noexcept {
    return !detail::is_finite(value) ||
           detail::ordered_bits(value) <= detail::ordered_bits(threshold);
  }
  HEADWISE_HD constexpr bool is_poison(float) const noexcept { return false; }
};

/// Whether this LSE says "no keys".
template <log_base Base, class Policy = nan_policy::empty>
HEADWISE_HD constexpr bool is_empty(lse<Base> value, const Policy& policy = {}) noexcept {
  return policy.is_empty(value.value);
}

/// The LSE of a row of which the caller knows how many keys its rank held. With none it is empty
/// whatever the producer wrote there: some leave a finite value.
template <log_base Base>
HEADWISE_HD constexpr lse<Base> mask_lse(lse<Base> value, index_t valid_keys) noexcept {
  return valid_keys > 0 ? value : empty_lse<Base>();
}

namespace detail {

template <log_base Base>
HEADWISE_HD inline float unnormalised_weight(float l, float m) noexcept {
  if constexpr (Base == log_base::two) {
    return exp2_of_difference(l, m);
  } else {
    return exp_of_difference(l, m);
  }
}

/// The weight of an LSE before it is divided by the sum of all; `m` is the largest that is not
/// empty.
template <log_base Base, class Policy>
HEADWISE_HD inline float weight_below(float l, float m, const Policy& policy) noexcept {
  // Without a branch: kernels compute several side by side. An empty LSE is kept out of arithmetic
  // that would raise FE_INVALID.
  const bool empty = policy.is_empty(l);
  const float weight = unnormalised_weight<Base>(empty ? m : l, m);
  return empty ? 0.0f : weight;
}

/// The LSE of all keys from the largest one and the sum of the weights below it.
template <log_base Base>
HEADWISE_HD inline lse<Base> merged_lse(float m, float sum) noexcept {
  if constexpr (Base == log_base::two) {
    return {add_log2(m, sum)};
  } else {
    return {add_log(m, sum)};
  }
}

}  // namespace detail

/// Turns the LSEs of n partials into the weights of their payloads and returns the merged LSE.
///
/// `lses[r]` yields lse<Base> and is read twice; `weights[r]` yields float& and is written. A
/// weight is base^(lse_r - max), divided (as a product with the rounded reciprocal) by the sum over
/// ranks in order. It is exactly 0 for an empty partial and exactly 1 for the only live one, whose
/// LSE comes back unchanged. All empty: every weight 0, merged LSE -inf. Poisoned: all NaN.
///
/// The error bound of docs/numerics.md is stated for n up to max_ranks; nothing underflows up to
/// 1,024.
template <log_base Base, class Lses, class Weights, class Policy = nan_policy::empty>
HEADWISE_HD inline lse<Base> combine_weights(int n, const Lses& lses, Weights&& weights,
                                             const Policy& policy = {}) noexcept {
  static_assert(
      std::is_same_v<std::remove_cvref_t<decltype(lses[0])>, lse<Base>>,
      "headwise: combine_weights: lses[r] must be an lse of this base; give a bare float its base "
      "with lse<log_base::e>{x} or lse<log_base::two>{x}, change a base with to_base");
  const std::size_t count = n > 0 ? static_cast<std::size_t>(n) : 0;
  lse<Base> merged = empty_lse<Base>();
  bool poisoned = false;
  for (std::size_t r = 0; r < count; ++r) {
    const float l = lses[r].value;
    poisoned = poisoned || policy.is_poison(l);
    if (policy.is_empty(l)) continue;
    if (detail::ordered_bits(l) > detail::ordered_bits(merged.value)) merged.value = l;
  }
  if (poisoned || !detail::is_finite(merged.value)) {
    const float weight = poisoned ? detail::canonical_nan() : 0.0f;
    for (std::size_t r = 0; r < count; ++r) weights[r] = weight;
    return poisoned ? lse<Base>{weight} : merged;
  }

  float sum = 0.0f;
  for (std::size_t r = 0; r < count; ++r) {
    const float weight = detail::weight_below<Base>(lses[r].value, merged.value, policy);
    weights[r] = weight;
    sum = detail::add_rn(sum, weight);
  }
  const float scale = detail::reciprocal(sum);
  for (std::size_t r = 0; r < count; ++r) weights[r] = detail::mul_rn(weights[r], scale);

  return detail::merged_lse<Base>(merged.value, sum);
}

/// What a weighted sum starts from: -0, the one value that adds nothing, not even to -0.
HEADWISE_HD constexpr float accumulator_start() noexcept { return -0.0f; }

/// sum + weight * value, rounded once. A weight of zero selects the payload out: an empty rank may
/// never have written it, and 0 * NaN must not reach the result.
HEADWISE_HD inline float accumulate(float sum, float weight, float value) noexcept {
  return detail::float_bits(weight) == 0 ? sum : detail::fma_rn(weight, value, sum);
}

/// The output of a row from its weighted sum: exactly +0 if no rank had keys, the one canonical NaN
/// if the row is NaN or poisoned.
template <log_base Base>
HEADWISE_HD constexpr float finish(float sum, lse<Base> merged) noexcept {
  if (detail::is_nan(merged.value)) return detail::canonical_nan();
  if (!detail::is_finite(merged.value)) return 0.0f;
  return detail::is_nan(sum) ? detail::canonical_nan() : sum;
}

/// What an attention sink leaves of a merged output: 1 / (1 + base^(sink - lse)). The sink is the
/// logit of one more key, without a value, in the base of the LSE. It is applied once, after the
/// merge, and the LSE that is handed on stays without it. A sink of +inf or an empty row gives 0, a
/// sink of -inf exactly 1; a NaN in either gives NaN.
template <log_base Base>
HEADWISE_HD inline float sink_factor(lse<Base> merged, lse<Base> sink) noexcept {
  if (detail::is_nan(merged.value) || detail::is_nan(sink.value)) return detail::canonical_nan();
  if (!detail::is_finite(merged.value)) return 0.0f;
  if (!detail::is_finite(sink.value)) {
    return detail::ordered_bits(sink.value) < 0 ? 1.0f : 0.0f;
  }
  if (detail::ordered_bits(sink.value) <= detail::ordered_bits(merged.value)) {
    const float odds = detail::unnormalised_weight<Base>(sink.value, merged.value);
    return detail::reciprocal(detail::add_rn(1.0f, odds));
  }
  const float odds = detail::unnormalised_weight<Base>(merged.value, sink.value);
  return detail::mul_rn(odds, detail::reciprocal(detail::add_rn(1.0f, odds)));
}

/// The finished fp32 output under a sink, still to be rounded to the output type.
HEADWISE_HD inline float apply_sink(float output, float factor) noexcept {
  if (detail::float_bits(factor) == 0) return 0.0f;
  const float scaled = detail::mul_rn(output, factor);
  return detail::is_nan(scaled) ? detail::canonical_nan() : scaled;
}

/// One column of a partial result, for host code and tests. Default-constructed it is the identity.
template <log_base Base>
struct partial {
  float output = 0.0f;
  headwise::lse<Base> lse = empty_lse<Base>();
};

/// Two partials as one, `first` being the lower rank.
template <log_base Base, class Policy = nan_policy::empty>
HEADWISE_HD inline partial<Base> combine(partial<Base> first, partial<Base> second,
                                         const Policy& policy = {}) noexcept {
  const lse<Base> lses[2] = {first.lse, second.lse};
  float weights[2];
  const lse<Base> merged = combine_weights<Base>(2, lses, weights, policy);
  float sum = accumulate(accumulator_start(), weights[0], first.output);
  sum = accumulate(sum, weights[1], second.output);
  return {finish(sum, merged), merged};
}

}  // namespace headwise::inline v0
