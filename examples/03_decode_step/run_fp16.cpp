// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include "place.hpp"
#include "run.hpp"

template <>
demo::outcome demo::run_with<headwise::fp16>(const setting& how) {
  return run_at<host_place, headwise::fp16>(how);
}
