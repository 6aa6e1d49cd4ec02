// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/pool/bootstrap.hpp>
#include <headwise/pool/memory.hpp>
#include <headwise/pool/shared_segment.hpp>

#include <cstring>
#include <span>

// How the slabs of all ranks come and go, for each kind of memory. What is asked of CUDA is a
// template parameter: memory.cuh has the runtime, tests without a GPU have one that fails.
//
// Own memory is an allocation of its own and never a caller's tensor: expandable segments and other
// VMM memory have no IPC handle, and cudaDeviceEnablePeerAccess does not reach them. A slab begins
// where its allocation does: an IPC handle names the allocation, and an offset into it would be
// lost on the way.
//
// map() is three gathers. First what each rank wants and where it is; all judge that alike. Then
// each makes its slab, zeroes it, waits for that, and publishes it: who hears of a slab hears of
// one that is zero. Then each reaches for the slabs of its peers. Where a step fails on one rank
// all go back together: peers let go, all have, the owner frees.

namespace headwise::inline v0 {

/// A GPU, or an instance of one, as every process of a host knows it.
struct device_identity {
  std::uint8_t uuid[16] = {};
  std::int32_t pci[3] = {};  ///< domain, bus, device
  /// In the process that says so: CUDA_VISIBLE_DEVICES hides and reorders.
  std::int32_t ordinal = 0;
};

/// Memory that a caller has made and mapped. Its type says what a plain pointer does not: of[r] is
/// the memory of rank r, mapped for kernels of this rank (peer access or cuMemSetAccess done, IPC
/// handle opened, window registered). Addresses of another rank mean nothing here.
struct mapped_memory {
  std::byte* of[max_ranks] = {};  ///< aligned to 256 bytes
  index_t bytes = 0;              ///< of each
};

enum class memory_preference : std::uint8_t { automatic, host };

namespace detail {

constexpr bool same_gpu(const device_identity& a, const device_identity& b) noexcept {
  bool same = true;
  for (int i = 0; i < 16; ++i) same = same && a.uuid[i] == b.uuid[i];
  return same;
}
constexpr bool same_board(const device_identity& a, const device_identity& b) noexcept {
  return a.pci[0] == b.pci[0] && a.pci[1] == b.pci[1] && a.pci[2] == b.pci[2];
}

/// What a rank says when it comes to map() or unmap().
struct rank_facts {
  std::uint64_t operation = 0;
  std::uint64_t kind = 0;
  index_t bytes = 0;
  index_t number = 0;  // of the map() among those of this memory
  verdict_record verdict{};
  process_identity process{};
  device_identity device{};
};

/// Errors: the failure of a rank that cannot take part; rank_mismatch.
constexpr status compare_facts(const rank_facts* all, int ranks, const status& mine,
                               const char* operation) noexcept {
  verdict_record verdicts[max_ranks] = {};
  for (int r = 0; r < ranks; ++r) verdicts[r] = all[r].verdict;
  const status able = verdict_of(verdicts, ranks, mine, operation);
  if (!able.ok()) return able;
  return find_odd_one(ranks, [&](int one, int other) -> status {
    const rank_facts& a = all[one];
    const rank_facts& b = all[other];
    const auto differs = [&](const char* what, index_t got, index_t expected) {
      return failure(errc::rank_mismatch, operation, seen_on[one], got, expected, what);
    };
    if (a.operation != b.operation) return differs("operation", 0, 0);
    if (a.kind != b.kind) return differs("kind of memory", 0, 0);
    if (a.number != b.number) return differs("number of slabs before it", a.number, b.number);
    if (a.bytes != b.bytes) return differs("bytes", a.bytes, b.bytes);
    return {};
  });
}

/// What each rank wants and is, judged alike by all. Errors: `mine`; those of compare_facts() and
/// of the bootstrap.
inline status gather_facts(bootstrap_ref ranks, const char* operation, const status& mine,
                           rank_facts own, rank_facts (&all)[max_ranks]) noexcept {
  own.operation = hash_of(operation);
  own.verdict = record_of(mine);
  const status gathered = gather_each(ranks, own, all);
  if (!gathered.ok()) return mine.ok() ? gathered : mine;
  return compare_facts(all, ranks.size(), mine, operation);
}

/// The same before a map(), with where each rank is. Errors also: cuda_failed.
template <class Cuda, class System>
status gather_places(bootstrap_ref ranks, status mine, rank_facts own,
                     rank_facts (&all)[max_ranks]) noexcept {
  own.process = System::process();
  int device = 0;
  if (mine.ok()) mine = Cuda::told(Cuda::current_device(device), "device");
  if (mine.ok()) mine = Cuda::told(Cuda::identify(device, own.device), "device");
  return gather_facts(ranks, "map", mine, own, all);
}

/// What is known of ranks before anything is tried; where a pair is the reason, which.
struct topology {
  memory_reason reason = memory_reason::one_process;
  int pair[2] = {0, 0};
};

constexpr topology topology_of(const rank_facts* all, int ranks) noexcept {
  topology shared;
  topology instances;
  topology hosts;
  int within = 0;
  int pairs = 0;
  for (int b = ranks - 1; b > 0; --b) {
    for (int a = b - 1; a >= 0; --a) {
      const bool one_process = all[a].process == all[b].process;
      ++pairs;
      within += one_process ? 1 : 0;
      if (all[a].process.host != all[b].process.host)
        hosts = {memory_reason::several_hosts, {a, b}};
      if (same_gpu(all[a].device, all[b].device)) {
        if (!one_process) shared = {memory_reason::shared_gpu, {a, b}};
      } else if (same_board(all[a].device, all[b].device)) {
        instances = {memory_reason::mig_instances, {a, b}};
      }
    }
  }
  // Ordinals and ids of one host say nothing about another.
  for (const topology& found : {hosts, shared, instances}) {
    if (found.reason != memory_reason::one_process) return found;
  }
  if (within == pairs) return {};
  if (within == 0) return {memory_reason::several_processes, {}};
  return {memory_reason::processes_in_part, {}};
}

/// A reason in the words of a status.
constexpr const char* refusal_text(memory_reason reason) noexcept {
  switch (reason) {
    case memory_reason::one_process: return "ranks are threads of one process";
    case memory_reason::several_processes: return "ranks are processes";
    case memory_reason::several_hosts: return "ranks (got) and (expected) are on different hosts";
    case memory_reason::shared_gpu:
      return "ranks (got) and (expected) are processes on one GPU: they take turns on it, and one "
             "that waits for the other does so until its time-out";
    case memory_reason::mig_instances:
      return "ranks (got) and (expected) have instances of one GPU (MIG), which cannot reach each "
             "other";
    case memory_reason::no_peer_access:
      return "the GPU of rank (got) cannot reach that of rank (expected)";
    case memory_reason::too_many_peers:
      return "the GPU of rank (got) has as many peers as it can have, before rank (expected)";
    default: return to_string(reason);
  }
}

constexpr status refusal(memory_kind kind, memory_reason reason, int one, int other) noexcept {
  return failure(errc::unsupported, to_string(kind), refusal_text(reason), one, other);
}

/// Whether another kind of memory may do where this was the reason.
constexpr bool may_fall_back(memory_reason reason) noexcept {
  switch (reason) {
    case memory_reason::mig_instances:
    case memory_reason::processes_in_part:
    case memory_reason::no_peer_access:
    case memory_reason::too_many_peers:
    case memory_reason::ipc_failed: return true;
    default: return false;
  }
}

/// What a step came to. The reason is the same on all ranks once they have met.
struct step_outcome {
  status why{};
  memory_reason reason = memory_reason::call_failed;

  constexpr bool ok() const noexcept { return why.ok(); }
};

/// What a rank publishes behind a step.
struct step_record {
  verdict_record verdict{};
  std::uint64_t reason = 0;
  std::byte handle[64] = {};

  template <class T>
  void put(const T& what) noexcept {
    static_assert(sizeof(T) <= sizeof handle && std::is_trivially_copyable_v<T>);
    std::memcpy(handle, &what, sizeof what);
  }
  template <class T>
  T get() const noexcept {
    T what;
    std::memcpy(&what, handle, sizeof what);
    return what;
  }
};

/// Ranks tell each other what a step came to. `heard`: whether all have; what a rank has published
/// may be in use by peers that it has not heard of. Errors: own failure, or that of the first rank
/// that has failed; those of the bootstrap.
inline step_outcome meet(bootstrap_ref ranks, const step_outcome& mine, step_record own,
                         step_record (&all)[max_ranks], memory_kind kind, bool& heard) noexcept {
  own.verdict = record_of(mine.why);
  own.reason = static_cast<std::uint64_t>(mine.reason);
  const status gathered = gather_each(ranks, own, all);
  heard = gathered.ok();
  if (!heard) return {mine.ok() ? gathered : mine.why, memory_reason::call_failed};
  verdict_record verdicts[max_ranks] = {};
  for (int r = 0; r < ranks.size(); ++r) verdicts[r] = all[r].verdict;
  const int failed = first_failed(verdicts, ranks.size());
  if (failed < 0) return {};
  const auto reason = static_cast<memory_reason>(all[failed].reason);
  status why = verdict_of(verdicts, ranks.size(), mine.why, to_string(kind));
  const bool of_a_pair = why.code == errc::unsupported && reason != memory_reason::call_failed;
  if (mine.ok() && of_a_pair) why.message = refusal_text(reason);
  return {why, reason};
}

/// What a rank has of one slab.
struct slab_parts {
  bool used = false;
  int device = 0;
  index_t number = 0;
  index_t bytes = 0;
  index_t offset = 0;
  std::byte* own = nullptr;
  std::byte* opened[max_ranks] = {};
  std::uint32_t registered = 0;  // a bit for each rank
  segment_name segment{};
};

constexpr std::uint32_t bit_of(int rank) noexcept { return std::uint32_t{1} << rank; }

/// The first failure is the one to report; what comes behind it is done all the same.
inline void keep_first(status& first, const status& next) noexcept {
  if (first.ok()) first = next;
}

/// What every kind of memory does with a slab, in terms of what a `Method` does for one rank:
///
/// tag      the kind that all ranks must have asked for
/// kind     the kind that it is
/// suits    whether ranks that are placed like this may have it: from what all of them know
/// make     allocates a slab, zeroes it, waits for that, and says how peers find it
/// reach    makes pointers of what the peers have published
/// reached  all have, or will not
/// let_go   undoes reach(), as far as it came
/// free     undoes make(), as far as it came
///
/// make() and reach() say of a failure whether it is a reason to try another kind.
template <class Cuda, class Method, class System>
class slab_memory {
 public:
  explicit slab_memory(const Method& method = {}) noexcept : method_(method) {}
  /// Precondition: the other has nothing mapped. They share nothing.
  slab_memory(const slab_memory& other) noexcept : method_(other.method_) {
    HEADWISE_ASSERT(!other.any_mapped());
  }
  slab_memory& operator=(const slab_memory&) = delete;

  memory_kind kind() const noexcept { return method_.kind(); }

  /// Errors: those of the class that derives from this.
  result<mapped_slab> map(bootstrap_ref ranks, index_t bytes) noexcept {
    rank_facts facts[max_ranks];
    const rank_facts own{.kind = kind_asked(), .bytes = bytes, .number = maps_};
    const status agreed = gather_places<Cuda, System>(ranks, require_room(bytes), own, facts);
    if (!agreed.ok()) return agreed;
    ++maps_;
    mapped_slab slab;
    const step_outcome outcome = map_after(ranks, facts, slab);
    if (!outcome.ok()) return outcome.why;
    return slab;
  }

  status require_room(index_t bytes) const noexcept {
    if (bytes < 1) {
      return failure(errc::invalid_argument, "bytes", "a slab has at least one byte", bytes, 1);
    }
    if (vacant() < max_slabs) return {};
    return failure(errc::capacity_exceeded, "slabs", "so many at a time", max_slabs + 1, max_slabs);
  }

  bool any_mapped() const noexcept {
    bool any = false;
    for (const slab_parts& parts : parts_) any = any || parts.used;
    return any;
  }

  /// map() from where all ranks know what all want. Precondition: require_room().
  step_outcome map_after(bootstrap_ref ranks, const rank_facts (&facts)[max_ranks],
                         mapped_slab& slab) noexcept {
    const int rank = ranks.rank();
    const topology where = topology_of(facts, ranks.size());
    if (!method_.suits(where.reason, ranks.size())) {
      const status why = failure(errc::unsupported, to_string(kind()), refusal_text(where.reason),
                                 where.pair[0], where.pair[1]);
      return {why, where.reason};
    }
    slab = {{}, facts[rank].bytes, vacant()};
    slab_parts& parts = parts_[slab.id];
    parts = {};
    parts.used = true;
    parts.device = facts[rank].device.ordinal;
    parts.number = facts[rank].number;
    parts.bytes = slab.bytes;

    step_record own;
    step_record all[max_ranks];
    bool heard = false;
    const step_outcome made = method_.make(ranks, facts, slab, parts, own);
    step_outcome outcome = meet(ranks, made, own, all, kind(), heard);
    bool may_free = heard || !made.ok();
    if (outcome.ok()) {
      outcome = meet(ranks, method_.reach(ranks, facts, all, slab, parts), own, all, kind(), heard);
      if (!outcome.ok()) {
        static_cast<void>(method_.let_go(ranks, parts).ok());
        may_free = heard && barrier(ranks).ok();
      }
    }
    method_.reached(parts);
    if (outcome.ok()) return outcome;
    // Memory that a peer may hold stays until the process ends.
    if (may_free) static_cast<void>(method_.free(ranks, parts).ok());
    parts.used = false;
    slab = {};
    return outcome;
  }

  /// Errors: invalid_argument (not a slab of this memory, or another device is current), and
  /// rank_mismatch (ranks are at different calls), with nothing done; cuda_failed, system_failed,
  /// with everything done that could be; those of the bootstrap: where that was before anything was
  /// done, `slab` is as it was and one may try again.
  status unmap(bootstrap_ref ranks, mapped_slab& slab) noexcept {
    const bool known = slab.id >= 0 && slab.id < max_slabs && parts_[slab.id].used;
    status mine{};
    if (!known) {
      mine = failure(errc::invalid_argument, "slab", "is not of this memory, or unmapped", slab.id);
    }
    // A device that has failed runs no kernel any more: no reason to keep its memory.
    status first{};
    if (known) {
      int device = parts_[slab.id].device;
      first = Cuda::told(Cuda::current_device(device), "device");
      if (first.ok() && device != parts_[slab.id].device) {
        mine = failure(errc::invalid_argument, "device", "the slab is of another one (expected)",
                       device, parts_[slab.id].device);
      }
      if (mine.ok()) keep_first(first, Cuda::told(Cuda::synchronize(), "device"));
    }
    rank_facts facts[max_ranks];
    const rank_facts own{
        .kind = kind_asked(), .bytes = slab.bytes, .number = known ? parts_[slab.id].number : -1};
    const status agreed = gather_facts(ranks, "unmap", mine, own, facts);
    if (!agreed.ok()) return agreed;
    slab_parts& parts = parts_[slab.id];
    keep_first(first, method_.let_go(ranks, parts));
    verdict_record all[max_ranks];
    const status met = gather_each(ranks, record_of(first), all);
    if (met.ok()) {
      keep_first(first, method_.free(ranks, parts));
      keep_first(first, verdict_of(all, ranks.size(), {}, "unmap"));
    }
    keep_first(first, met);
    parts.used = false;
    slab = {};
    return first;
  }

 private:
  static constexpr int max_slabs = 64;

  static constexpr std::uint64_t kind_asked() noexcept {
    return static_cast<std::uint64_t>(Method::tag);
  }

  int vacant() const noexcept {
    int id = 0;
    while (id < max_slabs && parts_[id].used) ++id;
    return id;
  }

  Method method_;
  index_t maps_ = 0;
  slab_parts parts_[max_slabs];
};

/// Zero, and done. Errors: cuda_failed.
template <class Cuda>
status zero(std::byte* data, index_t bytes) noexcept {
  const status put = Cuda::told(Cuda::zero(data, static_cast<std::size_t>(bytes)), "slab");
  return put.ok() ? Cuda::told(Cuda::synchronize(), "slab") : put;
}

/// Memory of the current device, zero. Errors: cuda_failed.
template <class Cuda>
status allocate_zero(slab_parts& parts) noexcept {
  void* data = nullptr;
  const status got =
      Cuda::told(Cuda::allocate(data, static_cast<std::size_t>(parts.bytes)), "slab");
  if (!got.ok()) return got;
  parts.own = static_cast<std::byte*>(data);
  return zero<Cuda>(parts.own, parts.bytes);
}

/// Errors: cuda_failed.
template <class Cuda>
status free_device(slab_parts& parts) noexcept {
  if (parts.own == nullptr) return {};
  const auto data = parts.own;
  parts.own = nullptr;
  return Cuda::told(Cuda::release(data), "slab");
}

/// Whether `device` of this process may reach another. Errors: cuda_failed, unsupported.
template <class Cuda>
step_outcome require_peer_access(memory_kind kind, int device, int peer_device, int rank,
                                 int peer) noexcept {
  bool can = false;
  const status asked = Cuda::told(Cuda::can_access_peer(can, device, peer_device), "peer access");
  if (!asked.ok()) return {asked};
  if (can) return {};
  const auto reason = memory_reason::no_peer_access;
  return {failure(errc::unsupported, to_string(kind), refusal_text(reason), rank, peer), reason};
}

template <class Cuda>
struct peer_access_method {
  static constexpr memory_kind tag = memory_kind::peer_access;

  memory_kind kind() const noexcept { return tag; }
  bool suits(memory_reason where, int) noexcept { return where == memory_reason::one_process; }

  step_outcome make(bootstrap_ref ranks, const rank_facts* facts, mapped_slab& slab,
                    slab_parts& parts, step_record& own) noexcept {
    const int rank = ranks.rank();
    for (int r = 0; r < ranks.size(); ++r) {
      if (same_gpu(facts[r].device, facts[rank].device)) continue;
      const step_outcome can = require_peer_access<Cuda>(tag, facts[rank].device.ordinal,
                                                         facts[r].device.ordinal, rank, r);
      if (!can.ok()) return can;
    }
    const status made = allocate_zero<Cuda>(parts);
    slab.of[rank] = parts.own;
    own.put(parts.own);
    return {made};
  }

  step_outcome reach(bootstrap_ref ranks, const rank_facts* facts, const step_record* all,
                     mapped_slab& slab, slab_parts&) noexcept {
    const int rank = ranks.rank();
    for (int r = 0; r < ranks.size(); ++r) {
      slab.of[r] = all[r].get<std::byte*>();
      if (same_gpu(facts[r].device, facts[rank].device)) continue;
      const auto said = Cuda::enable_peer_access(facts[r].device.ordinal);
      const status enabled = Cuda::told(said, "peer access");
      // Somebody else of this process has, and needs it: for the same reason it stays enabled.
      if (enabled.ok() || said == Cuda::peer_access_already_enabled) continue;
      if (said != Cuda::too_many_peers) return {enabled};
      const auto reason = memory_reason::too_many_peers;
      return {failure(errc::unsupported, to_string(tag), refusal_text(reason), rank, r), reason};
    }
    return {};
  }

  void reached(slab_parts&) noexcept {}
  status let_go(bootstrap_ref, slab_parts&) noexcept { return {}; }
  status free(bootstrap_ref, slab_parts& parts) noexcept { return free_device<Cuda>(parts); }
};

template <class Cuda>
struct ipc_method {
  static constexpr memory_kind tag = memory_kind::ipc;

  memory_kind kind() const noexcept { return tag; }
  bool suits(memory_reason where, int size) noexcept {
    return where == memory_reason::several_processes || size == 1;
  }

  step_outcome make(bootstrap_ref ranks, const rank_facts* facts, mapped_slab& slab,
                    slab_parts& parts, step_record& own) noexcept {
    const int rank = ranks.rank();
    for (int r = 0; r < ranks.size(); ++r) {
      if (r == rank) continue;
      int here = -1;
      const status found = find_here(facts[r].device, here);
      if (!found.ok()) return {found};
      // Of a GPU that this process does not see, opening the handle says whether it can.
      if (here < 0) continue;
      const step_outcome can =
          require_peer_access<Cuda>(tag, facts[rank].device.ordinal, here, rank, r);
      if (!can.ok()) return can;
    }
    // Less would share its 2 MiB with allocations of others, and a peer maps all of that.
    parts.bytes = round_up(parts.bytes, index_t{2} << 20);
    const status made = allocate_zero<Cuda>(parts);
    if (!made.ok()) return {made};
    slab.of[rank] = parts.own;
    typename Cuda::ipc_handle handle{};
    const status named = Cuda::told(Cuda::ipc_name(handle, parts.own), "IPC handle");
    if (!named.ok()) return {named, memory_reason::ipc_failed};
    own.put(handle);
    return {};
  }

  step_outcome reach(bootstrap_ref ranks, const rank_facts*, const step_record* all,
                     mapped_slab& slab, slab_parts& parts) noexcept {
    for (int r = 0; r < ranks.size(); ++r) {
      if (r == ranks.rank()) continue;
      void* data = nullptr;
      const auto said = Cuda::ipc_open(data, all[r].template get<typename Cuda::ipc_handle>());
      const status opened = Cuda::told(said, "IPC handle");
      if (said == Cuda::too_many_peers) {
        const auto reason = memory_reason::too_many_peers;
        return {failure(errc::unsupported, to_string(tag), refusal_text(reason), ranks.rank(), r),
                reason};
      }
      if (!opened.ok()) return {opened, memory_reason::ipc_failed};
      parts.opened[r] = static_cast<std::byte*>(data);
      slab.of[r] = parts.opened[r];
    }
    return {};
  }

  void reached(slab_parts&) noexcept {}

  status let_go(bootstrap_ref ranks, slab_parts& parts) noexcept {
    status first{};
    for (int r = 0; r < ranks.size(); ++r) {
      if (parts.opened[r] == nullptr) continue;
      keep_first(first, Cuda::told(Cuda::ipc_close(parts.opened[r]), "IPC handle"));
      parts.opened[r] = nullptr;
    }
    return first;
  }
  status free(bootstrap_ref, slab_parts& parts) noexcept { return free_device<Cuda>(parts); }

 private:
  /// The ordinal of a peer's GPU in this process, or -1. Errors: cuda_failed.
  static status find_here(const device_identity& of_peer, int& here) noexcept {
    int count = 0;
    status asked = Cuda::told(Cuda::device_count(count), "device");
    for (int i = 0; i < count && asked.ok() && here < 0; ++i) {
      device_identity one;
      asked = Cuda::told(Cuda::identify(i, one), "device");
      if (asked.ok() && same_gpu(one, of_peer)) here = i;
    }
    return asked;
  }
};

/// Never write-combined: a peer polls it, and reads what it has polled for.
template <class Cuda>
struct host_method {
  static constexpr memory_kind tag = memory_kind::host;

  memory_kind kind() const noexcept { return kind_; }
  bool suits(memory_reason where, int) noexcept {
    kind_ = where == memory_reason::one_process ? memory_kind::host : memory_kind::host_shared;
    return where != memory_reason::several_hosts && where != memory_reason::shared_gpu;
  }

  step_outcome make(bootstrap_ref ranks, const rank_facts*, mapped_slab& slab, slab_parts& parts,
                    step_record& own) noexcept {
    const int rank = ranks.rank();
    const auto bytes = static_cast<std::size_t>(parts.bytes);
    if (kind_ == memory_kind::host) {
      void* data = nullptr;
      const status made = Cuda::told(Cuda::allocate_host(data, bytes), "slab");
      if (!made.ok()) return {made};
      parts.own = static_cast<std::byte*>(data);
      std::memset(parts.own, 0, bytes);
      own.put(parts.own);
      return {};
    }
    status made = create_segment(bytes, parts.segment, parts.own);
    if (made.ok()) made = pin(rank, parts.own, slab, parts);
    own.put(parts.segment);
    return {made};
  }

  step_outcome reach(bootstrap_ref ranks, const rank_facts*, const step_record* all,
                     mapped_slab& slab, slab_parts& parts) noexcept {
    for (int r = 0; r < ranks.size(); ++r) {
      status reached{};
      if (kind_ == memory_kind::host) {
        reached = address(all[r].template get<std::byte*>(), slab.of[r]);
      } else if (r != ranks.rank()) {
        reached = open_segment(all[r].template get<segment_name>(),
                               static_cast<std::size_t>(parts.bytes), parts.opened[r]);
        if (reached.ok()) reached = pin(r, parts.opened[r], slab, parts);
      }
      if (!reached.ok()) return {reached};
    }
    return {};
  }

  /// Nobody looks for the name any more, and a name that stays outlives a process that is killed.
  void reached(slab_parts& parts) noexcept { unlink_segment(parts.segment); }

  status let_go(bootstrap_ref ranks, slab_parts& parts) noexcept {
    status first{};
    for (int r = 0; r < ranks.size(); ++r) {
      if (r != ranks.rank()) keep_first(first, unpin(r, parts.opened[r], parts));
    }
    return first;
  }

  status free(bootstrap_ref ranks, slab_parts& parts) noexcept {
    if (kind_ == memory_kind::host_shared) return unpin(ranks.rank(), parts.own, parts);
    if (parts.own == nullptr) return {};
    const auto data = parts.own;
    parts.own = nullptr;
    return Cuda::told(Cuda::release_host(data), "slab");
  }

 private:
  /// As kernels of this rank address it: not always the address of the host. Errors: cuda_failed.
  static status address(std::byte* data, std::byte*& here) noexcept {
    void* found = nullptr;
    const status asked = Cuda::told(Cuda::device_address(found, data), "slab");
    here = static_cast<std::byte*>(found);
    return asked;
  }
  static status pin(int rank, std::byte* data, mapped_slab& slab, slab_parts& parts) noexcept {
    const status pinned =
        Cuda::told(Cuda::pin_host(data, static_cast<std::size_t>(parts.bytes)), "slab");
    if (!pinned.ok()) return pinned;
    parts.registered |= bit_of(rank);
    return address(data, slab.of[rank]);
  }
  static status unpin(int rank, std::byte*& data, slab_parts& parts) noexcept {
    status first{};
    if ((parts.registered & bit_of(rank)) != 0) first = Cuda::told(Cuda::unpin_host(data), "slab");
    parts.registered &= ~bit_of(rank);
    keep_first(first, unmap_segment(data, static_cast<std::size_t>(parts.bytes)));
    return first;
  }

  memory_kind kind_ = memory_kind::host;
};

/// First fit, from the same calls in the same order on all ranks.
template <class Cuda>
struct caller_method {
  static constexpr memory_kind tag = memory_kind::caller;
  static constexpr index_t alignment = 256;

  memory_kind kind() const noexcept { return tag; }
  bool suits(memory_reason, int) noexcept { return true; }

  step_outcome make(bootstrap_ref ranks, const rank_facts* facts, mapped_slab& slab,
                    slab_parts& parts, step_record& own) noexcept {
    const status mapped = require_mapped(ranks.size(), facts[ranks.rank()].device.ordinal);
    if (!mapped.ok()) return {mapped};
    parts.bytes = round_up(parts.bytes, alignment);
    if (!take(parts.bytes, parts.offset)) {
      return {failure(errc::capacity_exceeded, "slab", "does not fit into the caller's memory",
                      slab.bytes, memory.bytes)};
    }
    parts.own = memory.of[ranks.rank()] + parts.offset;
    own.put(parts.offset);
    return {zero<Cuda>(parts.own, slab.bytes)};
  }

  step_outcome reach(bootstrap_ref ranks, const rank_facts*, const step_record* all,
                     mapped_slab& slab, slab_parts& parts) noexcept {
    for (int r = 0; r < ranks.size(); ++r) {
      const auto offset = all[r].template get<index_t>();
      if (offset != parts.offset) {
        return {failure(errc::rank_mismatch, "slab", "ranks have handed out other memory before",
                        offset, parts.offset, "offset")};
      }
      slab.of[r] = memory.of[r] + offset;
    }
    return {};
  }

  void reached(slab_parts&) noexcept {}
  status let_go(bootstrap_ref, slab_parts&) noexcept { return {}; }
  status free(bootstrap_ref, slab_parts& parts) noexcept {
    if (parts.own == nullptr) return {};
    parts.own = nullptr;
    for (piece& one : pieces_) {
      if (one.end > one.begin && one.begin == parts.offset) one = {};
    }
    return {};
  }

  mapped_memory memory{};

 private:
  struct piece {
    index_t begin = 0;
    index_t end = 0;
  };

  bool take(index_t bytes, index_t& offset) noexcept {
    if (bytes > memory.bytes) return false;
    offset = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (const piece& one : pieces_) {
        if (one.end == one.begin || one.end <= offset || one.begin >= offset + bytes) continue;
        offset = one.end;
        moved = true;
      }
    }
    if (offset + bytes > memory.bytes) return false;
    int at = 0;
    while (pieces_[at].end > pieces_[at].begin) ++at;
    pieces_[at] = {offset, offset + bytes};
    return true;
  }

  status require_mapped(int ranks, int device) const noexcept {
    for (int r = 0; r < ranks; ++r) {
      const auto address = reinterpret_cast<std::uintptr_t>(memory.of[r]);
      if (address == 0) {
        return failure(errc::invalid_argument, "memory", "no pointer for rank (got)", r, ranks);
      }
      if (address % alignment != 0) {
        return failure(errc::misaligned, "memory", "begins on a multiple of 256 bytes",
                       static_cast<index_t>(address % alignment), 0);
      }
      for (int s = 0; s < r; ++s) {
        if (memory.of[s] != memory.of[r]) continue;
        return failure(errc::overlap, "memory", "ranks (got) and (expected) have the same pointer",
                       s, r);
      }
      bool reachable = false;
      const status asked = Cuda::told(Cuda::is_mapped(reachable, memory.of[r], device), "memory");
      if (!asked.ok()) return asked;
      if (!reachable) {
        return failure(errc::invalid_argument, "memory",
                       "of rank (got) is not mapped for the current device (expected)", r, device);
      }
    }
    return {};
  }

  piece pieces_[64] = {};  // as many as there are slabs
};

}  // namespace detail

/// Each rank's slab in memory of its GPU. Ranks are threads of one process, each with a device;
/// some or all may have the same. Peer access is enabled where it is not, and never disabled:
/// others of the process may rely on it.
///
/// Errors of map(): unsupported (ranks are not of one process, a GPU cannot reach another or has no
/// room for a further peer), cuda_failed, rank_mismatch, invalid_argument, capacity_exceeded (more
/// than 64 slabs), those of the bootstrap.
template <class Cuda, class System = detail::system_calls>
class basic_peer_access_memory
    : public detail::slab_memory<Cuda, detail::peer_access_method<Cuda>, System> {
 public:
  basic_peer_access_memory() noexcept = default;
  memory_reason reason() const noexcept { return memory_reason::asked_for; }
};

/// Each rank's slab in memory of its GPU, opened by its peers through CUDA IPC. Ranks are processes
/// of one host, each on a GPU of its own.
///
/// Errors of map(): as those of peer_access_memory; unsupported where two processes share a GPU.
template <class Cuda, class System = detail::system_calls>
class basic_ipc_memory : public detail::slab_memory<Cuda, detail::ipc_method<Cuda>, System> {
 public:
  basic_ipc_memory() noexcept = default;
  memory_reason reason() const noexcept { return memory_reason::asked_for; }
};

/// Each rank's slab in pinned host memory, for GPUs that cannot reach each other. Ranks are threads
/// or processes of one host; of several processes each pins what all of them share.
///
/// Errors of map(): unsupported (several hosts; two processes share a GPU, or do not see the same
/// /dev/shm), cuda_failed, system_failed, rank_mismatch, invalid_argument, capacity_exceeded, those
/// of the bootstrap.
template <class Cuda, class System = detail::system_calls>
class basic_host_memory : public detail::slab_memory<Cuda, detail::host_method<Cuda>, System> {
 public:
  basic_host_memory() noexcept = default;
  memory_reason reason() const noexcept { return memory_reason::asked_for; }
};

/// Slabs in memory that a caller has mapped (symmetric memory, windows of NCCL, fabric handles),
/// and keeps so until the last is unmapped. Room is taken from its start; each slab takes its
/// bytes, rounded up to 256.
///
/// Errors of map(): invalid_argument (no pointer for a rank, or one that CUDA says is not mapped),
/// misaligned, overlap (one pointer for two ranks), capacity_exceeded, rank_mismatch, cuda_failed,
/// those of the bootstrap.
template <class Cuda, class System = detail::system_calls>
class basic_caller_memory : public detail::slab_memory<Cuda, detail::caller_method<Cuda>, System> {
 public:
  explicit basic_caller_memory(const mapped_memory& memory) noexcept
      : detail::slab_memory<Cuda, detail::caller_method<Cuda>, System>(method_of(memory)) {}
  memory_reason reason() const noexcept { return memory_reason::asked_for; }

 private:
  static detail::caller_method<Cuda> method_of(const mapped_memory& memory) noexcept {
    detail::caller_method<Cuda> method;
    method.memory = memory;
    return method;
  }
};

/// Memory of the GPUs where they reach each other, else of the host. Decided by all ranks together,
/// at the first map(), and kept.
///
/// Errors of map(): those of the kind that is decided on; a failure that is no property of the
/// machine (no memory left, a rank that did not come) is reported and decides nothing.
template <class Cuda, class System = detail::system_calls>
class basic_automatic_memory {
 public:
  explicit basic_automatic_memory(
      memory_preference preference = memory_preference::automatic) noexcept
      : preference_(preference) {}

  /// Of the last map(); peer_access and undecided before the first.
  memory_kind kind() const noexcept {
    switch (chosen_) {
      case memory_kind::ipc: return processes_.kind();
      case memory_kind::host: return host_.kind();
      default: return threads_.kind();
    }
  }
  memory_reason reason() const noexcept { return reason_; }

  result<mapped_slab> map(bootstrap_ref ranks, index_t bytes) noexcept {
    detail::rank_facts facts[max_ranks];
    status room = threads_.require_room(bytes);
    detail::keep_first(room, processes_.require_room(bytes));
    detail::keep_first(room, host_.require_room(bytes));
    const detail::rank_facts own{.kind = state(), .bytes = bytes, .number = maps_};
    const status agreed = detail::gather_places<Cuda, System>(ranks, room, own, facts);
    if (!agreed.ok()) return agreed;
    ++maps_;
    mapped_slab slab;
    const memory_reason where = detail::topology_of(facts, ranks.size()).reason;
    if (reason_ != memory_reason::undecided) {
      const detail::step_outcome again = map_with(chosen_, ranks, facts, slab);
      if (!again.ok()) return again.why;
      return slab;
    }
    memory_kind kind = memory_kind::host;
    memory_reason reason = memory_reason::asked_for;
    if (preference_ == memory_preference::automatic) {
      reason = where;
      if (where == memory_reason::one_process) kind = memory_kind::peer_access;
      if (where == memory_reason::several_processes) kind = memory_kind::ipc;
    }
    detail::step_outcome outcome = map_with(kind, ranks, facts, slab);
    if (!outcome.ok() && kind != memory_kind::host && detail::may_fall_back(outcome.reason)) {
      kind = memory_kind::host;
      reason = outcome.reason;
      outcome = map_with(kind, ranks, facts, slab);
    }
    if (!outcome.ok()) return outcome.why;
    chosen_ = kind;
    reason_ = reason;
    return slab;
  }

  /// Errors: those of the kind that made the slab.
  status unmap(bootstrap_ref ranks, mapped_slab& slab) noexcept {
    switch (chosen_) {
      case memory_kind::ipc: return processes_.unmap(ranks, slab);
      case memory_kind::host: return host_.unmap(ranks, slab);
      default: return threads_.unmap(ranks, slab);
    }
  }

  /// What map() made lost what was written to it, as drivers can that say otherwise: from now on
  /// host memory. Called on all ranks, with nothing mapped. Errors: invalid_argument (something
  /// is), unsupported (it is host memory already).
  status fall_back() noexcept {
    if (threads_.any_mapped() || processes_.any_mapped() || host_.any_mapped()) {
      return failure(errc::invalid_argument, "memory", "is still mapped");
    }
    if (preference_ == memory_preference::host || chosen_ == memory_kind::host) {
      return failure(errc::unsupported, "memory", "there is none beyond that of the host");
    }
    chosen_ = memory_kind::host;
    reason_ = memory_reason::probe_failed;
    return {};
  }

 private:
  /// All ranks have decided alike, and were asked for the same.
  std::uint64_t state() const noexcept {
    return 256 + 16 * static_cast<std::uint64_t>(reason_) +
           2 * static_cast<std::uint64_t>(chosen_) + static_cast<std::uint64_t>(preference_);
  }

  detail::step_outcome map_with(memory_kind kind, bootstrap_ref ranks,
                                const detail::rank_facts (&facts)[max_ranks],
                                mapped_slab& slab) noexcept {
    switch (kind) {
      case memory_kind::ipc: return processes_.map_after(ranks, facts, slab);
      case memory_kind::host: return host_.map_after(ranks, facts, slab);
      default: return threads_.map_after(ranks, facts, slab);
    }
  }

  memory_preference preference_;
  memory_kind chosen_ = memory_kind::peer_access;
  memory_reason reason_ = memory_reason::undecided;
  index_t maps_ = 0;
  basic_peer_access_memory<Cuda, System> threads_;
  basic_ipc_memory<Cuda, System> processes_;
  basic_host_memory<Cuda, System> host_;
};

}  // namespace headwise::inline v0
