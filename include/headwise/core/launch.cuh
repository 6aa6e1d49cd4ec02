// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/config.hpp>
#include <headwise/core/cuda_status.cuh>
#include <headwise/core/profiler_range.cuh>
#include <headwise/core/status.hpp>

#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

// What all kernels share: how they are launched and how a row of the work finds its place. They
// need compute capability 8.0.

namespace headwise::inline v0 {

/// A grid, as a pure function of the shapes of a call.
struct launch_shape {
  unsigned blocks = 0;  ///< none: nothing is launched
  unsigned peers = 1;   ///< the grid's second dimension
  unsigned threads = 0;
  unsigned lanes = 32;        ///< neighbouring threads that share a row
  int vector_bytes = 16;      ///< of a load or store
  bool rows_in_y = false;     ///< a block has the dimensions lanes, rows
  unsigned shared_bytes = 0;  ///< that the launch gives a block
  bool together = false;      ///< all blocks run at the same time (a cooperative launch)
};

/// Where a kernel goes, and when it may start.
struct on_stream {
  cudaStream_t stream = nullptr;
  /// Programmatic dependent launch: the kernel is brought up while the one before it on the stream
  /// still runs, and waits for it before it reads or writes anything. Has no effect below compute
  /// capability 9.0.
  bool overlap = false;

  constexpr on_stream(cudaStream_t where = nullptr,
                      bool early = false) noexcept  // NOLINT: implicit
      : stream(where), overlap(early) {}
  /// From what stands for a stream.
  template <class Stream>
    requires(std::is_class_v<Stream>&& std::is_convertible_v<const Stream&, cudaStream_t>)
  constexpr on_stream(const Stream& where, bool early = false) noexcept  // NOLINT: implicit
      : stream(where), overlap(early) {}
  constexpr operator cudaStream_t() const noexcept { return stream; }  // NOLINT: implicit
};

namespace detail {

/// The first thing that a kernel does. The next one may be brought up; this one goes on when what
/// is before it on the stream is complete and its memory can be seen. Both mean nothing where
/// neither was launched with overlap.
__device__ inline void enter_kernel() noexcept {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Whether the code of a kernel, which the driver may have made of PTX for an older device, has
/// what enter_kernel() does. Without it a kernel that was brought up early would not wait.
template <class... Parameters>
bool waits_for_predecessor(void (*kernel)(Parameters...)) noexcept {
  cudaFuncAttributes code{};
  if (cudaFuncGetAttributes(&code, kernel) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  return code.ptxVersion >= 90;
}

/// Launches nothing where there are no blocks. Errors: cuda_failed.
template <class... Parameters, class... Arguments>
status launch(const char* name, void (*kernel)(Parameters...), const launch_shape& shape,
              const on_stream& where, Arguments&&... arguments) noexcept {
  if (shape.blocks == 0) return {};
  const profiler_range range(name);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks, shape.peers);
  config.blockDim =
      shape.rows_in_y ? dim3(shape.lanes, shape.threads / shape.lanes) : dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = where.stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (where.overlap && waits_for_predecessor(kernel)) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.together) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  }
  return cuda_status(
      cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...), name);
}

inline constexpr index_t most_blocks = INT32_MAX;

/// Errors: unsupported (more rows than a grid has room for).
constexpr status check_blocks(const char* name, index_t blocks) noexcept {
  if (blocks <= most_blocks) return {};
  return failure(errc::unsupported, name, "more blocks (got) than a grid has (expected)", blocks,
                 most_blocks);
}

/// A block of `threads` for work of which each thread does a part, or fewer where that would leave
/// multiprocessors idle: a GPU has more than a hundred.
constexpr unsigned threads_for(index_t thread_count, unsigned threads) noexcept {
  constexpr index_t multiprocessors = 128;
  while (threads > 32 && thread_count < multiprocessors * threads) threads /= 2;
  return threads;
}

/// The least power of two of at least `count` lanes, 32 at most.
constexpr unsigned lanes_for(index_t count) noexcept {
  unsigned lanes = 1;
  while (lanes < 32 && lanes < count) lanes *= 2;
  return lanes;
}

/// Bits of memory that one instruction moves.
template <int Bytes>
struct raw_bits;
template <>
struct raw_bits<1> {
  using type = unsigned char;
};
template <>
struct raw_bits<2> {
  using type = unsigned short;
};
template <>
struct raw_bits<4> {
  using type = unsigned;
};
template <>
struct raw_bits<8> {
  using type = uint2;
};
template <>
struct raw_bits<16> {
  using type = uint4;
};

/// The widest of 16, 4 and `least` bytes that divides all addresses, whose bits come or-ed.
constexpr int widest_vector(std::uint64_t alignment, int least) noexcept {
  if (alignment % 16 == 0 && least < 16) return 16;
  return alignment % 4 == 0 && least < 4 ? 4 : least;
}

/// Calls f(std::integral_constant<int, widest_vector()>). `Possible` is the alignment by what the
/// types alone say: what they rule out is not compiled.
template <int Least, std::uint64_t Possible, class F>
status with_vector(std::uint64_t alignment, F&& f) {
  const int width = widest_vector(alignment, Least);
  if constexpr (Possible % 16 == 0 && Least < 16) {
    if (width == 16) return f(std::integral_constant<int, 16>{});
  }
  if constexpr (Possible % 4 == 0 && Least < 4) {
    if (width == 4) return f(std::integral_constant<int, 4>{});
  }
  return f(std::integral_constant<int, Least>{});
}

struct row_place {
  index_t outer;
  index_t inner;
};

/// Place of a row among rows of `inner` each; in 32 bits where they do, which costs a quarter.
__device__ inline row_place place_of_row(index_t row, index_t inner) noexcept {
  if (((row | inner) >> 32) == 0) {
    const auto row32 = static_cast<std::uint32_t>(row);
    const auto inner32 = static_cast<std::uint32_t>(inner);
    const std::uint32_t outer = row32 / inner32;
    return {index_t{outer}, index_t{row32 - outer * inner32}};
  }
  return {row / inner, row % inner};
}

/// Divides numbers below 2^31 by one that the host knows, with a multiplication: a division would
/// be a tenth of the time of a kernel on a single token. (Granlund and Montgomery, PLDI 1994.)
class row_divider {
 public:
  explicit row_divider(index_t by) noexcept : by_(static_cast<std::uint32_t>(by)) {
    while ((std::uint64_t{1} << shift_) < by_) ++shift_;
    const std::uint64_t power = std::uint64_t{1} << shift_;
    factor_ = by_ == 0 ? 0 : static_cast<std::uint32_t>(((power - by_) << 32) / by_ + 1);
  }

  __device__ row_place place(std::uint32_t row) const noexcept {
    const std::uint32_t outer = (__umulhi(row, factor_) + row) >> shift_;
    return {index_t{outer}, index_t{row - outer * by_}};
  }

 private:
  std::uint32_t by_;
  std::uint32_t factor_ = 0;
  unsigned shift_ = 0;
};

}  // namespace detail

}  // namespace headwise::inline v0
