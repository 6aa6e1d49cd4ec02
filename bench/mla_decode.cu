// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Decode attention beside a kernel that only reads as many bytes. Pages of 64 in no order, other
// ones in every call; sequences of one length.

#include <headwise/core/cuda_element.cuh>
#include <headwise/kernel/mla_decode.cuh>

#include "harness.cuh"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace headwise;
using bench::check;

constexpr index_t page_size = 64;
constexpr double softmax_scale = 0.05;

__global__ void read_kernel(const uint4* data, index_t count, unsigned* nowhere) {
  const index_t threads = index_t{gridDim.x} * blockDim.x;
  unsigned all = 0;
#pragma unroll 8
  for (index_t i = index_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    const uint4 four = __ldcs(data + i);
    all |= four.x ^ four.y ^ four.z ^ four.w;
  }
  if (all == 0x12345678u) *nowhere = all;  // so that the loads are not left out
}

struct step {
  index_t sequences;
  index_t length;  ///< sparse: slots of a query token
  index_t heads;
  index_t query_tokens = 1;
};

/// Pages of random records, in device memory.
template <kv_record Record>
struct cache {
  explicit cache(index_t count) : pages(count), bytes(1, count * page_size * Record::record_bytes) {
    if constexpr (detail::is_quantised<Record>) return;
    bench::fill(reinterpret_cast<bf16*>(bytes[0]), count * page_size * Record::head_dim, -1, 1);
  }
  auto view() const {
    return paged_kv<Record, memory_space::device>::packed(bytes[0], pages, page_size);
  }

  index_t pages;
  bench::buffers<std::byte> bytes;
};

template <class T>
class device_list {
 public:
  explicit device_list(const std::vector<T>& numbers) {
    const std::size_t bytes = numbers.size() * sizeof(T);
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes));
    check(cudaMemcpy(data_, numbers.data(), bytes, cudaMemcpyHostToDevice));
  }
  device_list(const device_list&) = delete;
  device_list& operator=(const device_list&) = delete;
  ~device_list() { cudaFree(data_); }
  const T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

template <kv_record Record>
void decode(bench::harness& bench, const step& of, bool sparse) {
  const index_t tokens = of.sequences * of.query_tokens;
  const std::string shape = std::string(sparse ? "sparse " : "") + Record::name +
                            " B=" + std::to_string(of.sequences) +
                            " S=" + std::to_string(of.length) + " H=" + std::to_string(of.heads) +
                            " q=" + std::to_string(of.query_tokens);
  if (!bench.wanted(shape)) return;
  const index_t lists = sparse ? tokens : of.sequences;
  const double bytes = static_cast<double>(lists * of.length * Record::record_bytes);
  const double flop = 2.0 * static_cast<double>(tokens * of.heads * of.length) *
                      static_cast<double>(Record::head_dim + Record::latent);
  const index_t sets = bench.sets_for(bytes);
  const index_t width = detail::ceil_div(of.length, page_size);
  const index_t pages = sets * lists * width;

  const cache<Record> records(pages);
  const bench::buffers<bf16> query(1, tokens * of.heads * Record::head_dim, -1, 1);
  const bench::buffers<bf16> output(1, tokens * of.heads * Record::latent);
  const bench::buffers<float> lses(1, tokens * of.heads);
  const bench::buffers<unsigned> nowhere(1, 1);
  const index_t room = bench::checked(
      kernel::mla_decode_bytes<Record>(sparse ? of.heads : of.query_tokens * of.heads));
  const bench::buffers<std::byte> workspace(1, room);
  check(cudaMemset(workspace[0], 0, static_cast<std::size_t>(room)));

  std::mt19937 random(1);
  std::vector<int> order(static_cast<std::size_t>(pages));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::shuffle(order.begin(), order.end(), random);
  if (sparse) {
    std::vector<int> slots;
    for (const int page : order) {
      for (int row = 0; row < page_size; ++row)
        slots.push_back(page * static_cast<int>(page_size) + row);
    }
    std::shuffle(slots.begin(), slots.end(), random);
    order.swap(slots);
  }
  const device_list<int> names(order);
  const device_list<int> lengths(
      std::vector<int>(static_cast<std::size_t>(of.sequences), static_cast<int>(of.length)));

  const auto device = [](auto* data, auto layout) {
    return make_view<memory_space::device>(data, layout);
  };
  const auto run = [&](cudaStream_t stream, index_t set) {
    const auto heads = extent<axis::head>(of.heads);
    const auto rows = extent<axis::token>(tokens);
    const auto in =
        device(query[0], packed(rows, heads, extent<axis::head_dim, Record::head_dim>()));
    const auto out =
        device(output[0], packed(rows, heads, extent<axis::head_dim, Record::latent>()));
    const auto lse_out = device(reinterpret_cast<lse<log_base::e>*>(lses[0]), packed(rows, heads));
    const std::span<std::byte> scratch(workspace[0], static_cast<std::size_t>(room));
    const index_t first = set * lists * width;
    if (sparse) {
      check(kernel::mla_decode_sparse(in, records.view(),
                                      device(names.get() + first * page_size,
                                             packed(rows, extent<axis::key>(width * page_size))),
                                      softmax_scale, out, lse_out, scratch,
                                      on_stream{stream, true}));
    } else {
      check(kernel::mla_decode(
          in, records.view(),
          device(names.get() + first,
                 packed(extent<axis::sequence>(of.sequences), extent<axis::page>(width))),
          device(lengths.get(), packed(extent<axis::sequence>(of.sequences))),
          mla_options{softmax_scale, of.query_tokens, {}}, out, lse_out, scratch,
          on_stream{stream, true}));
    }
  };
  const index_t set_bytes = lists * width * page_size * Record::record_bytes;
  const auto read = [&](cudaStream_t stream, index_t set) {
    read_kernel<<<1056, 256, 0, stream>>>(
        reinterpret_cast<const uint4*>(records.bytes[0] + set * set_bytes), set_bytes / 16,
        nowhere[0]);
    check(cudaGetLastError());
  };
  bench.compare(shape, {{"a read of the keys", bytes, read}, {"mla_decode", bytes, run}}, sets);
  char text[96];
  std::snprintf(text, sizeof text, "%.3g GFLOP; GB/s are those of the keys alone", flop * 1e-9);
  bench.note(text);
}

}  // namespace

int main(int argc, char** argv) {
  bench::harness bench(argc, argv, "mla_decode");
  using bf16_cache = kv_bf16<512, 64>;
  using fp8_cache = kv_fp8_ds_mla<512, 64>;
  for (const index_t length : {1024, 8192, 32768, 131072}) {
    decode<bf16_cache>(bench, {1, length, 22}, false);
  }
  for (const index_t heads : {16, 22, 64}) {
    decode<bf16_cache>(bench, {4, 8192, heads}, false);
    decode<bf16_cache>(bench, {16, 8192, heads}, false);
  }
  for (const index_t heads : {16, 22, 32, 64, 128}) {
    decode<bf16_cache>(bench, {128, 4096, heads}, false);
  }
  decode<bf16_cache>(bench, {128, 4096, 64, 2}, false);
  decode<bf16_cache>(bench, {64, 32768, 16}, false);
  for (const index_t heads : {22, 64, 128}) {
    for (const index_t tokens : {1, 16, 128}) {
      decode<fp8_cache>(bench, {tokens, 2048, heads}, true);
    }
  }
  return bench.finish();
}
