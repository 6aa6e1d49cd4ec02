// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <doctest/doctest.h>

#include <headers/kernel_template.cuh>

int fill_in_second_unit(float value);

TEST_CASE("N02: the same kernel template runs when launched from two units") {
  CHECK(headwise_test::fill_and_check(3.0f) == 0);
  CHECK(fill_in_second_unit(5.0f) == 0);
  CHECK(headwise_test::fill_and_check(7.0f) == 0);
}
