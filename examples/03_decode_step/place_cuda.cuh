// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// Rank r on GPU r, or one of several ranks on it where there are fewer.

#include <headwise/executor/cuda_executor.cuh>
#include <headwise/transport/in_process_cuda.cuh>

#include "data.hpp"

namespace demo {

class cuda_place {
 public:
  using group_type = in_process_cuda_group;

  cuda_executor executor{};

  cuda_place() = default;
  cuda_place(const cuda_place&) = delete;
  cuda_place& operator=(const cuda_place&) = delete;
  ~cuda_place() {
    for (const buffer& one : buffers_) cudaFree(one.device);
    if (executor.stream != nullptr) cudaStreamDestroy(executor.stream);
  }

  template <class Memory>
  status open(index_t rank, Memory& memory) {
    int devices = 0;
    const auto begin = [&] {
      if (const auto said = cudaGetDeviceCount(&devices); said != cudaSuccess) return said;
      const auto said = cudaSetDevice(static_cast<int>(rank) % devices);
      if (said != cudaSuccess) return said;
      return cudaStreamCreateWithFlags(&executor.stream.stream, cudaStreamNonBlocking);
    };
    cudaError_t said = begin();
    memory.for_each_buffer([&](auto& which) {
      const auto bytes = which.with_guards();
      buffers_.push_back({bytes, nullptr});
      if (said == cudaSuccess) said = cudaMalloc(&buffers_.back().device, bytes.size());
    });
    return headwise::detail::cuda_status(said, "GPU");
  }
  in_process_cuda join(in_process_cuda_group& group, index_t rank) const {
    return group.rank(static_cast<int>(rank), cuda_copy{executor.stream}).value();
  }

  template <class T, class Layout>
  view<T, Layout, memory_space::device> operator()(const view<T, Layout>& operand) const {
    return {static_cast<T*>(on_device(operand.data())), operand.layout()};
  }
  std::span<std::byte> operator()(std::span<std::byte> operand) const {
    return {static_cast<std::byte*>(on_device(operand.data())), operand.size()};
  }

  status send() {
    return move(
        [](const buffer& one) { return std::pair<void*, void*>(one.device, one.host.data()); });
  }
  status fetch() {
    return move(
        [](const buffer& one) { return std::pair<void*, void*>(one.host.data(), one.device); });
  }

 private:
  struct buffer {
    std::span<std::byte> host;
    void* device;
  };

  void* on_device(const void* host) const {
    const auto* const at = static_cast<const std::byte*>(host);
    for (const buffer& one : buffers_) {
      const auto* const first = one.host.data();
      if (first <= at && at < first + one.host.size()) {
        return static_cast<std::byte*>(one.device) + (at - first);
      }
    }
    return nullptr;
  }

  template <class Ends>
  status move(const Ends& ends) {
    cudaError_t said = cudaSuccess;
    for (const buffer& one : buffers_) {
      const auto [to, from] = ends(one);
      if (said != cudaSuccess) break;
      said = cudaMemcpyAsync(to, from, one.host.size(), cudaMemcpyDefault, executor.stream);
    }
    if (said == cudaSuccess) said = cudaStreamSynchronize(executor.stream);
    return headwise::detail::cuda_status(said, "GPU");
  }

  std::vector<buffer> buffers_;
};

}  // namespace demo
