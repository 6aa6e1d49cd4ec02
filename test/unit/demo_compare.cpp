// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The comparison behind the demo's exit status: a wrong result must not pass it.

#include "../../examples/03_decode_step/compare.hpp"

#include <doctest/doctest.h>

#include <initializer_list>
#include <limits>

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

demo::worst_case compared(double got, double expected, double allowed) {
  demo::worst_case one;
  one.compare(got, expected, allowed);
  return one;
}

}  // namespace

TEST_CASE("demo: a comparison at its bound passes, beyond it does not") {
  CHECK(compared(1.0, 1.0, 0.0).beyond == 0);
  CHECK(compared(1.5, 1.0, 0.5).beyond == 0);
  CHECK(compared(1.5, 1.0, 0.5).ratio == 1.0);
  CHECK(compared(1.5, 1.0, 0.25).beyond == 1);
  CHECK(compared(1.5, 1.0, 0.25).ratio == 2.0);
  CHECK(compared(1.0, 1.5, 0.25).beyond == 1);
  CHECK(compared(0.0, 1e-300, 0.0).beyond == 1);
}

TEST_CASE("demo: what is not finite passes only as itself") {
  CHECK(compared(-infinity, -infinity, 0.0).beyond == 0);
  CHECK(compared(-infinity, -infinity, 0.0).ratio == 0.0);
  for (const double got : {not_a_number, infinity, -infinity}) {
    CAPTURE(got);
    CHECK(compared(got, 1.0, 1e300).beyond == 1);
    CHECK(compared(got, 1.0, 1e300).ratio == infinity);
  }
  CHECK(compared(infinity, -infinity, 1.0).beyond == 1);
  CHECK(compared(1.0, -infinity, 0.0).beyond == 1);
  CHECK(compared(not_a_number, -infinity, 0.0).beyond == 1);
  CHECK(compared(1.0, not_a_number, 1.0).beyond == 1);
  CHECK(compared(1.0, 1.5, not_a_number).beyond == 1);
}

TEST_CASE("demo: the worst of many comparisons is kept, whatever their order") {
  demo::worst_case all;
  all.compare(1.1, 1.0, 1.0);
  all.compare(3.0, 1.0, 4.0);
  all.compare(1.0, 1.0, 0.0);
  all.compare(1.2, 1.0, 1.0);
  CHECK(all.compared == 4);
  CHECK(all.beyond == 0);
  CHECK(all.error == 2.0);
  CHECK(all.bound == 4.0);
  CHECK(all.ratio == 0.5);
  all.compare(not_a_number, 1.0, 1.0);
  all.compare(9.0, 1.0, 1.0);
  CHECK(all.beyond == 2);
  CHECK(all.ratio == infinity);
}

TEST_CASE("demo: the digest is FNV-1a of 64 bits") {
  demo::digest empty;
  CHECK(empty.value() == 0xcbf29ce484222325u);
  demo::digest one;
  one.add("a", 1);
  CHECK(one.value() == 0xaf63dc4c8601ec8cu);
  demo::digest six;
  six.add("foobar", 6);
  CHECK(six.value() == 0x85944171f73967e8u);
  demo::digest in_parts;
  in_parts.add("foo", 3);
  in_parts.add("bar", 3);
  CHECK(in_parts.value() == six.value());
}
