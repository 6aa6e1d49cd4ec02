// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/plan/head_split.hpp>

#include <support/scatter.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

std::string text(const message_format& format) {
  return std::string(to_string(format.lse)) + ", " + to_string(format.peer);
}

/// Runs the steps on the host and counts what copies. All calls of this file use it, so that the
/// templates are instantiated once.
struct counting_executor {
  static inline std::atomic<int> packs{0};
  static inline std::atomic<int> lse_packs{0};

  static void start() { packs = lse_packs = 0; }

  template <log_base Base, class Output, class Lse, class Valid>
  status pack(const Output& output, const Lse& lse, const message_plan& plan, std::byte* message,
              const Valid& valid, index_t left_out) const noexcept {
    ++packs;
    return host_executor{}.pack<Base>(output, lse, plan, message, valid, left_out);
  }
  template <log_base Base, class Lse, class Valid>
  status pack_lse(const Lse& lse, const message_plan& plan, std::byte* message, const Valid& valid,
                  index_t left_out) const noexcept {
    ++lse_packs;
    return host_executor{}.pack_lse<Base>(lse, plan, message, valid, left_out);
  }
  template <log_base Base, class Source, class Output, class Merged, class Sink, class Policy>
  status lse_combine(const Source& source, const Output& output, const Merged& merged,
                     const Sink& sink, const Policy& policy) const noexcept {
    return host_executor{}.lse_combine<Base>(source, output, merged, sink, policy);
  }
};
constexpr counting_executor executor;

/// The same call on every rank of a fresh group.
template <class T, log_base Base = log_base::e, class Lse = float, bool HeadMajor = false>
std::vector<scatter_outcome> scatter_all(const scatter_problem<T, Base>& problem,
                                         style output_style, style lse_style,
                                         style result_style = style::packed,
                                         const reduce_scatter_options& options = {}) {
  return on_ranks(problem.shape.ranks, [&](in_process& me) {
    return scatter_once<T, Base, Lse, HeadMajor>(me, problem, output_style, lse_style, result_style,
                                                 options, executor);
  });
}

}  // namespace

TEST_CASE("E11: every size of group from 1 to 16 is combined exactly, odd ones too") {
  for (int ranks = 1; ranks <= max_ranks; ++ranks) {
    // What warm-up asks is what the call asks.
    static_assert(supported_ranks(3) && supported_ranks(12) && !supported_ranks(17));
    REQUIRE(supported_ranks(ranks));
    const scatter_problem<bf16> problem{{ranks, 3, 2, 24}, 7u + static_cast<unsigned>(ranks)};
    const auto outcomes = scatter_all(problem, style::packed, style::packed);
    CHECK(first_wrong(outcomes) == "");
  }
}

TEST_CASE("E11: a transport of more ranks than a group can have is refused before it is used") {
  silent_rank group{0, 17};
  scatter_operands<float> mine({1, 2, 34, 8}, style::packed, style::packed);
  const status came_to =
      lse_reduce_scatter<log_base::e>(executor, group, mine.partial_output.input(),
                                      mine.partial_lse.input(), mine.output.view(), none, {});
  CHECK(sentence(came_to) ==
        "unsupported: ranks: got 17, expected 16: a group has from 1 to 16 ranks");
}

TEST_CASE("lse_reduce_scatter: all strides, formats and ways give the same bits") {
  const scatter_problem<bf16> problem{{3, 4, 5, 12}, 99};
  const auto expected = scatter_all(problem, style::packed, style::packed);
  REQUIRE(first_wrong(expected) == "");
  for (const style output_style : all_styles) {
    const style result_style = all_styles[(static_cast<std::size_t>(output_style) + 2) % 6];
    for (const style lse_style : {style::packed, style::tiled, style::head_major}) {
      CAPTURE(static_cast<int>(output_style));
      CAPTURE(static_cast<int>(lse_style));
      for (const auto preference : {route_preference::automatic, route_preference::packed}) {
        const auto token_major = scatter_all(problem, output_style, lse_style, result_style,
                                             {message_format{}, preference});
        CHECK(first_wrong(token_major) == "");
        CHECK(same_results(token_major, expected));
        const auto head_major = scatter_all<bf16, log_base::e, float, true>(
            problem, output_style, lse_style, result_style, {message_format{}, preference});
        CHECK(first_wrong(head_major) == "");
        CHECK(same_results(head_major, expected));
      }
    }
    for (const message_format& format : all_formats) {
      CAPTURE(text(format));
      const auto token_major =
          scatter_all(problem, output_style, style::tiled, result_style, {format});
      CHECK(first_wrong(token_major) == "");
      CHECK(same_results(token_major, expected));
      const auto head_major = scatter_all<bf16, log_base::e, float, true>(
          problem, output_style, style::tiled, result_style, {format});
      CHECK(first_wrong(head_major) == "");
      CHECK(same_results(head_major, expected));
    }
  }
}

TEST_CASE("lse_reduce_scatter: ranks whose operands have different strides understand each other") {
  // A rank without keys hands over an empty result of its own making, not the padded one of the
  // kernel; so the way that each goes must not matter to its peers.
  const scatter_problem<bf16> problem{{6, 4, 11, 16}, 5};
  const auto expected = scatter_all(problem, style::packed, style::packed);
  REQUIRE(first_wrong(expected) == "");
  const auto mixed_ways = on_ranks(6, [&](in_process& me) {
    const auto of = static_cast<std::size_t>(me.rank());
    const auto preference =
        me.rank() % 4 == 0 ? route_preference::packed : route_preference::automatic;
    return scatter_once(me, problem, all_styles[of], all_styles[(of + 1) % 6],
                        all_styles[(of + 2) % 6], {message_format{}, preference}, executor);
  });
  CHECK(first_wrong(mixed_ways) == "");
  CHECK(same_results(mixed_ways, expected));
  // In a head-major type some of them go straight, some are packed.
  const auto head_major = on_ranks(6, [&](in_process& me) {
    const auto of = static_cast<std::size_t>(me.rank());
    return scatter_once<bf16, log_base::e, float, true>(
        me, problem, all_styles[of], all_styles[(of + 1) % 6], style::packed, {}, executor);
  });
  CHECK(first_wrong(head_major) == "");
  CHECK(same_results(head_major, expected));
}

TEST_CASE("A01: 22 of 32 heads as static views: exact, and no padding is read") {
  using padded_output =
      packed_layout_t<extent<axis::token, 4>, extent<axis::head, 32>, extent<axis::head_dim, 512>>;
  using padded_lse = packed_layout_t<extent<axis::token, 4>, extent<axis::head, 32>>;
  std::vector<guarded<bf16>> results;
  for (int r = 0; r < 2; ++r) results.emplace_back(4 * 11 * 512);
  counting_executor::start();
  const auto came_to = on_ranks(2, [&](in_process& me) {
    guarded<bf16> output(4 * 32 * 512);
    guarded<float> lses(4 * 32);
    const auto partial_output =
        slice<axis::head>(view<bf16, padded_output>(output.data()), constant<0>, constant<22>);
    const auto partial_lse =
        slice<axis::head>(view<float, padded_lse>(lses.data()), constant<0>, constant<22>);
    static_assert(decltype(partial_lse)::layout_type::static_strides[0] == 32);
    static_assert(decltype(partial_lse)::layout_type{}.span_size() == 118);
    fill(partial_output,
         [](const auto& at) { return from_float<bf16>(static_cast<float>(32 * at[0] + at[1])); });
    fill(partial_lse, [](const auto&) { return 0.0f; });
    guarded<bf16>& result = results[static_cast<std::size_t>(me.rank())];
    const view combined{result.data(), packed(extent<axis::token, 4>(), extent<axis::head, 11>(),
                                              extent<axis::head_dim, 512>())};
    auto workspace = scatter_workspace<bf16>({2, 4, 11, 512});
    const status done = lse_reduce_scatter<log_base::e>(executor, me, partial_output, partial_lse,
                                                        combined, none, whole(workspace));
    if (!done.ok()) return done;
    const index_t wrong = wrong_elements(combined, [&](const auto& at) {
      return from_float<bf16>(static_cast<float>(32 * at[0] + 11 * me.rank() + at[1]));
    });
    const index_t stray = output.stray_bytes(partial_output) + lses.stray_bytes(partial_lse) +
                          result.stray_bytes(combined);
    return failure(wrong + stray == 0 ? errc::ok : errc::invalid_argument, "test", "", wrong,
                   stray);
  });
  for (const status& one : came_to) {
    INFO(sentence(one));
    CHECK(one.ok());
  }
  // One pass over the operands of each rank, into the message; nothing is made contiguous before.
  CHECK(counting_executor::packs == 2);
  CHECK(counting_executor::lse_packs == 0);
}

TEST_CASE("E01: 52 heads on 3 ranks are 54: the dummies change no real head and are left out") {
  constexpr head_split heads = static_head_split<52, 3>;
  static_assert(heads.per_rank == 18 && heads.padded() == 54 && heads.dummies(2) == 2);
  const scatter_problem<bf16> problem{{3, 5, 18, 32}, 52};
  // Whatever the dummies hold, down to NaN and infinities.
  const auto run = [&](float dummy_output, float dummy_lse) {
    return on_ranks(3, [&](in_process& me) {
      scatter_operands<bf16> mine(problem.shape, style::tiled, style::tiled);
      problem.put(me.rank(), mine.partial_output, mine.partial_lse);
      for (index_t token = 0; token < 5; ++token) {
        for (index_t head = 52; head < 54; ++head) {
          mine.partial_lse.view()(token, head) = dummy_lse;
          for (index_t d = 0; d < 32; ++d) {
            mine.partial_output.view()(token, head, d) = from_float<bf16>(dummy_output);
          }
        }
      }
      auto workspace = scatter_workspace<bf16>(problem.shape);
      scatter_outcome outcome;
      outcome.came_to = lse_reduce_scatter<log_base::e>(
          executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
          mine.merged.view(), whole(workspace));
      // The real heads of this rank: its first ones.
      const auto real = slice<axis::head>(mine.output.view(), 0, heads.real(me.rank())).value();
      for_each_element(real, [&](const auto&, index_t offset) {
        outcome.output.push_back(static_cast<std::uint8_t>(real.data()[offset].bits));
        outcome.output.push_back(static_cast<std::uint8_t>(real.data()[offset].bits >> 8));
      });
      return outcome;
    });
  };
  const auto expected = run(1.0f, 0.0f);
  for (const auto& one : expected) CHECK(one.came_to.ok());
  CHECK(expected[2].output.size() == 5 * 16 * 32 * 2);
  CHECK(same_results(run(not_a_number, 80.0f), expected));
  CHECK(same_results(run(-infinity, not_a_number), expected));

  // And each real head is what one rank alone makes of the unpadded shards.
  const auto reference = scatter_all(problem, style::packed, style::packed);
  CHECK(first_wrong(reference) == "");
  CHECK(reference[0].output == expected[0].output);
  CHECK(reference[1].output == expected[1].output);
}

TEST_CASE("E06: nine ranks with 11 of 99 heads each, out of a tile of 104") {
  const scatter_problem<bf16> problem{{9, 4, 11, 32}, 9};
  for (const message_format& format : all_formats) {
    // 99 heads in a tile of 16 are 112 rows; every rank gets 11 heads back, nobody the padding.
    const auto outcomes = scatter_all(problem, style::tiled, style::tiled, style::packed, {format});
    CHECK(first_wrong(outcomes) == "");
    for (const auto& one : outcomes) CHECK(one.output.size() == 4 * 11 * 32 * 2);
  }
  using tile =
      packed_layout_t<extent<axis::token, 4>, extent<axis::head, 104>, extent<axis::head_dim, 32>>;
  const auto came_to = on_ranks(9, [&](in_process& me) {
    guarded<bf16> output(4 * 104 * 32);
    plane_operand<float> lses(style::packed, 4, 99);
    const auto live = slice<axis::head>(view<bf16, tile>(output.data()), constant<0>, constant<99>);
    fill(live, [&](const auto& at) {
      return problem.empty(me.rank(), at[0], at[1])
                 ? bf16{0xffff}
                 : problem.output(me.rank(), at[0], at[1], at[2]);
    });
    fill(lses.view(), [&](const auto& at) { return problem.lse(me.rank(), at[0], at[1]); });
    rows_operand<bf16> result(style::packed, 4, 11, 32);
    plane_operand<float> merged(style::packed, 4, 11);
    auto workspace = scatter_workspace<bf16>(problem.shape);
    const status done = lse_reduce_scatter<log_base::e>(
        executor, me, live, lses.view(), result.view(), merged.view(), whole(workspace));
    if (!done.ok()) return done;
    const index_t wrong = problem.wrong_rows(me.rank(), result, merged) + output.stray_bytes(live);
    return wrong == 0 ? status{} : failure(errc::invalid_argument, "test", "", wrong, 0);
  });
  for (const status& one : came_to) CHECK(one.ok());
}

TEST_CASE("E07: 64 heads on 3 ranks are 72: dummies with a finite LSE are dropped") {
  constexpr head_split heads = static_head_split<64, 3, head_split_options{.alignment = 8}>;
  static_assert(heads.padded() == 72 && heads.real(2) == 16 && heads.dummies(2) == 8);
  // A dummy's query is zero, so each of its 8 logits is zero: its LSE is ln 8.
  const float dummy_lse = 2.079442f;
  const scatter_problem<float> problem{{3, 2, 24, 8}, 64};
  const auto with = [&](float output) {
    return on_ranks(3, [&](in_process& me) {
      scatter_operands<float> mine(problem.shape, style::packed, style::packed);
      problem.put(me.rank(), mine.partial_output, mine.partial_lse);
      const auto dummy_lses = slice<axis::head>(mine.partial_lse.view(), 64, 8).value();
      const auto dummies = slice<axis::head>(mine.partial_output.view(), 64, 8).value();
      fill(dummy_lses, [&](const auto&) { return dummy_lse; });
      fill(dummies, [&](const auto&) { return output; });
      auto workspace = scatter_workspace<float>(problem.shape);
      scatter_outcome outcome;
      outcome.came_to = lse_reduce_scatter<log_base::e>(
          executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
          mine.merged.view(), whole(workspace));
      outcome.output = bits_of(mine.output);
      if (me.rank() == 2) {
        // The dummies' own rows are combined like any other, and nobody reads them.
        const float merged = mine.merged.view()(0, 16);
        if (std::fabs(merged - (dummy_lse + std::log(3.0f))) > 1e-6f) outcome.wrong_rows = 1;
        const auto real = slice<axis::head>(mine.output.view(), 0, 16).value();
        outcome.output.clear();
        for_each_element(real, [&](const auto&, index_t offset) {
          const auto bits = detail::float_bits(real.data()[offset]);
          for (int b = 0; b < 4; ++b) {
            outcome.output.push_back(static_cast<std::uint8_t>(bits >> (8 * b)));
          }
        });
      }
      return outcome;
    });
  };
  const auto zero = with(0.0f);
  const auto large = with(1e30f);
  for (const auto& one : zero) CHECK(one.good());
  CHECK(same_results(zero, large));
}

TEST_CASE("J02: a call without tokens succeeds on every rank, null pointers and all") {
  using rows = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
  using plane = layout<dim<axis::token>, dim<axis::head>>;
  for (const message_format& format : all_formats) {
    for (const int ranks : {1, 2, 3, 16}) {
      in_process_group group(ranks);
      const auto came_to = on_ranks(group, ranks, [&](in_process& me) {
        const rows many{dim<axis::token>(0, 0), dim<axis::head>(4 * ranks, 8),
                        dim<axis::head_dim>(8, 1)};
        const rows few{dim<axis::token>(0, 0), dim<axis::head>(4, 8), dim<axis::head_dim>(8, 1)};
        const view<bf16, rows> partial_output(nullptr, many);
        const view<float, plane> partial_lse(
            nullptr, {dim<axis::token>(0, 0), dim<axis::head>(4 * ranks, 1)});
        const view<bf16, rows> output(nullptr, few);
        const view<float, plane> merged(nullptr, {dim<axis::token>(0, 0), dim<axis::head>(4, 1)});
        for (const auto preference : {route_preference::automatic, route_preference::packed}) {
          const status done = lse_reduce_scatter<log_base::e>(
              executor, me, partial_output, partial_lse, output, merged, {}, {format, preference});
          if (!done.ok()) return done;
        }
        return me.barrier();
      });
      INFO(sentence(first_failure(came_to)));
      CHECK(first_failure(came_to).ok());
    }
  }
}

TEST_CASE("J02: a rank without tokens among ranks with some is named on all of them") {
  const auto came_to = on_ranks(3, [&](in_process& me) {
    const scatter_problem<bf16> problem{{3, me.rank() == 1 ? 0 : 2, 4, 8}, 1};
    return scatter_once(me, problem, style::packed, style::packed, style::packed, {}, executor)
        .came_to;
  });
  for (const status& one : came_to) {
    CHECK(sentence(one) ==
          "rank_mismatch: lse_reduce_scatter, axis token: got 0, expected 2: seen on rank 1");
  }
}

TEST_CASE("lse_reduce_scatter: a head_dim of zero still merges the LSEs") {
  const scatter_problem<bf16> problem{{3, 4, 5, 0}, 17};
  for (const message_format& format : all_formats) {
    const auto outcomes =
        scatter_all(problem, style::packed, style::packed, style::packed, {format});
    CHECK(first_wrong(outcomes) == "");
  }
}

TEST_CASE("J03: no heads, or fewer heads than ranks, is an error on every rank") {
  const auto refused = [](index_t heads, int ranks) {
    const auto came_to = on_ranks(ranks, [&](in_process& me) {
      rows_operand<bf16> partial_output(style::packed, 2, heads, 8);
      plane_operand<float> partial_lse(style::packed, 2, heads);
      rows_operand<bf16> output(style::packed, 2, 1, 8);
      const status done = lse_reduce_scatter<log_base::e>(
          executor, me, partial_output.view(), partial_lse.view(), output.view(), none, {});
      return output.memory.stray_bytes() == 0 ? done : status{};
    });
    for (const status& one : came_to) {
      CHECK(one.code == errc::shape_mismatch);
      CHECK(std::string(one.operand) == "partial_output");
      CHECK(std::string(one.axis) == "head");
      CHECK(one.got == heads);
      CHECK(one.expected == ranks);
    }
  };
  refused(0, 1);
  refused(0, 2);
  refused(2, 3);
  refused(7, 3);
}

TEST_CASE("M03: a batch beyond the workspace is refused on all ranks, and nothing is written") {
  const scatter_shape capacity{4, 8, 3, 16};
  for (const message_format& format : all_formats) {
    CAPTURE(text(format));
    in_process_group group(4);
    for (const index_t tokens : {8, 9, 8}) {
      const scatter_problem<bf16> problem{{4, tokens, 3, 16}, 3};
      const auto outcomes = on_ranks(group, 4, [&](in_process& me) {
        scatter_operands<bf16> mine(problem.shape, style::tiled, style::tiled);
        problem.put(me.rank(), mine.partial_output, mine.partial_lse);
        auto workspace = scatter_workspace<bf16>(capacity, format);
        scatter_outcome outcome;
        outcome.came_to = lse_reduce_scatter<log_base::e>(
            executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
            mine.merged.view(), whole(workspace), {format});
        if (outcome.came_to.ok()) {
          outcome.wrong_rows = problem.wrong_rows(me.rank(), mine.output, mine.merged);
          outcome.stray_bytes = workspace.stray_bytes(
              view{workspace.data(), packed(extent<axis::slot>(workspace.size()))});
        } else {
          outcome.wrong_rows = mine.written_bytes();
          outcome.stray_bytes = workspace.stray_bytes();
        }
        return outcome;
      });
      for (const auto& one : outcomes) {
        INFO(one.told());
        CHECK(one.wrong_rows == 0);
        CHECK(one.stray_bytes == 0);
        CHECK(one.came_to.ok() == (tokens <= 8));
        if (tokens <= 8) continue;
        CHECK(one.came_to.code == errc::capacity_exceeded);
        CHECK(std::string(one.came_to.operand) == "workspace");
        CHECK(one.came_to.got ==
              lse_reduce_scatter_bytes<bf16>(problem.shape.message(), format).value());
        CHECK(one.came_to.expected ==
              lse_reduce_scatter_bytes<bf16>(capacity.message(), format).value());
      }
    }
  }
}

TEST_CASE("K05: room for 8 rows does not hold 4 requests of 4 query tokens") {
  constexpr row_capacity pool{8};
  constexpr query_rows rows = query_rows::make(4, 4).value();
  static_assert(rows.count == 16 && !pool.accepts(rows));
  const auto outcomes = on_ranks(4, [&](in_process& me) {
    const scatter_problem<bf16> problem{{4, rows.count, 2, 8}, 4};
    scatter_operands<bf16> mine(problem.shape, style::packed, style::packed);
    problem.put(me.rank(), mine.partial_output, mine.partial_lse);
    auto workspace = scatter_workspace<bf16>({4, pool.rows, 2, 8});
    scatter_outcome outcome;
    outcome.came_to = lse_reduce_scatter<log_base::e>(executor, me, mine.partial_output.input(),
                                                      mine.partial_lse.input(), mine.output.view(),
                                                      mine.merged.view(), whole(workspace));
    outcome.stray_bytes = mine.written_bytes() + workspace.stray_bytes();
    return outcome;
  });
  for (const auto& one : outcomes) {
    CHECK(one.came_to.code == errc::capacity_exceeded);
    CHECK(one.came_to.got > one.came_to.expected);
    CHECK(one.stray_bytes == 0);
  }
}

TEST_CASE("M03: one rank with too little room is enough for all to stop, and to go on") {
  const scatter_problem<bf16> problem{{3, 4, 2, 8}, 21};
  in_process_group group(3);
  std::vector<guarded<std::byte>> rooms;
  for (int r = 0; r < 3; ++r) rooms.push_back(scatter_workspace<bf16>(problem.shape));
  const auto run = [&](index_t missing) {
    return on_ranks(group, 3, [&](in_process& me) {
      scatter_operands<bf16> mine(problem.shape, style::packed, style::packed);
      problem.put(me.rank(), mine.partial_output, mine.partial_lse);
      auto room = whole(rooms[static_cast<std::size_t>(me.rank())]);
      if (me.rank() == 2) room = room.first(room.size() - static_cast<std::size_t>(missing));
      const status done = lse_reduce_scatter<log_base::e>(
          executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
          mine.merged.view(), room);
      if (!done.ok() && mine.written_bytes() != 0) return status{};
      return done;
    });
  };
  const auto stopped = run(1);
  CHECK(stopped[2].code == errc::capacity_exceeded);
  for (const std::size_t peer : {0u, 1u}) {
    CHECK(stopped[peer].code == errc::rank_mismatch);
    CHECK(std::string(stopped[peer].operand) == "workspace");
    CHECK(stopped[peer].got == stopped[2].got);
    CHECK(stopped[peer].expected == stopped[2].got - 1);
    CHECK(std::string(stopped[peer].message) == "seen on rank 2");
  }
  for (const status& one : run(0)) CHECK(one.ok());
}

TEST_CASE("J06: ranks with 3 and 8 live rows of a padded batch of 8 go the same way") {
  constexpr row_capacity cap{8};
  const auto run = [&](index_t padded) {
    return on_ranks(2, [&](in_process& me) {
      const scatter_problem<float> problem{{2, padded, 2, 8}, 6};
      // Counts differ, and decide what is in the rows, not what travels.
      const index_t live = me.rank() == 0 ? 3 : 8;
      std::vector<std::int32_t> valid(static_cast<std::size_t>(padded), 0);
      for (index_t row = 0; row < live; ++row) valid[static_cast<std::size_t>(row)] = 1;
      if (!cap.accepts(query_rows{padded})) return cap.require("fast path", query_rows{padded});
      scatter_operands<float> mine(problem.shape, style::packed, style::packed);
      fill(mine.partial_output.view(), [&](const auto&) { return me.rank() == 0 ? 1.0f : 3.0f; });
      fill(mine.partial_lse.view(), [](const auto&) { return 0.0f; });
      auto workspace = scatter_workspace<float>(problem.shape);
      const status done = lse_reduce_scatter<log_base::e>(
          executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
          none, whole(workspace), {}, view{valid.data(), packed(extent<axis::token>(padded))});
      if (!done.ok()) return done;
      const index_t wrong = wrong_elements(mine.output.view(),
                                           [](const auto& at) { return at[0] < 3 ? 2.0f : 3.0f; });
      return wrong == 0 ? status{} : failure(errc::invalid_argument, "test", "", wrong, 0);
    });
  };
  for (const status& one : run(8)) CHECK(one.ok());
  for (const status& one : run(9)) {
    CHECK(one.code == errc::capacity_exceeded);
    CHECK(one.got == 9);
    CHECK(one.expected == 8);
  }
}

namespace {

/// Two ranks, one row each of one head per rank: what rank 0 gets for (lse, output) of both, and
/// counts if there are any.
struct two_rows {
  float output;
  float lse;
};
template <class Policy = nan_policy::empty>
two_rows merge_of_two(const float (&lses)[2], const float (&outputs)[2],
                      const std::int32_t* counts = nullptr, const Policy& policy = {}) {
  two_rows got[2] = {};
  const auto came_to = on_ranks(2, [&](in_process& me) {
    const int r = me.rank();
    scatter_operands<float> mine({2, 1, 1, 4}, style::packed, style::packed);
    fill(mine.partial_output.view(), [&](const auto&) { return outputs[r]; });
    fill(mine.partial_lse.view(), [&](const auto&) { return lses[r]; });
    auto workspace = scatter_workspace<float>({2, 1, 1, 4});
    status done{};
    if (counts == nullptr) {
      done = lse_reduce_scatter<log_base::e>(
          executor, me, mine.partial_output.input(), mine.partial_lse.view(), mine.output.view(),
          mine.merged.view(), whole(workspace), {}, none, none, policy);
    } else {
      done = lse_reduce_scatter<log_base::e>(
          executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
          mine.merged.view(), whole(workspace), {},
          view{counts + r, packed(extent<axis::token, 1>())}, none, policy);
    }
    got[r] = {mine.output.view()(0, 0, 3), mine.merged.view()(0, 0)};
    return done;
  });
  for (const status& one : came_to) CHECK(one.ok());
  // Every rank's own head has the same partials here.
  CHECK(same_bits(got[0], got[1]));
  return got[0];
}

}  // namespace

TEST_CASE("C08: an idle rank that never wrote its payload poisons nothing") {
  for (const float never_written : {not_a_number, infinity, -infinity}) {
    const two_rows got = merge_of_two({-infinity, 0.0f}, {never_written, 5.0f});
    CHECK(got.output == 5.0f);
    CHECK(got.lse == 0.0f);
  }
  const two_rows four = merge_of_two({-infinity, 0.0f}, {not_a_number, 4.0f});
  CHECK(four.output == 4.0f);
}

TEST_CASE("C04: B08: all ranks empty give exactly zero and minus infinity") {
  for (const float empty : {-infinity, infinity, not_a_number}) {
    const two_rows got = merge_of_two({empty, empty}, {not_a_number, 7.0f});
    CHECK(same_bits(got.output, 0.0f));
    CHECK(got.lse == -infinity);
  }
  const two_rows plus_infinity = merge_of_two({infinity, 1.0f}, {0.0f, 2.0f});
  CHECK(plus_infinity.output == 2.0f);
  CHECK(plus_infinity.lse == 1.0f);
}

TEST_CASE("C15: a count of zero empties a row whose LSE is finite") {
  const std::int32_t counts[] = {0, 1};
  const two_rows got = merge_of_two({3.7f, 0.0f}, {9.0f, 2.0f}, counts);
  CHECK(got.output == 2.0f);
  CHECK(got.lse == 0.0f);
  // Also when the producer writes 0 there, and with a payload that is NaN.
  const two_rows zero = merge_of_two({0.0f, 0.0f}, {not_a_number, 2.0f}, counts);
  CHECK(zero.output == 2.0f);
  CHECK(zero.lse == 0.0f);
  const std::int32_t no_counts[] = {0, 0};
  const two_rows nobody = merge_of_two({3.7f, 0.0f}, {9.0f, 2.0f}, no_counts);
  CHECK(same_bits(nobody.output, 0.0f));
  CHECK(nobody.lse == -infinity);
}

TEST_CASE("C07: a NaN LSE is seen where the caller asks for it") {
  const two_rows hidden = merge_of_two({not_a_number, 0.0f}, {1.0f, 2.0f});
  CHECK(hidden.output == 2.0f);
  const two_rows seen =
      merge_of_two({not_a_number, 0.0f}, {1.0f, 2.0f}, nullptr, nan_policy::propagate{});
  CHECK(std::isnan(seen.output));
  CHECK(std::isnan(seen.lse));
}

TEST_CASE("C01: partials in base two are merged in base two") {
  // Rank 0 has scores {0}, rank 1 {ln 3}, as a kernel with base-2 LSEs returns them.
  const auto came_to = on_ranks(2, [&](in_process& me) {
    scatter_operands<float> mine({2, 1, 1, 1}, style::packed, style::packed);
    mine.partial_output.view()(0, 0, 0) = mine.partial_output.view()(0, 1, 0) =
        me.rank() == 0 ? 1.0f : 5.0f;
    mine.partial_lse.view()(0, 0) = mine.partial_lse.view()(0, 1) =
        me.rank() == 0 ? 0.0f : 1.584963f;
    auto workspace = scatter_workspace<float>({2, 1, 1, 1});
    const status done = lse_reduce_scatter<log_base::two>(
        executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
        mine.merged.view(), whole(workspace));
    if (!done.ok()) return done;
    const float natural = to_base<log_base::e>(lse<log_base::two>{mine.merged.view()(0, 0)}).value;
    const bool right = std::fabs(mine.output.view()(0, 0, 0) - 4.0f) < 1e-5f &&
                       std::fabs(natural - 1.386294f) < 1e-5f;
    return right ? status{} : failure(errc::invalid_argument, "test", "");
  });
  for (const status& one : came_to) CHECK(one.ok());
}

TEST_CASE("C01: ranks that combine in different bases are told") {
  const auto came_to = on_ranks(2, [&](in_process& me) {
    if (me.rank() == 0) {
      return scatter_once(me, scatter_problem<bf16>{{2, 2, 2, 8}}, style::packed, style::packed,
                          style::packed, {}, executor)
          .came_to;
    }
    return scatter_once(me, scatter_problem<bf16, log_base::two>{{2, 2, 2, 8}}, style::packed,
                        style::packed, style::packed, {}, executor)
        .came_to;
  });
  for (const status& one : came_to) {
    CHECK(one.code == errc::rank_mismatch);
    CHECK(std::string(one.axis) == "log_base");
  }
}

TEST_CASE("B05: an LSE of 16 bits is widened, not reinterpreted, whatever its type") {
  const scatter_problem<bf16> problem{{4, 3, 2, 8}, 16, true};
  const auto expected = scatter_all(problem, style::packed, style::packed);
  REQUIRE(first_wrong(expected) == "");
  // Head-major, its 16-bit LSEs would go straight too if only their strides counted.
  for (const style lse_style : {style::packed, style::tiled, style::head_major}) {
    const auto as_bf16 = scatter_all<bf16, log_base::e, bf16>(problem, style::packed, lse_style);
    CHECK(first_wrong(as_bf16) == "");
    CHECK(same_results(as_bf16, expected));
    // Straight, with only the LSE packed.
    const auto as_fp16 =
        scatter_all<bf16, log_base::e, fp16, true>(problem, style::head_major, lse_style);
    CHECK(first_wrong(as_fp16) == "");
    CHECK(same_results(as_fp16, expected));
  }
}

TEST_CASE("C19: the bits of a row do not depend on the batch, its place in it, or the run") {
  // Row 5 of a batch of 64, and the same row alone.
  const scatter_problem<bf16> many{{4, 64, 2, 16}, 19};
  const auto first = scatter_all(many, style::packed, style::packed);
  REQUIRE(first_wrong(first) == "");
  CHECK(same_results(scatter_all(many, style::packed, style::packed), first));

  const auto alone = on_ranks(4, [&](in_process& me) {
    scatter_operands<bf16> mine({4, 64, 2, 16}, style::packed, style::packed);
    many.put(me.rank(), mine.partial_output, mine.partial_lse);
    rows_operand<bf16> output(style::packed, 1, 2, 16);
    plane_operand<float> merged(style::packed, 1, 2);
    auto workspace = scatter_workspace<bf16>({4, 1, 2, 16});
    scatter_outcome outcome;
    outcome.came_to = lse_reduce_scatter<log_base::e>(
        executor, me, slice<axis::token>(mine.partial_output.view(), 5, 1).value(),
        slice<axis::token>(mine.partial_lse.view(), 5, 1).value(), output.view(), merged.view(),
        whole(workspace));
    outcome.output = bits_of(output);
    outcome.merged = bits_of(merged);
    return outcome;
  });
  const std::size_t row = 2 * 16 * sizeof(bf16);
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(alone[r].came_to.ok());
    CHECK(std::equal(alone[r].output.begin(), alone[r].output.end(),
                     first[r].output.begin() + static_cast<std::ptrdiff_t>(5 * row)));
    CHECK(alone[r].output.size() == row);
    CHECK(std::equal(alone[r].merged.begin(), alone[r].merged.end(),
                     first[r].merged.begin() + 5 * 2 * 4));
  }
}

TEST_CASE("lse_reduce_scatter: the result may be the rank's own heads of the partial output") {
  const scatter_problem<bf16> problem{{3, 4, 5, 16}, 33};
  const auto expected = scatter_all(problem, style::packed, style::packed);
  const auto in_place = [&]<bool HeadMajor>(std::bool_constant<HeadMajor>, style which, int ranks,
                                            const scatter_problem<bf16>& of) {
    return on_ranks(ranks, [&](in_process& me) {
      scatter_operands<bf16, float, HeadMajor> mine(of.shape, which, style::packed);
      of.put(me.rank(), mine.partial_output, mine.partial_lse);
      const auto own =
          slice<axis::head>(mine.partial_output.view(), me.rank() * of.shape.heads, of.shape.heads)
              .value();
      const auto own_lse =
          slice<axis::head>(mine.partial_lse.view(), me.rank() * of.shape.heads, of.shape.heads)
              .value();
      auto workspace = scatter_workspace<bf16>(of.shape);
      scatter_outcome outcome;
      outcome.came_to =
          lse_reduce_scatter<log_base::e>(executor, me, mine.partial_output.input(),
                                          mine.partial_lse.input(), own, own_lse, whole(workspace));
      const auto by_token = permute<axis::token, axis::head, axis::head_dim>(own);
      for_each_element(by_token, [&](const auto&, index_t offset) {
        outcome.output.push_back(static_cast<std::uint8_t>(by_token.data()[offset].bits));
        outcome.output.push_back(static_cast<std::uint8_t>(by_token.data()[offset].bits >> 8));
      });
      for_each_element(own_lse, [&](const auto&, index_t offset) {
        const auto bits = detail::float_bits(own_lse.data()[offset]);
        for (int b = 0; b < 4; ++b) {
          outcome.merged.push_back(static_cast<std::uint8_t>(bits >> (8 * b)));
        }
      });
      return outcome;
    });
  };
  CHECK(same_results(in_place(std::false_type{}, style::tiled, 3, problem), expected));
  CHECK(same_results(in_place(std::true_type{}, style::head_major, 3, problem), expected));
  const scatter_problem<bf16> alone{{1, 4, 5, 16}, 34};
  CHECK(same_results(in_place(std::false_type{}, style::tiled, 1, alone),
                     scatter_all(alone, style::packed, style::packed)));
}

TEST_CASE("lse_reduce_scatter: a sink is applied once, after the merge") {
  // Both ranks: output 4, LSE 0. Together LSE ln 2; the sink is one more key of weight 1 without a
  // value, so the output is 4 * 2/3.
  const auto came_to = on_ranks(2, [&](in_process& me) {
    scatter_operands<float> mine({2, 3, 1, 4}, style::packed, style::packed);
    fill(mine.partial_output.view(), [](const auto&) { return 4.0f; });
    fill(mine.partial_lse.view(), [](const auto&) { return 0.0f; });
    const float sink = 0.0f;
    auto workspace = scatter_workspace<float>({2, 3, 1, 4});
    const status done = lse_reduce_scatter<log_base::e>(
        executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
        mine.merged.view(), whole(workspace), {}, none,
        view{&sink, packed(extent<axis::head, 1>())});
    if (!done.ok()) return done;
    bool right = true;
    for_each_element(mine.output.view(), [&](const auto&, index_t offset) {
      right = right && std::fabs(mine.output.view().data()[offset] - 8.0f / 3.0f) < 1e-6f;
    });
    right = right && std::fabs(mine.merged.view()(2, 0) - std::log(2.0f)) < 1e-6f;
    return right ? status{} : failure(errc::invalid_argument, "test", "");
  });
  for (const status& one : came_to) CHECK(one.ok());
}

TEST_CASE("lse_reduce_scatter: no merged LSE wanted, none written") {
  const scatter_problem<float> problem{{3, 2, 2, 8}, 8};
  const auto came_to = on_ranks(3, [&](in_process& me) {
    scatter_operands<float> mine(problem.shape, style::packed, style::packed);
    problem.put(me.rank(), mine.partial_output, mine.partial_lse);
    auto workspace = scatter_workspace<float>(problem.shape);
    const status done = lse_reduce_scatter<log_base::e>(executor, me, mine.partial_output.input(),
                                                        mine.partial_lse.input(),
                                                        mine.output.view(), none, whole(workspace));
    return mine.merged.memory.stray_bytes() == 0 ? done
                                                 : failure(errc::invalid_argument, "test", "");
  });
  for (const status& one : came_to) CHECK(one.ok());
}

TEST_CASE(
    "lse_reduce_scatter: one workspace serves one call after another, of any shape it holds") {
  const scatter_shape most{4, 6, 3, 40};
  const auto came_to = on_ranks(4, [&](in_process& me) {
    auto workspace = scatter_workspace<bf16>(most);
    for (int i = 0; i < 40; ++i) {
      const scatter_problem<bf16> problem{{4, i % 7, 1 + i % 3, i % 41},
                                          70u + static_cast<unsigned>(i)};
      scatter_operands<bf16> mine(problem.shape, all_styles[i % 6], all_styles[i % 5]);
      problem.put(me.rank(), mine.partial_output, mine.partial_lse);
      const status done = lse_reduce_scatter<log_base::e>(
          executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
          mine.merged.view(), whole(workspace));
      if (!done.ok()) return done;
      const index_t wrong = problem.wrong_rows(me.rank(), mine.output, mine.merged);
      if (wrong != 0) return failure(errc::invalid_argument, "test", "", i, wrong);
    }
    return status{};
  });
  for (const status& one : came_to) {
    INFO(sentence(one));
    CHECK(one.ok());
  }
}

TEST_CASE("lse_reduce_scatter_bytes: what every call of up to that shape needs") {
  constexpr auto plane = lse_reduce_scatter_bytes<bf16>({4, 7, 2, 32});
  // Per peer 14 rows of 64 bytes and 14 LSEs of 4, each rounded to 16; to and from four peers.
  static_assert(plane.value() == 2 * 4 * (14 * 64 + 64));
  static_assert(lse_reduce_scatter_bytes<bf16>({1, 7, 2, 32}).value() == 0);
  static_assert(lse_reduce_scatter_bytes<bf16>({4, 0, 2, 32}).value() == 0);
  CHECK(lse_reduce_scatter_bytes<bf16>({17, 7, 2, 32}).why().code == errc::unsupported);
  CHECK(lse_reduce_scatter_bytes<bf16>({4, -1, 2, 32}).why().code == errc::invalid_argument);
  const auto huge = lse_reduce_scatter_bytes<float>({16, index_t{1} << 40, index_t{1} << 20, 512});
  CHECK(huge.why().code == errc::capacity_exceeded);
  CHECK(huge.why().got == INT64_MAX);
  // Monotonic: what holds a batch holds every smaller one.
  for (const message_format& format : all_formats) {
    index_t before = 0;
    for (index_t tokens = 0; tokens < 40; ++tokens) {
      const index_t needed = lse_reduce_scatter_bytes<fp16>({3, tokens, 5, 33}, format).value();
      CHECK(needed >= before);
      before = needed;
    }
  }
}

TEST_CASE("every count of heads that real groups gather is taken as it is") {
  // 11 of TP6, 22, 33 and 66 of its groups: no multiple of 16 is asked for.
  struct geometry {
    int ranks;
    index_t heads;
  };
  for (const geometry& of :
       {geometry{1, 11}, {2, 11}, {3, 11}, {6, 11}, {9, 11}, {16, 8}, {5, 13}}) {
    const scatter_problem<bf16> problem{{of.ranks, 2, of.heads, 16}, 11};
    const auto outcomes = scatter_all(problem, style::tiled, style::tiled);
    CHECK(first_wrong(outcomes) == "");
  }
}

TEST_CASE("nine ranks, 11 heads, 4 tokens: straight and packed have the same bits") {
  const scatter_problem<bf16> problem{{9, 4, 11, 512}, 335};
  const auto straight =
      scatter_all<bf16, log_base::e, float, true>(problem, style::head_major, style::head_major);
  const auto by_packing = scatter_all(problem, style::tiled, style::tiled, style::packed,
                                      {message_format{}, route_preference::packed});
  CHECK(first_wrong(straight) == "");
  CHECK(same_results(straight, by_packing));
}

TEST_CASE("a rank that has no sequence at all reads nothing and still takes part") {
  // Rank 1 has no local sequence: every count is 0, its partials have never been written.
  const auto run = [](auto head_major, style which, int packs_of_a_rank) {
    counting_executor::start();
    const auto came_to = on_ranks(3, [&](in_process& me) {
      scatter_operands<float, float, head_major> mine({3, 4, 2, 8}, which, which);
      const std::vector<std::int32_t> counts(4, me.rank() == 1 ? 0 : 9);
      if (me.rank() != 1) {
        fill(mine.partial_output.view(), [&](const auto&) { return me.rank() == 0 ? 2.0f : 6.0f; });
        fill(mine.partial_lse.view(), [](const auto&) { return 1.0f; });
      } else {
        // Nor is a finite LSE that the producer left behind believed.
        fill(mine.partial_lse.view(), [](const auto&) { return 3.7f; });
      }
      auto workspace = scatter_workspace<float>({3, 4, 2, 8});
      const status done = lse_reduce_scatter<log_base::e>(
          executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
          none, whole(workspace), {}, view{counts.data(), packed(extent<axis::token>(4))});
      if (!done.ok()) return done;
      const index_t wrong = wrong_elements(mine.output.view(), [](const auto&) { return 4.0f; });
      return wrong == 0 ? status{} : failure(errc::invalid_argument, "test", "", wrong, 0);
    });
    INFO(sentence(first_failure(came_to)));
    CHECK(first_failure(came_to).ok());
    CHECK(counting_executor::packs == 3 * packs_of_a_rank);
    CHECK(counting_executor::lse_packs == 3 * (1 - packs_of_a_rank));
  };
  run(std::false_type{}, style::packed, 1);
  // Where the payload goes straight, its LSEs are masked on their way all the same.
  run(std::true_type{}, style::head_major, 0);
}

TEST_CASE(
    "parity 29: views are passed on as they are: a head slice is packed once, head-major not") {
  counting_executor::start();
  const scatter_problem<bf16> problem{{4, 4, 4, 64}, 29};
  // 16 of 24 heads: out strides (24*64, 64, 1), lse strides (24, 1).
  const auto sliced = on_ranks(4, [&](in_process& me) {
    rows_operand<bf16> output(style::packed, 4, 24, 64);
    plane_operand<float> lses(style::packed, 4, 24);
    const auto live = slice<axis::head>(output.view(), 0, 16).value();
    const auto live_lse = slice<axis::head>(lses.view(), 0, 16).value();
    fill(live_lse, [&](const auto& at) { return problem.lse(me.rank(), at[0], at[1]); });
    fill(live, [&](const auto& at) { return problem.output(me.rank(), at[0], at[1], at[2]); });
    rows_operand<bf16> result(style::packed, 4, 4, 64);
    plane_operand<float> merged(style::packed, 4, 4);
    auto workspace = scatter_workspace<bf16>(problem.shape);
    const status done = lse_reduce_scatter<log_base::e>(executor, me, live, live_lse, result.view(),
                                                        merged.view(), whole(workspace));
    if (!done.ok()) return done;
    const index_t wrong = problem.wrong_rows(me.rank(), result, merged);
    return wrong == 0 ? status{} : failure(errc::invalid_argument, "test", "", wrong, 0);
  });
  for (const status& one : sliced) CHECK(one.ok());
  CHECK(counting_executor::packs == 4);
  CHECK(counting_executor::lse_packs == 0);

  // Head-major: nothing at all is packed.
  counting_executor::start();
  const auto head_major = on_ranks(4, [&](in_process& me) {
    return scatter_once<bf16, log_base::e, float, true>(
        me, problem, style::head_major, style::head_major, style::head_major, {}, executor);
  });
  CHECK(first_wrong(head_major) == "");
  CHECK(counting_executor::packs == 0);
  CHECK(counting_executor::lse_packs == 0);
  // A single token: a slice has no gap then.
  const auto one_token = on_ranks(4, [&](in_process& me) {
    return scatter_once(me, scatter_problem<bf16>{{4, 1, 4, 64}, 30}, style::tiled, style::tiled,
                        style::packed, {}, executor);
  });
  CHECK(first_wrong(one_token) == "");
  CHECK(counting_executor::packs == 0);
  CHECK(counting_executor::lse_packs == 0);
}

TEST_CASE("parity 33: a head-major result keeps its strides") {
  // Input storage [head 8][token 3][head_dim 16], two ranks: result [token 3, head 4, head_dim 16]
  // with strides (16, 48, 1).
  std::vector<float> results[2] = {std::vector<float>(192), std::vector<float>(192)};
  const auto came_to = on_ranks(2, [&](in_process& me) {
    std::vector<float> storage(8 * 3 * 16);
    for (std::size_t i = 0; i < storage.size(); ++i) {
      storage[i] = me.rank() == 0 ? static_cast<float>(i) : not_a_number;
    }
    std::vector<float> lses(8 * 3, me.rank() == 0 ? 1.5f : -infinity);
    const view partial_output{
        storage.data(),
        packed(extent<axis::head, 8>(), extent<axis::token, 3>(), extent<axis::head_dim, 16>())};
    const view partial_lse{lses.data(), packed(extent<axis::head, 8>(), extent<axis::token, 3>())};
    const auto result = permute<axis::token, axis::head, axis::head_dim>(view{
        results[me.rank()].data(),
        packed(extent<axis::head, 4>(), extent<axis::token, 3>(), extent<axis::head_dim, 16>())});
    static_assert(decltype(result)::layout_type::static_strides[0] == 16);
    static_assert(decltype(result)::layout_type::static_strides[1] == 48);
    auto workspace = scatter_workspace<float>({2, 3, 4, 16});
    return lse_reduce_scatter<log_base::e>(executor, me, partial_output, partial_lse, result, none,
                                           whole(workspace));
  });
  for (const status& one : came_to) CHECK(one.ok());
  // Rank 1 is empty, so that each rank has its half of the storage, in its order.
  for (std::size_t i = 0; i < 192; ++i) {
    CHECK(results[0][i] == static_cast<float>(i));
    CHECK(results[1][i] == static_cast<float>(192 + i));
  }
}

TEST_CASE_TEMPLATE("parity 34: four ranks, 5 tokens, 2 heads, head_dim 32, and the merged LSE", T,
                   fp16, bf16, float) {
  const scatter_problem<T> problem{{4, 5, 2, 32}, 1234};
  const auto outcomes = scatter_all(problem, style::packed, style::packed);
  CHECK(first_wrong(outcomes) == "");
  const auto inline_bits = scatter_all(problem, style::packed, style::packed, style::packed,
                                       {{lse_placement::inline_bits, peer_placement::outermost}});
  CHECK(first_wrong(inline_bits) == "");
  CHECK(same_results(outcomes, inline_bits));
}

TEST_CASE("parity 35: the same out of a workspace that was there before") {
  const scatter_problem<bf16> problem{{4, 5, 2, 32}, 1235};
  const auto expected = scatter_all(problem, style::packed, style::packed);
  std::vector<guarded<std::byte>> rooms;
  for (int r = 0; r < 4; ++r) rooms.push_back(scatter_workspace<bf16>({4, 64, 2, 32}));
  in_process_group group(4);
  for (int repetition = 0; repetition < 3; ++repetition) {
    const auto again = on_ranks(group, 4, [&](in_process& me) {
      scatter_operands<bf16> mine(problem.shape, style::packed, style::packed);
      problem.put(me.rank(), mine.partial_output, mine.partial_lse);
      scatter_outcome outcome;
      outcome.came_to = lse_reduce_scatter<log_base::e>(
          executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
          mine.merged.view(), whole(rooms[static_cast<std::size_t>(me.rank())]));
      outcome.output = bits_of(mine.output);
      outcome.merged = bits_of(mine.merged);
      return outcome;
    });
    CHECK(same_results(again, expected));
  }
}
