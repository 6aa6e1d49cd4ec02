// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <cstddef>
#include <cstdio>
#include <cstring>

const void* by_host(std::size_t& size);
const void* by_cuda(std::size_t& size);

int main() {
  std::size_t host_size = 0;
  std::size_t cuda_size = 0;
  const void* host = by_host(host_size);
  const void* cuda = by_cuda(cuda_size);
  if (host_size != cuda_size) return 1;
  for (std::size_t at = 0; at < host_size; at += sizeof(std::size_t)) {
    std::size_t a = 0;
    std::size_t b = 0;
    std::memcpy(&a, static_cast<const char*>(host) + at, sizeof(a));
    std::memcpy(&b, static_cast<const char*>(cuda) + at, sizeof(b));
    if (a != b) {
      std::printf("entry %zu of the table: %zu by the host compiler, %zu by nvcc\n",
                  at / sizeof(std::size_t), a, b);
      return 1;
    }
  }
  return 0;
}
