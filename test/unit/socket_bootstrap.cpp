// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/pool/socket_bootstrap.hpp>

#include <support/sentence.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

using namespace headwise;
using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;
using support::sentence;

namespace {

/// A folder of its own, gone afterwards; a test asks that nothing was left in it.
class folder {
 public:
  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "headwise-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path_); }

  std::string socket() const { return path_ + "/ranks"; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

/// What each of `size` threads came to, which are ranks as processes are.
std::vector<status> each(int size, const std::function<status(int, socket_bootstrap&)>& work) {
  std::vector<status> came_to(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      socket_bootstrap group;
      came_to[static_cast<std::size_t>(r)] = work(r, group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return came_to;
}

/// A gather of `count` bytes, all of which depend on the rank and the round.
status gather(socket_bootstrap& group, std::size_t count, int round) {
  const auto size = static_cast<std::size_t>(group.size());
  const auto value = [&](std::size_t rank, std::size_t i) {
    return static_cast<std::byte>((rank * 101 + i * 7 + static_cast<std::size_t>(round)) & 0xff);
  };
  std::vector<std::byte> mine(count);
  for (std::size_t i = 0; i < count; ++i)
    mine[i] = value(static_cast<std::size_t>(group.rank()), i);
  std::vector<std::byte> all(count * size, std::byte{0xee});
  const status gathered = group.all_gather(mine, all);
  if (!gathered.ok()) return gathered;
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < count; ++i) {
      if (all[r * count + i] != value(r, i)) {
        return failure(errc::invalid_argument, "test", "wrong byte of rank (got)",
                       static_cast<index_t>(r), -1);
      }
    }
  }
  return {};
}

}  // namespace

TEST_CASE("socket_bootstrap: every rank gets what every rank has, in any number of bytes") {
  for (const int size : {1, 2, 3, 16}) {
    const folder here;
    const auto came_to = each(size, [&](int rank, socket_bootstrap& group) -> status {
      const status opened = group.open(here.socket().c_str(), rank, size, 20s);
      if (!opened.ok()) return opened;
      int round = 0;
      for (const std::size_t count : {1u, 0u, 64u, 4096u, 1u, 3000000u, 5u}) {
        const status same = gather(group, size == 16 ? count / 8 : count, round++);
        if (!same.ok()) return same;
      }
      return detail::barrier(group);
    });
    for (const status& one : came_to) CHECK(sentence(one) == "ok");
    CHECK(here.empty());
  }
}

TEST_CASE("socket_bootstrap: ranks come in any order, and again to the same path") {
  const folder here;
  for (int round = 0; round < 20; ++round) {
    const auto came_to = each(4, [&](int rank, socket_bootstrap& group) -> status {
      std::this_thread::sleep_for(std::chrono::milliseconds((rank * 7 + round * 5) % 12));
      for (int again = 0; again < 2; ++again) {
        const status opened = group.open(here.socket().c_str(), rank, 4, 20s);
        if (!opened.ok()) return opened;
        const status same = gather(group, 100, round);
        if (!same.ok()) return same;
        // A rank that came back at once would meet the group that is still closing.
        const status all_there = detail::barrier(group);
        if (!all_there.ok()) return all_there;
        group.close();
      }
      return {};
    });
    for (const status& one : came_to) CHECK(sentence(one) == "ok");
  }
  CHECK(here.empty());
}

TEST_CASE("socket_bootstrap: a rank that never comes is named on all others") {
  for (const int missing : {2, 1, 0}) {
    const folder here;
    const auto start = clock_type::now();
    const auto came_to = each(4, [&](int rank, socket_bootstrap& group) -> status {
      if (rank == missing) return {};
      return group.open(here.socket().c_str(), rank, 4, 200ms);
    });
    CHECK(clock_type::now() - start < 10s);
    for (int r = 0; r < 4; ++r) {
      if (r == missing) continue;
      const status& one = came_to[static_cast<std::size_t>(r)];
      CHECK(one.code == errc::timed_out);
      CHECK(one.got == missing);
      CHECK(one.expected == 4);
    }
    CHECK(here.empty());
  }
}

TEST_CASE("socket_bootstrap: a rank that does not come to a gather is named on all others") {
  for (const int missing : {2, 0}) {
    const folder here;
    std::atomic<int> waiting{3};
    const auto came_to = each(4, [&](int rank, socket_bootstrap& group) -> status {
      const status opened = group.open(here.socket().c_str(), rank, 4, 300ms);
      if (!opened.ok()) return opened;
      if (rank == missing) {
        while (waiting > 0) std::this_thread::sleep_for(1ms);
        return {};
      }
      const status came = gather(group, 8, 0);
      --waiting;
      return came;
    });
    for (int r = 0; r < 4; ++r) {
      if (r == missing) continue;
      const status& one = came_to[static_cast<std::size_t>(r)];
      CHECK(one.code == errc::timed_out);
      CHECK(one.got == missing);
    }
  }
}

TEST_CASE("socket_bootstrap: a rank that dies ends the call of all others at once") {
  for (const int dying : {3, 1, 0}) {
    const folder here;
    const auto start = clock_type::now();
    const auto came_to = each(4, [&](int rank, socket_bootstrap& group) -> status {
      const status opened = group.open(here.socket().c_str(), rank, 4, 60s);
      if (!opened.ok()) return opened;
      const status first = gather(group, 16, 0);
      if (!first.ok() || rank == dying) return first;  // the socket closes with its owner
      const status second = gather(group, 100000, 1);
      const status third = gather(group, 16, 2);
      return third.code == errc::poisoned ? second : third;
    });
    CHECK(clock_type::now() - start < 20s);
    for (int r = 0; r < 4; ++r) {
      const status& one = came_to[static_cast<std::size_t>(r)];
      if (r == dying) {
        CHECK(one.ok());
      } else {
        CHECK(one.code == errc::timed_out);
        CHECK(one.got == dying);
      }
    }
  }
}

TEST_CASE("socket_bootstrap: ranks that gather another number of bytes hear so, and from which") {
  const folder here;
  const auto start = clock_type::now();
  const auto came_to = each(3, [&](int rank, socket_bootstrap& group) -> status {
    const status opened = group.open(here.socket().c_str(), rank, 3, 60s);
    if (!opened.ok()) return opened;
    return gather(group, rank == 2 ? 500000 : 64, 0);
  });
  CHECK(clock_type::now() - start < 20s);
  for (const status& one : came_to) {
    CHECK(sentence(one) ==
          "rank_mismatch: bootstrap, axis bytes: got 500000, expected 64: seen on rank 2");
  }
}

TEST_CASE("socket_bootstrap: ranks that differ in the size of their group, or are one rank twice") {
  const folder here;
  const auto start = clock_type::now();
  const auto sizes = each(3, [&](int rank, socket_bootstrap& group) -> status {
    // Rank 2 may come when rank 0 has given up already, and then waits for its own limit.
    return group.open(here.socket().c_str(), rank, rank == 1 ? 2 : 3, 3s);
  });
  CHECK(sizes[0].code == errc::rank_mismatch);
  CHECK(sizes[1].code == errc::rank_mismatch);
  CHECK(sentence(sizes[0]) ==
        "rank_mismatch: bootstrap, axis size: got 2, expected 3: seen on rank 1");

  std::atomic<int> told{0};
  const auto twice = each(3, [&](int rank, socket_bootstrap& group) -> status {
    const status opened = group.open(here.socket().c_str(), rank == 2 ? 1 : rank, 3, 60s);
    if (opened.code == errc::invalid_argument) ++told;
    return opened;
  });
  CHECK(told == 3);
  CHECK(sentence(twice[0]) ==
        "invalid_argument: rank: got 1, expected 3: has come twice: rank (got) of (expected)");
  CHECK(clock_type::now() - start < 20s);
  CHECK(here.empty());
}

TEST_CASE(
    "socket_bootstrap: what a killed group has left is taken away, what another needs is not") {
  const folder here;
  const std::string path = here.socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int left = ::socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(::bind(left, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  socket_bootstrap group;

  SUBCASE("bound, and nobody listens") {
    ::close(left);
    REQUIRE(std::filesystem::exists(path));
    const auto came_to = each(2, [&](int rank, socket_bootstrap& me) -> status {
      const status opened = me.open(path.c_str(), rank, 2, 20s);
      return opened.ok() ? gather(me, 8, 0) : opened;
    });
    for (const status& one : came_to) CHECK(sentence(one) == "ok");
    CHECK(here.empty());
  }
  SUBCASE("somebody listens") {
    REQUIRE(::listen(left, 1) == 0);
    CHECK(sentence(group.open(path.c_str(), 0, 2, 1s)) ==
          "invalid_argument: path: another group meets there");
    CHECK(std::filesystem::exists(path));
    ::close(left);
  }
  SUBCASE("a file") {
    ::close(left);
    std::filesystem::remove(path);
    std::ofstream(path) << "of a user";
    CHECK(sentence(group.open(path.c_str(), 0, 2, 1s)) ==
          "invalid_argument: path: is there, and is no socket");
    CHECK(std::filesystem::file_size(path) == 9);
  }
}

TEST_CASE("socket_bootstrap: what connects and is no rank is let go") {
  const folder here;
  const std::string path = here.socket();
  std::atomic<bool> left{false};
  const auto came_to = each(3, [&](int rank, socket_bootstrap& group) -> status {
    while (rank == 1 && !left) std::this_thread::sleep_for(1ms);
    if (rank < 2) return group.open(path.c_str(), rank, 2, 20s);
    // Connects, says nothing, and leaves; then says something else.
    for (int i = 0; i < 2; ++i) {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      path.copy(address.sun_path, sizeof address.sun_path - 1);
      const int other = ::socket(AF_UNIX, SOCK_STREAM, 0);
      const auto until = clock_type::now() + 2s;
      while (::connect(other, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
             clock_type::now() < until) {
      }
      const std::string words(40, 'x');
      if (i == 1) static_cast<void>(::send(other, words.data(), words.size(), MSG_NOSIGNAL));
      ::close(other);
    }
    left = true;
    return {};
  });
  CHECK(sentence(came_to[0]) == "ok");
  CHECK(sentence(came_to[1]) == "ok");
  CHECK(here.empty());
}

TEST_CASE("socket_bootstrap: arguments") {
  const folder here;
  const std::string path = here.socket();
  socket_bootstrap group;
  CHECK(group.open(path.c_str(), 0, 0, 1s).code == errc::unsupported);
  CHECK(group.open(path.c_str(), 0, 17, 1s).code == errc::unsupported);
  CHECK(group.open(path.c_str(), 2, 2, 1s).code == errc::out_of_range);
  CHECK(group.open(path.c_str(), -1, 2, 1s).code == errc::out_of_range);
  CHECK(group.open("", 0, 2, 1s).code == errc::capacity_exceeded);
  CHECK(sentence(group.open(std::string(108, 'p').c_str(), 0, 2, 1s)) ==
        "capacity_exceeded: path: got 108, expected 107: is so long at most, and not empty");
  CHECK(group.open((path + "/not/there").c_str(), 0, 2, 1s).code == errc::system_failed);
  std::byte one{};
  CHECK(group.all_gather({&one, 1}, {&one, 1}).code == errc::invalid_argument);
  CHECK(sentence(group.open(path.c_str(), 0, 1, 1s)) == "ok");
  CHECK(group.open(path.c_str(), 0, 1, 1s).code == errc::invalid_argument);
  CHECK(group.all_gather({&one, 1}, {&one, 0}).code == errc::invalid_argument);
  CHECK(group.all_gather({&one, 1}, {&one, 1}).ok());
  group.close();
  group.close();
  CHECK(group.all_gather({&one, 1}, {&one, 1}).code == errc::invalid_argument);
}

TEST_CASE("socket_bootstrap: signals interrupt no call") {
  const folder here;
  struct sigaction handled {};
  struct sigaction before {};
  handled.sa_handler = [](int) {};
  REQUIRE(sigaction(SIGUSR1, &handled, &before) == 0);
  std::atomic<bool> done{false};
  std::vector<status> came_to(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      socket_bootstrap group;
      status& mine = came_to[static_cast<std::size_t>(r)];
      mine = group.open(here.socket().c_str(), r, 3, 20s);
      for (int round = 0; round < 20 && mine.ok(); ++round) mine = gather(group, 200000, round);
      // All have come here before one is joined and can no longer be signalled.
      while (!done) std::this_thread::sleep_for(1ms);
    });
  }
  for (int i = 0; i < 300; ++i) {
    for (std::thread& thread : threads) pthread_kill(thread.native_handle(), SIGUSR1);
    std::this_thread::sleep_for(1ms);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  sigaction(SIGUSR1, &before, nullptr);
  for (const status& one : came_to) CHECK(sentence(one) == "ok");
}
