// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/collective/agree.hpp>

#include <support/scatter.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace headwise;
using namespace support;

TEST_CASE("J05: a group decides by the AND over its ranks, and all hear the same") {
  for (const int ranks : {1, 2, 3, 9, 16}) {
    in_process_group group(ranks);
    // -1: nobody fails to start.
    for (int failing = -1; failing < ranks; ++failing) {
      const auto decisions =
          on_ranks(group, ranks, [&](in_process& me) { return agree(me, me.rank() != failing); });
      for (const auto& one : decisions) {
        REQUIRE(one.ok());
        CHECK(one.value() == (failing == -1));
      }
    }
    const auto all_fail = on_ranks(group, ranks, [&](in_process& me) { return agree(me, false); });
    for (const auto& one : all_fail) CHECK(one.value() == false);
  }
}

TEST_CASE("J05: when one rank cannot take the fast path, all take the other one") {
  const scatter_problem<bf16> problem{{3, 4, 2, 16}, 48248};
  const auto decode = [&](in_process& me, bool started) {
    const result<bool> fast = agree(me, started);
    scatter_outcome outcome;
    outcome.came_to = fast.why();
    if (!fast.ok()) return outcome;
    const auto preference = fast.value() ? route_preference::automatic : route_preference::packed;
    return scatter_once<bf16, log_base::e, float, true>(
        me, problem, style::head_major, style::head_major, style::packed, {{}, preference});
  };
  const auto fast = on_ranks(3, [&](in_process& me) { return decode(me, true); });
  const auto fallen_back = on_ranks(3, [&](in_process& me) { return decode(me, me.rank() != 1); });
  CHECK(first_wrong(fast) == "");
  CHECK(first_wrong(fallen_back) == "");
  CHECK(same_results(fast, fallen_back));
}

TEST_CASE("J05: a rank that does something else, or nothing, is no silent yes") {
  in_process_group group(3, std::chrono::milliseconds(300));
  const auto other_call = on_ranks(group, 3, [](in_process& me) {
    return me.rank() == 2 ? result<bool>(me.barrier()) : agree(me, true);
  });
  for (const auto& one : other_call) {
    REQUIRE_FALSE(one.ok());
    CHECK(sentence(one.why()) == "rank_mismatch: barrier, axis operation: seen on rank 2");
  }
  const auto absent = on_ranks(group, 3, [](in_process& me) {
    return me.rank() == 0 ? result<bool>(true) : agree(me, true);
  });
  for (const std::size_t r : {1u, 2u}) {
    REQUIRE_FALSE(absent[r].ok());
    CHECK(absent[r].why().code == errc::timed_out);
    CHECK(absent[r].why().got == 0);
  }
}

TEST_CASE("agree: a transport of more ranks than a group can have is refused before it is used") {
  silent_rank group{0, 17};
  CHECK(agree(group, true).why().code == errc::unsupported);
}
