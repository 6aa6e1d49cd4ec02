// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/pool/bootstrap.hpp>

#include <support/ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

using namespace headwise;
using namespace std::chrono_literals;
using support::on_ranks;
using support::sentence;

namespace {

/// Gathers host bytes through a call of its own, as a transport of device memory does.
struct host_bytes_transport {
  in_process& group;
  std::atomic<int>& calls;

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  status exchange(std::span<const send_chunk>, std::span<const receive_chunk>,
                  const call_signature&) {
    std::abort();
  }
  status all_gather(const send_chunk&, std::span<const receive_chunk>, const call_signature&) {
    std::abort();
  }
  status barrier() { std::abort(); }
  status all_gather_host(const send_chunk& own, std::span<const receive_chunk> receive,
                         const call_signature& call) {
    if (own.bytes() > 64)
      return failure(errc::invalid_argument, "own", "too many", own.bytes(), 64);
    ++calls;
    return group.all_gather(own, receive, call);
  }
};

std::vector<std::byte> bytes_of(int rank, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((static_cast<std::size_t>(rank) * 37 + i * 11 + 1) & 0xff);
  }
  return bytes;
}

/// Whether what came is what each rank sent, and nothing lies behind it.
status gather_and_compare(bootstrap_ref ranks, std::size_t count) {
  const std::vector<std::byte> mine = bytes_of(ranks.rank(), count);
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<std::byte> all(count * size + 1, std::byte{0xee});
  const status gathered = ranks.all_gather(mine, std::span(all).first(count * size));
  if (!gathered.ok()) return gathered;
  for (std::size_t r = 0; r < size; ++r) {
    const std::vector<std::byte> sent = bytes_of(static_cast<int>(r), count);
    if (!std::equal(sent.begin(), sent.end(),
                    all.begin() + static_cast<std::ptrdiff_t>(r * count))) {
      return failure(errc::invalid_argument, "test", "wrong bytes of rank (got)",
                     static_cast<index_t>(r), -1);
    }
  }
  if (all.back() != std::byte{0xee}) return failure(errc::invalid_argument, "test", "past the end");
  return {};
}

}  // namespace

TEST_CASE("bootstrap: bytes of every rank over a transport of host memory") {
  for (const int ranks : {1, 2, 3, 16}) {
    const auto came_to = on_ranks(ranks, [](in_process& me) -> status {
      transport_bootstrap group(me);
      for (const std::size_t count : {0u, 1u, 55u, 56u, 57u, 64u, 1000u}) {
        const status same = gather_and_compare(group, count);
        if (!same.ok()) return same;
      }
      return {};
    });
    CHECK(sentence(support::first_failure(came_to)) == "ok");
  }
}

TEST_CASE("bootstrap: bytes of every rank through a gather of host bytes, 64 at a time") {
  for (const int ranks : {1, 2, 5, 16}) {
    for (const std::size_t count : {0u, 1u, 56u, 57u, 112u, 1000u}) {
      std::atomic<int> calls{0};
      const auto came_to = on_ranks(ranks, [&](in_process& me) {
        host_bytes_transport transport{me, calls};
        transport_bootstrap group(transport);
        return gather_and_compare(group, count);
      });
      CHECK(sentence(support::first_failure(came_to)) == "ok");
      const auto pieces = count == 0 ? 1 : static_cast<int>((count + 55) / 56);
      CHECK(calls == ranks * pieces);
    }
  }
}

TEST_CASE("bootstrap: ranks that gather another number of bytes hear so, and from which") {
  const auto gather = [](bootstrap_ref ranks) {
    const std::size_t count = ranks.rank() == 1 ? 300 : 200;
    return gather_and_compare(ranks, count);
  };
  const auto start = std::chrono::steady_clock::now();
  const auto over_host_memory = on_ranks(
      3,
      [&](in_process& me) {
        transport_bootstrap group(me);
        return gather(group);
      },
      60s);
  for (const status& one : over_host_memory) CHECK(one.code == errc::rank_mismatch);

  std::atomic<int> calls{0};
  const auto in_pieces = on_ranks(
      3,
      [&](in_process& me) {
        host_bytes_transport transport{me, calls};
        transport_bootstrap group(transport);
        return gather(group);
      },
      60s);
  for (const status& one : in_pieces) {
    CHECK(sentence(one) ==
          "rank_mismatch: bootstrap, axis bytes: got 300, expected 200: seen on rank 1");
  }
  CHECK(std::chrono::steady_clock::now() - start < 30s);
}

TEST_CASE("bootstrap: a callback of an engine") {
  int calls = 0;
  callback_bootstrap alone(
      0, 1, [&](std::span<const std::byte> mine, std::span<std::byte> all) -> status {
        ++calls;
        if (mine.empty()) return failure(errc::system_failed, "gather", "of the engine", 5);
        std::memcpy(all.data(), mine.data(), mine.size());
        return {};
      });
  static_assert(bootstrap<decltype(alone)>);
  CHECK(sentence(gather_and_compare(alone, 10)) == "ok");
  CHECK(sentence(gather_and_compare(alone, 0)) ==
        "system_failed: gather: got 5, expected 0: of the engine");
  CHECK(calls == 2);

  std::array<std::byte, 3> room{};
  CHECK(sentence(alone.all_gather(std::span(room).first(2), room)) ==
        "invalid_argument: all: got 3, expected 2: as many bytes from each rank as it sends");
  callback_bootstrap beyond(
      4, 4, [](std::span<const std::byte>, std::span<std::byte>) -> status { std::abort(); });
  CHECK(bootstrap_ref(beyond).all_gather({}, {}).code == errc::out_of_range);
  callback_bootstrap crowd(
      0, 17, [](std::span<const std::byte>, std::span<std::byte>) -> status { std::abort(); });
  CHECK(detail::barrier(crowd).code == errc::unsupported);
}

TEST_CASE("bootstrap: a reference is to any of them, and of itself no other") {
  static_assert(std::is_trivially_copyable_v<bootstrap_ref>);
  static_assert(sizeof(bootstrap_ref) <= 2 * sizeof(void*) + 2 * sizeof(int));
  static_assert(!std::is_constructible_v<bootstrap_ref, transport_bootstrap<in_process>>,
                "a temporary would be gone");
  const auto came_to = on_ranks(3, [](in_process& me) -> status {
    const transport_bootstrap group(me);
    const bootstrap_ref first = group;
    bootstrap_ref second = first;
    if (second.rank() != me.rank() || second.size() != 3) {
      return failure(errc::invalid_argument, "test", "rank and size");
    }
    return gather_and_compare(second, 7);
  });
  CHECK(sentence(support::first_failure(came_to)) == "ok");
}

TEST_CASE("bootstrap: a step is good on all ranks or on none") {
  struct outcome {
    int failing;
    std::vector<std::string> sentences;
  };
  const outcome expected[] = {
      {0b000, {"ok", "ok", "ok"}},
      {0b010,
       {"cuda_failed: step: got 2, expected 0: seen on rank 1",
        "cuda_failed: own: got 2, expected "
        "0: of the test",
        "cuda_failed: step: got 2, expected 0: seen on rank 1"}},
      {0b110,
       {"cuda_failed: step: got 2, expected 0: seen on rank 1",
        "cuda_failed: own: got 2, expected "
        "0: of the test",
        "unsupported: own: got 3, expected 0: of the test"}},
  };
  for (const outcome& one : expected) {
    const auto came_to = on_ranks(3, [&](in_process& me) {
      transport_bootstrap group(me);
      const int r = me.rank();
      const bool fails = ((one.failing >> r) & 1) != 0;
      const errc code = r == 1 ? errc::cuda_failed : errc::unsupported;
      return detail::unanimous(group, fails ? failure(code, "own", "of the test", r + 1) : status{},
                               "step");
    });
    for (std::size_t r = 0; r < 3; ++r) CHECK(sentence(came_to[r]) == one.sentences[r]);
  }
}

TEST_CASE("bootstrap: a value of each rank, and a rank that does not come") {
  struct pair {
    int rank;
    double value;
  };
  const auto came_to = on_ranks(16, [](in_process& me) -> status {
    transport_bootstrap group(me);
    pair all[max_ranks] = {};
    const pair mine{me.rank(), 1.5 * me.rank()};
    const status gathered = detail::gather_each(group, mine, all);
    if (!gathered.ok()) return gathered;
    for (int r = 0; r < 16; ++r) {
      if (all[r].rank != r || all[r].value != 1.5 * r) {
        return failure(errc::invalid_argument, "test", "wrong value", r, -1);
      }
    }
    return detail::barrier(group);
  });
  CHECK(sentence(support::first_failure(came_to)) == "ok");

  const auto left_alone = on_ranks(
      2,
      [](in_process& me) -> status {
        if (me.rank() == 1) return {};
        transport_bootstrap group(me);
        return detail::unanimous(group, {});
      },
      50ms);
  CHECK(left_alone[0].code == errc::timed_out);
}
