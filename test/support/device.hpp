// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/view/view.hpp>

#include <support/guarded.hpp>

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
  explicit device_array(guarded<T>& from, index_t past = 0)
      : device_array(std::vector<T>(from.data(), from.data() + from.size()), past) {}
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;
  ~device_array() { cudaFree(memory_); }

  // A stream that does not wait for the default one finds the memory as it is left here.
  void poison() {
    REQUIRE_CUDA(cudaMemset(memory_, 0xff, total_));
    REQUIRE_CUDA(cudaDeviceSynchronize());
  }
  void upload(const std::vector<T>& from) {
    REQUIRE(from.size() <= count_);
    REQUIRE_CUDA(cudaMemcpy(data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    REQUIRE_CUDA(cudaDeviceSynchronize());
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
  /// Elements that are not the host's, and bytes of the guards that were written.
  index_t differences(const T* host) const {
    const std::vector<T> got = fetch();
    index_t wrong = stray_bytes();
    for (std::size_t i = 0; i < count_; ++i) wrong += same_bits(got[i], host[i]) ? 0 : 1;
    return wrong;
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

/// Elements in host memory and a copy of them on the device, gaps included.
template <class T>
struct memory_pair {
  guarded<T> host;
  device_array<T> device;

  explicit memory_pair(index_t count, index_t past = 0) : host(count), device(count, past) {}

  void upload() { device.upload({host.data(), host.data() + host.size()}); }
  index_t differences() { return device.differences(host.data()); }
};

/// An operand at both places.
template <class T, class Layout>
struct operand : memory_pair<T> {
  Layout shape;

  explicit operand(const Layout& of, index_t past = 0)
      : memory_pair<T>(of.span_size(), past), shape(of) {}

  headwise::view<T, Layout> here() { return {this->host.data(), shape}; }
  headwise::view<const T, Layout> input() { return here(); }
  headwise::view<T, Layout, memory_space::device> there() const {
    return {this->device.data(), shape};
  }
  headwise::view<const T, Layout, memory_space::device> input_there() const { return there(); }
};

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

/// What `work` puts on a stream (mode global: no thread may do anything unsafe meanwhile).
template <class Work>
cudaGraph_t capture(const stream& on, Work&& work) {
  REQUIRE_CUDA(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal));
  std::forward<Work>(work)();
  cudaGraph_t captured = nullptr;
  REQUIRE_CUDA(cudaStreamEndCapture(on, &captured));
  return captured;
}

/// The same, to be replayed.
class graph {
 public:
  template <class Work>
  graph(const stream& on, Work&& work) : graph(capture(on, std::forward<Work>(work))) {}
  explicit graph(cudaGraph_t captured) {
    std::size_t count = 0;
    REQUIRE_CUDA(cudaGraphGetNodes(captured, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    if (count > 0) REQUIRE_CUDA(cudaGraphGetNodes(captured, nodes.data(), &count));
    nodes_ = static_cast<index_t>(count);
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      REQUIRE_CUDA(cudaGraphNodeGetType(node, &type));
      kernels_ += type == cudaGraphNodeTypeKernel ? 1 : 0;
      copies_ += type == cudaGraphNodeTypeMemcpy ? 1 : 0;
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
  index_t nodes() const { return nodes_; }
  index_t kernels() const { return kernels_; }
  index_t copies() const { return copies_; }

 private:
  cudaGraphExec_t handle_ = nullptr;
  index_t nodes_ = 0;
  index_t kernels_ = 0;
  index_t copies_ = 0;
};

}  // namespace support
