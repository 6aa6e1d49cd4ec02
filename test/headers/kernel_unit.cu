// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Built twice, with UNIT as `first` and `second`.

#include "kernel_template.cuh"

int UNIT();
int UNIT() { return headwise_test::fill_and_check(3.0f); }
