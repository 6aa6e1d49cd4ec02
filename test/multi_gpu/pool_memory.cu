// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Memory of a peer pool between processes. Where several of them share a GPU they are told so and
// refused; what is mapped is then tried with ranks that keep that to themselves, which is good for
// kernels that wait for nobody.

#include <headwise/pool/memory.cuh>
#include <headwise/pool/socket_bootstrap.hpp>
#include <headwise/transport/nccl.cuh>

#include <support/processes.hpp>
#include <support/sentence.hpp>

#include <doctest/doctest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

struct slabs {
  std::byte* of[max_ranks];
};

constexpr int part = 1000;

/// Each rank writes its number into its part of the slab of every rank, where it must find zeros.
__global__ void store_into_peers(slabs all, int rank, int size, unsigned* not_zero) {
  for (int r = 0; r < size; ++r) {
    for (int i = static_cast<int>(threadIdx.x); i < part; i += static_cast<int>(blockDim.x)) {
      std::byte* const at = all.of[r] + rank * part + i;
      if (*at != std::byte{0}) atomicAdd(not_zero, 1);
      *at = static_cast<std::byte>(rank + 1);
    }
  }
}

__global__ void count_wrong(const std::byte* own, int size, unsigned* wrong) {
  for (int r = 0; r < size; ++r) {
    for (int i = static_cast<int>(threadIdx.x); i < part; i += static_cast<int>(blockDim.x)) {
      if (own[r * part + i] != static_cast<std::byte>(r + 1)) atomicAdd(wrong, 1);
    }
  }
}

/// The calls of CUDA, counted; and the GPU of each process is another one.
struct counted_calls : cuda_calls {
  static inline int opened = 0;
  static inline int closed = 0;
  static inline int rank = 0;
  static inline int delay = 0;  // in milliseconds

  static cudaError_t identify(int ordinal, device_identity& device) noexcept {
    const cudaError_t said = cuda_calls::identify(ordinal, device);
    device.uuid[15] = static_cast<std::uint8_t>(device.uuid[15] ^ (rank + 1));
    device.pci[0] += 1000 * (rank + 1);
    return said;
  }
  static cudaError_t ipc_open(void*& data, const ipc_handle& handle) noexcept {
    const cudaError_t said = cuda_calls::ipc_open(data, handle);
    opened += said == cudaSuccess ? 1 : 0;
    return said;
  }
  static cudaError_t ipc_close(void* data) noexcept {
    std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    const cudaError_t said = cuda_calls::ipc_close(data);
    closed += said == cudaSuccess ? 1 : 0;
    return said;
  }
};

std::string told(const char* what, const status& came_to) {
  return std::string(what) + ": " + sentence(came_to);
}

/// Where the ranks of a test meet: what their parent has in common.
std::string meeting_place(const char* work) {
  return (std::filesystem::temp_directory_path() /
          ("headwise-pool-" + std::to_string(getppid()) + "-" + work))
      .string();
}

/// What kernels of all ranks store into all slabs arrives.
std::string exchange(const mapped_slab& slab, bootstrap_ref ranks, const rank_context& me) {
  slabs all{};
  for (int r = 0; r < ranks.size(); ++r) all.of[r] = slab.of[r];
  unsigned* counters = nullptr;
  RANK_CUDA(cudaMallocHost(&counters, 64));
  counters[0] = counters[1] = 0;
  store_into_peers<<<1, 256, 0, me.stream>>>(all, me.rank, me.ranks, counters);
  RANK_CUDA(cudaGetLastError());
  RANK_CUDA(cudaStreamSynchronize(me.stream));
  const status stored = detail::barrier(ranks);
  if (!stored.ok()) return told("stored", stored);
  count_wrong<<<1, 256, 0, me.stream>>>(slab.of[me.rank], me.ranks, counters + 1);
  RANK_CUDA(cudaGetLastError());
  RANK_CUDA(cudaStreamSynchronize(me.stream));
  const unsigned not_zero = counters[0];
  const unsigned wrong = counters[1];
  RANK_CUDA(cudaFreeHost(counters));
  if (not_zero != 0) return std::to_string(not_zero) + " bytes were not zero";
  return wrong == 0 ? "" : std::to_string(wrong) + " bytes did not arrive";
}

/// So many slabs, one after the other and two at a time.
template <class Memory>
std::string cycles(Memory& memory, bootstrap_ref ranks, const rank_context& me, int count) {
  for (int i = 0; i < count; ++i) {
    mapped_slab both[2];
    for (mapped_slab& slab : both) {
      const result<mapped_slab> mapped = memory.map(ranks, me.ranks * part + i);
      if (!mapped.ok()) return told("map", mapped.why());
      slab = mapped.value();
      const std::string wrong = exchange(slab, ranks, me);
      if (!wrong.empty()) return wrong;
    }
    for (mapped_slab& slab : both) {
      const status unmapped = memory.unmap(ranks, slab);
      if (!unmapped.ok()) return told("unmap", unmapped);
    }
  }
  return "";
}

std::size_t free_memory() {
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaDeviceSynchronize() != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) {
    _exit(2);
  }
  return free;
}

/// Two hundred slabs, and rank 1 late between the end of a slab and the next step.
std::string ipc(const rank_context& me) {
  counted_calls::rank = me.rank;
  socket_bootstrap ranks;
  const status opened =
      ranks.open(meeting_place("ipc").c_str(), me.rank, me.ranks, std::chrono::seconds(30));
  if (!opened.ok()) return told("socket", opened);
  basic_ipc_memory<counted_calls> memory;
  std::string wrong = cycles(memory, ranks, me, 1);
  if (!wrong.empty()) return wrong;
  const std::size_t before = free_memory();
  if (me.rank == 1) counted_calls::delay = 2;
  wrong = cycles(memory, ranks, me, 99);
  if (!wrong.empty()) return wrong;
  if (counted_calls::opened != 200 * (me.ranks - 1)) return "so many were not opened";
  if (counted_calls::opened != counted_calls::closed) return "not all were closed";
  // Others of the same GPU may not have freed theirs yet.
  const status freed = detail::barrier(ranks);
  if (!freed.ok()) return told("barrier", freed);
  return free_memory() >= before ? "" : "memory is gone";
}
const register_rank_work ipc_work("pool_ipc", ipc);

/// Through the communicator of the ranks.
std::string ipc_over_nccl(const rank_context& me) {
  counted_calls::rank = me.rank;
  std::byte* scratch = nullptr;
  const auto bytes = static_cast<std::size_t>(nccl_scratch_bytes(me.ranks));
  RANK_CUDA(cudaMalloc(reinterpret_cast<void**>(&scratch), bytes));
  auto made = nccl::make(me.communicator, me.stream, {scratch, bytes});
  if (!made.ok()) return told("make", made.why());
  nccl group = made.value();
  transport_bootstrap ranks(group);
  const std::string text = "of rank " + std::to_string(me.rank) + std::string(150, '.');
  std::vector<char> all(text.size() * static_cast<std::size_t>(me.ranks));
  const status gathered =
      ranks.all_gather(std::as_bytes(std::span(text)), std::as_writable_bytes(std::span(all)));
  if (!gathered.ok()) return told("gather", gathered);
  for (int r = 0; r < me.ranks; ++r) {
    const std::string wanted = "of rank " + std::to_string(r) + std::string(150, '.');
    if (std::string(all.data() + static_cast<std::size_t>(r) * text.size(), text.size()) !=
        wanted) {
      return "other bytes than rank " + std::to_string(r) + " sent";
    }
  }
  basic_ipc_memory<counted_calls> memory;
  const std::string wrong = cycles(memory, ranks, me, 5);
  if (!wrong.empty()) return wrong;
  RANK_CUDA(cudaFree(scratch));
  return "";
}
const register_rank_work nccl_work("pool_ipc_over_nccl", ipc_over_nccl);

std::string host_shared(const rank_context& me) {
  counted_calls::rank = me.rank;
  socket_bootstrap ranks;
  const status opened =
      ranks.open(meeting_place("host").c_str(), me.rank, me.ranks, std::chrono::seconds(30));
  if (!opened.ok()) return told("socket", opened);
  basic_host_memory<counted_calls> memory;
  const std::string wrong = cycles(memory, ranks, me, 50);
  if (!wrong.empty()) return wrong;
  if (memory.kind() != memory_kind::host_shared) return "another kind";
  const std::string ours = "headwise-" + std::to_string(getpid()) + "-";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().rfind(ours, 0) == 0) return "a segment is left";
  }
  return "";
}
const register_rank_work host_work("pool_host_shared", host_shared);

/// What the library chooses, with the GPUs as they are.
std::string automatic(const rank_context& me) {
  socket_bootstrap ranks;
  const status opened =
      ranks.open(meeting_place("automatic").c_str(), me.rank, me.ranks, std::chrono::seconds(30));
  if (!opened.ok()) return told("socket", opened);
  int devices = 0;
  RANK_CUDA(cudaGetDeviceCount(&devices));
  automatic_memory memory;
  if (devices < me.ranks) {
    const status refused = memory.map(ranks, me.ranks * part).why();
    const bool in_words = std::string(refused.message).find("they take turns") != std::string::npos;
    return refused.code == errc::unsupported && in_words ? "" : told("map", refused);
  }
  const std::string wrong = cycles(memory, ranks, me, 20);
  if (!wrong.empty()) return wrong;
  const bool peers =
      memory.kind() == memory_kind::ipc && memory.reason() == memory_reason::several_processes;
  return peers || memory.kind() == memory_kind::host_shared ? "" : "another kind";
}
const register_rank_work automatic_work("pool_automatic", automatic);

/// Ranks that ask for other sizes, or stop coming: an error on all of them, in time.
std::string differing(const rank_context& me) {
  counted_calls::rank = me.rank;
  socket_bootstrap ranks;
  const status opened =
      ranks.open(meeting_place("differing").c_str(), me.rank, me.ranks, std::chrono::seconds(5));
  if (!opened.ok()) return told("socket", opened);
  basic_ipc_memory<counted_calls> memory;
  const status other = memory.map(ranks, me.rank == 1 ? 8192 : 4096).why();
  if (other.code != errc::rank_mismatch || std::string(other.axis) != "bytes") {
    return told("another size", other);
  }
  const std::string works = cycles(memory, ranks, me, 2);
  if (!works.empty()) return works;
  if (me.rank == 1) return "";
  const status gone = memory.map(ranks, 4096).why();
  return gone.code == errc::timed_out && gone.got == 1 ? "" : told("a rank that is gone", gone);
}
const register_rank_work differing_work("pool_differing", differing);

}  // namespace

TEST_CASE("H08: I04: I11: pool_memory: IPC, two hundred slabs, a rank that is late") {
  for (const int ranks : {2, 4}) CHECK(on_processes("pool_ipc", ranks) == "");
}
TEST_CASE("pool_memory: IPC, the handles through NCCL") {
  CHECK(on_processes("pool_ipc_over_nccl", 2) == "");
}
TEST_CASE("pool_memory: host memory that processes share") {
  for (const int ranks : {2, 4}) CHECK(on_processes("pool_host_shared", ranks) == "");
}
TEST_CASE("pool_memory: what is chosen, or refused to processes that share a GPU") {
  for (const int ranks : {2, 4}) CHECK(on_processes("pool_automatic", ranks) == "");
}
TEST_CASE("H06: pool_memory: ranks that differ, or are gone") {
  CHECK(on_processes("pool_differing", 3) == "");
}
