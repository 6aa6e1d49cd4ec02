// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/plan/head_split.hpp>

#include <support/scatter.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

/// The bits of one element of the query: of rank, token, head (of that rank) and head_dim. Every
/// pattern of the type, NaN included, but the poison.
template <class T>
T query_bits(index_t rank, index_t token, index_t head, index_t d) {
  return element_of_bits<T>(mixed(576, {rank, token, head, d}));
}

template <class T, bool HeadMajor = false>
void put_query(index_t rank, rows_operand<T, HeadMajor>& local) {
  fill(local.by_token(), [&](const auto& at) { return query_bits<T>(rank, at[0], at[1], at[2]); });
}

template <class T>
guarded<std::byte> gather_workspace(const message_shape& shape) {
  return guarded<std::byte>(all_gather_heads_bytes<T>(shape).value());
}

/// Elements of `gathered` (over token, head and head_dim) that are not the query of all ranks.
template <class T, class View>
index_t wrong_in(const View& gathered, index_t heads) {
  return wrong_elements(gathered, [&](const auto& at) {
    return query_bits<T>(at[1] / heads, at[0], at[1] % heads, at[2]);
  });
}

status verdict(index_t wrong, index_t stray) {
  if (wrong == 0 && stray == 0) return {};
  return failure(errc::invalid_argument, "test", "wrong elements (got), stray bytes (expected)",
                 wrong, stray);
}

/// One whole call on one rank.
template <class T, bool HeadMajor = false, bool GatheredHeadMajor = false>
status gather_once(in_process& me, index_t tokens, index_t heads, index_t head_dim,
                   style local_style, style gathered_style,
                   const all_gather_options& options = {}) {
  const message_shape shape{me.size(), tokens, heads, head_dim};
  rows_operand<T, HeadMajor> local(local_style, tokens, heads, head_dim);
  put_query<T, HeadMajor>(me.rank(), local);
  rows_operand<T, GatheredHeadMajor> gathered(gathered_style, tokens, heads * me.size(), head_dim);
  auto workspace = gather_workspace<T>(shape);
  const status done = all_gather_heads(host_executor{}, me, local.input(), gathered.view(),
                                       whole(workspace), options);
  if (!done.ok()) return gathered.memory.stray_bytes() == 0 ? done : status{};
  const view room{workspace.data(), packed(extent<axis::slot>(workspace.size()))};
  return verdict(wrong_in<T>(gathered.by_token(), heads),
                 gathered.memory.stray_bytes(gathered.view()) + workspace.stray_bytes(room) +
                     local.memory.stray_bytes(local.view()));
}

}  // namespace

TEST_CASE("E11: heads are gathered in groups of every size, the odd ones too") {
  for (int ranks = 1; ranks <= max_ranks; ++ranks) {
    REQUIRE(supported_ranks(ranks));
    const auto came_to = on_ranks(ranks, [](in_process& me) {
      return gather_once<bf16>(me, 3, 11, 24, style::tiled, style::packed);
    });
    INFO(ranks << ": " << sentence(first_failure(came_to)));
    CHECK(first_failure(came_to).ok());
  }
}

TEST_CASE_TEMPLATE("all_gather_heads: elements of every kind and size", T, fp8_e4m3, float,
                   std::int64_t) {
  for (const style local_style : all_styles) {
    const auto came_to = on_ranks(
        3, [&](in_process& me) { return gather_once<T>(me, 4, 5, 7, local_style, style::tiled); });
    INFO(sentence(first_failure(came_to)));
    CHECK(first_failure(came_to).ok());
  }
}

TEST_CASE("all_gather_heads: all strides, orders of axes and ways give the same bits") {
  for (const style local_style : all_styles) {
    for (const style gathered_style : all_styles) {
      for (const auto preference : {route_preference::automatic, route_preference::packed}) {
        const all_gather_options options{preference};
        CAPTURE(static_cast<int>(local_style));
        CAPTURE(static_cast<int>(gathered_style));
        const auto came_to = on_ranks(3, [&](in_process& me) {
          const status done[] = {
              gather_once<bf16>(me, 4, 5, 8, local_style, gathered_style, options),
              gather_once<bf16, true, false>(me, 4, 5, 8, local_style, gathered_style, options),
              gather_once<bf16, false, true>(me, 4, 5, 8, local_style, gathered_style, options),
              gather_once<bf16, true, true>(me, 4, 5, 8, local_style, gathered_style, options)};
          for (const status& one : done) {
            if (!one.ok()) return one;
          }
          return status{};
        });
        INFO(sentence(first_failure(came_to)));
        CHECK(first_failure(came_to).ok());
      }
    }
  }
}

TEST_CASE("all_gather_heads: ranks whose operands have different strides understand each other") {
  const auto came_to = on_ranks(6, [](in_process& me) {
    const auto of = static_cast<std::size_t>(me.rank());
    const auto preference =
        me.rank() % 2 == 0 ? route_preference::automatic : route_preference::packed;
    return gather_once<bf16>(me, 5, 3, 16, all_styles[of], all_styles[(of + 4) % 6], {preference});
  });
  INFO(sentence(first_failure(came_to)));
  CHECK(first_failure(came_to).ok());
}

TEST_CASE("A03: a column is gathered with its stride") {
  // 2 ranks, int64 [[0, 0], [1, 1]], column 0.
  std::vector<std::vector<std::int64_t>> gathered(2, std::vector<std::int64_t>(4, -1));
  const auto came_to = on_ranks(2, [&](in_process& me) {
    const std::int64_t table[4] = {0, 0, 1, 1};
    const view column{table, layout(dim<axis::head, 2, 2>(2), dim<axis::token, 1, 4>(1),
                                    dim<axis::head_dim, 1, 1>(1))};
    auto& mine = gathered[static_cast<std::size_t>(me.rank())];
    const view all{mine.data(), packed(extent<axis::head, 4>(), extent<axis::token, 1>(),
                                       extent<axis::head_dim, 1>())};
    alignas(16) std::byte room[64];
    return all_gather_heads(host_executor{}, me, column, all, room);
  });
  for (const status& one : came_to) CHECK(one.ok());
  for (const auto& mine : gathered) CHECK(mine == std::vector<std::int64_t>{0, 1, 0, 1});
}

TEST_CASE("A13: a query that is a slice of a fused row is gathered without its neighbours") {
  // q is the first 2 * 64 columns of rows of 256; the rest of them is NaN.
  const auto came_to = on_ranks(2, [](in_process& me) {
    guarded<bf16> fused(3 * 256);
    const view query{fused.data(), layout(dim<axis::token, 3, 256>(3), dim<axis::head, 2, 64>(2),
                                          dim<axis::head_dim, 64, 1>(64))};
    fill(query,
         [](const auto& at) { return from_float<bf16>(static_cast<float>(10 * at[0] + at[1])); });
    rows_operand<bf16> gathered(style::packed, 3, 4, 64);
    auto workspace = gather_workspace<bf16>({2, 3, 2, 64});
    const status done =
        all_gather_heads(host_executor{}, me, query, gathered.view(), whole(workspace));
    if (!done.ok()) return done;
    return verdict(
        wrong_elements(gathered.view(),
                       [](const auto& at) {
                         return from_float<bf16>(static_cast<float>(10 * at[0] + at[1] % 2));
                       }),
        0);
  });
  for (const status& one : came_to) CHECK(one.ok());
}

TEST_CASE("E06: 99 heads of nine ranks into a tile of 104 leave its other rows alone") {
  constexpr head_split heads = static_head_split<96, 9>;
  static_assert(heads.per_rank == 11 && heads.padded() == 99);
  static_assert(tiled_width(heads.padded(), 8) == 104);
  for (const index_t tokens : {1, 4}) {
    const auto came_to = on_ranks(9, [&](in_process& me) {
      rows_operand<bf16> local(style::packed, tokens, 11, 576);
      put_query(me.rank(), local);
      guarded<bf16> buffer(tokens * 104 * 576);
      const view tile{buffer.data(), packed(extent<axis::token>(tokens), extent<axis::head, 104>(),
                                            extent<axis::head_dim, 576>())};
      const auto gathered = slice<axis::head>(tile, constant<0>, constant<99>);
      auto workspace = gather_workspace<bf16>({9, tokens, 11, 576});
      const status done =
          all_gather_heads(host_executor{}, me, local.input(), gathered, whole(workspace));
      if (!done.ok()) return done;
      return verdict(wrong_in<bf16>(gathered, 11), buffer.stray_bytes(gathered));
    });
    INFO(sentence(first_failure(came_to)));
    CHECK(first_failure(came_to).ok());
  }
}

TEST_CASE("G04: L08: rows of fp8 that are no multiple of 16 bytes are gathered byte for byte") {
  for (const index_t head_dim : {1, 33, 66, 576, 577}) {
    const auto came_to = on_ranks(4, [&](in_process& me) {
      return gather_once<fp8_e4m3>(me, 3, 2, head_dim, style::packed, style::tiled);
    });
    CHECK(first_failure(came_to).ok());
  }
}

TEST_CASE("all_gather_heads: the local heads may lie in their place among the gathered ones") {
  for (const int ranks : {1, 4}) {
    for (const index_t tokens : {1, 3}) {
      for (const style which : all_styles) {
        for (const auto preference : {route_preference::automatic, route_preference::packed}) {
          const auto came_to = on_ranks(ranks, [&](in_process& me) {
            rows_operand<bf16> gathered(which, tokens, 2 * ranks, 8);
            const auto own = slice<axis::head>(gathered.view(), 2 * me.rank(), index_t{2}).value();
            fill(own,
                 [&](const auto& at) { return query_bits<bf16>(me.rank(), at[0], at[1], at[2]); });
            auto workspace = gather_workspace<bf16>({ranks, tokens, 2, 8});
            const status done = all_gather_heads(host_executor{}, me, own, gathered.view(),
                                                 whole(workspace), {preference});
            if (!done.ok()) return done;
            return verdict(wrong_in<bf16>(gathered.view(), 2),
                           gathered.memory.stray_bytes(gathered.view()));
          });
          INFO(sentence(first_failure(came_to)));
          CHECK(first_failure(came_to).ok());
        }
      }
    }
  }
}

TEST_CASE("J02: a gather without tokens succeeds on every rank, null pointers and all") {
  using rows = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
  for (const int ranks : {1, 3, 16}) {
    const auto came_to = on_ranks(ranks, [&](in_process& me) {
      const view<const bf16, rows> local(
          nullptr, {dim<axis::token>(0, 16), dim<axis::head>(2, 8), dim<axis::head_dim>(8, 1)});
      const view<bf16, rows> gathered(
          nullptr,
          {dim<axis::token>(0, 16), dim<axis::head>(2 * ranks, 8), dim<axis::head_dim>(8, 1)});
      for (const auto preference : {route_preference::automatic, route_preference::packed}) {
        const status done =
            all_gather_heads(host_executor{}, me, local, gathered, {}, {preference});
        if (!done.ok()) return done;
      }
      return me.barrier();
    });
    INFO(sentence(first_failure(came_to)));
    CHECK(first_failure(came_to).ok());
  }
}

TEST_CASE("all_gather_heads: a mismatch of shape, element or order of the axes is named") {
  const auto told = [](auto work) {
    const auto came_to = on_ranks(3, work);
    for (const status& one : came_to) CHECK(sentence(one) == sentence(came_to[0]));
    return sentence(came_to[0]);
  };
  CHECK(told([](in_process& me) {
          return gather_once<bf16>(me, me.rank() == 2 ? 4 : 3, 2, 8, style::packed, style::packed);
        }) == "rank_mismatch: all_gather_heads, axis token: got 4, expected 3: seen on rank 2");
  CHECK(told([](in_process& me) {
          return gather_once<bf16>(me, 3, me.rank() == 0 ? 3 : 2, 8, style::packed, style::packed);
        }) == "rank_mismatch: all_gather_heads, axis head: got 3, expected 2: seen on rank 0");
  CHECK(told([](in_process& me) {
          return me.rank() == 1 ? gather_once<fp16>(me, 3, 2, 8, style::packed, style::packed)
                                : gather_once<bf16>(me, 3, 2, 8, style::packed, style::packed);
        }) ==
        "rank_mismatch: all_gather_heads, axis element_kind: got 3, expected 4: seen on rank 1");
  CHECK(told([](in_process& me) {
          return me.rank() == 1 ? gather_once<bf16, true>(me, 3, 2, 8, style::packed, style::packed)
                                : gather_once<bf16>(me, 3, 2, 8, style::packed, style::packed);
        }) ==
        "rank_mismatch: all_gather_heads, axis place of token: got 1, expected 0: seen on rank 1");
  // As many bytes, in another shape.
  CHECK(told([](in_process& me) {
          const bool odd = me.rank() == 1;
          return gather_once<bf16>(me, odd ? 4 : 2, odd ? 2 : 4, 8, style::packed, style::packed);
        }) == "rank_mismatch: all_gather_heads, axis token: got 4, expected 2: seen on rank 1");
}

TEST_CASE("M03: a gather beyond its workspace is refused on all ranks, and nothing is written") {
  const message_shape capacity{3, 8, 2, 16};
  for (const index_t tokens : {8, 9}) {
    const auto came_to = on_ranks(3, [&](in_process& me) {
      rows_operand<bf16> local(style::tiled, tokens, 2, 16);
      put_query(me.rank(), local);
      rows_operand<bf16> gathered(style::tiled, tokens, 6, 16);
      auto workspace = gather_workspace<bf16>(capacity);
      const status done =
          all_gather_heads(host_executor{}, me, local.input(), gathered.view(), whole(workspace));
      if (done.ok()) return verdict(wrong_in<bf16>(gathered.view(), 2), 0);
      return gathered.memory.stray_bytes() + workspace.stray_bytes() == 0 ? done : status{};
    });
    for (const status& one : came_to) {
      CHECK(one.ok() == (tokens == 8));
      if (tokens == 8) continue;
      CHECK(one.code == errc::capacity_exceeded);
      CHECK(one.got == 9 * 2 * 16 * 2 * 4);
      CHECK(one.expected == 8 * 2 * 16 * 2 * 4);
    }
  }
}

TEST_CASE("all_gather_heads_bytes: this rank's part and those of all, each on 16 bytes") {
  static_assert(all_gather_heads_bytes<bf16>({4, 3, 1, 3}).value() == 32 + 4 * 18);
  static_assert(all_gather_heads_bytes<fp8_e4m3>({4, 3, 2, 576}).value() == 5 * 3 * 2 * 576);
  static_assert(all_gather_heads_bytes<bf16>({1, 3, 2, 576}).value() == 0);
  static_assert(all_gather_heads_bytes<bf16>({4, 0, 2, 576}).value() == 0);
  CHECK(all_gather_heads_bytes<bf16>({0, 3, 2, 576}).why().code == errc::unsupported);
  CHECK(all_gather_heads_bytes<bf16>({4, -3, 2, 576}).why().code == errc::capacity_exceeded);
  CHECK(all_gather_heads_bytes<bf16>({4, INT64_MAX, 2, 576}).why().code == errc::capacity_exceeded);
}

TEST_CASE("parity 18: two ranks of [2, 8, 64] gather [2, 16, 64]") {
  const auto came_to = on_ranks(2, [](in_process& me) {
    return gather_once<bf16>(me, 2, 8, 64, style::packed, style::packed);
  });
  for (const status& one : came_to) CHECK(one.ok());
}

TEST_CASE("parity 30: parity 31: a group of 6 warms up and then gathers 66 heads of 576") {
  // Nothing is switched on or off from outside, and what warm-up accepts the call accepts.
  constexpr int ranks = 6;
  constexpr index_t heads = 66 / ranks;
  static_assert(supported_ranks(ranks));
  const auto came_to = on_ranks(ranks, [&](in_process& me) {
    const status warm = gather_once<bf16>(me, 1, heads, 576, style::packed, style::packed);
    return warm.ok() ? gather_once<bf16>(me, 5, heads, 576, style::packed, style::packed) : warm;
  });
  for (const status& one : came_to) CHECK(one.ok());
}
