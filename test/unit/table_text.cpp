// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/pool/table_text.hpp>
#include <headwise/pool/tuning.hpp>

#include <support/random.hpp>
#include <support/sentence.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace headwise;
using support::sentence;

namespace {

constexpr protocol_table::step ll(index_t up_to) { return {up_to, protocol::ll}; }
constexpr protocol_table::step push(index_t up_to = INT64_MAX) { return {up_to, protocol::push}; }
constexpr protocol_table::step pull(index_t up_to = INT64_MAX) { return {up_to, protocol::pull}; }

std::string text_of(const protocol_table& table) {
  char text[512];
  const std::size_t length = format_protocol_table(table, text, sizeof text);
  REQUIRE(length < sizeof text);
  CHECK(std::string(text).size() == length);
  return text;
}

std::string refusal(const char* text) {
  const result<protocol_table> parsed = parse_protocol_table(text);
  REQUIRE_FALSE(parsed.ok());
  return sentence(parsed.why());
}

}  // namespace

TEST_CASE("table text: a table is two lines, with the steps that a call can reach") {
  protocol_table table;
  CHECK(text_of(table) == "lse_reduce_scatter: push\nall_gather_heads: push\n");
  CHECK(text_of(protocol_table::only(protocol::ll)) ==
        "lse_reduce_scatter: ll\nall_gather_heads: ll\n");
  table.reduce_scatter = {{ll(1 << 20), push(), push(), push()}};
  table.all_gather = {{ll(0), pull(65536), push(1 << 19), pull(7)}};
  CHECK(text_of(table) ==
        "lse_reduce_scatter: ll up to 1048576, push\n"
        "all_gather_heads: ll up to 0, pull up to 65536, push up to 524288, pull\n");
  // What pick() never comes to: behind a step without end, no further than the one before, and the
  // end of the last step.
  table.reduce_scatter = {{ll(4096), pull(4096), push(100), pull(INT64_MAX)}};
  table.all_gather = {{push(), ll(1), ll(2), ll(3)}};
  CHECK(text_of(table) == "lse_reduce_scatter: ll up to 4096, pull\nall_gather_heads: push\n");
  // Neighbours of one protocol are one step.
  table.reduce_scatter = {{ll(10), ll(20), push(30), push(40)}};
  CHECK(text_of(table) == "lse_reduce_scatter: ll up to 20, push\nall_gather_heads: push\n");
}

TEST_CASE("table text: what is read picks what was written") {
  support::random_source random(41);
  for (int round = 0; round < 500; ++round) {
    protocol_table table;
    for (protocol_table::steps* each : {&table.reduce_scatter, &table.all_gather}) {
      for (protocol_table::step& step : each->at) {
        step.which = static_cast<protocol>(random.in(0, 2));
        step.up_to = random.one_in(4) ? INT64_MAX : random.in(-3, 196);
      }
    }
    const std::string text = text_of(table);
    CAPTURE(text);
    const result<protocol_table> read = parse_protocol_table(text.c_str());
    REQUIRE(read.ok());
    for (const pool_operation operation :
         {pool_operation::reduce_scatter, pool_operation::all_gather}) {
      bool same = true;
      for (index_t bytes = 0; bytes < 210; ++bytes) {
        same = same && read.value().pick(operation, bytes) == table.pick(operation, bytes);
      }
      CHECK(same);
      CHECK(read.value().pick(operation, INT64_MAX) == table.pick(operation, INT64_MAX));
    }
    // A table that was read once is written and read as it is.
    CHECK(text_of(read.value()) == text);
    CHECK(parse_protocol_table(text_of(read.value()).c_str()).value() == read.value());
  }
}

TEST_CASE("table text: spaces, empty lines and the ends of lines of DOS mean nothing") {
  constexpr auto strict =
      parse_protocol_table("lse_reduce_scatter: ll up to 16, push\nall_gather_heads: pull\n");
  static_assert(strict.ok());
  static_assert(strict.value().pick(pool_operation::reduce_scatter, 16) == protocol::ll);
  static_assert(strict.value().pick(pool_operation::reduce_scatter, 17) == protocol::push);
  static_assert(strict.value().pick(pool_operation::all_gather, 0) == protocol::pull);
  CHECK(parse_protocol_table("\n\n  lse_reduce_scatter :ll\tup  to 16,push\r\n\r\n"
                             "all_gather_heads:pull \r\n\n ")
            .value() == strict.value());
  CHECK(parse_protocol_table("lse_reduce_scatter: ll up to 16, push\nall_gather_heads: pull")
            .value() == strict.value());
  // The largest number of bytes is one.
  CHECK(parse_protocol_table("lse_reduce_scatter: ll up to 9223372036854775807, push\n"
                             "all_gather_heads: pull")
            .value()
            .pick(pool_operation::reduce_scatter, INT64_MAX) == protocol::ll);
}

TEST_CASE("table text: what is no table is refused with its line") {
  const char* const no_line =
      "a line for lse_reduce_scatter, then one for all_gather_heads, each with ':'";
  const auto wrong = [](const char* line, const std::string& what) {
    return "invalid_argument: protocol_table, axis line: got " + std::string(line) +
           ", expected 0: " + what;
  };
  CHECK(refusal(nullptr) == "invalid_argument: protocol_table: is a null pointer");
  CHECK(refusal("") == wrong("1", no_line));
  CHECK(refusal("all_gather_heads: ll\nlse_reduce_scatter: ll\n") == wrong("1", no_line));
  CHECK(refusal("lse_reduce_scatter ll\nall_gather_heads: ll\n") == wrong("1", no_line));
  CHECK(refusal("lse_reduce_scatters: ll\nall_gather_heads: ll\n") == wrong("1", no_line));
  CHECK(refusal("lse_reduce_scatter: ll\n") == wrong("2", no_line));
  CHECK(refusal("lse_reduce_scatter: ll\n\nall_reduce: ll\n") == wrong("3", no_line));
  CHECK(refusal("lse_reduce_scatter: ll\nall_gather_heads: simple\n") ==
        "invalid_argument: protocol_table, axis line: got 2, expected 0: a protocol is 'll', "
        "'push' or 'pull'");
  for (const char* const text :
       {"lse_reduce_scatter:\nall_gather_heads: ll\n", "lse_reduce_scatter: LL\n",
        "lse_reduce_scatter: lll\n", "lse_reduce_scatter: pushing\n", "lse_reduce_scatter: pu\n",
        "lse_reduce_scatter: ll up to 5,\nall_gather_heads: ll\n"}) {
    CAPTURE(text);
    CHECK(refusal(text) == wrong("1", "a protocol is 'll', 'push' or 'pull'"));
  }
  for (const char* const text :
       {"lse_reduce_scatter: ll up 5, push\n", "lse_reduce_scatter: ll up to push\n",
        "lse_reduce_scatter: ll up to -1, push\n",
        "lse_reduce_scatter: ll up to 9223372036854775808, push\n",
        "lse_reduce_scatter: ll up to\n"}) {
    CAPTURE(text);
    CHECK(refusal(text) == wrong("1", "'up to' is followed by a number of bytes"));
  }
  CHECK(refusal("lse_reduce_scatter: ll up to 64, pull up to 64, push\n") ==
        "invalid_argument: protocol_table, axis line: got 1, expected 0: the steps do not ascend");
  CHECK(refusal("lse_reduce_scatter: ll up to 64\nall_gather_heads: ll\n") ==
        "invalid_argument: protocol_table, axis line: got 1, expected 0: the last step has no "
        "'up to'");
  CHECK(refusal("lse_reduce_scatter: ll up to 5.5, push\n") ==
        wrong("1", "the last step has no 'up to'"));
  CHECK(refusal("lse_reduce_scatter: ll\n"
                "all_gather_heads: ll up to 1, push up to 2, ll up to 3, push up to 4, ll\n") ==
        "invalid_argument: protocol_table, axis line: got 2, expected 0: has more than 4 steps");
  CHECK(refusal("lse_reduce_scatter: ll push\nall_gather_heads: ll\n") ==
        wrong("1", "text behind a step"));
  CHECK(refusal("lse_reduce_scatter: ll\nall_gather_heads: ll\n\nlse_reduce_scatter: ll\n") ==
        "invalid_argument: protocol_table, axis line: got 4, expected 0: text behind the table");
  // As many as there may be.
  CHECK(parse_protocol_table("lse_reduce_scatter: ll\n"
                             "all_gather_heads: ll up to 1, push up to 2, ll up to 3, push")
            .ok());
}

TEST_CASE("table text: no text makes the reader fall over") {
  support::random_source random(42);
  const std::string good = text_of(protocol_table::only(protocol::pull)) + text_of({});
  const std::string letters = "lpushtoa_g:, \n\t0129-\x80";
  for (int round = 0; round < 2000; ++round) {
    std::string text = good.substr(0, static_cast<std::size_t>(random.in(0, 59)));
    for (index_t i = random.in(0, 11); i > 0 && !text.empty(); --i) {
      const auto at = static_cast<std::size_t>(random.in(0, static_cast<index_t>(text.size()) - 1));
      text[at] =
          letters[static_cast<std::size_t>(random.in(0, static_cast<index_t>(letters.size()) - 1))];
    }
    const result<protocol_table> read = parse_protocol_table(text.c_str());
    if (read.ok()) {
      CHECK(parse_protocol_table(text_of(read.value()).c_str()).ok());
    } else {
      CHECK(read.why().code == errc::invalid_argument);
    }
  }
}

TEST_CASE("table text: too small a buffer gets the beginning, and the whole length is returned") {
  const protocol_table table = protocol_table::only(protocol::pull);
  const std::string all = text_of(table);
  for (std::size_t room = 0; room <= all.size() + 1; ++room) {
    std::string text(all.size() + 2, '#');
    CHECK(format_protocol_table(table, text.data(), room) == all.size());
    if (room > 0) CHECK(std::string(text.data()) == all.substr(0, room - 1));
    CHECK(text.find_first_not_of('#', room) == std::string::npos);
  }
}

// ---- from times to steps ---------------------------------------------------------------------

TEST_CASE("best_steps: the fastest protocol of each size, with the step half way") {
  const std::vector<protocol_times> times = {
      {1000, {3, 5, 6}}, {2000, {4, 5, 6}}, {4000, {7, 6, 7}}, {8000, {12, 8, 6}}};
  const auto steps = best_steps(times);
  REQUIRE(steps.ok());
  CHECK(steps.value() == protocol_table::steps{{ll(3000), push(6000), pull(), pull()}});
  constexpr protocol_times one[] = {{500, {3, 2, 4}}};
  static_assert(best_steps(one).value() == protocol_table::steps{{push(), push(), push(), push()}});
}

TEST_CASE("best_steps: what has no room is not taken, and noise makes no step") {
  // ll has no room from 4000 bytes on.
  const std::vector<protocol_times> cut = {
      {1000, {3, 5, 6}}, {2000, {4, 5, 6}}, {4000, {0, 9, 9.05}}};
  CHECK(best_steps(cut).value() == protocol_table::steps{{ll(3000), push(), push(), push()}});
  // Within one in a thousand of each other, in turns.
  std::vector<protocol_times> noisy;
  for (int i = 0; i < 12; ++i) {
    noisy.push_back({1000 * (i + 1), {100, i % 2 == 0 ? 100.1 : 99.95, 100.1}});
  }
  const protocol_table::steps quiet = best_steps(noisy).value();
  for (const auto& step : quiet.at) CHECK(step == quiet.at[0]);
  // Where noise costs nothing to follow, it is followed.
  CHECK_FALSE(best_steps(noisy, 0.0).value() == quiet);
  // A size that nothing was measured of decides nothing.
  const std::vector<protocol_times> hole = {
      {1000, {3, 5, 6}}, {2000, {0, 0, 0}}, {3000, {3, 5, 6}}};
  CHECK(best_steps(hole).value() ==
        protocol_table::steps{{ll(INT64_MAX), ll(INT64_MAX), ll(INT64_MAX), ll(INT64_MAX)}});
}

TEST_CASE("best_steps: no choice of four steps loses less") {
  support::random_source random(43);
  for (int round = 0; round < 60; ++round) {
    std::vector<protocol_times> times;
    const index_t sizes = random.in(1, 6);
    for (index_t i = 0; i < sizes; ++i) {
      protocol_times one{100 * (i + 1), {}};
      for (double& taken : one.nanoseconds) taken = static_cast<double>(random.in(10, 39));
      times.push_back(one);
    }
    const auto loss_of = [&](const protocol_table::steps& steps) {
      double loss = 0;
      for (const protocol_times& one : times) {
        double best = 1e30;
        for (const double taken : one.nanoseconds) best = taken < best ? taken : best;
        loss += one.nanoseconds[static_cast<int>(steps.pick(one.bytes))] / best - 1;
      }
      return loss;
    };
    const double own = loss_of(best_steps(times, 0.0).value());
    // Every assignment of protocols to sizes that four steps can make.
    index_t assignments = 1;
    for (index_t i = 0; i < sizes; ++i) assignments *= protocol_count;
    double least = 1e30;
    for (index_t code = 0; code < assignments; ++code) {
      double loss = 0;
      int steps = 0;
      index_t before = -1;
      index_t rest = code;
      for (const protocol_times& one : times) {
        const index_t which = rest % protocol_count;
        rest /= protocol_count;
        steps += which != before ? 1 : 0;
        before = which;
        protocol_table::steps only;
        for (auto& step : only.at) step = {INT64_MAX, static_cast<protocol>(which)};
        double best = 1e30;
        for (const double taken : one.nanoseconds) best = taken < best ? taken : best;
        loss += one.nanoseconds[which] / best - 1;
      }
      if (steps <= protocol_table::max_steps && loss < least) least = loss;
    }
    CHECK(own == doctest::Approx(least));
  }
}

TEST_CASE("best_steps: refuses what is no series of sizes") {
  CHECK(sentence(best_steps({}).why()) ==
        "invalid_argument: times: got 0, expected 40: of 1 to 40 sizes");
  std::vector<protocol_times> many(41);
  CHECK(best_steps(many).why().code == errc::invalid_argument);
  const std::vector<protocol_times> twice = {{1000, {1, 1, 1}}, {1000, {1, 1, 1}}};
  CHECK(sentence(best_steps(twice).why()) == "invalid_argument: times: their sizes do not ascend");
}
