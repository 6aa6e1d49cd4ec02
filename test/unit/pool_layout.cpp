// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/pool/layout.hpp>

#include <support/random.hpp>
#include <support/sentence.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

using namespace headwise;
using detail::epoch_after;
using detail::epoch_wipes;
using detail::pool_chunks;
using detail::pool_failure;
using detail::pool_rows;
using detail::slab_layout;
using support::sentence;

namespace {

struct stretch {
  index_t from;
  index_t to;
};

slab_layout made(index_t ranks, const pool_capacity& capacity, index_t chunks) {
  const result<slab_layout> layout = slab_layout::make(ranks, capacity, chunks);
  REQUIRE(layout.ok());
  return layout.value();
}

/// Everything that a rank or a peer of it ever writes into a slab.
std::vector<stretch> stretches_of(const slab_layout& at) {
  std::vector<stretch> all = {{0, detail::signal_line}};  // what poisons the channel
  const auto add = [&](index_t from, index_t bytes) { all.push_back({from, from + bytes}); };
  for (index_t slot = 0; slot < 2; ++slot) {
    for (index_t peer = 0; peer < at.ranks; ++peer) {
      add(at.announcement_at(slot, peer), detail::signal_line);
      for (index_t chunk = 0; chunk < at.chunks; ++chunk) {
        add(at.flag_at(slot, chunk, peer), detail::signal_line);
      }
      add(at.ll_at(slot, peer), at.ll_region);
      add(at.payload_at(slot, peer), at.region);
    }
  }
  return all;
}

std::string refusal(index_t ranks, const pool_capacity& capacity) {
  const result<slab_layout> layout = slab_layout::make(ranks, capacity, 4);
  REQUIRE_FALSE(layout.ok());
  return sentence(layout.why());
}

}  // namespace

TEST_CASE("pool layout: no two things of a slab share a byte, and each stands on its line") {
  support::random_source random(51);
  for (int round = 0; round < 120; ++round) {
    const index_t ranks = random.in(1, max_ranks);
    const pool_capacity capacity{random.in(1, 20), random.in(1, 12), random.in(1, 1200),
                                 random.one_of({0, 1, 1000, 1 << 16, 1 << 20})};
    const slab_layout at = made(ranks, capacity, random.in(1, 40));
    std::vector<stretch> all = stretches_of(at);
    index_t off_its_line = at.bytes % 256 == 0 ? 0 : 1;
    for (const stretch& one : all) off_its_line += one.from % detail::signal_line == 0 ? 0 : 1;
    CHECK(off_its_line == 0);
    std::sort(all.begin(), all.end(), [](const stretch& a, const stretch& b) {
      return a.from != b.from ? a.from < b.from : a.to < b.to;
    });
    index_t shared = 0;
    for (std::size_t i = 1; i < all.size(); ++i) shared += all[i].from < all[i - 1].to ? 1 : 0;
    CHECK(shared == 0);
    CHECK(all.front().from == 0);
    CHECK(all.back().to <= at.bytes);
    // A reset zeroes what lies before the payload: all that is waited for, tags included.
    for (index_t slot = 0; slot < 2; ++slot) {
      CHECK(at.flag_at(slot, at.chunks - 1, ranks - 1) < at.payload);
      CHECK(at.ll_at(slot, ranks - 1) + at.ll_region <= at.payload);
    }
  }
}

TEST_CASE("pool layout: a slot stands where the capacity says, whatever the call") {
  const pool_capacity capacity{64, 11, 1024, 1 << 16};
  const slab_layout few = made(2, capacity, 8);
  const slab_layout many = made(2, capacity, 64);
  CHECK(few.region == many.region);
  CHECK(few.ll_region == many.ll_region);
  CHECK(few.payload_at(1, 0) - few.payload_at(0, 0) == 2 * few.region);
  CHECK(few.ll_at(1, 1) - few.ll_at(0, 1) == 2 * few.ll_region);
  // The rows, and an LSE each.
  CHECK(few.region >= 64 * 11 * (1024 + 4));
  CHECK(few.ll_region >= 64 * (1024 / 8 + 1) * 16);
}

TEST_CASE("pool layout: what a channel was made for has room in it, and what is too much has not") {
  support::random_source random(52);
  for (int round = 0; round < 200; ++round) {
    const pool_capacity capacity{random.in(1, 40), random.in(1, 16), random.in(1, 1500),
                                 random.in(0, 40000)};
    const slab_layout at = made(random.in(2, max_ranks), capacity, 4);
    const index_t rows = capacity.tokens * capacity.heads;
    const index_t half = rows / 2;
    for (const pool_operation operation :
         {pool_operation::reduce_scatter, pool_operation::all_gather}) {
      const index_t lse_bytes =
          operation == pool_operation::reduce_scatter ? index_t{sizeof(float)} : 0;
      for (const protocol which : {protocol::ll, protocol::push, protocol::pull}) {
        const index_t held =
            which == protocol::ll ? std::min(rows, capacity.ll_bytes / capacity.row_bytes) : rows;
        CHECK(at.fits(which, operation, {held, capacity.row_bytes}));
        CHECK(at.fits(which, operation, {0, capacity.row_bytes}));
        if (held == rows) {
          // Two operands have the room of one.
          CHECK(at.fits(which, operation, {half, capacity.row_bytes},
                        {rows - half, capacity.row_bytes}));
        }
        // More bytes than the region has, whatever stands around them.
        const index_t too_many = at.room(which) / (capacity.row_bytes + lse_bytes) + 1;
        CHECK_FALSE(at.fits(which, operation, {too_many, capacity.row_bytes}));
        CHECK_FALSE(
            at.fits(which, operation, {half, capacity.row_bytes}, {too_many, capacity.row_bytes}));
        CHECK_FALSE(at.fits(which, operation, {INT64_MAX / 2, 64}));
        CHECK_FALSE(at.fits(which, operation, {INT64_MAX, 1}, {INT64_MAX, 1}));
      }
    }
  }
}

TEST_CASE("pool layout: the chunks of a reduce-scatter that fits have room for their LSEs") {
  support::random_source random(55);
  for (int round = 0; round < 500; ++round) {
    const index_t row_bytes = random.in(1, 600);
    const slab_layout at = made(2, {random.in(1, 40), random.in(1, 16), row_bytes}, 4);
    const pool_rows rows{random.in(1, 1000), random.in(1, 600)};
    if (!at.fits(protocol::push, pool_operation::reduce_scatter, rows)) continue;
    const pool_chunks chunks = pool_chunks::cut(rows.count, random.in(1, 200));
    CHECK(rows.count * rows.pitch() + chunks.count * chunks.lse_pitch() <= at.region);
    CHECK(chunks.lse_pitch() >= chunks.rows * index_t{sizeof(float)});
    CHECK(chunks.lse_pitch() % detail::signal_line == 0);
  }
}

TEST_CASE("pool layout: a row in a slot has room for its last unit, and in lines for its LSE") {
  for (index_t bytes = 1; bytes <= 600; ++bytes) {
    const pool_rows rows{3, bytes};
    CHECK(rows.pitch() % 16 == 0);
    CHECK(rows.pitch() >= bytes);
    CHECK(rows.pitch() < bytes + 16);
    CHECK((rows.lines() - 1) * detail::ll_data >= bytes);
    CHECK((rows.lines() - 2) * detail::ll_data < bytes);
    CHECK(rows.bytes() == 3 * bytes);
  }
}

TEST_CASE("pool layout: a capacity that is none is refused") {
  CHECK(refusal(0, {1, 1, 1}) ==
        "unsupported: ranks: got 0, expected 16: a group has from 1 to 16 ranks");
  CHECK(refusal(17, {1, 1, 1}) ==
        "unsupported: ranks: got 17, expected 16: a group has from 1 to 16 ranks");
  CHECK(refusal(2, {0, 11, 1024}) ==
        "invalid_argument: pool_capacity, axis tokens: got 0, expected 1: must be positive");
  CHECK(refusal(2, {4, -1, 1024}) ==
        "invalid_argument: pool_capacity, axis heads: got -1, expected 1: must be positive");
  CHECK(refusal(2, {4, 11, 0}) ==
        "invalid_argument: pool_capacity, axis row_bytes: got 0, expected 1: must be positive");
  CHECK(refusal(2, {4, 11, 1024, -1}) ==
        "invalid_argument: pool_capacity, axis ll_bytes: got -1, expected 0: must not be negative");
  CHECK(refusal(2, {index_t{1} << 40, 1 << 20, 1024}).substr(0, 23) == "capacity_exceeded: slab");
  CHECK(refusal(2, {INT64_MAX, INT64_MAX, 1024}).substr(0, 23) == "capacity_exceeded: slab");
}

TEST_CASE("protocol_table: the first step that is large enough") {
  using step = protocol_table::step;
  protocol_table table;
  table.reduce_scatter = {{step{100, protocol::ll}, step{1000, protocol::pull},
                           step{1000, protocol::ll}, step{2000, protocol::push}}};
  const auto picked = [&](index_t bytes) {
    return table.pick(pool_operation::reduce_scatter, bytes);
  };
  CHECK(picked(0) == protocol::ll);
  CHECK(picked(100) == protocol::ll);
  CHECK(picked(101) == protocol::pull);
  CHECK(picked(1000) == protocol::pull);
  CHECK(picked(1001) == protocol::push);
  CHECK(picked(2000) == protocol::push);
  CHECK(picked(INT64_MAX) == protocol::push);
  // Of the other operation there is another.
  CHECK(table.pick(pool_operation::all_gather, 0) == protocol::push);
  for (const protocol which : {protocol::ll, protocol::push, protocol::pull}) {
    const protocol_table only = protocol_table::only(which);
    for (const index_t bytes : {index_t{0}, index_t{1} << 20, index_t{INT64_MAX}}) {
      CHECK(only.pick(pool_operation::reduce_scatter, bytes) == which);
      CHECK(only.pick(pool_operation::all_gather, bytes) == which);
    }
  }
  CHECK(std::string(to_string(protocol::ll)) == "ll");
  CHECK(std::string(to_string(protocol::push)) == "push");
  CHECK(std::string(to_string(protocol::pull)) == "pull");
  CHECK(std::string(to_string(static_cast<protocol>(9))) == "unknown");
}

TEST_CASE("pool chunks: all rows, in no more chunks than there are flags") {
  for (index_t most = 1; most <= 70; ++most) {
    for (index_t rows = 0; rows <= 300; ++rows) {
      const pool_chunks chunks = pool_chunks::cut(rows, most);
      const bool covers = chunks.rows >= 1 && chunks.count * chunks.rows >= rows &&
                          (chunks.count == 0 || (chunks.count - 1) * chunks.rows < rows);
      if (!covers || chunks.count > most) FAIL("rows ", rows, " most ", most);
    }
  }
  CHECK(pool_chunks::cut(0, 64).count == 0);
  // A call that both ends cut alike: nothing but the rows and the flags goes into it.
  CHECK(pool_chunks::cut(300, 64).rows == pool_chunks::cut(300, 64).rows);
  const pool_chunks large = pool_chunks::cut(INT32_MAX, 2112);
  CHECK(large.count <= 2112);
  CHECK(large.count * large.rows >= INT32_MAX);
}

// ---- the epoch ---------------------------------------------------------------------------------

TEST_CASE("epoch: a tag is never 0, grows, and slots take turns, over every power that matters") {
  static_assert(epoch_after(0) == 1);
  static_assert(epoch_after(0xfffffffe) == 0xffffffff);
  static_assert(epoch_after(0xffffffff) == 0x100000002);
  static_assert(epoch_after(0x1ffffffff) == 0x200000002);
  for (std::uint64_t multiple = 1; multiple <= 12; ++multiple) {
    for (const int power : {30, 31, 32, 33, 40}) {
      std::uint64_t epoch = (multiple << power) - 300;
      for (int i = 0; i < 700; ++i) {
        const std::uint64_t next = epoch_after(epoch);
        const bool good = next > epoch && static_cast<std::uint32_t>(next) != 0 &&
                          (next & 1) != (epoch & 1) && next - epoch <= 3;
        if (!good) FAIL("after ", epoch);
        epoch = next;
      }
    }
  }
}

TEST_CASE("epoch: tags of operations that are not far apart differ") {
  // Across 2^32 two epochs are left out, and no tag comes twice.
  std::set<std::uint32_t> tags;
  std::uint64_t epoch = (std::uint64_t{1} << 32) - 1000;
  for (int i = 0; i < 2000; ++i) {
    epoch = epoch_after(epoch);
    CHECK(tags.insert(static_cast<std::uint32_t>(epoch)).second);
  }
}

TEST_CASE("epoch: each slot is wiped once around every multiple of 2^30, and nowhere else") {
  // Where the low word wraps epochs are left out, and those that wipe must not be among them.
  for (std::uint64_t multiple = 0; multiple <= 16; ++multiple) {
    const std::uint64_t middle = multiple << 30;
    std::uint64_t epoch = middle < 100 ? 0 : middle - 100;
    int wiped[2] = {0, 0};
    std::uint64_t first = 0;
    while (epoch < middle + 100) {
      epoch = epoch_after(epoch);
      if (!epoch_wipes(epoch)) continue;
      if (first == 0) first = epoch;
      // An operation wipes the slot of the next one, which no peer can have begun to write to.
      ++wiped[epoch_after(epoch) & 1];
      CHECK(epoch - first <= 1);
    }
    CHECK(wiped[0] == 1);
    CHECK(wiped[1] == 1);
  }
  for (const std::uint64_t far : {std::uint64_t{4}, (std::uint64_t{1} << 29) - 1,
                                  std::uint64_t{1} << 31, (std::uint64_t{3} << 30) - 1}) {
    CHECK_FALSE(epoch_wipes(far));
  }
}

TEST_CASE("epoch: a line's tag is wiped before it could pass for new") {
  support::random_source random(53);
  for (int round = 0; round < 300; ++round) {
    // A line written in epoch `old`, in its slot; the next epoch with that tag is 2^32 later.
    const std::uint64_t near = static_cast<std::uint64_t>(random.in(0, 40)) << 30;
    const std::uint64_t old = epoch_after(near + static_cast<std::uint64_t>(random.in(0, 12)));
    const std::uint64_t again = old + (std::uint64_t{1} << 32);
    CHECK(static_cast<std::uint32_t>(again) == static_cast<std::uint32_t>(old));
    CHECK((again & 1) == (old & 1));
    // Only operations around a multiple of 2^30 can wipe.
    bool wiped = false;
    for (std::uint64_t middle = (old >> 30) << 30; middle < again;
         middle += std::uint64_t{1} << 30) {
      for (std::uint64_t epoch = middle == 0 ? 1 : middle; epoch < middle + 8; ++epoch) {
        if (static_cast<std::uint32_t>(epoch) == 0) continue;  // left out
        const bool used = epoch_after(epoch - 1) == epoch || (epoch & 0xffffffff) == 2;
        const bool between = epoch > old && epoch_after(epoch) < again;
        if (used && between && epoch_wipes(epoch) && (epoch_after(epoch) & 1) == (old & 1)) {
          wiped = true;
        }
      }
    }
    CAPTURE(old);
    CHECK(wiped);
  }
}

TEST_CASE("pool failure: what is written into the peers' memory is read as it was") {
  CHECK(pool_failure::from(0).why == pool_failure::none);
  support::random_source random(54);
  for (int round = 0; round < 200; ++round) {
    const pool_failure told{static_cast<pool_failure::cause>(random.in(1, 3)),
                            static_cast<std::uint8_t>(random.in(0, 1)),
                            static_cast<std::uint8_t>(random.in(0, 15)),
                            static_cast<std::uint8_t>(random.in(0, 15))};
    const std::uint64_t word = told.word(random.bits());
    CHECK(word != 0);
    const pool_failure heard = pool_failure::from(word);
    CHECK(heard.why == told.why);
    CHECK(heard.operation == told.operation);
    CHECK(heard.missing == told.missing);
    CHECK(heard.reporter == told.reporter);
  }
}
