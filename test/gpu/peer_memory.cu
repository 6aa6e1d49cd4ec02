// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Memory of a peer pool with ranks that are threads of this process: on one GPU, and on several
// where there are several.

#include <headwise/pool/memory.cuh>

#include <support/device.hpp>
#include <support/ranks.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

struct slabs {
  std::byte* of[max_ranks];
};

/// Each rank writes its number into its part of the slab of every rank, where it must find zeros.
__global__ void store_into_peers(slabs all, int rank, int size, int part, unsigned* not_zero) {
  for (int r = 0; r < size; ++r) {
    for (int i = static_cast<int>(threadIdx.x); i < part; i += static_cast<int>(blockDim.x)) {
      std::byte* const at = all.of[r] + rank * part + i;
      if (*at != std::byte{0}) atomicAdd(not_zero, 1);
      *at = static_cast<std::byte>(rank + 1);
    }
  }
}

__global__ void count_wrong(const std::byte* own, int size, int part, unsigned* wrong) {
  for (int r = 0; r < size; ++r) {
    for (int i = static_cast<int>(threadIdx.x); i < part; i += static_cast<int>(blockDim.x)) {
      if (own[r * part + i] != static_cast<std::byte>(r + 1)) atomicAdd(wrong, 1);
    }
  }
}

constexpr int part = 1000;

status wrong(const char* what, index_t got = 0) {
  return failure(errc::invalid_argument, "test", what, got, -1);
}

/// What kernels of all ranks store into all slabs arrives.
status exchange(const mapped_slab& slab, bootstrap_ref ranks) {
  slabs all{};
  for (int r = 0; r < ranks.size(); ++r) all.of[r] = slab.of[r];
  unsigned* counters = nullptr;
  status came_to = cuda_calls::told(cudaHostAlloc(reinterpret_cast<void**>(&counters), 64,
                                                  cudaHostAllocMapped | cudaHostAllocPortable),
                                    "test");
  if (!came_to.ok()) return came_to;
  counters[0] = counters[1] = 0;
  cudaStream_t stream = nullptr;
  came_to = cuda_calls::told(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "test");
  const auto step = [&](const auto& launch) {
    if (came_to.ok()) {
      launch();
      came_to = cuda_calls::told(cudaGetLastError(), "launch");
    }
    if (came_to.ok()) came_to = cuda_calls::told(cudaStreamSynchronize(stream), "kernel");
    const status all_done = detail::unanimous(ranks, came_to, "kernel");
    if (came_to.ok()) came_to = all_done;
  };
  step([&] {
    store_into_peers<<<1, 256, 0, stream>>>(all, ranks.rank(), ranks.size(), part, counters);
  });
  step([&] {
    count_wrong<<<1, 256, 0, stream>>>(slab.of[ranks.rank()], ranks.size(), part, counters + 1);
  });
  if (came_to.ok() && counters[0] != 0) came_to = wrong("bytes were not zero", counters[0]);
  if (came_to.ok() && counters[1] != 0) came_to = wrong("bytes did not arrive", counters[1]);
  static_cast<void>(cudaStreamDestroy(stream));
  static_cast<void>(cudaFreeHost(counters));
  return came_to;
}

template <class Memory>
status cycle(Memory& memory, bootstrap_ref ranks, index_t bytes) {
  const result<mapped_slab> mapped = memory.map(ranks, bytes);
  if (!mapped.ok()) return mapped.why();
  mapped_slab slab = mapped.value();
  const status exchanged = exchange(slab, ranks);
  const status unmapped = memory.unmap(ranks, slab);
  return exchanged.ok() ? unmapped : exchanged;
}

int gpus() {
  int count = 0;
  REQUIRE_CUDA(cudaGetDeviceCount(&count));
  return count;
}

using rank_work = std::function<status(bootstrap_ref, int)>;

/// Ranks as threads, rank r on GPU r % `devices`; the first failure.
std::string on_gpus(int ranks, int devices, const rank_work& work) {
  return sentence(first_failure(on_ranks(
      ranks,
      [&](in_process& me) -> status {
        const int device = me.rank() % devices;
        const status chosen = cuda_calls::told(cudaSetDevice(device), "device");
        transport_bootstrap group(me);
        const status can = detail::unanimous(group, chosen);
        if (!can.ok()) return can;
        const status came_to = work(group, device);
        if (!came_to.ok()) return came_to;
        return cuda_calls::told(cudaGetLastError(), "left behind");
      },
      std::chrono::seconds(60))));
}

std::size_t free_memory() {
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE_CUDA(cudaDeviceSynchronize());
  REQUIRE_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

/// The first two and as many as there are GPUs.
std::vector<int> numbers_of_gpus() {
  std::vector<int> numbers{1};
  if (gpus() > 1) numbers.push_back(2);
  if (gpus() > 2) numbers.push_back(gpus());
  return numbers;
}

/// A function of the driver: VMM memory has none in the runtime.
template <class Function>
Function driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  REQUIRE_CUDA(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
#else
  REQUIRE_CUDA(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found));
#endif
  REQUIRE(found == cudaDriverEntryPointSuccess);
  return reinterpret_cast<Function>(function);
}

/// VMM memory of a GPU, which nobody may use before allow().
class vmm_block {
 public:
  explicit vmm_block(int device) {
    about_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    about_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    about_.location.id = device;
    REQUIRE(driver<CUresult (*)(std::size_t*, const CUmemAllocationProp*, int)>(
                "cuMemGetAllocationGranularity")(&bytes_, &about_,
                                                 CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
    REQUIRE(driver<CUresult (*)(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr,
                                unsigned long long)>("cuMemAddressReserve")(&at_, bytes_, 0, 0,
                                                                            0) == CUDA_SUCCESS);
    REQUIRE(driver<CUresult (*)(CUmemGenericAllocationHandle*, std::size_t,
                                const CUmemAllocationProp*, unsigned long long)>("cuMemCreate")(
                &handle_, bytes_, &about_, 0) == CUDA_SUCCESS);
    REQUIRE(driver<CUresult (*)(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
                                unsigned long long)>("cuMemMap")(at_, bytes_, 0, handle_, 0) ==
            CUDA_SUCCESS);
  }
  vmm_block(const vmm_block&) = delete;
  vmm_block& operator=(const vmm_block&) = delete;
  ~vmm_block() {
    driver<CUresult (*)(CUdeviceptr, std::size_t)>("cuMemUnmap")(at_, bytes_);
    driver<CUresult (*)(CUmemGenericAllocationHandle)>("cuMemRelease")(handle_);
    driver<CUresult (*)(CUdeviceptr, std::size_t)>("cuMemAddressFree")(at_, bytes_);
  }
  void allow(int device) const {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    REQUIRE(driver<CUresult (*)(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t)>(
                "cuMemSetAccess")(at_, bytes_, &access, 1) == CUDA_SUCCESS);
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(at_); }
  index_t bytes() const { return static_cast<index_t>(bytes_); }

 private:
  CUmemAllocationProp about_{};
  std::size_t bytes_ = 0;
  CUdeviceptr at_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
};

std::string with_callers_memory(const mapped_memory& memory, int ranks, int devices) {
  return on_gpus(ranks, devices, [&](bootstrap_ref group, int) {
    caller_memory own(memory);
    return cycle(own, group, ranks * part);
  });
}

}  // namespace

TEST_CASE(
    "H08: peer_memory: ranks on GPUs come and go a hundred times, and leave no memory behind") {
  for (const int devices : numbers_of_gpus()) {
    for (const int ranks : {2, 3, 16}) {
      const auto times = [&](int count) {
        return on_gpus(ranks, devices, [&](bootstrap_ref group, int) -> status {
          const auto memory = std::make_unique<peer_access_memory>();
          for (int i = 0; i < count; ++i) {
            const status done = cycle(*memory, group, (1 << 20) + ranks * part);
            if (!done.ok()) return done;
          }
          return {};
        });
      };
      REQUIRE(times(1) == "ok");
      const std::size_t before = free_memory();
      CHECK(times(100) == "ok");
      CHECK(free_memory() == before);
    }
  }
}

TEST_CASE("peer_memory: pinned host memory of one process") {
  for (const int devices : numbers_of_gpus()) {
    for (const int ranks : {1, 2, 16}) {
      CHECK(on_gpus(ranks, devices, [&](bootstrap_ref group, int) -> status {
              const auto memory = std::make_unique<host_memory>();
              for (int i = 0; i < 10; ++i) {
                const status done = cycle(*memory, group, ranks * part);
                if (!done.ok()) return done;
              }
              return memory->kind() == memory_kind::host ? status{} : wrong("kind");
            }) == "ok");
    }
  }
}

TEST_CASE("peer_memory: the automatic choice on this machine works, whatever it is") {
  for (const int devices : numbers_of_gpus()) {
    CHECK(on_gpus(4, devices, [&](bootstrap_ref group, int) -> status {
            const auto memory = std::make_unique<automatic_memory>();
            mapped_slab slabs[3];
            for (mapped_slab& slab : slabs) {
              const result<mapped_slab> mapped = memory->map(group, 4 * part);
              if (!mapped.ok()) return mapped.why();
              slab = mapped.value();
            }
            for (mapped_slab& slab : slabs) {
              const status works = exchange(slab, group);
              if (!works.ok()) return works;
              const status gone = memory->unmap(group, slab);
              if (!gone.ok()) return gone;
            }
            const bool one_gpu = devices == 1;
            const bool peers = memory->kind() == memory_kind::peer_access;
            return peers || (!one_gpu && memory->kind() == memory_kind::host) ? status{}
                                                                              : wrong("kind");
          }) == "ok");
  }
}

TEST_CASE("I06: I07: peer access that somebody has enabled stays so, and no error is left") {
  if (gpus() < 2) {
    MESSAGE("left out: asks for two GPUs");
    return;
  }
  for (int from = 0; from < 2; ++from) {
    REQUIRE_CUDA(cudaSetDevice(from));
    const cudaError_t said = cudaDeviceEnablePeerAccess(1 - from, 0);
    REQUIRE((said == cudaSuccess || said == cudaErrorPeerAccessAlreadyEnabled));
    static_cast<void>(cudaGetLastError());
  }
  REQUIRE_CUDA(cudaSetDevice(0));
  CHECK(on_gpus(2, 2, [&](bootstrap_ref group, int) -> status {
          const auto first = std::make_unique<peer_access_memory>();
          const auto second = std::make_unique<peer_access_memory>();
          const result<mapped_slab> mapped = first->map(group, 2 * part);
          if (!mapped.ok()) return mapped.why();
          mapped_slab slab = mapped.value();
          const status other = cycle(*second, group, 2 * part);
          if (!other.ok()) return other;
          const status works = exchange(slab, group);
          return works.ok() ? first->unmap(group, slab) : works;
        }) == "ok");
}

TEST_CASE("peer_memory: identities of GPUs are those that the driver has") {
  for (int device = 0; device < gpus(); ++device) {
    device_identity is;
    REQUIRE_CUDA(cuda_calls::identify(device, is));
    cudaDeviceProp properties{};
    REQUIRE_CUDA(cudaGetDeviceProperties(&properties, device));
    CHECK(is.pci[0] == properties.pciDomainID);
    CHECK(is.pci[1] == properties.pciBusID);
    CHECK(is.pci[2] == properties.pciDeviceID);
    CHECK(is.ordinal == device);
    // An instance of a GPU (MIG) has another in the driver's second version of this.
    CHECK(std::memcmp(is.uuid, properties.uuid.bytes, 16) == 0);
  }
}

TEST_CASE("peer_memory: pieces of memory that a caller has mapped") {
  const device_array<std::byte> block(8 * 16384);
  mapped_memory given;
  given.bytes = 16384;
  for (int r = 0; r < 8; ++r) given.of[r] = block.data() + 16384 * r;
  CHECK(with_callers_memory(given, 8, 1) == "ok");
}

TEST_CASE("I14: memory that is not mapped for kernels is refused when it is taken") {
  const device_array<std::byte> block(16384);
  const std::vector<std::byte> of_host(32768);
  mapped_memory given;
  given.bytes = 8192;
  given.of[0] = block.data();
  const auto address = reinterpret_cast<std::uintptr_t>(of_host.data());
  given.of[1] = reinterpret_cast<std::byte*>((address + 255) / 256 * 256);
  CHECK(with_callers_memory(given, 2, 1).find("of rank (got) is not mapped") != std::string::npos);
  // As rank 1 of another process has it.
  given.of[1] = given.of[0] + (std::ptrdiff_t{1} << 44);
  CHECK(with_callers_memory(given, 2, 1).find("of rank (got) is not mapped") != std::string::npos);
}

TEST_CASE("I13: VMM memory without access for a rank's GPU is refused, and works with it") {
  const vmm_block first(0);
  const vmm_block second(0);
  mapped_memory given;
  given.bytes = first.bytes();
  given.of[0] = first.data();
  given.of[1] = second.data();
  CHECK(with_callers_memory(given, 2, 1).find("of rank (got) is not mapped") != std::string::npos);
  first.allow(0);
  second.allow(0);
  CHECK(with_callers_memory(given, 2, 1) == "ok");
  if (gpus() < 2) return;
  // Rank 1 is on GPU 1. Peer access in the sense of the runtime need not extend to VMM memory;
  // where a driver has it so, kernels of rank 1 have written there.
  const std::string without = with_callers_memory(given, 2, 2);
  CAPTURE(without);
  CHECK((without == "ok" || without.find("of rank (got) is not mapped") != std::string::npos));
  first.allow(1);
  second.allow(1);
  CHECK(with_callers_memory(given, 2, 2) == "ok");
}

TEST_CASE("I03: slabs come from own allocations, also where a caller's memory is VMM") {
  const vmm_block of_caller(0);
  of_caller.allow(0);
  CHECK(on_gpus(2, 1, [](bootstrap_ref group, int) {
          const auto memory = std::make_unique<automatic_memory>();
          return cycle(*memory, group, 2 * part);
        }) == "ok");
}
