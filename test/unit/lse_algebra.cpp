// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/lse/partial.hpp>

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

using namespace headwise;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
const float a_nan = std::nanf("");
constexpr float poison = 12345.0f;  // what outputs hold before they are written

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
bool is_positive_zero(float value) { return bits_of(value) == 0; }

struct row {
  float output = poison;
  float lse = poison;
};

// The form of an all-to-all: one rank has every payload and adds them up.
template <log_base Base = log_base::e, class Policy = nan_policy::empty>
row gathered(const std::vector<float>& lses, const std::vector<float>& payload,
             const Policy& policy = {}) {
  const int n = static_cast<int>(lses.size());
  std::vector<lse<Base>> typed;
  for (const float l : lses) typed.push_back({l});
  std::vector<float> weights(lses.size(), poison);
  const lse<Base> merged = combine_weights<Base>(n, typed, weights, policy);
  float sum = accumulator_start();
  for (std::size_t r = 0; r < lses.size(); ++r) sum = accumulate(sum, weights[r], payload[r]);
  return {finish(sum, merged), merged.value};
}

// The form of a reduce-scatter: each rank weighs its own payload, then plain numbers are summed.
template <log_base Base = log_base::e, class Policy = nan_policy::empty>
row weighed_then_summed(const std::vector<float>& lses, const std::vector<float>& payload,
                        const Policy& policy = {}) {
  const int n = static_cast<int>(lses.size());
  std::vector<lse<Base>> typed;
  for (const float l : lses) typed.push_back({l});
  std::vector<float> weighed;
  lse<Base> merged{};
  for (std::size_t rank = 0; rank < lses.size(); ++rank) {
    std::vector<float> weights(lses.size(), poison);
    merged = combine_weights<Base>(n, typed, weights, policy);  // on every rank the same
    weighed.push_back(accumulate(accumulator_start(), weights[rank], payload[rank]));
  }
  float sum = accumulator_start();
  for (const float one : weighed) sum += one;
  return {finish(sum, merged), merged.value};
}

void check_row(const row& got, float output, float lse, double tolerance = 1e-6) {
  CHECK(std::fabs(got.output - output) <= tolerance * std::fabs(output));
  CHECK(std::fabs(got.lse - lse) <= tolerance * (1 + std::fabs(lse)));
}

}  // namespace

TEST_CASE("C01: a base-2 LSE merges in its own base, and converts to the natural one") {
  const std::vector<float> base_two = {0.0f, 1.584963f};
  const std::vector<float> payload = {1.0f, 5.0f};

  const row merged = gathered<log_base::two>(base_two, payload);
  check_row(merged, 4.0f, 2.0f);
  const lse<log_base::e> natural = to_base<log_base::e>(lse<log_base::two>{merged.lse});
  CHECK(natural.value == doctest::Approx(1.386294).epsilon(1e-6));

  // Converted first, the same; taken for natural, what the reports saw.
  std::vector<float> converted;
  for (const float l : base_two) {
    converted.push_back(to_base<log_base::e>(lse<log_base::two>{l}).value);
  }
  check_row(gathered(converted, payload), 4.0f, 1.386294f);
  check_row(gathered(base_two, payload), 4.319625f, 1.771405f);
}

TEST_CASE("C01: partition sums of 2 and 8 weigh outputs 0 and 1 to 0.8 in both bases") {
  const std::vector<float> payload = {0.0f, 1.0f};
  check_row(gathered<log_base::two>({1.0f, 3.0f}, payload), 0.8f, 3.321928f);
  check_row(gathered({0.6931472f, 2.0794415f}, payload), 0.8f, 2.302585f);
  check_row(gathered<log_base::two>({0.6931472f, 2.0794415f}, payload), 0.7233f, 2.5475f, 1e-3);
  check_row(gathered({1.0f, 3.0f}, payload), 0.8808f, 3.1269f, 1e-4);
}

TEST_CASE("C04: all partials empty give exactly (0, -inf), for any number of ranks") {
  for (std::size_t ranks = 1; ranks <= 16; ++ranks) {
    const std::vector<float> lses(ranks, -infinity);
    for (const float payload : {0.0f, 7.0f, a_nan, infinity}) {
      const std::vector<float> values(ranks, payload);
      for (const row& got : {gathered(lses, values), weighed_then_summed(lses, values),
                             gathered<log_base::two>(lses, values)}) {
        CHECK(is_positive_zero(got.output));
        CHECK(got.lse == -infinity);
      }
    }
  }
}

TEST_CASE("C04: two empty partials merge in place to the empty one, column by column in fp16") {
  std::array<fp16, 64> output{};
  lse<log_base::e> output_lse = empty_lse<log_base::e>();
  const std::array<fp16, 64> other{};
  const lse<log_base::e> lses[2] = {output_lse, empty_lse<log_base::e>()};
  float weights[2] = {poison, poison};
  output_lse = combine_weights<log_base::e>(2, lses, weights);
  for (std::size_t d = 0; d < output.size(); ++d) {
    float sum = accumulate(accumulator_start(), weights[0], to_float(output[d]));
    sum = accumulate(sum, weights[1], to_float(other[d]));
    output[d] = from_float<fp16>(finish(sum, output_lse));
  }
  for (const fp16 value : output) CHECK(value.bits == 0);
  CHECK(output_lse.value == -infinity);
}

TEST_CASE("C04: one finite LSE among empty ones gives its own partial back") {
  for (std::size_t ranks = 1; ranks <= 8; ++ranks) {
    for (std::size_t live = 0; live < ranks; ++live) {
      std::vector<float> lses(ranks, -infinity);
      std::vector<float> payload(ranks, a_nan);
      lses[live] = -3.7f;
      payload[live] = 0.1f;
      const row got = gathered(lses, payload);
      CHECK(bits_of(got.output) == bits_of(0.1f));
      CHECK(bits_of(got.lse) == bits_of(-3.7f));
    }
  }
}

TEST_CASE("C05: empty and live rows mixed in one batch") {
  const float first[4] = {-infinity, -infinity, 0.0f, infinity};
  const float second[4] = {-infinity, 0.0f, -infinity, infinity};
  const float output[4] = {0.0f, 9.0f, 7.0f, 0.0f};
  const float merged[4] = {-infinity, 0.0f, 0.0f, -infinity};
  for (std::size_t i = 0; i < 4; ++i) {
    for (const row& got : {gathered({first[i], second[i]}, {7.0f, 9.0f}),
                           weighed_then_summed({first[i], second[i]}, {7.0f, 9.0f})}) {
      CHECK(bits_of(got.output) == bits_of(output[i]));
      CHECK(got.lse == merged[i]);
    }
  }
}

TEST_CASE("B08: +inf says `no keys` as well as -inf does") {
  check_row(gathered({infinity, 1.0f}, {0.0f, 2.0f}), 2.0f, 1.0f, 0);
  check_row(gathered({0.0f, infinity}, {1.0f, 0.0f}), 1.0f, 0.0f, 0);
  for (std::size_t ranks = 1; ranks <= 8; ++ranks) {
    const row got = gathered(std::vector<float>(ranks, infinity), std::vector<float>(ranks, 3.0f));
    CHECK(is_positive_zero(got.output));
    CHECK(got.lse == -infinity);
  }
}

TEST_CASE("C08: a rank that never wrote its payload does not reach the result") {
  for (const float never_written : {a_nan, infinity, -infinity}) {
    const std::vector<float> payload = {never_written, 5.0f};
    for (const float empty : {-infinity, infinity, a_nan}) {
      for (const row& got :
           {gathered({empty, 0.0f}, payload), weighed_then_summed({empty, 0.0f}, payload)}) {
        CHECK(got.output == 5.0f);
        CHECK(got.lse == 0.0f);
      }
    }
  }
}

TEST_CASE("C08: a partial whose weight underflows is selected out as well") {
  for (const row& got : {gathered({-1000.0f, 0.0f}, {a_nan, 5.0f}),
                         weighed_then_summed({-1000.0f, 0.0f}, {infinity, 5.0f})}) {
    CHECK(got.output == 5.0f);
    CHECK(got.lse == 0.0f);
  }
}

TEST_CASE("C08: a NaN in the payload of a live rank is not hidden") {
  const row got = gathered({0.0f, 0.0f}, {a_nan, 5.0f});
  CHECK(bits_of(got.output) == 0x7fffffffu);
  CHECK(got.lse == doctest::Approx(0.693147).epsilon(1e-6));
}

TEST_CASE("C09: LSEs 200 apart do not overflow") {
  for (const row& got : {gathered({0.0f, 200.0f}, {1.0f, 5.0f}),
                         gathered<log_base::two>({0.0f, 200.0f}, {1.0f, 5.0f}),
                         weighed_then_summed({0.0f, 200.0f}, {1.0f, 5.0f})}) {
    CHECK(got.output == 5.0f);
    CHECK(got.lse == 200.0f);
  }
  const row far = gathered({-3e38f, 3e38f}, {1.0f, 5.0f});
  CHECK(far.output == 5.0f);
  CHECK(far.lse == 3e38f);
}

TEST_CASE("C11: LSEs of -60000 are ordinary numbers") {
  const row got = gathered({-60000.0f, -60001.0f}, {2.0f, 6.0f});
  CHECK(got.output == doctest::Approx(3.075766).epsilon(1e-6));
  CHECK(got.lse == -59999.6875f);  // the float nearest to -59999.686738
}

TEST_CASE("C11: scores shifted by -1e5 weigh as the unshifted ones do") {
  const std::vector<float> payload = {2.0f, 6.0f, -1.0f};
  const row plain = gathered({0.0f, -1.0f, 2.5f}, payload);
  const row shifted = gathered({-100000.0f, -100001.0f, -99997.5f}, payload);
  CHECK(bits_of(shifted.output) == bits_of(plain.output));
  CHECK(shifted.lse == doctest::Approx(plain.lse - 100000.0f).epsilon(1e-7));
}

TEST_CASE("C15: a rank with no keys is empty, whatever finite LSE it left") {
  const lse<log_base::e> lses[2] = {mask_lse(lse<log_base::e>{3.7f}, 0),
                                    mask_lse(lse<log_base::e>{0.0f}, 4)};
  float weights[2] = {poison, poison};
  const lse<log_base::e> merged = combine_weights<log_base::e>(2, lses, weights);
  float sum = accumulate(accumulator_start(), weights[0], 9.0f);
  sum = accumulate(sum, weights[1], 2.0f);
  CHECK(finish(sum, merged) == 2.0f);
  CHECK(merged.value == 0.0f);

  CHECK(is_empty(mask_lse(lse<log_base::two>{3.7f}, -1)));
  CHECK(mask_lse(lse<log_base::two>{3.7f}, 1).value == 3.7f);
}

TEST_CASE("C16: small terms beside a large one survive, for sums are fp32 and rounded once") {
  // Weights are 1/8, so these payloads weigh 256, 1, 1, 1, 1, 1, 1, 1.
  const std::vector<float> lses(8, 0.0f);
  std::vector<float> payload(8, 8.0f);
  payload[0] = 2048.0f;
  for (const row& got : {gathered(lses, payload), weighed_then_summed(lses, payload)}) {
    CHECK(got.output == 263.0f);
    CHECK(to_float(from_float<bf16>(got.output)) ==
          264.0f);  // 262 and 264 are as near; 264 is even
  }

  float serial = 0.0f;  // what summing in bf16 makes of it
  for (const float value : payload) serial = to_float(from_float<bf16>(serial + value / 8));
  CHECK(serial == 256.0f);
}

TEST_CASE("C19: a row's bits depend on nothing but the row") {
  std::mt19937 random(19);
  std::uniform_real_distribution<float> uniform(-4.0f, 4.0f);
  constexpr std::size_t batch = 64;
  std::vector<std::vector<float>> lses(batch, std::vector<float>(4));
  std::vector<std::vector<float>> payload(batch, std::vector<float>(4));
  for (std::size_t b = 0; b < batch; ++b) {
    for (float& l : lses[b]) l = uniform(random);
    for (float& value : payload[b]) value = uniform(random);
  }
  std::vector<row> together;
  for (std::size_t b = 0; b < batch; ++b) together.push_back(gathered(lses[b], payload[b]));
  int different = 0;
  for (std::size_t b = batch; b-- > 0;) {
    const row alone = gathered(lses[b], payload[b]);
    different += bits_of(alone.output) != bits_of(together[b].output);
    different += bits_of(alone.lse) != bits_of(together[b].lse);
    // Rank order is fixed; the other order is free to round differently, within the bound.
    const std::vector<float> back_lses(lses[b].rbegin(), lses[b].rend());
    const std::vector<float> back_payload(payload[b].rbegin(), payload[b].rend());
    CHECK(std::fabs(gathered(back_lses, back_payload).output - alone.output) <= 24 * 0x1p-24f * 4);
  }
  CHECK(different == 0);
}

TEST_CASE("C19: containers make no difference: pointers, arrays and gathering objects") {
  const lse<log_base::e> plain[3] = {{0.25f}, {-1.5f}, {2.0f}};
  const std::array<lse<log_base::e>, 3> array = {plain[0], plain[1], plain[2]};
  struct gatherer {
    const float* values;
    lse<log_base::e> operator[](std::size_t r) const { return {values[2 * r]}; }
  };
  const float strided[6] = {0.25f, a_nan, -1.5f, a_nan, 2.0f, a_nan};
  float a[3] = {poison, poison, poison};
  std::array<float, 3> b = {poison, poison, poison};
  float c[3] = {poison, poison, poison};
  float* const pointer = c;
  const lse<log_base::e> merged = combine_weights<log_base::e>(3, plain, a);
  CHECK(combine_weights<log_base::e>(3, array, b).value == merged.value);
  CHECK(combine_weights<log_base::e>(3, gatherer{strided}, pointer).value == merged.value);
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(bits_of(a[r]) == bits_of(b[r]));
    CHECK(bits_of(a[r]) == bits_of(c[r]));
  }
}

TEST_CASE("parity 07: a single rank's output comes back unchanged") {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 2 * 4 * 8; ++i) {
    const float output = normal(random);
    const float l = normal(random);
    const row got = gathered({l}, {output});
    CHECK(bits_of(got.output) == bits_of(output));
    CHECK(bits_of(got.lse) == bits_of(l));
  }
}

TEST_CASE("parity 08: equal LSEs give the mean") {
  for (int d = 0; d < 4; ++d) {
    const auto x = static_cast<float>(d);
    CHECK(gathered({0.0f, 0.0f}, {1 + x, 5 + x}).output == 3 + x);
  }
}

TEST_CASE("parity 09: a dominant rank's output is the result") {
  CHECK(gathered({-100.0f, 0.0f}, {1.0f, 3.0f}).output == doctest::Approx(3.0).epsilon(1e-5));
  CHECK(gathered({-100.0f, 0.0f}, {2.0f, 4.0f}).output == doctest::Approx(4.0).epsilon(1e-5));
}

TEST_CASE("parity 10: weights of LSEs 1 and 2 are 0.26894 and 0.73106") {
  CHECK(gathered({1.0f, 2.0f}, {2.0f, 6.0f}).output == doctest::Approx(4.92423).epsilon(1e-6));
  CHECK(gathered({1.0f, 2.0f}, {4.0f, 8.0f}).output == doctest::Approx(6.92423).epsilon(1e-6));
}

TEST_CASE("parity 11: the merged LSE of 1 and 2 is ln(e + e^2)") {
  CHECK(gathered({1.0f, 2.0f}, {2.0f, 6.0f}).lse == doctest::Approx(2.313262).epsilon(1e-6));
}

TEST_CASE("parity 12: base-2 LSEs 1 and 2 weigh 1/3 and 2/3 and merge to log2(6)") {
  const row got = gathered<log_base::two>({1.0f, 2.0f}, {3.0f, 6.0f});
  CHECK(got.output == doctest::Approx(5.0).epsilon(1e-6));
  CHECK(got.lse == doctest::Approx(2.584963).epsilon(1e-6));
}

TEST_CASE("algebra: the sign of a zero payload survives, and an empty row is +0") {
  CHECK(bits_of(gathered({0.0f, 0.0f}, {-0.0f, -0.0f}).output) == 0x80000000u);
  CHECK(bits_of(gathered({0.0f}, {-0.0f}).output) == 0x80000000u);
  CHECK(bits_of(gathered({0.0f, -infinity}, {-0.0f, 1.0f}).output) == 0x80000000u);
  CHECK(bits_of(gathered({0.0f, 0.0f}, {-0.0f, 0.0f}).output) == 0u);
  CHECK(bits_of(gathered({-infinity}, {-0.0f}).output) == 0u);
}

TEST_CASE("algebra: the merged LSE of one live rank keeps its bits, -0 and subnormals too") {
  for (const float l : {0.0f, -0.0f, 0x1p-149f, -0x1.8p-127f, 3e38f, -3e38f, 0.1f}) {
    CHECK(bits_of(gathered({l}, {1.0f}).lse) == bits_of(l));
    CHECK(bits_of(gathered({-infinity, l, a_nan}, {a_nan, 1.0f, a_nan}).lse) == bits_of(l));
    CHECK(bits_of(gathered<log_base::two>({l, infinity}, {1.0f, a_nan}).lse) == bits_of(l));
  }
}

TEST_CASE("algebra: equal LSEs weigh exactly 1/n where that is a float, and log(n) more") {
  for (const std::size_t n : {2u, 4u, 8u, 16u}) {
    const row got =
        gathered<log_base::two>(std::vector<float>(n, 5.0f), std::vector<float>(n, 0.7f));
    CHECK(got.lse == 5.0f + std::log2(static_cast<float>(n)));
    CHECK(got.output == doctest::Approx(0.7).epsilon(1e-6));
    std::vector<float> weights(n, poison);
    const std::vector<lse<log_base::e>> lses(n, lse<log_base::e>{-2.0f});
    combine_weights<log_base::e>(static_cast<int>(n), lses, weights);
    for (const float weight : weights) CHECK(weight == 1.0f / static_cast<float>(n));
  }
}

TEST_CASE("algebra: no ranks at all is the empty row") {
  const lse<log_base::e>* none = nullptr;
  float* nowhere = nullptr;
  CHECK(combine_weights<log_base::e>(0, none, nowhere).value == -infinity);
}

TEST_CASE("algebra: a partial combines with the identity to itself") {
  using pair = partial<log_base::two>;
  const pair identity;
  CHECK(is_positive_zero(identity.output));
  CHECK(identity.lse.value == -infinity);
  const pair some{0.3f, {-1.25f}};
  for (const pair& got : {combine(some, identity), combine(identity, some)}) {
    CHECK(bits_of(got.output) == bits_of(some.output));
    CHECK(bits_of(got.lse.value) == bits_of(some.lse.value));
  }
  const pair both = combine(identity, identity);
  CHECK(is_positive_zero(both.output));
  CHECK(both.lse.value == -infinity);
}
