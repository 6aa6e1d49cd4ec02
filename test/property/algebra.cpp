// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Laws of the algebra on random partials. Over the reals (output, lse) pairs are a commutative
// monoid; the comments say what of that holds bit for bit, and what within the error bound.

#include <headwise/lse/partial.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>

using namespace headwise;

namespace {

constexpr int iterations = 100000;
constexpr double unit = 0x1p-24;

struct random_source {
  explicit random_source(const char* law) {
    const char* given = std::getenv("HEADWISE_SEED");
    seed = given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
    engine.seed(seed);
    std::printf("property: %s, seed %llu, %d iterations\n", law, seed, iterations);
  }

  std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>((engine() >> 32) * bound >> 32);
  }
  float between(float low, float high) {
    return low + (high - low) * static_cast<float>(below(1u << 24)) * 0x1p-24f;
  }
  float any_bits() { return std::bit_cast<float>(static_cast<std::uint32_t>(engine() >> 32)); }

  float empty_value() {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    switch (below(3)) {
      case 0: return -infinity;
      case 1: return infinity;
      default: return std::bit_cast<float>(0x7f800001u + below(0x7ffffe));
    }
  }
  float some_lse() { return between(-1, 1) * static_cast<float>(1u << below(8)); }

  unsigned long long seed = 0;
  std::mt19937_64 engine;
};

struct shards {
  static constexpr std::size_t room = 2 * max_ranks;
  std::array<float, room> lses{};
  std::array<float, room> payload{};
  std::size_t count = 0;

  void add(float lse, float value) {
    lses[count] = lse;
    payload[count++] = value;
  }
  std::size_t size() const { return count; }
  float highest_lse() const {
    return *std::max_element(lses.begin(), lses.begin() + signed_size());
  }
  std::ptrdiff_t signed_size() const { return static_cast<std::ptrdiff_t>(count); }
};

shards some_shards(random_source& random, std::uint32_t most) {
  shards all;
  const std::uint32_t n = 1 + random.below(most);
  for (std::uint32_t r = 0; r < n; ++r) all.add(random.some_lse(), random.between(-2, 2));
  return all;
}

template <log_base Base>
partial<Base> combined(const shards& all, float* weights) {
  lse<Base> lses[max_ranks];
  for (std::size_t r = 0; r < all.size(); ++r) lses[r].value = all.lses[r];
  const lse<Base> merged = combine_weights<Base>(static_cast<int>(all.size()), lses, weights);
  float sum = accumulator_start();
  for (std::size_t r = 0; r < all.size(); ++r) sum = accumulate(sum, weights[r], all.payload[r]);
  return {finish(sum, merged), merged};
}
template <log_base Base>
partial<Base> combined(const shards& all) {
  float weights[max_ranks];
  return combined<Base>(all, weights);
}

template <log_base Base>
bool same_bits(const partial<Base>& a, const partial<Base>& b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

struct exact_row {
  double output = 0;
  double magnitude = 0;  // sum of w |o|
  double lse = 0;
  double highest = 0;  // of |lse|
};

exact_row in_float64(const shards& all) {
  const auto top = static_cast<double>(all.highest_lse());
  exact_row exact;
  double sum = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const double weight = std::exp(static_cast<double>(all.lses[r]) - top);
    sum += weight;
    exact.output += weight * static_cast<double>(all.payload[r]);
    exact.magnitude += weight * std::fabs(static_cast<double>(all.payload[r]));
    exact.highest = std::max(exact.highest, std::fabs(static_cast<double>(all.lses[r])));
  }
  exact.output /= sum;
  exact.magnitude /= sum;
  exact.lse = top + std::log(sum);
  exact.highest = std::max(exact.highest, std::fabs(exact.lse));
  return exact;
}

double output_bound(std::size_t n) { return (2.0 * static_cast<double>(n) + 4.0) * unit; }
double lse_bound(std::size_t n) { return (static_cast<double>(n) + 4.0) * unit; }
// Weights below 2^-115 are zero; payloads here are at most 2.
constexpr double dropped = 0x1p-109;

template <log_base Base>
void empty_partials_change_no_bit(const char* law) {
  random_source random(law);
  int wrong = 0;
  for (int i = 0; i < iterations; ++i) {
    const shards live = some_shards(random, 6);
    shards padded;
    for (std::size_t r = 0; r < live.size(); ++r) {
      for (std::uint32_t k = random.below(3); k > 0; --k) {
        padded.add(random.empty_value(), random.any_bits());
      }
      padded.add(live.lses[r], live.payload[r]);
    }
    while (padded.size() < max_ranks && random.below(2) == 0) {
      padded.add(random.empty_value(), random.any_bits());
    }
    if (padded.size() > max_ranks) continue;
    wrong += !same_bits(combined<Base>(live), combined<Base>(padded));
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("property: the empty partial is an exact identity, anywhere and whatever it holds") {
  empty_partials_change_no_bit<log_base::e>("identity, base e");
  empty_partials_change_no_bit<log_base::two>("identity, base two");
}

TEST_CASE("property: two partials commute: LSE and weights bit for bit, outputs within the bound") {
  random_source random("commutativity");
  int wrong = 0;
  int outputs_differ = 0;
  for (int i = 0; i < iterations; ++i) {
    shards forward;
    forward.add(random.some_lse(), random.between(-2, 2));
    forward.add(random.some_lse(), random.between(-2, 2));
    shards backward;
    backward.add(forward.lses[1], forward.payload[1]);
    backward.add(forward.lses[0], forward.payload[0]);
    float weights[2];
    float swapped[2];
    const partial<log_base::e> a = combined<log_base::e>(forward, weights);
    const partial<log_base::e> b = combined<log_base::e>(backward, swapped);
    wrong += detail::float_bits(a.lse.value) != detail::float_bits(b.lse.value);
    wrong += detail::float_bits(weights[0]) != detail::float_bits(swapped[1]);
    wrong += detail::float_bits(weights[1]) != detail::float_bits(swapped[0]);
    // The weights are the same, so only the two roundings of the sum can differ.
    const double difference = static_cast<double>(a.output) - static_cast<double>(b.output);
    wrong += std::fabs(difference) > 4 * unit * in_float64(forward).magnitude + dropped;
    outputs_differ += a.output != b.output;
  }
  CHECK(wrong == 0);
  CHECK(outputs_differ > 0);  // which is why the order of ranks is part of the contract
}

TEST_CASE("property: any order of the ranks is within the bound") {
  random_source random("order");
  int wrong = 0;
  for (int i = 0; i < iterations; ++i) {
    const shards all = some_shards(random, max_ranks);
    std::array<std::size_t, max_ranks> order{};
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.begin() + all.signed_size(), random.engine);
    shards shuffled;
    for (std::size_t r = 0; r < all.size(); ++r) {
      shuffled.add(all.lses[order[r]], all.payload[order[r]]);
    }
    const exact_row exact = in_float64(all);
    const partial<log_base::e> got = combined<log_base::e>(shuffled);
    wrong += std::fabs(static_cast<double>(got.output) - exact.output) >
             output_bound(all.size()) * exact.magnitude + dropped;
    wrong += std::fabs(static_cast<double>(got.lse.value) - exact.lse) >
             unit * std::fabs(exact.lse) + lse_bound(all.size());
  }
  CHECK(wrong == 0);
}

TEST_CASE("property: grouping is associative within the bounds of its steps") {
  random_source random("associativity");
  int wrong = 0;
  double worst = 0;
  for (int i = 0; i < iterations; ++i) {
    shards all;
    for (int r = 0; r < 3; ++r) all.add(random.some_lse(), random.between(-2, 2));
    using pair = partial<log_base::e>;
    const pair a{all.payload[0], {all.lses[0]}};
    const pair b{all.payload[1], {all.lses[1]}};
    const pair c{all.payload[2], {all.lses[2]}};
    const exact_row exact = in_float64(all);
    // Two combines of two; the inner one's LSE is off by so much, and so is its weight, which moves
    // the result by at most twice that share of sum w |o|.
    const double inner_lse = 2 * (unit * exact.highest + lse_bound(2));
    const double allowed = (2 * output_bound(2) + 1.01 * inner_lse) * exact.magnitude + 2 * dropped;
    for (const pair& got : {combine(combine(a, b), c), combine(a, combine(b, c))}) {
      const double error = std::fabs(static_cast<double>(got.output) - exact.output);
      worst = std::max(worst, error / allowed);
      wrong += error > allowed;
      wrong += std::fabs(static_cast<double>(got.lse.value) - exact.lse) >
               2 * (unit * exact.highest + lse_bound(2));
    }
  }
  std::printf("measured: associativity: %.3f of the bound\n", worst);
  CHECK(wrong == 0);
}

TEST_CASE("property: weights are a partition of one, and the output lies among the payloads") {
  random_source random("convexity");
  int wrong = 0;
  for (int i = 0; i < iterations; ++i) {
    const shards all = some_shards(random, max_ranks);
    float weights[max_ranks];
    const partial<log_base::two> got = combined<log_base::two>(all, weights);
    double sum = 0;
    for (std::size_t r = 0; r < all.size(); ++r) {
      wrong += !(weights[r] >= 0.0f && weights[r] <= 1.0f);
      wrong += weights[r] != 0.0f && weights[r] < 0x1p-126f;  // never subnormal
      sum += static_cast<double>(weights[r]);
    }
    const double slack = output_bound(all.size());
    wrong += std::fabs(sum - 1.0) > slack;
    const auto [low, high] =
        std::minmax_element(all.payload.begin(), all.payload.begin() + all.signed_size());
    wrong += static_cast<double>(got.output) < static_cast<double>(*low) - 2 * slack;
    wrong += static_cast<double>(got.output) > static_cast<double>(*high) + 2 * slack;
    // The merged LSE is at least the largest, and at most log2(n) above it.
    const float top = all.highest_lse();
    wrong += got.lse.value < top;
    wrong += static_cast<double>(got.lse.value) >
             static_cast<double>(top) + std::log2(static_cast<double>(all.size())) +
                 unit * (8 * std::fabs(static_cast<double>(top)) + 32);
  }
  CHECK(wrong == 0);
}

TEST_CASE("property: a shift of all base-2 LSEs by an integer changes no weight") {
  random_source random("shift");
  int wrong = 0;
  for (int i = 0; i < iterations; ++i) {
    // Multiples of 2^-10 below 2^11 and their shifts are exact floats.
    shards all;
    const std::uint32_t n = 1 + random.below(max_ranks);
    for (std::uint32_t r = 0; r < n; ++r) {
      all.add(static_cast<float>(random.below(1u << 15)) * 0x1p-10f - 16.0f, 1.0f);
    }
    shards shifted = all;
    const float shift = static_cast<float>(random.below(2048)) - 1024.0f;
    for (float& l : shifted.lses) l += shift;
    float before[max_ranks];
    float after[max_ranks];
    combined<log_base::two>(all, before);
    combined<log_base::two>(shifted, after);
    for (std::uint32_t r = 0; r < n; ++r) {
      wrong += detail::float_bits(before[r]) != detail::float_bits(after[r]);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("property: both bases tell the same story") {
  random_source random("bases");
  int wrong = 0;
  for (int i = 0; i < iterations; ++i) {
    const shards natural = some_shards(random, 4);
    shards binary = natural;
    for (float& l : binary.lses) l = to_base<log_base::two>(lse<log_base::e>{l}).value;
    const partial<log_base::e> a = combined<log_base::e>(natural);
    const partial<log_base::two> b = combined<log_base::two>(binary);
    const exact_row exact = in_float64(natural);
    // Converting rounds each LSE by a unit of its last place, and so each weight.
    const double rounding = 2.1 * unit * exact.highest;
    wrong += std::fabs(static_cast<double>(a.output) - static_cast<double>(b.output)) >
             (2 * output_bound(natural.size()) + rounding) * exact.magnitude + 2 * dropped;
    const float back = to_base<log_base::e>(b.lse).value;
    wrong += std::fabs(static_cast<double>(back) - static_cast<double>(a.lse.value)) >
             5 * unit * exact.highest + 3 * lse_bound(natural.size());
  }
  CHECK(wrong == 0);
}
