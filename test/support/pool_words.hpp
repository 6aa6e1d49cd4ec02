// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <support/pool.hpp>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

// Calls whose every word is checked on the device: what goes in and what must come out is a pure
// function of (seed, number of the call, rank, place), made by a kernel before the call and made
// again by a kernel behind it. New words for each call, so that one that is left from another call
// is wrong.

namespace support {

/// Shape of a call and where its operands are; what is not shape is this rank's own.
struct word_shape {
  int ranks = 1;
  int tokens = 1;
  int heads = 1;  ///< of one rank
  int head_dim = 1;
  bool gather = false;
};
struct word_place {
  int stride = 1;  ///< of head_dim, in this rank's output
  int past = 0;    ///< elements that its pointers are off their alignment
  int tile = 0;    ///< heads that its partial output has room for, beyond those that there are
};

/// The number of a call: what a word on the device says, which a graph goes on counting, and an
/// offset.
struct call_number {
  const std::uint32_t* base = nullptr;
  std::uint32_t offset = 0;
  __device__ std::uint32_t get() const { return (base != nullptr ? *base : 0) + offset; }
};

/// In device memory.
struct word_report {
  unsigned long long checked;
  unsigned long long wrong;
  unsigned first_call, first_row, first_column;
  unsigned got, expected;
};

namespace words {

HEADWISE_HD inline std::uint32_t mix(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}
HEADWISE_HD inline std::uint32_t of(std::uint32_t seed, std::uint32_t call, int rank,
                                    std::uint32_t row, std::uint32_t column) {
  const std::uint32_t key = mix(seed + mix(call + mix(static_cast<std::uint32_t>(rank) + 1)));
  return mix(key ^ mix(row * 4099u + column));
}
/// In [-4, 4).
HEADWISE_HD inline float number(std::uint32_t bits) {
  return static_cast<float>(static_cast<std::int32_t>(bits) >> 8) * 0x1p-21f;
}
/// One row in eight is empty.
HEADWISE_HD inline float lse(std::uint32_t seed, std::uint32_t call, int rank, std::uint32_t row) {
  const std::uint32_t bits = of(seed, call, rank, row, 0xffffffffu);
  return bits % 8 == 0 ? -headwise::detail::infinity() : 2.0f * number(bits);
}
/// What is gathered: any bits but those of the poison.
HEADWISE_HD inline std::uint16_t bits(std::uint32_t seed, std::uint32_t call, int rank,
                                      std::uint32_t row, std::uint32_t column) {
  const auto bits = static_cast<std::uint16_t>(of(seed, call, rank, row, column));
  return bits == 0xffffu ? std::uint16_t{0} : bits;
}

inline __device__ void report(word_report* to, std::uint32_t call, std::uint32_t row,
                              std::uint32_t column, std::uint32_t got, std::uint32_t expected) {
  if (got == expected || atomicAdd(&to->wrong, 1ull) != 0) return;
  to->first_call = call;
  to->first_row = row;
  to->first_column = column;
  to->got = got;
  to->expected = expected;
}

/// A block for each row of all heads.
template <class T>
__global__ void fill_partial(word_shape of_call, word_place at, int rank, std::uint32_t seed,
                             call_number number_of, T* rows, float* lses) {
  const std::uint32_t call = number_of.get();
  const auto heads = static_cast<unsigned>(of_call.heads * of_call.ranks);
  const unsigned row = blockIdx.x;  // of all heads
  const float value = lse(seed, call, rank, row);
  const headwise::index_t place =
      headwise::index_t{row / heads} * (static_cast<int>(heads) + at.tile) + row % heads;
  for (unsigned d = threadIdx.x; d < static_cast<unsigned>(of_call.head_dim); d += blockDim.x) {
    const float x = headwise::detail::is_finite(value) ? number(of(seed, call, rank, row, d))
                                                       : headwise::detail::canonical_nan();
    rows[place * of_call.head_dim + d] = headwise::from_float<T>(x);
  }
  if (threadIdx.x == 0) lses[place] = value;
}

/// A block for each row of the result.
template <class T>
__global__ void check_reduced(word_shape of_call, word_place at, int rank, std::uint32_t seed,
                              call_number number_of, const T* output, const float* merged,
                              word_report* to) {
  using base = headwise::lse<headwise::log_base::e>;
  const std::uint32_t call = number_of.get();
  const auto heads = static_cast<unsigned>(of_call.heads);
  const unsigned result_row = blockIdx.x;
  const unsigned row = result_row / heads * heads * static_cast<unsigned>(of_call.ranks) +
                       static_cast<unsigned>(rank) * heads + result_row % heads;
  base lses[headwise::max_ranks];
  float weights[headwise::max_ranks];
  for (int r = 0; r < of_call.ranks; ++r) lses[r] = base{lse(seed, call, r, row)};
  const base all = headwise::combine_weights<headwise::log_base::e>(of_call.ranks, lses, weights);
  for (unsigned d = threadIdx.x; d < static_cast<unsigned>(of_call.head_dim); d += blockDim.x) {
    float sum = headwise::accumulator_start();
    for (int r = 0; r < of_call.ranks; ++r) {
      const T value = headwise::from_float<T>(number(of(seed, call, r, row, d)));
      sum = headwise::accumulate(sum, weights[r], headwise::to_float(value));
    }
    const T expected = headwise::from_float<T>(headwise::finish(sum, all));
    const T got = output[(headwise::index_t{result_row} * of_call.head_dim + d) * at.stride];
    report(to, call, result_row, d, got.bits, expected.bits);
  }
  if (threadIdx.x == 0) {
    report(to, call, result_row, 0xffffffffu, headwise::detail::float_bits(merged[result_row]),
           headwise::detail::float_bits(all.value));
    atomicAdd(&to->checked, static_cast<unsigned long long>(of_call.head_dim) + 1);
  }
}

/// A block for each row of a rank.
template <class T>
__global__ void fill_local(word_shape of_call, word_place at, int rank, std::uint32_t seed,
                           call_number number_of, T* rows) {
  const std::uint32_t call = number_of.get();
  const auto heads = static_cast<unsigned>(of_call.heads);
  const headwise::index_t place =
      headwise::index_t{blockIdx.x / heads} * (of_call.heads + at.tile) + blockIdx.x % heads;
  for (unsigned d = threadIdx.x; d < static_cast<unsigned>(of_call.head_dim); d += blockDim.x) {
    rows[place * of_call.head_dim + d] = T{bits(seed, call, rank, blockIdx.x, d)};
  }
}

/// A block for each row that is gathered.
template <class T>
__global__ void check_gathered(word_shape of_call, word_place at, std::uint32_t seed,
                               call_number number_of, const T* rows, word_report* to) {
  const std::uint32_t call = number_of.get();
  const auto heads = static_cast<unsigned>(of_call.heads);
  const unsigned all = heads * static_cast<unsigned>(of_call.ranks);
  const unsigned token = blockIdx.x / all;
  const unsigned head = blockIdx.x % all;
  for (unsigned d = threadIdx.x; d < static_cast<unsigned>(of_call.head_dim); d += blockDim.x) {
    const std::uint16_t expected =
        bits(seed, call, static_cast<int>(head / heads), token * heads + head % heads, d);
    const T got = rows[(headwise::index_t{blockIdx.x} * of_call.head_dim + d) * at.stride];
    report(to, call, blockIdx.x, d, got.bits, expected);
  }
  if (threadIdx.x == 0) {
    atomicAdd(&to->checked, static_cast<unsigned long long>(of_call.head_dim));
  }
}

template <class = void>
__global__ void advance(std::uint32_t* counter, std::uint32_t by) {
  *counter += by;
}

}  // namespace words

/// The operands of one call of up to a shape, and the kernels around it, on one rank.
///
/// bf16, base e, merged LSE: the kernels of a reduce_call<bf16> and a gather_call<bf16>.
class word_call {
 public:
  using rows_type = rows_operand<headwise::bf16>::layout_type;
  using plane_type = plane_operand<float>::layout_type;
  static constexpr int most_past = 8;
  static constexpr int most_stride = 2;
  static constexpr int most_tile = 10;

  word_call() = default;
  word_call(const word_call&) = delete;
  word_call& operator=(const word_call&) = delete;
  ~word_call() { cudaFree(memory_); }

  std::string open(const pool_rank& me, const word_shape& most, std::uint32_t seed) {
    rank_ = me.rank();
    seed_ = seed;
    const std::size_t rows = static_cast<std::size_t>(most.tokens) *
                             static_cast<std::size_t>(most.heads * most.ranks + most_tile);
    const std::size_t elements = rows * static_cast<std::size_t>(most.head_dim) + most_past;
    in_bytes_ = round(elements * 2);
    lse_bytes_ = round(rows * 4);
    out_bytes_ = round(elements * 2 * most_stride);
    TRY_CUDA(cudaMalloc(reinterpret_cast<void**>(&memory_),
                        in_bytes_ + lse_bytes_ + out_bytes_ + lse_bytes_));
    for (const headwise::status& loaded : {load_kernel(&words::fill_partial<headwise::bf16>),
                                           load_kernel(&words::check_reduced<headwise::bf16>),
                                           load_kernel(&words::fill_local<headwise::bf16>),
                                           load_kernel(&words::check_gathered<headwise::bf16>),
                                           load_kernel(&words::advance<void>)}) {
      TRY_OK(loaded);
    }
    return "";
  }

  /// What fill(), enqueue() and check() are about.
  void set(const word_shape& shape, const word_place& at) {
    shape_ = shape;
    at_ = at;
  }

  cudaError_t fill(cudaStream_t stream, const call_number& number) const {
    const cudaError_t said = cudaMemsetAsync(output(), 0xff, out_bytes_ + lse_bytes_, stream);
    if (said != cudaSuccess || shape_.tokens == 0) return said;
    if (shape_.gather) {
      words::fill_local<<<rows_of(1), 128, 0, stream>>>(shape_, at_, rank_, seed_, number, input());
    } else {
      words::fill_partial<<<rows_of(shape_.ranks), 128, 0, stream>>>(shape_, at_, rank_, seed_,
                                                                     number, input(), lses());
    }
    return cudaGetLastError();
  }

  template <class Rules = headwise::detail::pool_rules>
  headwise::status enqueue(const headwise::pool_channel& channel,
                           const headwise::on_stream& where) const {
    using namespace headwise;
    const pool_launcher launcher{channel, where};
    const index_t tokens = shape_.tokens;
    const index_t width = shape_.head_dim;
    const index_t all = shape_.heads * shape_.ranks;
    const auto rows = [&](auto* data, index_t heads, index_t of_token, index_t stride) {
      const rows_type layout(dim<axis::token>(tokens, of_token * width * stride),
                             dim<axis::head>(heads, width * stride),
                             dim<axis::head_dim>(width, stride));
      return make_view<memory_space::device>(data, layout);
    };
    const auto plane = [&](auto* data, index_t heads, index_t of_token) {
      const plane_type layout(dim<axis::token>(tokens, of_token), dim<axis::head>(heads, 1));
      return make_view<memory_space::device>(data, layout);
    };
    const auto* const in = const_cast<const bf16*>(input());
    const index_t of_heads = shape_.heads;
    if (shape_.gather) {
      return launcher.template all_gather_heads<Rules>(rows(in, of_heads, of_heads + at_.tile, 1),
                                                       rows(output(), all, all, at_.stride));
    }
    return launcher.template lse_reduce_scatter<log_base::e, Rules>(
        rows(in, all, all + at_.tile, 1),
        plane(const_cast<const float*>(lses()), all, all + at_.tile),
        rows(output(), of_heads, of_heads, at_.stride), plane(merged(), of_heads, of_heads), none,
        none, nan_policy::empty{});
  }

  cudaError_t check(cudaStream_t stream, const call_number& number, word_report* to) const {
    if (shape_.tokens == 0) return cudaSuccess;
    if (shape_.gather) {
      words::check_gathered<<<rows_of(shape_.ranks), 128, 0, stream>>>(
          shape_, at_, seed_, number, const_cast<const headwise::bf16*>(output()), to);
    } else {
      words::check_reduced<<<rows_of(1), 128, 0, stream>>>(
          shape_, at_, rank_, seed_, number, const_cast<const headwise::bf16*>(output()),
          const_cast<const float*>(merged()), to);
    }
    return cudaGetLastError();
  }

  /// Words that check() looks at.
  unsigned long long words() const {
    const auto rows = static_cast<unsigned long long>(shape_.tokens * shape_.heads);
    const auto width = static_cast<unsigned long long>(shape_.head_dim);
    return shape_.gather ? rows * static_cast<unsigned long long>(shape_.ranks) * width
                         : rows * (width + 1);
  }
  std::string told() const {
    return std::string(shape_.gather ? "gather " : "reduce ") + std::to_string(shape_.tokens) +
           " tokens, " + std::to_string(shape_.heads) + " heads, " +
           std::to_string(shape_.head_dim) + " wide";
  }

 private:
  static std::size_t round(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  unsigned rows_of(int ranks) const {
    return static_cast<unsigned>(shape_.tokens * shape_.heads * ranks);
  }
  headwise::bf16* input() const { return reinterpret_cast<headwise::bf16*>(memory_) + at_.past; }
  float* lses() const { return reinterpret_cast<float*>(memory_ + in_bytes_); }
  headwise::bf16* output() const {
    return reinterpret_cast<headwise::bf16*>(memory_ + in_bytes_ + lse_bytes_);
  }
  float* merged() const {
    return reinterpret_cast<float*>(memory_ + in_bytes_ + lse_bytes_ + out_bytes_);
  }

  std::byte* memory_ = nullptr;
  std::size_t in_bytes_ = 0, lse_bytes_ = 0, out_bytes_ = 0;
  int rank_ = 0;
  std::uint32_t seed_ = 0;
  word_shape shape_;
  word_place at_;
};

/// What the checks have found on one rank.
class word_verdict {
 public:
  word_verdict() = default;
  word_verdict(const word_verdict&) = delete;
  word_verdict& operator=(const word_verdict&) = delete;
  ~word_verdict() {
    cudaFree(on_device_);
    cudaFreeHost(on_host_);
  }
  std::string open() {
    TRY_CUDA(cudaMalloc(reinterpret_cast<void**>(&on_device_), sizeof(word_report)));
    TRY_CUDA(cudaMallocHost(reinterpret_cast<void**>(&on_host_), sizeof(word_report)));
    TRY_CUDA(cudaMemset(on_device_, 0, sizeof(word_report)));
    TRY_CUDA(cudaDeviceSynchronize());
    return "";
  }
  word_report* report() const { return on_device_; }

  /// Waits for the stream. `words`: how many have been looked at.
  std::string told(cudaStream_t stream, unsigned long long words) const {
    TRY_CUDA(
        cudaMemcpyAsync(on_host_, on_device_, sizeof(word_report), cudaMemcpyDeviceToHost, stream));
    TRY_CUDA(cudaStreamSynchronize(stream));
    const word_report& is = *on_host_;
    if (is.checked != words) {
      return std::to_string(is.checked) + " words were looked at, not " + std::to_string(words);
    }
    if (is.wrong == 0) return "";
    char text[200];
    std::snprintf(text, sizeof text,
                  "%llu wrong words, the first in call %u, row %u, column %d: 0x%x, not 0x%x",
                  is.wrong, is.first_call, is.first_row, static_cast<int>(is.first_column), is.got,
                  is.expected);
    return text;
  }

 private:
  word_report* on_device_ = nullptr;
  word_report* on_host_ = nullptr;
};

struct soak_run {
  std::uint32_t seed = 1;
  int calls = 1000;
  int gpus = 1;
  /// Of all calls; 0: drawn for each.
  int tokens = 0, heads = 0, head_dim = 0;
  int late_rank = -1;      ///< comes late to each call, and writes its results element by element
  index_t delay = 20'000;  ///< nanoseconds at most
};

/// The largest shape of a soak.
inline word_shape soak_most(int ranks) { return {ranks, 24, 11, 512, false}; }
inline headwise::pool_capacity soak_capacity() { return {24, 11, 1024}; }

/// Calls back to back, each with new words, in bursts without anything between them, every word
/// compared. Sizes from 16 bytes to 264 KiB per peer, delays and strides drawn for each rank.
template <class Rules = headwise::detail::pool_rules>
std::string soak(pool_rank& me, const headwise::pool_channel& channel, const soak_run& run) {
  constexpr int most_of_burst = 4;
  constexpr int bursts_between_looks = 8;
  word_call calls[most_of_burst];
  word_verdict verdict;
  const auto open = [&]() -> std::string {
    for (word_call& call : calls) TRY(call.open(me, soak_most(me.size()), run.seed));
    TRY(verdict.open());
    return "";
  };
  const std::string opened = open();
  TRY_OK(me.meet());
  TRY(opened);
  random_source common(run.seed);
  random_source own(run.seed + 1000 + static_cast<std::uint64_t>(me.rank()));
  const bool late = me.rank() == run.late_rank;
  unsigned long long words = 0;
  const auto go = [&]() -> std::string {
    int done = 0;
    for (int burst = 0; done < run.calls; ++burst) {
      const int count = static_cast<int>(common.in(1, most_of_burst));
      for (int i = 0; i < count; ++i) {
        word_shape shape;
        shape.ranks = me.size();
        shape.gather = common.one_in(3);
        const bool large = common.one_in(8);
        const auto drawn = [](int given, index_t other) {
          return given > 0 ? given : static_cast<int>(other);
        };
        shape.tokens = drawn(run.tokens, large ? common.in(8, 24) : common.in(1, 4));
        shape.heads = drawn(run.heads, common.one_of({1, 2, 3, 11}));
        shape.head_dim = drawn(run.head_dim, common.one_of({8, 33, 64, 512}));
        word_place at;
        at.stride = late || own.one_in(5) ? 2 : 1;
        at.past = static_cast<int>(own.one_of({0, 0, 0, 1, 4, 8}));
        at.tile = static_cast<int>(own.one_of({0, 0, 5, 10}));
        calls[i].set(shape, at);
        words += calls[i].words();
        TRY_CUDA(calls[i].fill(me.stream, {nullptr, static_cast<std::uint32_t>(done + i)}));
      }
      for (int i = 0; i < count; ++i) {
        if (late || own.one_in(4)) TRY_CUDA(spin(me.stream, own.in(0, run.delay)));
        const headwise::status came_to = calls[i].template enqueue<Rules>(channel, {me.stream});
        if (!came_to.ok()) {
          return "call " + std::to_string(done + i) + ", " + calls[i].told() + ": " +
                 sentence(came_to);
        }
      }
      for (int i = 0; i < count; ++i) {
        TRY_CUDA(calls[i].check(me.stream, {nullptr, static_cast<std::uint32_t>(done + i)},
                                verdict.report()));
      }
      done += count;
      // So that the queue of launches never fills: who waits for room in it may keep others out.
      if (burst % bursts_between_looks == bursts_between_looks - 1) {
        TRY_CUDA(cudaStreamSynchronize(me.stream));
        const headwise::status state = channel.state();
        if (!state.ok()) return "after call " + std::to_string(done) + ": " + sentence(state);
      }
    }
    TRY_CUDA(cudaStreamSynchronize(me.stream));
    TRY_OK(channel.state());
    return verdict.told(me.stream, words);
  };
  std::string wrong = go();
  // Others may still be at it: their kernels end by themselves, and then the memory is freed.
  const cudaError_t drained = cudaStreamSynchronize(me.stream);
  const headwise::status met = me.meet();
  if (wrong.empty()) TRY_CUDA(drained);
  if (wrong.empty()) TRY_OK(met);
  return wrong;
}

/// Of an environment variable, or `otherwise`.
inline int count_from(const char* variable, int otherwise) {
  const char* const given = std::getenv(variable);
  return given != nullptr ? std::atoi(given) : otherwise;
}

}  // namespace support
