// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include "place_cuda.cuh"
#include "run.hpp"

template <>
demo::outcome demo::run_with<headwise::bf16>(const setting& how) {
  return run_at<cuda_place, headwise::bf16>(how);
}
