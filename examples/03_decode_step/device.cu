// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include "run.hpp"

#include <cuda_runtime.h>

std::string demo::why_not_on(device_kind device) {
  if (device == device_kind::host) return "this program is for --device cuda";
  int devices = 0;
  const cudaError_t said = cudaGetDeviceCount(&devices);
  if (said == cudaSuccess && devices > 0) return {};
  return std::string("--device cuda: there is no GPU to run on: ") + cudaGetErrorString(said);
}
