// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The kernel gives the bits of the host loops. What is drawn at run time costs nothing; each choice
// of types costs half a second of nvcc.

#include <headwise/kernel/lse_combine.cuh>
#include <headwise/reference/lse_combine.hpp>
#include <headwise/reference/pack.hpp>
#include <headwise/view/slice.hpp>

#include <support/device.hpp>
#include <support/exact_combine.hpp>
#include <support/random.hpp>
#include <support/scatter.hpp>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

constexpr auto e = log_base::e;
constexpr auto two = log_base::two;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

template <class T>
using rows_layout = typename rows_operand<T>::layout_type;
using plane_layout = plane_operand<float>::layout_type;
using shard_rows = layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
using shard_planes = layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>>;

constexpr index_t head_dims[] = {1, 8, 33, 66, 80, 96, 100, 192, 512, 576};

using says_empty = nan_policy::empty;
using says_nan = nan_policy::propagate;

// ---- values --------------------------------------------------------------------------------

/// An LSE: often a number, sometimes one far from the others, one that says "no keys" in any of the
/// ways, or a sentinel.
float any_lse(random_source& random) {
  switch (random.in(0, 23)) {
    case 0: return -infinity;
    case 1: return infinity;
    case 2: return not_a_number;
    case 3: return -1e30f;
    case 4: return static_cast<float>(random.real(-300, 300));
    case 5: return 0.0f;
    case 6: return -0.0f;
    default: return static_cast<float>(random.real(-8, 8));
  }
}
/// A column of a row that has keys: often a number, rarely one that makes the sum NaN or infinite.
float any_column(random_source& random) {
  if (!random.one_in(200)) return static_cast<float>(random.real(-4, 4));
  const float rare[] = {infinity, -infinity, not_a_number, -0.0f, 0.0f, 1e-40f, 60000.0f};
  return rare[random.in(0, 6)];
}

/// Fills rows and LSEs of equal token and head extents. Rows without keys hold what was never
/// written (the poison, a NaN), NaN or infinities; no token at all has keys for some of the heads.
template <class Rows, class Lses>
void fill_partials(const Rows& rows, const Lses& lses, random_source& random) {
  using element = typename Rows::value_type;
  using lse_element = typename Lses::value_type;
  const bool clean = random.one_in(3);
  for (index_t t = 0; t < rows.template extent<axis::token>(); ++t) {
    for (index_t h = 0; h < rows.template extent<axis::head>(); ++h) {
      const float value = clean ? static_cast<float>(random.real(-8, 8)) : any_lse(random);
      lses(t, h) = from_float<lse_element>(value);
      const bool has_keys = detail::is_finite(to_float(lses(t, h)));
      const int garbage = has_keys ? 0 : static_cast<int>(random.in(0, 2));
      for (index_t d = 0; d < rows.template extent<axis::head_dim>(); ++d) {
        if (garbage == 2) continue;
        rows(t, h, d) = from_float<element>(garbage == 1 ? infinity : any_column(random));
      }
    }
  }
}

/// Sinks of a row of heads, those that decide everything among them.
template <class Sinks>
void fill_sinks(const Sinks& sinks, random_source& random) {
  for (index_t h = 0; h < sinks.template extent<axis::head>(); ++h) {
    const float value = random.one_in(4) ? any_lse(random) : static_cast<float>(random.real(-8, 8));
    sinks(h) = from_float<typename Sinks::value_type>(value);
  }
}

// ---- gathered shards -----------------------------------------------------------------------

struct combine_run {
  int ranks = 2;
  index_t tokens = 1;
  index_t heads = 1;
  index_t head_dim = 1;
  style rows_style = style::packed;
  style lse_style = style::packed;
  style result_style = style::packed;
  bool interleaved = false;  ///< rank inside of token and head
  int in_place = -1;         ///< the shard that gets the result
  index_t past = 0;          ///< elements that pointers are off their alignment
};

std::string told(const combine_run& run) {
  return std::to_string(run.ranks) + " ranks, " + std::to_string(run.tokens) + " tokens, " +
         std::to_string(run.heads) + " heads, " + std::to_string(run.head_dim) + " wide, styles " +
         std::to_string(static_cast<int>(run.rows_style)) + " " +
         std::to_string(static_cast<int>(run.lse_style)) + " " +
         std::to_string(static_cast<int>(run.result_style)) + ", interleaved " +
         std::to_string(run.interleaved) + ", in place " + std::to_string(run.in_place) +
         ", past " + std::to_string(run.past);
}

/// Strides of one rank, and from rank to rank.
struct rank_strides {
  row_strides row;
  index_t rank;
};
rank_strides strides_with_ranks(const combine_run& run, style which, index_t head_dim) {
  row_strides row = strides_of(which, run.tokens, run.heads, head_dim);
  if (run.interleaved) {
    const index_t rank = row.token < row.head ? row.token : row.head;
    return {{row.token * run.ranks, row.head * run.ranks, row.head_dim}, rank};
  }
  const index_t span =
      (run.tokens - 1) * row.token + (run.heads - 1) * row.head + (head_dim - 1) * row.head_dim + 1;
  return {row, detail::round_up(span, 16)};
}

shard_rows gathered_rows_of(const combine_run& run) {
  const rank_strides s = strides_with_ranks(run, run.rows_style, run.head_dim);
  return {dim<axis::rank>(run.ranks, s.rank), dim<axis::token>(run.tokens, s.row.token),
          dim<axis::head>(run.heads, s.row.head),
          dim<axis::head_dim>(run.head_dim, s.row.head_dim)};
}
shard_planes gathered_lses_of(const combine_run& run) {
  const rank_strides s = strides_with_ranks(run, run.lse_style, 1);
  return {dim<axis::rank>(run.ranks, s.rank), dim<axis::token>(run.tokens, s.row.token),
          dim<axis::head>(run.heads, s.row.head)};
}

/// Runs the kernel to its end.
template <log_base Base, class Source, class Output, class Merged, class Sink = none_t,
          class Policy = says_empty>
void combine_there(const Source& source, const Output& output, const Merged& merged,
                   const Sink& sink = {}, const Policy& policy = {}) {
  const stream on;
  REQUIRE(kernel::lse_combine<Base>(source, output, cudaStream_t{on}, merged, sink, policy).ok());
  on.wait();
}

/// Combines at both places: the same bits.
template <log_base Base, class Here, class There, class Output, class Merged, class Sink = none_t,
          class SinkThere = none_t>
void check_combine(const Here& here, const There& there, Output& output, Merged& merged,
                   const Sink& sink = {}, const SinkThere& sink_there = {}) {
  REQUIRE(reference::lse_combine<Base>(here, output.here(), merged.here(), sink).ok());
  combine_there<Base>(there, output.there(), merged.there(), sink_there);
  CHECK(output.differences() == 0);
  CHECK(merged.differences() == 0);
}

/// One combine of gathered shards at both places. `HeadMajor`: the order of the output's axes.
template <class T, class Lse, class Result, log_base Base, bool Merged, bool Sink, class Policy,
          bool HeadMajor = false>
void check_gathered(const combine_run& run, random_source& random) {
  const std::string which = told(run);
  INFO(which);
  using result_operand = rows_operand<Result, HeadMajor>;
  operand<T, shard_rows> rows(gathered_rows_of(run), run.past);
  operand<Lse, shard_planes> lses(gathered_lses_of(run), run.past);
  operand<Result, typename result_operand::layout_type> output(
      result_operand::layout_of(run.result_style, run.tokens, run.heads, run.head_dim), run.past);
  operand<float, plane_layout> merged(
      plane_operand<float>::layout_of(run.result_style, run.tokens, run.heads), run.past);
  operand<float, layout<dim<axis::head>>> sinks(
      layout<dim<axis::head>>(dim<axis::head>(run.heads, random.in(1, 3))));
  for (int r = 0; r < run.ranks; ++r) {
    fill_partials(fix<axis::rank>(rows.here(), r), fix<axis::rank>(lses.here(), r), random);
  }
  fill_sinks(sinks.here(), random);
  rows.upload();
  lses.upload();
  sinks.upload();

  const stream on;
  const auto on_host = [&](const auto& result, const auto& result_lse, const auto& sink) {
    return reference::lse_combine<Base>(gathered_shards{rows.input(), lses.input()}, result,
                                        result_lse, sink, Policy{});
  };
  const auto on_gpu = [&](const auto& result, const auto& result_lse, const auto& sink) {
    return kernel::lse_combine<Base>(gathered_shards{rows.input_there(), lses.input_there()},
                                     result, cudaStream_t{on}, result_lse, sink, Policy{});
  };
  const auto at_both = [&](const auto& here, const auto& there, const auto& lse_here,
                           const auto& lse_there) {
    if constexpr (Sink) {
      REQUIRE(on_host(here, lse_here, sinks.input()).ok());
      REQUIRE(on_gpu(there, lse_there, sinks.input_there()).ok());
    } else {
      REQUIRE(on_host(here, lse_here, none).ok());
      REQUIRE(on_gpu(there, lse_there, none).ok());
    }
  };
  constexpr bool may_be_in_place = std::is_same_v<T, Result> && !HeadMajor;
  if (may_be_in_place && run.in_place >= 0) {
    const auto own = [&](const auto& all) { return fix<axis::rank>(all, run.in_place); };
    if constexpr (may_be_in_place && Merged && std::is_same_v<Lse, float>) {
      at_both(own(rows.here()), own(rows.there()), own(lses.here()), own(lses.there()));
    } else if constexpr (may_be_in_place && Merged) {
      at_both(own(rows.here()), own(rows.there()), merged.here(), merged.there());
    } else if constexpr (may_be_in_place) {
      at_both(own(rows.here()), own(rows.there()), none, none);
    }
  } else if constexpr (Merged) {
    at_both(output.here(), output.there(), merged.here(), merged.there());
  } else {
    at_both(output.here(), output.there(), none, none);
  }
  on.wait();
  CHECK(output.differences() == 0);
  CHECK(merged.differences() == 0);
  CHECK(rows.differences() == 0);
  CHECK(lses.differences() == 0);
  CHECK(sinks.differences() == 0);
}

/// Every number of ranks with every head dim and every style of strides; the rest drawn.
void check_all_gathered(std::uint64_t seed, void (*check)(const combine_run&, random_source&)) {
  random_source random(seed);
  std::size_t count = 0;
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const style which : all_styles) {
      check({ranks, random.in(1, 5), random.in(1, 4), head_dims[count++ % 10], which,
             any_style(random), any_style(random), random.one_in(3),
             random.one_in(3) ? static_cast<int>(random.in(0, ranks - 1)) : -1,
             random.one_in(3) ? random.in(1, 3) : 0},
            random);
    }
  }
  for (const index_t head_dim : head_dims) {
    for (const int ranks : {1, 2, 3, 8, 9, 16}) {
      for (const bool in_place : {false, true}) {
        check({ranks, random.in(1, 5), random.in(1, 4), head_dim, style::packed, style::packed,
               style::packed, false, in_place ? static_cast<int>(random.in(0, ranks - 1)) : -1, 0},
              random);
      }
    }
  }
}

}  // namespace

TEST_CASE("lse_combine kernel: the bits of the host: gathered bf16, base e") {
  check_all_gathered(61, check_gathered<bf16, float, bf16, e, true, false, says_empty>);
}
TEST_CASE("lse_combine kernel: the bits of the host: gathered fp32, base two, a sink, NaN kept") {
  check_all_gathered(62, check_gathered<float, lse<two>, float, two, true, true, says_nan>);
}
TEST_CASE("lse_combine kernel: the bits of the host: gathered fp16, LSE in fp16, a sentinel") {
  check_all_gathered(63, check_gathered<fp16, fp16, fp16, e, false, true, sentinel>);
}
TEST_CASE("lse_combine kernel: the bits of the host: gathered bf16 into fp32, head-major") {
  check_all_gathered(64, check_gathered<bf16, float, float, e, true, false, says_empty, true>);
}
TEST_CASE("lse_combine kernel: the bits of the host: gathered fp32 into fp16, LSE in bf16") {
  check_all_gathered(65, check_gathered<float, bf16, fp16, e, true, false, says_empty>);
}
TEST_CASE("lse_combine kernel: the bits of the host: gathered fp32, base e, a sentinel") {
  check_all_gathered(67, check_gathered<float, float, float, e, true, false, sentinel>);
}

TEST_CASE("lse_combine kernel: rows of more than one pass, in place too") {
  random_source random(68);
  for (const index_t head_dim : {1032, 2048, 4608}) {
    for (const int ranks : {1, 2, 3, 8, 9, 16}) {
      for (const int in_place : {-1, 0, ranks - 1}) {
        const combine_run run{ranks,         2,     3,       head_dim, style::packed, style::packed,
                              style::packed, false, in_place};
        check_gathered<float, float, float, e, true, false, says_empty>(run, random);
        check_gathered<bf16, float, bf16, e, true, false, says_empty>(run, random);
      }
    }
  }
}

TEST_CASE("lse_combine kernel: as many rows as fill the device, and the last block not full") {
  random_source random(69);
  for (const index_t tokens : {257, 1001}) {
    for (const int ranks : {2, 6, 12}) {
      for (const int in_place : {-1, 1}) {
        const combine_run run{ranks,         tokens,        5,     66,      style::packed,
                              style::packed, style::packed, false, in_place};
        check_gathered<float, float, float, e, true, false, says_empty>(run, random);
        check_gathered<bf16, float, bf16, e, true, false, says_empty>(run, random);
      }
    }
  }
}

// ---- static types --------------------------------------------------------------------------

namespace {

template <class T, index_t Live, index_t Padded, log_base Base>
void check_static_heads(random_source& random, int ranks, index_t tokens) {
  using rows_type = layout<dim<axis::rank>, dim<axis::token, dynamic_extent, Padded * 512>,
                           dim<axis::head, Live, 512>, dim<axis::head_dim, 512, 1>>;
  using lses_type =
      layout<dim<axis::rank>, dim<axis::token, dynamic_extent, Padded>, dim<axis::head, Live, 1>>;
  using output_type =
      packed_layout_t<extent<axis::token>, extent<axis::head, Live>, extent<axis::head_dim, 512>>;
  using merged_type = packed_layout_t<extent<axis::token>, extent<axis::head, Live>>;
  CAPTURE(ranks);
  CAPTURE(tokens);
  operand<T, rows_type> rows(rows_type(dim<axis::rank>(ranks, tokens * Padded * 512),
                                       dim<axis::token, dynamic_extent, Padded * 512>(tokens), {},
                                       {}));
  operand<float, lses_type> lses(lses_type(dim<axis::rank>(ranks, tokens * Padded),
                                           dim<axis::token, dynamic_extent, Padded>(tokens), {}));
  operand<T, output_type> output(packed(extent<axis::token>(tokens), extent<axis::head, Live>(),
                                        extent<axis::head_dim, 512>()));
  operand<float, merged_type> merged(
      packed(extent<axis::token>(tokens), extent<axis::head, Live>()));
  for (index_t r = 0; r < ranks; ++r) {
    const layout one(dim<axis::token>(tokens, Padded * 512), dim<axis::head>(Live, 512),
                     dim<axis::head_dim>(512, 1));
    const layout its_lses(dim<axis::token>(tokens, Padded), dim<axis::head>(Live, 1));
    fill_partials(view(rows.host.data() + r * tokens * Padded * 512, one),
                  view(lses.host.data() + r * tokens * Padded, its_lses), random);
  }
  rows.upload();
  lses.upload();
  check_combine<Base>(gathered_shards{rows.input(), lses.input()},
                      gathered_shards{rows.input_there(), lses.input_there()}, output, merged);
}

}  // namespace

TEST_CASE("lse_combine kernel: live heads of a padded buffer, known in the type") {
  random_source random(70);
  for (const int ranks : {1, 2, 3, 6, 9}) {
    for (const index_t tokens : {1, 4}) {
      check_static_heads<bf16, 22, 32, e>(random, ranks, tokens);
      check_static_heads<fp16, 128, 144, two>(random, ranks, tokens);
    }
  }
}

// ---- messages ------------------------------------------------------------------------------

namespace {

/// What came from the peers of `receiver` in this format, or from all but one of them: row by row,
/// so for either place of the peer axis.
template <class T, class Lse, log_base Base>
void receive(const scatter_problem<T, Base>& problem, const message_plan& plan, index_t receiver,
             index_t left_out, guarded<std::byte>& received) {
  for (index_t s = 0; s < plan.shape.ranks; ++s) {
    if (s == left_out) continue;
    rows_operand<T> rows(style::packed, plan.shape.tokens, problem.shape.all_heads(),
                         plan.shape.head_dim);
    plane_operand<Lse> lses(style::packed, plan.shape.tokens, problem.shape.all_heads());
    problem.put(s, rows, lses);
    guarded<std::byte> sent(plan.total_bytes);
    REQUIRE(reference::pack<Base>(rows.input(), lses.input(), plan, sent.data()).ok());
    for (index_t t = 0; t < plan.shape.tokens; ++t) {
      for (index_t h = 0; h < plan.shape.heads; ++h) {
        std::memcpy(received.data() + plan.payload_at(s, t, h),
                    sent.data() + plan.payload_at(receiver, t, h),
                    static_cast<std::size_t>(plan.shape.head_dim * plan.element_bytes));
        std::memcpy(received.data() + plan.lse_at(s, t, h),
                    sent.data() + plan.lse_at(receiver, t, h), sizeof(float));
      }
    }
  }
}

/// Counts of keys per token, in host memory and on the device.
struct key_counts {
  operand<std::int32_t, layout<dim<axis::token>>> counts;

  key_counts(index_t tokens, random_source& random)
      : counts(layout<dim<axis::token>>(dim<axis::token>(tokens, random.in(1, 2)))) {
    for (index_t t = 0; t < tokens; ++t) {
      counts.here()(t) = static_cast<std::int32_t>(random.one_of({0, 1, 70, 70}));
    }
    counts.upload();
  }
};

/// Combines what rank `me` received, its own part from a message too or from where it is.
template <class T, class Lse, log_base Base, bool Exchanged, bool Counts, bool Sink>
void check_messages(const scatter_shape& shape, const message_format& format, wire_order order,
                    index_t me, random_source& random) {
  CAPTURE(shape.ranks);
  CAPTURE(shape.tokens);
  CAPTURE(shape.heads);
  CAPTURE(shape.head_dim);
  CAPTURE(me);
  const scatter_problem<T, Base> problem{shape, random.bits(), true};
  const message_plan plan = message_plan::make<T>(shape.message(), format, order).value();
  operand<std::byte, layout<dim<axis::slot, dynamic_extent, 1>>> message(
      layout(dim<axis::slot, dynamic_extent, 1>(plan.total_bytes)));
  receive<T, Lse>(problem, plan, me, Exchanged ? me : no_peer, message.host);
  message.upload();

  // This rank's own heads of its own partial result.
  const style own_style = any_style(random), own_lse_style = any_style(random);
  rows_operand<T> rows(own_style, shape.tokens, shape.all_heads(), shape.head_dim);
  plane_operand<Lse> lses(own_lse_style, shape.tokens, shape.all_heads());
  problem.put(me, rows, lses);
  const device_array<T> rows_there(rows.memory);
  const device_array<Lse> lses_there(lses.memory);
  const auto own_heads = [&](const auto& all) {
    return slice<axis::head>(all, me * shape.heads, shape.heads).value();
  };
  key_counts keys(shape.tokens, random);
  operand<fp16, layout<dim<axis::head>>> sinks(
      layout<dim<axis::head>>(dim<axis::head>(shape.heads, 1)));
  fill_sinks(sinks.here(), random);
  sinks.upload();

  const style result_style = any_style(random);
  operand<T, rows_layout<T>> output(
      rows_operand<T>::layout_of(result_style, shape.tokens, shape.heads, shape.head_dim));
  operand<float, plane_layout> merged(
      plane_operand<float>::layout_of(any_style(random), shape.tokens, shape.heads));
  const auto combine_at_both = [&](const auto& here, const auto& there) {
    if constexpr (Sink) {
      check_combine<Base>(here, there, output, merged, sinks.input(), sinks.input_there());
    } else {
      check_combine<Base>(here, there, output, merged);
    }
  };
  const received_shards<T> came{plan, message.host.data()};
  const received_shards<T> came_there{plan, message.device.data()};
  const auto with_own = [&](const auto& valid, const auto& valid_there) {
    const auto own = own_heads(rows.input());
    const auto own_lse = own_heads(lses.input());
    const auto own_there = own_heads(on_device<const T>(rows_there.data(), rows.input()));
    const auto own_lse_there = own_heads(on_device<const Lse>(lses_there.data(), lses.input()));
    combine_at_both(exchanged_shards{came, shard{own, own_lse, valid}, static_cast<int>(me)},
                    exchanged_shards{came_there, shard{own_there, own_lse_there, valid_there},
                                     static_cast<int>(me)});
  };
  if constexpr (!Exchanged) {
    combine_at_both(came, came_there);
  } else if constexpr (Counts) {
    with_own(keys.counts.input(), keys.counts.input_there());
  } else {
    with_own(none, none);
  }
  CHECK(message.differences() == 0);
  if constexpr (!Sink && !(Exchanged && Counts)) {
    // The same from float64.
    rows_operand<T> got(result_style, shape.tokens, shape.heads, shape.head_dim);
    const std::vector<T> bits = output.device.fetch();
    std::memcpy(got.memory.data(), bits.data(), bits.size() * sizeof(T));
    plane_operand<float> got_lse(style::packed, shape.tokens, shape.heads);
    const std::vector<float> lse_bits = merged.device.fetch();
    for_each_element(merged.here(), [&](const auto& at, index_t offset) {
      got_lse.view()(at[0], at[1]) = lse_bits[static_cast<std::size_t>(offset)];
    });
    CHECK(problem.wrong_rows(me, got, got_lse) == 0);
  }
}

void check_all_messages(std::uint64_t seed,
                        void (*check)(const scatter_shape&, const message_format&, wire_order,
                                      index_t, random_source&)) {
  random_source random(seed);
  std::size_t count = 0;
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const message_format& format : all_formats) {
      for (const wire_order order : {wire_order::token_major, wire_order::head_major}) {
        const index_t head_dim = head_dims[count++ % 10];
        const index_t most = ranks * head_dim > 1000 ? 1 : 3;
        check({ranks, random.in(1, most + 1), random.in(1, most), head_dim}, format, order,
              random.in(0, ranks - 1), random);
      }
    }
    ++count;
  }
}

}  // namespace

TEST_CASE("lse_combine kernel: the bits of the host: received bf16, base e") {
  check_all_messages(71, check_messages<bf16, float, e, false, false, false>);
}
TEST_CASE("lse_combine kernel: the bits of the host: received fp16, base two, a sink in fp16") {
  check_all_messages(72, check_messages<fp16, float, two, false, false, true>);
}
TEST_CASE("lse_combine kernel: the bits of the host: exchanged bf16, base two, own counts") {
  check_all_messages(74, check_messages<bf16, fp16, two, true, true, false>);
}
TEST_CASE("lse_combine kernel: the bits of the host: exchanged fp32, base e") {
  check_all_messages(75, check_messages<float, float, e, true, false, false>);
}

// ---- one shard and separate shards ---------------------------------------------------------

namespace {

/// One partial result with strides of its own.
template <class T>
struct partial_operands {
  operand<T, rows_layout<T>> rows;
  operand<float, plane_layout> lses;

  partial_operands(const combine_run& run, random_source& random)
      : rows(rows_operand<T>::layout_of(any_style(random), run.tokens, run.heads, run.head_dim),
             run.past),
        lses(plane_operand<float>::layout_of(any_style(random), run.tokens, run.heads), run.past) {
    fill_partials(rows.here(), lses.here(), random);
    rows.upload();
    lses.upload();
  }
  auto here() { return shard{rows.input(), lses.input()}; }
  auto there() const { return shard{rows.input_there(), lses.input_there()}; }
};

/// Two or three separate shards, into a place of their own or in the place of one of them.
template <class T, log_base Base, int Shards>
void check_separate(const combine_run& run, random_source& random) {
  const std::string which = told(run);
  INFO(which);
  partial_operands<T> shards[3] = {{run, random}, {run, random}, {run, random}};
  operand<T, rows_layout<T>> output(
      rows_operand<T>::layout_of(run.result_style, run.tokens, run.heads, run.head_dim));
  operand<float, plane_layout> merged(
      plane_operand<float>::layout_of(run.result_style, run.tokens, run.heads));
  auto& to = run.in_place < 0 ? output : shards[run.in_place].rows;
  auto& lse_to = run.in_place < 0 ? merged : shards[run.in_place].lses;
  if constexpr (Shards == 2) {
    check_combine<Base>(separate_shards(shards[0].here(), shards[1].here()),
                        separate_shards(shards[0].there(), shards[1].there()), to, lse_to);
  } else {
    check_combine<Base>(separate_shards(shards[0].here(), shards[1].here(), shards[2].here()),
                        separate_shards(shards[0].there(), shards[1].there(), shards[2].there()),
                        to, lse_to);
  }
  CHECK(output.differences() == 0);
  CHECK(merged.differences() == 0);
  for (partial_operands<T>& one : shards) {
    CHECK(one.rows.differences() == 0);
    CHECK(one.lses.differences() == 0);
  }
}

template <class T, log_base Base, int Shards>
void check_all_separate(std::uint64_t seed) {
  random_source random(seed);
  for (const index_t head_dim : {1, 8, 33, 66, 80, 96, 100, 192, 512, 576, 2048, 4608}) {
    for (int in_place = -1; in_place < Shards; ++in_place) {
      for (int i = 0; i < 3; ++i) {
        check_separate<T, Base, Shards>({Shards,
                                         random.in(1, 5),
                                         random.in(1, 4),
                                         head_dim,
                                         {},
                                         {},
                                         any_style(random),
                                         false,
                                         in_place,
                                         random.one_in(3) ? random.in(1, 3) : 0},
                                        random);
      }
    }
  }
}

}  // namespace

TEST_CASE("lse_combine kernel: the bits of the host: two separate shards, in place too") {
  check_all_separate<float, e, 2>(81);
}
TEST_CASE("lse_combine kernel: the bits of the host: three separate shards, in place too") {
  check_all_separate<bf16, two, 3>(82);
}
TEST_CASE("lse_combine kernel: the bits of the host: one shard with counts") {
  random_source random(83);
  for (const index_t head_dim : {1, 8, 33, 66, 512, 576}) {
    for (int i = 0; i < 4; ++i) {
      const combine_run run{1, random.in(1, 6), random.in(1, 4), head_dim};
      partial_operands<fp16> only(run, random);
      key_counts keys(run.tokens, random);
      const style which = any_style(random);
      operand<fp16, rows_layout<fp16>> output(
          rows_operand<fp16>::layout_of(which, run.tokens, run.heads, head_dim));
      operand<float, plane_layout> merged(
          plane_operand<float>::layout_of(which, run.tokens, run.heads));
      check_combine<e>(
          shard{only.rows.input(), only.lses.input(), keys.counts.input()},
          shard{only.rows.input_there(), only.lses.input_there(), keys.counts.input_there()},
          output, merged);
    }
  }
}

// ---- numbers -------------------------------------------------------------------------------

namespace {

template <class T>
struct outcome {
  std::vector<T> output;
  std::vector<float> merged;
};

/// Packed shards of one head, combined.
template <log_base Base, class T, class Policy = says_empty>
outcome<T> combined(const std::vector<T>& rows, const std::vector<float>& lses, index_t ranks,
                    index_t tokens, index_t head_dim) {
  const device_array<T> rows_there(rows);
  const device_array<float> lses_there(lses);
  const device_array<T> output(tokens * head_dim);
  const device_array<float> merged(tokens);
  const view<const T, shard_rows, memory_space::device> shards{
      rows_there.data(),
      {dim<axis::rank>(ranks, tokens * head_dim), dim<axis::token>(tokens, head_dim),
       dim<axis::head>(1, head_dim), dim<axis::head_dim>(head_dim, 1)}};
  const view<const float, shard_planes, memory_space::device> shard_lses{
      lses_there.data(),
      {dim<axis::rank>(ranks, tokens), dim<axis::token>(tokens, 1), dim<axis::head>(1, 1)}};
  combine_there<Base>(
      gathered_shards{shards, shard_lses},
      make_view<memory_space::device>(
          output.data(), rows_operand<T>::layout_of(style::packed, tokens, 1, head_dim)),
      make_view<memory_space::device>(merged.data(),
                                      plane_operand<float>::layout_of(style::packed, tokens, 1)),
      none, Policy{});
  CHECK(output.stray_bytes() == 0);
  CHECK(merged.stray_bytes() == 0);
  return {output.fetch(), merged.fetch()};
}

bool near(float got, double exact) {
  return static_cast<double>(got) == doctest::Approx(exact).epsilon(1e-6);
}

}  // namespace

TEST_CASE("A08: lse_combine kernel: each partial result is read by its own strides") {
  // Prefix dense, suffix cut from rows of 192 whose tails are NaN.
  const rows_layout<float> dense = rows_operand<float>::layout_of(style::packed, 1, 2, 128);
  operand<float, rows_layout<float>> prefix(dense), result(dense);
  operand<float, rows_layout<float>> suffix(rows_layout<float>(
      dim<axis::token>(1, 384), dim<axis::head>(2, 192), dim<axis::head_dim>(128, 1)));
  const plane_layout plane = plane_operand<float>::layout_of(style::packed, 1, 2);
  operand<float, plane_layout> prefix_lse(plane), suffix_lse(plane), merged(plane);
  fill(prefix.here(), [](const auto&) { return 1.0f; });
  fill(suffix.here(), [](const auto& at) { return at[1] == 0 ? 3.0f : 5.0f; });
  fill(prefix_lse.here(), [](const auto&) { return 0.0f; });
  fill(suffix_lse.here(), [](const auto&) { return 0.0f; });
  prefix.upload();
  suffix.upload();
  prefix_lse.upload();
  suffix_lse.upload();
  combine_there<e>(separate_shards(shard{prefix.input_there(), prefix_lse.input_there()},
                                   shard{suffix.input_there(), suffix_lse.input_there()}),
                   result.there(), merged.there());
  fill(result.here(), [](const auto& at) { return at[1] == 0 ? 2.0f : 3.0f; });
  CHECK(result.differences() == 0);
  for (const float lse : merged.device.fetch()) CHECK(near(lse, std::log(2.0)));
  CHECK(suffix.differences() == 0);
}

TEST_CASE("A10: lse_combine kernel: padded accumulators are read by their strides") {
  // Two splits 16 apart, heads 8 apart, of which two and two are used.
  operand<float, shard_rows> rows(shard_rows(dim<axis::rank>(2, 16), dim<axis::token>(1, 16),
                                             dim<axis::head>(2, 8), dim<axis::head_dim>(4, 1)));
  operand<float, shard_planes> lses(
      shard_planes(dim<axis::rank>(2, 16), dim<axis::token>(1, 16), dim<axis::head>(2, 8)));
  operand<float, rows_layout<float>> result(rows_operand<float>::layout_of(style::packed, 1, 2, 4));
  operand<float, plane_layout> merged(plane_operand<float>::layout_of(style::packed, 1, 2));
  fill(rows.here(), [](const auto& at) { return at[0] == 0 ? 1.0f : 3.0f; });
  fill(lses.here(), [](const auto&) { return 0.0f; });
  rows.upload();
  lses.upload();
  combine_there<e>(gathered_shards{rows.input_there(), lses.input_there()}, result.there(),
                   merged.there());
  fill(result.here(), [](const auto&) { return 2.0f; });
  CHECK(result.differences() == 0);
  for (const float lse : merged.device.fetch()) CHECK(near(lse, std::log(2.0)));
  CHECK(rows.differences() == 0);
  CHECK(lses.differences() == 0);
}

TEST_CASE("A11: lse_combine kernel: rows of the output are the output's own stride apart") {
  const combine_run run{2, 4, 2, 64};
  operand<float, shard_rows> rows(gathered_rows_of(run));
  operand<float, shard_planes> lses(gathered_lses_of(run));
  operand<float, rows_layout<float>> result(
      rows_operand<float>::layout_of(style::packed, 4, 2, 64));
  CHECK(result.shape.stride<axis::token>() == 128);
  operand<float, plane_layout> merged(plane_operand<float>::layout_of(style::packed, 4, 2));
  fill(rows.here(), [](const auto& at) { return static_cast<float>(10 * at[1] + at[2]); });
  fill(lses.here(), [](const auto&) { return 0.5f; });
  rows.upload();
  lses.upload();
  combine_there<e>(gathered_shards{rows.input_there(), lses.input_there()}, result.there(),
                   merged.there());
  fill(result.here(), [](const auto& at) { return static_cast<float>(10 * at[0] + at[1]); });
  CHECK(result.differences() == 0);
}

TEST_CASE("B08: lse_combine kernel: +inf says no keys, as -inf does") {
  const auto one_live = combined<e>(std::vector{0.0f, 2.0f}, {infinity, 1.0f}, 2, 1, 1);
  CHECK(one_live.output[0] == 2.0f);
  CHECK(one_live.merged[0] == 1.0f);
  const auto no_keys = combined<e>(std::vector{not_a_number, 2.0f}, {infinity, infinity}, 2, 1, 1);
  CHECK(same_bits(no_keys.output[0], 0.0f));
  CHECK(no_keys.merged[0] == -infinity);
}

TEST_CASE("C01: lse_combine kernel: LSEs in base 2 are combined in base 2") {
  const auto got = combined<two>(std::vector{1.0f, 5.0f}, {0.0f, 1.5849625f}, 2, 1, 1);
  CHECK(near(got.output[0], 4.0));
  CHECK(near(got.merged[0], 2.0));
}

TEST_CASE("C04: lse_combine kernel: nothing merged with nothing is exactly nothing") {
  for (const index_t ranks : {1, 2, 3, 8, 9, 16}) {
    CAPTURE(ranks);
    const auto count = static_cast<std::size_t>(ranks);
    const auto got = combined<e>(std::vector<fp16>(count * 64, fp16{0xffff}),
                                 std::vector<float>(count, -infinity), ranks, 1, 64);
    CHECK(got.output == std::vector<fp16>(64, fp16{0}));
    CHECK(got.merged[0] == -infinity);
  }
}

namespace {

/// Two separate fp32 shards of one head, in the place of one of them.
outcome<float> combined_in_place(const std::vector<float>& rows, const std::vector<float>& lses,
                                 index_t tokens, index_t head_dim, int into) {
  const rows_layout<float> shape =
      rows_operand<float>::layout_of(style::packed, tokens, 1, head_dim);
  const plane_layout plane = plane_operand<float>::layout_of(style::packed, tokens, 1);
  const device_array<float> rows_there(rows);
  const device_array<float> lses_there(lses);
  const auto row = [&](index_t s) {
    return make_view<memory_space::device>(rows_there.data() + s * tokens * head_dim, shape);
  };
  const auto lse = [&](index_t s) {
    return make_view<memory_space::device>(lses_there.data() + s * tokens, plane);
  };
  using const_rows = view<const float, rows_layout<float>, memory_space::device>;
  using const_plane = view<const float, plane_layout, memory_space::device>;
  combine_there<e>(separate_shards(shard{const_rows(row(0)), const_plane(lse(0))},
                                   shard{const_rows(row(1)), const_plane(lse(1))}),
                   row(into), lse(into));
  const std::vector<float> all = rows_there.fetch(), all_lses = lses_there.fetch();
  const auto part = [into](const std::vector<float>& of, index_t count) {
    return std::vector<float>(of.begin() + into * count, of.begin() + (into + 1) * count);
  };
  // The other shard is as it was.
  CHECK(std::memcmp(all.data() + (1 - into) * tokens * head_dim,
                    rows.data() + (1 - into) * tokens * head_dim,
                    static_cast<std::size_t>(tokens * head_dim) * sizeof(float)) == 0);
  return {part(all, tokens * head_dim), part(all_lses, tokens)};
}

const std::vector<float> mixed_rows{7, 7, 7, 7, 9, 9, 9, 9};
const std::vector<float> mixed_lses{-infinity, -infinity, 0,         infinity,
                                    -infinity, 0,         -infinity, infinity};
const std::vector<float> mixed_output{0, 9, 7, 0};
const std::vector<float> mixed_merged{-infinity, 0, 0, -infinity};

}  // namespace

TEST_CASE("C04: lse_combine kernel: nothing merged with nothing in place") {
  for (const int into : {0, 1}) {
    const auto got = combined_in_place(std::vector<float>(128, not_a_number),
                                       {-infinity, -infinity}, 1, 64, into);
    for (const float value : got.output) CHECK(same_bits(value, 0.0f));
    CHECK(got.merged[0] == -infinity);
  }
}

TEST_CASE("C05: lse_combine kernel: empty, half empty and full rows in one batch") {
  const auto by_e = combined<e>(mixed_rows, mixed_lses, 2, 4, 1);
  CHECK(by_e.output == mixed_output);
  CHECK(by_e.merged == mixed_merged);
  const auto by_two = combined<two>(mixed_rows, mixed_lses, 2, 4, 1);
  CHECK(by_two.output == mixed_output);
  CHECK(by_two.merged == mixed_merged);
  for (const int into : {0, 1}) {
    const auto in_place = combined_in_place(mixed_rows, mixed_lses, 4, 1, into);
    CHECK(in_place.output == mixed_output);
    CHECK(in_place.merged == mixed_merged);
  }
}

TEST_CASE("C07: lse_combine kernel: a NaN is seen where asked for; -1e30 is a number") {
  const auto seen = combined<e, float, says_nan>({1, 2}, {not_a_number, 0}, 2, 1, 1);
  CHECK(detail::float_bits(seen.output[0]) == 0x7fffffffu);
  CHECK(detail::float_bits(seen.merged[0]) == 0x7fffffffu);
  const auto number = combined<e>(std::vector{2.0f, 4.0f}, {-1e30f, -1e30f}, 2, 1, 1);
  CHECK(number.output[0] == 3.0f);
  CHECK(number.merged[0] == -1e30f);
  const auto empty = combined<e, float, sentinel>({2, 4}, {-1e30f, -1e30f}, 2, 1, 1);
  CHECK(same_bits(empty.output[0], 0.0f));
  CHECK(empty.merged[0] == -infinity);
}

TEST_CASE("C08: lse_combine kernel: the payload of an idle rank never reaches the result") {
  float never_written = 0;
  std::memset(&never_written, 0xff, sizeof never_written);
  for (const float payload : {not_a_number, infinity, -infinity, never_written}) {
    for (const float no_keys : {-infinity, infinity, not_a_number}) {
      for (const index_t ranks : {2, 3, 8, 16}) {
        for (const index_t live : {index_t{0}, ranks - 1}) {
          std::vector<float> rows(static_cast<std::size_t>(ranks * 16), payload);
          std::vector<float> lses(static_cast<std::size_t>(ranks), no_keys);
          for (index_t d = 0; d < 16; ++d) rows[static_cast<std::size_t>(16 * live + d)] = 5.0f;
          lses[static_cast<std::size_t>(live)] = 0.0f;
          const auto got = combined<e>(rows, lses, ranks, 1, 16);
          CHECK(got.output == std::vector<float>(16, 5.0f));
          CHECK(same_bits(got.merged[0], 0.0f));
        }
      }
      std::vector<float> rows(32, 5.0f);
      for (std::size_t d = 0; d < 16; ++d) rows[d] = payload;
      const auto got = combined_in_place(rows, {no_keys, 0.0f}, 1, 16, 0);
      CHECK(got.output == std::vector<float>(16, 5.0f));
      CHECK(same_bits(got.merged[0], 0.0f));
    }
  }
}

TEST_CASE("C09: lse_combine kernel: an LSE far above the other one") {
  const auto got = combined<e>(std::vector{1.0f, 5.0f}, {0.0f, 200.0f}, 2, 1, 1);
  CHECK(got.output[0] == 5.0f);
  CHECK(got.merged[0] == 200.0f);
}

TEST_CASE("C11: lse_combine kernel: LSEs below what others take for nothing") {
  const auto got = combined<e>(std::vector{2.0f, 6.0f}, {-60000.0f, -60001.0f}, 2, 1, 1);
  CHECK(near(got.output[0], 3.0757657));
  constexpr double exact = -59999.68673831;
  CHECK(std::fabs(static_cast<double>(got.merged[0]) - exact) <= lse_bound(e, 2, exact));
}

TEST_CASE("C16: lse_combine kernel: sixteen-bit partials are summed in fp32 and rounded once") {
  // Eight equal weights of 1/8, so the partials are eight times 256, 1, 1, ...
  std::vector<bf16> rows(8 * 4, from_float<bf16>(8.0f));
  for (std::size_t d = 0; d < 4; ++d) rows[d] = from_float<bf16>(2048.0f);
  const auto got = combined<e>(rows, std::vector<float>(8, 1.25f), 8, 1, 4);
  // 263 is half way between 262 and 264; the even one is 264. A bf16 sum would stay at 256.
  CHECK(got.output == std::vector<bf16>(4, from_float<bf16>(264.0f)));
}

TEST_CASE("lse_combine kernel: sums that are NaN, infinite or -0") {
  const auto of = [](float first, float second, float lse) {
    // Odd and even widths, and one that is a multiple of 16 bytes.
    std::vector<std::uint32_t> bits;
    for (const index_t head_dim : {1, 3, 8}) {
      const auto columns = static_cast<std::size_t>(head_dim);
      std::vector<float> rows(columns, first);
      rows.insert(rows.end(), columns, second);
      const auto got = combined<e>(rows, {lse, lse}, 2, 1, head_dim);
      for (const float value : got.output) bits.push_back(detail::float_bits(value));
    }
    return bits;
  };
  const auto all = [](float value) {
    return std::vector<std::uint32_t>(12, detail::float_bits(value));
  };
  float other_nan = 0;
  const std::uint32_t other_bits = 0xffaaaaaau;
  std::memcpy(&other_nan, &other_bits, sizeof other_nan);
  CHECK(of(-0.0f, -0.0f, 1.0f) == all(-0.0f));
  CHECK(of(-0.0f, 0.0f, 1.0f) == all(0.0f));
  CHECK(of(infinity, 1.0f, 1.0f) == all(infinity));
  CHECK(of(-infinity, 1.0f, 1.0f) == all(-infinity));
  CHECK(of(infinity, -infinity, 1.0f) == all(detail::canonical_nan()));
  CHECK(of(other_nan, 1.0f, 1.0f) == all(detail::canonical_nan()));
  CHECK(of(-0.0f, -0.0f, -infinity) == all(0.0f));
}

TEST_CASE("C19: lse_combine kernel: a row has the same bits alone, in a batch and on every rank") {
  random_source random(84);
  constexpr index_t tokens = 64;
  for (const index_t head_dim : {33, 128, 512}) {
    for (const index_t ranks : {2, 4, 9}) {
      CAPTURE(head_dim);
      CAPTURE(ranks);
      const index_t row = head_dim;
      std::vector<bf16> rows;
      std::vector<float> lses;
      for (index_t i = 0; i < ranks * tokens * row; ++i) {
        rows.push_back(from_float<bf16>(static_cast<float>(random.real(-4, 4))));
      }
      for (index_t i = 0; i < ranks * tokens; ++i) {
        lses.push_back(static_cast<float>(random.real(-6, 6)));
      }
      const auto batch = combined<e>(rows, lses, ranks, tokens, head_dim);
      const auto again = combined<e>(rows, lses, ranks, tokens, head_dim);
      CHECK(again.output == batch.output);
      CHECK(again.merged == batch.merged);
      const message_plan plan = message_plan::make<bf16>({ranks, 1, 1, row}).value();
      index_t wrong = 0;
      for (index_t b = 0; b < tokens; b += 7) {
        std::vector<bf16> row_alone;
        std::vector<float> lse_alone;
        guarded<std::byte> message(plan.total_bytes);
        for (index_t r = 0; r < ranks; ++r) {
          const auto at = rows.begin() + (r * tokens + b) * row;
          row_alone.insert(row_alone.end(), at, at + row);
          lse_alone.push_back(lses[static_cast<std::size_t>(r * tokens + b)]);
          std::memcpy(message.data() + plan.payload_at(r, 0, 0), &*at,
                      static_cast<std::size_t>(row) * sizeof(bf16));
          std::memcpy(message.data() + plan.lse_at(r, 0, 0), &lse_alone.back(), sizeof(float));
        }
        const auto alone = combined<e>(row_alone, lse_alone, ranks, 1, head_dim);
        // As any rank of a group gets it.
        const device_array<std::byte> received(message);
        const device_array<bf16> output(row);
        const device_array<float> merged(1);
        combine_there<e>(
            received_shards<bf16>{plan, received.data()},
            make_view<memory_space::device>(
                output.data(), rows_operand<bf16>::layout_of(style::packed, 1, 1, row)),
            make_view<memory_space::device>(merged.data(),
                                            plane_operand<float>::layout_of(style::packed, 1, 1)));
        const auto first = batch.output.begin() + b * row;
        const std::vector<bf16> in_batch(first, first + row);
        wrong += alone.output == in_batch ? 0 : 1;
        wrong += output.fetch() == in_batch ? 0 : 1;
        const float lse = batch.merged[static_cast<std::size_t>(b)];
        wrong += same_bits(alone.merged[0], lse) && same_bits(merged.fetch()[0], lse) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

// ---- sizes ---------------------------------------------------------------------------------

TEST_CASE("F06: lse_combine kernel: no count of rows is too many") {
  random_source random(85);
  const auto check_size = check_gathered<float, float, float, e, true, false, says_empty>;
  for (const index_t tokens : {65535, 65536, 70000}) check_size({2, tokens, 1, 8}, random);
  check_size({2, 1024, 64, 8}, random);
}

TEST_CASE("F08: lse_combine kernel: no count of heads is too many") {
  random_source random(86);
  for (const index_t head_dim : {128, 256, 512}) {
    for (const index_t heads : {64, 65, 96, 97, 128, 200}) {
      for (const int ranks : {2, 8}) {
        check_gathered<bf16, float, bf16, e, true, false, says_empty>({ranks, 1, heads, head_dim},
                                                                      random);
      }
    }
  }
}

TEST_CASE("G01: lse_combine kernel: pointers off the alignment of a vector") {
  random_source random(87);
  for (const index_t past : {0, 1, 2, 3, 4, 8}) {
    for (const int ranks : {2, 8}) {
      combine_run run{ranks, 3, 2, 512};
      run.past = past;
      check_gathered<float, float, float, e, true, false, says_empty>(run, random);
      check_gathered<bf16, float, bf16, e, true, false, says_empty>(run, random);
    }
  }
  // Only one of the two.
  for (const index_t past : {1, 2, 4, 8}) {
    CAPTURE(past);
    const combine_run run{3, 3, 2, 512};
    for (const bool input : {false, true}) {
      operand<bf16, shard_rows> rows(gathered_rows_of(run), input ? past : 0);
      operand<float, shard_planes> lses(gathered_lses_of(run));
      operand<bf16, rows_layout<bf16>> output(
          rows_operand<bf16>::layout_of(style::packed, 3, 2, 512), input ? 0 : past);
      operand<float, plane_layout> merged(plane_operand<float>::layout_of(style::packed, 3, 2));
      for (int r = 0; r < 3; ++r) {
        fill_partials(fix<axis::rank>(rows.here(), r), fix<axis::rank>(lses.here(), r), random);
      }
      rows.upload();
      lses.upload();
      check_combine<e>(gathered_shards{rows.input(), lses.input()},
                       gathered_shards{rows.input_there(), lses.input_there()}, output, merged);
    }
  }
}

// ---- launches ------------------------------------------------------------------------------

TEST_CASE("J02: lse_combine kernel: no row is no launch and no error, and others are one launch") {
  const stream on;
  const device_array<bf16> rows(4096);
  const device_array<float> lses(4096);
  const auto combine = [&](index_t tokens, index_t heads) {
    const view<const bf16, shard_rows, memory_space::device> shards{
        rows.data(),
        {dim<axis::rank>(2, 512), dim<axis::token>(tokens, heads * 8), dim<axis::head>(heads, 8),
         dim<axis::head_dim>(8, 1)}};
    const view<const float, shard_planes, memory_space::device> shard_lses{
        lses.data(),
        {dim<axis::rank>(2, 512), dim<axis::token>(tokens, heads), dim<axis::head>(heads, 1)}};
    return kernel::lse_combine<e>(
        gathered_shards{shards, shard_lses},
        make_view<memory_space::device>(
            rows.data() + 2048,
            rows_layout<bf16>(dim<axis::token>(tokens, heads * 8), dim<axis::head>(heads, 8),
                              dim<axis::head_dim>(8, 1))),
        cudaStream_t{on},
        make_view<memory_space::device>(
            lses.data() + 2048,
            plane_layout(dim<axis::token>(tokens, heads), dim<axis::head>(heads, 1))));
  };
  const std::pair<index_t, index_t> nothing[] = {{0, 3}, {5, 0}, {index_t{1} << 40, 0}};
  for (const auto& [tokens, heads] : nothing) {
    CHECK(combine(tokens, heads).ok());
    const graph captured(on, [&, t = tokens, h = heads] { CHECK(combine(t, h).ok()); });
    CHECK(captured.nodes() == 0);
    captured.replay(on);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  for (const index_t tokens : {1, 4, 9}) {
    const graph captured(on, [&] { CHECK(combine(tokens, 3).ok()); });
    CHECK(captured.nodes() == 1);
    CHECK(captured.kernels() == 1);
  }
  for (const float value : lses.fetch()) CHECK(detail::float_bits(value) == 0xffffffffu);
}
