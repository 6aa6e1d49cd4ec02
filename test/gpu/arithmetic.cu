// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The combine's arithmetic, and the conversions of elements, give the same bits on the device as on
// the host. The suite is built three times: plainly, with -use_fast_math, and with -fmad=false.

#include <headwise/core/cuda_element.cuh>
#include <headwise/lse/partial.hpp>
#include <headwise/view/slice.hpp>

#include <support/device.hpp>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

using namespace headwise;
using support::device_array;

namespace {

void finish_launch() {
  REQUIRE_CUDA(cudaGetLastError());
  REQUIRE_CUDA(cudaDeviceSynchronize());
}

constexpr unsigned threads = 128;
unsigned blocks(std::size_t count) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

/// One row: its LSEs (ranks of them), one payload each, and what comes out.
struct combined {
  std::uint32_t output;
  std::uint32_t merged;
  std::uint32_t sunk;
  std::uint32_t weights[max_ranks];
};

template <log_base Base, class Policy>
HEADWISE_HD combined combine_row(int ranks, const float* lse_values, const float* payload,
                                 float sink, const Policy& policy) {
  lse<Base> lses[max_ranks];
  float weights[max_ranks] = {};
  for (int r = 0; r < ranks; ++r) lses[r] = {lse_values[r]};
  const lse<Base> merged = combine_weights<Base>(ranks, lses, weights, policy);
  float sum = accumulator_start();
  for (int r = 0; r < ranks; ++r) sum = accumulate(sum, weights[r], payload[r]);
  const float output = finish(sum, merged);
  combined row{};
  row.output = detail::float_bits(output);
  row.merged = detail::float_bits(merged.value);
  row.sunk = detail::float_bits(apply_sink(output, sink_factor(merged, lse<Base>{sink})));
  for (int r = 0; r < ranks; ++r) row.weights[r] = detail::float_bits(weights[r]);
  return row;
}

template <log_base Base, class Policy>
__global__ void combine_rows(int rows, int ranks, const float* lse_values, const float* payload,
                             const float* sinks, Policy policy, combined* out) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  out[row] =
      combine_row<Base>(ranks, lse_values + row * ranks, payload + row * ranks, sinks[row], policy);
}

float any_lse(std::mt19937& random) {
  static const float odd[] = {0.0f,
                              -0.0f,
                              detail::infinity(),
                              -detail::infinity(),
                              detail::canonical_nan(),
                              detail::bit_cast<float>(0xffc00001u),
                              -1e30f,
                              -60000.0f,
                              3.0e38f,
                              -3.0e38f,
                              detail::bit_cast<float>(1u)};
  const unsigned kind = random() % 8;
  const float unit = static_cast<float>(static_cast<int>(random() % 200001) - 100000) * 1e-5f;
  if (kind == 0) return odd[random() % (sizeof odd / sizeof odd[0])];
  if (kind == 1) return unit * 120.0f;
  if (kind == 2) return unit * 1e5f;
  return unit * 12.0f;
}

float any_payload(std::mt19937& random) {
  if (random() % 64 == 0) return detail::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return static_cast<float>(static_cast<int>(random() % 200001) - 100000) * 3e-5f;
}

template <log_base Base, class Policy>
void check_combine(unsigned seed, const Policy& policy) {
  constexpr int rows = 20000;
  std::mt19937 random(seed);
  for (int ranks = 1; ranks <= max_ranks; ++ranks) {
    CAPTURE(ranks);
    const std::size_t count = static_cast<std::size_t>(rows * ranks);
    std::vector<float> lse_values(count), payload(count), sinks(rows);
    for (float& value : lse_values) value = any_lse(random);
    for (float& value : payload) value = any_payload(random);
    for (float& value : sinks) value = any_lse(random);
    const device_array<float> device_lses(lse_values), device_payload(payload), device_sinks(sinks);
    const device_array<combined> device_out(rows);
    combine_rows<Base><<<blocks(rows), threads>>>(rows, ranks, device_lses.data(),
                                                  device_payload.data(), device_sinks.data(),
                                                  policy, device_out.data());
    finish_launch();
    const std::vector<combined> out = device_out.fetch();
    int different = 0;
    for (int row = 0; row < rows; ++row) {
      const std::size_t at = static_cast<std::size_t>(row);
      const combined expected =
          combine_row<Base>(ranks, &lse_values[at * static_cast<std::size_t>(ranks)],
                            &payload[at * static_cast<std::size_t>(ranks)], sinks[at], policy);
      different += std::memcmp(&expected, &out[at], sizeof expected) != 0;
    }
    CHECK(different == 0);
  }
}

template <class T>
__global__ void widen_all(std::uint32_t count, std::uint32_t* out) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  T element{};
  element.bits = static_cast<decltype(element.bits)>(i);
  out[i] = detail::float_bits(to_float(element));
}

/// The Toolkit's types bind without a cast: one kernel over its types and over ours.
template <class T>
__global__ void round_trip(std::uint32_t count, const T* in, T* out) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = from_float<T>(to_float(in[i]));
}

struct rounded {
  std::uint16_t bf16, fp16;
  std::uint8_t e4m3;
  std::uint16_t cuda_bf16, cuda_fp16;
  std::uint8_t cuda_e4m3;
};

__global__ void round_all(int count, const float* values, rounded* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const float value = values[i];
  rounded r{};
  r.bf16 = from_float<bf16>(value).bits;
  r.fp16 = from_float<fp16>(value).bits;
  r.e4m3 = from_float<fp8_e4m3>(value).bits;
  r.cuda_bf16 = __bfloat16_as_ushort(__float2bfloat16_rn(value));
  r.cuda_fp16 = __half_as_ushort(__float2half_rn(value));
  r.cuda_e4m3 = static_cast<std::uint8_t>(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
  out[i] = r;
}

using heads_22_of_32 = layout<dim<axis::token, dynamic_extent, 32 * 512>, dim<axis::head, 22, 512>,
                              dim<axis::head_dim, 512, 1>>;

__global__ void fill_view(view<float, heads_22_of_32, memory_space::device> to, index_t* sizes) {
  sizes[0] = static_cast<index_t>(sizeof to);
  sizes[1] = to.span_size();
  for (index_t token = blockIdx.x; token < to.extent<axis::token>(); token += gridDim.x) {
    for (index_t head = 0; head < to.extent<axis::head>(); ++head) {
      for (index_t d = threadIdx.x; d < to.extent<axis::head_dim>(); d += blockDim.x) {
        to(token, head, d) = static_cast<float>((token * 22 + head) * 512 + d);
      }
    }
  }
}

}  // namespace

TEST_CASE("a combine has the bits of the host: base e") {
  check_combine<log_base::e>(1, nan_policy::empty{});
}
TEST_CASE("a combine has the bits of the host: base two") {
  check_combine<log_base::two>(2, nan_policy::empty{});
}
TEST_CASE("a combine has the bits of the host: NaN propagates") {
  check_combine<log_base::e>(3, nan_policy::propagate{});
  check_combine<log_base::two>(4, nan_policy::propagate{});
}
TEST_CASE("a combine has the bits of the host: sentinel") {
  check_combine<log_base::e>(5, sentinel{});
  check_combine<log_base::two>(6, sentinel{});
}

TEST_CASE("every fp16, bf16 and e4m3 widens to the bits of the host") {
  const device_array<std::uint32_t> all_fp16(65536), all_bf16(65536), all_e4m3(256);
  widen_all<fp16><<<blocks(65536), threads>>>(65536, all_fp16.data());
  widen_all<bf16><<<blocks(65536), threads>>>(65536, all_bf16.data());
  widen_all<fp8_e4m3><<<blocks(256), threads>>>(256, all_e4m3.data());
  finish_launch();
  const auto halves = all_fp16.fetch();
  const auto brains = all_bf16.fetch();
  const auto eights = all_e4m3.fetch();
  int different = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    different += halves[i] != detail::float_bits(to_float(fp16{static_cast<std::uint16_t>(i)}));
    different += brains[i] != detail::float_bits(to_float(bf16{static_cast<std::uint16_t>(i)}));
  }
  for (std::uint32_t i = 0; i < 256; ++i) {
    different += eights[i] != detail::float_bits(to_float(fp8_e4m3{static_cast<std::uint8_t>(i)}));
  }
  CHECK(different == 0);
}

TEST_CASE("the Toolkit's bf16 and fp16 bind as elements") {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  const device_array<std::uint16_t> in(bits), as_bf16(65536), as_fp16(65536);
  round_trip<<<blocks(65536), threads>>>(65536, reinterpret_cast<const __nv_bfloat16*>(in.data()),
                                         reinterpret_cast<__nv_bfloat16*>(as_bf16.data()));
  round_trip<<<blocks(65536), threads>>>(65536, reinterpret_cast<const __half*>(in.data()),
                                         reinterpret_cast<__half*>(as_fp16.data()));
  finish_launch();
  const auto brains = as_bf16.fetch();
  const auto halves = as_fp16.fetch();
  int different = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const bool bf16_nan = (bits[i] & 0x7fff) > 0x7f80;
    const bool fp16_nan = (bits[i] & 0x7fff) > 0x7c00;
    different += brains[i] != (bf16_nan ? 0x7fff : bits[i]);
    different += halves[i] != (fp16_nan ? 0x7fff : bits[i]);
  }
  CHECK(different == 0);
}

TEST_CASE("rounding to fp16, bf16 and e4m3 has the bits of the host and of the Toolkit") {
  constexpr int count = 1 << 22;
  std::vector<float> values(count);
  std::mt19937 random(7);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = detail::bit_cast<float>(static_cast<std::uint32_t>(i * 1024 + random() % 1024));
  }
  const device_array<float> device_values(values);
  const device_array<rounded> device_out(count);
  round_all<<<blocks(count), threads>>>(count, device_values.data(), device_out.data());
  finish_launch();
  const std::vector<rounded> out = device_out.fetch();
  int from_host = 0, from_toolkit = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const rounded& r = out[i];
    from_host += r.bf16 != from_float<bf16>(values[i]).bits;
    from_host += r.fp16 != from_float<fp16>(values[i]).bits;
    from_host += r.e4m3 != from_float<fp8_e4m3>(values[i]).bits;
    from_toolkit += r.bf16 != r.cuda_bf16;
    from_toolkit += r.fp16 != r.cuda_fp16;
    from_toolkit += r.e4m3 != r.cuda_e4m3;
  }
  CHECK(from_host == 0);
  CHECK(from_toolkit == 0);
}

TEST_CASE("A01: a kernel writes through a head-sliced view and leaves the padding alone") {
  constexpr index_t tokens = 5;
  const device_array<float> memory(tokens * 32 * 512);
  const device_array<index_t> sizes(2);
  const view<float, heads_22_of_32, memory_space::device> sliced(
      memory.data(), {dim<axis::token, dynamic_extent, 32 * 512>(tokens), {}, {}});
  fill_view<<<3, threads>>>(sliced, sizes.data());
  finish_launch();
  const auto seen = sizes.fetch();
  CHECK(seen[0] == static_cast<index_t>(sizeof sliced));
  CHECK(seen[1] == sliced.span_size());
  const auto written = memory.fetch();
  int wrong = 0;
  for (index_t i = 0; i < tokens * 32 * 512; ++i) {
    const index_t token = i / (32 * 512), head = i / 512 % 32, d = i % 512;
    const std::uint32_t bits = detail::float_bits(written[static_cast<std::size_t>(i)]);
    const std::uint32_t expected =
        head < 22 ? detail::float_bits(static_cast<float>((token * 22 + head) * 512 + d))
                  : 0xffffffffu;
    wrong += bits != expected;
  }
  CHECK(wrong == 0);
}
