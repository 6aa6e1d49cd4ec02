// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <support/gpu_main.hpp>

#include <cstdlib>

int main(int argc, char** argv) {
  // Before CUDA is there: two streams that share a hardware queue take turns, and of two ranks that
  // wait for each other the second would never start.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  // What a test uses beside pools may be loaded, or given memory for its stack, at its first
  // launch, which waits for the device: on a GPU that ranks share, for a kernel of a peer. (A
  // pool's own kernels are loaded by it; set to LAZY, pool.cu shows that.)
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  return support::gpu_main(argc, argv);
}
