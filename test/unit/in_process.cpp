// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/transport/in_process.hpp>

#include <support/ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace headwise;
using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;
using support::on_ranks;

namespace {

constexpr call_signature plain{"exchange", {}};
constexpr std::uint8_t untouched = 0xee;

/// One byte buffer per peer at both ends of an exchange of one plane.
struct mailbox {
  std::vector<std::vector<std::uint8_t>> out;
  std::vector<std::vector<std::uint8_t>> in;

  mailbox(const std::vector<index_t>& send, const std::vector<index_t>& receive) {
    for (const index_t bytes : send) out.emplace_back(static_cast<std::size_t>(bytes));
    for (const index_t bytes : receive) in.emplace_back(static_cast<std::size_t>(bytes), untouched);
  }
  std::vector<send_chunk> sends() const {
    std::vector<send_chunk> chunks;
    for (const auto& one : out) {
      chunks.push_back({one.empty() ? nullptr : one.data(), static_cast<index_t>(one.size())});
    }
    return chunks;
  }
  std::vector<receive_chunk> receives() {
    std::vector<receive_chunk> chunks;
    for (auto& one : in) {
      chunks.push_back({one.empty() ? nullptr : one.data(), static_cast<index_t>(one.size())});
    }
    return chunks;
  }
  bool received(std::size_t from, std::uint8_t value) const {
    for (const std::uint8_t byte : in[from]) {
      if (byte != value) return false;
    }
    return true;
  }
  bool received_nothing() const {
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!received(i, untouched)) return false;
    }
    return true;
  }
  status exchange(in_process& me, const call_signature& call = plain) {
    const auto send = sends();
    const auto receive = receives();
    return me.exchange(send, receive, call);
  }
};

std::uint8_t tag(int from, int to) { return static_cast<std::uint8_t>(16 * from + to); }

/// `bytes` for every peer, filled with tag(me, peer).
mailbox tagged(int me, int ranks, index_t bytes) {
  const std::vector<index_t> counts(static_cast<std::size_t>(ranks), bytes);
  mailbox mail(counts, counts);
  for (int to = 0; to < ranks; ++to) {
    for (auto& byte : mail.out[static_cast<std::size_t>(to)]) byte = tag(me, to);
  }
  return mail;
}

status exchange_tags(in_process& me, index_t bytes) {
  mailbox mail = tagged(me.rank(), me.size(), bytes);
  const status done = mail.exchange(me);
  if (!done.ok()) return done;
  for (int from = 0; from < me.size(); ++from) {
    if (!mail.received(static_cast<std::size_t>(from), tag(from, me.rank()))) {
      return failure(errc::invalid_argument, "test", "wrong bytes from rank (got)", from, -1);
    }
  }
  return {};
}

/// Copies as the host does, unless it is told to fail.
struct failing_copy {
  bool not_ready = false;
  bool cannot_copy = false;
  bool cannot_finish = false;
  std::atomic<int>* finished = nullptr;

  status ready() const noexcept { return told(not_ready, "ready"); }
  status copy(const send_chunk& from, const receive_chunk& to) const noexcept {
    detail::copy_chunk(from, to);
    return told(cannot_copy, "copy");
  }
  status finish() const noexcept {
    ++*finished;
    return told(cannot_finish, "finish");
  }

 private:
  static status told(bool fails, const char* what) noexcept {
    return fails ? failure(errc::cuda_failed, what, "of the test", 7, 0) : status{};
  }
};

/// What each of three ranks came to in one exchange, rank 1 with a copy of its own.
std::vector<status> exchange_with(basic_in_process_group<failing_copy>& group,
                                  const failing_copy& of_rank_1) {
  std::vector<status> came_to(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      auto me = group.rank(r, r == 1 ? of_rank_1 : failing_copy{.finished = of_rank_1.finished});
      mailbox mail = tagged(r, 3, 8);
      const auto send = mail.sends();
      const auto receive = mail.receives();
      auto handle = me.value();
      came_to[static_cast<std::size_t>(r)] = handle.exchange(send, receive, plain);
    });
  }
  for (auto& thread : threads) thread.join();
  return came_to;
}

}  // namespace

TEST_CASE("in_process: a rank whose copies fail leaves no peer behind, and they hear of it") {
  std::atomic<int> finished{0};
  basic_in_process_group<failing_copy> group(3, 60s);
  const auto start = clock_type::now();
  const auto check = [&](const failing_copy& of_rank_1, const char* operand, int finishes) {
    finished = 0;
    const auto came_to = exchange_with(group, of_rank_1);
    CHECK(support::sentence(came_to[1]) ==
          "cuda_failed: " + std::string(operand) + ": got 7, expected 0: of the test");
    for (const std::size_t peer : {0u, 2u}) {
      CHECK(support::sentence(came_to[peer]) ==
            "rank_mismatch: " + std::string(operand) + ": got 7, expected 0: seen on rank 1");
    }
    CHECK(finished >= finishes);
  };
  check({.not_ready = true, .finished = &finished}, "ready", 0);
  CHECK(finished == 0);  // nobody copied
  // What has begun is waited for, whatever came of it.
  check({.cannot_copy = true, .finished = &finished}, "copy", 1);
  check({.cannot_finish = true, .finished = &finished}, "finish", 1);
  CHECK(clock_type::now() - start < 30s);
  // Nothing is left over of it.
  for (const status& one : exchange_with(group, {.finished = &finished})) CHECK(one.ok());
}

TEST_CASE("in_process: every size of group from 1 to 16 exchanges") {
  for (int ranks = 1; ranks <= max_ranks; ++ranks) {
    const auto came_to = on_ranks(ranks, [](in_process& me) { return exchange_tags(me, 24); });
    INFO(ranks << " ranks: " << support::sentence(support::first_failure(came_to)));
    CHECK(support::first_failure(came_to).ok());
  }
}

TEST_CASE("in_process: a group of another size has no ranks, and no rank is beyond the size") {
  for (const int ranks : {-1, 0, 17, 1000}) {
    in_process_group group(ranks);
    const auto handle = group.rank(0);
    REQUIRE_FALSE(handle.ok());
    CHECK(handle.why().code == errc::unsupported);
    CHECK(handle.why().got == ranks);
    CHECK(handle.why().expected == 16);
  }
  in_process_group group(3);
  CHECK(group.rank(2).value().rank() == 2);
  CHECK(group.rank(2).value().size() == 3);
  for (const int which : {-1, 3}) {
    const auto handle = group.rank(which);
    REQUIRE_FALSE(handle.ok());
    CHECK(handle.why().code == errc::out_of_range);
    CHECK(handle.why().got == which);
    CHECK(handle.why().expected == 3);
  }
}

TEST_CASE("J01: pairs without bytes are skipped at both ends of an unequal exchange") {
  const index_t counts[3][3] = {{1, 0, 2}, {0, 1, 0}, {2, 0, 1}};
  std::array<mailbox, 3> mails{mailbox({counts[0][0], counts[0][1], counts[0][2]},
                                       {counts[0][0], counts[1][0], counts[2][0]}),
                               mailbox({counts[1][0], counts[1][1], counts[1][2]},
                                       {counts[0][1], counts[1][1], counts[2][1]}),
                               mailbox({counts[2][0], counts[2][1], counts[2][2]},
                                       {counts[0][2], counts[1][2], counts[2][2]})};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      auto& bytes = mails[static_cast<std::size_t>(i)].out[static_cast<std::size_t>(j)];
      for (auto& byte : bytes) byte = tag(i, j);
    }
  }
  const auto came_to = on_ranks(
      3, [&](in_process& me) { return mails[static_cast<std::size_t>(me.rank())].exchange(me); });
  for (const status& one : came_to) CHECK(one.ok());
  for (std::size_t to = 0; to < 3; ++to) {
    for (std::size_t from = 0; from < 3; ++from) {
      CHECK(mails[to].in[from].size() == static_cast<std::size_t>(counts[from][to]));
      CHECK(mails[to].received(from, tag(static_cast<int>(from), static_cast<int>(to))));
    }
  }
}

TEST_CASE("J01: a pair of which one end has bytes and the other none is an error on all ranks") {
  std::array<mailbox, 3> mails{mailbox({1, 1, 1}, {1, 1, 1}), mailbox({1, 1, 0}, {1, 1, 1}),
                               mailbox({1, 1, 1}, {1, 1, 1})};
  in_process_group group(3);
  const auto came_to = on_ranks(group, 3, [&](in_process& me) {
    return mails[static_cast<std::size_t>(me.rank())].exchange(me);
  });
  for (const status& one : came_to) {
    CHECK(one.code == errc::rank_mismatch);
    CHECK(std::string(one.axis) == "bytes");
    CHECK(one.got == 0);
    CHECK(one.expected == 1);
    CHECK(std::string(one.message) == "seen on rank 2");
  }
  for (const auto& mail : mails) CHECK(mail.received_nothing());
  // No rank is left behind: the group goes on.
  for (const status& one :
       on_ranks(group, 3, [](in_process& me) { return exchange_tags(me, 5); })) {
    CHECK(one.ok());
  }
}

TEST_CASE("H06: different numbers of buffers per rank are an error on all ranks") {
  for (const int odd : {0, 2}) {
    in_process_group group(3);
    // Every rank sends 2 planes, the odd one 3, all out of and into this one buffer.
    std::vector<std::uint8_t> memory(64, untouched);
    const auto came_to = on_ranks(group, 3, [&](in_process& me) {
      const std::size_t chunks = me.rank() == odd ? 9 : 6;
      const std::vector<send_chunk> send(chunks, send_chunk{memory.data(), 4});
      const std::vector<receive_chunk> receive(chunks, receive_chunk{memory.data() + 32, 4});
      return me.exchange(send, receive, plain);
    });
    for (const status& one : came_to) {
      CHECK(one.code == errc::rank_mismatch);
      CHECK(std::string(one.operand) == "exchange");
      CHECK(std::string(one.axis) == "planes");
      CHECK(one.got == 3);
      CHECK(one.expected == 2);
      CHECK(std::string(one.message) == (odd == 0 ? "seen on rank 0" : "seen on rank 2"));
    }
    for (const std::uint8_t byte : memory) CHECK(byte == untouched);
  }
}

TEST_CASE("in_process: ranks that call different things are told what differs") {
  in_process_group group(4);
  const auto same_for_all = [&](auto work) {
    const auto came_to = on_ranks(group, 4, work);
    for (const status& one : came_to) {
      CHECK(support::sentence(one) == support::sentence(came_to[0]));
    }
    return support::sentence(came_to[0]);
  };

  SUBCASE("another operation") {
    CHECK(same_for_all([](in_process& me) {
            mailbox mail = tagged(me.rank(), 4, 8);
            const status done = mail.exchange(me, {me.rank() == 0 ? "gather" : "scatter", {}});
            return mail.received_nothing() ? done : status{};
          }) == "rank_mismatch: gather, axis operation: seen on rank 0");
  }
  SUBCASE("a barrier among exchanges") {
    CHECK(same_for_all([](in_process& me) {
            return me.rank() == 3 ? me.barrier() : exchange_tags(me, 8);
          }) == "rank_mismatch: barrier, axis operation: seen on rank 3");
  }
  SUBCASE("a gather among exchanges of the same name") {
    CHECK(same_for_all([](in_process& me) {
            mailbox mail = tagged(me.rank(), 4, 8);
            if (me.rank() != 2) return mail.exchange(me);
            const auto receive = mail.receives();
            return me.all_gather({mail.out[0].data(), 8}, receive, plain);
          }) == "rank_mismatch: exchange, axis operation: seen on rank 2");
  }
  SUBCASE("another number") {
    CHECK(same_for_all([](in_process& me) {
            mailbox mail = tagged(me.rank(), 4, 8);
            return mail.exchange(me, {"scatter", {{"token", 7}, {"head", me.rank() == 1 ? 5 : 4}}});
          }) == "rank_mismatch: scatter, axis head: got 5, expected 4: seen on rank 1");
  }
  SUBCASE("a number of another name") {
    CHECK(same_for_all([](in_process& me) {
            mailbox mail = tagged(me.rank(), 4, 8);
            return mail.exchange(me, {"scatter", {{me.rank() == 1 ? "head" : "token", 7}}});
          }) == "rank_mismatch: scatter, axis head: seen on rank 1");
  }
  SUBCASE("a number more") {
    CHECK(same_for_all([](in_process& me) {
            mailbox mail = tagged(me.rank(), 4, 8);
            call_signature call{"scatter", {{"token", 7}}};
            if (me.rank() == 3) call.fields[1] = {"head", 4};
            return mail.exchange(me, call);
          }) == "rank_mismatch: scatter, axis head: got 4, expected 0: seen on rank 3");
  }
  // Nothing is left over of it.
  for (const status& one :
       on_ranks(group, 4, [](in_process& me) { return exchange_tags(me, 8); })) {
    CHECK(one.ok());
  }
}

TEST_CASE("in_process: the odd one out of two is the second") {
  const auto came_to = on_ranks(2, [](in_process& me) {
    mailbox mail = tagged(me.rank(), 2, 8);
    return mail.exchange(me, {"scatter", {{"token", 7 + me.rank()}}});
  });
  for (const status& one : came_to) {
    CHECK(support::sentence(one) ==
          "rank_mismatch: scatter, axis token: got 8, expected 7: seen on rank 1");
  }
}

TEST_CASE("in_process: peers of a rank that refuses return at once and hear why") {
  in_process_group group(3, 60s);
  const auto start = clock_type::now();
  std::array<bool, 3> nothing{};
  const auto came_to = on_ranks(group, 3, [&](in_process& me) {
    if (me.rank() == 1) {
      return me.refuse(
          failure(errc::shape_mismatch, "partial_lse", "must be that of it", 31, 32, "head"));
    }
    mailbox mail = tagged(me.rank(), 3, 8);
    const status done = mail.exchange(me);
    nothing[static_cast<std::size_t>(me.rank())] = mail.received_nothing();
    return done;
  });
  CHECK(clock_type::now() - start < 30s);
  CHECK(support::sentence(came_to[1]) ==
        "shape_mismatch: partial_lse, axis head: got 31, expected 32: must be that of it");
  for (const std::size_t peer : {std::size_t{0}, std::size_t{2}}) {
    CHECK(support::sentence(came_to[peer]) ==
          "rank_mismatch: partial_lse, axis head: got 31, expected 32: seen on rank 1");
    CHECK(nothing[peer]);
  }
  for (const status& one :
       on_ranks(group, 3, [](in_process& me) { return exchange_tags(me, 8); })) {
    CHECK(one.ok());
  }
}

TEST_CASE("in_process: ranks that all refuse each hear their own reason") {
  const auto came_to = on_ranks(4, [](in_process& me) {
    return me.refuse(failure(errc::unsupported, "ranks", "", me.rank(), -1));
  });
  for (int r = 0; r < 4; ++r) {
    CHECK(came_to[static_cast<std::size_t>(r)].code == errc::unsupported);
    CHECK(came_to[static_cast<std::size_t>(r)].got == r);
  }
}

TEST_CASE("in_process: a malformed call is refused before anything is written, by all ranks") {
  std::uint8_t memory[64] = {};
  const send_chunk good_send{memory, 4};
  const receive_chunk good_receive{memory + 32, 4};
  struct wrong {
    std::vector<send_chunk> send;
    std::vector<receive_chunk> receive;
    const char* sentence;
  };
  const wrong cases[] = {
      {{good_send},
       {good_receive},
       "invalid_argument: send: got 1, expected 2: one chunk per "
       "plane and rank (expected)"},
      {{good_send, good_send},
       {good_receive, good_receive, good_receive},
       "invalid_argument: receive: got 3, expected 2: one chunk per plane and rank (expected)"},
      {{good_send, good_send},
       {good_receive, good_receive, good_receive, good_receive},
       "invalid_argument: receive: got 4, expected 2: as many chunks as are sent"},
      {{good_send, {memory, -4}},
       {good_receive, good_receive},
       "invalid_argument: send: got -4, expected 0: bytes, runs and pitch are not negative"},
      {{good_send, {memory, 4, -1}},
       {good_receive, good_receive},
       "invalid_argument: send: got -1, expected 0: bytes, runs and pitch are not negative"},
      {{good_send, {memory, 4, 2, -8}},
       {good_receive, good_receive},
       "invalid_argument: send: got -8, expected 0: bytes, runs and pitch are not negative"},
      {{good_send, {nullptr, 4}},
       {good_receive, good_receive},
       "invalid_argument: send: got 4, expected 0: bytes (got) without a pointer"},
      {{good_send, good_send},
       {{nullptr, 4}, good_receive},
       "invalid_argument: receive: got 4, expected 0: bytes (got) without a pointer"},
      {{good_send, {memory, index_t{1} << 40, index_t{1} << 40}},
       {good_receive, good_receive},
       "out_of_range: send: got 1099511627776, expected 9223372036854775807: the runs leave the "
       "address space"},
      {{good_send, good_send},
       {{memory + 32, 4, 2, 3}, good_receive},
       "overlap: receive: got 3, expected 4: runs that are received share memory"},
  };
  in_process_group group(2, 60s);
  for (const wrong& one : cases) {
    const auto came_to = on_ranks(group, 2, [&](in_process& me) {
      return me.rank() == 0 ? me.exchange(one.send, one.receive, plain) : exchange_tags(me, 4);
    });
    CHECK(support::sentence(came_to[0]) == one.sentence);
    CHECK(came_to[1].code == errc::rank_mismatch);
    CHECK(std::string(came_to[1].message) == "seen on rank 0");
  }
  const auto gathered = on_ranks(group, 2, [&](in_process& me) {
    const std::vector<receive_chunk> receive(me.rank() == 0 ? 4 : 2, good_receive);
    return me.all_gather(good_send, receive, plain);
  });
  CHECK(support::sentence(gathered[0]) ==
        "invalid_argument: receive: got 4, expected 2: one chunk per rank");
  CHECK(gathered[1].code == errc::rank_mismatch);
  for (const std::uint8_t byte : memory) CHECK(byte == 0);
  for (const status& one :
       on_ranks(group, 2, [](in_process& me) { return exchange_tags(me, 4); })) {
    CHECK(one.ok());
  }
}

TEST_CASE("in_process: the two ends may cut the same bytes into different runs") {
  const unsigned seed = 20260201;
  std::mt19937 random(seed);
  const auto up_to = [&](index_t most) {
    return std::uniform_int_distribution<index_t>(1, most)(random);
  };
  const int cases = 300;
  int wrong = 0;
  for (int i = 0; i < cases; ++i) {
    const index_t source_run = up_to(12);
    const index_t source_runs = up_to(12);
    const index_t bytes = source_run * source_runs;
    index_t target_run = up_to(bytes);
    while (bytes % target_run != 0) --target_run;
    const index_t target_runs = bytes / target_run;
    const index_t source_pitch = source_run + up_to(5) - 1;
    const index_t target_pitch = target_run + up_to(5) - 1;
    std::vector<std::uint8_t> source(static_cast<std::size_t>(source_pitch * source_runs));
    for (auto& byte : source) byte = static_cast<std::uint8_t>(up_to(200));
    std::vector<std::uint8_t> target(static_cast<std::size_t>(target_pitch * target_runs),
                                     untouched);
    auto expected = target;
    for (index_t b = 0; b < bytes; ++b) {
      const index_t from = b / source_run * source_pitch + b % source_run;
      const index_t to = b / target_run * target_pitch + b % target_run;
      expected[static_cast<std::size_t>(to)] = source[static_cast<std::size_t>(from)];
    }
    detail::copy_chunk({source.data(), source_run, source_runs, source_pitch},
                       {target.data(), target_run, target_runs, target_pitch});
    wrong += target != expected ? 1 : 0;
  }
  INFO("seed " << seed << ", " << cases << " cases");
  CHECK(wrong == 0);
}

TEST_CASE("in_process: a rank gathers its own part into its own place") {
  std::vector<std::array<std::uint32_t, 4>> memory(4);
  const auto came_to = on_ranks(4, [&](in_process& me) {
    auto& mine = memory[static_cast<std::size_t>(me.rank())];
    mine.fill(0);
    mine[static_cast<std::size_t>(me.rank())] = 100 + static_cast<std::uint32_t>(me.rank());
    std::array<receive_chunk, 4> receive;
    for (std::size_t i = 0; i < 4; ++i) receive[i] = {&mine[i], 4};
    return me.all_gather({&mine[static_cast<std::size_t>(me.rank())], 4}, receive,
                         {"all_gather", {}});
  });
  for (const status& one : came_to) CHECK(one.ok());
  for (const auto& mine : memory) CHECK(mine == std::array<std::uint32_t, 4>{100, 101, 102, 103});
}

TEST_CASE("in_process: gathered parts may differ in size") {
  std::vector<std::vector<std::uint8_t>> gathered(3, std::vector<std::uint8_t>(3, untouched));
  const auto came_to = on_ranks(3, [&](in_process& me) {
    const std::uint8_t own[2] = {7, 8};
    auto& mine = gathered[static_cast<std::size_t>(me.rank())];
    // 0, 1 and 2 bytes.
    const std::array<receive_chunk, 3> receive{receive_chunk{}, receive_chunk{mine.data(), 1},
                                               receive_chunk{mine.data() + 1, 2}};
    return me.all_gather({own, me.rank()}, receive, plain);
  });
  for (const status& one : came_to) CHECK(one.ok());
  for (const auto& mine : gathered) CHECK(mine == std::vector<std::uint8_t>{7, 7, 8});
}

TEST_CASE("in_process: a rank that never comes ends the call on all others, with its number") {
  in_process_group group(4, 80ms);
  const auto start = clock_type::now();
  const auto came_to = on_ranks(
      group, 4, [&](in_process& me) { return me.rank() == 2 ? status{} : exchange_tags(me, 8); });
  const auto took = clock_type::now() - start;
  for (const std::size_t r : {0u, 1u, 3u}) {
    CHECK(support::sentence(came_to[r]) ==
          "timed_out: rank: got 2, expected 4: did not come in time: rank (got) of (expected)");
  }
  CHECK(took >= 80ms);
  CHECK(took < 5s);

  // Later calls fail at once, of whatever kind and on whatever rank.
  const auto later_start = clock_type::now();
  const auto later = on_ranks(group, 4, [&](in_process& me) {
    return me.rank() == 0 ? me.barrier() : exchange_tags(me, 8);
  });
  CHECK(clock_type::now() - later_start < 60ms);
  for (const status& one : later) {
    CHECK(support::sentence(one) ==
          "poisoned: group: got 2, expected 4: rank (got) of (expected) did not come to an earlier "
          "call: reset() is due");
  }

  // A reset is for all ranks too: without the dead one it comes to nothing.
  const auto no_reset =
      on_ranks(group, 4, [](in_process& me) { return me.rank() == 2 ? status{} : me.reset(); });
  for (const std::size_t r : {0u, 1u, 3u}) {
    CHECK(no_reset[r].code == errc::timed_out);
    CHECK(no_reset[r].got == 2);
  }
  CHECK(group.rank(0).value().barrier().code == errc::poisoned);

  const auto reset = on_ranks(group, 4, [](in_process& me) {
    const status done = me.reset();
    return done.ok() ? exchange_tags(me, 8) : done;
  });
  for (const status& one : reset) CHECK(one.ok());
}

TEST_CASE("in_process: a late rank finds the group poisoned, and its peers gone") {
  in_process_group group(3, 50ms);
  std::atomic<int> left{0};
  const auto came_to = on_ranks(group, 3, [&](in_process& me) {
    if (me.rank() == 0) {
      while (left < 2) std::this_thread::sleep_for(1ms);
    }
    // On this stack: a late rank must not look at it.
    const status done = exchange_tags(me, 1024);
    ++left;
    return done;
  });
  CHECK(came_to[0].code == errc::poisoned);
  CHECK(came_to[0].got == 0);
  for (const std::size_t r : {1u, 2u}) {
    CHECK(came_to[r].code == errc::timed_out);
    CHECK(came_to[r].got == 0);
    CHECK(came_to[r].expected == 3);
  }
  // All of them reset it, in any order and far apart, and go on.
  const auto again = on_ranks(group, 3, [&](in_process& me) {
    std::this_thread::sleep_for(5ms * me.rank());
    const status reset = me.reset();
    return reset.ok() ? exchange_tags(me, 1024) : reset;
  });
  for (const status& one : again) CHECK(one.ok());
}

TEST_CASE("in_process: a reset sends away the ranks that wait in a call") {
  in_process_group group(3, 60s);
  const auto start = clock_type::now();
  const auto came_to = on_ranks(group, 3, [&](in_process& me) {
    if (me.rank() == 1) {
      std::this_thread::sleep_for(20ms);
      const status reset = me.reset();
      return reset.ok() ? exchange_tags(me, 8) : reset;
    }
    const status sent_away = exchange_tags(me, 8);
    if (sent_away.code != errc::poisoned) return failure(errc::invalid_argument, "test", "");
    const status reset = me.reset();
    return reset.ok() ? exchange_tags(me, 8) : reset;
  });
  for (const status& one : came_to) {
    INFO(support::sentence(one));
    CHECK(one.ok());
  }
  CHECK(clock_type::now() - start < 30s);
}

TEST_CASE("in_process: a rank waits for readers of its memory, however long they take") {
  constexpr auto timeout = 250ms;
  // Bytes one by one are slow, and one megabyte of them many times over slower than the time-out.
  std::uint8_t source = 5;
  std::vector<std::uint8_t> target(std::size_t{1} << 20);
  const auto bytes = static_cast<index_t>(target.size());
  const send_chunk send_slowly{&source, 1, bytes, 0};
  const receive_chunk receive_slowly{target.data(), 1, bytes, 1};
  auto start = clock_type::now();
  auto fastest = clock_type::duration::max();  // of several, as something else may hold one up
  for (int i = 0; i < 9; ++i) {
    start = clock_type::now();
    detail::copy_chunk(send_slowly, receive_slowly);
    fastest = (std::min)(fastest, clock_type::now() - start);
  }
  const auto planes = static_cast<std::size_t>(3 * timeout / fastest + 1);

  in_process_group group(2, timeout);
  std::atomic<int> here{0};
  start = clock_type::now();
  const auto came_to = on_ranks(group, 2, [&](in_process& me) {
    std::vector<send_chunk> send(2 * planes);
    std::vector<receive_chunk> receive(2 * planes);
    for (std::size_t plane = 0; plane < planes; ++plane) {
      if (me.rank() == 0) receive[2 * plane + 1] = receive_slowly;
      if (me.rank() == 1) send[2 * plane] = send_slowly;
    }
    ++here;
    while (here < 2) std::this_thread::yield();
    const status done = me.exchange(send, receive, plain);
    if (me.rank() == 1) source = 9;  // its own again: nobody may see this
    return done;
  });
  CHECK(clock_type::now() - start > timeout);
  CHECK(std::count(target.begin(), target.end(), 5) == bytes);
  for (const status& one : came_to) {
    INFO(support::sentence(one));
    CHECK(one.ok());
  }
}

TEST_CASE("in_process: a second thread on the handle of a rank is turned away") {
  in_process_group group(2, 2s);
  std::atomic<bool> turned_away{false};
  const auto came_to = on_ranks(group, 2, [&](in_process& me) {
    if (me.rank() == 1) {
      while (!turned_away) std::this_thread::sleep_for(1ms);
      return exchange_tags(me, 8);
    }
    // Two threads of rank 0: whichever comes second is told.
    std::array<status, 2> both;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        in_process same = me;
        both[i] = exchange_tags(same, 8);
        if (!both[i].ok()) turned_away = true;
      });
    }
    for (auto& thread : threads) thread.join();
    const status& told = both[0].ok() ? both[1] : both[0];
    const status& other = both[0].ok() ? both[0] : both[1];
    return other.ok() && told.code == errc::invalid_argument && told.got == 2 ? status{} : told;
  });
  for (const status& one : came_to) {
    INFO(support::sentence(one));
    CHECK(one.ok());
  }
}

TEST_CASE("in_process: two groups of the same threads, and of different ones, do not meet") {
  // Four threads in a grid: two groups along its rows, two along its columns.
  in_process_group rows[2] = {in_process_group(2), in_process_group(2)};
  in_process_group columns[2] = {in_process_group(2), in_process_group(2)};
  std::vector<status> came_to(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      in_process row = rows[t / 2].rank(t % 2).value();
      in_process column = columns[t % 2].rank(t / 2).value();
      status first{};
      for (int i = 0; i < 200 && first.ok(); ++i) {
        first = exchange_tags(row, 8 + t / 2);
        if (first.ok()) first = exchange_tags(column, 8 + t % 2);
      }
      came_to[static_cast<std::size_t>(t)] = first;
    });
  }
  for (auto& thread : threads) thread.join();
  for (const status& one : came_to) CHECK(one.ok());
}

TEST_CASE("in_process: the longest time-out there is does not wrap") {
  const auto came_to = on_ranks(
      2, [](in_process& me) { return exchange_tags(me, 8); }, std::chrono::milliseconds::max());
  for (const status& one : came_to) CHECK(one.ok());
}

TEST_CASE("in_process: a rank alone meets itself") {
  in_process_group group(1, 1ms);
  in_process me = group.rank(0).value();
  CHECK(me.barrier().ok());
  CHECK(exchange_tags(me, 8).ok());
  CHECK(me.reset().ok());
  CHECK(me.barrier().ok());
}
