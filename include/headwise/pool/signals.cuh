// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/launch.cuh>
#include <headwise/pool/layout.hpp>

// What a kernel of a pool does to tell its peers, and to wait for them no longer than it may.
//
// All that is read where a peer writes is read by one of these, of system scope: nothing goes
// through a cache that does not see the peer's writes (no const __restrict__, no ld.nc). What is
// written there is written by one of these, or before a flag that one of these releases.

namespace headwise::inline v0 {

namespace detail {

/// A line of `ll`. Two aligned elements of 8 bytes, each of which arrives whole, so that a tag
/// comes with its data; nothing is assumed of the two together.
struct tagged_line {
  std::uint64_t low;   ///< data in the low half, tag in the high one
  std::uint64_t high;  ///< the same

  __device__ static tagged_line of(std::uint32_t first, std::uint32_t second,
                                   std::uint32_t tag) noexcept {
    const std::uint64_t upper = std::uint64_t{tag} << 32;
    return {first | upper, second | upper};
  }
  __device__ bool carries(std::uint32_t tag) const noexcept {
    return static_cast<std::uint32_t>(low >> 32) == tag &&
           static_cast<std::uint32_t>(high >> 32) == tag;
  }
  __device__ std::uint32_t first() const noexcept { return static_cast<std::uint32_t>(low); }
  __device__ std::uint32_t second() const noexcept { return static_cast<std::uint32_t>(high); }
};

__device__ inline void store_line(std::byte* at, const tagged_line& line) noexcept {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(line.low),
               "l"(line.high)
               : "memory");
}
__device__ inline tagged_line load_line(const std::byte* at) noexcept {
  tagged_line line;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(line.low), "=l"(line.high)
               : "l"(at)
               : "memory");
  return line;
}

__device__ inline std::uint64_t load_word(const void* at) noexcept {
  std::uint64_t word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
  return word;
}
__device__ inline void store_word(void* at, std::uint64_t word) noexcept {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
/// The flag of a chunk: the epoch, and beside it the signature of the call with a tag of its own,
/// since two elements of one access need not arrive together.
struct chunk_flag {
  std::uint64_t epoch;
  std::uint64_t signature;  ///< in the high half; the epoch's low word in the low one
};
__device__ inline chunk_flag acquire_flag(const std::byte* at) noexcept {
  chunk_flag flag;
  asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(flag.epoch), "=l"(flag.signature)
               : "l"(at)
               : "memory");
  return flag;
}
__device__ inline chunk_flag load_flag(const std::byte* at) noexcept {
  chunk_flag flag;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(flag.epoch), "=l"(flag.signature)
               : "l"(at)
               : "memory");
  return flag;
}
__device__ inline void release_flag(std::byte* at, const chunk_flag& flag) noexcept {
  asm volatile("st.release.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(flag.epoch),
               "l"(flag.signature)
               : "memory");
}

/// 16 bytes of a slot, after its flag was acquired.
__device__ inline uint4 load_slot(const std::byte* at) noexcept {
  uint4 bits;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(at)
               : "memory");
  return bits;
}
__device__ inline float load_slot_lse(const std::byte* at) noexcept {
  float value;
  asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(value) : "l"(at) : "memory");
  return value;
}

__device__ inline std::uint64_t nanoseconds() noexcept {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/// What a channel keeps in the memory of its own GPU.
struct alignas(32) channel_state {
  std::uint64_t epoch;    ///< of the last operation whose blocks have all begun
  std::uint64_t failed;   ///< a pool_failure, as soon as a kernel of this rank knows
  std::uint64_t handled;  ///< epoch up to which a failure has been dealt with
  std::uint32_t arrived;  ///< blocks of this operation that know its epoch
};

/// A channel as kernels see it, by value.
struct channel_ports {
  std::byte* slab[max_ranks] = {};  ///< of every rank, as this one addresses it
  slab_layout layout{};
  channel_state* state = nullptr;
  std::uint64_t* report = nullptr;  ///< memory of the host: the first failure
  std::uint64_t patience = 0;       ///< nanoseconds that a wait may take
  int rank = 0;
  int ranks = 1;
  bool alone = false;  ///< on its GPU: nothing that this kernel lets start could keep a peer out
  bool far = false;    ///< slabs are in the memory of the host

  __device__ std::byte* own() const noexcept { return slab[rank]; }
};

/// Peers are visited from the next rank on, so that not all write to one.
__device__ inline int peer_at(const channel_ports& ports, int step) noexcept {
  const int peer = ports.rank + step;
  return peer < ports.ranks ? peer : peer - ports.ranks;
}

/// One operation as a thread of it sees it.
struct pool_turn {
  std::uint64_t epoch = 0;
  std::uint32_t signature = 0;
  std::uint8_t operation = 0;
  std::uint64_t failed = 0;    ///< a pool_failure: this thread's rows will not be right
  std::uint64_t deadline = 0;  ///< of all waits of the thread together
  unsigned polls = 0;
  unsigned next_check = 0;
  int slot = 0;

  __device__ std::uint32_t tag() const noexcept { return static_cast<std::uint32_t>(epoch); }
};

/// What tests may take away from a channel to see that it is needed.
struct pool_rules {
  __device__ static int slot(std::uint64_t epoch) noexcept { return static_cast<int>(epoch & 1); }
};

/// The first thing that a kernel of a pool does. Nothing is read before what is before it on the
/// stream is complete, or two operations could share an epoch.
__device__ inline void enter_pool_kernel([[maybe_unused]] const channel_ports& ports) noexcept {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (ports.alone) asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// What a turn begins with, on its way: loads of the caller's rows are issued behind it and before
/// begin_turn(), which is the first to wait.
struct turn_words {
  std::uint64_t epoch;
  std::uint64_t failed;
};
__device__ inline turn_words load_turn(const channel_ports& ports) noexcept {
  turn_words words;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(words.epoch), "=l"(words.failed)
               : "l"(ports.state)
               : "memory");
  return words;
}

/// What only a peer knows yet. One warp of all looks for it, the last of block 0, which receives:
/// loads of one word in the host's memory go one after the other, a microsecond each. Nothing waits
/// for it but the end of the turn.
__device__ inline std::uint64_t load_poison(const channel_ports& ports) noexcept {
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const bool looks = blockIdx.x == 0 && thread + 32 >= blockDim.x * blockDim.y;
  return looks ? load_word(ports.own()) : 0;
}

template <class Rules>
__device__ pool_turn begin_turn(const turn_words& words, std::uint32_t signature,
                                pool_operation operation) noexcept {
  pool_turn turn;
  turn.epoch = epoch_after(words.epoch);
  turn.signature = signature;
  turn.operation = static_cast<std::uint8_t>(operation);
  turn.failed = words.failed;
  turn.slot = Rules::slot(turn.epoch);
  return turn;
}

/// Block 0 says what this rank is about to do. Nobody waits for it, it is looked at by those who
/// wait for something else.
__device__ inline void announce(const channel_ports& ports, const pool_turn& turn) noexcept {
  const auto peer = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  if (blockIdx.x != 0 || peer >= ports.ranks || peer == ports.rank) return;
  store_word(ports.slab[peer] + ports.layout.announcement_at(turn.slot, ports.rank),
             std::uint64_t{turn.signature} << 32 | turn.tag());
}

/// Counts the blocks that know the epoch; the last one advances it. By one thread of a block, when
/// all of it have read the epoch. Early, so that nothing waits for it in the end. Relaxed, as what
/// reads the epoch next starts after this kernel; a fence would wait for stores to peers.
__device__ inline void advance_epoch(const channel_ports& ports, const pool_turn& turn) noexcept {
  std::uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(&ports.state->arrived)
               : "memory");
  if (before != gridDim.x - 1) return;
  ports.state->arrived = 0;
  store_word(&ports.state->epoch, turn.epoch);
}

/// Zeroes this block's share of the lines of the slot used next; see epoch_wipes(). Before the
/// first store of this operation to a peer: a peer writes there when it has everything of this one.
__device__ inline void wipe_next_slot(const channel_ports& ports, const pool_turn& turn) noexcept {
  if (!epoch_wipes(turn.epoch)) return;
  std::byte* const lines = ports.own() + ports.layout.ll_at(turn.slot ^ 1, 0);
  const index_t bytes = ports.layout.ll_region * ports.ranks;
  const index_t threads = index_t{blockDim.x} * blockDim.y;
  const index_t first = blockIdx.x * threads + threadIdx.y * blockDim.x + threadIdx.x;
  for (index_t at = first * ll_line; at < bytes; at += gridDim.x * threads * ll_line) {
    store_line(lines + at, {0, 0});
  }
  __threadfence_system();
  __syncthreads();
}

/// Between two looks at a word that has not come. True where there is no point in a third: the
/// channel has failed, the peer has announced something else, or the time is up. What only the
/// peers know is asked more and more rarely, or waiting threads would be all that the memory
/// serves.
__device__ inline bool gives_up(const channel_ports& ports, pool_turn& turn, int peer) noexcept {
  constexpr unsigned between_checks = 128;
  if (++turn.polls % between_checks != 0) return false;
  turn.failed = load_word(&ports.state->failed);
  if (turn.failed != 0) return true;
  const auto failure = [&](pool_failure::cause why) {
    turn.failed = pool_failure{why, turn.operation, static_cast<std::uint8_t>(peer),
                               static_cast<std::uint8_t>(ports.rank)}
                      .word(turn.epoch);
    return true;
  };
  const std::uint64_t now = nanoseconds();
  if (turn.deadline == 0) turn.deadline = now + ports.patience;
  if (turn.polls >= turn.next_check) {
    turn.next_check = turn.polls + lesser(turn.polls, ports.far ? 16384u : 1024u);
    turn.failed = load_word(ports.own());
    if (turn.failed != 0) return true;
    const std::uint64_t announced =
        load_word(ports.own() + ports.layout.announcement_at(turn.slot, peer));
    if (static_cast<std::uint32_t>(announced) == turn.tag() &&
        static_cast<std::uint32_t>(announced >> 32) != turn.signature) {
      return failure(pool_failure::mismatch);
    }
  }
  return now >= turn.deadline && failure(pool_failure::timed_out);
}

/// The signature that came with data is not that of this call.
__device__ inline void check_signature(const channel_ports& ports, pool_turn& turn, int peer,
                                       std::uint64_t theirs) noexcept {
  if (static_cast<std::uint32_t>(theirs) == turn.signature || turn.failed != 0) return;
  turn.failed = pool_failure{pool_failure::mismatch, turn.operation,
                             static_cast<std::uint8_t>(peer), static_cast<std::uint8_t>(ports.rank)}
                    .word(turn.epoch);
}

/// Whether a turn has failed for a lane of this warp, on all its lanes.
__device__ inline bool warp_failed(pool_turn& turn) noexcept {
  const unsigned failed = __ballot_sync(0xffffffffu, turn.failed != 0);
  if (failed == 0) return false;
  turn.failed = __shfl_sync(0xffffffffu, turn.failed, __ffs(static_cast<int>(failed)) - 1);
  return true;
}

/// By all lanes of a warp whose turn has failed. Poisons the channel on all ranks. True on the one
/// warp that then overwrites all results: it comes back when blocks that had everything before
/// are done writing theirs.
__device__ inline bool poison_channel(const channel_ports& ports, const pool_turn& turn) noexcept {
  const auto lane = static_cast<int>((threadIdx.y * blockDim.x + threadIdx.x) % 32);
  unsigned first = 0;
  if (lane == 0) {
    first = atomicMax(reinterpret_cast<unsigned long long*>(&ports.state->handled), turn.epoch) <
            turn.epoch;
  }
  if (__shfl_sync(0xffffffffu, first, 0) == 0) return false;
  // Where an earlier turn has failed no block of this one has written anything.
  const bool known = load_word(&ports.state->failed) != 0;
  __syncwarp();
  if (lane == 0) store_word(&ports.state->failed, turn.failed);
  if (lane < ports.ranks) store_word(ports.slab[lane], turn.failed);
  if (lane == 0) {
    if (load_word(ports.report) == 0) store_word(ports.report, turn.failed);
    __threadfence_system();
    // A block that no longer waits for anything is done in much less.
    const std::uint64_t grace = known ? 0 : greater(ports.patience / 512, std::uint64_t{1'000'000});
    const std::uint64_t until = nanoseconds() + grace;
    while (nanoseconds() < until) {
    }
  }
  __syncwarp();
  return true;
}

}  // namespace detail

}  // namespace headwise::inline v0
