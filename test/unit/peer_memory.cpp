// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Memory of a peer pool on machines that are not there. Ranks are threads; which of them are in one
// process, on which GPU, and what CUDA says is the test's to choose. What is allocated "on a GPU"
// can be mapped twice, so that a peer has an address of its own for it.

#include <headwise/pool/own_memory.hpp>

#include <support/ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace headwise;
using namespace std::chrono_literals;
using support::on_ranks;
using support::sentence;

namespace {

constexpr int already_enabled = 704;
constexpr int no_further_peer = 711;
constexpr int refused = 999;

/// A host, what runs there, what goes wrong, and what was seen.
struct machine {
  struct place {
    int process = 0;
    std::vector<int> visible;  // boards, as this process counts its devices
    int ordinal = 0;
    std::uint64_t host = 1;
  };
  struct allocation {
    int file = -1;
    std::size_t bytes = 0;
    int rank = 0;
  };

  std::vector<device_identity> boards;
  std::vector<place> ranks;

  std::set<std::pair<int, int>> unreachable;  // from board, to board
  std::set<std::pair<int, int>> enabled;      // board of a process, peer's board
  int most_peers = 100;
  std::string failing;  // a call, on failing_rank, from the nth on
  int failing_rank = -1;
  int failing_from = 0;
  int failing_code = refused;
  std::set<void*> known;  // what is mapped for kernels, of a caller
  std::chrono::milliseconds slow_close{0};

  std::mutex mutex;
  std::map<void*, allocation> device;
  std::map<void*, int> opened;  // and the file it is of
  std::map<void*, std::size_t> host;
  std::set<std::pair<int, void*>> pinned;
  std::map<int, std::vector<std::pair<void*, std::size_t>>>
      pending;  // of each rank, until it syncs
  std::map<std::string, int> calls;
  std::map<int, int> opens_of;
  std::map<int, int> closes_of;
  int violations = 0;

  explicit machine(int boards_there) {
    for (int b = 0; b < boards_there; ++b) {
      device_identity board;
      board.uuid[0] = static_cast<std::uint8_t>(17 * b + 1);
      board.pci[1] = b + 1;
      boards.push_back(board);
    }
  }
  /// One rank for each process given, on the board given.
  machine& with(std::initializer_list<std::pair<int, int>> process_and_board) {
    std::vector<int> all(boards.size());
    for (std::size_t b = 0; b < all.size(); ++b) all[b] = static_cast<int>(b);
    for (const auto& [process, board] : process_and_board) ranks.push_back({process, all, board});
    return *this;
  }
  int size() const { return static_cast<int>(ranks.size()); }
  int board_of(int rank, int ordinal) const {
    return ranks[static_cast<std::size_t>(rank)].visible[static_cast<std::size_t>(ordinal)];
  }
  int count(const std::string& call) { return calls[call]; }
  /// What is still there, or was done in the wrong order.
  std::string left() const {
    if (violations != 0) return "violations: " + std::to_string(violations);
    if (!device.empty()) return "device memory";
    if (!opened.empty()) return "opened handles";
    if (!host.empty()) return "host memory";
    if (!pinned.empty()) return "pinned memory";
    return "nothing";
  }
};

machine* here = nullptr;
thread_local int own_rank = 0;
thread_local int last_error = 0;

/// CUDA on that machine.
struct fake_cuda {
  struct ipc_handle {
    void* allocation;
    int file;
    int bytes;
    char rest[48];
  };
  static constexpr int peer_access_already_enabled = already_enabled;
  static constexpr int too_many_peers = no_further_peer;

  static status told(int said, const char* operand, source_line where = source_line::current()) {
    if (said == 0) return {};
    last_error = 0;
    return failure(errc::cuda_failed, operand, "of the test", said, 0, "", where);
  }

  static int current_device(int& device) {
    device = place().ordinal;
    return call("current_device");
  }
  static int device_count(int& count) {
    count = static_cast<int>(place().visible.size());
    return call("device_count");
  }
  static int identify(int ordinal, device_identity& device) {
    const int said = call("identify");
    if (said != 0) return said;
    device = here->boards[static_cast<std::size_t>(here->board_of(own_rank, ordinal))];
    device.ordinal = ordinal;
    return 0;
  }
  static int can_access_peer(bool& can, int device, int peer) {
    can = here->unreachable.count(
              {here->board_of(own_rank, device), here->board_of(own_rank, peer)}) == 0;
    return call("can_access_peer");
  }
  static int enable_peer_access(int peer) {
    const int said = call("enable_peer_access");
    if (said != 0) return said;
    const std::lock_guard lock(here->mutex);
    const int from = here->board_of(own_rank, place().ordinal);
    const int to = here->board_of(own_rank, peer);
    if (from == to || here->unreachable.count({from, to}) != 0) return error(refused);
    if (here->enabled.count({from, to}) != 0) return error(already_enabled);
    const auto peers = std::count_if(here->enabled.begin(), here->enabled.end(),
                                     [&](const auto& pair) { return pair.first == from; });
    if (peers >= here->most_peers) return error(no_further_peer);
    here->enabled.insert({from, to});
    return 0;
  }

  static int allocate(void*& data, std::size_t bytes) {
    const int said = call("allocate");
    if (said != 0) return said;
    const int file = ::memfd_create("board", 0);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) return error(refused);
    data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    std::memset(data, 0xff, bytes);
    const std::lock_guard lock(here->mutex);
    here->device[data] = {file, bytes, own_rank};
    return 0;
  }
  static int release(void* data) {
    const int said = call("release");
    const std::lock_guard lock(here->mutex);
    const auto found = here->device.find(data);
    if (found == here->device.end()) {
      ++here->violations;
      return error(refused);
    }
    for (const auto& [address, file] : here->opened) {
      if (file == found->second.file) ++here->violations;
    }
    ::munmap(data, found->second.bytes);
    ::close(found->second.file);
    here->device.erase(found);
    return said;
  }
  // As a device does: it has happened when it was waited for.
  static int zero(void* data, std::size_t bytes) {
    const int said = call("zero");
    if (said != 0) return said;
    const std::lock_guard lock(here->mutex);
    here->pending[own_rank].push_back({data, bytes});
    return 0;
  }
  static int synchronize() {
    const int said = call("synchronize");
    if (said != 0) return said;
    const std::lock_guard lock(here->mutex);
    for (const auto& [data, bytes] : here->pending[own_rank]) std::memset(data, 0, bytes);
    here->pending[own_rank].clear();
    return 0;
  }

  static int ipc_name(ipc_handle& handle, void* data) {
    const int said = call("ipc_name");
    if (said != 0) return said;
    const std::lock_guard lock(here->mutex);
    const auto found = here->device.find(data);
    // The start of an allocation of its own, and done with.
    if (found == here->device.end() || !here->pending[own_rank].empty()) {
      ++here->violations;
      return error(refused);
    }
    handle = {data, found->second.file, static_cast<int>(found->second.bytes), {}};
    return 0;
  }
  static int ipc_open(void*& data, const ipc_handle& handle) {
    const int said = call("ipc_open");
    if (said != 0) return said;
    const std::lock_guard lock(here->mutex);
    const auto found = here->device.find(handle.allocation);
    if (found == here->device.end() ||
        here->ranks[static_cast<std::size_t>(found->second.rank)].process == place().process) {
      return error(refused);
    }
    if (here->opens_of[own_rank] - here->closes_of[own_rank] >= here->most_peers) {
      return error(no_further_peer);
    }
    data = ::mmap(nullptr, found->second.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handle.file, 0);
    here->opened[data] = handle.file;
    ++here->opens_of[own_rank];
    return 0;
  }
  static int ipc_close(void* data) {
    std::this_thread::sleep_for(own_rank == 1 ? here->slow_close : 0ms);
    const int said = call("ipc_close");
    const std::lock_guard lock(here->mutex);
    const auto found = here->opened.find(data);
    if (found == here->opened.end()) {
      ++here->violations;
      return error(refused);
    }
    for (const auto& [address, one] : here->device) {
      if (one.file == found->second) ::munmap(data, one.bytes);
    }
    here->opened.erase(found);
    ++here->closes_of[own_rank];
    return said;
  }

  static int allocate_host(void*& data, std::size_t bytes) {
    const int said = call("allocate_host");
    if (said != 0) return said;
    data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(data, 0xff, bytes);
    const std::lock_guard lock(here->mutex);
    here->host[data] = bytes;
    return 0;
  }
  static int release_host(void* data) {
    const int said = call("release_host");
    const std::lock_guard lock(here->mutex);
    if (here->host.erase(data) != 1) ++here->violations;
    std::free(data);
    return said;
  }
  static int pin_host(void* data, std::size_t) {
    const int said = call("pin_host");
    if (said != 0) return said;
    const std::lock_guard lock(here->mutex);
    if (!here->pinned.insert({own_rank, data}).second) ++here->violations;
    return 0;
  }
  static int unpin_host(void* data) {
    const int said = call("unpin_host");
    const std::lock_guard lock(here->mutex);
    if (here->pinned.erase({own_rank, data}) != 1) ++here->violations;
    return said;
  }
  static int device_address(void*& address, void* data) {
    const int said = call("device_address");
    if (said != 0) return said;
    const std::lock_guard lock(here->mutex);
    if (here->host.count(data) == 0 && here->pinned.count({own_rank, data}) == 0) {
      return error(refused);
    }
    address = data;
    return 0;
  }
  static int is_mapped(bool& mapped, void* data, int) {
    mapped = here->known.count(data) != 0;
    return call("is_mapped");
  }

 private:
  static const machine::place& place() { return here->ranks[static_cast<std::size_t>(own_rank)]; }
  static int error(int code) {
    last_error = code;
    return code;
  }
  static int call(const char* name) {
    const std::lock_guard lock(here->mutex);
    ++here->calls[name];
    if (here->failing != name || here->failing_rank != own_rank) return 0;
    return here->failing_from-- > 0 ? 0 : error(here->failing_code);
  }
};

struct fake_system {
  static process_identity process() {
    const machine::place& mine = here->ranks[static_cast<std::size_t>(own_rank)];
    return {mine.host, 7, mine.process};
  }
};

using threads_memory = basic_peer_access_memory<fake_cuda, fake_system>;
using processes_memory = basic_ipc_memory<fake_cuda, fake_system>;
using pinned_memory = basic_host_memory<fake_cuda, fake_system>;
using callers_memory = basic_caller_memory<fake_cuda, fake_system>;
using any_memory = basic_automatic_memory<fake_cuda, fake_system>;

static_assert(peer_memory<threads_memory> && peer_memory<processes_memory> &&
              peer_memory<pinned_memory> && peer_memory<callers_memory> && peer_memory<any_memory>);
static_assert(!peer_memory<mapped_slab>);

template <class Memory>
using work_of = std::function<status(Memory&, bootstrap_ref)>;

/// What each rank of a machine came to; an error that is left in CUDA is a failure too.
template <class Memory>
std::vector<status> on(machine& where, const work_of<Memory>& work, const Memory& like = Memory(),
                       std::chrono::milliseconds timeout = 20s) {
  here = &where;
  return on_ranks(
      where.size(),
      [&](in_process& me) -> status {
        own_rank = me.rank();
        last_error = 0;
        const auto memory = std::make_unique<Memory>(like);
        transport_bootstrap group(me);
        const status came_to = work(*memory, group);
        if (last_error == 0) return came_to;
        return failure(errc::cuda_failed, "test", "an error was left behind", last_error, 0);
      },
      timeout);
}

status wrong(const char* what, index_t got = 0) {
  return failure(errc::invalid_argument, "test", what, got, -1);
}

/// Every slab is zero; then what each rank stores into each slab arrives where it belongs.
status exchange(const mapped_slab& slab, bootstrap_ref ranks) {
  const int size = ranks.size();
  const int rank = ranks.rank();
  for (int r = 0; r < size; ++r) {
    if (reinterpret_cast<std::uintptr_t>(slab.of[r]) % 256 != 0) return wrong("misaligned", r);
    for (index_t i = 0; i < slab.bytes; ++i) {
      if (slab.of[r][i] != std::byte{0}) return wrong("not zero, of rank", r);
    }
  }
  for (int r = size; r < max_ranks; ++r) {
    if (slab.of[r] != nullptr) return wrong("a pointer to nobody", r);
  }
  const status read = detail::barrier(ranks);
  if (!read.ok()) return read;
  for (int r = 0; r < size; ++r) slab.of[r][rank] = static_cast<std::byte>(16 * rank + r + 1);
  const status written = detail::barrier(ranks);
  if (!written.ok()) return written;
  for (int r = 0; r < size; ++r) {
    if (slab.of[rank][r] != static_cast<std::byte>(16 * r + rank + 1)) {
      return wrong("lost the store of rank", r);
    }
  }
  return detail::barrier(ranks);
}

template <class Memory>
status map_and_exchange(Memory& memory, bootstrap_ref ranks, index_t bytes) {
  const result<mapped_slab> mapped = memory.map(ranks, bytes);
  if (!mapped.ok()) return mapped.why();
  mapped_slab slab = mapped.value();
  if (slab.bytes != bytes) return wrong("bytes", slab.bytes);
  const status exchanged = exchange(slab, ranks);
  if (!exchanged.ok()) return exchanged;
  const status unmapped = memory.unmap(ranks, slab);
  if (unmapped.ok() && (slab.id >= 0 || slab.of[0] != nullptr)) return wrong("still there");
  return unmapped;
}

/// Several slabs at a time, that come and go in another order than they came in.
template <class Memory>
status come_and_go(Memory& memory, bootstrap_ref ranks) {
  mapped_slab slabs[4];
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      const result<mapped_slab> mapped = memory.map(ranks, 300 + 100 * i);
      if (!mapped.ok()) return mapped.why();
      slabs[i] = mapped.value();
    }
    for (const int i : {0, 3, 1, 2}) {
      const status exchanged = exchange(slabs[i], ranks);
      if (!exchanged.ok()) return exchanged;
    }
    for (const int i : {2, 0, 3, 1}) {
      const status unmapped = memory.unmap(ranks, slabs[i]);
      if (!unmapped.ok()) return unmapped;
    }
  }
  return map_and_exchange(memory, ranks, 4097);
}

std::string all_alike(const std::vector<status>& came_to) {
  for (const status& one : came_to) {
    if (sentence(one) != sentence(came_to[0])) return sentence(one) + " | " + sentence(came_to[0]);
  }
  return sentence(came_to[0]);
}

/// No name that a process left in the shared memory of the host.
index_t segments_left() {
  index_t left = 0;
  const std::string ours = "headwise-" + std::to_string(::getpid()) + "-";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    left += entry.path().filename().string().rfind(ours, 0) == 0 ? 1 : 0;
  }
  return left;
}

/// `ranks` threads of one process, all of them on one board or each on its own.
void place_threads(machine& where, int ranks, bool on_one_board) {
  for (int r = 0; r < ranks; ++r) where.with({{0, on_one_board ? 0 : r}});
}
void place_processes(machine& where, int ranks) {
  for (int r = 0; r < ranks; ++r) where.with({{r, r}});
}

}  // namespace

TEST_CASE("peer_memory: threads of one process reach the slabs of all") {
  for (const bool on_one_board : {true, false}) {
    for (const int ranks : {1, 2, 3, 8, 16}) {
      machine where(on_one_board ? 1 : ranks);
      place_threads(where, ranks, on_one_board);
      const auto came_to = on<threads_memory>(where, come_and_go<threads_memory>);
      CHECK(all_alike(came_to) == "ok");
      CHECK(where.left() == "nothing");
      CHECK(where.enabled.size() ==
            static_cast<std::size_t>(on_one_board ? 0 : ranks * (ranks - 1)));
    }
  }
  machine shared(2);
  shared.with({{0, 0}, {0, 1}, {0, 0}, {0, 1}});
  CHECK(all_alike(on<threads_memory>(shared, come_and_go<threads_memory>)) == "ok");
  CHECK(shared.enabled.size() == 2);
}

TEST_CASE("peer_memory: processes reach the slabs of all") {
  for (const int ranks : {1, 2, 3, 8}) {
    machine where(ranks);
    place_processes(where, ranks);
    const auto came_to = on<processes_memory>(where, come_and_go<processes_memory>);
    CHECK(all_alike(came_to) == "ok");
    CHECK(where.left() == "nothing");
  }
}

TEST_CASE("peer_memory: host memory of one process, of several, and of both") {
  const std::pair<std::vector<std::pair<int, int>>, memory_kind> groups[] = {
      {{{0, 0}, {0, 0}, {0, 1}}, memory_kind::host},
      {{{0, 0}, {1, 1}, {2, 2}}, memory_kind::host_shared},
      {{{0, 0}, {0, 0}, {1, 1}, {1, 2}}, memory_kind::host_shared},
  };
  for (const auto& [places, kind] : groups) {
    machine where(3);
    for (const auto& one : places) where.with({one});
    const auto came_to =
        on<pinned_memory>(where, [kind = kind](pinned_memory& memory, bootstrap_ref ranks) {
          const status went = come_and_go(memory, ranks);
          return went.ok() && memory.kind() != kind ? wrong("kind") : went;
        });
    CHECK(all_alike(came_to) == "ok");
    CHECK(where.left() == "nothing");
    CHECK(segments_left() == 0);
    CHECK((where.count("allocate_host") > 0) == (kind == memory_kind::host));
  }
}

TEST_CASE("I06: peer access that is enabled already is taken, and no error is left behind") {
  machine where(3);
  place_threads(where, 3, false);
  where.enabled = {{0, 1}, {2, 0}};  // by somebody else of the process
  const auto twice = [](threads_memory& memory, bootstrap_ref ranks) -> status {
    for (int i = 0; i < 2; ++i) {
      const status done = map_and_exchange(memory, ranks, 1000);
      if (!done.ok()) return done;
    }
    return {};
  };
  CHECK(all_alike(on<threads_memory>(where, twice)) == "ok");
  CHECK(all_alike(on<threads_memory>(where, twice)) == "ok");
  CHECK(where.left() == "nothing");
}

TEST_CASE("I07: of two memories on one pair, the end of one leaves the other its peer access") {
  machine where(2);
  place_threads(where, 2, false);
  const auto came_to =
      on<threads_memory>(where, [](threads_memory& memory, bootstrap_ref ranks) -> status {
        threads_memory other;
        const result<mapped_slab> mapped = other.map(ranks, 512);
        if (!mapped.ok()) return mapped.why();
        const status done = map_and_exchange(memory, ranks, 512);
        if (!done.ok()) return done;
        if (here->enabled.size() != 2) return wrong("peer access is gone");
        mapped_slab slab = mapped.value();
        const status works = exchange(slab, ranks);
        return works.ok() ? other.unmap(ranks, slab) : works;
      });
  CHECK(all_alike(came_to) == "ok");
  CHECK(where.enabled.size() == 2);
}

TEST_CASE("I08: the GPU of a peer is found by what it is, not by its ordinal") {
  const auto try_with = [](std::set<std::pair<int, int>> unreachable) {
    machine where(5);
    where.ranks = {{0, {4, 0}, 0}, {1, {0, 4}, 0}};
    where.unreachable = std::move(unreachable);
    const auto came_to = on<processes_memory>(where, come_and_go<processes_memory>);
    CHECK(where.left() == "nothing");
    return all_alike(came_to);
  };
  CHECK(try_with({}) == "ok");
  CHECK(try_with({{0, 0}, {4, 4}, {1, 0}, {4, 1}}) == "ok");
  CHECK(try_with({{4, 0}}) ==
        "unsupported: CUDA IPC: got 0, expected 1: the GPU of rank (got) cannot reach that of rank "
        "(expected)");
  CHECK(try_with({{0, 4}}) ==
        "unsupported: CUDA IPC: got 1, expected 0: the GPU of rank (got) cannot reach that of rank "
        "(expected)");

  // Each process sees its own GPU only: whether it reaches the other, the handle says.
  machine hidden(5);
  hidden.ranks = {{0, {4}, 0}, {1, {0}, 0}};
  CHECK(all_alike(on<processes_memory>(hidden, come_and_go<processes_memory>)) == "ok");
  CHECK(hidden.count("can_access_peer") == 0);
}

TEST_CASE("I10: instances of one GPU are refused before anything is tried, and get host memory") {
  machine where(2);
  where.boards[1].pci[1] = where.boards[0].pci[1];
  const std::string refusal =
      ": got 0, expected 1: ranks (got) and (expected) have instances of one GPU (MIG), which "
      "cannot reach each other";
  where.with({{0, 0}, {0, 1}});
  CHECK(all_alike(on<threads_memory>(where, come_and_go<threads_memory>)) ==
        "unsupported: peer access" + refusal);
  where.ranks.clear();
  where.with({{0, 0}, {1, 1}});
  CHECK(all_alike(on<processes_memory>(where, come_and_go<processes_memory>)) ==
        "unsupported: CUDA IPC" + refusal);
  const auto came_to = on<any_memory>(where, [](any_memory& memory, bootstrap_ref ranks) -> status {
    const status done = come_and_go(memory, ranks);
    if (!done.ok()) return done;
    if (memory.kind() != memory_kind::host_shared) return wrong("kind");
    return memory.reason() == memory_reason::mig_instances ? status{} : wrong("reason");
  });
  CHECK(all_alike(came_to) == "ok");
  for (const char* call : {"can_access_peer", "enable_peer_access", "ipc_name", "allocate"}) {
    CHECK(where.count(call) == 0);
  }
}

TEST_CASE("I03: I04: only own allocations are exported, from their start, in 2 MiB of their own") {
  machine where(2);
  place_processes(where, 2);
  const auto came_to =
      on<processes_memory>(where, [](processes_memory& memory, bootstrap_ref ranks) -> status {
        mapped_slab slabs[4];
        for (mapped_slab& slab : slabs) {
          const result<mapped_slab> mapped = memory.map(ranks, 1 << 20);
          if (!mapped.ok()) return mapped.why();
          slab = mapped.value();
        }
        for (int i = 0; i < 4; ++i) {
          std::memset(slabs[i].of[ranks.rank()], 16 * ranks.rank() + i + 1, 1 << 20);
        }
        const status written = detail::barrier(ranks);
        if (!written.ok()) return written;
        const int peer = 1 - ranks.rank();
        for (int i = 0; i < 4; ++i) {
          const auto expected = static_cast<std::byte>(16 * peer + i + 1);
          if (slabs[i].of[peer][0] != expected) return wrong("bytes of another slab", i);
          if (slabs[i].of[peer][(1 << 20) - 1] != expected) return wrong("bytes at the end", i);
        }
        {
          const std::lock_guard lock(here->mutex);
          for (const auto& [data, one] : here->device) {
            if (one.bytes % (std::size_t{2} << 20) != 0) return wrong("shares its pages");
          }
        }
        const status read = detail::barrier(ranks);
        if (!read.ok()) return read;
        for (mapped_slab& slab : slabs) {
          const status unmapped = memory.unmap(ranks, slab);
          if (!unmapped.ok()) return unmapped;
        }
        return {};
      });
  CHECK(all_alike(came_to) == "ok");
  CHECK(where.left() == "nothing");
}

TEST_CASE(
    "H06: ranks that differ in the size or the number of slabs hear so, and nothing is left") {
  machine where(3);
  place_processes(where, 3);
  const auto sizes = on<any_memory>(where, [](any_memory& memory, bootstrap_ref ranks) {
    return memory.map(ranks, ranks.rank() == 2 ? 4096 : 2048).why();
  });
  CHECK(all_alike(sizes) ==
        "rank_mismatch: map, axis bytes: got 4096, expected 2048: seen on rank 2");

  // Rank 1 maps a third slab while its peers let go of their second.
  const auto numbers = on<any_memory>(where, [](any_memory& memory, bootstrap_ref ranks) -> status {
    mapped_slab slabs[2];
    for (mapped_slab& slab : slabs) slab = memory.map(ranks, 100).value();
    const status odd =
        ranks.rank() == 1 ? memory.map(ranks, 100).why() : memory.unmap(ranks, slabs[1]);
    if (odd.code != errc::rank_mismatch) return wrong("no mismatch");
    // Nothing has happened, and all may go on.
    for (mapped_slab& slab : slabs) {
      const status works = exchange(slab, ranks);
      if (!works.ok()) return works;
      const status unmapped = memory.unmap(ranks, slab);
      if (!unmapped.ok()) return unmapped;
    }
    return map_and_exchange(memory, ranks, 100);
  });
  CHECK(all_alike(numbers) == "ok");

  // Slabs in another order.
  const auto order = on<any_memory>(where, [](any_memory& memory, bootstrap_ref ranks) -> status {
    mapped_slab slabs[2];
    for (mapped_slab& slab : slabs) slab = memory.map(ranks, 100).value();
    const status odd = memory.unmap(ranks, slabs[ranks.rank() == 0 ? 1 : 0]);
    if (odd.code != errc::rank_mismatch) return wrong("no mismatch");
    for (mapped_slab& slab : slabs) {
      const status unmapped = memory.unmap(ranks, slab);
      if (!unmapped.ok()) return unmapped;
    }
    return {};
  });
  CHECK(all_alike(order) == "ok");
  CHECK(where.left() == "nothing");
}

TEST_CASE("H08: I11: as many handles are closed as were opened, before their owner frees") {
  machine where(3);
  place_processes(where, 3);
  where.slow_close = 1ms;  // on rank 1
  const auto came_to =
      on<processes_memory>(where, [](processes_memory& memory, bootstrap_ref ranks) -> status {
        for (int i = 0; i < 100; ++i) {
          const status done = map_and_exchange(memory, ranks, 256);
          if (!done.ok()) return done;
        }
        return {};
      });
  CHECK(all_alike(came_to) == "ok");
  CHECK(where.left() == "nothing");
  CHECK(where.count("ipc_open") == 100 * 3 * 2);
  CHECK(where.count("ipc_close") == 100 * 3 * 2);
  CHECK(where.count("allocate") == where.count("release"));
}

TEST_CASE("peer_memory: whatever call fails on whichever rank, all fail, and nothing is left") {
  const auto check = [](auto memory, const char* name, const std::vector<const char*>& calls,
                        bool one_process) {
    using memory_type = decltype(memory);
    for (const char* call : calls) {
      for (int rank = 0; rank < 3; ++rank) {
        for (const int from : {0, 1}) {
          machine where(3);
          if (one_process) {
            place_threads(where, 3, false);
          } else {
            place_processes(where, 3);
          }
          where.failing = call;
          where.failing_rank = rank;
          where.failing_from = from;
          const auto came_to = on<memory_type>(where, [](memory_type& mine, bootstrap_ref ranks) {
            const result<mapped_slab> mapped = mine.map(ranks, 1000);
            if (!mapped.ok()) return mapped.why();
            mapped_slab slab = mapped.value();
            return mine.unmap(ranks, slab);
          });
          const std::string what = std::string(name) + ": " + call;
          INFO(what << " on rank " << rank << ", from " << from << ": " << all_alike(came_to));
          CHECK(where.left() == "nothing");
          CHECK(segments_left() == 0);
          const bool failed = !came_to[0].ok();
          CHECK((failed || where.failing_from >= 0));
          for (const status& one : came_to) CHECK(one.ok() != failed);
          if (!failed) continue;
          for (const status& one : came_to) {
            CHECK(one.code == errc::cuda_failed);
            CHECK(one.got == refused);
          }
        }
      }
    }
  };
  check(threads_memory(), "threads",
        {"current_device", "identify", "can_access_peer", "enable_peer_access", "allocate", "zero",
         "synchronize"},
        true);
  check(processes_memory(), "processes",
        {"current_device", "identify", "device_count", "can_access_peer", "allocate", "zero",
         "synchronize", "ipc_name", "ipc_open", "ipc_close"},
        false);
  check(pinned_memory(), "host", {"identify", "allocate_host", "device_address", "synchronize"},
        true);
  check(pinned_memory(), "shared", {"identify", "pin_host", "device_address", "synchronize"},
        false);
}

TEST_CASE("I11: memory that a peer may still hold is not freed, wherever a rank stops answering") {
  const auto stop_at = [](auto memory, bool one_process, int gathers, bool comes) {
    using memory_type = decltype(memory);
    machine where(3);
    if (one_process) {
      place_threads(where, 3, false);
    } else {
      place_processes(where, 3);
    }
    const auto came_to = on<memory_type>(
        where,
        [&](memory_type& mine, bootstrap_ref ranks) {
          int left = gathers;
          callback_bootstrap failing(
              ranks.rank(), ranks.size(),
              [&](std::span<const std::byte> own, std::span<std::byte> all) -> status {
                if (ranks.rank() != 1 || left-- != 0) return ranks.all_gather(own, all);
                // It comes, and does not hear of it: its peers go on.
                if (comes) {
                  static_cast<void>(ranks.all_gather(own, all).ok());
                  std::this_thread::sleep_for(10ms);
                }
                return failure(errc::timed_out, "test", "");
              });
          const result<mapped_slab> mapped = mine.map(failing, 1000);
          if (!mapped.ok()) return mapped.why();
          mapped_slab slab = mapped.value();
          return mine.unmap(failing, slab);
        },
        memory, 30ms);
    CHECK(where.violations == 0);
    CHECK(segments_left() == 0);
    CHECK(came_to[1].ok() == (gathers > 4));
    for (const std::size_t peer : {0u, 2u}) {
      CHECK(came_to[peer].ok() == (gathers > (comes ? 3 : 4)));
    }
    // What is kept goes with the test.
    for (const auto& [data, bytes] : where.host) std::free(data);
  };
  for (const bool comes : {false, true}) {
    for (int gathers = 0; gathers < 6; ++gathers) {
      stop_at(threads_memory(), true, gathers, comes);
      stop_at(processes_memory(), false, gathers, comes);
      stop_at(pinned_memory(), true, gathers, comes);
      stop_at(pinned_memory(), false, gathers, comes);
    }
  }
}

TEST_CASE("peer_memory: who is refused what, in words") {
  const auto came_to = [](auto memory, int boards,
                          std::initializer_list<std::pair<int, int>> places) {
    using memory_type = decltype(memory);
    machine where(boards);
    where.with(places);
    const std::string said = all_alike(on<memory_type>(where, come_and_go<memory_type>));
    CHECK(where.left() == "nothing");
    return said;
  };
  CHECK(came_to(threads_memory(), 2, {{0, 0}, {1, 1}}) ==
        "unsupported: peer access: ranks are processes");
  CHECK(came_to(processes_memory(), 2, {{0, 0}, {0, 1}}) ==
        "unsupported: CUDA IPC: ranks are threads of one process");
  CHECK(came_to(processes_memory(), 3, {{0, 0}, {0, 1}, {1, 2}}) ==
        "unsupported: CUDA IPC: some ranks share a process and some do not");
  const std::string turns =
      ": got 0, expected 2: ranks (got) and (expected) are processes on one GPU: they take turns "
      "on "
      "it, and one that waits for the other does so until its time-out";
  CHECK(came_to(processes_memory(), 2, {{0, 0}, {1, 1}, {2, 0}}) ==
        "unsupported: CUDA IPC" + turns);
  CHECK(came_to(pinned_memory(), 2, {{0, 0}, {1, 1}, {2, 0}}) ==
        "unsupported: pinned shared host memory" + turns);
  CHECK(came_to(any_memory(), 2, {{0, 0}, {1, 1}, {2, 0}}) ==
        "unsupported: pinned shared host memory" + turns);

  machine two_hosts(2);
  place_processes(two_hosts, 2);
  two_hosts.ranks[1].host = 2;
  CHECK(all_alike(on<any_memory>(two_hosts, come_and_go<any_memory>)) ==
        "unsupported: pinned shared host memory: got 0, expected 1: ranks (got) and (expected) are "
        "on different hosts");
  CHECK(all_alike(on<processes_memory>(two_hosts, come_and_go<processes_memory>)) ==
        "unsupported: CUDA IPC: got 0, expected 1: ranks (got) and (expected) are on different "
        "hosts");
}

TEST_CASE("peer_memory: the automatic choice is one for all ranks, and says why") {
  struct choice {
    const char* name;
    bool one_process;
    std::set<std::pair<int, int>> unreachable;
    int most_peers;
    const char* failing;
    memory_kind kind;
    memory_reason reason;
  };
  const choice choices[] = {
      {"threads", true, {}, 100, "", memory_kind::peer_access, memory_reason::one_process},
      {"processes", false, {}, 100, "", memory_kind::ipc, memory_reason::several_processes},
      {"threads, one way",
       true,
       {{2, 0}},
       100,
       "",
       memory_kind::host,
       memory_reason::no_peer_access},
      {"processes, one way",
       false,
       {{2, 0}},
       100,
       "",
       memory_kind::host_shared,
       memory_reason::no_peer_access},
      {"threads, few peers", true, {}, 1, "", memory_kind::host, memory_reason::too_many_peers},
      {"processes, few peers",
       false,
       {},
       1,
       "",
       memory_kind::host_shared,
       memory_reason::too_many_peers},
      {"no handle",
       false,
       {},
       100,
       "ipc_name",
       memory_kind::host_shared,
       memory_reason::ipc_failed},
      {"no opening",
       false,
       {},
       100,
       "ipc_open",
       memory_kind::host_shared,
       memory_reason::ipc_failed},
  };
  for (const choice& one : choices) {
    INFO(one.name);
    machine where(3);
    if (one.one_process) {
      place_threads(where, 3, false);
    } else {
      place_processes(where, 3);
    }
    where.unreachable = one.unreachable;
    where.most_peers = one.most_peers;
    where.failing = one.failing;
    where.failing_rank = 1;
    const auto came_to =
        on<any_memory>(where, [&](any_memory& memory, bootstrap_ref ranks) -> status {
          if (memory.reason() != memory_reason::undecided) return wrong("decided before");
          // Peers that a slab has count for the next one too.
          const status done = map_and_exchange(memory, ranks, 5000);
          if (!done.ok()) return done;
          if (memory.kind() != one.kind || memory.reason() != one.reason) {
            return wrong(to_string(memory.reason()));
          }
          const status again = one.most_peers > 99 ? come_and_go(memory, ranks) : status{};
          return memory.kind() == one.kind ? again : wrong("another kind");
        });
    CHECK(all_alike(came_to) == "ok");
    CHECK(where.left() == "nothing");
  }

  // No memory left is no reason to take slower memory, and decides nothing.
  machine full(2);
  place_processes(full, 2);
  full.failing = "allocate";
  full.failing_rank = 1;
  const auto came_to = on<any_memory>(full, [](any_memory& memory, bootstrap_ref ranks) -> status {
    if (memory.map(ranks, 100).why().code != errc::cuda_failed) return wrong("no failure");
    if (memory.reason() != memory_reason::undecided) return wrong("decided");
    const status met = detail::barrier(ranks);
    if (!met.ok()) return met;
    if (ranks.rank() == 1) here->failing.clear();
    const status done = map_and_exchange(memory, ranks, 100);
    if (!done.ok()) return done;
    return memory.kind() == memory_kind::ipc ? status{} : wrong("kind");
  });
  CHECK(all_alike(came_to) == "ok");
}

TEST_CASE("peer_memory: host memory if asked for, by all ranks") {
  machine where(2);
  place_threads(where, 2, false);
  const auto asked = on<any_memory>(
      where,
      [](any_memory& memory, bootstrap_ref ranks) -> status {
        const status done = come_and_go(memory, ranks);
        if (!done.ok()) return done;
        if (memory.kind() != memory_kind::host) return wrong("kind");
        return memory.reason() == memory_reason::asked_for ? status{} : wrong("reason");
      },
      any_memory(memory_preference::host));
  CHECK(all_alike(asked) == "ok");
  CHECK(where.count("enable_peer_access") == 0);

  const auto differing = on<any_memory>(where, [](any_memory&, bootstrap_ref ranks) {
    any_memory memory(ranks.rank() == 1 ? memory_preference::host : memory_preference::automatic);
    return memory.map(ranks, 64).why();
  });
  for (const status& one : differing) {
    CHECK(one.code == errc::rank_mismatch);
    CHECK(std::string(one.axis) == "kind of memory");
  }
}

TEST_CASE("peer_memory: what loses writes is given up for that of the host, on all ranks") {
  machine where(2);
  place_processes(where, 2);
  const auto came_to = on<any_memory>(where, [](any_memory& memory, bootstrap_ref ranks) -> status {
    mapped_slab slab = memory.map(ranks, 100).value();
    if (memory.fall_back().code != errc::invalid_argument) return wrong("fell back while mapped");
    const status unmapped = memory.unmap(ranks, slab);
    if (!unmapped.ok()) return unmapped;
    const status fell = memory.fall_back();
    if (!fell.ok()) return fell;
    const status done = come_and_go(memory, ranks);
    if (!done.ok()) return done;
    if (memory.kind() != memory_kind::host_shared) return wrong("kind");
    if (memory.reason() != memory_reason::probe_failed) return wrong("reason");
    return memory.fall_back().code == errc::unsupported ? status{} : wrong("fell back twice");
  });
  CHECK(all_alike(came_to) == "ok");
  CHECK(where.left() == "nothing");

  const auto alone = on<any_memory>(where, [](any_memory& memory, bootstrap_ref ranks) -> status {
    if (ranks.rank() == 0 && !memory.fall_back().ok()) return wrong("cannot");
    return memory.map(ranks, 100).why();
  });
  for (const status& one : alone) CHECK(one.code == errc::rank_mismatch);
}

TEST_CASE("peer_memory: pieces of a caller's memory come and go, and return") {
  machine where(1);
  place_threads(where, 3, true);
  here = &where;
  mapped_memory given;
  given.bytes = 4096;
  std::vector<void*> blocks;
  for (int r = 0; r < 3; ++r) {
    blocks.push_back(std::aligned_alloc(256, 4096));
    std::memset(blocks.back(), 0xff, 4096);
    given.of[r] = static_cast<std::byte*>(blocks.back());
    where.known.insert(blocks.back());
  }
  const auto came_to = on<callers_memory>(
      where,
      [&](callers_memory& memory, bootstrap_ref ranks) -> status {
        const status done = come_and_go(memory, ranks);
        if (!done.ok()) {
          // The last slab of come_and_go() is larger than all there is.
          if (done.code != errc::capacity_exceeded) return done;
        }
        mapped_slab slabs[16];
        for (int i = 0; i < 16; ++i) {
          const result<mapped_slab> mapped = memory.map(ranks, 256 - i);
          if (!mapped.ok()) return mapped.why();
          slabs[i] = mapped.value();
          if (slabs[i].of[1] != given.of[1] + 256 * i) return wrong("another place", i);
        }
        if (memory.map(ranks, 1).why().code != errc::capacity_exceeded) return wrong("too much");
        for (const int i : {7, 3, 4}) {
          const status unmapped = memory.unmap(ranks, slabs[i]);
          if (!unmapped.ok()) return unmapped;
        }
        const result<mapped_slab> two = memory.map(ranks, 512);
        if (!two.ok() || two.value().of[0] != given.of[0] + 768) return wrong("not in the gap");
        const result<mapped_slab> one = memory.map(ranks, 1);
        if (!one.ok() || one.value().of[0] != given.of[0] + 1792) return wrong("not in its gap");
        return memory.kind() == memory_kind::caller ? status{} : wrong("kind");
      },
      callers_memory(given));
  CHECK(all_alike(came_to) == "ok");
  for (void* block : blocks) std::free(block);
}

TEST_CASE(
    "I13: I14: a caller's memory that is not mapped for this rank is refused when it is taken") {
  machine where(1);
  place_threads(where, 2, true);
  alignas(256) static std::byte blocks[3][512];
  where.known = {blocks[0], blocks[1]};
  const auto came_to = [&](std::byte* first, std::byte* second) {
    mapped_memory given;
    given.of[0] = first;
    given.of[1] = second;
    given.bytes = 512;
    return all_alike(on<callers_memory>(
        where,
        [](callers_memory& memory, bootstrap_ref ranks) {
          return map_and_exchange(memory, ranks, 300);
        },
        callers_memory(given)));
  };
  static_assert(!std::is_convertible_v<std::byte* const*, mapped_memory>,
                "a list of pointers does not say that they are mapped");
  static_assert(!std::is_constructible_v<callers_memory, std::byte**>);
  CHECK(came_to(blocks[0], blocks[1]) == "ok");
  CHECK(came_to(blocks[0], blocks[2]) ==
        "invalid_argument: memory: got 1, expected 0: of rank (got) is not mapped for the current "
        "device (expected)");
  CHECK(came_to(blocks[0], nullptr) ==
        "invalid_argument: memory: got 1, expected 2: no pointer for rank (got)");
  CHECK(came_to(blocks[0], blocks[0]) ==
        "overlap: memory: got 0, expected 1: ranks (got) and (expected) have the same pointer");
  CHECK(came_to(blocks[0], blocks[1] + 16) ==
        "misaligned: memory: got 16, expected 0: begins on a multiple of 256 bytes");
}

TEST_CASE("peer_memory: arguments") {
  machine where(2);
  place_threads(where, 2, false);
  const auto came_to =
      on<threads_memory>(where, [](threads_memory& memory, bootstrap_ref ranks) -> status {
        if (memory.map(ranks, 0).why().code != errc::invalid_argument) return wrong("no bytes");
        // One rank alone asks for nothing: all hear of it.
        if (memory.map(ranks, ranks.rank() == 0 ? -5 : 5).ok()) return wrong("negative bytes");
        mapped_slab none;
        if (memory.unmap(ranks, none).code != errc::invalid_argument) return wrong("none");
        mapped_slab slab = memory.map(ranks, 5).value();
        mapped_slab copy = slab;
        const status unmapped = memory.unmap(ranks, slab);
        if (!unmapped.ok()) return unmapped;
        if (memory.unmap(ranks, copy).code != errc::invalid_argument) return wrong("twice");

        mapped_slab slabs[64];
        for (mapped_slab& one : slabs) one = memory.map(ranks, 5).value();
        if (memory.map(ranks, 5).why().code != errc::capacity_exceeded) return wrong("too many");
        machine::place& mine = here->ranks[static_cast<std::size_t>(ranks.rank())];
        mine.ordinal = 1 - mine.ordinal;
        const status met = detail::barrier(ranks);
        if (!met.ok()) return met;
        if (memory.unmap(ranks, slabs[0]).code != errc::invalid_argument) return wrong("device");
        mine.ordinal = 1 - mine.ordinal;
        const status back = detail::barrier(ranks);
        if (!back.ok()) return back;
        for (mapped_slab& one : slabs) {
          const status gone = memory.unmap(ranks, one);
          if (!gone.ok()) return gone;
        }
        return {};
      });
  CHECK(all_alike(came_to) == "ok");
  CHECK(where.left() == "nothing");
}

TEST_CASE("peer_memory: names of kinds and reasons") {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(memory_kind::caller); ++i) {
    names.insert(to_string(static_cast<memory_kind>(i)));
  }
  for (int i = 0; i <= static_cast<int>(memory_reason::call_failed); ++i) {
    names.insert(to_string(static_cast<memory_reason>(i)));
  }
  CHECK(names.size() == 18);
  CHECK(names.count("unknown") == 0);
}

TEST_CASE("peer_memory: where a process is") {
  const process_identity one = detail::system_calls::process();
  CHECK(one == detail::system_calls::process());
  CHECK(one.process == ::getpid());
  CHECK(one.host != 0);
}
