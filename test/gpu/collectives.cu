// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The verbs with kernels and ranks that share a GPU give the bits of the verbs with host loops and
// ranks in host memory: in results, in gaps and in what was only read. What is drawn at run time
// costs nothing; each choice of types costs seconds of nvcc.

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/all_to_all.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/cuda_executor.cuh>
#include <headwise/executor/host_executor.hpp>
#include <headwise/transport/in_process_cuda.cuh>

#include <support/device.hpp>
#include <support/random.hpp>
#include <support/scatter.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

constexpr int group_sizes[] = {1, 2, 3, 5, 6, 8, 9, 16};

/// Host memory and a copy of it on the device: the same bytes at the same offsets, gaps included.
class twin {
 public:
  template <class T>
  explicit twin(guarded<T>& host, index_t past = 0)
      : twin(reinterpret_cast<std::byte*>(host.data()), host.size() * index_t{sizeof(T)},
             past * index_t{sizeof(T)}) {}

  template <class Element, class Layout>
  view<Element, Layout, memory_space::device> on_device(const view<Element, Layout>& of) const {
    const auto* const host = reinterpret_cast<const Element*>(host_);
    return {reinterpret_cast<Element*>(device_.data()) + (of.data() - host), of.layout()};
  }
  /// Bytes that are not the host's, those of the guards included.
  index_t differences() const { return device_.differences(host_); }

 private:
  twin(std::byte* host, index_t bytes, index_t past) : host_(host), device_(bytes, past) {
    device_.upload({host, host + bytes});
  }

  std::byte* host_;
  device_array<std::byte> device_;
};

// Where a call has its operands.
struct in_host_memory {
  template <class View>
  View operator()(const twin&, const View& what) const {
    return what;
  }
};
struct in_device_memory {
  template <class View>
  auto operator()(const twin& memory, const View& what) const {
    return memory.on_device(what);
  }
};

/// A workspace at both places.
struct room {
  guarded<std::byte> host;
  device_array<std::byte> device;

  explicit room(index_t bytes) : host(bytes), device(bytes) {}
  std::span<std::byte> in(in_host_memory) { return whole(host); }
  std::span<std::byte> in(in_device_memory) const {
    return {device.data(), static_cast<std::size_t>(device.size())};
  }
};

/// What work(executor, rank) came to on each rank, the rank's stream being done. All ranks share
/// the current GPU.
std::vector<status> on_streams(
    in_process_cuda_group& group, int count,
    const std::function<status(const cuda_executor&, in_process_cuda&)>& work) {
  std::vector<std::unique_ptr<stream>> streams;
  std::vector<in_process_cuda> handles;
  for (int r = 0; r < count; ++r) {
    streams.push_back(std::make_unique<stream>());
    const result<in_process_cuda> handle = group.rank(r, cuda_copy{*streams.back()});
    REQUIRE(handle.ok());
    handles.push_back(handle.value());
  }
  std::vector<status> came_to(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < came_to.size(); ++r) {
    threads.emplace_back([&, r] {
      came_to[r] = work(cuda_executor{*streams[r]}, handles[r]);
      const status waited =
          detail::cuda_status(cudaStreamSynchronize(*streams[r]), "stream of the test");
      if (came_to[r].ok()) came_to[r] = waited;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return came_to;
}

void run_at_both(int ranks, const std::function<status(in_process&)>& on_host,
                 const std::function<status(const cuda_executor&, in_process_cuda&)>& on_gpu) {
  const auto host_came_to = on_ranks(ranks, on_host);
  in_process_cuda_group group(ranks, std::chrono::seconds(60));
  const auto gpu_came_to = on_streams(group, ranks, on_gpu);
  const std::string told = "host: " + sentence(first_failure(host_came_to)) +
                           ", device: " + sentence(first_failure(gpu_came_to));
  INFO(told);
  REQUIRE(first_failure(host_came_to).ok());
  REQUIRE(first_failure(gpu_came_to).ok());
}

/// Runs call(where, executor, group, rank) on all ranks at both places.
template <class Call>
void run_at_both(int ranks, const Call& call) {
  run_at_both(
      ranks,
      [&](in_process& me) {
        return call(in_host_memory{}, host_executor{}, me, static_cast<std::size_t>(me.rank()));
      },
      [&](const cuda_executor& executor, in_process_cuda& me) {
        return call(in_device_memory{}, executor, me, static_cast<std::size_t>(me.rank()));
      });
}

// ---- lse_reduce_scatter --------------------------------------------------------------------

enum class keys { none, counts, by_sequence };

struct scatter_run {
  scatter_shape shape;
  style output_style, lse_style, result_style;
  reduce_scatter_options options{};
  bool in_place = false;
  index_t past = 0;  ///< elements that pointers on the device are off their alignment
};

// 22 of 32 heads, known in the type: what style::tiled makes of two ranks of 11.
using sliced_token = dim<axis::token, dynamic_extent, 32 * 512>;
using sliced_rows = layout<sliced_token, dim<axis::head, 22, 512>, dim<axis::head_dim, 512, 1>>;
using sliced_lse_token = dim<axis::token, dynamic_extent, 32>;
using sliced_plane = layout<sliced_lse_token, dim<axis::head, 22, 1>>;

/// What is optional in a call, drawn anew for each.
struct scatter_extras {
  guarded<std::int32_t> counts;        // [token]
  guarded<std::int32_t> lengths;       // [sequence]
  guarded<std::int32_t> query_starts;  // [sequence + 1]
  guarded<float> sinks;                // [head]

  scatter_extras(const scatter_shape& shape, random_source& random)
      : counts(shape.tokens), lengths(3), query_starts(4), sinks(shape.heads) {
    const auto count = [&] { return static_cast<std::int32_t>(random.one_of({0, 0, 1, 70})); };
    for (index_t t = 0; t < shape.tokens; ++t) counts.data()[t] = count();
    for (index_t s = 0; s < 3; ++s) lengths.data()[s] = count();
    // The last tokens may be padding.
    const index_t spread = random.in(3, 4);
    for (index_t s = 0; s < 4; ++s) {
      query_starts.data()[s] = static_cast<std::int32_t>(s * shape.tokens / spread);
    }
    for (index_t h = 0; h < shape.heads; ++h) {
      sinks.data()[h] = static_cast<float>(random.real(-8, 8));
    }
  }
};

/// What one rank has, and a copy of it on the device.
template <class T, class Lse, bool HeadMajor>
struct scatter_rank : scatter_extras {
  scatter_run run;
  index_t rank;
  scatter_operands<T, Lse, HeadMajor> host;
  std::vector<std::unique_ptr<twin>> twins;
  room workspace;

  enum { partial_output, partial_lse, output, merged, counted, summed, started, sunk };

  template <class Problem>
  scatter_rank(const scatter_run& which, index_t number, random_source& random,
               const Problem& problem)
      : scatter_extras(which.shape, random),
        run(which),
        rank(number),
        host(which.shape, which.output_style, which.lse_style, which.result_style),
        workspace(
            lse_reduce_scatter_bytes<T>(which.shape.message(), which.options.format).value()) {
    problem.put(rank, host.partial_output, host.partial_lse);
    const auto add = [&](auto& memory, index_t past) {
      twins.push_back(std::make_unique<twin>(memory, past));
    };
    add(host.partial_output.memory, run.past);
    add(host.partial_lse.memory, run.past);
    add(host.output.memory, run.past);
    add(host.merged.memory, run.past);
    add(counts, 0);
    add(lengths, 0);
    add(query_starts, 0);
    add(sinks, 0);
  }

  template <log_base Base, keys Keys, bool Merged, bool Sink, bool Sliced, class Where,
            class Executor, class Group>
  status call(const Where& where, const Executor& executor, Group& me) {
    const auto there = [&](auto which, const auto& what) { return where(*twins[which], what); };
    const auto merged_lse = [&] {
      if constexpr (Merged) {
        return there(merged, host.merged.view());
      } else {
        return none;
      }
    }();
    const auto valid = [&] {
      if constexpr (Keys == keys::counts) {
        return there(counted, view{counts.data(), packed(extent<axis::token>(run.shape.tokens))});
      } else if constexpr (Keys == keys::by_sequence) {
        return keys_by_sequence{
            there(summed, view{lengths.data(), packed(extent<axis::sequence>(3))}),
            there(started, view{query_starts.data(), packed(extent<axis::sequence>(4))})};
      } else {
        return none;
      }
    }();
    const auto sink = [&] {
      if constexpr (Sink) {
        return there(sunk, view{sinks.data(), packed(extent<axis::head>(run.shape.heads))});
      } else {
        return none;
      }
    }();
    const auto result =
        run.in_place ? there(partial_output, own_place()) : there(output, host.output.view());
    const auto reduce = [&](const auto& rows, const auto& lses) {
      return lse_reduce_scatter<Base>(executor, me, rows, lses, result, merged_lse,
                                      workspace.in(where), run.options, valid, sink);
    };
    // The host has the same bits from strides that only the run knows.
    if constexpr (Sliced && std::is_same_v<Where, in_device_memory>) {
      const view<const T, sliced_rows> rows{host.partial_output.memory.data(),
                                            sliced_rows(sliced_token(run.shape.tokens), {}, {})};
      const view<const Lse, sliced_plane> lses{
          host.partial_lse.memory.data(), sliced_plane(sliced_lse_token(run.shape.tokens), {})};
      return reduce(there(partial_output, rows), there(partial_lse, lses));
    } else {
      return reduce(there(partial_output, host.partial_output.input()),
                    there(partial_lse, host.partial_lse.input()));
    }
  }

  /// Bytes on the device that are not the host's; and what is wrong with those.
  index_t differences() {
    index_t wrong = workspace.device.stray_bytes() + host.stray_bytes();
    for (const auto& one : twins) wrong += one->differences();
    if (run.in_place) wrong += host.output.memory.stray_bytes();
    return wrong;
  }

 private:
  /// This rank's own heads of the partial output, as the view that a result is.
  typename rows_operand<T>::view_type own_place() {
    return slice<axis::head>(host.partial_output.by_token(), rank * run.shape.heads,
                             run.shape.heads)
        .value();
  }
};

/// One call; each choice of types is compiled once for the host and once for the device.
template <class T, class Lse, log_base Base, bool HeadMajor, keys Keys, bool Merged, bool Sink,
          bool Sliced = false>
void check_run(const scatter_run& run, random_source& random) {
  const scatter_problem<T, Base> problem{run.shape, random.bits()};
  std::vector<std::unique_ptr<scatter_rank<T, Lse, HeadMajor>>> all;
  for (index_t r = 0; r < run.shape.ranks; ++r) {
    all.push_back(std::make_unique<scatter_rank<T, Lse, HeadMajor>>(run, r, random, problem));
  }
  run_at_both(run.shape.ranks,
              [&](const auto& where, const auto& executor, auto& me, std::size_t r) {
                return all[r]->template call<Base, Keys, Merged, Sink, Sliced>(where, executor, me);
              });
  index_t differences = 0;
  for (const auto& one : all) differences += one->differences();
  CHECK(differences == 0);
}

/// Calls of every size of group with every style of strides, the rest drawn.
void check_scatter(std::uint64_t seed, void (*check)(const scatter_run&, random_source&)) {
  random_source random(seed);
  for (const int ranks : group_sizes) {
    for (const style which : all_styles) {
      for (const bool in_place : {false, true}) {
        scatter_run run{{ranks, random.in(0, 5), random.one_of({1, 2, 3, 11}),
                         random.one_of({1, 8, 33, 64, 100, 512})},
                        which,
                        any_style(random),
                        any_style(random),
                        {all_formats[random.in(0, 3)],
                         random.one_in(4) ? route_preference::packed : route_preference::automatic},
                        in_place,
                        random.one_in(3) ? 1 : 0};
        // So that the host is through in time.
        if (ranks > 6 && run.shape.head_dim > 64) run.shape.heads = 1;
        const std::string told =
            std::to_string(ranks) + " ranks, " + std::to_string(run.shape.tokens) + " tokens, " +
            std::to_string(run.shape.heads) + " heads, " + std::to_string(run.shape.head_dim) +
            " wide, style " + std::to_string(static_cast<int>(which)) + ", in place " +
            std::to_string(in_place);
        INFO(told);
        check(run, random);
      }
    }
  }
}

}  // namespace

TEST_CASE("lse_reduce_scatter: the bits of the host: bf16, base e") {
  check_scatter(11, check_run<bf16, float, log_base::e, false, keys::none, true, false>);
}
TEST_CASE("lse_reduce_scatter: the bits of the host: fp16, base two, LSE in fp16, counts, a sink") {
  check_scatter(12, check_run<fp16, fp16, log_base::two, false, keys::counts, false, true>);
}
TEST_CASE("lse_reduce_scatter: the bits of the host: fp32, LSE in bf16, head-major, by sequence") {
  check_scatter(13, check_run<float, bf16, log_base::e, true, keys::by_sequence, true, true>);
}
TEST_CASE("lse_reduce_scatter: the bits of the host: 22 of 32 heads, known in the type") {
  random_source random(14);
  for (const index_t tokens : {0, 1, 4, 7}) {
    for (const message_format& format : all_formats) {
      CAPTURE(tokens);
      const scatter_run run{
          {2, tokens, 11, 512}, style::tiled, style::tiled, any_style(random), {format, {}}};
      check_run<bf16, float, log_base::e, false, keys::none, true, false, true>(run, random);
    }
  }
}

// ---- all_gather_heads ----------------------------------------------------------------------

namespace {

/// Head (rank, head) of a query; never the poison.
bf16 query_of(std::uint64_t seed, index_t rank, index_t token, index_t head, index_t d) {
  return element_of_bits<bf16>(mixed(seed, {rank, token, head, d}));
}

struct gather_rank {
  rows_operand<bf16> local, gathered;
  twin local_twin, gathered_twin;
  room workspace;

  /// `gathered` has room for `tile` heads. `own` is this rank's place among them, where its heads
  /// stand already, or nothing.
  gather_rank(std::uint64_t seed, index_t rank, const scatter_shape& shape, index_t tile,
              style local_style, style gathered_style, bool in_place)
      : local(local_style, shape.tokens, shape.heads, shape.head_dim),
        gathered(gathered_style, shape.tokens, tile, shape.head_dim),
        local_twin(filled(seed, rank, shape, in_place)),
        gathered_twin(gathered.memory),
        workspace(all_gather_heads_bytes<bf16>(shape.message()).value()) {}

  template <class Where, class Executor, class Group>
  status call(const Where& where, const Executor& executor, Group& me, const scatter_shape& shape,
              bool in_place, const all_gather_options& options) {
    const auto live = where(gathered_twin, live_heads(shape));
    const auto input = in_place ? where(gathered_twin, own_heads(me.rank(), shape))
                                : where(local_twin, rows_operand<bf16>::view_type(local.view()));
    return all_gather_heads(executor, me, input, live, workspace.in(where), options);
  }
  rows_operand<bf16>::view_type live_heads(const scatter_shape& shape) {
    return of_heads(0, shape.all_heads());
  }

 private:
  rows_operand<bf16>::view_type own_heads(index_t rank, const scatter_shape& shape) {
    return of_heads(rank * shape.heads, shape.heads);
  }
  rows_operand<bf16>::view_type of_heads(index_t first, index_t count) {
    return slice<axis::head>(gathered.view(), first, count).value();
  }
  guarded<bf16>& filled(std::uint64_t seed, index_t rank, const scatter_shape& shape,
                        bool in_place) {
    fill(in_place ? own_heads(rank, shape) : local.view(),
         [&](const auto& at) { return query_of(seed, rank, at[0], at[1], at[2]); });
    return local.memory;
  }
};

void check_gather(std::uint64_t seed, const scatter_shape& shape, index_t tile, style local_style,
                  style gathered_style, bool in_place, const all_gather_options& options) {
  std::vector<std::unique_ptr<gather_rank>> all;
  for (index_t r = 0; r < shape.ranks; ++r) {
    all.push_back(
        std::make_unique<gather_rank>(seed, r, shape, tile, local_style, gathered_style, in_place));
  }
  run_at_both(shape.ranks, [&](const auto& where, const auto& executor, auto& me, std::size_t r) {
    return all[r]->call(where, executor, me, shape, in_place, options);
  });
  for (const auto& one : all) {
    CHECK(one->local_twin.differences() + one->gathered_twin.differences() +
              one->workspace.device.stray_bytes() ==
          0);
    // And the host has what it should; the device has the same.
    const auto live = one->live_heads(shape);
    CHECK(one->gathered.memory.stray_bytes(live) == 0);
    CHECK(wrong_elements(live, [&](const auto& at) {
            return query_of(seed, at[1] / shape.heads, at[0], at[1] % shape.heads, at[2]);
          }) == 0);
  }
}

}  // namespace

TEST_CASE("E06: on a GPU, 99 heads of nine ranks into a tile of 104 leave its other rows alone") {
  std::uint64_t seed = 900;
  for (const index_t tokens : {1, 4}) {
    for (const style local_style : {style::packed, style::wide_rows}) {
      check_gather(++seed, {9, tokens, 11, 576}, 104, local_style, style::packed, false, {});
    }
    check_gather(++seed, {9, tokens, 11, 576}, 104, style::packed, style::packed, true, {});
  }
}

TEST_CASE("all_gather_heads: the bits of the host, of every size of group and all strides") {
  random_source random(21);
  for (const int ranks : group_sizes) {
    for (const style which : all_styles) {
      const scatter_shape shape{ranks, random.in(0, 5), random.in(1, 5),
                                random.one_of({1, 7, 64, 576})};
      const bool in_place = random.one_in(3);
      CAPTURE(ranks);
      CAPTURE(shape.tokens);
      CAPTURE(static_cast<int>(which));
      check_gather(random.bits(), shape, shape.all_heads() + random.in(0, 3), any_style(random),
                   which, in_place,
                   {random.one_in(4) ? route_preference::packed : route_preference::automatic});
    }
  }
}

// ---- all_to_all ----------------------------------------------------------------------------

namespace {

using entries = layout<dim<axis::rank>, dim<axis::token>, dim<axis::head_dim>>;

/// Entries of which, by `gaps`, neither parts nor rows are contiguous (2), parts have room between
/// them (1), or nothing is apart (0).
entries entries_of(index_t ranks, const scatter_shape& shape, index_t gaps) {
  const index_t row = shape.head_dim + (gaps == 2 ? 3 : 0);
  return {dim<axis::rank>(ranks, shape.tokens * row + (gaps > 0 ? 5 : 0)),
          dim<axis::token>(shape.tokens, row), dim<axis::head_dim>(shape.head_dim, 1)};
}

void check_exchange(std::uint64_t seed) {
  using T = fp8_e4m3;
  random_source random(seed);
  for (const int ranks : group_sizes) {
    for (index_t gaps = 0; gaps < 9; ++gaps) {
      const scatter_shape shape{ranks, random.in(0, 6), 1, random.one_of({1, 5, 16, 656})};
      const entries from = entries_of(ranks, shape, gaps % 3);
      const entries to = entries_of(ranks, shape, gaps / 3);
      const std::uint64_t data = random.bits();
      const auto sent = [&](index_t source, index_t target, index_t token, index_t d) {
        return element_of_bits<T>(mixed(data, {source, target, token, d}));
      };
      struct rank_memory {
        guarded<T> send, receive;
        std::unique_ptr<twin> send_twin, receive_twin;
        std::unique_ptr<room> workspace;
      };
      std::vector<rank_memory> all;
      for (index_t r = 0; r < ranks; ++r) {
        all.push_back({guarded<T>(from.span_size()), guarded<T>(to.span_size()), {}, {}, {}});
      }
      for (index_t r = 0; r < ranks; ++r) {
        rank_memory& mine = all[static_cast<std::size_t>(r)];
        const view send(mine.send.data(), from);
        fill(send, [&](const auto& at) { return sent(r, at[0], at[1], at[2]); });
        mine.send_twin = std::make_unique<twin>(mine.send);
        mine.receive_twin = std::make_unique<twin>(mine.receive);
        mine.workspace =
            std::make_unique<room>(all_to_all_bytes(send, view(mine.receive.data(), to)).value());
      }
      run_at_both(ranks, [&](const auto& where, const auto& executor, auto& me, std::size_t r) {
        rank_memory& mine = all[r];
        return all_to_all(executor, me, where(*mine.send_twin, view(mine.send.data(), from)),
                          where(*mine.receive_twin, view(mine.receive.data(), to)),
                          mine.workspace->in(where));
      });
      CAPTURE(ranks);
      CAPTURE(gaps);
      for (std::size_t r = 0; r < all.size(); ++r) {
        CHECK(all[r].send_twin->differences() + all[r].receive_twin->differences() +
                  all[r].workspace->device.stray_bytes() ==
              0);
        const view received(all[r].receive.data(), to);
        CHECK(all[r].receive.stray_bytes(received) == 0);
        CHECK(wrong_elements(received, [&](const auto& at) {
                return sent(at[0], static_cast<index_t>(r), at[1], at[2]);
              }) == 0);
      }
    }
  }
}

}  // namespace

TEST_CASE("all_to_all: the bits of the host, fp8 bytes") { check_exchange(31); }

// ---- the transport -------------------------------------------------------------------------

TEST_CASE("in_process_cuda: the two ends may cut the same bytes into different runs") {
  random_source random(41);
  const stream on;
  const cuda_copy copy{on};
  for (int i = 0; i < 200; ++i) {
    const index_t bytes = random.one_of({0, 1, 4, 12, 60, 960});
    const auto cut = [&](auto* data, index_t run, index_t pitch) {
      using chunk = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>,
                                       send_chunk, receive_chunk>;
      return run == 0 ? chunk{} : chunk{data, run, bytes / run, pitch};
    };
    const auto any_run = [&] {
      index_t run = random.in(bytes > 0 ? 1 : 0, bytes);
      while (run > 0 && bytes % run != 0) --run;
      return run;
    };
    const index_t source_run = any_run();
    const index_t target_run = random.one_in(2) ? source_run : any_run();
    // A sender may repeat itself, a receiver may not.
    const index_t source_pitch = random.one_in(8) ? 0 : source_run + random.in(0, 5);
    const index_t target_pitch = target_run + random.in(0, 5);
    constexpr index_t most = 6 * 960 + 960;
    guarded<std::uint8_t> source(most), target(most);
    for (index_t b = 0; b < most; ++b)
      source.data()[b] = static_cast<std::uint8_t>(random.in(0, 9));
    const device_array<std::uint8_t> device_source(source);
    const device_array<std::uint8_t> device_target(most);
    const std::uint8_t* const from = source.data();
    const std::uint8_t* const device_from = device_source.data();
    detail::copy_chunk(cut(from, source_run, source_pitch),
                       cut(target.data(), target_run, target_pitch));
    CHECK(copy.copy(cut(device_from, source_run, source_pitch),
                    cut(device_target.data(), target_run, target_pitch))
              .ok());
    CHECK(copy.finish().ok());
    CAPTURE(i);
    CHECK(device_target.differences(target.data()) == 0);
  }
}

TEST_CASE("in_process_cuda: a stream that is being captured is refused, and the peers are told") {
  in_process_cuda_group group(3, std::chrono::seconds(60));
  std::atomic<bool> captured_nothing{true};
  const auto start = std::chrono::steady_clock::now();
  const auto came_to =
      on_streams(group, 3, [&](const cuda_executor& executor, in_process_cuda& me) {
        if (me.rank() != 1) return me.barrier();
        const auto begun = cudaStreamBeginCapture(executor.stream, cudaStreamCaptureModeRelaxed);
        const status refused = me.barrier();
        cudaGraph_t graph = nullptr;
        const auto ended = cudaStreamEndCapture(executor.stream, &graph);
        std::size_t nodes = 1;
        if (begun != cudaSuccess || ended != cudaSuccess ||
            cudaGraphGetNodes(graph, nullptr, &nodes) != cudaSuccess || nodes != 0 ||
            cudaGraphDestroy(graph) != cudaSuccess) {
          captured_nothing = false;
        }
        return refused;
      });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
  CHECK(captured_nothing);
  CHECK(sentence(came_to[1]) ==
        "unsupported: stream: is being captured, and this transport waits on the host");
  CHECK(sentence(came_to[0]) == "rank_mismatch: stream: seen on rank 1");
  CHECK(sentence(came_to[2]) == "rank_mismatch: stream: seen on rank 1");
  const auto again =
      on_streams(group, 3, [](const cuda_executor&, in_process_cuda& me) { return me.barrier(); });
  for (const status& one : again) CHECK(one.ok());
}
