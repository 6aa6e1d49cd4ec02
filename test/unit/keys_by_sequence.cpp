// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Counts of keys told by sequence, in the host pack and combine and in a whole reduce-scatter.

#include <headwise/reference/lse_combine.hpp>
#include <headwise/reference/pack.hpp>

#include <support/guarded.hpp>
#include <support/packed.hpp>
#include <support/random.hpp>
#include <support/scatter.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

using namespace headwise;
using support::guarded;
using support::packed_lse;
using support::packed_output;
using support::same_bits;
using support::sentence;

namespace {

constexpr auto e = log_base::e;
constexpr float infinity = std::numeric_limits<float>::infinity();

/// Lengths and boundaries as an engine's metadata has them, at any stride; what lies between would
/// count as keys, and as boundaries.
template <class Count>
struct sequences {
  std::vector<Count> lengths;
  std::vector<Count> starts;
  index_t stride = 1;
  guarded<Count> length_memory{spread_size(lengths)};
  guarded<Count> start_memory{spread_size(starts)};

  index_t spread_size(const std::vector<Count>& values) const {
    return static_cast<index_t>(values.size()) * stride + 1;
  }
  auto spread(guarded<Count>& memory, const std::vector<Count>& values) {
    for (index_t i = 0; i < memory.size(); ++i) memory.data()[i] = Count{1};
    const layout by_stride(dim<axis::sequence>(static_cast<index_t>(values.size()), stride));
    for (std::size_t i = 0; i < values.size(); ++i) {
      memory.data()[static_cast<index_t>(i) * stride] = values[i];
    }
    return view<const Count, std::remove_cv_t<decltype(by_stride)>>(memory.data(), by_stride);
  }
  auto keys() {
    return keys_by_sequence{spread(length_memory, lengths), spread(start_memory, starts)};
  }

  /// Sequence by sequence, for whoever looks it up row by row.
  std::vector<bool> has_keys(index_t tokens) const {
    std::vector<bool> has(static_cast<std::size_t>(tokens), false);
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      for (Count row = starts[s]; row < starts[s + 1] && row < tokens; ++row) {
        has[static_cast<std::size_t>(row)] = lengths[s] > 0;
      }
    }
    return has;
  }
};

/// What a pack sends as LSEs, by token, where every producer wrote 3.5 and the head's number.
template <class Count>
std::vector<float> sent(sequences<Count> of, index_t tokens, const message_format& format = {}) {
  constexpr index_t heads = 4, ranks = 2;
  guarded<bf16> rows(tokens * heads * 2);
  guarded<float> lses(tokens * heads);
  support::fill(packed_output(rows.data(), tokens, heads, 2),
                [](const auto& at) { return from_float<bf16>(static_cast<float>(at[0])); });
  support::fill(packed_lse(lses.data(), tokens, heads),
                [](const auto& at) { return 3.5f + static_cast<float>(at[1]); });
  const message_plan plan =
      message_plan::make<bf16>({ranks, tokens, heads / ranks, 2}, format).value();
  guarded<std::byte> message(plan.total_bytes);
  const status came =
      reference::pack<e>(packed_output(rows.data(), tokens, heads, 2),
                         packed_lse(lses.data(), tokens, heads), plan, message.data(), of.keys());
  CAPTURE(sentence(came));
  REQUIRE(came.ok());
  std::vector<float> by_token;
  for (index_t token = 0; token < tokens; ++token) {
    float first = 0;
    for (index_t head = 0; head < heads; ++head) {
      float lse = 0;
      std::memcpy(&lse, message.data() + plan.lse_at(head / 2, token, head % 2), sizeof lse);
      if (head == 0) first = lse;
      CHECK(lse == (first == -infinity ? first : first + static_cast<float>(head)));
      // The payload travels as it is, with keys or without.
      bf16 payload;
      std::memcpy(&payload, message.data() + plan.payload_at(head / 2, token, head % 2), 2);
      CHECK(to_float(payload) == static_cast<float>(token));
    }
    by_token.push_back(first);
  }
  return by_token;
}

constexpr float some = 3.5f;
constexpr float none_here = -infinity;
using rows_sent = std::vector<float>;

}  // namespace

TEST_CASE("keys_by_sequence: each row of a sequence has the keys of the sequence") {
  // One query token each; several; a number of its own for each.
  CHECK(sent<std::int32_t>({{7, 0, 1}, {0, 1, 2, 3}}, 3) == rows_sent{some, none_here, some});
  CHECK(sent<std::int32_t>({{0, 7}, {0, 2, 4}}, 4) == rows_sent{none_here, none_here, some, some});
  CHECK(sent<std::int64_t>({{3, 0, 9}, {0, 1, 4, 6}}, 6) ==
        rows_sent{some, none_here, none_here, none_here, some, some});
}

TEST_CASE("keys_by_sequence: a sequence without query tokens has no row") {
  CHECK(sent<std::int32_t>({{3, 4, 0}, {0, 2, 2, 5}}, 5) ==
        rows_sent{some, some, none_here, none_here, none_here});
  CHECK(sent<std::int32_t>({{0, 4, 5}, {0, 0, 0, 2}}, 2) == rows_sent{some, some});
  CHECK(sent<std::int32_t>({{5, 0, 0}, {0, 2, 2, 2}}, 2) == rows_sent{some, some});
}

TEST_CASE("keys_by_sequence: rows behind the last boundary are padding") {
  CHECK(sent<std::int32_t>({{5, 6}, {0, 1, 2}}, 5) ==
        rows_sent{some, some, none_here, none_here, none_here});
  CHECK(sent<std::int32_t>({{5}, {0, 0}}, 2) == rows_sent{none_here, none_here});
}

TEST_CASE("keys_by_sequence: without a sequence, every row is padding") {
  CHECK(sent<std::int32_t>({{}, {0}}, 3) == rows_sent{none_here, none_here, none_here});
  CHECK(sent<std::int64_t>({{}, {0}}, 0).empty());
  // However many rows the one boundary leaves to nobody.
  CHECK(sent<std::int32_t>({{}, {2}}, 3) == rows_sent{none_here, none_here, none_here});
}

TEST_CASE("keys_by_sequence: lengths of any integer type, negative and beyond 32 bits") {
  CHECK(sent<std::int64_t>({{std::int64_t{1} << 40, -1}, {0, 1, 2}}, 2) ==
        rows_sent{some, none_here});
  CHECK(sent<std::uint8_t>({{255, 0}, {0, 1, 2}}, 2) == rows_sent{some, none_here});
  CHECK(sent<std::int32_t>({{3, 0, 9}, {0, 1, 2, 3}, 3}, 3) == rows_sent{some, none_here, some});
}

TEST_CASE("keys_by_sequence: random batches, in every format") {
  support::random_source random(20260);
  for (int round = 0; round < 300; ++round) {
    sequences<std::int32_t> of{{}, {0}, random.in(1, 3)};
    const index_t count = random.in(0, 9);
    for (index_t s = 0; s < count; ++s) {
      of.lengths.push_back(static_cast<std::int32_t>(random.one_of({0, 0, 1, 500})));
      of.starts.push_back(of.starts.back() +
                          static_cast<std::int32_t>(random.one_of({0, 1, 1, 2, 4})));
    }
    const index_t tokens = of.starts.back() + random.in(0, 3);
    // The memory is made of the lists, so of a whole new one.
    const sequences<std::int32_t> drawn{of.lengths, of.starts, of.stride};
    const message_format format{
        random.one_in(2) ? lse_placement::plane : lse_placement::inline_bits,
        random.one_in(2) ? peer_placement::outermost : peer_placement::inside_heads};
    rows_sent expected;
    for (const bool has : drawn.has_keys(tokens)) expected.push_back(has ? some : none_here);
    CHECK(sent<std::int32_t>({drawn.lengths, drawn.starts, drawn.stride}, tokens, format) ==
          expected);
  }
}

TEST_CASE("keys_by_sequence: in a combine, rows without keys do not count") {
  // Two shards of four tokens: 8 everywhere, and 2. The first has no keys for tokens 1, 2 and 3.
  constexpr index_t tokens = 4, heads = 2, head_dim = 3;
  guarded<float> first(tokens * heads * head_dim), second(tokens * heads * head_dim),
      result(tokens * heads * head_dim);
  guarded<float> first_lse(tokens * heads), second_lse(tokens * heads), merged(tokens * heads);
  const auto rows = [&](guarded<float>& of) {
    return packed_output(of.data(), tokens, heads, head_dim);
  };
  const auto lses = [&](guarded<float>& of) { return packed_lse(of.data(), tokens, heads); };
  support::fill(rows(first), [](const auto&) { return 8.0f; });
  support::fill(rows(second), [](const auto&) { return 2.0f; });
  support::fill(lses(first_lse), [](const auto&) { return 0.0f; });
  support::fill(lses(second_lse), [](const auto&) { return 0.0f; });
  sequences<std::int32_t> of{{9, 0}, {0, 1, 3}};
  const auto masked = shard{rows(first), lses(first_lse), of.keys()};
  REQUIRE(reference::lse_combine<e>(separate_shards(masked, shard{rows(second), lses(second_lse)}),
                                    rows(result), lses(merged))
              .ok());
  CHECK(support::wrong_elements(rows(result),
                                [](const auto& at) { return at[0] == 0 ? 5.0f : 2.0f; }) == 0);
  for (index_t token = 0; token < tokens; ++token) {
    for (index_t head = 0; head < heads; ++head) {
      const float expected = token == 0 ? 0.693147f : 0.0f;
      CHECK(lses(merged)(token, head) == doctest::Approx(expected).epsilon(1e-5));
    }
  }
  // Alone, as a group of one rank combines it.
  REQUIRE(reference::lse_combine<e>(masked, rows(result), lses(merged)).ok());
  CHECK(support::wrong_elements(rows(result),
                                [](const auto& at) { return at[0] == 0 ? 8.0f : 0.0f; }) == 0);
  CHECK(support::wrong_elements(lses(merged),
                                [](const auto& at) { return at[0] == 0 ? 0.0f : -infinity; }) == 0);
}

TEST_CASE("keys_by_sequence: a reduce-scatter gives the bits that counts by token give") {
  for (const bool head_major : {false, true}) {
    const support::scatter_problem<bf16> problem{{3, 5, 2, 8}, 4711};
    // Rank r lacks sequence r; the last row is padding on every rank.
    const auto run = [&]<bool HeadMajor>(std::bool_constant<HeadMajor>, bool by_sequence) {
      return support::on_ranks(3, [&](in_process& me) {
        const auto which = HeadMajor ? support::style::head_major : support::style::tiled;
        support::scatter_operands<bf16, float, HeadMajor> mine(problem.shape, which, which);
        problem.put(me.rank(), mine.partial_output, mine.partial_lse);
        auto workspace = support::scatter_workspace<bf16>(problem.shape);
        sequences<std::int32_t> of{{4, 4, 4}, {0, 1, 3, 4}};
        of.lengths[static_cast<std::size_t>(me.rank())] = 0;
        std::vector<std::int32_t> counts;
        for (const bool has : of.has_keys(5)) counts.push_back(has ? 4 : 0);
        const view by_token(static_cast<const std::int32_t*>(counts.data()),
                            packed(extent<axis::token>(5)));
        const auto call = [&](const auto& valid) {
          return lse_reduce_scatter<e>(host_executor{}, me, mine.partial_output.input(),
                                       mine.partial_lse.input(), mine.output.view(),
                                       mine.merged.view(), support::whole(workspace), {}, valid);
        };
        support::scatter_outcome outcome;
        outcome.came_to = by_sequence ? call(of.keys()) : call(by_token);
        outcome.stray_bytes = mine.stray_bytes();
        outcome.output = support::bits_of(mine.output);
        outcome.merged = support::bits_of(mine.merged);
        return outcome;
      });
    };
    const auto both = [&](auto order) {
      const auto by_sequence = run(order, true);
      CHECK(support::first_wrong(by_sequence) == "");
      CHECK(support::same_results(by_sequence, run(order, false)));
      // The padding: nothing merged with nothing.
      for (const auto& one : by_sequence) {
        const float empty = -infinity;
        std::vector<std::uint8_t> tail(one.merged.end() - 2 * 4, one.merged.end());
        CHECK(std::memcmp(tail.data(), &empty, 4) == 0);
        CHECK(std::memcmp(tail.data() + 4, &empty, 4) == 0);
      }
    };
    head_major ? both(std::true_type{}) : both(std::false_type{});
  }
}

TEST_CASE("keys_by_sequence: sizes that do not fit are refused, and nothing is written") {
  constexpr index_t tokens = 2, heads = 2;
  guarded<float> rows(tokens * heads), lses(tokens * heads), result(tokens * heads);
  guarded<float> merged(tokens * heads);
  const message_plan plan = message_plan::make<float>({2, tokens, 1, 1}).value();
  guarded<std::byte> message(plan.total_bytes);
  const auto output = packed_output(rows.data(), tokens, heads, 1);
  const auto lse = packed_lse(lses.data(), tokens, heads);
  const auto refused = [&](const auto& keys) {
    const status packed_came = reference::pack<e>(output, lse, plan, message.data(), keys);
    const status combined = reference::lse_combine<e>(
        shard{output, lse, keys}, packed_output(result.data(), tokens, heads, 1),
        packed_lse(merged.data(), tokens, heads));
    CHECK(sentence(combined) == sentence(packed_came));
    CHECK(message.stray_bytes() + result.stray_bytes() + merged.stray_bytes() == 0);
    return sentence(packed_came);
  };
  sequences<std::int32_t> as_many{{1, 1}, {0, 1}};
  CHECK(refused(as_many.keys()) ==
        "shape_mismatch: query_starts, axis sequence: got 2, expected 3: one boundary more than "
        "sequences");
  sequences<std::int32_t> too_many{{1, 1}, {0, 1, 2, 3}};
  CHECK(refused(too_many.keys()) ==
        "shape_mismatch: query_starts, axis sequence: got 4, expected 3: one boundary more than "
        "sequences");
  sequences<std::int32_t> no_boundary{{}, {}};
  CHECK(refused(no_boundary.keys()) ==
        "shape_mismatch: query_starts, axis sequence: got 0, expected 1: one boundary more than "
        "sequences");
  using along = layout<dim<axis::sequence>>;
  const std::int32_t numbers[4] = {0, 1, 2, 3};
  using of_numbers = view<const std::int32_t, along>;
  const auto from = [&](const std::int32_t* data, index_t count) {
    return of_numbers(data, along(dim<axis::sequence>(count, 1)));
  };
  CHECK(refused(keys_by_sequence{from(nullptr, 2), from(numbers, 3)}) ==
        "invalid_argument: lengths: a view with elements has a null pointer");
  CHECK(refused(keys_by_sequence{from(numbers, 2), from(nullptr, 3)}) ==
        "invalid_argument: query_starts: a view with elements has a null pointer");
  CHECK(refused(keys_by_sequence{from(numbers, -1), from(numbers, 0)}) ==
        "invalid_argument: lengths, axis sequence: got -1, expected 0: an extent is not negative");
}
