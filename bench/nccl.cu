// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// lse_reduce_scatter and all_gather_heads over NCCL, one thread for each GPU of this host, beside
// the same bytes' bare exchange. Collectives of NCCL that follow each other in a graph cost some 5
// us more than with a kernel between them, so the bare ones are spaced by a kernel of one element,
// whose own time is subtracted. An operation takes as long as on the slowest rank; the variants of
// a shape take turns, and each figure is a median over all turns.

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/cuda_executor.cuh>
#include <headwise/transport/nccl.cuh>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

using namespace headwise;

namespace {

constexpr int operations = 40;  // of a graph
constexpr memory_space device = memory_space::device;

void require(cudaError_t said, int line = __builtin_LINE()) {
  if (said == cudaSuccess) return;
  std::printf("nccl.cu:%d: %s\n", line, cudaGetErrorString(said));
  std::exit(1);
}
void require(ncclResult_t said, int line = __builtin_LINE()) {
  if (said == ncclSuccess) return;
  std::printf("nccl.cu:%d: %s\n", line, ncclGetErrorString(said));
  std::exit(1);
}
void require(const status& came_to, int line = __builtin_LINE()) {
  if (came_to.ok()) return;
  char text[512];
  format_status(came_to, text, sizeof text);
  std::printf("nccl.cu:%d: %s\n", line, text);
  std::exit(1);
}

template <int>
__global__ void add_one(float* to) {
  *to += 1.0f;
}

/// Keeps a stream busy while the host enqueues what is timed behind it.
template <int>
__global__ void hold(long long nanoseconds) {
  long long start = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  for (long long now = start; now - start < nanoseconds;) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  }
}

/// Random words whose bf16 halves, and whose floats, are of moderate size.
template <int>
__global__ void fill(unsigned* words, index_t count, unsigned seed) {
  for (index_t i = index_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += index_t{gridDim.x} * blockDim.x) {
    unsigned x = static_cast<unsigned>(i) * 2654435761u + seed;
    x = (x ^ (x >> 15)) * 2246822519u;
    words[i] = ((x ^ (x >> 13)) & 0x0fffbfffu) | 0x30003000u;
  }
}

struct rank_state {
  int rank = 0;
  int ranks = 0;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
  std::byte* partial = nullptr;
  float* lses = nullptr;
  bf16* output = nullptr;
  std::byte* workspace = nullptr;
  index_t workspace_bytes = 0;
  float* spacer = nullptr;
  // In symmetric windows: a query, a gathered one, and a workspace.
  bf16* local_in_window = nullptr;
  bf16* gathered_in_window = nullptr;
  std::byte* workspace_in_window = nullptr;

  std::span<std::byte> memory() const {
    return {workspace, static_cast<std::size_t>(workspace_bytes)};
  }
};

struct variant {
  std::string name;
  std::function<void(const rank_state&)> operation;
};

/// All ranks of all variants: graphs, and what a turn took.
class comparison {
 public:
  comparison(std::vector<rank_state>& ranks, const std::vector<variant>& variants)
      : times_(variants.size()) {
    const auto count = static_cast<std::ptrdiff_t>(ranks.size());
    std::barrier together(count);
    std::vector<std::vector<float>> last(ranks.size(), std::vector<float>(variants.size()));
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      threads.emplace_back([&, r] {
        const rank_state& me = ranks[r];
        require(cudaSetDevice(me.rank));
        std::vector<cudaGraphExec_t> graphs;
        for (const variant& one : variants) {
          one.operation(me);  // connects peers and loads kernels
          require(cudaStreamSynchronize(me.stream));
          together.arrive_and_wait();
          cudaGraph_t captured = nullptr;
          require(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeThreadLocal));
          for (int i = 0; i < operations; ++i) one.operation(me);
          require(cudaStreamEndCapture(me.stream, &captured));
          graphs.emplace_back();
          require(cudaGraphInstantiate(&graphs.back(), captured, 0));
          require(cudaGraphDestroy(captured));
          together.arrive_and_wait();
        }
        cudaEvent_t start = nullptr;
        cudaEvent_t end = nullptr;
        require(cudaEventCreate(&start));
        require(cudaEventCreate(&end));
        constexpr int warm = 2;
        for (int turn = -warm; turn < turns; ++turn) {
          for (std::size_t v = 0; v < graphs.size(); ++v) {
            together.arrive_and_wait();
            hold<0><<<1, 1, 0, me.stream>>>(100000);
            require(cudaEventRecord(start, me.stream));
            require(cudaGraphLaunch(graphs[v], me.stream));
            require(cudaEventRecord(end, me.stream));
            require(cudaEventSynchronize(end));
            require(cudaEventElapsedTime(&last[r][v], start, end));
          }
          together.arrive_and_wait();
          if (r == 0 && turn >= 0) {
            for (std::size_t v = 0; v < graphs.size(); ++v) {
              float slowest = 0;
              for (const auto& of_rank : last) slowest = (std::max)(slowest, of_rank[v]);
              times_[v].push_back(double{slowest} * 1000.0 / operations);
            }
          }
          together.arrive_and_wait();
        }
        require(cudaEventDestroy(start));
        require(cudaEventDestroy(end));
        for (const cudaGraphExec_t graph : graphs) require(cudaGraphExecDestroy(graph));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static double median(std::vector<double> of) {
    std::sort(of.begin(), of.end());
    return of[of.size() / 2];
  }
  double time(std::size_t v) const { return median(times_[v]); }
  /// Median of the ratios of each turn.
  double ratio(std::size_t v, std::size_t to) const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < times_[v].size(); ++i) {
      ratios.push_back(times_[v][i] / times_[to][i]);
    }
    return median(ratios);
  }

 private:
  static constexpr int turns = 31;
  std::vector<std::vector<double>> times_;
};

/// Heads [0, Heads) of rows of Tile heads.
template <index_t Heads, index_t Tile>
using rows_of = layout<dim<axis::token, dynamic_extent, Tile * 512>, dim<axis::head, Heads, 512>,
                       dim<axis::head_dim, 512, 1>>;
template <index_t Heads, index_t Tile>
using lses_of = layout<dim<axis::token, dynamic_extent, Tile>, dim<axis::head, Heads, 1>>;

template <index_t Heads, index_t Tile>
auto partial_of(const rank_state& me, index_t tokens) {
  return view<bf16, rows_of<Heads, Tile>, device>(
      reinterpret_cast<bf16*>(me.partial),
      {dim<axis::token, dynamic_extent, Tile * 512>(tokens), {}, {}});
}
template <index_t Heads, index_t Tile>
auto lse_of(const rank_state& me, index_t tokens) {
  return view<float, lses_of<Heads, Tile>, device>(
      me.lses, {dim<axis::token, dynamic_extent, Tile>(tokens), {}});
}
auto output_of(const rank_state& me, index_t tokens, index_t heads) {
  return make_view<device>(me.output, packed(extent<axis::token>(tokens), extent<axis::head>(heads),
                                             extent<axis::head_dim, 512>()));
}

template <index_t Heads, index_t Tile>
variant reduce_scatter(const char* name, index_t tokens, nccl_method method,
                       index_t straight_from = INT64_MAX, bool overlap = false) {
  return {name, [=](const rank_state& me) {
            auto group = nccl::make(me.communicator, me.stream, {},
                                    {.method = method, .straight_from = straight_from});
            require(group.why());
            nccl transport = group.value();
            require(lse_reduce_scatter<log_base::e>(
                cuda_executor{{me.stream, overlap}}, transport, partial_of<Heads, Tile>(me, tokens),
                lse_of<Heads, Tile>(me, tokens), output_of(me, tokens, Heads / me.ranks), none,
                me.memory()));
          }};
}

void space(const rank_state& me) { add_one<0><<<1, 1, 0, me.stream>>>(me.spacer); }

template <index_t Heads, index_t Tile>
void bench_reduce_scatter(std::vector<rank_state>& ranks, index_t tokens, std::FILE* csv) {
  const auto count = static_cast<index_t>(ranks.size());
  const message_plan plan = message_plan::make<bf16>({count, tokens, Heads / count, 512}).value();
  const auto bytes = static_cast<std::size_t>(plan.peer_pitch);
  std::vector<variant> variants{
      reduce_scatter<Heads, Tile>("lse_reduce_scatter", tokens, nccl_method::send_receive),
      {"bare send and receive, spaced",
       [=](const rank_state& me) {
         require(ncclGroupStart());
         for (int peer = 0; peer < me.ranks; ++peer) {
           if (peer == me.rank) continue;
           const index_t at = peer * plan.peer_pitch;
           require(ncclSend(me.workspace + at, bytes, ncclUint8, peer, me.communicator, me.stream));
           require(ncclRecv(me.workspace + plan.total_bytes + at, bytes, ncclUint8, peer,
                            me.communicator, me.stream));
         }
         require(ncclGroupEnd());
         space(me);
       }},
      {"spacer", [](const rank_state& me) { space(me); }},
      {"pack",
       [=](const rank_state& me) {
         require(kernel::pack<log_base::e>(partial_of<Heads, Tile>(me, tokens),
                                           lse_of<Heads, Tile>(me, tokens), plan, me.workspace,
                                           me.stream, none, me.rank));
       }},
      {"lse_combine",
       [=](const rank_state& me) {
         const shard own{detail::heads_of(partial_of<Heads, Tile>(me, tokens), me.ranks, me.rank),
                         detail::heads_of(lse_of<Heads, Tile>(me, tokens), me.ranks, me.rank)};
         require(kernel::lse_combine<log_base::e>(
             exchanged_shards{received_shards<bf16>{plan, me.workspace + plan.total_bytes}, own,
                              me.rank},
             output_of(me, tokens, Heads / me.ranks), me.stream));
       }},
      reduce_scatter<Heads, Heads>("lse_reduce_scatter, packed input", tokens,
                                   nccl_method::send_receive),
  };
  variants.push_back(reduce_scatter<Heads, Tile>("lse_reduce_scatter, launches overlap", tokens,
                                                 nccl_method::send_receive, INT64_MAX, true));
  if (tokens == 1) {
    variants.push_back(reduce_scatter<Heads, Tile>("lse_reduce_scatter, straight, launches overlap",
                                                   tokens, nccl_method::send_receive, 0, true));
  }
  const comparison of(ranks, variants);
  const double bare = of.time(1) - of.time(2);
  std::printf("%4lldx%-3lld %8.2f %8.2f %8.2f %6.2f %8.2f %8.2f %8.3f", (long long)tokens,
              (long long)Heads, of.time(0), bare, of.time(0) - bare, of.time(0) / bare, of.time(3),
              of.time(4), of.ratio(0, 5));
  for (std::size_t v = 6; v < variants.size(); ++v) std::printf(" %8.2f", of.time(v));
  std::printf("\n");
  if (csv != nullptr) {
    for (std::size_t v = 0; v < variants.size(); ++v) {
      std::fprintf(csv, "nccl,%lldx%lld of %lld N=%lld,\"%s\",warm,%.3f,,,,%.4f,%lld,,\n",
                   (long long)tokens, (long long)Heads, (long long)Tile, (long long)count,
                   variants[v].name.c_str(), of.time(v), of.ratio(v, 0),
                   (long long)plan.peer_pitch);
    }
    std::fflush(csv);
  }
}

/// Head-major, where each peer's part is one run: two transfers without a pack, or one behind a
/// pack.
void bench_head_major(std::vector<rank_state>& ranks, index_t tokens, std::FILE* csv) {
  constexpr index_t heads = 128;
  const auto way = [=](const char* name, nccl_method method, index_t straight_from) -> variant {
    return {name, [=](const rank_state& me) {
              auto group = nccl::make(me.communicator, me.stream, {},
                                      {.method = method, .straight_from = straight_from});
              require(group.why());
              nccl transport = group.value();
              const auto partial =
                  make_view<device>(reinterpret_cast<bf16*>(me.partial),
                                    packed(extent<axis::head, heads>(), extent<axis::token>(tokens),
                                           extent<axis::head_dim, 512>()));
              const auto lses = make_view<device>(
                  me.lses, packed(extent<axis::head, heads>(), extent<axis::token>(tokens)));
              require(lse_reduce_scatter<log_base::e>(
                  cuda_executor{{me.stream, true}}, transport, partial, lses,
                  output_of(me, tokens, heads / me.ranks), none, me.memory()));
            }};
  };
  const std::vector<variant> variants {
    way("head-major, straight, launches overlap", nccl_method::send_receive, 0),
        way("head-major, packed, launches overlap", nccl_method::send_receive, INT64_MAX),
#if NCCL_VERSION_CODE >= 22800
        way("head-major, packed, ncclAlltoAll, launches overlap", nccl_method::all_to_all,
            INT64_MAX),
#endif
  };
  const comparison of(ranks, variants);
  std::printf("head-major %4lld", (long long)tokens);
  for (std::size_t v = 0; v < variants.size(); ++v) std::printf(" %8.2f", of.time(v));
  std::printf("\n");
  if (csv == nullptr) return;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    std::fprintf(csv, "nccl,%lldx128 head-major N=%zu,\"%s\",warm,%.3f,,,,%.4f,,,\n",
                 (long long)tokens, ranks.size(), variants[v].name.c_str(), of.time(v),
                 of.ratio(v, 0));
  }
  std::fflush(csv);
}

void bench_gather(std::vector<rank_state>& ranks, index_t tokens, std::FILE* csv) {
  constexpr index_t heads = 64;
  constexpr index_t width = 576;
  const index_t part = tokens * heads * width;
  const auto gather = [=](const char* name, bool windows) -> variant {
    return {name, [=](const rank_state& me) {
              auto group = nccl::make(me.communicator, me.stream);
              require(group.why());
              nccl transport = group.value();
              const auto rows = [&](bf16* data, index_t count) {
                return make_view<device>(
                    data, packed(extent<axis::token>(tokens), extent<axis::head>(count),
                                 extent<axis::head_dim, width>()));
              };
              std::byte* const workspace = windows ? me.workspace_in_window : me.workspace;
              require(all_gather_heads(
                  cuda_executor{{me.stream, true}}, transport,
                  rows(windows ? me.local_in_window : reinterpret_cast<bf16*>(me.partial), heads),
                  rows(windows ? me.gathered_in_window : me.output, heads * me.ranks),
                  {workspace, static_cast<std::size_t>(me.workspace_bytes)}));
            }};
  };
  const std::vector<variant> variants{
      gather("all_gather_heads, launches overlap", false),
      {"bare ncclAllGather, spaced",
       [=](const rank_state& me) {
         require(ncclAllGather(me.partial, me.workspace, static_cast<std::size_t>(2 * part),
                               ncclUint8, me.communicator, me.stream));
         space(me);
       }},
      {"spacer", [](const rank_state& me) { space(me); }},
      gather("all_gather_heads, symmetric windows, launches overlap", true),
  };
  const comparison of(ranks, variants);
  const double bare = of.time(1) - of.time(2);
  std::printf("gather %4lld %8.2f %8.2f %8.2f %6.2f %8.2f\n", (long long)tokens, of.time(0), bare,
              of.time(0) - bare, of.time(0) / bare, of.time(3));
  if (csv != nullptr) {
    for (std::size_t v = 0; v < variants.size(); ++v) {
      std::fprintf(csv, "nccl,gather %lldx64x576 N=%zu,\"%s\",warm,%.3f,,,,%.4f,%lld,,\n",
                   (long long)tokens, ranks.size(), variants[v].name.c_str(), of.time(v),
                   of.ratio(v, 0), (long long)(2 * part));
    }
    std::fflush(csv);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) {
    std::puts("fewer than two GPUs here");
    return 77;
  }
  bool quick = false;
  std::FILE* csv = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) quick = true;
    if (std::strcmp(argv[i], "--csv") == 0 && i + 1 < argc) csv = std::fopen(argv[++i], "w");
  }
  if (csv != nullptr) {
    std::fputs(
        "bench,shape,variant,temperature,us,noise_percent,gb_per_s,share_of_copy,ratio_to_baseline,"
        "bytes,blocks,threads\n",
        csv);
  }
  const int count = (std::min)(devices, 2);
  std::vector<ncclComm_t> communicators(static_cast<std::size_t>(count));
  require(ncclCommInitAll(communicators.data(), count, nullptr));
  std::vector<rank_state> ranks(static_cast<std::size_t>(count));
  constexpr index_t most = 256;
  for (int r = 0; r < count; ++r) {
    rank_state& me = ranks[static_cast<std::size_t>(r)];
    me.rank = r;
    me.ranks = count;
    me.communicator = communicators[static_cast<std::size_t>(r)];
    require(cudaSetDevice(r));
    require(cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking));
    const index_t partial_bytes = most * 144 * 512 * 2;
    me.workspace_bytes = most * 128 * 576 * 2 * 3;
    const auto allocate = [](auto*& to, index_t bytes) {
      require(cudaMalloc(reinterpret_cast<void**>(&to), static_cast<std::size_t>(bytes)));
      fill<0><<<1024, 256>>>(reinterpret_cast<unsigned*>(to), bytes / 4, 17);
      require(cudaGetLastError());
    };
    allocate(me.partial, partial_bytes);
    allocate(me.lses, most * 144 * 4);
    allocate(me.output, most * 128 * 576 * 2);
    allocate(me.workspace, me.workspace_bytes);
    allocate(me.spacer, 256);
    require(cudaDeviceSynchronize());
  }
  // Registering is collective: a thread for each rank.
  std::vector<nccl_window> windows(static_cast<std::size_t>(3 * count));
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      rank_state& me = ranks[static_cast<std::size_t>(r)];
      require(cudaSetDevice(r));
      const auto in_window = [&](auto*& to, index_t bytes, int which) {
        const auto size = static_cast<std::size_t>(bytes);
        require(ncclMemAlloc(reinterpret_cast<void**>(&to), size));
        auto window = nccl_window::make(me.communicator, {reinterpret_cast<std::byte*>(to), size});
        require(window.why());
        windows[static_cast<std::size_t>(3 * r + which)] = std::move(window).value();
      };
      in_window(me.local_in_window, most * 64 * 576 * 2, 0);
      in_window(me.gathered_in_window, most * 128 * 576 * 2, 1);
      in_window(me.workspace_in_window, me.workspace_bytes, 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, 0));
  char about[96] = {};
  const auto told = [&] {
    require(cudaSetDevice(0));
    auto group = nccl::make(ranks[0].communicator, ranks[0].stream);
    require(group.why());
    group.value().describe(about, sizeof about);
  };
  told();
  std::printf("%d x %s, %s; graphs of %d operations, medians of the slowest rank, us\n", count,
              properties.name, about, operations);
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
