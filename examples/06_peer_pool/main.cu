// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The attention layers of a decode step over a peer pool: gather the heads of the query, attend to
// this rank's keys (a stand-in does), put the partial results together; 60 layers in one graph,
// which is replayed with new data and compared with the host, bit for bit. Ranks are threads: one
// for each of two GPUs where there are two, else six that share one.
//
//     06_peer_pool [--ranks N] [--gpus M] [--tokens B] [--heads H] [--layers L]
//
// Prints what a layer takes, over the pool and, with a GPU for each rank, over NCCL.

#include <headwise/collective/router.cuh>
#include <headwise/executor/host_executor.hpp>
#include <headwise/transport/in_process_cuda.cuh>
#ifdef WITH_NCCL
#include <headwise/transport/nccl.cuh>
#endif

#include "problem.hpp"

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

using namespace headwise;
using engine::operands;
using engine::problem;

namespace {

constexpr int replays_to_time = 20;

[[noreturn]] void stop(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::_Exit(1);  // other ranks may be waiting
}
void require(cudaError_t said) {
  if (said != cudaSuccess) stop("CUDA", cudaGetErrorString(said));
}
void require(const status& came_to) {
  if (came_to.ok()) return;
  char text[512];
  format_status(came_to, text, sizeof text);
  stop("Headwise", text);
}

struct options {
  problem of;
  int ranks = 0;
  int gpus = 0;
};

options parse(int argc, char** argv) {
  options chosen;
  if (argc % 2 == 0) stop(argv[argc - 1], "needs a value");
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const index_t value = std::atoll(argv[i + 1]);
    if (value < 1 || value > 65536) stop(argv[i], "from 1 to 65536");
    if (name == "--ranks")
      chosen.ranks = static_cast<int>(value);
    else if (name == "--gpus")
      chosen.gpus = static_cast<int>(value);
    else if (name == "--tokens")
      chosen.of.tokens = value;
    else if (name == "--heads")
      chosen.of.heads = value;
    else if (name == "--layers")
      chosen.of.layers = value;
    else
      stop(argv[i], "is no option");
  }
  if (chosen.ranks > max_ranks) stop("--ranks", "at most 16");
  return chosen;
}

// ---- what an engine has of its own -------------------------------------------------------------

template <memory_space Space>
HEADWISE_HD void make_query(const problem& of, const operands<Space>& at, int rank, index_t layer,
                            index_t token, index_t head, index_t d) {
  const index_t row = token * of.heads + head;
  const index_t before = ((layer - 1) * of.tokens * of.heads + row) * engine::head_dim;
  at.query[row * engine::query_dim + d] =
      engine::query_value(*at.seed, layer, token, rank * of.heads + head, d,
                          layer == 0 ? 0.0f : to_float(at.outputs[before + d % engine::head_dim]));
}

template <memory_space Space>
HEADWISE_HD void attend(const problem& of, const operands<Space>& at, int rank, index_t layer,
                        index_t token, index_t head, index_t d) {
  const index_t row = token * of.tiled() + head;
  const bf16* const query = at.gathered + row * engine::query_dim;
  const bool keys = engine::has_keys(rank, layer, token);
  at.partial[row * engine::head_dim + d] =
      keys ? engine::partial_value(rank, to_float(query[d])) : bf16{0x7fff};
  if (d != 0) return;
  at.lse[row] = keys ? engine::partial_lse(rank, to_float(query[0])) : -detail::infinity();
}

__global__ void query_kernel(problem of, operands<memory_space::device> at, int rank,
                             index_t layer) {
  for (index_t d = threadIdx.x; d < engine::query_dim; d += blockDim.x) {
    make_query(of, at, rank, layer, blockIdx.x / of.heads, blockIdx.x % of.heads, d);
  }
}
__global__ void attention_kernel(problem of, operands<memory_space::device> at, int rank,
                                 index_t layer) {
  for (index_t d = threadIdx.x; d < engine::head_dim; d += blockDim.x) {
    attend(of, at, rank, layer, blockIdx.x / of.all_heads(), blockIdx.x % of.all_heads(), d);
  }
}

/// The layers of a rank on its stream. `calls` has the two collectives.
template <class Calls>
status run_layers(const problem& of, const operands<memory_space::device>& at, int rank,
                  cudaStream_t stream, const Calls& calls) {
  for (index_t layer = 0; layer < of.layers; ++layer) {
    query_kernel<<<static_cast<unsigned>(of.tokens * of.heads), 192, 0, stream>>>(of, at, rank,
                                                                                  layer);
    const status gathered = calls.gather();
    if (!gathered.ok()) return gathered;
    attention_kernel<<<static_cast<unsigned>(of.tokens * of.all_heads()), 256, 0, stream>>>(
        of, at, rank, layer);
    const status reduced = calls.reduce(layer);
    if (!reduced.ok()) return reduced;
  }
  return detail::cuda_status(cudaGetLastError(), "layers");
}

/// The same on the host, with the ranks as threads.
status run_layers_on_host(const problem& of, const operands<memory_space::host>& at,
                          in_process& group, std::span<std::byte> workspace) {
  const auto heads = [&](const auto& tile) {
    return slice<axis::head>(tile, 0, of.all_heads()).value();
  };
  const auto each = [](index_t tokens, index_t count, index_t width, const auto& work) {
    for (index_t t = 0; t < tokens; ++t) {
      for (index_t h = 0; h < count; ++h) {
        for (index_t d = 0; d < width; ++d) work(t, h, d);
      }
    }
  };
  for (index_t layer = 0; layer < of.layers; ++layer) {
    each(of.tokens, of.heads, engine::query_dim, [&](index_t t, index_t h, index_t d) {
      make_query(of, at, group.rank(), layer, t, h, d);
    });
    const status gathered = all_gather_heads(host_executor{}, group, at.local_query(of),
                                             heads(at.gathered_query(of)), workspace);
    if (!gathered.ok()) return gathered;
    each(of.tokens, of.all_heads(), engine::head_dim,
         [&](index_t t, index_t h, index_t d) { attend(of, at, group.rank(), layer, t, h, d); });
    const status reduced = lse_reduce_scatter<log_base::e>(
        host_executor{}, group, heads(at.partial_output(of)), heads(at.partial_lses(of)),
        at.output(of, layer), at.merged_lse(of, layer), workspace);
    if (!reduced.ok()) return reduced;
  }
  return {};
}

// ---- ranks -------------------------------------------------------------------------------------

/// What the ranks have in common besides the GPUs.
struct meeting {
  explicit meeting(int ranks) : host(ranks, std::chrono::minutes(2)), together(ranks) {}

  in_process_group host;
  std::barrier<> together;
  std::vector<double> microseconds[3] = {std::vector<double>(max_ranks),
                                         std::vector<double>(max_ranks),
                                         std::vector<double>(max_ranks)};
  index_t wrong[max_ranks] = {};
};

cudaGraphExec_t instantiated(cudaGraph_t captured, cudaStream_t stream) {
  cudaGraphExec_t graph = nullptr;
  require(cudaGraphInstantiate(&graph, captured, 0));
  require(cudaGraphDestroy(captured));
  require(cudaGraphUpload(graph, stream));
  require(cudaStreamSynchronize(stream));
  return graph;
}

/// Captured on this thread alone: the other ranks are threads of this process, and do the same.
template <class Work>
cudaGraphExec_t graph_of(cudaStream_t stream, const Work& work) {
  cudaGraph_t captured = nullptr;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  require(work());
  require(cudaStreamEndCapture(stream, &captured));
  return instantiated(captured, stream);
}

/// The layers of one rank. `group`: what a call goes over that the pool does not take. Whatever may
/// wait for the device is done on all ranks before one of them launches a kernel that waits for the
/// others: ranks that share a GPU would wait for ever.
template <class Group>
void run_rank(const problem& of, meeting& all, in_process host, Group& group, cudaStream_t stream) {
  const int rank = host.rank();
  transport_bootstrap<in_process> ranks(host);

  operands<memory_space::device> at;
  at.each(of, [](auto*& data, index_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof *data;
    require(cudaMalloc(&data, bytes));
    require(cudaMemset(data, 0xff, bytes));
  });
  std::vector<std::vector<std::byte>> memory;
  operands<memory_space::host> truth;
  truth.each(of, [&](auto*& data, index_t count) {
    memory.emplace_back(static_cast<std::size_t>(count) * sizeof *data, std::byte{0xff});
    data = reinterpret_cast<std::remove_reference_t<decltype(data)>>(memory.back().data());
  });
  std::uint32_t* seed = nullptr;
  require(cudaMallocHost(&seed, sizeof *seed));
  for (const auto& kernel : {&query_kernel, &attention_kernel}) {
    cudaFuncAttributes code{};
    require(cudaFuncGetAttributes(&code, kernel));  // loads it: nothing loads while a kernel waits
  }
  const index_t gather_bytes =
      all_gather_heads_bytes<bf16>({of.ranks, of.tokens, of.heads, engine::query_dim}).value();
  const index_t reduce_bytes =
      lse_reduce_scatter_bytes<bf16>({of.ranks, of.tokens, of.heads, engine::head_dim}).value();
  const auto workspace_bytes =
      static_cast<std::size_t>(detail::greater(gather_bytes, reduce_bytes));
  std::vector<std::byte> host_workspace(workspace_bytes + 16);
  std::byte* device_workspace = nullptr;
  require(cudaMalloc(&device_workspace, workspace_bytes + 16));
  const std::span<std::byte> workspace(device_workspace, workspace_bytes);
  require(cudaDeviceSynchronize());

  // [snippet: router_open]
  pool_options pool;
  pool.capacity = {of.tokens, of.heads, engine::query_dim * index_t{sizeof(bf16)}};
  router<Group> ways(group);
  require(ways.open(ranks, pool));
  require(ways.prepare(ranks, {"decode"}));
  const pool_channel decode = ways.channel("decode").value();
  // [/snippet]
  if (!ways.has_pool() && rank == 0) {
    char text[512];
    format_status(ways.pool_status(), text, sizeof text);
    std::printf("no pool: %s\n", text);
  }
  // The same calls, all of them over the transport.
  router<Group> transport_only(group);
  require(transport_only.open(ranks, pool, {INT64_MAX, carrier_preference::transport}));
  require(transport_only.prepare(ranks, {"decode"}));

  const auto live = [&](const auto& tile) {
    return slice<axis::head>(tile, 0, of.all_heads()).value();
  };
  struct over {
    std::function<status()> gather;
    std::function<status(index_t)> reduce;
  };
  const auto calls_over = [&](const router<Group>& which, const pool_channel& channel) -> over {
    return {
        [&, channel] {
          return which.all_gather_heads(channel, stream, at.local_query(of),
                                        live(at.gathered_query(of)), workspace);
        },
        [&, channel](index_t layer) {
          return which.template lse_reduce_scatter<log_base::e>(
              channel, stream, live(at.partial_output(of)), live(at.partial_lses(of)),
              at.output(of, layer), at.merged_lse(of, layer), workspace);
        },
    };
  };
  if (rank == 0) {
    char text[1024];
    ways.describe_all_gather_heads(decode, at.local_query(of), live(at.gathered_query(of)), {},
                                   text, sizeof text);
    std::printf("%s\n\n", text);
    ways.template describe_lse_reduce_scatter<log_base::e>(
        decode, live(at.partial_output(of)), live(at.partial_lses(of)), at.output(of, 0),
        at.merged_lse(of, 0), {}, text, sizeof text);
    std::printf("%s\n\n", text);
  }

  // [snippet: router_graph]
  const over over_pool = calls_over(ways, decode);
  const cudaGraphExec_t graph =
      graph_of(stream, [&] { return run_layers(of, at, rank, stream, over_pool); });
  // [/snippet]
  constexpr bool captures = !std::is_same_v<Group, in_process_cuda>;
  const over nothing{[] { return status{}; }, [](index_t) { return status{}; }};
  const cudaGraphExec_t alone =
      graph_of(stream, [&] { return run_layers(of, at, rank, stream, nothing); });
  cudaGraphExec_t by_transport = nullptr;
  if (captures) {
    const over calls = calls_over(transport_only, transport_only.channel("decode").value());
    by_transport = graph_of(stream, [&] { return run_layers(of, at, rank, stream, calls); });
  }
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  all.together.arrive_and_wait();

  const auto differences = [&](const auto* host_data, const auto* device_data, index_t count) {
    using element = std::remove_const_t<std::remove_reference_t<decltype(*host_data)>>;
    const auto bytes = static_cast<std::size_t>(count) * sizeof(element);
    std::vector<std::byte> got(bytes);
    require(cudaMemcpy(got.data(), device_data, bytes, cudaMemcpyDeviceToHost));
    index_t different = 0;
    for (std::size_t i = 0; i < bytes; i += sizeof(element)) {
      different += std::memcmp(got.data() + i, reinterpret_cast<const std::byte*>(host_data) + i,
                               sizeof(element)) != 0
                       ? 1
                       : 0;
    }
    return different;
  };
  const index_t results = of.layers * of.tokens * of.heads;
  const auto check = [&](cudaGraphExec_t which, std::uint32_t value) {
    *seed = value;
    require(cudaMemcpyAsync(at.seed, seed, sizeof value, cudaMemcpyHostToDevice, stream));
    require(cudaStreamSynchronize(stream));
    all.together.arrive_and_wait();
    require(cudaGraphLaunch(which, stream));
    require(cudaStreamSynchronize(stream));
    require(which == graph && ways.has_pool() ? decode.state() : status{});
    all.together.arrive_and_wait();
    *truth.seed = value;
    require(run_layers_on_host(of, truth, host, {host_workspace.data(), workspace_bytes}));
    all.wrong[rank] += differences(truth.outputs, at.outputs, results * engine::head_dim) +
                       differences(truth.merged, at.merged, results);
    all.together.arrive_and_wait();
  };
  for (std::uint32_t replay = 1; replay <= 3; ++replay) check(graph, replay);
  if (by_transport != nullptr) check(by_transport, 4);

  const cudaGraphExec_t timed[] = {graph, by_transport, alone};
  for (int i = 0; i < 3; ++i) {
    if (timed[i] == nullptr) continue;
    all.together.arrive_and_wait();
    require(cudaGraphLaunch(timed[i], stream));
    require(cudaEventRecord(begin, stream));
    for (int replay = 0; replay < replays_to_time; ++replay) {
      require(cudaGraphLaunch(timed[i], stream));
    }
    require(cudaEventRecord(end, stream));
    require(cudaStreamSynchronize(stream));
    float milliseconds = 0.0f;
    require(cudaEventElapsedTime(&milliseconds, begin, end));
    all.microseconds[i][static_cast<std::size_t>(rank)] =
        double{milliseconds} * 1000.0 / replays_to_time / static_cast<double>(of.layers);
    all.together.arrive_and_wait();
  }

  for (const cudaGraphExec_t which : timed) {
    if (which != nullptr) require(cudaGraphExecDestroy(which));
  }
  require(transport_only.close(ranks));
  require(ways.close(ranks));
  at.each(of, [](auto*& data, index_t) { require(cudaFree(data)); });
  require(cudaFree(device_workspace));
  require(cudaFreeHost(seed));
  require(cudaEventDestroy(begin));
  require(cudaEventDestroy(end));
}

}  // namespace

int main(int argc, char** argv) {
  // Two streams that share a hardware queue take turns, and of two ranks that wait for each other
  // the second would never start. Read once, by the first call of CUDA.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  options chosen = parse(argc, argv);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no GPU here");
    return 77;
  }
  const int gpus = chosen.gpus > 0 ? chosen.gpus : (devices > 1 ? 2 : 1);
  if (gpus > devices) stop("--gpus", "there are not so many here");
  problem& of = chosen.of;
  of.ranks = chosen.ranks > 0 ? chosen.ranks : (gpus > 1 ? gpus : 6);
  std::printf(
      "%d ranks on %d GPU%s; %lld layers, %lld tokens, %lld heads a rank in a tile of %lld\n\n",
      of.ranks, gpus, gpus == 1 ? "" : "s", static_cast<long long>(of.layers),
      static_cast<long long>(of.tokens), static_cast<long long>(of.heads),
      static_cast<long long>(of.tiled()));

  bool by_nccl = false;
#ifdef WITH_NCCL
  by_nccl = of.ranks <= gpus && of.ranks > 1;
  ncclUniqueId id{};
  if (by_nccl && ncclGetUniqueId(&id) != ncclSuccess) stop("NCCL", "there is no id to be had");
#endif
  meeting all(of.ranks);
  in_process_cuda_group on_gpus(of.ranks, std::chrono::minutes(2));
  std::vector<std::thread> threads;
  for (int r = 0; r < of.ranks; ++r) {
    threads.emplace_back([&, r] {
      require(cudaSetDevice(r % gpus));
      cudaStream_t stream = nullptr;
      require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      const in_process host = all.host.rank(r).value();
#ifdef WITH_NCCL
      if (by_nccl) {
        ncclComm_t communicator = nullptr;
        if (ncclCommInitRank(&communicator, of.ranks, id, r) != ncclSuccess) {
          stop("NCCL", "no communicator");
        }
        const result<nccl> made = nccl::make(communicator, stream);
        require(made.why());
        nccl group = made.value();
        run_rank(of, all, host, group, stream);
        ncclCommDestroy(communicator);
        return;
      }
#endif
      in_process_cuda group = on_gpus.rank(r, cuda_copy{stream}).value();
      run_rank(of, all, host, group, stream);
    });
  }
  for (std::thread& thread : threads) thread.join();

  index_t wrong = 0;
  for (const index_t of_rank : all.wrong) wrong += of_rank;
  const char* const names[] = {"over the pool", "over NCCL", "without collectives"};
  for (int i = 0; i < 3; ++i) {
    double slowest = 0.0;
    for (const double one : all.microseconds[i]) slowest = one > slowest ? one : slowest;
    if (slowest > 0.0) std::printf("a layer %s: %.2f us\n", names[i], slowest);
  }
  std::printf("%lld elements are wrong\n", static_cast<long long>(wrong));
  return wrong == 0 ? 0 : 1;
}
