// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The verbs over a peer pool give the bits of the reference on the same partial results, with each
// protocol: so all protocols give the same. Ranks are threads that share a GPU, or two where there
// are two. Of each rank's memory every byte is compared: results, gaps, guards, and what was only
// read.

#include <support/pool.hpp>
#include <support/random.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

constexpr auto e = log_base::e;
constexpr auto two = log_base::two;

constexpr int group_sizes[] = {1, 2, 3, 6, 8, 9, 16};

// Four sets of types; what is drawn at run time costs nothing.
using bf16_call = reduce_call<bf16, e>;
using fp16_call = reduce_call<fp16, two, float, false, false, key_counts::by_token, true, sentinel>;
using fp32_call =
    reduce_call<float, e, bf16, true, true, key_counts::by_token, true, nan_policy::propagate>;
using sequence_call = reduce_call<bf16, e, float, false, true, key_counts::by_sequence>;

pool_options options_for(index_t tokens, index_t heads, index_t row_bytes) {
  pool_options options;
  options.capacity = {tokens, heads, row_bytes, index_t{4} << 20};
  return options;
}

/// Runs work(pool, channel) with each protocol, on one GPU and on two.
template <class Memory = automatic_memory, class Work>
std::string with_each_protocol(int ranks, const pool_options& options, const Work& work) {
  for (const int gpus : one_or_two_gpus()) {
    if (gpus > ranks) continue;
    const std::string wrong = on_pool_ranks(ranks, gpus, [&](pool_rank& me) -> std::string {
      for (const protocol how : all_protocols) {
        TRY(with_channel<Memory>(me, options, how, [&](auto&, const pool_channel& channel) {
          return work(me, channel, how);
        }));
      }
      return "";
    });
    if (!wrong.empty()) return wrong;
  }
  return "";
}

/// That a call takes the protocol that it is to be tested with.
std::string takes(const pool_channel& channel, pool_operation operation, protocol how, index_t rows,
                  index_t row_bytes) {
  const auto chosen = channel.choose(operation, {rows, row_bytes});
  TRY_OK(chosen.why());
  TRY_THAT(chosen.value() == how, to_string(chosen.value()));
  return "";
}

/// Shapes that all ranks draw alike, strides that each draws for itself.
template <class Call, class... Policy>
std::string check_drawn(pool_rank& me, const pool_channel& channel, protocol how, int count,
                        std::uint64_t seed, Policy... policy) {
  random_source common(seed);
  random_source own(seed * 100 + static_cast<std::uint64_t>(me.rank()));
  for (int i = 0; i < count; ++i) {
    reduce_run run;
    run.shape = {me.size(), common.in(1, 5), common.one_of({1, 2, 3, 11}),
                 common.one_of({8, 33, 64, 66, 80, 512})};
    if (me.size() > 6 && run.shape.head_dim > 100)
      run.shape.heads = 1;  // so that the host is quick
    run.output_style = i < 6 ? all_styles[i] : any_style(own);
    run.lse_style = any_style(own);
    run.result_style = any_style(own);
    run.in_place = own.one_in(3);
    run.merged_in_place = std::is_same_v<Call, bf16_call> && own.one_in(3);
    run.past = own.one_in(3) ? 1 : 0;
    run.sequences = i % 5;
    const index_t element = std::is_same_v<Call, fp32_call> ? 4 : 2;
    TRY(takes(channel, pool_operation::reduce_scatter, how, run.shape.tokens * run.shape.heads,
              run.shape.head_dim * element));
    me.memory.forget();
    Call call(me.memory, run, me.rank(), policy...);
    TRY(check_calls(me, channel, seed * 1000 + static_cast<std::uint64_t>(i), call));
  }
  return "";
}

template <class Call, class... Policy>
void check_reduce(std::uint64_t seed, Policy... policy) {
  for (const int ranks : group_sizes) {
    CHECK(with_each_protocol(ranks, options_for(5, 11, 2048),
                             [&](pool_rank& me, const pool_channel& channel, protocol how) {
                               return check_drawn<Call>(me, channel, how, 14, seed, policy...);
                             }) == "");
  }
}

}  // namespace

TEST_CASE("pool: lse_reduce_scatter: the bits of the reference: bf16, base e, merged LSE") {
  check_reduce<bf16_call>(11);
}
TEST_CASE(
    "pool: lse_reduce_scatter: the bits of the reference: fp16, base two, counts, sink, sentinel") {
  check_reduce<fp16_call>(12, sentinel{});
}
TEST_CASE(
    "pool: lse_reduce_scatter: the bits of the reference: fp32, LSE in bf16, head-major, NaN "
    "propagates") {
  check_reduce<fp32_call>(13);
}
TEST_CASE(
    "pool: lse_reduce_scatter: the bits of the reference: keys told by sequence, padding behind "
    "the "
    "last") {
  check_reduce<sequence_call>(14);
}

TEST_CASE("pool: rows behind the last sequence are empty, whatever stands there") {
  for (const int ranks : {1, 2, 3}) {
    CHECK(with_each_protocol(
              ranks, options_for(8, 3, 128),
              [](pool_rank& me, const pool_channel& channel, protocol) -> std::string {
                reduce_run run{{me.size(), 8, 3, 64}, style::tiled};
                run.sequences = 2;  // of two rows at most
                me.memory.forget();
                sequence_call call(me.memory, run, me.rank());
                for (std::uint64_t seed = 151; seed < 155; ++seed) {
                  TRY(check_calls(me, channel, seed, call));
                  for (index_t t = 4; t < 8; ++t) {
                    for (index_t h = 0; h < 3; ++h) {
                      TRY_THAT(call.merged()(t, h) == -detail::infinity(), std::to_string(t));
                      for (index_t d = 0; d < 64; ++d) {
                        TRY_THAT(call.output()(t, h, d) == bf16{0}, std::to_string(t));
                      }
                    }
                  }
                }
                return "";
              }) == "");
  }
}

TEST_CASE("pool: lse_reduce_scatter: the shapes that users have") {
  struct {
    int ranks;
    index_t heads, head_dim;
    style which;
  } const shapes[] = {{2, 11, 512, style::tiled},  // 22 heads in a tile of 32
                      {3, 11, 512, style::tiled},  // 33 of 48
                      {6, 11, 512, style::tiled},  // 66 of 80
                      {8, 16, 512, style::head_major},
                      {2, 64, 512, style::head_pitched}};
  for (const auto& shape : shapes) {
    CHECK(with_each_protocol(
              shape.ranks, options_for(4, 72, 1024),
              [&](pool_rank& me, const pool_channel& channel, protocol) -> std::string {
                for (const index_t tokens : {1, 4}) {
                  reduce_run run{{me.size(), tokens, shape.heads, shape.head_dim},
                                 shape.which,
                                 shape.which,
                                 style::packed};
                  me.memory.forget();
                  bf16_call call(me.memory, run, me.rank());
                  TRY(check_calls(me, channel, 21, call));
                }
                return "";
              }) == "");
  }
}

namespace {

/// The first 128 of 144 heads: what lies behind them is poison that nobody may read or write.
std::string check_128_of_144(pool_rank& me, const pool_channel& channel, index_t tokens) {
  constexpr index_t heads = 144, width = 512;
  const index_t used = 128, own = used / me.size();
  const scatter_problem<bf16, e> problem{{me.size(), tokens, own, width}, 31};
  me.memory.forget();
  using rows_layout = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
  using plane_layout = layout<dim<axis::token>, dim<axis::head>>;
  const rows_layout rows(dim<axis::token>(tokens, heads * width), dim<axis::head>(used, width),
                         dim<axis::head_dim>(width, 1));
  const plane_layout plane(dim<axis::token>(tokens, heads), dim<axis::head>(used, 1));
  const view<bf16, rows_layout> partial(me.memory.take<bf16>("rows", tokens * heads * width), rows);
  const view<float, plane_layout> lses(me.memory.take<float>("lses", tokens * heads), plane);
  // The result is head-major, with a pitch that is a capacity and not tokens * head_dim.
  const index_t pitch = 64 * width;
  const rows_layout result(dim<axis::token>(tokens, width), dim<axis::head>(own, pitch),
                           dim<axis::head_dim>(width, 1));
  const plane_layout merged_plane(dim<axis::token>(tokens, own), dim<axis::head>(own, 1));
  const view<bf16, rows_layout> output(me.memory.take<bf16>("output", result.span_size()), result);
  const view<float, plane_layout> merged(me.memory.take<float>("merged", tokens * own),
                                         merged_plane);
  std::vector<bf16> values(static_cast<std::size_t>(me.size() * tokens * own * width),
                           bf16{0xffff});
  std::vector<float> all_lses(static_cast<std::size_t>(me.size() * tokens * own));
  const view all = packed_outputs(values.data(), me.size(), tokens, own, width);
  const view all_of_lses = packed_lses(all_lses.data(), me.size(), tokens, own);
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t h = 0; h < used; ++h) {
      lses(t, h) = problem.lse(me.rank(), t, h);
      if (problem.empty(me.rank(), t, h)) continue;
      for (index_t d = 0; d < width; ++d) partial(t, h, d) = problem.output(me.rank(), t, h, d);
    }
  }
  TRY_CUDA(me.memory.upload(me.stream));
  TRY_OK(lse_reduce_scatter<e>(channel, me.stream,
                               me.memory.there(view<const bf16, rows_layout>(partial)),
                               me.memory.there(view<const float, plane_layout>(lses)),
                               me.memory.there(output), me.memory.there(merged)));
  TRY_CUDA(me.memory.fetch(me.stream));
  TRY_CUDA(cudaStreamSynchronize(me.stream));
  TRY_OK(channel.state());
  for (index_t s = 0; s < me.size(); ++s) {
    for (index_t t = 0; t < tokens; ++t) {
      for (index_t h = 0; h < own; ++h) {
        const index_t head = me.rank() * own + h;
        all_of_lses(s, t, h) = problem.lse(s, t, head);
        if (problem.empty(s, t, head)) continue;
        for (index_t d = 0; d < width; ++d) all(s, t, h, d) = problem.output(s, t, head, d);
      }
    }
  }
  TRY_OK(reference::lse_combine<e>(gathered_shards{all, all_of_lses}, output, merged));
  return me.memory.differences();
}

}  // namespace

TEST_CASE("pool: 128 heads of a tile of 144, a head-major result with the pitch of a capacity") {
  for (const int ranks : {2, 8}) {
    CHECK(
        with_each_protocol(ranks, options_for(4, 64, 1024),
                           [](pool_rank& me, const pool_channel& channel, protocol) -> std::string {
                             TRY(check_128_of_144(me, channel, 1));
                             return check_128_of_144(me, channel, 4);
                           }) == "");
  }
}

TEST_CASE("pool: push, pull and ll give the same bits to nine ranks of eleven heads") {
  std::vector<std::byte> results[9][3];
  CHECK(with_each_protocol(
            9, options_for(4, 11, 1024),
            [&](pool_rank& me, const pool_channel& channel, protocol how) -> std::string {
              me.memory.forget();
              bf16_call call(me.memory, {{9, 4, 11, 512}, style::tiled, style::tiled}, me.rank());
              TRY(check_calls(me, channel, 41, call));
              auto& bits = results[me.rank()][static_cast<int>(how)];
              bits = me.memory.fetched(call.output());
              const auto merged = me.memory.fetched(call.merged());
              bits.insert(bits.end(), merged.begin(), merged.end());
              return "";
            }) == "");
  for (const auto& of_rank : results) {
    CHECK(of_rank[0].size() == 4 * 11 * (512 * sizeof(bf16) + sizeof(float)));
    CHECK(of_rank[0] == of_rank[1]);
    CHECK(of_rank[1] == of_rank[2]);
  }
}

TEST_CASE("pool: through pinned host memory") {
  for (const int ranks : {2, 3, 8}) {
    CHECK(with_each_protocol<host_memory>(
              ranks, options_for(5, 11, 2048),
              [](pool_rank& me, const pool_channel& channel, protocol how) -> std::string {
                TRY(check_drawn<bf16_call>(me, channel, how, 8, 51));
                TRY(check_drawn<fp32_call>(me, channel, how, 4, 52));
                me.memory.forget();
                gather_call<bf16> gather(me.memory, {{me.size(), 4, 11, 64}, 16 * me.size()},
                                         me.rank());
                return check_calls(me, channel, 53, gather);
              }) == "");
  }
}

// ---- all_gather_heads ----------------------------------------------------------------------

namespace {

template <class T>
std::string check_drawn_gathers(pool_rank& me, const pool_channel& channel, protocol how,
                                std::uint64_t seed) {
  random_source common(seed);
  random_source own(seed * 100 + static_cast<std::uint64_t>(me.rank()));
  for (int i = 0; i < 12; ++i) {
    gather_run run;
    run.shape = {me.size(), common.in(1, 5), common.one_of({1, 2, 3, 11}),
                 common.one_of({8, 33, 64, 66, 80, 512, 576})};
    const index_t all = run.shape.all_heads();
    run.tile = all + own.one_of({0, 1, 5});
    run.local_style = i < 6 ? all_styles[i] : any_style(own);
    run.gathered_style = any_style(own);
    run.in_place = own.one_in(3);
    run.past = own.one_in(3) ? 1 : 0;
    TRY(takes(channel, pool_operation::all_gather, how, run.shape.tokens * run.shape.heads,
              run.shape.head_dim * index_t{sizeof(T)}));
    me.memory.forget();
    gather_call<T> call(me.memory, run, me.rank());
    TRY(check_calls(me, channel, seed * 1000 + static_cast<std::uint64_t>(i), call));
  }
  return "";
}

template <class T>
void check_gather(std::uint64_t seed) {
  for (const int ranks : group_sizes) {
    CHECK(with_each_protocol(ranks, options_for(5, 11, 576 * sizeof(T)),
                             [&](pool_rank& me, const pool_channel& channel, protocol how) {
                               return check_drawn_gathers<T>(me, channel, how, seed);
                             }) == "");
  }
}

}  // namespace

TEST_CASE("pool: all_gather_heads: bit for bit: bf16") { check_gather<bf16>(61); }
TEST_CASE("pool: all_gather_heads: bit for bit: e4m3") { check_gather<fp8_e4m3>(62); }
TEST_CASE("pool: all_gather_heads: bit for bit: fp32") { check_gather<float>(63); }

TEST_CASE("pool: all_gather_heads: 99 heads of nine ranks into a tile of 104") {
  CHECK(with_each_protocol(9, options_for(4, 11, 1152),
                           [](pool_rank& me, const pool_channel& channel, protocol) -> std::string {
                             for (const bool in_place : {false, true}) {
                               gather_run run{{9, 4, 11, 576}, 104};
                               run.in_place = in_place;
                               me.memory.forget();
                               gather_call<bf16> call(me.memory, run, me.rank());
                               TRY(check_calls(me, channel, 71, call));
                             }
                             return "";
                           }) == "");
}

TEST_CASE("pool: two gathers behind one exchange: latent part in e4m3, rope part in bf16") {
  for (const int ranks : group_sizes) {
    CHECK(with_each_protocol(
              ranks, options_for(5, 22, 640),
              [](pool_rank& me, const pool_channel& channel, protocol) -> std::string {
                random_source common(81);
                random_source own(82 + static_cast<std::uint64_t>(me.rank()));
                for (int i = 0; i < 10; ++i) {
                  gather_run latent, rope;
                  latent.shape = {me.size(), common.in(1, 5), common.one_of({1, 3, 11}),
                                  common.one_of({16, 33, 512})};
                  rope.shape = latent.shape;
                  // What is gathered together need not be alike in anything.
                  if (common.one_in(3)) rope.shape.tokens = common.in(1, 5);
                  if (common.one_in(3)) rope.shape.heads = common.in(1, 11);
                  rope.shape.head_dim = common.one_of({8, 33, 64});
                  for (gather_run* one : {&latent, &rope}) {
                    one->tile = one->shape.all_heads() + own.one_of({0, 5});
                    one->local_style = any_style(own);
                    one->gathered_style = any_style(own);
                    one->in_place = own.one_in(3);
                    one->past = own.one_in(4) ? 1 : 0;
                  }
                  me.memory.forget();
                  paired_call<fp8_e4m3, bf16> call(me.memory, latent, rope, me.rank());
                  TRY(check_calls(me, channel, 83 + static_cast<std::uint64_t>(i), call));
                }
                return "";
              }) == "");
  }
}

// ---- what is refused, and what is nothing ---------------------------------------------------

TEST_CASE("J02: pool: no tokens are no launch, and ranks stay in step") {
  for (const int ranks : {1, 2, 3}) {
    CHECK(with_each_protocol(
              ranks, options_for(4, 2, 128),
              [](pool_rank& me, const pool_channel& channel, protocol) -> std::string {
                for (const index_t tokens : {0, 3, 0, 0, 4}) {
                  me.memory.forget();
                  bf16_call reduce(me.memory, {{me.size(), tokens, 2, 64}}, me.rank());
                  gather_call<bf16> gather(me.memory, {{me.size(), tokens, 2, 64}}, me.rank());
                  TRY(check_calls(me, channel, 91, reduce, gather));
                  TRY_CUDA(cudaGetLastError());
                  // On one rank alone, and not counted.
                  me.memory.forget();
                  bf16_call nothing(me.memory, {{me.size(), 0, 2, 64}}, me.rank());
                  if (me.rank() == 0) TRY(check_calls(me, channel, 92, nothing));
                }
                return "";
              }) == "");
  }
}

TEST_CASE(
    "pool: more than a channel has room for is refused on all ranks, before anything is written") {
  CHECK(with_each_protocol(2, options_for(4, 2, 1024),
                           [](pool_rank& me, const pool_channel& channel, protocol) -> std::string {
                             const auto refused = [&](const status& came_to) -> std::string {
                               TRY_THAT(came_to.code == errc::capacity_exceeded, sentence(came_to));
                               return "";
                             };
                             me.memory.forget();
                             bf16_call reduce(me.memory, {{2, 5, 2, 512}}, me.rank());
                             gather_call<bf16> gather(me.memory, {{2, 5, 2, 512}}, me.rank());
                             reduce.fill(101);
                             gather.fill(102);
                             TRY_CUDA(me.memory.upload(me.stream));
                             TRY(refused(reduce.enqueue(channel, me.stream)));
                             TRY(refused(gather.enqueue(channel, me.stream)));
                             TRY_CUDA(me.memory.fetch(me.stream));
                             TRY_CUDA(cudaStreamSynchronize(me.stream));
                             TRY(me.memory.differences());
                             // Not counted as calls.
                             me.memory.forget();
                             bf16_call fits(me.memory, {{2, 4, 2, 512}}, me.rank());
                             return check_calls(me, channel, 103, fits);
                           }) == "");
}

TEST_CASE("pool: what is too much for ll goes by push, on all ranks") {
  pool_options options = options_for(4, 2, 1024);
  options.capacity.ll_bytes = 2048;
  for (const int ranks : {2, 3}) {
    CHECK(on_pool_ranks(ranks, 1, [&](pool_rank& me) {
            return with_channel(
                me, options, protocol::ll, [&](auto&, const pool_channel& channel) -> std::string {
                  for (const index_t tokens : {1, 4, 1, 3, 1}) {
                    TRY(takes(channel, pool_operation::reduce_scatter,
                              tokens == 1 ? protocol::ll : protocol::push, tokens * 2, 1024));
                    me.memory.forget();
                    bf16_call call(me.memory, {{me.size(), tokens, 2, 512}}, me.rank());
                    TRY(check_calls(me, channel, 105, call));
                  }
                  return "";
                });
          }) == "");
  }
}

TEST_CASE("pool: strict entry: a view with gaps is refused by name, one without is taken") {
  // LSEs with strides (32, 1) of 22 heads: of one token there is no gap.
  CHECK(with_each_protocol(
            2, options_for(4, 11, 1024),
            [](pool_rank& me, const pool_channel& channel, protocol) -> std::string {
              const auto said = [&](const reduce_run& run) {
                me.memory.forget();
                const bf16_call call(me.memory, run, me.rank());
                return call.enqueue<entry::strict>(channel, me.stream);
              };
              const auto names = [&](const status& is, const char* operand) -> std::string {
                TRY_THAT(is.code == errc::not_contiguous && is.operand == std::string(operand),
                         sentence(is));
                return "";
              };
              const style packed = style::packed, tiled = style::tiled;
              TRY(names(said({{2, 4, 11, 512}, packed, tiled, packed}), "partial_lse"));
              TRY(names(said({{2, 4, 11, 512}, tiled, packed, packed}), "partial_output"));
              TRY(names(said({{2, 4, 11, 512}, packed, packed, style::wide_rows}), "output"));
              // Not on one rank alone: nothing of that was launched.
              for (const index_t tokens : {1, 4}) {
                reduce_run run{{2, tokens, 11, 512}};
                if (tokens == 1) run.output_style = run.lse_style = tiled;
                me.memory.forget();
                bf16_call call(me.memory, run, me.rank());
                const auto step = [&]() -> std::string {
                  TRY_OK(call.enqueue<entry::strict>(channel, me.stream));
                  return "";
                };
                TRY(check_step(me, channel, 111, step, call));
              }
              // Strided entry takes them all.
              me.memory.forget();
              bf16_call strided(me.memory, {{2, 4, 11, 512}, tiled, tiled, packed}, me.rank());
              TRY(check_calls(me, channel, 112, strided));
              me.memory.forget();
              const gather_call<bf16> gather(me.memory, {{2, 4, 11, 64}, 24}, me.rank());
              return names(gather.enqueue<entry::strict>(channel, me.stream), "gathered");
            }) == "");
}
