// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Operands of one call that share memory: refused on all ranks, with nothing written.

#include <headwise/headwise.hpp>

#include <support/guarded.hpp>
#include <support/packed.hpp>
#include <support/ranks.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using namespace headwise;
using support::packed_lse;
using support::packed_output;

TEST_CASE("an all-to-all into its own operand is refused") {
  std::uint32_t memory[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  in_process_group group(2);
  const auto came = support::on_ranks(group, 2, [&](in_process& mine) {
    const view whole(memory[mine.rank()], packed(extent<axis::rank>(2), extent<axis::token>(2)));
    return all_to_all(host_executor{}, mine, whole, whole, {});
  });
  for (const status& one : came) {
    CHECK(support::sentence(one) ==
          "overlap: send: got 16, expected 0: shares memory with receive (bytes in common)");
  }
  CHECK(memory[0][2] == 3);
  CHECK(memory[1][0] == 5);
}

TEST_CASE("a gather takes local heads that stand in their place, and in no other") {
  for (const bool in_place : {true, false}) {
    CAPTURE(in_place);
    std::uint32_t memory[2][2] = {{10, 11}, {20, 21}};
    alignas(16) std::byte workspace[2][64];
    in_process_group group(2);
    const auto came = support::on_ranks(group, 2, [&](in_process& mine) {
      const int r = mine.rank();
      std::uint32_t* const heads = memory[r];
      const index_t place = in_place ? r : 1 - r;
      const auto gathered = packed_output(heads, 1, 2, 1);
      const auto local = packed_output(heads + place, 1, 1, 1);
      return all_gather_heads(host_executor{}, mine, local, gathered, workspace[r]);
    });
    for (const status& one : came) CHECK(one.code == (in_place ? errc::ok : errc::overlap));
    CHECK(memory[0][1] == (in_place ? 21 : 11));
    CHECK(memory[1][0] == (in_place ? 10 : 20));
  }
}

namespace {

constexpr index_t tokens = 2, heads = 3, head_dim = 4;  // heads of one of two ranks

/// What a rank puts in, with its place in it, and results beside it.
struct scatter_memory {
  float rows[tokens * 2 * heads * head_dim + head_dim] = {};
  float lses[tokens * 2 * heads + 1] = {};
  float result[tokens * heads * head_dim] = {};
  float merged[tokens * heads] = {};
  alignas(16) std::byte workspace[1024];

  auto partial() { return packed_output(rows, tokens, 2 * heads, head_dim); }
  auto partial_lse() { return packed_lse(lses, tokens, 2 * heads); }
  /// As the heads from `first` on lie in the partial result, `past` elements further on.
  auto inside(index_t first, index_t past = 0) {
    const auto part = slice<axis::head>(partial(), first, heads).value();
    return view(part.data() + past, part.layout());
  }
  auto inside_lse(index_t first, index_t past = 0) {
    const auto part = slice<axis::head>(partial_lse(), first, heads).value();
    return view(part.data() + past, part.layout());
  }
  auto beside() { return packed_output(result, tokens, heads, head_dim); }
  auto beside_lse() { return packed_lse(merged, tokens, heads); }
};

/// A reduce-scatter of two ranks: rank r has r + 1 in every element of its partial result, and both
/// weigh the same. `results(memory, rank)` gives output and merged LSE. On success the own heads of
/// each are 1.5 and ln 2; else nothing has been written.
template <class Results>
std::vector<status> scattered(const Results& results) {
  scatter_memory memory[2];
  in_process_group group(2);
  const auto came = support::on_ranks(group, 2, [&](in_process& mine) {
    scatter_memory& of = memory[mine.rank()];
    for (float& row : of.rows) row = static_cast<float>(mine.rank() + 1);
    const auto [output, merged] = results(of, mine.rank());
    return lse_reduce_scatter<log_base::e>(host_executor{}, mine, of.partial(), of.partial_lse(),
                                           output, merged, of.workspace);
  });
  for (int r = 0; r < 2; ++r) {
    scatter_memory& of = memory[r];
    const auto own = static_cast<float>(r + 1);
    const auto both = results(of, r);
    const auto output = both.first;
    const auto merged = both.second;
    const bool done = came[0].ok();
    support::for_each_element(output, [&](const auto&, index_t offset) {
      const float before = output.data() == of.result ? 0.0f : own;
      CHECK(output.data()[offset] == (done ? 1.5f : before));
    });
    support::for_each_element(merged, [&](const auto&, index_t offset) {
      CHECK(merged.data()[offset] == (done ? doctest::Approx(0.693147f) : doctest::Approx(0)));
    });
    // The heads of the peer are as they were.
    support::for_each_element(of.inside((1 - r) * heads), [&](const auto&, index_t offset) {
      CHECK(of.inside((1 - r) * heads).data()[offset] == own);
    });
  }
  return came;
}

void check_refused(const std::vector<status>& came, const char* operand, index_t bytes) {
  for (const status& one : came) {
    CAPTURE(support::sentence(one));
    CHECK(one.code == errc::overlap);
    CHECK(std::string(one.operand) == operand);
    CHECK(one.got == bytes);
    CHECK(std::string(one.message) ==
          "shares memory with its result, out of its place (bytes in common)");
  }
}

}  // namespace

TEST_CASE("a reduce-scatter may write over its own heads, of output and LSE") {
  for (const status& one :
       scattered([](scatter_memory&of, int) { return std::pair(of.beside(), of.beside_lse()); })) {
    CHECK(one.ok());
  }
  for (const status& one : scattered([](scatter_memory&of, int rank) {
         return std::pair(of.inside(rank * heads), of.inside_lse(rank * heads));
       })) {
    CHECK(one.ok());
  }
}

TEST_CASE("a reduce-scatter does not write over other heads, or beside its own") {
  // From the first element of the result to its last there are 36 floats, gaps included.
  const auto in_output = [](index_t other, index_t past) {
    return scattered([=](scatter_memory& of, int rank) {
      const index_t first = (other != 0 ? 1 - rank : rank) * heads;
      return std::pair(of.inside(first, past), of.beside_lse());
    });
  };
  check_refused(in_output(1, 0), "partial_output", 144);
  // An element further on; on rank 1 the last is behind the operand.
  for (const status& one : in_output(0, 1)) {
    CHECK(one.code == errc::overlap);
    CHECK(std::string(one.operand) == "partial_output");
  }
  const auto in_lse = [](index_t other) {
    return scattered([=](scatter_memory& of, int rank) {
      const index_t first = (other != 0 ? 1 - rank : rank) * heads;
      return std::pair(of.beside(), of.inside_lse(first, other != 0 ? 0 : 1));
    });
  };
  check_refused(in_lse(1), "partial_lse", 36);
  for (const status& one : in_lse(0)) {
    CHECK(one.code == errc::overlap);
    CHECK(std::string(one.operand) == "partial_lse");
  }
}

TEST_CASE("one rank that would write out of place is enough for all to stop") {
  const auto came = scattered([](scatter_memory& of, int rank) {
    // The same type of view for both: rank 0 in place, rank 1 where rank 0's heads are.
    return std::pair(of.inside(0), of.inside_lse(rank * heads));
  });
  CHECK(support::sentence(came[1]) ==
        "overlap: partial_output: got 144, expected 0: shares memory with its result, out of its "
        "place (bytes in common)");
  CHECK(came[0].code == errc::rank_mismatch);
  CHECK(std::string(came[0].operand) == "partial_output");
}

TEST_CASE("a group of one rank is held to the same places") {
  scatter_memory of;
  in_process_group group(1);
  in_process me = group.rank(0).value();
  const auto alone = [&](const auto& output) {
    return lse_reduce_scatter<log_base::e>(host_executor{}, me, of.inside(0), of.inside_lse(0),
                                           output, none, {});
  };
  CHECK(alone(of.inside(0)).ok());
  CHECK(alone(of.inside(0, head_dim)).code == errc::overlap);
}

namespace {

/// Operands of a reduce-scatter of two ranks, one behind the other; a test moves them.
struct in_a_row {
  static constexpr index_t elements = tokens * heads * head_dim, rows = tokens * heads;

  float memory[3 * elements + 3 * rows + heads];
  std::int32_t integers[tokens] = {1, 1};
  alignas(16) std::byte workspace[1024];

  float* partial = memory;
  float* partial_lse = partial + 2 * elements;
  float* output = partial_lse + 2 * rows;
  float* merged = output + elements;
  float* sink = merged + rows;
  const std::int32_t* valid = integers;

  in_a_row() {
    for (float& number : memory) number = 7.0f;
  }
  /// An operand of integers, which nobody reads there.
  static const std::int32_t* at(const float* place) {
    return reinterpret_cast<const std::int32_t*>(place);
  }
  auto counts() const { return view(valid, packed(extent<axis::token>(tokens))); }
  index_t written() const {
    index_t count = 0;
    for (const float number : memory) count += number == 7.0f ? 0 : 1;
    return count;
  }
};

void stay(in_a_row&) {}

/// What ranks come to that each `move` their operands; `valid_of` says their counts.
template <class ValidOf>
std::vector<status> moved(in_a_row (&of)[2], void (*move)(in_a_row&), const ValidOf& valid_of) {
  in_process_group group(2);
  return support::on_ranks(group, 2, [&](in_process& mine) {
    in_a_row& one = of[mine.rank()];
    move(one);
    return lse_reduce_scatter<log_base::e>(
        host_executor{}, mine, packed_output(one.partial, tokens, 2 * heads, head_dim),
        packed_lse(one.partial_lse, tokens, 2 * heads),
        packed_output(one.output, tokens, heads, head_dim), packed_lse(one.merged, tokens, heads),
        one.workspace, {}, valid_of(one), view(one.sink, packed(extent<axis::head>(heads))));
  });
}

template <class ValidOf>
void check_moved(const std::string& refusal, void (*move)(in_a_row&), const ValidOf& valid_of) {
  CAPTURE(refusal);
  in_a_row of[2];
  for (const status& one : moved(of, move, valid_of)) CHECK(support::sentence(one) == refusal);
  for (const in_a_row& one : of) CHECK(one.written() == 0);
}

}  // namespace

TEST_CASE("a result of a reduce-scatter lies beside every other operand, and in none") {
  const auto counts = [](const in_a_row& of) { return of.counts(); };
  in_a_row beside[2];
  for (const status& one : moved(beside, stay, counts)) CHECK(one.ok());
  for (const in_a_row& one : beside) CHECK(one.written() == in_a_row::elements + in_a_row::rows);
  const struct {
    const char* refusal;
    void (*move)(in_a_row&);
  } all[] = {
      {"overlap: partial_lse: got 48, expected 0: shares memory with a result (bytes in common)",
       [](in_a_row& of) { of.partial_lse = of.output; }},
      {"overlap: partial_output: got 24, expected 0: shares memory with a result (bytes in common)",
       [](in_a_row& of) { of.merged = of.partial; }},
      {"overlap: merged_lse: got 24, expected 0: shares memory with a result (bytes in common)",
       [](in_a_row& of) { of.merged = of.output; }},
      {"overlap: merged_lse: got 4, expected 0: shares memory with a result (bytes in common)",
       [](in_a_row& of) { --of.merged; }},
      {"overlap: valid: got 8, expected 0: shares memory with a result (bytes in common)",
       [](in_a_row& of) { of.valid = in_a_row::at(of.output + 1); }},
      {"overlap: valid: got 4, expected 0: shares memory with a result (bytes in common)",
       [](in_a_row& of) { of.valid = in_a_row::at(of.sink - 1); }},
      {"overlap: sink: got 12, expected 0: shares memory with a result (bytes in common)",
       [](in_a_row& of) { of.sink = of.output + 2; }},
      {"overlap: sink: got 4, expected 0: shares memory with a result (bytes in common)",
       [](in_a_row& of) { --of.sink; }},
  };
  for (const auto& one : all) check_moved(one.refusal, one.move, counts);
}

TEST_CASE("a result of a reduce-scatter does not lie in lengths or query starts") {
  // Of one sequence.
  const auto by_sequence = [](const std::int32_t* lengths, const std::int32_t* starts) {
    return keys_by_sequence{view(lengths, packed(extent<axis::sequence>(1))),
                            view(starts, packed(extent<axis::sequence>(2)))};
  };
  check_moved(
      "overlap: lengths: got 4, expected 0: shares memory with a result (bytes in common)", stay,
      [&](const in_a_row& of) { return by_sequence(in_a_row::at(of.output), of.integers); });
  check_moved(
      "overlap: query_starts: got 8, expected 0: shares memory with a result (bytes in common)",
      stay,
      [&](const in_a_row& of) { return by_sequence(of.integers, in_a_row::at(of.merged + 4)); });
}
