// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/plan/capacity.hpp>

#include <support/sentence.hpp>

#include <doctest/doctest.h>

#include <string>
#include <type_traits>

using namespace headwise;
using support::sentence;

TEST_CASE("M01: a workspace is sized by gathered heads and by tokens, in 64 bits") {
  const auto needed = [](index_t heads, index_t tokens, index_t query) {
    return checked_size(8) * heads * tokens * checked_size(query).rounded_up(256) +
           (index_t{1} << 20);
  };
  constexpr index_t available = index_t{394} << 20;
  CHECK(available == 413138944);
  CHECK(needed(64, 3144, 1).value() == 413138944);
  CHECK(require_capacity("workspace", needed(64, 3144, 1), available).ok());

  const status over = require_capacity("workspace", needed(64, 3145, 1), available);
  CHECK(over.code == errc::capacity_exceeded);
  CHECK(std::string(over.operand) == "workspace");
  CHECK(over.got == 413270016);
  CHECK(over.expected == 413138944);
  CHECK(sentence(over) ==
        "capacity_exceeded: workspace: got 413270016, expected 413138944: more is needed (got) "
        "than available (expected)");

  CHECK(needed(64, 16384, 1).value() == 2148532224);  // beyond 2 GiB
  // With the heads of one rank in place of the group's, the same call looks as if it fitted.
  CHECK(require_capacity("workspace", needed(16, 3145, 1), available).ok());
}

TEST_CASE("M01: a size that leaves 64 bits fits nowhere") {
  constexpr checked_size huge = checked_size(index_t{1} << 62) * 2;
  static_assert(!huge.valid());
  static_assert(huge.value() == INT64_MAX);
  static_assert((checked_size(index_t{1} << 61) * 3).valid());
  static_assert((checked_size(INT64_MAX) * 1).value() == INT64_MAX);
  static_assert((checked_size(INT64_MAX) * 0).value() == 0);
  static_assert(!(checked_size(INT64_MAX) + 1).valid());
  static_assert(!checked_size(INT64_MAX).rounded_up(16).valid());
  static_assert(checked_size(INT64_MAX - 15).rounded_up(16).value() == INT64_MAX - 15);
  static_assert(!(huge * 0).valid() && !(huge + 0).valid() && !huge.rounded_up(16).valid());
  static_assert(!checked_size(-1).valid() && !(checked_size(-1) * checked_size(-1)).valid());

  // Not even into the largest there is.
  const status over = require_capacity("slab", huge, INT64_MAX);
  CHECK(over.code == errc::capacity_exceeded);
  CHECK(std::string(over.operand) == "slab");
  CHECK(require_capacity("slab", checked_size(-1), 1024).code == errc::capacity_exceeded);
  CHECK(require_capacity("slab", checked_size(0), 0).ok());
}

TEST_CASE("M03: a call that is one row beyond the capacity is refused") {
  constexpr row_capacity pool{8};
  static_assert(pool.accepts(query_rows{8}) && !pool.accepts(query_rows{9}));
  CHECK(pool.accepts(query_rows{0}));
  CHECK(pool.require("pool", query_rows{8}).ok());
  const status over = pool.require("pool", query_rows{9});
  CHECK(over.code == errc::capacity_exceeded);
  CHECK(std::string(over.operand) == "pool");
  CHECK(over.got == 9);
  CHECK(over.expected == 8);
}

TEST_CASE("K05: capacity counts query tokens, not requests") {
  constexpr row_capacity pool{8};
  constexpr auto rows = query_rows::make(4, 4);
  static_assert(rows.ok() && rows.value().count == 16);
  CHECK_FALSE(pool.accepts(rows.value()));
  CHECK(pool.require("pool", rows.value()).got == 16);
  CHECK(pool.accepts(query_rows::make(2, 4).value()));

  // Four requests are not four rows: a bare number is no query_rows.
  static_assert(!std::is_convertible_v<index_t, query_rows>);
  static_assert(!std::is_convertible_v<int, query_rows>);

  CHECK(query_rows::make(0, 4).value().count == 0);
  CHECK(query_rows::make(-1, 4).why().code == errc::invalid_argument);
  CHECK(query_rows::make(4, 0).why().code == errc::invalid_argument);
  CHECK(query_rows::make(INT64_MAX, 2).why().code == errc::capacity_exceeded);
}

TEST_CASE("J06: ranks with different live rows but one padded batch decide alike") {
  constexpr row_capacity cap{8};
  CHECK(cap.accepts(query_rows{8}));
  CHECK_FALSE(cap.accepts(query_rows{9}));

  // Each rank knows its own live rows and the batch that all of them are padded to.
  struct rank_state {
    index_t live;
    query_rows padded;
  };
  const rank_state inside[2] = {{3, {8}}, {8, {8}}};
  CHECK(cap.accepts(inside[0].padded));
  CHECK(cap.accepts(inside[1].padded));
  // Live rows 3 would pass and 9 would not: the padded batch says the same to both.
  const rank_state beyond[2] = {{3, {9}}, {9, {9}}};
  CHECK_FALSE(cap.accepts(beyond[0].padded));
  CHECK_FALSE(cap.accepts(beyond[1].padded));
  // And live rows cannot even be asked about.
  static_assert(!std::is_invocable_v<decltype(&row_capacity::accepts), row_capacity, index_t>);
}

TEST_CASE("G02: every stage of a staging buffer begins at a multiple of 16") {
  // Half of 536870224 is a multiple of 8 only.
  static_assert(536870224 % 16 == 0 && (536870224 / 2) % 16 == 8);
  constexpr auto large = staging::make(536870224, 2);
  static_assert(large.ok() && large.value().stage_bytes == 268435120);
  CHECK(large.value().offset(0) == 0);
  CHECK(large.value().offset(1) % 16 == 0);
  CHECK(large.value().bytes() >= 536870224);

  CHECK(staging::make(48, 2).value() == staging{2, 32});
  CHECK(staging::make(64, 2).value() == staging{2, 32});
  CHECK(staging::make(1, 3).value() == staging{3, 16});
  CHECK(staging::make(0, 2).value() == staging{2, 0});
  CHECK(staging::make(100, 2, 128).value() == staging{2, 128});

  CHECK(staging::make(-1, 2).why().code == errc::invalid_argument);
  CHECK(staging::make(48, 0).why().code == errc::invalid_argument);
  CHECK(staging::make(48, 2, 24).why().code == errc::invalid_argument);
  CHECK(staging::make(48, 2, 0).why().code == errc::invalid_argument);
  CHECK(staging::make(INT64_MAX, 2).why().code == errc::capacity_exceeded);
}

namespace {

int line_here = 0;
status fails_here() {
  line_here = __LINE__ + 1;
  return require_capacity("buffer", 2, 1);
}

}  // namespace

TEST_CASE("a status carries the line of the caller") {
  const status why = fails_here();
  CHECK(why.where.line == line_here);
  CHECK(std::string(why.where.file).find("capacity.cpp") != std::string::npos);
  const auto rows = query_rows::make(-1, 1);
  const int line = __LINE__ - 1;
  CHECK(rows.why().where.line == line);
  const auto too_many = query_rows::make(INT64_MAX, 2);
  CHECK(too_many.why().where.line == line + 3);
}
