// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/lse/partial.hpp>

// A fixed set of rows to combine, and what the combine makes of them, as bits. The inputs are made
// of integers only, so that no compiler flag can change them; the same code runs in a kernel.

namespace bits {

using namespace headwise;

inline constexpr int rows = 1 << 16;

/// What one row comes to. `ordinary` holds everything whose bits must never differ; `subnormal`
/// what came of a payload so small that products with it are subnormal, which a process that
/// flushes subnormals to zero (-ffast-math arranges for that when it links a program) computes
/// otherwise.
struct row_bits {
  std::uint64_t ordinary;
  std::uint64_t subnormal;
};

class numbers {
 public:
  HEADWISE_HD explicit numbers(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u) {}

  HEADWISE_HD std::uint32_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::uint32_t>((z ^ (z >> 31)) >> 32);
  }
  HEADWISE_HD std::uint32_t below(std::uint32_t bound) { return next() % bound; }

  /// Any sign and mantissa, an exponent of low to high.
  HEADWISE_HD float scaled(int low, int high) {
    const int exponent = low + static_cast<int>(below(static_cast<std::uint32_t>(high - low + 1)));
    const std::uint32_t mantissa = next();
    return detail::bit_cast<float>((mantissa & 0x807fffffu) |
                                   (static_cast<std::uint32_t>(exponent + 127) << 23));
  }

 private:
  std::uint64_t state_;
};

HEADWISE_HD inline void mix_bits(std::uint64_t& hash, std::uint32_t word) {
  hash = (hash ^ word) * 0x100000001b3u;  // FNV-1a, a word at a time
}
HEADWISE_HD inline void mix(std::uint64_t& hash, float value) {
  mix_bits(hash, detail::float_bits(value));
}

HEADWISE_HD inline bool below_1e29th(float value) {
  return (detail::float_bits(value) & 0x7fffffffu) < 0x10000000u;
}

HEADWISE_HD inline float some_lse(numbers& random, std::uint32_t kind) {
  if (random.below(8) == 0) {
    constexpr std::uint32_t special[8] = {0xff800000u, 0x7f800000u, 0x7fc00000u, 0xffc12345u,
                                          0x80000000u, 0x00000000u, 0x00000001u, 0xf149f2cau};
    return detail::bit_cast<float>(special[random.below(8)]);  // the last is -1e30
  }
  switch (kind) {
    case 0: {  // -16 to 16 in steps of 2^-16
      const int steps = static_cast<int>(random.below(1u << 21)) - (1 << 20);
      return detail::mul_rn(static_cast<float>(steps), 0x1p-16f);
    }
    case 1: return random.scaled(-3, 6);  // up to 127
    case 2: return random.scaled(-126, 127);
    default: return detail::bit_cast<float>(0x41200000u + random.below(3));  // 10 and neighbours
  }
}

template <log_base Base, class Policy>
HEADWISE_HD row_bits combine_row(numbers& random, const Policy& policy) {
  const int n = 1 + static_cast<int>(random.below(max_ranks));
  const std::uint32_t kind = random.below(4);
  lse<Base> lses[max_ranks];
  float weights[max_ranks];
  for (int r = 0; r < n; ++r) lses[r].value = some_lse(random, kind);
  const lse<Base> merged = combine_weights<Base>(n, lses, weights, policy);

  row_bits result{0xcbf29ce484222325u, 0xcbf29ce484222325u};
  mix(result.ordinary, merged.value);
  for (int r = 0; r < n; ++r) mix(result.ordinary, weights[r]);

  float sum = accumulator_start();
  float tiny = accumulator_start();
  for (int r = 0; r < n; ++r) {
    float value = random.scaled(-10, 10);
    if (detail::float_bits(weights[r]) == 0 && random.below(2) == 0)
      value = detail::canonical_nan();
    sum = accumulate(sum, weights[r], value);
    tiny = accumulate(tiny, weights[r], random.scaled(-126, -120));
  }
  const float output = finish(sum, merged);
  mix(result.ordinary, output);
  mix_bits(result.ordinary, from_float<bf16>(output).bits);
  mix_bits(result.ordinary, from_float<fp16>(output).bits);
  mix(result.subnormal, finish(tiny, merged));

  const float factor = sink_factor(merged, lse<Base>{some_lse(random, kind)});
  mix(result.ordinary, factor);
  mix(below_1e29th(factor) ? result.subnormal : result.ordinary, apply_sink(output, factor));

  constexpr log_base other = Base == log_base::e ? log_base::two : log_base::e;
  const float converted = to_base<other>(lses[0]).value;
  mix(below_1e29th(lses[0].value) ? result.subnormal : result.ordinary,
      detail::is_nan(converted) ? detail::canonical_nan() : converted);
  return result;
}

HEADWISE_HD inline row_bits row(int index) {
  numbers random(static_cast<std::uint64_t>(index) + 1);
  switch (random.below(5)) {
    case 0: return combine_row<log_base::e>(random, nan_policy::empty{});
    case 1: return combine_row<log_base::two>(random, nan_policy::empty{});
    case 2: return combine_row<log_base::e>(random, nan_policy::propagate{});
    case 3: return combine_row<log_base::two>(random, sentinel{});
    default: return combine_row<log_base::e>(random, sentinel{});
  }
}

/// Both words over all rows, in order.
inline row_bits digest(const row_bits* all) {
  row_bits sum{0, 0};
  for (int index = 0; index < rows; ++index) {
    sum.ordinary = sum.ordinary * 31 + all[index].ordinary;
    sum.subnormal = sum.subnormal * 31 + all[index].subnormal;
  }
  return sum;
}

}  // namespace bits
