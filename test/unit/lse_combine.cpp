// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/executor/host_executor.hpp>
#include <headwise/reference/lse_combine.hpp>
#include <headwise/view/slice.hpp>

#include <support/exact_combine.hpp>
#include <support/guarded.hpp>
#include <support/packed.hpp>
#include <support/random.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

using namespace headwise;
using support::guarded;
using support::packed_lse;
using support::packed_lses;
using support::packed_output;
using support::packed_outputs;
using support::same_bits;
using support::wrong_elements;

namespace {

constexpr auto e = log_base::e;
constexpr auto two = log_base::two;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr double ln2 = 0.69314718055994531;

/// Partial results of some ranks, [rank, token, head, head_dim] and [rank, token, head], with room
/// for what they are combined into.
template <class T>
struct problem {
  problem(index_t n, index_t b, index_t h, index_t d)
      : ranks(n),
        tokens(b),
        heads(h),
        head_dim(d),
        output_memory(n * b * h * d),
        lse_memory(n * b * h),
        result_memory(b * h * d),
        merged_memory(b * h) {}

  auto outputs() { return packed_outputs(output_memory.data(), ranks, tokens, heads, head_dim); }
  auto lses() { return packed_lses(lse_memory.data(), ranks, tokens, heads); }
  auto result() { return packed_output(result_memory.data(), tokens, heads, head_dim); }
  auto merged() { return packed_lse(merged_memory.data(), tokens, heads); }
  auto gathered() { return gathered_shards{outputs(), lses()}; }

  void fill_randomly(support::random_source& random) {
    support::fill(outputs(), [&](const auto&) {
      return from_float<T>(static_cast<float>(random.real(-4.0, 4.0)));
    });
    support::fill(lses(), [&](const auto&) { return static_cast<float>(random.real(-6.0, 6.0)); });
  }
  std::vector<float> row_lses(index_t token, index_t head) {
    std::vector<float> row;
    for (index_t r = 0; r < ranks; ++r) row.push_back(lses()(r, token, head));
    return row;
  }
  std::vector<double> column(index_t token, index_t head, index_t d) {
    std::vector<double> values;
    for (index_t r = 0; r < ranks; ++r) {
      values.push_back(static_cast<double>(to_float(outputs()(r, token, head, d))));
    }
    return values;
  }

  index_t ranks, tokens, heads, head_dim;
  guarded<T> output_memory;
  guarded<float> lse_memory;
  guarded<T> result_memory;
  guarded<float> merged_memory;
};

/// Elements of `got` that are further from float64 than the bound allows. All LSEs are finite or
/// mean "no keys".
template <class T, class Result>
index_t beyond_bound(log_base base, problem<T>& of, const Result& got) {
  index_t beyond = 0;
  const auto by_axis = permute<axis::token, axis::head, axis::head_dim>(got);
  for (index_t b = 0; b < of.tokens; ++b) {
    for (index_t h = 0; h < of.heads; ++h) {
      const support::exact_row row = support::merge_exactly(base, of.row_lses(b, h));
      for (index_t d = 0; d < of.head_dim; ++d) {
        const std::vector<double> column = of.column(b, h, d);
        const double exact = row.output(column);
        const double bound = support::combine_bound<typename Result::value_type>(
            of.ranks, exact, row.magnitude(column), 4.0);
        const auto value = static_cast<double>(to_float(by_axis(b, h, d)));
        if (!(std::fabs(value - exact) <= bound)) ++beyond;
      }
    }
  }
  return beyond;
}

TEST_CASE("A08: each partial result is read by its own strides") {
  // Prefix dense, suffix cut from rows of 192 whose tails are NaN.
  guarded<float> prefix_memory(2 * 128);
  guarded<float> suffix_memory(2 * 192);
  const auto prefix = view(
      prefix_memory.data(),
      packed(extent<axis::token, 1>(), extent<axis::head, 2>(), extent<axis::head_dim, 128>()));
  const auto suffix = slice<axis::head_dim>(
      view(suffix_memory.data(), packed(extent<axis::token, 1>(), extent<axis::head, 2>(),
                                        extent<axis::head_dim, 192>())),
      constant<0>, constant<128>);
  static_assert(decltype(suffix)::layout_type::static_strides[1] == 192);
  support::fill(prefix, [](const auto&) { return 1.0f; });
  support::fill(suffix, [](const auto& at) { return at[1] == 0 ? 3.0f : 5.0f; });
  float prefix_lse[2] = {0, 0};
  float suffix_lse[2] = {0, 0};
  guarded<float> result_memory(2 * 128);
  guarded<float> merged_memory(2);
  const auto result = packed_output(result_memory.data(), 1, 2, 128);
  const auto merged = packed_lse(merged_memory.data(), 1, 2);
  REQUIRE(reference::lse_combine<e>(separate_shards(shard{prefix, packed_lse(prefix_lse, 1, 2)},
                                                    shard{suffix, packed_lse(suffix_lse, 1, 2)}),
                                    result, merged)
              .ok());
  CHECK(wrong_elements(result, [](const auto& at) { return at[1] == 0 ? 2.0f : 3.0f; }) == 0);
  for (index_t h = 0; h < 2; ++h) {
    CHECK(static_cast<double>(merged(0, h)) == doctest::Approx(ln2).epsilon(1e-7));
  }
  CHECK(result_memory.stray_bytes(result) == 0);
  CHECK(merged_memory.stray_bytes(merged) == 0);
}

TEST_CASE("A10: writer and reader of padded accumulators go by the same strides") {
  // Two splits 16 apart, heads 8 apart, of which two and two are used.
  using accumulator = layout<dim<axis::rank, 2, 16>, dim<axis::token, 1, 16>, dim<axis::head, 2, 8>,
                             dim<axis::head_dim, 4, 1>>;
  using lse_accumulator =
      layout<dim<axis::rank, 2, 16>, dim<axis::token, 1, 16>, dim<axis::head, 2, 8>>;
  guarded<float> output_memory(32);
  guarded<float> lse_memory(32);
  const view<float, accumulator> outputs(output_memory.data());
  const view<float, lse_accumulator> lses(lse_memory.data());
  for (index_t s = 0; s < 2; ++s) {
    float rows[8];
    float row_lses[2] = {0, 0};
    for (float& value : rows) value = s == 0 ? 1.0f : 3.0f;
    REQUIRE(reference::materialize(packed_output(rows, 1, 2, 4), fix<axis::rank>(outputs, s)).ok());
    REQUIRE(reference::materialize(packed_lse(row_lses, 1, 2), fix<axis::rank>(lses, s)).ok());
  }
  CHECK(output_memory.stray_bytes(outputs) == 0);
  CHECK(lse_memory.stray_bytes(lses) == 0);
  guarded<float> result_memory(8);
  guarded<float> merged_memory(2);
  const auto result = packed_output(result_memory.data(), 1, 2, 4);
  const auto merged = packed_lse(merged_memory.data(), 1, 2);
  REQUIRE(reference::lse_combine<e>(gathered_shards{outputs, lses}, result, merged).ok());
  CHECK(wrong_elements(result, [](const auto&) { return 2.0f; }) == 0);
  for (index_t h = 0; h < 2; ++h) {
    CHECK(static_cast<double>(merged(0, h)) == doctest::Approx(ln2).epsilon(1e-7));
  }
  CHECK(output_memory.stray_bytes(outputs) == 0);
  CHECK(lse_memory.stray_bytes(lses) == 0);
}

TEST_CASE("A11: rows of the output are the output's own stride apart") {
  constexpr index_t tokens = 4, heads = 2, head_dim = 64;
  guarded<float> memory(tokens * heads * head_dim);  // 256 bytes of guard behind it
  const view<float, layout<dim<axis::token, tokens, 128>, dim<axis::head, heads, 64>,
                           dim<axis::head_dim, head_dim, 1>>>
      result(memory.data());
  problem<float> of(2, tokens, heads, head_dim);
  support::fill(of.outputs(),
                [](const auto& at) { return static_cast<float>(10 * at[1] + at[2]); });
  support::fill(of.lses(), [](const auto&) { return 0.5f; });
  REQUIRE(reference::lse_combine<e>(of.gathered(), result).ok());
  CHECK(wrong_elements(result,
                       [](const auto& at) { return static_cast<float>(10 * at[0] + at[1]); }) == 0);
  CHECK(memory.stray_bytes(result) == 0);
}

template <class T>
float merged_of_two(T second) {
  float rows[2] = {1.0f, 5.0f};
  T lses[2] = {T{}, second};
  float result = nan;
  REQUIRE(reference::lse_combine<e>(
              gathered_shards{packed_outputs(rows, 2, 1, 1, 1), packed_lses(lses, 2, 1, 1)},
              packed_output(&result, 1, 1, 1))
              .ok());
  return result;
}

TEST_CASE("B05: LSEs of 16 bits are read as the numbers that they are") {
  // Weights 1 and e^3.
  const double exact = (1.0 + 5.0 * std::exp(3.0)) / (1.0 + std::exp(3.0));
  for (const float got :
       {merged_of_two(from_float<bf16>(3.0f)), merged_of_two(from_float<fp16>(3.0f)),
        merged_of_two(3.0f), merged_of_two(lse<e>{3.0f})}) {
    CHECK(static_cast<double>(got) == doctest::Approx(exact).epsilon(1e-6));
  }
}

TEST_CASE("B08: +inf says no keys, as -inf does") {
  float rows[2] = {0.0f, 2.0f};
  float lses[2] = {infinity, 1.0f};
  float result = nan, merged = nan;
  const auto combined = [&] {
    REQUIRE(reference::lse_combine<e>(
                gathered_shards{packed_outputs(rows, 2, 1, 1, 1), packed_lses(lses, 2, 1, 1)},
                packed_output(&result, 1, 1, 1), packed_lse(&merged, 1, 1))
                .ok());
  };
  combined();
  CHECK(result == 2.0f);
  CHECK(merged == 1.0f);
  lses[1] = infinity;
  rows[0] = nan;
  combined();
  CHECK(same_bits(result, 0.0f));
  CHECK(merged == -infinity);
}

TEST_CASE("B09: the merged LSE is stored by the strides of its view") {
  problem<float> of(2, 3, 2, 1);
  support::fill(of.outputs(), [](const auto&) { return 1.0f; });
  support::fill(of.lses(), [](const auto& at) {
    return at[0] == 0 ? static_cast<float>(10 * at[1] + at[2]) : -infinity;
  });
  guarded<float> memory(3 * 64);
  const view<float, layout<dim<axis::token, 3, 64>, dim<axis::head, 2, 1>>> merged(memory.data());
  REQUIRE(reference::lse_combine<e>(of.gathered(), of.result(), merged).ok());
  int found = 0;
  for (index_t i = 0; i < memory.size(); ++i) {
    if (detail::is_nan(memory.data()[i])) continue;
    ++found;
    CHECK(i % 64 < 2);
    CHECK(memory.data()[i] == static_cast<float>(10 * (i / 64) + i % 64));
  }
  CHECK(found == 6);
  CHECK(memory.stray_bytes(merged) == 0);
}

/// The shards of a problem as views of their own, combined in the place of shard `Into`.
template <log_base Base, class Policy = nan_policy::empty>
void combine_two_in_place(problem<float>& of, index_t into, const Policy& policy = {}) {
  const auto output = fix<axis::rank>(of.outputs(), into);
  const auto lse = fix<axis::rank>(of.lses(), into);
  const separate_shards both(
      shard{fix<axis::rank>(of.outputs(), 0), fix<axis::rank>(of.lses(), 0)},
      shard{fix<axis::rank>(of.outputs(), 1), fix<axis::rank>(of.lses(), 1)});
  REQUIRE(reference::lse_combine<Base>(both, output, lse, none, policy).ok());
}

TEST_CASE("C04: nothing merged with nothing is exactly nothing, for any number of ranks") {
  for (const index_t ranks : {1, 2, 3, 8, 16}) {
    CAPTURE(ranks);
    problem<fp16> of(ranks, 1, 1, 64);  // payloads are NaN
    support::fill(of.lses(), [](const auto&) { return -infinity; });
    REQUIRE(reference::lse_combine<e>(of.gathered(), of.result(), of.merged()).ok());
    CHECK(wrong_elements(of.result(), [](const auto&) { return fp16{0}; }) == 0);
    CHECK(of.merged()(0, 0) == -infinity);
  }
  problem<float> of(2, 1, 1, 64);
  support::fill(of.lses(), [](const auto&) { return -infinity; });
  combine_two_in_place<e>(of, 1);
  CHECK(wrong_elements(fix<axis::rank>(of.outputs(), 1), [](const auto&) { return 0.0f; }) == 0);
  CHECK(of.lses()(1, 0, 0) == -infinity);
}

const float mixed_lses[2][4] = {{-infinity, -infinity, 0.0f, infinity},
                                {-infinity, 0.0f, -infinity, infinity}};

void fill_mixed(problem<float>& of) {
  support::fill(of.outputs(), [](const auto& at) { return at[0] == 0 ? 7.0f : 9.0f; });
  support::fill(of.lses(), [](const auto& at) { return mixed_lses[at[0]][at[1]]; });
}

template <class Output, class Lse>
void check_mixed(const Output& output, const Lse& lse) {
  const float expected[4] = {0, 9, 7, 0};
  const float expected_lse[4] = {-infinity, 0, 0, -infinity};
  CHECK(wrong_elements(output, [&](const auto& at) { return expected[at[0]]; }) == 0);
  CHECK(wrong_elements(lse, [&](const auto& at) { return expected_lse[at[0]]; }) == 0);
}

TEST_CASE("C05: empty, half empty and full rows stand beside each other in one batch") {
  problem<float> of(2, 4, 1, 3);
  fill_mixed(of);
  SUBCASE("gathered") {
    REQUIRE(reference::lse_combine<e>(of.gathered(), of.result(), of.merged()).ok());
    check_mixed(of.result(), of.merged());
    CHECK(of.result_memory.stray_bytes(of.result()) == 0);
  }
  SUBCASE("base 2") {
    REQUIRE(reference::lse_combine<two>(of.gathered(), of.result(), of.merged()).ok());
    check_mixed(of.result(), of.merged());
  }
  SUBCASE("in place of the first") {
    combine_two_in_place<e>(of, 0);
    check_mixed(fix<axis::rank>(of.outputs(), 0), fix<axis::rank>(of.lses(), 0));
  }
  SUBCASE("in place of the second") {
    combine_two_in_place<e>(of, 1);
    check_mixed(fix<axis::rank>(of.outputs(), 1), fix<axis::rank>(of.lses(), 1));
  }
  SUBCASE("through messages") {
    const message_plan plan = message_plan::make<float>({2, 4, 1, 3}).value();
    guarded<std::byte> received(plan.total_bytes);
    // Shard s as its sender's message for rank 0, which stands first.
    for (index_t s = 0; s < 2; ++s) {
      const message_plan alone = message_plan::make<float>({1, 4, 1, 3}).value();
      REQUIRE(reference::pack<e>(fix<axis::rank>(of.outputs(), s), fix<axis::rank>(of.lses(), s),
                                 alone, received.data() + s * plan.peer_pitch)
                  .ok());
    }
    REQUIRE(reference::lse_combine<e>(received_shards<float>{plan, received.data()}, of.result(),
                                      of.merged())
                .ok());
    check_mixed(of.result(), of.merged());
  }
}

TEST_CASE(
    "C07: a caller who must not hide a NaN sees it, and an enormous negative LSE is a number") {
  float rows[2] = {1, 2};
  float lses[2] = {nan, 0};
  float result = 0, merged = 0;
  const auto gathered =
      gathered_shards{packed_outputs(rows, 2, 1, 1, 1), packed_lses(lses, 2, 1, 1)};
  const auto output = packed_output(&result, 1, 1, 1);
  REQUIRE(reference::lse_combine<e>(gathered, output, packed_lse(&merged, 1, 1), none,
                                    nan_policy::propagate{})
              .ok());
  CHECK(detail::is_nan(result));
  CHECK(detail::is_nan(merged));
  rows[0] = 2;
  rows[1] = 4;
  lses[0] = lses[1] = -1e30f;
  REQUIRE(reference::lse_combine<e>(gathered, output, packed_lse(&merged, 1, 1)).ok());
  CHECK(result == 3.0f);
  CHECK(merged == -1e30f);
  REQUIRE(reference::lse_combine<e>(gathered, output, packed_lse(&merged, 1, 1), none, sentinel{})
              .ok());
  CHECK(result == 0.0f);
  CHECK(merged == -infinity);
}

TEST_CASE("C08: the payload of an idle rank is never read, be it NaN or infinite") {
  for (const float never_written : {nan, infinity, -infinity}) {
    for (const float no_keys : {-infinity, infinity, nan}) {
      problem<float> of(2, 1, 1, 16);
      support::fill(of.outputs(),
                    [&](const auto& at) { return at[0] == 0 ? never_written : 5.0f; });
      support::fill(of.lses(), [&](const auto& at) { return at[0] == 0 ? no_keys : 0.0f; });
      REQUIRE(reference::lse_combine<e>(of.gathered(), of.result(), of.merged()).ok());
      CHECK(wrong_elements(of.result(), [](const auto&) { return 5.0f; }) == 0);
      CHECK(same_bits(of.merged()(0, 0), 0.0f));
      // In place of the idle one, and as shards that each have views of their own.
      combine_two_in_place<e>(of, 0);
      CHECK(wrong_elements(fix<axis::rank>(of.outputs(), 0), [](const auto&) { return 5.0f; }) ==
            0);
      CHECK(same_bits(of.lses()(0, 0, 0), 0.0f));
    }
  }
}

TEST_CASE("C15: a shard without keys does not count, whatever its LSE says") {
  float first_row = 9, second_row = 2;
  float first_lse = 3.7f, second_lse = 0;
  const std::int32_t no_keys = 0, some_keys = 5;
  using count = view<const std::int32_t, layout<dim<axis::token, 1, 1>>>;
  float result = nan, merged = nan;
  const auto combined = [&](const auto& source) {
    REQUIRE(reference::lse_combine<e>(source, packed_output(&result, 1, 1, 1),
                                      packed_lse(&merged, 1, 1))
                .ok());
  };
  combined(separate_shards(
      shard{packed_output(&first_row, 1, 1, 1), packed_lse(&first_lse, 1, 1), count(&no_keys)},
      shard{packed_output(&second_row, 1, 1, 1), packed_lse(&second_lse, 1, 1)}));
  CHECK(result == 2.0f);
  CHECK(same_bits(merged, 0.0f));
  combined(separate_shards(
      shard{packed_output(&first_row, 1, 1, 1), packed_lse(&first_lse, 1, 1), count(&some_keys)},
      shard{packed_output(&second_row, 1, 1, 1), packed_lse(&second_lse, 1, 1), none}));
  const double odds = std::exp(3.7);
  CHECK(static_cast<double>(result) == doctest::Approx((9 * odds + 2) / (odds + 1)).epsilon(1e-6));
  CHECK(static_cast<double>(merged) == doctest::Approx(std::log(odds + 1)).epsilon(1e-6));
  // Alone, as a group of one rank combines it.
  combined(
      shard{packed_output(&first_row, 1, 1, 1), packed_lse(&first_lse, 1, 1), count(&no_keys)});
  CHECK(same_bits(result, 0.0f));
  CHECK(merged == -infinity);
}

TEST_CASE("C16: sixteen-bit partials are summed in fp32 and rounded once") {
  // Eight equal weights of 1/8, so the partials are eight times 256, 1, 1, ...
  problem<bf16> of(8, 1, 1, 4);
  support::fill(of.outputs(),
                [](const auto& at) { return from_float<bf16>(at[0] == 0 ? 2048.0f : 8.0f); });
  support::fill(of.lses(), [](const auto&) { return 1.25f; });
  REQUIRE(reference::lse_combine<e>(of.gathered(), of.result()).ok());
  // 263 is half way between 262 and 264; the even one is 264. A bf16 sum would stay at 256.
  CHECK(wrong_elements(of.result(), [](const auto&) { return from_float<bf16>(264.0f); }) == 0);
  guarded<float> wide(4);
  const auto unrounded = packed_output(wide.data(), 1, 1, 4);
  REQUIRE(reference::lse_combine<e>(of.gathered(), unrounded).ok());
  CHECK(wrong_elements(unrounded, [](const auto&) { return 263.0f; }) == 0);
}

TEST_CASE("C19: a row has the same bits in every run, batch, layout and form, and on every rank") {
  support::random_source random(1);
  constexpr index_t ranks = 4, tokens = 64, head_dim = 33;
  problem<bf16> of(ranks, tokens, 1, head_dim);
  of.fill_randomly(random);
  REQUIRE(reference::lse_combine<e>(of.gathered(), of.result(), of.merged()).ok());
  problem<bf16> again(ranks, tokens, 1, head_dim);
  REQUIRE(reference::lse_combine<e>(of.gathered(), again.result(), again.merged()).ok());
  CHECK(wrong_elements(again.result(),
                       [&](const auto& at) { return of.result()(at[0], at[1], at[2]); }) == 0);
  CHECK(wrong_elements(again.merged(), [&](const auto& at) { return of.merged()(at[0], at[1]); }) ==
        0);

  const message_plan plan = message_plan::make<bf16>({ranks, 1, 1, head_dim}).value();
  for (index_t b = 0; b < tokens; ++b) {
    CAPTURE(b);
    // The row alone, B = 1.
    const auto outputs = slice<axis::token>(of.outputs(), b, 1).value();
    const auto lses = slice<axis::token>(of.lses(), b, 1).value();
    problem<bf16> alone(ranks, 1, 1, head_dim);
    const auto as_in_batch = [&] {
      return wrong_elements(alone.result(),
                            [&](const auto& at) { return of.result()(b, at[1], at[2]); }) +
             (same_bits(alone.merged()(0, 0), of.merged()(b, 0)) ? 0 : 1);
    };
    REQUIRE(
        reference::lse_combine<e>(gathered_shards{outputs, lses}, alone.result(), alone.merged())
            .ok());
    CHECK(as_in_batch() == 0);
    // As every rank of a group of four gets it, in messages.
    for (index_t rank = 0; rank < ranks; ++rank) {
      guarded<std::byte> received(plan.total_bytes);
      for (index_t s = 0; s < ranks; ++s) {
        const message_plan one = message_plan::make<bf16>({1, 1, 1, head_dim}).value();
        REQUIRE(reference::pack<e>(fix<axis::rank>(outputs, s), fix<axis::rank>(lses, s), one,
                                   received.data() + s * plan.peer_pitch)
                    .ok());
      }
      REQUIRE(reference::lse_combine<e>(received_shards<bf16>{plan, received.data()},
                                        alone.result(), alone.merged())
                  .ok());
      CHECK(as_in_batch() == 0);
    }
  }
}

TEST_CASE("F06: no count of rows is too many for a combine") {
  struct row {
    index_t tokens, heads;
  };
  for (const row& r : {row{65535, 1}, row{65536, 1}, row{70000, 1}, row{1024, 64}}) {
    CAPTURE(r.tokens);
    problem<float> of(2, r.tokens, r.heads, 8);
    support::fill(of.outputs(), [](const auto& at) {
      return static_cast<float>(at[1] % 4096 * 64 + at[2] + (at[0] == 0 ? -1 : 1));
    });
    support::fill(of.lses(), [](const auto&) { return -2.0f; });
    REQUIRE(reference::lse_combine<e>(of.gathered(), of.result()).ok());
    CHECK(wrong_elements(of.result(), [](const auto& at) {
            return static_cast<float>(at[0] % 4096 * 64 + at[1]);
          }) == 0);
    CHECK(of.result_memory.stray_bytes(of.result()) == 0);
  }
}

TEST_CASE("F08: no count of heads is too many for a combine") {
  for (const index_t head_dim : {128, 256, 512}) {
    CAPTURE(head_dim);
    for (const index_t heads : {64, 65, 96, 97, 128, 200}) {
      CAPTURE(heads);
      problem<bf16> of(2, 1, heads, head_dim);
      support::fill(of.outputs(), [](const auto& at) {
        const auto value = static_cast<float>(at[2] % 32 + at[3] % 4);
        return from_float<bf16>(at[0] == 0 ? value - 1 : value + 1);
      });
      support::fill(of.lses(), [](const auto& at) { return static_cast<float>(at[2]); });
      REQUIRE(reference::lse_combine<e>(of.gathered(), of.result()).ok());
      CHECK(wrong_elements(of.result(), [](const auto& at) {
              return from_float<bf16>(static_cast<float>(at[1] % 32 + at[2] % 4));
            }) == 0);
    }
  }
}

TEST_CASE("G06: the output of a combine has the width of the values, 512, not of the keys, 576") {
  problem<float> of(2, 1, 1, 576);
  support::random_source random(2);
  of.fill_randomly(random);
  guarded<float> memory(512);
  const status why =
      reference::lse_combine<e>(of.gathered(), packed_output(memory.data(), 1, 1, 512));
  CHECK(why.code == errc::shape_mismatch);
  CHECK(std::string(why.operand) == "partial_output");
  CHECK(std::string(why.axis) == "head_dim");
  CHECK(why.got == 576);
  CHECK(why.expected == 512);
  CHECK(memory.stray_bytes() == 0);
  const auto values = slice<axis::head_dim>(of.outputs(), 0, 512);
  REQUIRE(values.ok());
  const auto result = packed_output(memory.data(), 1, 1, 512);
  REQUIRE(reference::lse_combine<e>(gathered_shards{values.value(), of.lses()}, result).ok());
  problem<float> first(2, 1, 1, 512);
  support::fill(first.outputs(),
                [&](const auto& at) { return of.outputs()(at[0], at[1], at[2], at[3]); });
  support::fill(first.lses(), [&](const auto& at) { return of.lses()(at[0], at[1], at[2]); });
  CHECK(beyond_bound(e, first, result) == 0);
}

template <class T, log_base Base>
void check_loopback(bool return_lse, const message_format& format) {
  // N = 4, B = 7, h = 2, D = 32: what a rank packs for its peers, read as if the peers had sent it.
  constexpr index_t ranks = 4, tokens = 7, heads = 2, head_dim = 32;
  support::random_source random(3);
  guarded<T> output_memory(tokens * ranks * heads * head_dim);
  guarded<float> lse_memory(tokens * ranks * heads);
  const auto output = packed_output(output_memory.data(), tokens, ranks * heads, head_dim);
  const auto partial_lse = packed_lse(lse_memory.data(), tokens, ranks * heads);
  support::fill(output, [&](const auto&) {
    return from_float<T>(static_cast<float>(random.real(-3.0, 3.0)));
  });
  support::fill(partial_lse,
                [&](const auto&) { return static_cast<float>(random.real(-2.0, 2.0)); });
  const message_plan plan = message_plan::make<T>({ranks, tokens, heads, head_dim}, format).value();
  guarded<std::byte> message(plan.total_bytes);
  REQUIRE(reference::pack<Base>(output, partial_lse, plan, message.data()).ok());

  // [token, head, head_dim] by name, head-major in memory.
  guarded<T> result_memory(tokens * heads * head_dim);
  guarded<float> merged_memory(tokens * heads);
  const auto result =
      view(result_memory.data(), packed(extent<axis::head, heads>(), extent<axis::token, tokens>(),
                                        extent<axis::head_dim, head_dim>()));
  CHECK(result.template stride<axis::token>() == head_dim);
  CHECK(result.template stride<axis::head>() == tokens * head_dim);
  const auto merged = packed_lse(merged_memory.data(), tokens, heads);
  const received_shards<T> received{plan, message.data()};
  if (return_lse) {
    REQUIRE(reference::lse_combine<Base>(received, result, merged).ok());
  } else {
    REQUIRE(reference::lse_combine<Base>(received, result).ok());
  }

  // Shard s of head j is head s * h + j.
  problem<T> of(ranks, tokens, heads, head_dim);
  support::fill(of.outputs(),
                [&](const auto& at) { return output(at[1], at[0] * heads + at[2], at[3]); });
  support::fill(of.lses(),
                [&](const auto& at) { return partial_lse(at[1], at[0] * heads + at[2]); });
  CHECK(beyond_bound(Base, of, result) == 0);
  CHECK(result_memory.stray_bytes(result) == 0);
  if (!return_lse) {
    CHECK(merged_memory.stray_bytes() == 0);
    return;
  }
  for (index_t b = 0; b < tokens; ++b) {
    for (index_t h = 0; h < heads; ++h) {
      const double exact = support::merge_exactly(Base, of.row_lses(b, h)).lse;
      CHECK(std::fabs(static_cast<double>(merged(b, h)) - exact) <=
            support::lse_bound(Base, ranks, exact));
    }
  }
}

TEST_CASE("parity 32: pack, loop back, combine: every type, base, with and without merged LSE") {
  for (const bool return_lse : {false, true}) {
    for (const lse_placement lse : {lse_placement::plane, lse_placement::inline_bits}) {
      for (const peer_placement peer : {peer_placement::outermost, peer_placement::inside_heads}) {
        check_loopback<fp16, e>(return_lse, {lse, peer});
        check_loopback<bf16, e>(return_lse, {lse, peer});
        check_loopback<float, e>(return_lse, {lse, peer});
        check_loopback<fp16, two>(return_lse, {lse, peer});
        check_loopback<bf16, two>(return_lse, {lse, peer});
        check_loopback<float, two>(return_lse, {lse, peer});
      }
    }
  }
}

TEST_CASE("parity 29: a head-major result has strides (D, B*D, 1)") {
  // Own heads 4 of 16 over 4 ranks, B = 4, D = 64.
  problem<bf16> of(4, 4, 4, 64);
  support::random_source random(4);
  of.fill_randomly(random);
  guarded<bf16> memory(4 * 4 * 64);
  const view<bf16,
             layout<dim<axis::token, 4, 64>, dim<axis::head, 4, 256>, dim<axis::head_dim, 64, 1>>>
      head_major(memory.data());
  REQUIRE(reference::lse_combine<e>(of.gathered(), head_major).ok());
  REQUIRE(reference::lse_combine<e>(of.gathered(), of.result()).ok());
  CHECK(wrong_elements(head_major,
                       [&](const auto& at) { return of.result()(at[0], at[1], at[2]); }) == 0);
  CHECK(beyond_bound(e, of, head_major) == 0);
  CHECK(memory.stray_bytes(head_major) == 0);
}

TEST_CASE("parity 7 to 12: one rank, equal LSEs, one that dominates, both bases, the merged LSE") {
  const auto combined = [](auto base, std::vector<float> outputs, std::vector<float> lses,
                           index_t head_dim) {
    const auto ranks = static_cast<index_t>(lses.size());
    std::vector<float> got(static_cast<std::size_t>(head_dim) + 1, nan);
    REQUIRE(reference::lse_combine<decltype(base)::value>(
                gathered_shards{packed_outputs(outputs.data(), ranks, 1, 1, head_dim),
                                packed_lses(lses.data(), ranks, 1, 1)},
                packed_output(got.data(), 1, 1, head_dim), packed_lse(&got.back(), 1, 1))
                .ok());
    return got;
  };
  const std::integral_constant<log_base, e> natural;
  const std::integral_constant<log_base, two> binary;
  const auto near = [](float got, double exact) {
    CHECK(static_cast<double>(got) == doctest::Approx(exact).epsilon(1e-6));
  };
  CHECK(combined(natural, {0.1f, -0.0f, 7.5f}, {-3.3f}, 3) ==
        std::vector<float>{0.1f, -0.0f, 7.5f, -3.3f});
  CHECK(combined(natural, {1, 2, 3, 4, 5, 6, 7, 8}, {0, 0}, 4)[2] == 5.0f);
  CHECK(combined(natural, {10, 20, 1, 2}, {-100, 0}, 2) == std::vector<float>{1, 2, 0});
  const std::vector<float> by_e = combined(natural, {2, 4, 6, 8}, {1, 2}, 2);
  const double w = 1 / (1 + std::exp(1.0));
  near(by_e[0], 2 * w + 6 * (1 - w));
  near(by_e[1], 4 * w + 8 * (1 - w));
  near(by_e[2], std::log(std::exp(1.0) + std::exp(2.0)));
  const std::vector<float> by_two = combined(binary, {2, 4, 6, 8}, {1, 2}, 2);
  near(by_two[0], 2.0 / 3 + 6 * 2.0 / 3);
  near(by_two[1], 4.0 / 3 + 8 * 2.0 / 3);
  near(by_two[2], std::log2(6.0));
}

TEST_CASE("a sink takes its share once, after the merge, and stays out of the merged LSE") {
  constexpr index_t tokens = 2, heads = 3, head_dim = 4;
  problem<float> of(3, tokens, heads, head_dim);
  support::random_source random(5);
  of.fill_randomly(random);
  of.lses()(0, 1, 2) = of.lses()(1, 1, 2) = of.lses()(2, 1, 2) = -infinity;
  float sinks[heads] = {0.5f, -infinity, 2.0f};
  const view<const float, layout<dim<axis::head, heads, 1>>> sink(sinks);
  REQUIRE(reference::lse_combine<e>(of.gathered(), of.result(), of.merged(), sink).ok());
  for (index_t b = 0; b < tokens; ++b) {
    for (index_t h = 0; h < heads; ++h) {
      const support::exact_row row = support::merge_exactly(e, of.row_lses(b, h));
      const double share =
          std::isfinite(row.lse) ? 1 / (1 + std::exp(static_cast<double>(sinks[h]) - row.lse)) : 0;
      for (index_t d = 0; d < head_dim; ++d) {
        const std::vector<double> column = of.column(b, h, d);
        CHECK(std::fabs(static_cast<double>(of.result()(b, h, d)) - share * row.output(column)) <=
              1e-6 * row.magnitude(column));
      }
      if (!std::isfinite(row.lse)) {
        CHECK(of.merged()(b, h) == -infinity);
      } else {
        CHECK(std::fabs(static_cast<double>(of.merged()(b, h)) - row.lse) <=
              support::lse_bound(e, 3, row.lse));
      }
    }
  }
}

TEST_CASE("sixteen shards with types and strides of their own, and an output of another type") {
  support::random_source random(6);
  problem<float> of(16, 2, 2, 5);
  of.fill_randomly(random);
  guarded<bf16> rounded_memory(2 * 2 * 5);
  const auto rounded = packed_output(rounded_memory.data(), 2, 2, 5);
  support::fill(rounded, [&](const auto& at) {
    return from_float<bf16>(of.outputs()(3, at[0], at[1], at[2]));
  });
  support::fill(fix<axis::rank>(of.outputs(), 3),
                [&](const auto& at) { return to_float(rounded(at[0], at[1], at[2])); });
  const auto one = [&](index_t s) {
    return shard{fix<axis::rank>(of.outputs(), s), fix<axis::rank>(of.lses(), s)};
  };
  const auto bf16_one = shard{rounded, fix<axis::rank>(of.lses(), 3)};
  const separate_shards all(one(0), one(1), one(2), bf16_one, one(4), one(5), one(6), one(7),
                            one(8), one(9), one(10), one(11), one(12), one(13), one(14), one(15));
  CHECK(all.count() == 16);
  REQUIRE(reference::lse_combine<two>(all, of.result(), of.merged()).ok());
  CHECK(beyond_bound(two, of, of.result()) == 0);
  guarded<fp16> half_memory(2 * 2 * 5);
  const auto halves = packed_output(half_memory.data(), 2, 2, 5);
  REQUIRE(reference::lse_combine<two>(all, halves).ok());
  CHECK(wrong_elements(halves, [&](const auto& at) {
          return from_float<fp16>(of.result()(at[0], at[1], at[2]));
        }) == 0);
}

TEST_CASE("the host executor runs the same functions") {
  support::random_source random(7);
  problem<float> of(2, 3, 4, 5);
  of.fill_randomly(random);
  problem<float> other(2, 3, 4, 5);
  constexpr host_executor executor;
  REQUIRE(reference::lse_combine<e>(of.gathered(), of.result(), of.merged()).ok());
  REQUIRE(
      executor
          .lse_combine<e>(of.gathered(), other.result(), other.merged(), none, nan_policy::empty{})
          .ok());
  CHECK(wrong_elements(other.result(),
                       [&](const auto& at) { return of.result()(at[0], at[1], at[2]); }) == 0);
  REQUIRE(executor.materialize(of.outputs(), other.outputs()).ok());
  CHECK(wrong_elements(other.outputs(), [&](const auto& at) {
          return of.outputs()(at[0], at[1], at[2], at[3]);
        }) == 0);
  const message_plan plan = message_plan::make<float>({2, 3, 2, 5}).value();
  guarded<std::byte> whole(plan.total_bytes);
  guarded<std::byte> only_lse(plan.total_bytes);
  const auto output = fix<axis::rank>(of.outputs(), 0);
  const auto lse = fix<axis::rank>(of.lses(), 0);
  REQUIRE(executor.pack<e>(output, lse, plan, whole.data(), none, no_peer).ok());
  REQUIRE(executor.pack_lse<e>(lse, plan, only_lse.data(), none, no_peer).ok());
  for (index_t r = 0; r < 2; ++r) {
    for (index_t b = 0; b < 3; ++b) {
      for (index_t h = 0; h < 2; ++h) {
        const index_t at = plan.lse_at(r, b, h);
        float sent;
        std::memcpy(&sent, only_lse.data() + at, 4);
        CHECK(sent == lse(b, r * 2 + h));
        CHECK(std::memcmp(whole.data() + at, only_lse.data() + at, 4) == 0);
      }
    }
  }
  CHECK(only_lse.data()[0] == std::byte{0xff});  // the payload is none of its business
}

TEST_CASE("a refused combine writes nothing and says why") {
  problem<float> of(2, 3, 4, 5);
  const auto result = of.result();
  const auto expect = [&](const status& why, errc code, const char* operand, const char* axis,
                          index_t got, index_t expected) {
    CHECK(why.code == code);
    CHECK(std::string(why.operand) == operand);
    CHECK(std::string(why.axis) == axis);
    CHECK(why.got == got);
    CHECK(why.expected == expected);
    CHECK(of.result_memory.stray_bytes() == 0);
    CHECK(of.merged_memory.stray_bytes() == 0);
  };
  float* const outputs = of.output_memory.data();
  float* const lses = of.lse_memory.data();
  const auto combine = [](const auto& source, const auto&... operands) {
    return reference::lse_combine<e>(source, operands...);
  };
  const auto gathered = of.gathered();
  expect(combine(gathered, packed_output(of.result_memory.data(), 2, 4, 5)), errc::shape_mismatch,
         "partial_output", "token", 3, 2);
  expect(combine(gathered, packed_output(of.result_memory.data(), 3, 3, 5)), errc::shape_mismatch,
         "partial_output", "head", 4, 3);
  expect(combine(gathered_shards{of.outputs(), packed_lses(lses, 1, 3, 4)}, result),
         errc::shape_mismatch, "partial_lse", "rank", 1, 2);
  expect(combine(gathered_shards{of.outputs(), packed_lses(lses, 2, 3, 3)}, result),
         errc::shape_mismatch, "partial_lse", "head", 3, 4);
  for (const index_t ranks : {0, 17}) {
    expect(combine(gathered_shards{packed_outputs(outputs, ranks, 3, 4, 5),
                                   packed_lses(lses, ranks, 3, 4)},
                   result),
           errc::unsupported, "ranks", "", ranks, max_ranks);
  }
  expect(combine(gathered, packed_output(static_cast<float*>(nullptr), 3, 4, 5)),
         errc::invalid_argument, "output", "", 0, 0);
  expect(
      combine(gathered_shards{packed_outputs(static_cast<float*>(nullptr), 2, 3, 4, 5), of.lses()},
              result),
      errc::invalid_argument, "partial_output", "", 0, 0);
  expect(combine(gathered_shards{of.outputs(), packed_lses(static_cast<float*>(nullptr), 2, 3, 4)},
                 result),
         errc::invalid_argument, "partial_lse", "", 0, 0);
  const view<float, layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>> sharing(
      of.result_memory.data(),
      {dim<axis::token>(3, 0), dim<axis::head>(4, 5), dim<axis::head_dim>(5, 1)});
  expect(combine(gathered, sharing), errc::overlap, "output", "token", 0, 1);
  expect(combine(gathered, result, packed_lse(of.merged_memory.data(), 3, 3)), errc::shape_mismatch,
         "merged_lse", "head", 3, 4);
  const float sinks[3] = {};
  expect(combine(gathered, result, of.merged(), view(sinks, packed(extent<axis::head>(3)))),
         errc::shape_mismatch, "sink", "head", 3, 4);
  // A rank axis with a negative stride, which a view of one rank would not show.
  const view<float, layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>>
      backwards(outputs, {dim<axis::rank>(2, -60), dim<axis::token>(3, 20), dim<axis::head>(4, 5),
                          dim<axis::head_dim>(5, 1)});
  expect(combine(gathered_shards{backwards, of.lses()}, result), errc::invalid_argument,
         "partial_output", "rank", -60, 0);

  const auto one = [&](const auto& output, const auto& lse) { return shard{output, lse}; };
  const auto good = one(packed_output(outputs, 3, 4, 5), packed_lse(lses, 3, 4));
  expect(
      combine(separate_shards(good, one(packed_output(outputs, 3, 4, 6), packed_lse(lses, 3, 4))),
              result),
      errc::shape_mismatch, "partial_output", "head_dim", 6, 5);
  expect(
      combine(separate_shards(good, one(packed_output(outputs, 3, 4, 5), packed_lse(lses, 2, 4))),
              result),
      errc::shape_mismatch, "partial_lse", "token", 2, 3);
  const std::int32_t counts[2] = {};
  expect(combine(shard{good.output, good.partial_lse, view(counts, packed(extent<axis::token>(2)))},
                 result),
         errc::shape_mismatch, "valid", "token", 2, 3);

  const message_plan plan = message_plan::make<float>({2, 3, 4, 5}).value();
  guarded<std::byte> message(plan.total_bytes);
  const auto received = [&](const message_plan& by, const std::byte* from) {
    return combine(received_shards<float>{by, from}, result);
  };
  expect(received(message_plan::make<float>({2, 3, 4, 6}).value(), message.data()),
         errc::shape_mismatch, "output", "head_dim", 5, 6);
  expect(received(message_plan::make<bf16>({2, 3, 4, 5}).value(), message.data()),
         errc::shape_mismatch, "message", "", 2, 4);
  expect(received(plan, message.data() + 4), errc::misaligned, "message", "", 4, 0);
  expect(received(plan, nullptr), errc::invalid_argument, "message", "", 0, 0);
  message_plan forged = plan;
  forged.shape.ranks = 20;
  expect(received(forged, message.data()), errc::unsupported, "ranks", "", 20, max_ranks);
}

TEST_CASE("B=0, no heads of any number of tokens, and rows without columns") {
  const auto nothing = [](index_t tokens, index_t heads) {
    const gathered_shards none_there{
        packed_outputs(static_cast<const float*>(nullptr), 2, tokens, heads, 8),
        packed_lses(static_cast<const float*>(nullptr), 2, tokens, heads)};
    return reference::lse_combine<e>(none_there,
                                     packed_output(static_cast<float*>(nullptr), tokens, heads, 8),
                                     packed_lse(static_cast<float*>(nullptr), tokens, heads));
  };
  CHECK(nothing(0, 4).ok());
  CHECK(nothing(4, 0).ok());
  CHECK(nothing(index_t{1} << 40, 0).ok());
  // The LSEs of rows without columns are merged all the same.
  problem<float> of(2, 2, 2, 0);
  support::fill(of.lses(), [](const auto&) { return 1.0f; });
  REQUIRE(reference::lse_combine<two>(of.gathered(), of.result(), of.merged()).ok());
  CHECK(wrong_elements(of.merged(), [](const auto&) { return 2.0f; }) == 0);
}

}  // namespace
