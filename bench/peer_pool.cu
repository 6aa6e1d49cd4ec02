// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The verbs over a peer pool beside the same calls over NCCL, in the same turns. Ranks are threads:
//
//     peer_pool             one for each of two GPUs, through peer access; and what a withheld peer
//                           costs, launches, allocations
//     peer_pool --host      the same through pinned memory of the host, beside NCCL without peer
//     access peer_pool --one-card  2 to 16 ranks that share a GPU
//
// A pool for each protocol, and one with the default table; all of them stay open. ranks.cuh says
// how it is timed.

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/collective/pooled.cuh>
#include <headwise/executor/cuda_executor.cuh>
#include <headwise/transport/in_process.hpp>
#include <headwise/transport/nccl.cuh>

#include "harness.cuh"
#include "operands.cuh"
#include "ranks.cuh"

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace headwise;
using bench::check;
using bench::checked;
using bench::on_device;
using bench::width;

void check(ncclResult_t said, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (said != ncclSuccess) bench::die(file, line, ncclGetErrorString(said));
}

constexpr index_t query_width = 576;
constexpr double wire_bytes_per_us = 364e3;  // one way over 18 NVLinks, as a large copy has it

/// Which pool: that with the default table, or that of one protocol.
enum pool_index : std::size_t { by_table, by_ll, by_push, by_pull, pools_of_rank };
constexpr const char* pool_names[] = {"pool", "ll", "push", "pull"};
constexpr protocol protocols[] = {protocol::ll, protocol::ll, protocol::push, protocol::pull};

struct rank_state {
  int rank = 0;
  int ranks = 0;
  int device = 0;
  cudaStream_t stream = nullptr;
  ncclComm_t communicator = nullptr;
  std::byte* workspace = nullptr;  // of the calls over NCCL
  index_t workspace_bytes = 0;
  bf16* partial = nullptr;
  float* lses = nullptr;
  bf16* output = nullptr;
  pool_channel channels[pools_of_rank] = {};

  std::span<std::byte> memory() const {
    return {workspace, static_cast<std::size_t>(workspace_bytes)};
  }
};

using variant = bench::rank_variant<rank_state>;
using comparison = bench::rank_comparison<rank_state>;

// ---- ranks ------------------------------------------------------------------------------------

struct group_shape {
  int ranks = 2;
  int gpus = 2;
  index_t tokens = 0;     ///< most of a call
  index_t heads = 0;      ///< of all ranks, with those that no rank has
  index_t row_width = 0;  ///< most bf16 of a row that the pools move
  bool with_nccl = true;
};

/// Ranks with their operands, and pools that stay open.
template <class Memory>
class rank_group {
 public:
  explicit rank_group(const group_shape& of)
      : states(static_cast<std::size_t>(of.ranks)),
        meeting_(of.ranks, std::chrono::minutes(2)),
        pools_(std::make_unique<peer_pool<Memory>[]>(states.size() * pools_of_rank)) {
    std::vector<ncclComm_t> communicators(states.size());
    if (of.with_nccl) check(ncclCommInitAll(communicators.data(), of.ranks, nullptr));
    for (int r = 0; r < of.ranks; ++r) {
      rank_state& me = states[static_cast<std::size_t>(r)];
      me.rank = r;
      me.ranks = of.ranks;
      me.device = r % of.gpus;
      me.communicator = communicators[static_cast<std::size_t>(r)];
      check(cudaSetDevice(me.device));
      check(cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking));
      const auto allocate = [](auto*& to, index_t bytes) {
        check(cudaMalloc(reinterpret_cast<void**>(&to), static_cast<std::size_t>(bytes)));
        // Two of them are a float of that size, so that an LSE is one too.
        bench::fill(reinterpret_cast<bf16*>(to), bytes / 2, 1, 2);
      };
      const index_t rows = of.tokens * of.heads;
      allocate(me.partial, rows * of.row_width * 2);
      allocate(me.lses, rows * 4);
      allocate(me.output, rows * of.row_width * 2);
      if (of.with_nccl) {
        me.workspace_bytes = rows * of.row_width * 2 * 3;
        allocate(me.workspace, me.workspace_bytes);
      }
      check(cudaDeviceSynchronize());
    }
    pool_options options;
    options.capacity = {of.tokens, of.heads / of.ranks, of.row_width * 2, index_t{8} << 20};
    each([&](rank_state& me, bootstrap_ref ranks) {
      for (std::size_t p = 0; p < pools_of_rank; ++p) {
        const protocol_table table = protocol_table::only(protocols[p]);
        pool_options own = options;
        own.table = p == by_table ? nullptr : &table;
        check(pool_of(me, p).open(ranks, own));
        check(pool_of(me, p).prepare(ranks, {"bench"}));
        me.channels[p] = checked(pool_of(me, p).channel("bench"));
      }
    });
  }
  rank_group(const rank_group&) = delete;
  rank_group& operator=(const rank_group&) = delete;
  ~rank_group() {
    each([&](rank_state& me, bootstrap_ref ranks) {
      for (std::size_t p = pools_of_rank; p > 0; --p) check(pool_of(me, p - 1).close(ranks));
    });
    for (const rank_state& me : states) {
      check(cudaSetDevice(me.device));
      if (me.communicator != nullptr) check(ncclCommDestroy(me.communicator));
      for (void* data : {static_cast<void*>(me.partial), static_cast<void*>(me.lses),
                         static_cast<void*>(me.output), static_cast<void*>(me.workspace)}) {
        check(cudaFree(data));
      }
      check(cudaStreamDestroy(me.stream));
    }
  }

  /// work(rank, bootstrap), on a thread of each rank.
  template <class Work>
  void each(const Work& work) {
    std::vector<std::thread> threads;
    for (rank_state& me : states) {
      threads.emplace_back([&] {
        check(cudaSetDevice(me.device));
        in_process handle = checked(meeting_.rank(me.rank));
        transport_bootstrap<in_process> ranks(handle);
        work(me, bootstrap_ref(ranks));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  peer_pool<Memory>& pool_of(const rank_state& me, std::size_t which) {
    return pools_[static_cast<std::size_t>(me.rank) * pools_of_rank + which];
  }

  std::vector<rank_state> states;

 private:
  in_process_group meeting_;
  std::unique_ptr<peer_pool<Memory>[]> pools_;
};

// ---- operations -------------------------------------------------------------------------------

/// Heads [0, Heads) of rows of Tile heads.
template <index_t Heads, index_t Tile>
void pooled_reduce(const rank_state& me, std::size_t pool, index_t tokens, bool overlap) {
  check(lse_reduce_scatter<log_base::e>(me.channels[pool], on_stream{me.stream, overlap},
                                        bench::partial_output<Heads, Tile>(me.partial, tokens),
                                        bench::partial_lse<Heads, Tile>(me.lses, tokens),
                                        bench::output_view(me.output, tokens, Heads / me.ranks)));
}
template <index_t Heads, index_t Tile>
void nccl_reduce(const rank_state& me, index_t tokens) {
  nccl transport = checked(nccl::make(me.communicator, me.stream));
  check(lse_reduce_scatter<log_base::e>(cuda_executor{{me.stream, true}}, transport,
                                        bench::partial_output<Heads, Tile>(me.partial, tokens),
                                        bench::partial_lse<Heads, Tile>(me.lses, tokens),
                                        bench::output_view(me.output, tokens, Heads / me.ranks),
                                        none, me.memory()));
}

auto query_view(bf16* data, index_t tokens, index_t heads) {
  return on_device(data, packed(extent<axis::token>(tokens), extent<axis::head>(heads),
                                extent<axis::head_dim, query_width>()));
}
constexpr index_t query_heads = 64;  // of a rank
void pooled_gather(const rank_state& me, std::size_t pool, index_t tokens, bool overlap) {
  check(all_gather_heads(me.channels[pool], on_stream{me.stream, overlap},
                         query_view(me.partial, tokens, query_heads),
                         query_view(me.output, tokens, query_heads * me.ranks)));
}
void nccl_gather(const rank_state& me, index_t tokens) {
  nccl transport = checked(nccl::make(me.communicator, me.stream));
  check(all_gather_heads(cuda_executor{{me.stream, true}}, transport,
                         query_view(me.partial, tokens, query_heads),
                         query_view(me.output, tokens, query_heads * me.ranks), me.memory()));
}

/// Whether a call of the pool of a protocol goes that way, and not another for want of room.
bool fits(const rank_state& me, std::size_t pool, pool_operation operation, index_t rows,
          index_t row_bytes) {
  const auto chosen = me.channels[pool].choose(operation, {rows, row_bytes});
  return chosen.ok() && chosen.value() == protocols[pool];
}

void check_channels(const std::vector<rank_state>& ranks) {
  for (const rank_state& me : ranks) {
    for (const pool_channel& channel : me.channels) check(channel.state());
  }
}

// ---- two GPUs ---------------------------------------------------------------------------------

/// Prints a line: the bare wire, NCCL, the pool, and each protocol; what a view with gaps costs;
/// and kernels per call.
void print_line(const std::string& shape, const std::vector<variant>& variants,
                const comparison& measured, index_t bytes) {
  const auto find = [&](const char* name) {
    std::size_t v = 0;
    while (v < variants.size() && variants[v].name != name) ++v;
    return v;
  };
  const auto print_time = [&](const char* name) {
    const std::size_t v = find(name);
    if (v == variants.size()) {
      std::printf(" %8s", "-");
    } else {
      std::printf(" %8.2f", measured.time(v));
    }
  };
  std::printf("%-22s %8.2f", shape.c_str(), static_cast<double>(bytes) / wire_bytes_per_us);
  for (const char* name :
       {"nccl, launches overlap", "pool", "pool, launches overlap", "ll, launches overlap",
        "push, launches overlap", "pull, launches overlap"}) {
    print_time(name);
  }
  const std::size_t best = find("pool, launches overlap");
  std::printf(" %8.3f %8.3f", measured.ratio(find("pool"), 0), measured.ratio(best, 0));
  const std::size_t from_packed = find("pool, packed input, launches overlap");
  if (from_packed == variants.size()) {
    std::printf(" %8s", "-");
  } else {
    std::printf(" %8.3f", measured.ratio(best, from_packed));
  }
  std::printf("  %g %g\n", measured.launches(0), measured.launches(best));
  std::fflush(stdout);
}
void print_heading(const char* about) {
  std::printf("\n%s\n%-22s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s  %s\n", about, "BxH", "wire",
              "nccl", "pool", "overlap", "ll", "push", "pull", "/nccl", "ov/nccl", "/packed",
              "kernels a call: nccl, pool");
}

/// call(me, pool, overlap), with the default table and with each protocol that has room.
template <class Call>
void add_pools(std::vector<variant>& variants, const rank_state& any, pool_operation operation,
               index_t rows, index_t row_bytes, const Call& call) {
  variants.push_back({"pool", [=](const rank_state& me) { call(me, by_table, false); }});
  for (std::size_t p = 0; p < pools_of_rank; ++p) {
    if (p != by_table && !fits(any, p, operation, rows, row_bytes)) continue;
    variants.push_back({std::string(pool_names[p]) + ", launches overlap",
                        [=](const rank_state& me) { call(me, p, true); }});
  }
}

template <index_t Heads, index_t Tile>
void bench_reduce_scatter(const std::vector<rank_state>& ranks, index_t tokens, std::FILE* csv,
                          const char* name) {
  const auto count = static_cast<index_t>(ranks.size());
  const index_t rows = tokens * Heads / count;
  std::vector<variant> variants{{"nccl, launches overlap", [=](const rank_state& me) {
                                   nccl_reduce<Heads, Tile>(me, tokens);
                                 }}};
  add_pools(variants, ranks[0], pool_operation::reduce_scatter, rows, width * 2,
            [=](const rank_state& me, std::size_t pool, bool overlap) {
              pooled_reduce<Heads, Tile>(me, pool, tokens, overlap);
            });
  variants.push_back({"pool, packed input, launches overlap", [=](const rank_state& me) {
                        pooled_reduce<Heads, Heads>(me, by_table, tokens, true);
                      }});
  const comparison measured(ranks, variants);
  check_channels(ranks);
  const std::string shape = bench::shape_of(tokens, Heads) + " of " + std::to_string(Tile);
  const index_t bytes = rows * (width * 2 + index_t{sizeof(float)});
  print_line(shape, variants, measured, bytes);
  write(csv, name, shape + " N=" + std::to_string(count), variants, measured, bytes);
}

void bench_gather(const std::vector<rank_state>& ranks, index_t tokens, std::FILE* csv,
                  const char* name) {
  const index_t rows = tokens * query_heads;
  std::vector<variant> variants{
      {"nccl, launches overlap", [=](const rank_state& me) { nccl_gather(me, tokens); }}};
  add_pools(variants, ranks[0], pool_operation::all_gather, rows, query_width * 2,
            [=](const rank_state& me, std::size_t pool, bool overlap) {
              pooled_gather(me, pool, tokens, overlap);
            });
  const comparison measured(ranks, variants);
  check_channels(ranks);
  const std::string shape =
      "gather " + bench::shape_of(tokens, query_heads) + "x" + std::to_string(query_width);
  const index_t bytes = rows * query_width * 2;
  print_line(shape, variants, measured, bytes);
  write(csv, name, shape + " N=" + std::to_string(ranks.size()), variants, measured, bytes);
}

/// What calls leave behind in the memory of the GPUs: nothing.
template <class Memory>
void count_allocations(rank_group<Memory>& group, index_t most) {
  constexpr int rounds = 50;
  std::barrier together(static_cast<std::ptrdiff_t>(group.states.size()));
  std::vector<long long> taken(group.states.size());
  std::vector<int> calls(group.states.size());
  group.each([&](rank_state& me, bootstrap_ref) {
    const auto round = [&] {
      int made = 0;
      for (std::size_t p = 0; p < pools_of_rank; ++p) {
        for (const index_t tokens : {index_t{1}, index_t{16}, most}) {
          pooled_reduce<128, 144>(me, p, tokens, true);
          pooled_gather(me, p, tokens, true);
          made += 2;
        }
      }
      check(cudaStreamSynchronize(me.stream));
      return made;
    };
    const auto free_bytes = [&] {
      std::size_t free = 0;
      std::size_t total = 0;
      together.arrive_and_wait();
      check(cudaMemGetInfo(&free, &total));
      together.arrive_and_wait();
      return static_cast<long long>(free);
    };
    const auto which = static_cast<std::size_t>(me.rank);
    round();
    const long long before = free_bytes();
    for (int i = 0; i < rounds; ++i) calls[which] += round();
    taken[which] = before - free_bytes();
  });
  check_channels(group.states);
  for (const rank_state& me : group.states) {
    const auto which = static_cast<std::size_t>(me.rank);
    std::printf("rank %d: %d calls took %lld bytes of its GPU; a channel has %.1f MiB\n", me.rank,
                calls[which], taken[which],
                static_cast<double>(group.pool_of(me, by_table).bytes_of_channel()) / 0x1p20);
  }
}

/// Rank 1 does not make a call. How long rank 0 takes to say so, and whether it is right
/// afterwards.
template <class Memory>
void bench_timeout(rank_group<Memory>& group, std::FILE* csv) {
  using clock = std::chrono::steady_clock;
  constexpr double limit_ms = 200;
  constexpr index_t tokens = 16;
  std::printf("\nA withheld peer; limit %g ms\n", limit_ms);
  for (const std::size_t p : {by_ll, by_push, by_pull}) {
    double took_ms = 0;
    status said{};
    bool right[2] = {};
    std::barrier together(2);
    group.each([&](rank_state& me, bootstrap_ref ranks) {
      const protocol_table table = protocol_table::only(protocols[p]);
      pool_options options;
      options.capacity = {tokens, 64, width * 2};
      options.timeout = std::chrono::milliseconds(static_cast<int>(limit_ms));
      options.table = &table;
      peer_pool<Memory> pool;
      check(pool.open(ranks, options));
      check(pool.prepare(ranks, {"time-out"}));
      rank_state own = me;
      own.channels[p] = checked(pool.channel("time-out"));
      std::vector<std::byte> first(static_cast<std::size_t>(tokens * 64 * width * 2));
      std::vector<std::byte> again(first.size());
      const auto call = [&] { pooled_reduce<128, 144>(own, p, tokens, false); };
      const auto right_call = [&](std::vector<std::byte>& result) {
        together.arrive_and_wait();
        check(cudaMemset(me.output, 0xff, result.size()));
        check(cudaDeviceSynchronize());
        together.arrive_and_wait();
        call();
        check(cudaStreamSynchronize(me.stream));
        together.arrive_and_wait();
        check(cudaMemcpy(result.data(), me.output, result.size(), cudaMemcpyDeviceToHost));
        check(own.channels[p].state());
      };
      right_call(first);
      together.arrive_and_wait();
      if (me.rank == 0) {
        const auto start = clock::now();
        call();
        check(cudaStreamSynchronize(me.stream));
        took_ms = std::chrono::duration<double, std::milli>(clock::now() - start).count();
        said = own.channels[p].state();
      }
      check(pool.reset(ranks));
      right_call(again);
      right[me.rank] = std::memcmp(first.data(), again.data(), first.size()) == 0;
      check(pool.close(ranks));
    });
    char text[512];
    format_status(said, text, sizeof text);
    const bool named = said.code == errc::timed_out && said.got == 1 && said.expected == 0;
    std::printf("%-5s %8.2f ms, %.3f of the limit; %s\n      %s; after reset(): %s\n",
                pool_names[p], took_ms, took_ms / limit_ms, text,
                named ? "named rightly" : "NOT NAMED RIGHTLY",
                right[0] && right[1] ? "the same bits as before" : "OTHER BITS THAN BEFORE");
    if (csv != nullptr) {
      std::fprintf(csv, "peer_pool,time-out of 200 ms N=2,%s,warm,%.1f,,,,%.4f,,,\n", pool_names[p],
                   took_ms * 1000, took_ms / limit_ms);
    }
  }
}

std::string of_environment(const rank_state& me) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, me.device));
  char about[96] = {};
  if (me.communicator != nullptr) {
    checked(nccl::make(me.communicator, me.stream)).describe(about, sizeof about);
  }
  return std::string(properties.name) + (about[0] != '\0' ? std::string(", ") + about : "");
}

void run_two_gpus(bool quick, std::FILE* csv) {
  constexpr index_t most = 256;
  rank_group<peer_access_memory> group({2, 2, most, 144, query_width, true});
  const std::vector<rank_state>& ranks = group.states;
  std::printf(
      "2 x %s, pools through %s; graphs of %d operations, medians of the slowest rank, us\n",
      of_environment(ranks[0]).c_str(),
      to_string(group.pool_of(ranks[0], by_table).memory().kind()), comparison::operations);
  print_heading("lse_reduce_scatter");
  for (const index_t tokens : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    if (quick && tokens != 1 && tokens != 16) continue;
    bench_reduce_scatter<128, 144>(ranks, tokens, csv, "peer_pool");
  }
  for (const index_t tokens : {1, 4, 16, 64}) {
    if (quick && tokens != 1) continue;
    bench_reduce_scatter<22, 32>(ranks, tokens, csv, "peer_pool");
  }
  print_heading("all_gather_heads");
  for (const index_t tokens : {1, 4, 16, 64, 256}) {
    if (quick && tokens != 1) continue;
    bench_gather(ranks, tokens, csv, "peer_pool");
  }
  std::printf("\n");
  count_allocations(group, most);
  bench_timeout(group, csv);
}

void run_host_memory(bool quick, std::FILE* csv) {
  constexpr index_t most = 64;
  rank_group<host_memory> group({2, 2, most, 144, query_width, true});
  const std::vector<rank_state>& ranks = group.states;
  std::printf(
      "2 x %s with NCCL_P2P_DISABLE=1, pools through %s; graphs of %d operations, medians of the "
      "slowest rank, us\n",
      of_environment(ranks[0]).c_str(),
      to_string(group.pool_of(ranks[0], by_table).memory().kind()), comparison::operations);
  print_heading("lse_reduce_scatter");
  for (const index_t tokens : {1, 4, 16, 64}) {
    if (quick && tokens != 1) continue;
    bench_reduce_scatter<128, 144>(ranks, tokens, csv, "peer_pool_host");
  }
}

// ---- one GPU ----------------------------------------------------------------------------------

void run_one_card(bool quick, std::FILE* csv) {
  constexpr index_t heads = 96;
  constexpr index_t tile = 112;
  constexpr index_t most = 16;
  bool headed = false;
  for (const int count : {2, 4, 6, 8, 12, 16}) {
    if (quick && count != 2 && count != 6) continue;
    rank_group<peer_access_memory> group({count, 1, most, tile, width, false});
    const std::vector<rank_state>& ranks = group.states;
    if (!headed) {
      std::printf(
          "%s, shared by N ranks, pools through %s; graphs of %d operations, medians of the "
          "slowest rank, us\n%-4s %-6s %10s %8s %8s\n",
          of_environment(ranks[0]).c_str(),
          to_string(group.pool_of(ranks[0], by_table).memory().kind()), comparison::operations, "N",
          "B", "KiB a peer", "ll", "push");
      headed = true;
    }
    for (const index_t tokens : {index_t{1}, most}) {
      std::vector<variant> variants;
      for (const std::size_t p : {by_ll, by_push}) {
        variants.push_back({pool_names[p], [=](const rank_state& me) {
                              pooled_reduce<heads, tile>(me, p, tokens, false);
                            }});
      }
      const index_t rows = tokens * heads / count;
      if (!fits(ranks[0], by_ll, pool_operation::reduce_scatter, rows, width * 2)) {
        bench::die(__FILE__, __LINE__, "ll has no room");
      }
      const comparison measured(ranks, variants);
      check_channels(ranks);
      const index_t bytes = rows * (width * 2 + index_t{sizeof(float)});
      std::printf("%-4d %-6lld %10.1f %8.2f %8.2f\n", count, static_cast<long long>(tokens),
                  static_cast<double>(bytes) / 1024, measured.time(0), measured.time(1));
      std::fflush(stdout);
      write(csv, "peer_pool_one_card",
            bench::shape_of(tokens, heads) + " of " + std::to_string(tile) +
                " N=" + std::to_string(count),
            variants, measured, bytes);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false;
  bool host = false;
  bool one_card = false;
  std::string csv_name;
  for (int i = 1; i < argc; ++i) {  // ./dev gpu-bench hands on what the other benches take, too
    if (std::strcmp(argv[i], "--quick") == 0) quick = true;
    if (std::strcmp(argv[i], "--host") == 0) host = true;
    if (std::strcmp(argv[i], "--one-card") == 0) one_card = true;
    if (std::strcmp(argv[i], "--csv") == 0 && i + 1 < argc) csv_name = argv[++i];
  }
  // Before CUDA is there: a stream of each rank that shares a GPU needs a hardware queue, and
  // nothing is loaded while a kernel waits for another rank.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  if (host) setenv("NCCL_P2P_DISABLE", "1", 1);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < (one_card ? 1 : 2)) {
    std::puts(one_card ? "no GPU here" : "fewer than two GPUs here");
    return 77;
  }
  std::FILE* const csv = bench::open_csv(csv_name);
  if (one_card) {
    run_one_card(quick, csv);
  } else if (host) {
    run_host_memory(quick, csv);
  } else {
    run_two_gpus(quick, csv);
  }
  if (csv != nullptr) std::fclose(csv);
  return 0;
}
