// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// One decode step of a DCP group over NCCL, one process for each GPU, on one host or on several.
//
// On one host with two GPUs:
//
//     id=$(mktemp -u)
//     05_nccl --rank 0 --ranks 2 --id-file $id & 05_nccl --rank 1 --ranks 2 --id-file $id; wait
//
// On two hosts, the first of which is called node0 (a port of your choice):
//
//     node0$ 05_nccl --rank 0 --ranks 2 --id-from node0:29500
//     node1$ 05_nccl --rank 1 --ranks 2 --id-from node0:29500
//
// --device D chooses the GPU (the rank modulo the number of GPUs), --tokens B the batch (16).

#include <headwise/headwise.cuh>
#include <headwise/transport/nccl.cuh>

#include "rendezvous.hpp"

#include <cstdlib>
#include <cstring>
#include <vector>

using namespace headwise;

namespace {

constexpr index_t heads = 11;  // of a rank: 64 heads on 6 ranks are 66
constexpr index_t tile = 16;   // the attention kernel rounds the group's heads up to it
constexpr index_t query_dim = 576;
constexpr index_t head_dim = 512;

[[noreturn]] void stop(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);
}
void require(cudaError_t said) {
  if (said != cudaSuccess) stop("CUDA", cudaGetErrorString(said));
}
void require(ncclResult_t said) {
  if (said != ncclSuccess) stop("NCCL", ncclGetErrorString(said));
}
void require(const status& came_to) {
  if (came_to.ok()) return;
  char text[512];
  format_status(came_to, text, sizeof text);
  stop("Headwise", text);
}

struct options {
  int rank = 0;
  int ranks = 1;
  int device = -1;
  index_t tokens = 16;
  std::string id_file;
  std::string id_from;
};

options parse(int argc, char** argv) {
  options chosen;
  if (argc % 2 == 0) stop(argv[argc - 1], "needs a value");
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* const value = argv[i + 1];
    if (name == "--rank")
      chosen.rank = std::atoi(value);
    else if (name == "--ranks")
      chosen.ranks = std::atoi(value);
    else if (name == "--device")
      chosen.device = std::atoi(value);
    else if (name == "--tokens")
      chosen.tokens = std::atoll(value);
    else if (name == "--id-file")
      chosen.id_file = value;
    else if (name == "--id-from")
      chosen.id_from = value;
    else
      stop(argv[i], "is no option");
  }
  if (chosen.ranks > 1 && chosen.id_file.empty() == chosen.id_from.empty()) {
    stop("05_nccl", "several ranks need --id-file FILE or --id-from HOST:PORT");
  }
  return chosen;
}

template <class T>
T* device_memory(index_t count) {
  T* data = nullptr;
  require(cudaMalloc(reinterpret_cast<void**>(&data), static_cast<std::size_t>(count) * sizeof(T)));
  require(cudaMemset(data, 0xff, static_cast<std::size_t>(count) * sizeof(T)));
  return data;
}
template <class T>
void upload(T* to, const std::vector<T>& from) {
  require(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
}

/// Head h of token t, as rank `rank` would compute it: small numbers that bf16 holds exactly.
float partial_value(int rank, index_t token, index_t head) {
  return static_cast<float>((rank + 1) * 8 + (token + head) % 8);
}

}  // namespace

int main(int argc, char** argv) {
  const options chosen = parse(argc, argv);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no GPU here");
    return 77;
  }
  require(cudaSetDevice(chosen.device >= 0 ? chosen.device : chosen.rank % devices));
  ncclUniqueId id;
  if (chosen.rank == 0) require(ncclGetUniqueId(&id));
  const bool shared =
      chosen.ranks == 1 ||
      (chosen.id_file.empty() ? rendezvous::by_socket(chosen.id_from, chosen.rank, chosen.ranks, id)
                              : rendezvous::by_file(chosen.id_file, chosen.rank, id));
  if (!shared) stop("05_nccl", "the id of the communicator did not arrive");
  ncclComm_t communicator = nullptr;
  require(ncclCommInitRank(&communicator, chosen.ranks, id, chosen.rank));
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  // [snippet: nccl_transport]
  const index_t scratch_bytes = nccl_scratch_bytes(chosen.ranks);
  std::byte* const scratch = device_memory<std::byte>(scratch_bytes);
  const result<nccl> made =
      nccl::make(communicator, stream, {scratch, static_cast<std::size_t>(scratch_bytes)});
  require(made.why());
  nccl group = made.value();
  const cuda_executor executor{stream};
  // [/snippet]

  // All memory of the step, sized once: nothing below allocates. A rank alone needs no workspace,
  // and 16 bytes more leave something to allocate.
  const index_t tokens = chosen.tokens;
  const index_t all_heads = heads * group.size();
  const index_t tiled = (all_heads + tile - 1) / tile * tile;
  const message_shape shape{group.size(), tokens, heads, head_dim};
  const index_t gather_bytes =
      all_gather_heads_bytes<bf16>({group.size(), tokens, heads, query_dim}).value();
  const index_t scatter_bytes = lse_reduce_scatter_bytes<bf16>(shape).value();
  bf16* const query = device_memory<bf16>(tokens * heads * query_dim);
  bf16* const gathered = device_memory<bf16>(tokens * tiled * query_dim);
  bf16* const partial = device_memory<bf16>(tokens * tiled * head_dim);
  float* const partial_lse = device_memory<float>(tokens * tiled);
  bf16* const output = device_memory<bf16>(tokens * heads * head_dim);
  float* const merged = device_memory<float>(tokens * heads);
  std::byte* const gather_memory = device_memory<std::byte>(gather_bytes + 16);
  std::byte* const scatter_memory = device_memory<std::byte>(scatter_bytes + 16);

  // This rank's own heads of the query, and what its attention kernel would leave in the tile:
  // heads beyond those of the group stay as they are, and nobody reads them.
  std::vector<bf16> own_query;
  for (index_t i = 0; i < tokens * heads * query_dim; ++i) {
    own_query.push_back(from_float<bf16>(static_cast<float>(group.rank() + 1)));
  }
  upload(query, own_query);
  std::vector<bf16> rows(static_cast<std::size_t>(tokens * tiled * head_dim), bf16{0x7fff});
  std::vector<float> lses(static_cast<std::size_t>(tokens * tiled), -1.0f);
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t h = 0; h < all_heads; ++h) {
      for (index_t d = 0; d < head_dim; ++d) {
        rows[static_cast<std::size_t>((t * tiled + h) * head_dim + d)] =
            from_float<bf16>(partial_value(group.rank(), t, h));
      }
      lses[static_cast<std::size_t>(t * tiled + h)] = 0.0f;  // every rank weighs the same
    }
  }
  upload(partial, rows);
  upload(partial_lse, lses);
  require(cudaDeviceSynchronize());

  const auto on_device = [](auto* data, auto layout) {
    return make_view<memory_space::device>(data, layout);
  };
  const auto own = on_device(query, packed(extent<axis::token>(tokens), extent<axis::head, heads>(),
                                           extent<axis::head_dim, query_dim>()));
  const auto all = slice<axis::head>(
      on_device(gathered, packed(extent<axis::token>(tokens), extent<axis::head>(tiled),
                                 extent<axis::head_dim, query_dim>())),
      0, all_heads);
  const auto partial_heads = slice<axis::head>(
      on_device(partial, packed(extent<axis::token>(tokens), extent<axis::head>(tiled),
                                extent<axis::head_dim, head_dim>())),
      0, all_heads);
  const auto lse_heads = slice<axis::head>(
      on_device(partial_lse, packed(extent<axis::token>(tokens), extent<axis::head>(tiled))), 0,
      all_heads);
  const auto result =
      on_device(output, packed(extent<axis::token>(tokens), extent<axis::head, heads>(),
                               extent<axis::head_dim, head_dim>()));
  const auto result_lse =
      on_device(merged, packed(extent<axis::token>(tokens), extent<axis::head, heads>()));
  const std::span gather_workspace(gather_memory, static_cast<std::size_t>(gather_bytes));
  const std::span scatter_workspace(scatter_memory, static_cast<std::size_t>(scatter_bytes));

  char text[1024];
  describe_lse_reduce_scatter<log_base::e>(executor, group, partial_heads.value(),
                                           lse_heads.value(), result, result_lse, {}, text,
                                           sizeof text);
  if (group.rank() == 0) std::puts(text);

  // [snippet: reduce_scatter_nccl]
  const auto step = [&]() -> status {
    const status heads_are_there =
        all_gather_heads(executor, group, own, all.value(), gather_workspace);
    if (!heads_are_there.ok()) return heads_are_there;
    // ... attention over this rank's keys, for all heads of the group ...
    return lse_reduce_scatter<log_base::e>(executor, group, partial_heads.value(),
                                           lse_heads.value(), result, result_lse,
                                           scatter_workspace);
  };
  cudaGraph_t captured = nullptr;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  require(step());
  require(cudaStreamEndCapture(stream, &captured));
  // [/snippet]
  cudaGraphExec_t graph = nullptr;
  require(cudaGraphInstantiate(&graph, captured, 0));
  for (int replay = 0; replay < 3; ++replay) require(cudaGraphLaunch(graph, stream));
  require(cudaStreamSynchronize(stream));
  require(group.check());

  // With equal weights each output is the mean of what the ranks had.
  std::vector<bf16> got(static_cast<std::size_t>(tokens * heads * head_dim));
  require(cudaMemcpy(got.data(), output, got.size() * sizeof(bf16), cudaMemcpyDeviceToHost));
  index_t wrong = 0;
  for (index_t i = 0; i < static_cast<index_t>(got.size()); ++i) {
    const index_t t = i / (heads * head_dim);
    const index_t h = group.rank() * heads + i / head_dim % heads;
    float sum = 0.0f;
    for (int r = 0; r < group.size(); ++r) sum += partial_value(r, t, h);
    const float mean = sum / static_cast<float>(group.size());
    const float off = to_float(got[static_cast<std::size_t>(i)]) - mean;
    if (!(off < mean / 200 && off > -mean / 200)) ++wrong;
  }
  // The gathered query has each rank's heads in their place.
  std::vector<bf16> queries(static_cast<std::size_t>(tokens * tiled * query_dim));
  require(
      cudaMemcpy(queries.data(), gathered, queries.size() * sizeof(bf16), cudaMemcpyDeviceToHost));
  for (index_t i = 0; i < static_cast<index_t>(queries.size()); ++i) {
    const index_t h = i / query_dim % tiled;
    if (h >= all_heads) continue;
    const float wanted = static_cast<float>(h / heads + 1);
    if (to_float(queries[static_cast<std::size_t>(i)]) != wanted) ++wrong;
  }
  std::printf("rank %d of %d: %lld elements are wrong\n", group.rank(), group.size(),
              static_cast<long long>(wrong));
  require(cudaGraphExecDestroy(graph));
  require(cudaGraphDestroy(captured));
  require(ncclCommDestroy(communicator));
  return wrong == 0 ? 0 : 1;
}
