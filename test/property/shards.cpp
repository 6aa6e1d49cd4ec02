// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Laws of head_split, kv_shard and capacity on random inputs, against plain counting.

#include <headwise/plan/capacity.hpp>
#include <headwise/plan/head_split.hpp>
#include <headwise/plan/kv_shard.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace headwise;

namespace {

constexpr int iterations = 100000;

struct random_source {
  explicit random_source(const char* law) {
    const char* given = std::getenv("HEADWISE_SEED");
    seed = given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
    engine.seed(seed);
    std::printf("property: %s, seed %llu, %d iterations\n", law, seed, iterations);
  }

  index_t in(index_t low, index_t high) {
    const auto width = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<index_t>(engine() % width);
  }

  index_t one_of(std::initializer_list<index_t> values) {
    return values.begin()[in(0, static_cast<index_t>(values.size()) - 1)];
  }

  unsigned long long seed = 0;
  std::mt19937_64 engine;
};

// Short lengths mostly: that is where ranks own nothing, or a part of a block.
index_t some_length(random_source& random) {
  return random.in(0, 9) < 9 ? random.in(0, 96) : random.in(97, 700);
}

interleaving some_split(random_source& random) {
  const index_t ranks = random.in(1, 16);
  const index_t interleave =
      random.in(0, 1) == 0 ? random.one_of({1, 2, 4, 16, 64}) : random.in(1, 40);
  return interleaving::make(ranks, interleave).value();
}

// The tokens dealt out one by one, as one deals cards: no division anywhere.
struct dealt {
  std::vector<index_t> owner;
  std::vector<index_t> place;
  std::array<index_t, 16> count{};

  dealt(index_t length, index_t ranks, index_t interleave) {
    owner.reserve(static_cast<std::size_t>(length));
    place.reserve(static_cast<std::size_t>(length));
    index_t rank = 0;
    index_t in_block = 0;
    for (index_t token = 0; token < length; ++token) {
      owner.push_back(rank);
      place.push_back(count[static_cast<std::size_t>(rank)]++);
      if (++in_block == interleave) {
        in_block = 0;
        if (++rank == ranks) rank = 0;
      }
    }
  }
};

std::string named(std::initializer_list<std::pair<const char*, index_t>> values) {
  std::ostringstream text;
  for (const auto& [name, value] : values) text << name << ' ' << value << "  ";
  return text.str();
}

}  // namespace

TEST_CASE("property: every token has one owner, places are dense, lengths add up") {
  random_source random("partition of tokens");
  for (int i = 0; i < iterations; ++i) {
    const interleaving split = some_split(random);
    const index_t length = some_length(random);
    const dealt truth(length, split.ranks, split.interleave);

    bool holds = true;
    for (index_t token = 0; token < length; ++token) {
      const auto at = static_cast<std::size_t>(token);
      holds &= split.owner(token) == truth.owner[at];
      holds &= split.local(token) == truth.place[at];
      holds &= split.global(truth.owner[at], truth.place[at]) == token;
    }
    index_t sum = 0;
    const shard_lengths all = split.local_length(length);
    holds &= all.size() == split.ranks;
    for (index_t rank = 0; rank < split.ranks; ++rank) {
      holds &= split.local_length(length, rank) == truth.count[static_cast<std::size_t>(rank)];
      holds &= all[rank] == truth.count[static_cast<std::size_t>(rank)];
      sum += all[rank];
    }
    holds &= sum == length;
    REQUIRE_MESSAGE(
        holds,
        named({{"ranks", split.ranks}, {"interleave", split.interleave}, {"length", length}}),
        "seed ", random.seed);
  }
}

TEST_CASE("property: lengths far beyond 32 bits are cut exactly where the tokens say") {
  random_source random("long sequences");
  for (int i = 0; i < iterations; ++i) {
    const interleaving split = some_split(random);
    const index_t length = random.in(0, index_t{1} << random.in(0, 50));
    index_t sum = 0;
    bool holds = true;
    for (index_t rank = 0; rank < split.ranks; ++rank) {
      const index_t own = split.local_length(length, rank);
      sum += own;
      holds &= own >= 0;
      holds &= own == 0 || split.global(rank, own - 1) < length;
      holds &= split.global(rank, own) >= length;
    }
    holds &= sum == length;
    const index_t token = random.in(0, index_t{1} << 50);
    holds &= split.global(split.owner(token), split.local(token)) == token;
    REQUIRE_MESSAGE(holds,
                    named({{"ranks", split.ranks},
                           {"interleave", split.interleave},
                           {"length", length},
                           {"token", token}}),
                    "seed ", random.seed);
  }
}

TEST_CASE("K01: property: causal bounds are what counting visible tokens gives") {
  random_source random("causal bounds");
  for (int i = 0; i < iterations; ++i) {
    const interleaving split = some_split(random);
    const index_t length = some_length(random);
    const index_t queries = random.in(1, 8);
    const dealt truth(length, split.ranks, split.interleave);
    const index_t rank = random.in(0, split.ranks - 1);
    const kv_shard shard = kv_shard::make(split, rank).value();

    // Query token j stands at position length - queries + j and sees all positions up to its own.
    index_t visible = 0;
    index_t visible_here = 0;
    index_t token = 0;
    bool holds = true;
    for (index_t j = 0; j < queries; ++j) {
      const index_t position = length - queries + j;
      for (; token <= position; ++token) {
        ++visible;
        visible_here += truth.owner[static_cast<std::size_t>(token)] == rank ? 1 : 0;
      }
      holds &= global_causal_bound(length, queries, j) == visible;
      holds &= shard.causal_bound(length, queries, j) == visible_here;
    }
    REQUIRE_MESSAGE(holds,
                    named({{"ranks", split.ranks},
                           {"rank", rank},
                           {"interleave", split.interleave},
                           {"length", length},
                           {"queries", queries}}),
                    "seed ", random.seed);
  }
}

TEST_CASE("property: pages and slots are reached in the order of the tokens") {
  random_source random("pages");
  for (int i = 0; i < iterations; ++i) {
    const interleaving split = some_split(random);
    const index_t rank = random.in(0, split.ranks - 1);
    const kv_shard shard{split, rank};
    const index_t page_size = split.interleave * random.in(1, 4);
    const index_t length = some_length(random);

    bool holds = split.check_page_size(page_size).ok();
    page_position next{0, 0};
    index_t touched = 0;
    for (index_t place = 0; place < shard.local_length(length); ++place) {
      holds &= locate(place, page_size) == next;
      // A block lies in one page: its tokens are neighbours in memory.
      const index_t token = shard.global(place);
      if (next.slot == 0) {
        ++touched;
        holds &= token % split.interleave == 0;
      }
      if (++next.slot == page_size) next = {next.page + 1, 0};
    }
    holds &= shard.pages(length, page_size) == touched;
    if (split.interleave > 1) {
      holds &= !split.check_page_size(page_size + random.in(1, split.interleave - 1)).ok();
    }
    REQUIRE_MESSAGE(holds,
                    named({{"ranks", split.ranks},
                           {"rank", rank},
                           {"interleave", split.interleave},
                           {"page_size", page_size},
                           {"length", length}}),
                    "seed ", random.seed);
  }
}

TEST_CASE("property: a head split covers every head once, as narrow as it may be") {
  random_source random("head split");
  for (int i = 0; i < iterations; ++i) {
    const index_t heads = random.in(1, 200);
    const index_t ranks = random.in(1, 40);
    const head_split_options options{.alignment = random.one_of({1, 1, 2, 3, 8, 16}),
                                     .head_dim = random.one_of({1, 64, 66, 128, 192, 576}),
                                     .block = random.one_of({1, 1, 16, 96, 128}),
                                     .padding = random.in(0, 1) == 0};

    // The least count that satisfies everything, found by trying.
    index_t least = 1;
    while (least * ranks < heads || least % options.alignment != 0 ||
           least * options.head_dim % options.block != 0) {
      ++least;
    }

    const auto made = head_split::make(heads, ranks, options);
    bool holds = made.ok() == (options.padding || least * ranks == heads);
    if (made.ok()) {
      const head_split split = made.value();
      holds &= split.per_rank == least;
      holds &= split.padded() == least * ranks;
      index_t head = 0;
      for (index_t rank = 0; rank < ranks; ++rank) {
        index_t real = 0;
        holds &= split.first(rank) == head;
        for (index_t k = 0; k < least; ++k, ++head) {
          holds &= split.owner(head) == rank;
          holds &= split.is_dummy(head) == (head >= heads);
          real += head < heads ? 1 : 0;
        }
        holds &= split.real(rank) == real;
        holds &= split.dummies(rank) == least - real;
      }
      holds &= split.dummies() == head - heads;
    }
    REQUIRE_MESSAGE(holds,
                    named({{"heads", heads},
                           {"ranks", ranks},
                           {"alignment", options.alignment},
                           {"head_dim", options.head_dim},
                           {"block", options.block},
                           {"padding", options.padding ? 1 : 0}}),
                    "seed ", random.seed);
  }
}

TEST_CASE("property: groups share out the ranks, gathered heads are the heads of their members") {
  random_source random("groups");
  for (int i = 0; i < iterations; ++i) {
    const index_t dcp = random.in(1, 16);
    const index_t tp = random.in(0, 3) == 0 ? random.in(1, 64) : dcp * random.in(1, 4);
    const index_t heads = random.in(1, 130);
    const index_t tp_rank = random.in(0, tp - 1);
    const auto made = dcp_group::make(tp, dcp, tp_rank);

    bool holds = made.ok() == (tp % dcp == 0);
    if (!made.ok()) {
      holds &= made.why().got == tp && made.why().expected == dcp;
    } else {
      const dcp_group group = made.value();
      const head_split split = head_split::make(heads, tp).value();
      const gathered_heads gathered = gathered_heads::make(split, group).value();

      // Groups are dealt in order; this one is the one that holds tp_rank.
      index_t begin = 0;
      index_t number = 0;
      while (begin + dcp <= tp_rank) {
        begin += dcp;
        ++number;
      }
      holds &= group.group() == number && group.rank() == tp_rank - begin;
      holds &= group.groups() * dcp == tp;

      index_t at = 0;
      index_t real = 0;
      for (index_t member = 0; member < dcp; ++member) {
        holds &= group.member(member) == begin + member;
        holds &= gathered.first(member) == at;
        for (index_t k = 0; k < split.per_rank; ++k, ++at) {
          const index_t head = split.first(begin + member) + k;
          holds &= gathered.owner(at) == member;
          holds &= gathered.global(at) == head;
          holds &= gathered.is_dummy(at) == (head >= heads);
          // A real head behind a dummy would break "the dummies are the last".
          holds &= head >= heads || real == at;
          real += head < heads ? 1 : 0;
        }
      }
      holds &= gathered.count() == at;
      holds &= gathered.real() == real;
      holds &= gathered.dummies() == at - real;

      const index_t tile = random.one_of({1, 8, 16});
      index_t width = 0;
      while (width < at) width += tile;
      holds &= gathered.tiled(tile) == width;
    }
    REQUIRE_MESSAGE(holds,
                    named({{"heads", heads}, {"tp", tp}, {"dcp", dcp}, {"tp_rank", tp_rank}}),
                    "seed ", random.seed);
  }
}

TEST_CASE("D10: property: query heads are shared out evenly over the KV heads") {
  random_source random("KV heads");
  for (int i = 0; i < iterations; ++i) {
    const index_t kv_heads = random.in(1, 16);
    const index_t share = random.in(1, 12);
    const index_t q_heads = kv_heads * share;
    bool holds = check_kv_heads(q_heads, kv_heads).ok();
    index_t q_head = 0;
    for (index_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      for (index_t k = 0; k < share; ++k, ++q_head) {
        holds &= kv_head_of(q_head, q_heads, kv_heads) == kv_head;
      }
    }
    holds &= kv_head_of(q_heads + random.in(0, 64), q_heads, kv_heads) == kv_heads - 1;
    if (kv_heads > 1) holds &= !check_kv_heads(q_heads + random.in(1, kv_heads - 1), kv_heads).ok();
    REQUIRE_MESSAGE(holds, named({{"q_heads", q_heads}, {"kv_heads", kv_heads}}), "seed ",
                    random.seed);
  }
}

TEST_CASE("M01: property: sizes agree with 128-bit arithmetic or say that they do not fit") {
  __extension__ using wide = __int128;
  random_source random("sizes");
  for (int i = 0; i < iterations; ++i) {
    const auto some = [&] { return random.in(0, (index_t{1} << random.in(0, 62)) - 1); };
    const index_t a = some();
    const index_t b = some();
    const index_t c = some();
    const index_t to = random.one_of({1, 16, 48, 256});

    const wide product = static_cast<wide>(a) * b;
    wide total = product + c;
    if (total % to != 0) total += to - total % to;
    const checked_size got = (checked_size(a) * b + c).rounded_up(to);
    bool holds = got.valid() == (total <= INT64_MAX);
    holds &= got.value() == (total <= INT64_MAX ? static_cast<index_t>(total) : INT64_MAX);

    const index_t available = some();
    holds &= require_capacity("x", got, available).ok() == (total <= available);

    const index_t stages = random.in(1, 5);
    const index_t alignment = index_t{1} << random.in(0, 9);
    const auto cut = staging::make(a, stages, alignment);
    if (cut.ok()) {
      const index_t stage = cut.value().stage_bytes;
      holds &= static_cast<wide>(stage) * stages >= a;
      // One alignment less would not do.
      holds &= stage == 0 || static_cast<wide>(stage - alignment) * stages < a;
      for (index_t s = 0; s < stages; ++s) holds &= cut.value().offset(s) % alignment == 0;
    } else {
      holds &= static_cast<wide>(a) + alignment * stages > INT64_MAX;
    }
    REQUIRE_MESSAGE(holds, named({{"a", a}, {"b", b}, {"c", c}, {"to", to}, {"stages", stages}}),
                    "seed ", random.seed);
  }
}
