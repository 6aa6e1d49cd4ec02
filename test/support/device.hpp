// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/view/view.hpp>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

// Memory, streams and graphs of a GPU, for tests.

#define REQUIRE_CUDA(call)                                             \
  do {                                                                 \
    const cudaError_t cuda_said = (call);                              \
    const std::string cuda_text = cudaGetErrorString(cuda_said);       \
    REQUIRE_MESSAGE(cuda_said == cudaSuccess, #call, ": ", cuda_text); \
  } while (false)

namespace support {

using headwise::index_t;
using headwise::memory_space;

/// Device memory that starts as 0xff, a NaN in each floating-point type and -1 in each integer, so
/// that a test sees what was not written; `guard` bytes of it lie before and behind the elements.
template <class T>
class device_array {
 public:
  static constexpr std::size_t guard = 256;

  /// Aligned to 256 bytes, and then `past` elements further on.
  explicit device_array(index_t count, index_t past = 0)
      : count_(static_cast<std::size_t>(count)),
        first_(guard + static_cast<std::size_t>(past) * sizeof(T)),
        total_(first_ + count_ * sizeof(T) + guard) {
    REQUIRE_CUDA(cudaMalloc(reinterpret_cast<void**>(&memory_), total_));
    poison();
  }
  explicit device_array(const std::vector<T>& from, index_t past = 0)
      : device_array(static_cast<index_t>(from.size()), past) {
    upload(from);
  }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;
  ~device_array() { cudaFree(memory_); }

  // A stream that does not wait for the default one must find the memory as it is left here.
  void poison() {
    REQUIRE_CUDA(cudaMemset(memory_, 0xff, total_));
    REQUIRE_CUDA(cudaDeviceSynchronize());
  }
  void upload(const std::vector<T>& from) {
    REQUIRE(from.size() <= count_);
    REQUIRE_CUDA(cudaMemcpy(data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }

  T* data() const { return reinterpret_cast<T*>(memory_ + first_); }
  index_t size() const { return static_cast<index_t>(count_); }

  std::vector<T> fetch() const {
    std::vector<T> to(count_);
    REQUIRE_CUDA(cudaMemcpy(to.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }
  /// Bytes of the guards that are no longer 0xff.
  index_t stray_bytes() const {
    std::vector<unsigned char> all(total_);
    REQUIRE_CUDA(cudaMemcpy(all.data(), memory_, total_, cudaMemcpyDeviceToHost));
    index_t stray = 0;
    for (std::size_t i = 0; i < total_; ++i) {
      const bool inside = i >= first_ && i < first_ + count_ * sizeof(T);
      if (!inside && all[i] != 0xff) ++stray;
    }
    return stray;
  }

 private:
  std::size_t count_;
  std::size_t first_;
  std::size_t total_;
  std::byte* memory_ = nullptr;
};

/// The same elements as a view of host memory, in memory of a device.
template <class T, class Layout>
headwise::view<T, Layout, memory_space::device> on_device(
    T* data, const headwise::view<T, Layout, memory_space::host>& like) {
  return {data, like.layout()};
}

/// A stream that the default stream does not wait for.
class stream {
 public:
  stream() { REQUIRE_CUDA(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking)); }
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  ~stream() { cudaStreamDestroy(handle_); }

  operator cudaStream_t() const { return handle_; }  // NOLINT: implicit
  void wait() const { REQUIRE_CUDA(cudaStreamSynchronize(handle_)); }

 private:
  cudaStream_t handle_ = nullptr;
};

/// What `work` puts on a stream, captured (mode global: no thread may do anything unsafe
/// meanwhile).
class graph {
 public:
  template <class Work>
  graph(const stream& on, Work&& work) {
    REQUIRE_CUDA(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal));
    std::forward<Work>(work)();
    cudaGraph_t captured = nullptr;
    REQUIRE_CUDA(cudaStreamEndCapture(on, &captured));
    REQUIRE_CUDA(cudaGraphGetNodes(captured, nullptr, &nodes_));
    std::vector<cudaGraphNode_t> nodes(nodes_);
    if (nodes_ > 0) REQUIRE_CUDA(cudaGraphGetNodes(captured, nodes.data(), &nodes_));
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      REQUIRE_CUDA(cudaGraphNodeGetType(node, &type));
      kernels_ += type == cudaGraphNodeTypeKernel ? 1 : 0;
    }
    REQUIRE_CUDA(cudaGraphInstantiate(&handle_, captured, 0));
    REQUIRE_CUDA(cudaGraphDestroy(captured));
  }
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;
  ~graph() { cudaGraphExecDestroy(handle_); }

  void replay(const stream& on) const {
    REQUIRE_CUDA(cudaGraphLaunch(handle_, on));
    on.wait();
  }
  std::size_t nodes() const { return nodes_; }
  std::size_t kernels() const { return kernels_; }

 private:
  cudaGraphExec_t handle_ = nullptr;
  std::size_t nodes_ = 0;
  std::size_t kernels_ = 0;
};

}  // namespace support
