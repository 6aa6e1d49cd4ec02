// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <support/runner.hpp>

#include <cuda_runtime.h>

#include <cstdio>
#include <dlfcn.h>

// Runs a GPU suite, after one line that says on what: test/gpu/record.py reads it.

namespace support {

// Looked up at run time: a suite needs NCCL only where a case uses it.
inline int nccl_version() {
  void* library = dlopen("libnccl.so.2", RTLD_LAZY);
  if (library == nullptr) return 0;
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get != nullptr && get(&version) != 0) version = 0;
  return version;
}

inline int gpu_main(int argc, char** argv) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    return run_tests(argc, argv, "no GPU, or no driver for one");
  }

  cudaDeviceProp device{};
  int driver = 0;
  int runtime = 0;
  if (error != cudaSuccess || cudaGetDeviceProperties(&device, 0) != cudaSuccess ||
      cudaDriverGetVersion(&driver) != cudaSuccess ||
      cudaRuntimeGetVersion(&runtime) != cudaSuccess) {
    std::puts("a GPU is there but does not answer\n0 passed, 1 failed");
    return 1;
  }
  const int nccl = nccl_version();
  std::printf("environment: gpu=%s x%d; cuda_driver=%d.%d; cuda=%d.%d; nccl=%d.%d.%d\n",
              device.name, devices, driver / 1000, driver % 1000 / 10, runtime / 1000,
              runtime % 1000 / 10, nccl / 10000, nccl / 100 % 100, nccl % 100);
  return run_tests(argc, argv);
}

}  // namespace support
