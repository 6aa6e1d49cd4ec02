// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <support/gpu_main.hpp>

#include <cstdlib>

int main(int argc, char** argv) {
  // Before CUDA is there: two streams that share a hardware queue take turns, and of two ranks that
  // wait for each other the second would never start.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  return support::gpu_main(argc, argv);
}
