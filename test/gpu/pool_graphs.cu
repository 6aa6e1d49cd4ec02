// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Calls of a peer pool in CUDA graphs: several graphs on one channel, replayed in any order and
// mixed with eager calls; each replay with new operands, every byte compared.

#include <support/pool_words.hpp>
#include <support/random.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

/// bf16, base e, merged LSE, counts of keys that are read on the device.
using counted_call = reduce_call<bf16, log_base::e, float, false, true, key_counts::by_token>;
using query_call = gather_call<bf16>;
using paired = paired_call<bf16, bf16>;

pool_options options_for(index_t tokens) {
  pool_options options;
  options.capacity = {tokens, 8, 256, index_t{4} << 20};
  return options;
}

/// Runs work(rank, pool, channel) with each protocol.
template <class Work>
void check_ranks(std::initializer_list<int> sizes, const pool_options& options, const Work& work) {
  for (const int gpus : one_or_two_gpus()) {
    for (const int ranks : sizes) {
      CHECK(on_pool_ranks(ranks, gpus, [&](pool_rank& me) -> std::string {
              for (const protocol how : all_protocols) {
                TRY(with_channel(me, options, how, [&](auto&, const pool_channel& channel) {
                  return work(me, channel);
                }));
              }
              return "";
            }) == "");
    }
  }
}

/// Replays with new operands.
template <class... Calls>
std::string check_replay(pool_rank& me, const pool_channel& channel, const recorded& graph,
                         std::uint64_t seed, Calls&... calls) {
  const auto step = [&]() -> std::string {
    TRY_CUDA(graph.launch(me.stream));
    return "";
  };
  return check_step(me, channel, seed, step, calls...);
}

std::string has_kernels(const recorded& graph, int kernels) {
  TRY_THAT(graph.kernels == kernels && graph.nodes == kernels,
           std::to_string(graph.kernels) + " kernels, " + std::to_string(graph.nodes) + " nodes");
  return "";
}

}  // namespace

TEST_CASE(
    "H09: pool: every operation is captured, one kernel each, no memory taken, and replays as it "
    "runs") {
  check_ranks(
      {2, 3, 8}, options_for(8), [](pool_rank& me, const pool_channel& channel) -> std::string {
        const int n = me.size();
        for (const bool overlap : {false, true}) {
          const on_stream where(me.stream, overlap);
          const auto each = [&](std::uint64_t seed, auto& call) -> std::string {
            TRY(check_calls(me, channel, seed, call));
            recorded graph;
            TRY(graph.record(me, me.stream, [&] { return call.enqueue(channel, where); }));
            TRY(has_kernels(graph, 1));
            for (std::uint64_t i = 1; i < 4; ++i) {
              TRY(check_replay(me, channel, graph, seed + i, call));
              TRY(check_calls(me, channel, seed + 10 + i, call));
            }
            return "";
          };
          me.memory.forget();
          {
            counted_call call(me.memory, {{n, 3, 2, 64}, style::tiled, style::tiled}, me.rank());
            TRY(each(1000, call));
          }
          me.memory.forget();
          {
            query_call call(me.memory, {{n, 3, 2, 33}, 2 * n + 1}, me.rank());
            TRY(each(1100, call));
          }
          me.memory.forget();
          {
            paired call(me.memory, {{n, 2, 2, 64}}, {{n, 2, 2, 8}}, me.rank());
            TRY(each(1200, call));
          }
          // All of them in one graph.
          me.memory.forget();
          counted_call first(me.memory, {{n, 4, 1, 128}}, me.rank());
          query_call second(me.memory, {{n, 1, 2, 64}}, me.rank());
          paired third(me.memory, {{n, 2, 2, 64}}, {{n, 2, 2, 8}}, me.rank());
          recorded graph;
          TRY(graph.record(me, me.stream, [&] {
            status came_to = first.enqueue(channel, where);
            if (came_to.ok()) came_to = second.enqueue(channel, where);
            if (came_to.ok()) came_to = third.enqueue(channel, where);
            return came_to;
          }));
          TRY(has_kernels(graph, 3));
          for (std::uint64_t i = 0; i < 4; ++i) {
            TRY(check_replay(me, channel, graph, 1300 + i, first, second, third));
          }
        }
        return "";
      });
}

TEST_CASE("J02: pool: no tokens are no node of a graph") {
  check_ranks({2, 3}, options_for(4),
              [](pool_rank& me, const pool_channel& channel) -> std::string {
                const int n = me.size();
                me.memory.forget();
                counted_call reduce(me.memory, {{n, 0, 2, 64}}, me.rank());
                query_call gather(me.memory, {{n, 0, 2, 64}}, me.rank());
                counted_call some(me.memory, {{n, 2, 2, 64}}, me.rank());
                recorded empty, with_some;
                TRY(empty.record(me, me.stream, [&] {
                  const status came_to = reduce.enqueue(channel, me.stream);
                  return came_to.ok() ? gather.enqueue(channel, me.stream) : came_to;
                }));
                TRY(has_kernels(empty, 0));
                TRY(with_some.record(me, me.stream, [&] {
                  const status came_to = reduce.enqueue(channel, me.stream);
                  return came_to.ok() ? some.enqueue(channel, me.stream) : came_to;
                }));
                TRY(has_kernels(with_some, 1));
                TRY_CUDA(cudaGetLastError());
                for (std::uint64_t i = 0; i < 3; ++i) {
                  if (me.rank() == 0) TRY_CUDA(empty.launch(me.stream));
                  TRY(check_replay(me, channel, with_some, 2000 + i, some));
                }
                return "";
              });
}

TEST_CASE(
    "H02: pool: graphs of eight tokens and of four on one channel, in any order, and eager calls") {
  check_ranks(
      {2, 3, 8}, options_for(8), [](pool_rank& me, const pool_channel& channel) -> std::string {
        const int n = me.size();
        me.memory.forget();
        counted_call eight(me.memory, {{n, 8, 2, 128}, style::tiled, style::tiled}, me.rank());
        counted_call four(me.memory, {{n, 4, 2, 128}}, me.rank());
        query_call one(me.memory, {{n, 1, 2, 64}}, me.rank());
        eight.fill(1);
        four.fill(2);
        one.fill(3);
        recorded graphs[3];
        TRY(graphs[0].record(me, me.stream, [&] { return eight.enqueue(channel, me.stream); }));
        TRY(graphs[1].record(me, me.stream, [&] { return four.enqueue(channel, me.stream); }));
        TRY(graphs[2].record(me, me.stream, [&] { return one.enqueue(channel, me.stream); }));
        random_source common(3000);
        for (std::uint64_t i = 0; i < 30; ++i) {
          // The same on all ranks, and some come late.
          const index_t which = i < 4 ? static_cast<index_t>(i % 2) : common.in(0, 2);
          const bool eager = i >= 4 && common.one_in(3);
          const bool twice = common.one_in(4);
          const auto late = static_cast<int>(common.in(0, n - 1));
          const auto step = [&]() -> std::string {
            for (int times = twice ? 2 : 1; times > 0; --times) {
              if (me.rank() == late) TRY_CUDA(spin(me.stream, 30'000));
              if (!eager) {
                TRY_CUDA(graphs[which].launch(me.stream));
              } else {
                TRY_OK(which == 0   ? eight.enqueue(channel, me.stream)
                       : which == 1 ? four.enqueue(channel, me.stream)
                                    : one.enqueue(channel, me.stream));
              }
            }
            return "";
          };
          // The operands of the other calls are new too, but their results stay what they were:
          // poison.
          eight.fill(i + 1);
          four.fill(i + 2);
          one.fill(i + 3);
          const std::uint64_t seed = 3000 + i;
          TRY(which == 0   ? check_step(me, channel, seed, step, eight)
              : which == 1 ? check_step(me, channel, seed, step, four)
                           : check_step(me, channel, seed, step, one));
        }
        return "";
      });
}

TEST_CASE("H01: pool: a graph of four tokens outlives an eager call of 64") {
  check_ranks({2, 3}, options_for(64),
              [](pool_rank& me, const pool_channel& channel) -> std::string {
                const int n = me.size();
                me.memory.forget();
                counted_call few(me.memory, {{n, 4, 8, 128}}, me.rank());
                counted_call many(me.memory, {{n, 64, 8, 128}}, me.rank());
                few.fill(1);
                many.fill(2);
                recorded graph;
                TRY(graph.record(me, me.stream, [&] { return few.enqueue(channel, me.stream); }));
                TRY(check_replay(me, channel, graph, 4000, few));
                many.fill(3);
                few.fill(4);
                TRY(check_calls(me, channel, 4001, many));
                many.fill(5);
                TRY(check_replay(me, channel, graph, 4002, few));
                // What there is no room for is refused, and the graph goes on.
                me.memory.forget();
                counted_call again(me.memory, {{n, 4, 8, 128}}, me.rank());
                counted_call too_many(me.memory, {{n, 65, 8, 128}}, me.rank());
                too_many.fill(6);
                const status refused = too_many.enqueue(channel, me.stream);
                TRY_THAT(refused.code == errc::capacity_exceeded, sentence(refused));
                // `again` has the place of `few`.
                return check_replay(me, channel, graph, 4003, again);
              });
}

TEST_CASE("H04: pool: counts of keys are read at replay, not at capture") {
  check_ranks({2, 3}, options_for(4),
              [](pool_rank& me, const pool_channel& channel) -> std::string {
                me.memory.forget();
                counted_call call(me.memory, {{me.size(), 3, 4, 64}}, me.rank());
                int which = 0;
                call.set_counts([&](int rank, index_t token) -> std::int32_t {
                  switch (which) {
                    case 0: return 3;
                    case 1: return 7;
                    case 2: return 0;
                    default: return (rank + token + which) % 2 == 0 ? 7 : 0;
                  }
                });
                call.fill(5000);
                recorded graph;
                TRY(graph.record(me, me.stream, [&] { return call.enqueue(channel, me.stream); }));
                for (const int next : {0, 1, 2, 3, 4, 0}) {
                  which = next;
                  TRY(check_replay(me, channel, graph, 5001, call));
                }
                return "";
              });
}

TEST_CASE("H11: pool: three tokens padded to a graph of four: the padding row is not read") {
  check_ranks(
      {2, 3}, options_for(4), [](pool_rank& me, const pool_channel& channel) -> std::string {
        const int n = me.size();
        me.memory.forget();
        counted_call padded(me.memory, {{n, 4, 2, 128}}, me.rank());
        // The padding row has no keys, and a payload and an LSE like others, which nobody may use.
        padded.set_counts([](int, index_t token) -> std::int32_t { return token < 3 ? 70 : 0; });
        padded.fill(1);
        recorded graph;
        TRY(graph.record(me, me.stream, [&] { return padded.enqueue(channel, me.stream); }));
        for (std::uint64_t seed = 5100; seed < 5104; ++seed) {
          TRY(check_replay(me, channel, graph, seed, padded));
          for (index_t h = 0; h < 2; ++h) {
            TRY_THAT(padded.output()(3, h, 0) == bf16{0}, "the padding row is not empty");
            TRY_THAT(padded.merged()(3, h) == -detail::infinity(), "nor is its LSE");
          }
        }
        return "";
      });
}

// ---- a graph that is replayed back to back -----------------------------------------------------

namespace {

/// A graph of `count` calls and of what makes and checks their words, replayed without waiting for
/// it, one rank late.
std::string replay_back_to_back(pool_rank& me, const pool_channel& channel, int count) {
  constexpr int most = 5, replays = 40;
  const auto counter_bytes = sizeof(std::uint32_t);
  struct counter {
    std::uint32_t* at = nullptr;
    ~counter() { cudaFree(at); }
  } number;
  word_call calls[most];
  word_verdict verdict;
  const auto open = [&]() -> std::string {
    for (word_call& call : calls) TRY(call.open(me, {me.size(), 8, 8, 128, false}, 6000));
    TRY(verdict.open());
    TRY_CUDA(cudaMalloc(reinterpret_cast<void**>(&number.at), counter_bytes));
    TRY_CUDA(cudaMemset(number.at, 0, counter_bytes));
    TRY_CUDA(cudaDeviceSynchronize());
    return "";
  };
  const std::string opened = open();
  TRY_OK(me.meet());
  TRY(opened);
  unsigned long long words = 0;
  for (int i = 0; i < count; ++i) {
    calls[i].set({me.size(), i % 2 == 0 ? 8 : 1, 1 + i, 64, i == 1}, {});
    words += calls[i].words();
  }
  recorded graph;
  TRY(graph.record(me, me.stream, [&]() -> status {
    const auto put = [](cudaError_t said) { return detail::cuda_status(said, "test"); };
    const auto offset = [&](int i) {
      return call_number{number.at, static_cast<std::uint32_t>(i)};
    };
    status came_to{};
    for (int i = 0; i < count && came_to.ok(); ++i)
      came_to = put(calls[i].fill(me.stream, offset(i)));
    for (int i = 0; i < count && came_to.ok(); ++i) came_to = calls[i].enqueue(channel, me.stream);
    for (int i = 0; i < count && came_to.ok(); ++i) {
      came_to = put(calls[i].check(me.stream, offset(i), verdict.report()));
    }
    words::advance<><<<1, 1, 0, me.stream>>>(number.at, static_cast<std::uint32_t>(count));
    return came_to.ok() ? put(cudaGetLastError()) : came_to;
  }));
  for (int i = 0; i < replays; ++i) {
    if (i % 4 == 0 && me.rank() == i / 4 % me.size()) TRY_CUDA(spin(me.stream, 500'000));
    TRY_CUDA(graph.launch(me.stream));
  }
  TRY_CUDA(cudaStreamSynchronize(me.stream));
  TRY_OK(channel.state());
  return verdict.told(me.stream, words * replays);
}

}  // namespace

TEST_CASE("pool: graphs of one, three and five calls, replayed back to back with one rank late") {
  check_ranks({2, 3}, options_for(8),
              [](pool_rank& me, const pool_channel& channel) -> std::string {
                for (const int count : {1, 3, 5, 2}) TRY(replay_back_to_back(me, channel, count));
                return "";
              });
}

// ---- two channels -------------------------------------------------------------------------------

TEST_CASE("pool: two channels on two streams, replayed in another order on every rank") {
  for (const int gpus : one_or_two_gpus()) {
    for (const int ranks : {2, 3, 6}) {
      CHECK(on_pool_ranks(ranks, gpus, [&](pool_rank& me) -> std::string {
              pool_options options = options_for(8);
              options.concurrent_channels = 2;
              TRY_CUDA(cudaStreamCreateWithFlags(&me.other_stream, cudaStreamNonBlocking));
              for (const protocol how : all_protocols) {
                const protocol_table table = protocol_table::only(how);
                options.table = &table;
                TRY(with_pool(me, options, {"target", "draft"}, [&](auto& pool) -> std::string {
                  const pool_channel target = pool.channel("target").value();
                  const pool_channel draft = pool.channel("draft").value();
                  me.memory.forget();
                  counted_call first(me.memory, {{ranks, 8, 2, 128}}, me.rank());
                  counted_call second(me.memory, {{ranks, 3, 4, 64}}, me.rank());
                  first.fill(1);
                  second.fill(2);
                  recorded of_first, of_second;
                  TRY(of_first.record(me, me.stream,
                                      [&] { return first.enqueue(target, me.stream); }));
                  TRY(of_second.record(me, me.other_stream,
                                       [&] { return second.enqueue(draft, me.other_stream); }));
                  cudaEvent_t there = nullptr;
                  TRY_CUDA(cudaEventCreateWithFlags(&there, cudaEventDisableTiming));
                  const auto turn = [&](std::uint64_t seed) {
                    const auto step = [&]() -> std::string {
                      // Operands and results travel on the first stream.
                      TRY_CUDA(cudaEventRecord(there, me.stream));
                      TRY_CUDA(cudaStreamWaitEvent(me.other_stream, there, 0));
                      const bool swapped = (me.rank() + static_cast<int>(seed)) % 2 != 0;
                      for (int i = 0; i < 2; ++i) {
                        if ((i == 0) != swapped) {
                          TRY_CUDA(of_first.launch(me.stream));
                        } else {
                          TRY_CUDA(of_second.launch(me.other_stream));
                        }
                      }
                      TRY_CUDA(cudaEventRecord(there, me.other_stream));
                      TRY_CUDA(cudaStreamWaitEvent(me.stream, there, 0));
                      return "";
                    };
                    return check_step(me, target, seed, step, first, second);
                  };
                  std::string wrong;
                  for (std::uint64_t i = 0; i < 10 && wrong.empty(); ++i) wrong = turn(7000 + i);
                  if (wrong.empty() && !draft.state().ok()) wrong = sentence(draft.state());
                  TRY_CUDA(cudaEventDestroy(there));
                  return wrong;
                }));
              }
              return "";
            }) == "");
    }
  }
}
