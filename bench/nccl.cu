// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// lse_reduce_scatter and all_gather_heads over NCCL, one thread for each of two GPUs of this host,
// beside the same bytes' bare exchange. Collectives of NCCL that follow each other in a graph cost
// some 5 us more than with a kernel between them, so the bare ones are spaced by a kernel of one
// element, whose own time is subtracted. ranks.cuh says how it is timed.

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/cuda_executor.cuh>
#include <headwise/transport/nccl.cuh>

#include "harness.cuh"
#include "operands.cuh"
#include "ranks.cuh"

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace headwise;
using bench::check;
using bench::on_device;
using bench::width;

void check(ncclResult_t said, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (said != ncclSuccess) bench::die(file, line, ncclGetErrorString(said));
}

template <int>
__global__ void add_one(float* to) {
  *to += 1.0f;
}

struct rank_state {
  int rank = 0;
  int ranks = 0;
  int device = 0;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
  std::byte* partial = nullptr;
  float* lses = nullptr;
  bf16* output = nullptr;
  std::byte* workspace = nullptr;
  index_t workspace_bytes = 0;
  float* spacer = nullptr;
  // In symmetric windows (NCCL 2.27.3): a query, a gathered one, and a workspace.
  bf16* local_in_window = nullptr;
  bf16* gathered_in_window = nullptr;
  std::byte* workspace_in_window = nullptr;

  std::span<std::byte> memory() const {
    return {workspace, static_cast<std::size_t>(workspace_bytes)};
  }
};

using variant = bench::rank_variant<rank_state>;
using comparison = bench::rank_comparison<rank_state>;
using bench::shape_of;

nccl transport_of(const rank_state& me, const nccl_options& options = {}) {
  return bench::checked(nccl::make(me.communicator, me.stream, {}, options));
}

/// `partial_of(me)` is a pair of partial output and LSE, whose `heads` are those of all ranks.
template <class PartialOf>
variant reduce_scatter(const char* name, index_t tokens, index_t heads, PartialOf partial_of,
                       const nccl_options& options, bool overlap) {
  return {name, [=](const rank_state& me) {
            nccl transport = transport_of(me, options);
            const auto [output, lse] = partial_of(me);
            check(lse_reduce_scatter<log_base::e>(
                cuda_executor{{me.stream, overlap}}, transport, output, lse,
                bench::output_view(me.output, tokens, heads / me.ranks), none, me.memory()));
          }};
}

/// Heads [0, Heads) of rows of Tile heads.
template <index_t Heads, index_t Tile>
auto partial_of(const rank_state& me, index_t tokens) {
  return std::pair(bench::partial_output<Heads, Tile>(reinterpret_cast<bf16*>(me.partial), tokens),
                   bench::partial_lse<Heads, Tile>(me.lses, tokens));
}
template <index_t Heads, index_t Tile>
variant reduce_scatter(const char* name, index_t tokens, bool overlap = false,
                       index_t straight_from = INT64_MAX) {
  return reduce_scatter(
      name, tokens, Heads,
      [tokens](const rank_state& me) { return partial_of<Heads, Tile>(me, tokens); },
      {.method = nccl_method::send_receive, .straight_from = straight_from}, overlap);
}

void space(const rank_state& me) { add_one<0><<<1, 1, 0, me.stream>>>(me.spacer); }

template <index_t Heads, index_t Tile>
void bench_reduce_scatter(const std::vector<rank_state>& ranks, index_t tokens, std::FILE* csv) {
  const auto count = static_cast<index_t>(ranks.size());
  const message_plan plan =
      bench::checked(message_plan::make<bf16>({count, tokens, Heads / count, width}));
  const auto bytes = static_cast<std::size_t>(plan.peer_pitch);
  std::vector<variant> variants{
      reduce_scatter<Heads, Tile>("lse_reduce_scatter", tokens),
      {"bare send and receive, spaced",
       [=](const rank_state& me) {
         check(ncclGroupStart());
         for (int peer = 0; peer < me.ranks; ++peer) {
           if (peer == me.rank) continue;
           const index_t at = peer * plan.peer_pitch;
           check(ncclSend(me.workspace + at, bytes, ncclUint8, peer, me.communicator, me.stream));
           check(ncclRecv(me.workspace + plan.total_bytes + at, bytes, ncclUint8, peer,
                          me.communicator, me.stream));
         }
         check(ncclGroupEnd());
         space(me);
       }},
      {"spacer", [](const rank_state& me) { space(me); }},
      {"pack",
       [=](const rank_state& me) {
         const auto [output, lse] = partial_of<Heads, Tile>(me, tokens);
         check(
             kernel::pack<log_base::e>(output, lse, plan, me.workspace, me.stream, none, me.rank));
       }},
      {"lse_combine",
       [=](const rank_state& me) {
         const auto [output, lse] = partial_of<Heads, Tile>(me, tokens);
         const shard own{headwise::detail::heads_of(output, me.ranks, me.rank),
                         headwise::detail::heads_of(lse, me.ranks, me.rank)};
         check(kernel::lse_combine<log_base::e>(
             exchanged_shards{received_shards<bf16>{plan, me.workspace + plan.total_bytes}, own,
                              me.rank},
             bench::output_view(me.output, tokens, Heads / me.ranks), me.stream));
       }},
      reduce_scatter<Heads, Heads>("lse_reduce_scatter, packed input", tokens),
      reduce_scatter<Heads, Tile>("lse_reduce_scatter, launches overlap", tokens, true),
  };
  if (tokens == 1) {
    variants.push_back(reduce_scatter<Heads, Tile>("lse_reduce_scatter, straight, launches overlap",
                                                   tokens, true, 0));
  }
  const comparison measured(ranks, variants);
  const double bare = measured.time(1) - measured.time(2);
  std::printf("%4lldx%-3lld %8.2f %8.2f %8.2f %6.2f %8.2f %8.2f %8.3f", (long long)tokens,
              (long long)Heads, measured.time(0), bare, measured.time(0) - bare,
              measured.time(0) / bare, measured.time(3), measured.time(4), measured.ratio(0, 5));
  for (std::size_t v = 6; v < variants.size(); ++v) std::printf(" %8.2f", measured.time(v));
  std::printf("\n");
  write(csv, "nccl",
        shape_of(tokens, Heads) + " of " + std::to_string(Tile) + " N=" + std::to_string(count),
        variants, measured, plan.peer_pitch);
}

/// Head-major, where each peer's part is one run: two transfers without a pack, or one behind a
/// pack.
void bench_head_major(const std::vector<rank_state>& ranks, index_t tokens, std::FILE* csv) {
  constexpr index_t heads = 128;
  const auto count = static_cast<index_t>(ranks.size());
  const auto way = [=](const char* name, nccl_method method, index_t straight_from) {
    const auto partial_of = [tokens](const rank_state& me) {
      const extent<axis::head, heads> by_head;
      const extent<axis::token> by_token(tokens);
      return std::pair(on_device(reinterpret_cast<bf16*>(me.partial),
                                 packed(by_head, by_token, extent<axis::head_dim, width>())),
                       on_device(me.lses, packed(by_head, by_token)));
    };
    return reduce_scatter(name, tokens, heads, partial_of,
                          {.method = method, .straight_from = straight_from}, true);
  };
  const std::vector<variant> variants {
    way("head-major, straight, launches overlap", nccl_method::send_receive, 0),
        way("head-major, packed, launches overlap", nccl_method::send_receive, INT64_MAX),
#if NCCL_VERSION_CODE >= 22800
        way("head-major, packed, ncclAlltoAll, launches overlap", nccl_method::all_to_all,
            INT64_MAX),
#endif
  };
  const comparison measured(ranks, variants);
  std::printf("head-major %4lld", (long long)tokens);
  for (std::size_t v = 0; v < variants.size(); ++v) std::printf(" %8.2f", measured.time(v));
  std::printf("\n");
  const message_plan plan =
      bench::checked(message_plan::make<bf16>({count, tokens, heads / count, width}));
  write(csv, "nccl", shape_of(tokens, heads) + " head-major N=" + std::to_string(count), variants,
        measured, plan.bytes_per_peer());
}

void bench_gather(const std::vector<rank_state>& ranks, index_t tokens, std::FILE* csv) {
  constexpr index_t heads = 64;
  constexpr index_t query_width = 576;
  const index_t part = tokens * heads * query_width;
  const auto gather = [=](const char* name, bool windows) -> variant {
    return {name, [=](const rank_state& me) {
              nccl transport = transport_of(me);
              const auto rows = [&](bf16* data, index_t count) {
                return on_device(data,
                                 packed(extent<axis::token>(tokens), extent<axis::head>(count),
                                        extent<axis::head_dim, query_width>()));
              };
              std::byte* const workspace = windows ? me.workspace_in_window : me.workspace;
              check(all_gather_heads(
                  cuda_executor{{me.stream, true}}, transport,
                  rows(windows ? me.local_in_window : reinterpret_cast<bf16*>(me.partial), heads),
                  rows(windows ? me.gathered_in_window : me.output, heads * me.ranks),
                  {workspace, static_cast<std::size_t>(me.workspace_bytes)}));
            }};
  };
  std::vector<variant> variants{
      gather("all_gather_heads, launches overlap", false),
      {"bare ncclAllGather, spaced",
       [=](const rank_state& me) {
         check(ncclAllGather(me.partial, me.workspace, static_cast<std::size_t>(2 * part),
                             ncclUint8, me.communicator, me.stream));
         space(me);
       }},
      {"spacer", [](const rank_state& me) { space(me); }},
  };
#if NCCL_VERSION_CODE >= 22703
  variants.push_back(gather("all_gather_heads, symmetric windows, launches overlap", true));
#endif
  const comparison measured(ranks, variants);
  const double bare = measured.time(1) - measured.time(2);
  std::printf("gather %4lld %8.2f %8.2f %8.2f %6.2f", (long long)tokens, measured.time(0), bare,
              measured.time(0) - bare, measured.time(0) / bare);
  for (std::size_t v = 3; v < variants.size(); ++v) std::printf(" %8.2f", measured.time(v));
  std::printf("\n");
  write(csv, "nccl",
        "gather " + shape_of(tokens, heads) + "x" + std::to_string(query_width) +
            " N=" + std::to_string(ranks.size()),
        variants, measured, 2 * part);
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) {
    std::puts("fewer than two GPUs here");
    return 77;
  }
  bool quick = false;
  std::string csv_name;
  for (int i = 1; i < argc; ++i) {  // ./dev gpu-bench hands on what the other benches take, too
    if (std::strcmp(argv[i], "--quick") == 0) quick = true;
    if (std::strcmp(argv[i], "--csv") == 0 && i + 1 < argc) csv_name = argv[++i];
  }
  std::FILE* const csv = bench::open_csv(csv_name);
  constexpr int count = 2;
  std::vector<ncclComm_t> communicators(static_cast<std::size_t>(count));
  check(ncclCommInitAll(communicators.data(), count, nullptr));
  std::vector<rank_state> ranks(static_cast<std::size_t>(count));
  constexpr index_t most = 256;
  for (int r = 0; r < count; ++r) {
    rank_state& me = ranks[static_cast<std::size_t>(r)];
    me.rank = r;
    me.ranks = count;
    me.device = r;
    me.communicator = communicators[static_cast<std::size_t>(r)];
    check(cudaSetDevice(r));
    check(cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking));
    me.workspace_bytes = most * 128 * 576 * 2 * 3;
    const auto allocate = [](auto*& to, index_t bytes) {
      check(cudaMalloc(reinterpret_cast<void**>(&to), static_cast<std::size_t>(bytes)));
      // Two of them are a float of that size, so that an LSE is one too.
      bench::fill(reinterpret_cast<bf16*>(to), bytes / 2, 1, 2);
    };
    allocate(me.partial, most * 144 * width * 2);
    allocate(me.lses, most * 144 * 4);
    allocate(me.output, most * 128 * 576 * 2);
    allocate(me.workspace, me.workspace_bytes);
    allocate(me.spacer, 256);
    check(cudaDeviceSynchronize());
  }
#if NCCL_VERSION_CODE >= 22703
  // Registering is collective: a thread for each rank.
  std::vector<nccl_window> windows(static_cast<std::size_t>(3 * count));
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      rank_state& me = ranks[static_cast<std::size_t>(r)];
      check(cudaSetDevice(r));
      const auto in_window = [&](auto*& to, index_t bytes, int which) {
        const auto size = static_cast<std::size_t>(bytes);
        check(ncclMemAlloc(reinterpret_cast<void**>(&to), size));
        auto window = nccl_window::make(me.communicator, {reinterpret_cast<std::byte*>(to), size});
        check(window.why());
        windows[static_cast<std::size_t>(3 * r + which)] = std::move(window).value();
      };
      in_window(me.local_in_window, most * 64 * 576 * 2, 0);
      in_window(me.gathered_in_window, most * 128 * 576 * 2, 1);
      in_window(me.workspace_in_window, me.workspace_bytes, 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
#endif
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0));
  check(cudaSetDevice(0));
  char about[96] = {};
  transport_of(ranks[0]).describe(about, sizeof about);
  std::printf("%d x %s, %s; graphs of %d operations, medians of the slowest rank, us\n", count,
              properties.name, about, comparison::operations);
  std::printf("%8s %8s %8s %8s %6s %8s %8s %8s %8s %8s\n", "BxH", "whole", "bare", "above", "ratio",
              "pack", "combine", "/packed", "overlap", "straight");
  for (const index_t tokens : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    if (quick && tokens != 1 && tokens != 16) continue;
    bench_reduce_scatter<128, 144>(ranks, tokens, csv);
  }
  for (const index_t tokens : {1, 4, 16, 64}) {
    if (quick && tokens != 1) continue;
    bench_reduce_scatter<22, 32>(ranks, tokens, csv);
  }
  std::printf("%15s %8s %8s %8s\n", "", "straight", "packed", "AlltoAll");
  for (const index_t tokens : {1, 4, 16, 32, 64, 128, 256}) {
    if (quick && tokens != 1) continue;
    bench_head_major(ranks, tokens, csv);
  }
  for (const index_t tokens : {1, 4, 16, 64, 256}) {
    if (quick && tokens != 1) continue;
    bench_gather(ranks, tokens, csv);
  }
  if (csv != nullptr) std::fclose(csv);
  return 0;
}
