// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/transport/in_process.hpp>

#include <support/sentence.hpp>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace support {

/// A rank of a group of which nobody may ask more than that.
struct silent_rank {
  int own = 0;
  int ranks = 1;

  int rank() const { return own; }
  int size() const { return ranks; }
  headwise::status exchange(std::span<const headwise::send_chunk>,
                            std::span<const headwise::receive_chunk>,
                            const headwise::call_signature&) {
    std::abort();
  }
  headwise::status all_gather(const headwise::send_chunk&, std::span<const headwise::receive_chunk>,
                              const headwise::call_signature&) {
    std::abort();
  }
  headwise::status barrier() { std::abort(); }
};

/// Runs `work(rank, number)` on one thread for each rank of a group.
inline void each_rank(headwise::in_process_group& group, int count,
                      const std::function<void(headwise::in_process&, std::size_t)>& work) {
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) {
    threads.emplace_back([&group, &work, r] {
      const headwise::result<headwise::in_process> handle = group.rank(r);
      if (!handle.ok()) std::terminate();  // an error of the test itself
      headwise::in_process me = handle.value();
      work(me, static_cast<std::size_t>(r));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Runs `work(rank)` on one thread for each rank of a group, `rank` being a headwise::in_process&,
/// and returns what each came to, `[rank]`. The work asserts nothing itself (asserts are for the
/// calling thread); it returns a status, or whatever else it has seen.
///
///     in_process_group group(4);
///     const auto came_to = support::on_ranks(group, 4, [&](in_process& me) { return me.barrier();
///     });
template <class Work>
auto on_ranks(headwise::in_process_group& group, int count, Work work) {
  using outcome = decltype(work(std::declval<headwise::in_process&>()));
  std::vector<std::optional<outcome>> came_to(static_cast<std::size_t>(count));
  each_rank(group, count, [&](headwise::in_process& me, std::size_t r) {
    static_cast<void>(came_to[r].emplace(work(me)));
  });
  std::vector<outcome> outcomes;
  for (std::optional<outcome>& one : came_to) outcomes.push_back(std::move(*one));
  return outcomes;
}

/// The same on a group made for this one run.
template <class Work>
auto on_ranks(int count, Work work, std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
  headwise::in_process_group group(count, timeout);
  return on_ranks(group, count, work);
}

/// The first status that is not ok, or ok.
inline headwise::status first_failure(const std::vector<headwise::status>& came_to) {
  for (const headwise::status& one : came_to) {
    if (!one.ok()) return one;
  }
  return {};
}

}  // namespace support
