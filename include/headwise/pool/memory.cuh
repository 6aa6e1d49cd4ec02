// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/cuda_status.cuh>
#include <headwise/pool/own_memory.hpp>

#include <cuda.h>
#include <cuda_runtime_api.h>

// The kinds of memory of a peer pool, with the CUDA runtime behind them. Compiles with nvcc, and
// with any C++20 compiler that finds the headers of CUDA.

namespace headwise::inline v0 {

/// What the memory of a pool asks of CUDA, call by call; of the device that is current on the
/// thread where none is named.
struct cuda_calls {
  using ipc_handle = cudaIpcMemHandle_t;
  static constexpr cudaError_t peer_access_already_enabled = cudaErrorPeerAccessAlreadyEnabled;
  static constexpr cudaError_t too_many_peers = cudaErrorTooManyPeers;

  /// As a status; the thread's last error is clean afterwards.
  static status told(cudaError_t said, const char* operand,
                     source_line where = source_line::current()) noexcept {
    return detail::cuda_status(said, operand, where);
  }

  static cudaError_t current_device(int& device) noexcept { return cudaGetDevice(&device); }
  static cudaError_t device_count(int& count) noexcept { return cudaGetDeviceCount(&count); }

  /// The UUID of the driver's second version: an instance of a GPU (MIG) has its own there.
  static cudaError_t identify(int ordinal, device_identity& device) noexcept {
    int pci[3] = {};
    const cudaDeviceAttr wanted[] = {cudaDevAttrPciDomainId, cudaDevAttrPciBusId,
                                     cudaDevAttrPciDeviceId};
    for (int i = 0; i < 3; ++i) {
      const cudaError_t said = cudaDeviceGetAttribute(&pci[i], wanted[i], ordinal);
      if (said != cudaSuccess) return said;
      device.pci[i] = pci[i];
    }
    void* function = nullptr;
    const cudaError_t found = driver_function(function, "cuDeviceGetUuid");
    if (found != cudaSuccess) return found;
    CUuuid uuid{};
    using get_uuid = CUresult (*)(CUuuid*, CUdevice);
    // The runtime counts devices as the driver does, and a CUdevice is that number.
    if (reinterpret_cast<get_uuid>(function)(&uuid, ordinal) != CUDA_SUCCESS) {
      return cudaErrorInvalidDevice;
    }
    for (int i = 0; i < 16; ++i) device.uuid[i] = static_cast<std::uint8_t>(uuid.bytes[i]);
    device.ordinal = ordinal;
    return cudaSuccess;
  }

  static cudaError_t can_access_peer(bool& can, int device, int peer) noexcept {
    int answer = 0;
    const cudaError_t said = cudaDeviceCanAccessPeer(&answer, device, peer);
    can = answer != 0;
    return said;
  }
  static cudaError_t enable_peer_access(int peer) noexcept {
    return cudaDeviceEnablePeerAccess(peer, 0);
  }

  static cudaError_t allocate(void*& data, std::size_t bytes) noexcept {
    return cudaMalloc(&data, bytes);
  }
  static cudaError_t release(void* data) noexcept { return cudaFree(data); }
  static cudaError_t zero(void* data, std::size_t bytes) noexcept {
    return cudaMemset(data, 0, bytes);
  }
  static cudaError_t synchronize() noexcept { return cudaDeviceSynchronize(); }

  static cudaError_t ipc_name(ipc_handle& handle, void* data) noexcept {
    return cudaIpcGetMemHandle(&handle, data);
  }
  static cudaError_t ipc_open(void*& data, const ipc_handle& handle) noexcept {
    return cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess);
  }
  static cudaError_t ipc_close(void* data) noexcept { return cudaIpcCloseMemHandle(data); }

  static cudaError_t allocate_host(void*& data, std::size_t bytes) noexcept {
    return cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  }
  static cudaError_t release_host(void* data) noexcept { return cudaFreeHost(data); }
  static cudaError_t pin_host(void* data, std::size_t bytes) noexcept {
    return cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  }
  static cudaError_t unpin_host(void* data) noexcept { return cudaHostUnregister(data); }
  static cudaError_t device_address(void*& address, void* data) noexcept {
    return cudaHostGetDevicePointer(&address, data, 0);
  }

  /// Whether CUDA knows of a reason why kernels of `device` would not reach memory: an address that
  /// is none of this process, a GPU that it cannot reach, VMM memory that it was given no access
  /// to. That peer access was enabled it does not say.
  static cudaError_t is_mapped(bool& mapped, void* data, int device) noexcept {
    cudaPointerAttributes about{};
    const cudaError_t said = cudaPointerGetAttributes(&about, data);
    if (said != cudaSuccess) return said;
    mapped = about.type != cudaMemoryTypeUnregistered;
    if (!mapped) return cudaSuccess;
    int count = 0;
    const cudaError_t counted = cudaGetDeviceCount(&count);
    if (counted != cudaSuccess) return counted;
    if (about.type == cudaMemoryTypeDevice && about.device != device && about.device >= 0 &&
        about.device < count) {
      const cudaError_t asked = can_access_peer(mapped, device, about.device);
      if (asked != cudaSuccess || !mapped) return asked;
    }
    // Only memory that was mapped by cuMemMap has access of its own to be asked for.
    void* ask = nullptr;
    const cudaError_t known = driver_function(ask, "cuPointerGetAttribute");
    if (known != cudaSuccess) return known;
    int allocated = 0;
    using get_attribute = CUresult (*)(void*, CUpointer_attribute, CUdeviceptr);
    const CUresult told = reinterpret_cast<get_attribute>(ask)(
        &allocated, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        reinterpret_cast<CUdeviceptr>(data));
    if (about.type == cudaMemoryTypeHost || (told == CUDA_SUCCESS && allocated != 0)) {
      return cudaSuccess;
    }
    void* function = nullptr;
    const cudaError_t found = driver_function(function, "cuMemGetAccess");
    if (found != cudaSuccess) return found;
    using get_access = CUresult (*)(unsigned long long*, const CUmemLocation*, CUdeviceptr);
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    unsigned long long flags = 0;
    const CUresult answered = reinterpret_cast<get_access>(function)(
        &flags, &location, reinterpret_cast<CUdeviceptr>(data));
    // Memory that was not mapped by cuMemMap has no such flags, and the answer is an error.
    if (answered == CUDA_SUCCESS) mapped = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cudaSuccess;
  }

 private:
  /// Of the driver that is loaded: the program need not be linked with it.
  static cudaError_t driver_function(void*& function, const char* name) noexcept {
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    const cudaError_t said =
        cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t said = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
    if (said != cudaSuccess) return said;
    return found == cudaDriverEntryPointSuccess ? cudaSuccess : cudaErrorNotSupported;
  }
};

using peer_access_memory = basic_peer_access_memory<cuda_calls>;
using ipc_memory = basic_ipc_memory<cuda_calls>;
using host_memory = basic_host_memory<cuda_calls>;
using caller_memory = basic_caller_memory<cuda_calls>;
using automatic_memory = basic_automatic_memory<cuda_calls>;

static_assert(peer_memory<peer_access_memory> && peer_memory<ipc_memory> &&
              peer_memory<host_memory> && peer_memory<caller_memory> &&
              peer_memory<automatic_memory>);

}  // namespace headwise::inline v0
