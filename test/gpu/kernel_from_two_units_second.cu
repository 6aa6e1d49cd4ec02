// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headers/kernel_template.cuh>

int fill_in_second_unit(float value);
int fill_in_second_unit(float value) { return headwise_test::fill_and_check(value); }
