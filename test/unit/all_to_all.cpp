// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/collective/all_to_all.hpp>

#include <support/scatter.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

using entries = layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>>;
using entries_inside = layout<dim<axis::token>, dim<axis::rank>, dim<axis::head>>;

/// What rank `from` sends to rank `to`.
template <class T>
T sent(index_t from, index_t to, index_t token, index_t head) {
  return element_of_bits<T>(mixed(8, {from, to, token, head}));
}

/// One call with operands of these strides (of rank, token and head); every element compared.
template <class T, class Layout = entries>
status exchange_once(in_process& me, const Layout& send_layout, const Layout& receive_layout) {
  guarded<T> send_memory(send_layout.span_size());
  guarded<T> receive_memory(receive_layout.span_size());
  const view<T, Layout> send(send_memory.data(), send_layout);
  const view<T, Layout> receive(receive_memory.data(), receive_layout);
  const auto send_by_rank = permute<axis::rank, axis::token, axis::head>(send);
  const auto receive_by_rank = permute<axis::rank, axis::token, axis::head>(receive);
  fill(send_by_rank, [&](const auto& at) { return sent<T>(me.rank(), at[0], at[1], at[2]); });
  guarded<std::byte> workspace(all_to_all_bytes(send, receive).value());
  const view<const T, Layout> input = send;
  const status done = all_to_all(host_executor{}, me, input, receive, whole(workspace));
  if (!done.ok()) return receive_memory.stray_bytes() == 0 ? done : status{};
  const index_t wrong = wrong_elements(
      receive_by_rank, [&](const auto& at) { return sent<T>(at[0], me.rank(), at[1], at[2]); });
  const index_t stray =
      receive_memory.stray_bytes(receive) +
      workspace.stray_bytes(view{workspace.data(), packed(extent<axis::slot>(workspace.size()))});
  if (wrong == 0 && stray == 0) return {};
  return failure(errc::invalid_argument, "test", "", wrong, stray);
}

entries packed_entries(index_t ranks, index_t tokens, index_t heads) {
  return {dim<axis::rank>(ranks, tokens * heads), dim<axis::token>(tokens, heads),
          dim<axis::head>(heads, 1)};
}
entries with_gaps(index_t ranks, index_t tokens, index_t heads) {
  return {dim<axis::rank>(ranks, tokens * (heads + 3) + 5), dim<axis::token>(tokens, heads + 3),
          dim<axis::head>(heads, 1)};
}
/// The parts are contiguous, with room between them.
entries apart(index_t ranks, index_t tokens, index_t heads) {
  return {dim<axis::rank>(ranks, tokens * heads + 7), dim<axis::token>(tokens, heads),
          dim<axis::head>(heads, 1)};
}
entries heads_outside(index_t ranks, index_t tokens, index_t heads) {
  return {dim<axis::rank>(ranks, tokens * heads), dim<axis::token>(tokens, 1),
          dim<axis::head>(heads, tokens)};
}

}  // namespace

TEST_CASE_TEMPLATE("E11: all_to_all in groups of every size, of every kind of strides", T, fp8_e4m3,
                   bf16, float, std::int64_t) {
  for (const int ranks : {1, 2, 3, 5, 6, 7, 8, 9, 12, 16}) {
    const auto came_to = on_ranks(ranks, [&](in_process& me) {
      for (const auto from : {packed_entries, with_gaps, apart, heads_outside}) {
        for (const auto to : {packed_entries, with_gaps, apart, heads_outside}) {
          const status done = exchange_once<T>(me, from(ranks, 3, 5), to(ranks, 3, 5));
          if (!done.ok()) return done;
        }
      }
      return status{};
    });
    INFO(ranks << ": " << sentence(first_failure(came_to)));
    CHECK(first_failure(came_to).ok());
  }
}

TEST_CASE("all_to_all: the ranks may stand anywhere among the axes, and strides differ by rank") {
  const auto came_to = on_ranks(3, [](in_process& me) {
    const entries_inside dense{dim<axis::token>(4, 6), dim<axis::rank>(3, 2),
                               dim<axis::head>(2, 1)};
    const entries_inside other{dim<axis::token>(4, 2), dim<axis::rank>(3, 9),
                               dim<axis::head>(2, 1)};
    const entries_inside& mine = me.rank() == 0 ? other : dense;
    return exchange_once<bf16>(me, mine, me.rank() == 2 ? other : dense);
  });
  INFO(sentence(first_failure(came_to)));
  CHECK(first_failure(came_to).ok());
}

TEST_CASE("L08: every pattern of fp8 arrives as the byte that was sent") {
  // 256 patterns for each of 4 ranks, NaN (0x7f, 0xff) and both zeros among them.
  std::vector<std::vector<fp8_e4m3>> got(4, std::vector<fp8_e4m3>(4 * 256, fp8_e4m3{0x55}));
  const auto came_to = on_ranks(4, [&](in_process& me) {
    std::vector<fp8_e4m3> send(4 * 256);
    for (std::size_t i = 0; i < send.size(); ++i) {
      send[i].bits =
          static_cast<std::uint8_t>(i + i / 256 * 3 + static_cast<std::size_t>(me.rank()));
    }
    const auto by_rank = packed(extent<axis::rank>(4), extent<axis::token, 256>());
    return all_to_all(host_executor{}, me, view{send.data(), by_rank},
                      view{got[static_cast<std::size_t>(me.rank())].data(), by_rank}, {});
  });
  for (const status& one : came_to) CHECK(one.ok());
  for (std::size_t me = 0; me < 4; ++me) {
    int wrong = 0;
    for (std::size_t from = 0; from < 4; ++from) {
      for (std::size_t i = 0; i < 256; ++i) {
        const auto expected = static_cast<std::uint8_t>(256 * me + i + 3 * me + from);
        wrong += got[me][256 * from + i].bits == expected ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("J02: an all-to-all of nothing succeeds on every rank") {
  for (const int ranks : {1, 2, 5}) {
    const auto came_to = on_ranks(ranks, [&](in_process& me) {
      const view<bf16, entries> nothing(nullptr, packed_entries(ranks, 0, 4));
      const status done = all_to_all(host_executor{}, me, nothing, nothing, {});
      if (!done.ok()) return done;
      return exchange_once<bf16>(me, with_gaps(ranks, 3, 0), with_gaps(ranks, 3, 0));
    });
    INFO(sentence(first_failure(came_to)));
    CHECK(first_failure(came_to).ok());
  }
}

TEST_CASE("all_to_all: an extent that differs is named, be the number of bytes the same") {
  const auto came_to = on_ranks(2, [](in_process& me) {
    const index_t tokens = me.rank() == 0 ? 3 : 2;
    const entries shape = packed_entries(2, tokens, 6 / tokens);
    return exchange_once<bf16>(me, shape, shape);
  });
  for (const status& one : came_to) {
    CHECK(sentence(one) ==
          "rank_mismatch: all_to_all, axis token: got 2, expected 3: seen on rank 1");
  }
}

TEST_CASE("all_to_all: what does not fit is refused on all ranks, and nothing is written") {
  const auto run = [](index_t entries_of_odd, std::size_t room) {
    return on_ranks(3, [&](in_process& me) {
      const index_t count = me.rank() == 1 ? entries_of_odd : 3;
      std::vector<bf16> memory(400, bf16{7});
      guarded<bf16> target(400);
      alignas(16) std::byte workspace[512];
      const status done = all_to_all(host_executor{}, me,
                                     view<bf16, entries>(memory.data(), with_gaps(count, 3, 4)),
                                     view<bf16, entries>(target.data(), with_gaps(count, 3, 4)),
                                     std::span(workspace).first(me.rank() == 1 ? room : 512));
      return done.ok() || target.stray_bytes() == 0 ? done : status{};
    });
  };
  const auto entries_wrong = run(2, 512);
  CHECK(sentence(entries_wrong[1]) ==
        "shape_mismatch: send, axis rank: got 2, expected 3: one entry per rank");
  CHECK(sentence(entries_wrong[0]) ==
        "rank_mismatch: send, axis rank: got 2, expected 3: seen on rank 1");
  CHECK(sentence(entries_wrong[2]) == sentence(entries_wrong[0]));
  // Three parts of 24 bytes take 80; twice.
  const auto room_wrong = run(3, 159);
  CHECK(sentence(room_wrong[1]) ==
        "capacity_exceeded: workspace: got 160, expected 159: more is needed (got) than available "
        "(expected)");
  CHECK(room_wrong[0].code == errc::rank_mismatch);
  for (const status& one : run(3, 160)) CHECK(one.ok());
}

TEST_CASE("all_to_all_bytes: a packed copy of each operand that needs one") {
  const auto bytes = [](const entries& send, const entries& receive) {
    const view<bf16, entries> from(nullptr, send);
    const view<bf16, entries> to(nullptr, receive);
    return all_to_all_bytes(from, to).value();
  };
  CHECK(bytes(packed_entries(4, 3, 5), apart(4, 3, 5)) == 0);
  CHECK(bytes(with_gaps(4, 3, 5), apart(4, 3, 5)) == 4 * 32);
  CHECK(bytes(with_gaps(4, 3, 5), heads_outside(4, 3, 5)) == 8 * 32);
  CHECK(bytes(with_gaps(1, 3, 5), with_gaps(1, 3, 5)) == 0);
  CHECK(bytes(with_gaps(4, 0, 5), with_gaps(4, 0, 5)) == 0);
}
