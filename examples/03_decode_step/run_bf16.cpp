// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include "place.hpp"
#include "run.hpp"

template <>
demo::outcome demo::run_with<headwise::bf16>(const setting& how) {
  return run_at<host_place, headwise::bf16>(how);
}
