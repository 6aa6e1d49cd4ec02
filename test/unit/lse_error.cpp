// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The error bounds of docs/numerics.md, against float64 on the same partials. Prints the largest
// error seen of each bound's own unit beside the bound.

#include <headwise/lse/partial.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>

using namespace headwise;

namespace {

constexpr double unit = 0x1p-24;
constexpr int rows_per_size = 6000;

// Up to 16 numbers; a vector's allocations would be most of the time under sanitizers.
struct numbers {
  std::array<float, max_ranks> values{};
  std::size_t count = 0;

  void push_back(float value) { values[count++] = value; }
  std::size_t size() const { return count; }
  const float* begin() const { return values.data(); }
  const float* end() const { return values.data() + count; }
  float& operator[](std::size_t i) { return values[i]; }
  float operator[](std::size_t i) const { return values[i]; }
};

struct partials {
  numbers lses;
  numbers payload;
};

// What the payloads of one row look like. `levelled` ones undo their weights, so that a partial of
// tiny weight counts as much as the others do: there an error of the weight shows in full.
enum class kind { plain, positive, levelled, cancelling, count };

partials some_row(std::mt19937_64& random, int n, log_base base, kind what) {
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const float spread = std::exp2(static_cast<float>(random() % 8) - 1.0f);  // 0.5 to 64
  const float centre = 20.0f * uniform(random);
  partials row;
  for (int r = 0; r < n; ++r) row.lses.push_back(centre + spread * uniform(random) / 2);
  const float top = *std::max_element(row.lses.begin(), row.lses.end());
  for (int r = 0; r < n; ++r) {
    const float below = top - row.lses[static_cast<std::size_t>(r)];
    float value = uniform(random);
    if (what == kind::positive) value = 1.0f + std::fabs(value);
    if (what == kind::levelled) value *= base == log_base::e ? std::exp(below) : std::exp2(below);
    if (what == kind::cancelling) value = (r % 2 == 0 ? 1.0f : -1.0f) * (1.0f + 0x1p-6f * value);
    row.payload.push_back(value);
  }
  return row;
}

struct exact_row {
  double output = 0;
  double magnitude = 0;  // sum of w |o|
  double lse = 0;
};

exact_row in_float64(const partials& row, log_base base) {
  const auto power = [base](double x) { return base == log_base::e ? std::exp(x) : std::exp2(x); };
  const auto top = static_cast<double>(*std::max_element(row.lses.begin(), row.lses.end()));
  double sum = 0;
  exact_row exact;
  for (std::size_t r = 0; r < row.lses.size(); ++r) {
    const double weight = power(static_cast<double>(row.lses[r]) - top);
    sum += weight;
    exact.output += weight * static_cast<double>(row.payload[r]);
    exact.magnitude += weight * std::fabs(static_cast<double>(row.payload[r]));
  }
  exact.output /= sum;
  exact.magnitude /= sum;
  exact.lse = top + (base == log_base::e ? std::log(sum) : std::log2(sum));
  return exact;
}

template <log_base Base>
partial<Base> combined(const partials& row) {
  const std::size_t n = row.lses.size();
  lse<Base> lses[max_ranks];
  for (std::size_t r = 0; r < n; ++r) lses[r].value = row.lses[r];
  float weights[max_ranks];
  const lse<Base> merged = combine_weights<Base>(static_cast<int>(n), lses, weights);
  float sum = accumulator_start();
  for (std::size_t r = 0; r < n; ++r) sum = accumulate(sum, weights[r], row.payload[r]);
  return {finish(sum, merged), merged};
}

// The constants of docs/numerics.md.
double output_bound(int n) { return 2.0 * n + 4.0; }
double lse_bound(int n, log_base base) { return (base == log_base::e ? 1.0 : 1.5) * n + 4.0; }
double dropped(const partials& row) {
  double largest = 0;
  for (const float value : row.payload) {
    largest = std::max(largest, std::fabs(static_cast<double>(value)));
  }
  return 0x1p-110 * largest;
}

template <log_base Base>
void measure(const char* name) {
  std::mt19937_64 random(4);
  double worst_of_all = 0;
  for (int n = 1; n <= max_ranks; ++n) {
    double worst_output = 0;
    double worst_lse = 0;
    for (int i = 0; i < rows_per_size; ++i) {
      const auto what = static_cast<kind>(i % static_cast<int>(kind::count));
      const partials row = some_row(random, n, Base, what);
      const exact_row exact = in_float64(row, Base);
      const partial<Base> got = combined<Base>(row);
      const double error = std::fabs(static_cast<double>(got.output) - exact.output);
      worst_output = std::max(worst_output, (error - dropped(row)) / (unit * exact.magnitude));
      const double lse_error = std::fabs(static_cast<double>(got.lse.value) - exact.lse);
      worst_lse = std::max(worst_lse, lse_error / unit - std::fabs(exact.lse));
    }
    CHECK(worst_output <= output_bound(n));
    CHECK(worst_lse <= lse_bound(n, Base));
    worst_of_all = std::max(worst_of_all, worst_output);
    std::printf(
        "measured: base %-3s N = %2d: output %5.2f of %4.1f, lse %5.2f of %4.1f (* 2^-24)\n", name,
        n, worst_output, output_bound(n), std::max(worst_lse, 0.0), lse_bound(n, Base));
  }
  CHECK(worst_of_all > 1.0);  // else nothing was measured
}

// Through a 16-bit output: that bound, and half a unit of the output's last place.
template <class T>
double worst_rounded(double unit_of_output, double least_half_step) {
  std::mt19937_64 random(5);
  double worst = 0;
  for (int i = 0; i < 16 * rows_per_size; ++i) {
    const int n = 1 + static_cast<int>(random() % max_ranks);
    const partials row = some_row(random, n, log_base::e, kind::plain);
    const exact_row exact = in_float64(row, log_base::e);
    const float output = combined<log_base::e>(row).output;
    const auto got = static_cast<double>(to_float(from_float<T>(output)));
    const double allowed = std::max(unit_of_output * std::fabs(exact.output), least_half_step) +
                           output_bound(n) * unit * exact.magnitude + dropped(row);
    worst = std::max(worst, std::fabs(got - exact.output) / allowed);
  }
  return worst;
}

}  // namespace

TEST_CASE("error: base e, against float64 on the same partials, for 1 to 16 ranks") {
  measure<log_base::e>("e");
}

TEST_CASE("error: base two, against float64 on the same partials, for 1 to 16 ranks") {
  measure<log_base::two>("two");
}

TEST_CASE("error: a 16-bit output adds one rounding") {
  const double as_bf16 = worst_rounded<bf16>(0x1p-8, 0x1p-134);
  const double as_fp16 = worst_rounded<fp16>(0x1p-11, 0x1p-25);
  std::printf("measured: share of the bound: bf16 output %.4f, fp16 output %.4f\n", as_bf16,
              as_fp16);
  CHECK(as_bf16 <= 1.0);
  CHECK(as_bf16 > 0.5);
  CHECK(as_fp16 <= 1.0);
  CHECK(as_fp16 > 0.5);
}

TEST_CASE("error: the weight of a far rank is as exact as that of a near one") {
  // The rank at -80.3 holds a payload of e^80: it and its neighbour count alike. Without the exact
  // difference its weight alone would be off by up to 40 * 2^-24.
  double worst = 0;
  std::mt19937_64 random(6);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  for (int i = 0; i < 100000; ++i) {
    const float near = uniform(random);
    const float far = -78.0f + 2 * uniform(random);
    const partials row{{{near, far}, 2}, {{1.0f, std::exp(near - far)}, 2}};
    const exact_row exact = in_float64(row, log_base::e);
    const auto got = static_cast<double>(combined<log_base::e>(row).output);
    worst = std::max(worst, std::fabs(got - exact.output) / (unit * exact.magnitude));
  }
  std::printf("measured: far rank: %.2f of %.1f (* 2^-24)\n", worst, output_bound(2));
  CHECK(worst <= output_bound(2));
}

TEST_CASE("error: rows that come near the bound, so that no smaller one is true") {
  // Each later rank weighs a little less than half a unit of the first one's last place: it
  // vanishes from the sum of the weights and from the sum of the payloads, which have opposite
  // signs.
  for (int n = 2; n <= max_ranks; ++n) {
    partials row;
    row.lses.push_back(0.0f);
    row.payload.push_back(1.0f + 0x1p-20f);  // just below 1 floats lie closer
    for (int r = 1; r < n; ++r) {
      row.lses.push_back(std::log(0.99f * 0x1p-24f));
      row.payload.push_back(-1.0f);
    }
    const exact_row exact = in_float64(row, log_base::e);
    const auto got = static_cast<double>(combined<log_base::e>(row).output);
    const double error = std::fabs(got - exact.output) / (unit * exact.magnitude);
    if (n == max_ranks)
      std::printf("measured: near the bound: %.2f of %.1f\n", error, output_bound(n));
    CHECK(error > 1.9 * (n - 1));
    CHECK(error <= output_bound(n));
  }
}

TEST_CASE("error: of a sink, at most 6 * 2^-24 of the output more") {
  std::mt19937_64 random(8);
  std::uniform_real_distribution<float> uniform(-30.0f, 30.0f);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const int n = 1 + static_cast<int>(random() % max_ranks);
    const partials row = some_row(random, n, log_base::e, kind::positive);
    const partial<log_base::e> merged = combined<log_base::e>(row);
    const lse<log_base::e> sink{merged.lse.value + uniform(random)};
    const double exact =
        static_cast<double>(merged.output) /
        (1.0 + std::exp(static_cast<double>(sink.value) - static_cast<double>(merged.lse.value)));
    const auto got = static_cast<double>(apply_sink(merged.output, sink_factor(merged.lse, sink)));
    worst = std::max(worst, std::fabs(got - exact) / (unit * exact));
  }
  std::printf("measured: sink: %.2f of 6.0 (* 2^-24)\n", worst);
  CHECK(worst <= 6.0);
}

TEST_CASE("error: sharded against unsharded attention, partials in bf16") {
  // 64 keys over n ranks, in float64 but for what travels: a bf16 output and an fp32 LSE.
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    const int n = 1 + static_cast<int>(random() % max_ranks);
    const auto ranks = static_cast<std::size_t>(n);
    std::array<double, max_ranks> sum{};
    std::array<double, max_ranks> weighted{};
    for (std::size_t key = 0; key < 64; ++key) {
      const double weight = std::exp(3 * normal(random));
      sum[key % ranks] += weight;
      weighted[key % ranks] += weight * normal(random);
    }
    double all = 0;
    double total = 0;
    double magnitude = 0;
    double highest = 0;
    partials row;
    for (std::size_t r = 0; r < ranks; ++r) {
      all += sum[r];
      total += weighted[r];
      magnitude += std::fabs(weighted[r]);
      highest = std::max(highest, std::fabs(std::log(sum[r])));
      row.lses.push_back(static_cast<float>(std::log(sum[r])));
      row.payload.push_back(to_float(from_float<bf16>(static_cast<float>(weighted[r] / sum[r]))));
    }
    const double exact = total / all;
    magnitude /= all;
    const float output = combined<log_base::e>(row).output;
    const auto got = static_cast<double>(to_float(from_float<bf16>(output)));
    constexpr double u_bf16 = 0x1p-8;
    const double partial_share = u_bf16 + (output_bound(n) + 2 * highest) * unit;
    const double allowed = u_bf16 * std::fabs(exact) + 1.01 * partial_share * magnitude;
    worst = std::max(worst, std::fabs(got - exact) / allowed);
  }
  std::printf("measured: share of the bound against unsharded attention: %.4f\n", worst);
  CHECK(worst <= 1.0);
  CHECK(worst > 0.25);
}
