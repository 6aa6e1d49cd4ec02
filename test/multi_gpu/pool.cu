// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Peer pools over several GPUs: ranks as threads with a GPU each, and ranks as processes, through
// CUDA IPC and through host memory that they share. Results are those of the reference and those of
// the verb over NCCL, bit for bit.

#include <headwise/executor/cuda_executor.cuh>
#include <headwise/pool/socket_bootstrap.hpp>
#include <headwise/transport/nccl.cuh>

#include <support/pool_words.hpp>
#include <support/processes.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

using namespace headwise;
using namespace support;

namespace {

using reduce = reduce_call<bf16, log_base::e>;
using query = gather_call<bf16>;

pool_options options_for(const protocol_table& table) {
  pool_options options;
  options.capacity = {24, 64, 1152, index_t{1} << 20};
  options.table = &table;
  return options;
}

/// Calls of every size that matters, against the reference.
std::string check_shapes(pool_rank& me, const pool_channel& channel) {
  const int n = me.size();
  for (const index_t tokens : {1, 4, 16}) {
    for (const style which : {style::packed, style::tiled, style::head_major, style::scattered}) {
      reduce_run run{{n, tokens, tokens == 16 ? 3 : 11, 512}, which, which, style::packed};
      run.in_place = me.rank() == 1 && which == style::tiled;
      run.past = me.rank() == 0 && which == style::head_major ? 1 : 0;
      me.memory.forget();
      reduce first(me.memory, run, me.rank());
      query second(me.memory, {{n, tokens, 11, 33}, 11 * n + 5, which, style::packed}, me.rank());
      for (std::uint64_t seed = 0; seed < 3; ++seed) {
        TRY(check_calls(me, channel, 900 + seed, first, second));
      }
    }
  }
  return "";
}

std::string check_graph(pool_rank& me, const pool_channel& channel) {
  const int n = me.size();
  me.memory.forget();
  reduce few(me.memory, {{n, 3, 11, 512}, style::tiled, style::tiled}, me.rank());
  query rows(me.memory, {{n, 1, 2, 64}}, me.rank());
  few.fill(1);
  rows.fill(2);
  recorded graph;
  TRY(graph.record(me, me.stream, [&] {
    const status came_to = few.enqueue(channel, {me.stream, true});
    return came_to.ok() ? rows.enqueue(channel, {me.stream, true}) : came_to;
  }));
  TRY_THAT(graph.nodes == 2 && graph.kernels == 2, std::to_string(graph.nodes));
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto step = [&]() -> std::string {
      if (me.rank() == static_cast<int>(seed % 2)) TRY_CUDA(spin(me.stream, 100'000));
      TRY_CUDA(graph.launch(me.stream));
      return "";
    };
    TRY(check_step(me, channel, 950 + seed, step, few, rows));
  }
  return "";
}

std::string check_soak(pool_rank& me, const pool_channel& channel, std::uint32_t seed) {
  soak_run run;
  run.seed = seed;
  run.calls = count_from("HEADWISE_POOL_SOAK", 2000);
  return soak(me, channel, run);
}

/// All of it with each protocol.
template <class Memory>
std::string check_all(pool_rank& me) {
  for (const protocol how : all_protocols) {
    const protocol_table table = protocol_table::only(how);
    const std::string wrong =
        with_pool<Memory>(me, options_for(table), {"calls"}, [&](auto& pool) -> std::string {
          const pool_channel channel = pool.channel("calls").value();
          TRY(check_shapes(me, channel));
          TRY(check_graph(me, channel));
          return check_soak(me, channel, 960 + static_cast<std::uint32_t>(how));
        });
    if (!wrong.empty()) return std::string(to_string(how)) + ": " + wrong;
  }
  return "";
}

bool has_gpus(int count) {
  if (gpu_count() >= count) return true;
  const std::string text = "left out: asks for " + std::to_string(count) + " GPUs";
  MESSAGE(text);
  return false;
}

/// What a rank of a process works with.
std::string as_process(const rank_context& context, const char* work,
                       std::string (*what)(pool_rank&, const rank_context&)) {
  socket_bootstrap ranks;
  const std::string place = (std::filesystem::temp_directory_path() /
                             ("headwise-pool-" + std::to_string(getppid()) + "-" + work))
                                .string();
  TRY_OK(ranks.open(place.c_str(), context.rank, context.ranks, std::chrono::seconds(30)));
  bootstrap_ref group(ranks);
  pool_rank me(group);
  TRY(me.open(index_t{16} << 20));
  return what(me, context);
}

/// The verb over NCCL on the same operands gives the same bits.
std::string equals_nccl(pool_rank& me, const rank_context& context) {
  std::byte* scratch = nullptr;
  std::byte* workspace = nullptr;
  const auto scratch_bytes = static_cast<std::size_t>(nccl_scratch_bytes(me.size()));
  const scatter_shape most{me.size(), 16, 11, 512};
  const auto room = static_cast<std::size_t>(
      lse_reduce_scatter_bytes<bf16>(most.message(), message_format{}).value());
  RANK_CUDA(cudaMalloc(reinterpret_cast<void**>(&scratch), scratch_bytes));
  RANK_CUDA(cudaMalloc(reinterpret_cast<void**>(&workspace), room));
  auto made = nccl::make(context.communicator, me.stream, {scratch, scratch_bytes});
  TRY_OK(made.why());
  nccl group = made.value();
  for (const protocol how : all_protocols) {
    const protocol_table table = protocol_table::only(how);
    TRY(with_pool<automatic_memory>(
        me, options_for(table), {"calls"}, [&](auto& pool) -> std::string {
          const pool_channel channel = pool.channel("calls").value();
          for (const index_t tokens : {1, 4, 16}) {
            me.memory.forget();
            reduce call(me.memory, {{me.size(), tokens, 11, 512}, style::tiled, style::tiled},
                        me.rank());
            const auto over_nccl = [&]() -> std::string {
              TRY_OK(call.over(cuda_executor{{me.stream}}, group, {workspace, room}));
              return "";
            };
            TRY(check_calls(me, channel, 970, call));
            const auto of_pool = me.memory.fetched(call.output());
            const auto merged_of_pool = me.memory.fetched(call.merged());
            // From the same seed, with the results forgotten.
            TRY(check_step(me, channel, 970, over_nccl, call));
            TRY_THAT(of_pool == me.memory.fetched(call.output()), "NCCL has other bits");
            TRY_THAT(merged_of_pool == me.memory.fetched(call.merged()), "NCCL has other LSEs");
          }
          return "";
        }));
  }
  RANK_CUDA(cudaFree(workspace));
  RANK_CUDA(cudaFree(scratch));
  return "";
}

std::string through_ipc(const rank_context& context) {
  return as_process(context, "calls-ipc", [](pool_rank& me, const rank_context&) -> std::string {
    return check_all<ipc_memory>(me);
  });
}
std::string through_host(const rank_context& context) {
  return as_process(context, "calls-host", [](pool_rank& me, const rank_context&) -> std::string {
    return check_all<host_memory>(me);
  });
}
std::string as_nccl(const rank_context& context) {
  return as_process(context, "calls-nccl", equals_nccl);
}

/// Rank 1 is killed in the middle of it: those that are left hear so in time.
constexpr int killed_rank = 1;
std::string one_is_killed(const rank_context& context) {
  return as_process(context, "calls-killed", [](pool_rank& me, const rank_context&) -> std::string {
    const protocol_table table = protocol_table::only(protocol::ll);
    pool_options options = options_for(table);
    options.timeout = std::chrono::milliseconds(200);
    const auto pool = std::make_unique<peer_pool<>>();
    TRY_OK(pool->open(me.group, options));
    TRY_OK(pool->prepare(me.group, {"calls"}));
    const pool_channel channel = pool->channel("calls").value();
    me.memory.forget();
    reduce call(me.memory, {{me.size(), 4, 3, 64}}, me.rank());
    for (std::uint64_t i = 0; i < 4; ++i) TRY(check_calls(me, channel, 980 + i, call));
    if (me.rank() == killed_rank) {
      kill(getpid(), SIGKILL);  // nothing is closed, nobody is told
      return "is still there";
    }
    call.fill(990);
    TRY_CUDA(me.memory.upload(me.stream));
    TRY_CUDA(cudaStreamSynchronize(me.stream));
    const auto start = std::chrono::steady_clock::now();
    TRY_OK(call.enqueue(channel, me.stream));
    TRY_CUDA(cudaStreamSynchronize(me.stream));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    const status is = channel.state();
    TRY_THAT(is.code == errc::timed_out && is.got == killed_rank, sentence(is));
    TRY_THAT(took.count() < 230, std::to_string(took.count()) + " ms");
    TRY_CUDA(me.memory.fetch(me.stream));
    TRY_CUDA(cudaStreamSynchronize(me.stream));
    call.expect_poison();
    TRY(me.memory.differences());
    // The GPU is usable.
    TRY_CUDA(spin(me.stream, 1000));
    TRY_CUDA(cudaStreamSynchronize(me.stream));
    // A collective end is bounded too; the memory stays until this process ends.
    const status closed = pool->close(me.group);
    TRY_THAT(!closed.ok(), "closed without the other");
    std::fflush(stdout);
    _exit(0);  // without waiting for the peer in NCCL's destructors
  });
}

/// Two processes on one GPU take turns: they are told so, and not after a time-out.
std::string on_one_gpu(const rank_context& context) {
  RANK_CUDA(cudaSetDevice(0));
  return as_process(context, "calls-one", [](pool_rank& me, const rank_context&) -> std::string {
    const protocol_table table = protocol_table::only(protocol::ll);
    const auto pool = std::make_unique<peer_pool<>>();
    const auto start = std::chrono::steady_clock::now();
    const status opened = pool->open(me.group, options_for(table));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    TRY_THAT(opened.code == errc::unsupported, sentence(opened));
    TRY_THAT(took.count() < 5, std::to_string(took.count()) + " s");
    return "";
  });
}

const register_rank_work works[] = {{"pool_calls_ipc", through_ipc},
                                    {"pool_calls_host", through_host},
                                    {"pool_calls_nccl", as_nccl},
                                    {"pool_one_is_killed", one_is_killed},
                                    {"pool_on_one_gpu", on_one_gpu}};

}  // namespace

TEST_CASE("J08: pool: threads with a GPU each, peer access: shapes, graphs, soak") {
  for (int ranks = 2; ranks <= 8; ranks *= 2) {
    if (!has_gpus(ranks)) break;
    CHECK(on_pool_ranks(
              ranks, ranks, [](pool_rank& me) { return check_all<peer_access_memory>(me); },
              index_t{16} << 20) == "");
  }
}
TEST_CASE("J08: pool: threads with a GPU each, pinned host memory: shapes, graphs, soak") {
  if (!has_gpus(2)) return;
  CHECK(on_pool_ranks(
            2, 2, [](pool_rank& me) { return check_all<host_memory>(me); }, index_t{16} << 20) ==
        "");
}
TEST_CASE("J08: pool: processes, CUDA IPC: shapes, graphs, soak") {
  for (int ranks = 2; ranks <= 8; ranks *= 2) {
    if (!has_gpus(ranks)) break;
    CHECK(on_processes("pool_calls_ipc", ranks, 300) == "");
  }
}
TEST_CASE("J08: pool: processes, host memory that they share: shapes, graphs, soak") {
  if (!has_gpus(2)) return;
  CHECK(on_processes("pool_calls_host", 2, 300) == "");
}
TEST_CASE("pool: the bits of the verb over NCCL, with each protocol") {
  if (!has_gpus(2)) return;
  CHECK(on_processes("pool_calls_nccl", 2) == "");
}
TEST_CASE("pool: a process that is killed is named in time by those that are left") {
  if (!has_gpus(2)) return;
  CHECK(on_processes("pool_one_is_killed", 2, 90, killed_rank) == "");
}
TEST_CASE("pool: processes that share a GPU are refused a pool, at once") {
  CHECK(on_processes("pool_on_one_gpu", 2) == "");
}
