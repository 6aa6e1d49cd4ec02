// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/pool/bootstrap.hpp>

#include <concepts>

// Memory that the kernels of all ranks reach: what a pool asks of it. own_memory.hpp has how it is
// made, memory.cuh the kinds with CUDA behind them.

namespace headwise::inline v0 {

/// What a slab is made of.
enum class memory_kind : std::uint8_t {
  peer_access,  ///< memory of each rank's GPU; ranks are threads of one process
  ipc,          ///< memory of each rank's GPU, through CUDA IPC; ranks are processes
  host,         ///< pinned host memory of one process
  host_shared,  ///< host memory that processes share, pinned in each
  caller,       ///< what a caller has mapped
};

constexpr const char* to_string(memory_kind kind) noexcept {
  switch (kind) {
    case memory_kind::peer_access: return "peer access";
    case memory_kind::ipc: return "CUDA IPC";
    case memory_kind::host: return "pinned host memory";
    case memory_kind::host_shared: return "pinned shared host memory";
    case memory_kind::caller: return "the caller's memory";
  }
  return "unknown";
}

/// Why it is of that kind, or why it could not be of another; the same on all ranks.
enum class memory_reason : std::uint8_t {
  undecided,
  asked_for,
  one_process,
  several_processes,
  processes_in_part,
  several_hosts,
  shared_gpu,
  mig_instances,
  no_peer_access,
  too_many_peers,
  ipc_failed,
  probe_failed,
  call_failed,
};

constexpr const char* to_string(memory_reason reason) noexcept {
  switch (reason) {
    case memory_reason::undecided: return "nothing has been mapped yet";
    case memory_reason::asked_for: return "asked for";
    case memory_reason::one_process:
      return "ranks are threads of one process, and each GPU reaches every other";
    case memory_reason::several_processes:
      return "ranks are processes, and each GPU reaches every other";
    case memory_reason::processes_in_part: return "some ranks share a process and some do not";
    case memory_reason::several_hosts: return "ranks are on several hosts";
    case memory_reason::shared_gpu: return "two processes share a GPU";
    case memory_reason::mig_instances: return "two ranks have instances of one GPU (MIG)";
    case memory_reason::no_peer_access: return "a GPU cannot reach another";
    case memory_reason::too_many_peers: return "a GPU reaches no further peer";
    case memory_reason::ipc_failed: return "a CUDA IPC handle could not be made or opened";
    case memory_reason::probe_failed: return "what was mapped lost what was written to it";
    case memory_reason::call_failed: return "a call failed";
  }
  return "unknown";
}

/// A rank's memory and that of its peers. Owns nothing: it is valid from map() to unmap() of the
/// peer_memory that made it, which outlives all kernels that use it.
struct mapped_slab {
  /// The slab of each rank as kernels of this rank address it, its own at of[rank]; aligned to 256
  /// bytes. The addresses on another rank are others.
  std::byte* of[max_ranks] = {};
  index_t bytes = 0;  ///< of each slab
  int id = -1;        ///< which of the memory's slabs it is
};

/// Where slabs come from. One object for each rank, used by one thread at a time, on which the
/// rank's device is current.
///
/// map     collective. A slab of so many bytes on every rank; all of them zero, and seen to be zero
///         by every GPU, before the first rank hears where they are. Ok on all ranks or on none.
///         Not for a capture.
/// unmap   collective, in the same order on all ranks. Waits for the device, then for all ranks; no
///         slab is freed before the last peer has let go of it. Leaves `slab` empty.
/// kind, reason  of what map() made; the same on all ranks.
///
/// A memory that ends with slabs mapped frees nothing: it cannot know that its peers have let go.
template <class T>
concept peer_memory = requires(T& t, bootstrap_ref ranks, index_t bytes, mapped_slab& slab) {
  { t.map(ranks, bytes) } -> std::same_as<result<mapped_slab>>;
  { t.unmap(ranks, slab) } -> std::same_as<status>;
  { t.kind() } -> std::same_as<memory_kind>;
  { t.reason() } -> std::same_as<memory_reason>;
};

}  // namespace headwise::inline v0
