// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/plan/head_split.hpp>

#include <support/sentence.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

using namespace headwise;
using support::sentence;

namespace {

// What follows from "dummies are the last heads", written out head by head.
std::vector<index_t> dummy_heads(const head_split& split, index_t rank) {
  std::vector<index_t> found;
  for (index_t i = 0; i < split.per_rank; ++i) {
    if (split.is_dummy(split.first(rank) + i)) found.push_back(i);
  }
  return found;
}

std::vector<index_t> dummy_heads(const gathered_heads& heads) {
  std::vector<index_t> found;
  for (index_t i = 0; i < heads.count(); ++i) {
    if (heads.is_dummy(i)) found.push_back(i);
  }
  return found;
}

gathered_heads gather(index_t heads, index_t tp, index_t dcp, index_t tp_rank) {
  const auto split = head_split::make(heads, tp);
  const auto group = dcp_group::make(tp, dcp, tp_rank);
  REQUIRE(split.ok());
  REQUIRE(group.ok());
  const auto both = gathered_heads::make(split.value(), group.value());
  REQUIRE(both.ok());
  return both.value();
}

}  // namespace

TEST_CASE("E01: 52 heads over 3 ranks are 54, the two dummies are the last of rank 2") {
  constexpr head_split split = static_head_split<52, 3>;
  static_assert(split.per_rank == 18 && split.padded() == 54 && split.dummies() == 2);
  static_assert(split.first(2) == 36 && split.real(2) == 16 && split.dummies(2) == 2);
  CHECK(head_split::make(52, 3).value() == split);

  CHECK(split.real(0) == 18);
  CHECK(split.real(1) == 18);
  CHECK(dummy_heads(split, 0).empty());
  CHECK(dummy_heads(split, 1).empty());
  CHECK(dummy_heads(split, 2) == std::vector<index_t>{16, 17});
  CHECK(split.owner(35) == 1);
  CHECK(split.owner(36) == 2);
  CHECK(split.owner(51) == 2);
}

TEST_CASE("E03: padding is to the rank count, and to an alignment only where one is asked for") {
  static_assert(static_head_split<64, 6>.padded() == 66);
  static_assert(static_head_split<64, 6>.per_rank == 11);
  static_assert(static_head_split<64, 6, head_split_options{.alignment = 8}>.padded() == 96);
  static_assert(static_head_split<64, 6, head_split_options{.alignment = 8}>.per_rank == 16);
  static_assert(static_head_split<64, 3>.padded() == 66);
  static_assert(static_head_split<64, 5>.padded() == 65);
  static_assert(static_head_split<64, 7>.padded() == 70);
  static_assert(static_head_split<64, 9>.padded() == 72);
  static_assert(static_head_split<64, 12>.padded() == 72);

  struct row {
    index_t ranks, alignment, per_rank;
  };
  for (const row& r : {row{6, 1, 11}, row{6, 8, 16}, row{6, 16, 16}, row{3, 1, 22}, row{5, 1, 13},
                       row{7, 1, 10}, row{9, 1, 8}, row{12, 1, 6}, row{8, 1, 8}, row{16, 1, 4}}) {
    CAPTURE(r.ranks);
    CAPTURE(r.alignment);
    const auto split = head_split::make(64, r.ranks, {.alignment = r.alignment});
    REQUIRE(split.ok());
    CHECK(split.value().per_rank == r.per_rank);
    CHECK(split.value().padded() == r.per_rank * r.ranks);
  }
}

TEST_CASE("E03: the splits of real models, dummies named one by one") {
  struct row {
    index_t heads, ranks, alignment, per_rank, padded;
  };
  for (const row& r :
       {row{64, 6, 1, 11, 66}, row{64, 8, 1, 8, 64}, row{64, 16, 1, 4, 64}, row{64, 3, 1, 22, 66},
        row{64, 3, 8, 24, 72}, row{96, 6, 1, 16, 96}, row{96, 12, 1, 8, 96}, row{96, 16, 1, 6, 96},
        row{96, 9, 1, 11, 99}, row{96, 10, 1, 10, 100}, row{64, 12, 1, 6, 72},
        row{128, 10, 8, 16, 160}, row{128, 3, 8, 48, 144}, row{128, 8, 1, 16, 128}}) {
    CAPTURE(r.heads);
    CAPTURE(r.ranks);
    const auto split = head_split::make(r.heads, r.ranks, {.alignment = r.alignment});
    REQUIRE(split.ok());
    CHECK(split.value().per_rank == r.per_rank);
    CHECK(split.value().padded() == r.padded);
    CHECK(split.value().dummies() == r.padded - r.heads);
  }

  CHECK(dummy_heads(static_head_split<64, 6>, 5) == std::vector<index_t>{9, 10});
  CHECK(dummy_heads(static_head_split<96, 9>, 8) == std::vector<index_t>{8, 9, 10});
  CHECK(dummy_heads(static_head_split<96, 10>, 9) == std::vector<index_t>{6, 7, 8, 9});
  // 64 over 12: the dummies fill rank 11 and reach into rank 10.
  CHECK(dummy_heads(static_head_split<64, 12>, 9).empty());
  CHECK(dummy_heads(static_head_split<64, 12>, 10) == std::vector<index_t>{4, 5});
  CHECK(dummy_heads(static_head_split<64, 12>, 11) == std::vector<index_t>{0, 1, 2, 3, 4, 5});
  static_assert(static_head_split<64, 12>.real(11) == 0);
  static_assert(static_head_split<64, 12>.dummies(11) == 6);
  static_assert(static_head_split<64, 12>.dummies() == 8);
}

TEST_CASE("E06: nine ranks gather 99 of 96 heads, a tile of 8 has room for 104") {
  const gathered_heads heads = gather(96, 9, 9, 4);
  CHECK(heads.count() == 99);
  CHECK(heads.tiled(8) == 104);
  CHECK(heads.tiled(16) == 112);
  CHECK(heads.real() == 96);
  CHECK(dummy_heads(heads) == std::vector<index_t>{96, 97, 98});
  // What goes back: 11 heads per rank, together exactly the 99, none of the tile's tail.
  std::vector<index_t> returned(9, 0);
  for (index_t i = 0; i < heads.count(); ++i) {
    ++returned[static_cast<std::size_t>(heads.owner(i))];
  }
  CHECK(returned == std::vector<index_t>(9, 11));
  CHECK(heads.first(8) + heads.split.per_rank == 99);
}

TEST_CASE("E07: 64 heads over 3 ranks in eights are 72, rank 2 has 16 real ones and 8 dummies") {
  constexpr head_split split = static_head_split<64, 3, head_split_options{.alignment = 8}>;
  static_assert(split.padded() == 72 && split.per_rank == 24);
  static_assert(split.real(2) == 16 && split.dummies(2) == 8);
  CHECK(head_split::make(64, 3, {.alignment = 8}).value() == split);
  CHECK(dummy_heads(split, 2) == std::vector<index_t>{16, 17, 18, 19, 20, 21, 22, 23});
  CHECK(split.real(0) == 24);
  CHECK(split.real(1) == 24);
}

TEST_CASE("E08: heads per rank times head dim is a multiple of a quantisation block") {
  constexpr head_split_options options{.head_dim = 192, .block = 128};
  constexpr head_split split = static_head_split<64, 6, options>;
  static_assert(split.padded() == 72);
  static_assert(split.per_rank * 192 == 2304 && 2304 % 128 == 0);
  static_assert(static_head_split<64, 6>.per_rank * 192 == 2112 && 2112 % 128 != 0);
  CHECK(head_split::make(64, 6, options).value() == split);

  // Both constraints at once: a multiple of 3 (alignment) and of 4 (256 / gcd(256, 192)).
  const auto both = head_split::make(64, 6, {.alignment = 3, .head_dim = 192, .block = 256});
  REQUIRE(both.ok());
  CHECK(both.value().per_rank == 12);
  const auto wider = head_split::make(80, 6, {.alignment = 3, .head_dim = 192, .block = 256});
  REQUIRE(wider.ok());
  CHECK(wider.value().per_rank == 24);
}

TEST_CASE("E09: heads are gathered as they are and padded afterwards") {
  using widths = width_list<16, 32, 64, 128>;
  // 16 heads on each of 4 ranks: 64, which a kernel has. Padded first they would be 4 * 64.
  const gathered_heads four = gather(64, 4, 4, 0);
  CHECK(four.split.per_rank == 16);
  CHECK(four.count() == 64);
  CHECK(four.width(width_list<64, 128>{}).value() == 64);
  static_assert(width_list<64, 128>::static_next<16>() * 4 == 256);
  CHECK_FALSE(width_list<64, 128>::next(256).ok());

  const gathered_heads eight = gather(96, 8, 8, 7);
  CHECK(eight.split.per_rank == 12);
  CHECK(eight.count() == 96);
  CHECK(eight.width(widths{}).value() == 128);
}

TEST_CASE("E10: the next width comes out of the list of this kernel") {
  static_assert(width_list<16, 32, 128>::static_next<64>() == 128);
  static_assert(width_list<16, 32, 64, 128>::static_next<64>() == 64);
  static_assert(width_list<128, 16, 64, 32>::static_next<64>() == 64);  // any order
  static_assert(width_list<128, 16, 64, 32>::largest() == 128);
  static_assert(width_list<16, 32, 128>::static_next<1>() == 16);

  CHECK(width_list<16, 32, 128>::next(64).value() == 128);
  CHECK(width_list<16, 32, 64, 128>::next(64).value() == 64);
  CHECK(width_list<16, 32, 64, 128>::next(65).value() == 128);
  CHECK(width_list<16, 32, 64, 128>::next(128).value() == 128);

  // 129 of static heads does not compile: compile_fail/E10_width_list_too_narrow.cpp.
  const auto wide = width_list<16, 32, 64, 128>::next(129);
  REQUIRE_FALSE(wide.ok());
  CHECK(wide.why().code == errc::unsupported);
  CHECK(std::string(wide.why().operand) == "heads");
  CHECK(wide.why().got == 129);
  CHECK(wide.why().expected == 128);
  CHECK(width_list<16>::next(0).why().code == errc::unsupported);
  CHECK(width_list<16>::next(-1).why().code == errc::unsupported);
}

TEST_CASE("E11: one predicate says which group sizes run") {
  for (const index_t ranks : {1, 2, 3, 5, 6, 7, 8, 9, 12, 16}) {
    CAPTURE(ranks);
    CHECK(supported_ranks(ranks));
    CHECK(require_supported_ranks(ranks).ok());
    CHECK(dcp_group::make(ranks, ranks, 0).ok());
  }
  static_assert(supported_ranks(1) && supported_ranks(3) && supported_ranks(16));
  static_assert(!supported_ranks(0) && !supported_ranks(17) && !supported_ranks(-1));

  // What cannot run is a value that says so, for who warms up and for who dispatches.
  for (const index_t ranks : {-1, 0, 17, 32}) {
    CAPTURE(ranks);
    const status why = require_supported_ranks(ranks);
    CHECK(why.code == errc::unsupported);
    CHECK(why.got == ranks);
    CHECK(why.expected == 16);
  }
  CHECK(dcp_group::make(34, 17, 0).why().code == errc::unsupported);
}

TEST_CASE("E: kernel tiles for the groups of real deployments") {
  struct row {
    index_t heads, tp, dcp, gathered, tile16, tile8;
  };
  for (const row& r :
       {row{64, 6, 2, 22, 32, 24}, row{64, 6, 3, 33, 48, 40}, row{64, 6, 6, 66, 80, 72},
        row{64, 8, 2, 16, 16, 16}, row{64, 8, 8, 64, 64, 64}, row{96, 9, 9, 99, 112, 104},
        row{128, 8, 8, 128, 128, 128}}) {
    CAPTURE(r.tp);
    CAPTURE(r.dcp);
    const gathered_heads heads = gather(r.heads, r.tp, r.dcp, 0);
    CHECK(heads.count() == r.gathered);
    CHECK(heads.tiled(16) == r.tile16);
    CHECK(heads.tiled(8) == r.tile8);
  }
  static_assert(tiled_width(22, 16) == 32 && tiled_width(16, 16) == 16 && tiled_width(6, 8) == 8);
}

TEST_CASE("E: DCP groups are contiguous blocks of tensor-parallel ranks") {
  const auto members = [](index_t tp, index_t dcp, index_t tp_rank) {
    const dcp_group group = dcp_group::make(tp, dcp, tp_rank).value();
    std::vector<index_t> all;
    for (index_t i = 0; i < dcp; ++i) all.push_back(group.member(i));
    CHECK(group.member(group.rank()) == tp_rank);
    return all;
  };
  for (const index_t rank : {0, 1}) CHECK(members(6, 2, rank) == std::vector<index_t>{0, 1});
  for (const index_t rank : {2, 3}) CHECK(members(6, 2, rank) == std::vector<index_t>{2, 3});
  for (const index_t rank : {4, 5}) CHECK(members(6, 2, rank) == std::vector<index_t>{4, 5});
  for (const index_t rank : {0, 1, 2}) CHECK(members(6, 3, rank) == std::vector<index_t>{0, 1, 2});
  for (const index_t rank : {3, 4, 5}) CHECK(members(6, 3, rank) == std::vector<index_t>{3, 4, 5});

  constexpr dcp_group group = static_dcp_group<6, 2>(5);
  static_assert(group.groups() == 3 && group.group() == 2 && group.rank() == 1);
  static_assert(group.member(0) == 4 && group.member(1) == 5);
  CHECK(dcp_group::make(6, 2, 5).value() == group);
}

TEST_CASE("E: the dummies of a group are its last heads, and only the last groups have any") {
  // 64 heads, TP6, DCP2: ranks 4 and 5 gather 22, of which 20 and 21 are dummies.
  CHECK(dummy_heads(gather(64, 6, 2, 0)).empty());
  CHECK(dummy_heads(gather(64, 6, 2, 3)).empty());
  CHECK(dummy_heads(gather(64, 6, 2, 4)) == std::vector<index_t>{20, 21});
  CHECK(dummy_heads(gather(64, 6, 2, 5)) == std::vector<index_t>{20, 21});
  CHECK(gather(64, 6, 2, 4).real() == 20);
  CHECK(gather(64, 6, 2, 4).dummies() == 2);

  const gathered_heads last = gather(64, 6, 2, 5);
  CHECK(last.global(0) == 44);
  CHECK(last.global(19) == 63);
  CHECK(last.owner(10) == 0);
  CHECK(last.owner(11) == 1);
  CHECK(last.first(1) == 11);

  // 64 over 12 in groups of 4: the last group has 16 real heads, then 8 dummies.
  CHECK(gather(64, 12, 4, 11).real() == 16);
  CHECK(gather(64, 12, 4, 11).dummies() == 8);
  // Groups of one rank, and one of them with dummies only.
  CHECK(gather(64, 12, 1, 11).real() == 0);
  CHECK(gather(64, 12, 1, 11).dummies() == 6);

  const auto elsewhere =
      gathered_heads::make(static_head_split<64, 8>, dcp_group::make(6, 2, 0).value());
  REQUIRE_FALSE(elsewhere.ok());
  CHECK(elsewhere.why().code == errc::shape_mismatch);
  CHECK(elsewhere.why().got == 8);
  CHECK(elsewhere.why().expected == 6);
}

TEST_CASE("E: a group size that does not divide the ranks is a status with both values") {
  const auto group = dcp_group::make(6, 4, 0);
  REQUIRE_FALSE(group.ok());
  CHECK(group.why().code == errc::invalid_argument);
  CHECK(group.why().got == 6);
  CHECK(group.why().expected == 4);
  CHECK(sentence(group.why()) ==
        "invalid_argument: tp_ranks, axis rank: got 6, expected 4: must be a multiple of dcp_ranks "
        "(expected)");

  CHECK(dcp_group::make(0, 1, 0).why().code == errc::invalid_argument);
  CHECK(dcp_group::make(6, 0, 0).why().code == errc::unsupported);
  CHECK(dcp_group::make(6, -2, 0).why().code == errc::unsupported);
  CHECK(dcp_group::make(6, 2, 6).why().code == errc::out_of_range);
  CHECK(dcp_group::make(6, 2, -1).why().code == errc::out_of_range);
}

TEST_CASE("J03: no heads, or more ranks than heads without padding, is an error") {
  const auto none = head_split::make(0, 4);
  REQUIRE_FALSE(none.ok());
  CHECK(none.why().code == errc::invalid_argument);
  CHECK(std::string(none.why().operand) == "heads");
  CHECK(none.why().got == 0);

  const auto thin = head_split::make(3, 4, {.padding = false});
  REQUIRE_FALSE(thin.ok());
  CHECK(thin.why().code == errc::invalid_argument);
  CHECK(std::string(thin.why().operand) == "ranks");
  CHECK(thin.why().got == 4);
  CHECK(thin.why().expected == 3);

  // With padding the same is a split whose last rank has nothing but a dummy.
  const auto padded = head_split::make(3, 4);
  REQUIRE(padded.ok());
  CHECK(padded.value().per_rank == 1);
  CHECK(padded.value().real(3) == 0);
  CHECK(padded.value().dummies(3) == 1);

  // Dividing exactly needs no padding, anything else does.
  CHECK(head_split::make(64, 8, {.padding = false}).value().per_rank == 8);
  const auto rest = head_split::make(64, 6, {.padding = false});
  REQUIRE_FALSE(rest.ok());
  CHECK(rest.why().got == 64);
  CHECK(rest.why().expected == 66);
  const auto blocked = head_split::make(64, 8, {.alignment = 16, .padding = false});
  REQUIRE_FALSE(blocked.ok());
  CHECK(blocked.why().expected == 128);
}

TEST_CASE("J03: what no split could accept is refused before any arithmetic") {
  CHECK(head_split::make(-1, 4).why().code == errc::invalid_argument);
  CHECK(head_split::make(64, 0).why().code == errc::invalid_argument);
  CHECK(head_split::make(64, -6).why().code == errc::invalid_argument);
  CHECK(head_split::make(64, 6, {.alignment = 0}).why().code == errc::invalid_argument);
  CHECK(head_split::make(64, 6, {.head_dim = 0}).why().code == errc::invalid_argument);
  CHECK(head_split::make(64, 6, {.block = -128}).why().code == errc::invalid_argument);
  CHECK(head_split::make(64, 6, {.block = -128}).why().got == -128);
  CHECK(head_split::make(INT64_MAX, 6).why().code == errc::out_of_range);
  CHECK(head_split::make(64, INT64_MAX).why().code == errc::out_of_range);
  CHECK(head_split::make(64, 6, {.alignment = INT64_MAX}).why().code == errc::out_of_range);

  // The largest of everything stays within 64 bits.
  constexpr index_t most = index_t{1} << 20;
  constexpr auto huge = head_split::make(most, most, {.alignment = most - 1, .block = most});
  static_assert(huge.ok());
  static_assert(huge.value().padded() == (most - 1) * most * most);
}

TEST_CASE("D10: a query head finds its KV head by the global counts") {
  // 32 query and 2 KV heads over 4 ranks: 16 to 1, though a rank has 8 query heads.
  for (index_t q = 0; q < 32; ++q) CHECK(kv_head_of(q, 32, 2) == q / 16);
  static_assert(kv_head_of(15, 32, 2) == 0 && kv_head_of(16, 32, 2) == 1);

  constexpr head_split split = static_head_split<32, 4>;
  const index_t expected[4] = {0, 0, 1, 1};
  for (index_t rank = 0; rank < 4; ++rank) {
    std::set<index_t> read;
    for (index_t i = 0; i < split.per_rank; ++i) {
      read.insert(kv_head_of(split.first(rank) + i, 32, 2));
    }
    CHECK(read == std::set<index_t>{expected[rank]});
  }

  // Dummies read what is there.
  CHECK(kv_head_of(64, 64, 4) == 3);
  CHECK(kv_head_of(65, 64, 4) == 3);
  CHECK(kv_head_of(71, 64, 1) == 0);

  CHECK(check_kv_heads(32, 2).ok());
  CHECK(check_kv_heads(32, 32).ok());
  const status uneven = check_kv_heads(32, 3);
  CHECK(uneven.code == errc::invalid_argument);
  CHECK(uneven.got == 32);
  CHECK(uneven.expected == 3);
  CHECK_FALSE(check_kv_heads(32, 0).ok());
  CHECK_FALSE(check_kv_heads(0, 1).ok());
}
