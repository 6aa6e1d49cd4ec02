// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Operands of one call that share memory: refused on all ranks, with nothing written.

#include <headwise/headwise.hpp>

#include <support/ranks.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using namespace headwise;

TEST_CASE("an all-to-all into its own operand is refused") {
  std::uint32_t memory[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  in_process_group group(2);
  const auto came = support::on_ranks(group, 2, [&](in_process& mine) {
    const view whole(memory[mine.rank()], packed(extent<axis::rank>(2), extent<axis::token>(2)));
    return all_to_all(host_executor{}, mine, whole, whole, {});
  });
  for (const status& one : came) {
    CHECK(one.code == errc::overlap);
    CHECK(one.got == 16);
  }
  CHECK(memory[0][2] == 3);
  CHECK(memory[1][0] == 5);
}

TEST_CASE("a gather takes local heads that stand in their place, and in no other") {
  for (const bool in_place : {true, false}) {
    CAPTURE(in_place);
    std::uint32_t memory[2][2] = {{10, 11}, {20, 21}};
    alignas(16) std::byte workspace[2][64];
    in_process_group group(2);
    const auto came = support::on_ranks(group, 2, [&](in_process& mine) {
      const int r = mine.rank();
      std::uint32_t* const heads = memory[r];
      const index_t place = in_place ? r : 1 - r;
      const auto gathered = view(
          heads, packed(extent<axis::token>(1), extent<axis::head>(2), extent<axis::head_dim>(1)));
      const auto local = view(heads + place, packed(extent<axis::token>(1), extent<axis::head>(1),
                                                    extent<axis::head_dim>(1)));
      return all_gather_heads(host_executor{}, mine, local, gathered, workspace[r]);
    });
    for (const status& one : came) CHECK(one.code == (in_place ? errc::ok : errc::overlap));
    CHECK(memory[0][1] == (in_place ? 21 : 11));
    CHECK(memory[1][0] == (in_place ? 10 : 20));
  }
}
