// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include "run.hpp"

std::string demo::why_not_on(device_kind device) {
  if (device == device_kind::host) return {};
  return "--device cuda: this program was built without CUDA; ./dev demo --device cuda builds the "
         "other one";
}
