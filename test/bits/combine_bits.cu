// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// combine_bits.cpp as nvcc compiles it: the digests of the host code, then, where there is a GPU,
// those of a kernel. check.py also reads the PTX.

#include "rows.hpp"

#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

namespace {

template <int Rows>
__global__ void combine_rows(bits::row_bits* out) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index < Rows) out[index] = bits::row(index);
}

void print_digests(const char* where, const std::vector<bits::row_bits>& all) {
  const bits::row_bits sum = bits::digest(all.data());
  std::printf("%s %016llx %016llx\n", where, static_cast<unsigned long long>(sum.ordinary),
              static_cast<unsigned long long>(sum.subnormal));
}

}  // namespace

int main() {
  std::vector<bits::row_bits> all(bits::rows);
  for (int index = 0; index < bits::rows; ++index) {
    all[static_cast<std::size_t>(index)] = bits::row(index);
  }
  print_digests("host", all);

  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 0;
  const std::size_t bytes = all.size() * sizeof(bits::row_bits);
  void* on_device = nullptr;
  if (cudaMalloc(&on_device, bytes) != cudaSuccess) return 1;
  combine_rows<bits::rows><<<bits::rows / 256, 256>>>(static_cast<bits::row_bits*>(on_device));
  if (cudaMemcpy(all.data(), on_device, bytes, cudaMemcpyDefault) != cudaSuccess) return 1;
  print_digests("device", all);
  return cudaFree(on_device) == cudaSuccess ? 0 : 1;
}
