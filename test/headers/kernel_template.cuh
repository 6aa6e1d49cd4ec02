// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

// The form in which Headwise ships kernels in headers: a function template (a plain __global__ is
// a duplicate symbol, `inline __global__` a warning) behind an inline wrapper that launches it.
// Two translation units and two shared objects instantiate the same one.

#include <headwise/config.hpp>

namespace headwise_test {

template <class T>
__global__ void fill(T* out, headwise::index_t count, T value) {
  const headwise::index_t i = blockIdx.x * headwise::index_t{blockDim.x} + threadIdx.x;
  if (i < count) out[i] = value;
}

template <class T>
inline cudaError_t launch_fill(T* out, headwise::index_t count, T value, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(headwise::detail::ceil_div(count, 256));
  fill<T><<<blocks, 256, 0, stream>>>(out, count, value);
  return cudaGetLastError();
}

/// 0: filled and read back; 1: wrong; 2: no GPU.
inline int fill_and_check(float value) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 2;
  constexpr headwise::index_t count = 1000;
  float* memory = nullptr;
  if (cudaMalloc(&memory, count * sizeof(float)) != cudaSuccess) return 1;
  float back[count] = {};
  cudaError_t error = launch_fill(memory, count, value, nullptr);
  if (error == cudaSuccess) error = cudaMemcpy(back, memory, sizeof(back), cudaMemcpyDefault);
  cudaFree(memory);
  if (error != cudaSuccess) return 1;
  for (const float element : back) {
    if (element != value) return 1;
  }
  return 0;
}

}  // namespace headwise_test
