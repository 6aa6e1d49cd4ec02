// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/core/status.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <type_traits>

using namespace headwise;

namespace {

std::string text_of(const status& what) {
  std::array<char, 256> buffer{};
  buffer.fill('#');
  const std::size_t length = format_status(what, buffer.data(), buffer.size());
  REQUIRE(length < buffer.size());
  CHECK(buffer[length] == '\0');
  CHECK(std::strlen(buffer.data()) == length);
  return buffer.data();
}

result<int> half_of(int value) {
  if (value % 2 != 0) return failure(errc::invalid_argument, "value", "must be even", value);
  return value / 2;
}

}  // namespace

TEST_CASE("status: a failure names the operand, the axis and both values") {
  const status wrong = failure(errc::shape_mismatch, "partial_lse",
                               "must be that of partial_output", 31, 32, "head");
  CHECK_FALSE(wrong.ok());
  CHECK(text_of(wrong) ==
        "shape_mismatch: partial_lse, axis head: got 31, expected 32: must be that of "
        "partial_output");
}

TEST_CASE("status: parts that are not there leave no trace in the text") {
  CHECK(text_of({}) == "ok");
  CHECK(text_of(failure(errc::timed_out, "", "")) == "timed_out");
  CHECK(text_of(failure(errc::not_contiguous, "output", "")) == "not_contiguous: output");
  CHECK(text_of(failure(errc::overlap, "output", "two elements share memory")) ==
        "overlap: output: two elements share memory");
  CHECK(text_of(failure(errc::misaligned, "", "", 8, 16)) == "misaligned: got 8, expected 16");
}

TEST_CASE("status: the extreme values are written in full") {
  constexpr index_t least = std::numeric_limits<index_t>::min();
  constexpr index_t most = std::numeric_limits<index_t>::max();
  CHECK(text_of(failure(errc::out_of_range, "x", "", least, most)) ==
        "out_of_range: x: got " + std::to_string(least) + ", expected " + std::to_string(most));
  CHECK(text_of(failure(errc::out_of_range, "x", "", 0, -1)) ==
        "out_of_range: x: got 0, expected -1");
}

TEST_CASE("status: a short buffer is filled, terminated and never overrun") {
  const status wrong = failure(errc::capacity_exceeded, "workspace", "too small", 12, 345, "rank");
  const std::string whole = text_of(wrong);
  for (std::size_t capacity = 0; capacity <= whole.size() + 2; ++capacity) {
    std::string buffer(whole.size() + 8, '#');
    CHECK(format_status(wrong, buffer.data(), capacity) == whole.size());
    const std::size_t written = std::min(capacity, whole.size() + 1);
    if (capacity != 0) {
      CHECK(buffer.compare(0, written - 1, whole, 0, written - 1) == 0);
      CHECK(buffer[written - 1] == '\0');
    }
    CHECK(buffer.find_first_not_of('#', written) == std::string::npos);
  }
}

TEST_CASE("status: every code has a name of its own") {
  std::set<std::string> names;
  constexpr int codes = static_cast<int>(errc::system_failed) + 1;
  for (int code = 0; code < codes; ++code) names.insert(to_string(static_cast<errc>(code)));
  CHECK(names.size() == static_cast<std::size_t>(codes));
  CHECK(names.count("unknown") == 0);
  CHECK(std::string(to_string(static_cast<errc>(codes))) == "unknown");
}

TEST_CASE("status: a failure remembers the line it was made on") {
  const status wrong = failure(errc::unsupported, "kernel", "");
  CHECK(wrong.where.line == __LINE__ - 1);
  CHECK(std::string(wrong.where.file).find("core_status.cpp") != std::string::npos);
}

TEST_CASE("status: formatting works at compile time, and a status is plain data") {
  static_assert(std::is_trivially_copyable_v<status>);
  constexpr auto text = [] {
    std::array<char, 32> buffer{};
    format_status(failure(errc::overlap, "output", ""), buffer.data(), buffer.size());
    return buffer;
  }();
  CHECK(std::string(text.data()) == "overlap: output");
}

TEST_CASE("status: a result holds a value or the reason why there is none") {
  const result<int> good = half_of(6);
  CHECK(good.ok());
  CHECK(good.value() == 3);
  CHECK(good.why().ok());

  const result<int> bad = half_of(7);
  CHECK_FALSE(bad.ok());
  CHECK(bad.why().code == errc::invalid_argument);
  CHECK(bad.why().got == 7);
  CHECK(text_of(bad.why()) == "invalid_argument: value: got 7, expected 0: must be even");
}
