// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include <headwise/transport/transport.hpp>

// Ranks that are threads of one process, and no CUDA: the embedded default, and how a machine
// without a GPU tests an engine's sharding.

namespace headwise::inline v0 {

class in_process;

/// What the ranks of one group share. Outlives its handles; neither copied nor moved.
///
/// A call has three phases between two meetings: every rank posts what it sends, all meet, every rank
/// checks the posts of all (and so comes to the same verdict) and copies what is for it, all meet
/// again, and the posted memory belongs to its owner again. A rank that does not come to a meeting
/// within the time-out ends the call on all ranks with the same status and poisons the group.
class in_process_group {
 public:
  /// `ranks` from 1 to 16 (rank() reports anything else). `timeout` bounds every wait.
  explicit in_process_group(int ranks,
                            std::chrono::milliseconds timeout = std::chrono::seconds(10)) noexcept
      : ranks_(ranks), timeout_(timeout) {}
  in_process_group(const in_process_group&) = delete;
  in_process_group& operator=(const in_process_group&) = delete;

  /// The handle of one rank, to be used by one thread at a time.
  /// Errors: unsupported (the size of the group), out_of_range (the rank).
  result<in_process> rank(int which) noexcept;

  /// Makes a poisoned group usable again. Precondition: no rank is inside a call.
  void reset() noexcept {
    const std::lock_guard lock(mutex_);
    poison_ = {};
    here_ = 0;
    for (bool& one : arrived_) one = false;
    ++meeting_;
  }

 private:
  friend class in_process;

  struct post {
    call_signature call;
    std::span<const send_chunk> send;
    std::span<const receive_chunk> receive;
  };

  status meet(int rank) noexcept {
    std::unique_lock lock(mutex_);
    if (!poison_.ok()) return later_call();
    arrived_[rank] = true;
    if (++here_ == ranks_) {
      here_ = 0;
      for (bool& one : arrived_) one = false;
      ++meeting_;
      lock.unlock();
      changed_.notify_all();
      return {};
    }
    const std::uint64_t mine = meeting_;
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    const bool woken = changed_.wait_until(
        lock, deadline, [&] { return meeting_ != mine || !poison_.ok(); });
    if (woken) return meeting_ != mine ? status{} : poison_;
    int missing = 0;
    while (arrived_[missing]) ++missing;
    poison_ = failure(errc::timed_out, "rank", "did not come in time: missing rank (got) of (expected)",
                      missing, ranks_);
    lock.unlock();
    changed_.notify_all();
    return poison_;
  }

  status later_call() const noexcept {
    return failure(errc::poisoned, "group",
                   "an earlier call failed, reset() the group: missing rank (got) of (expected)",
                   poison_.got, poison_.expected);
  }

  const int ranks_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t meeting_ = 0;
  int here_ = 0;
  bool arrived_[max_ranks] = {};
  status poison_{};
  post posts_[max_ranks] = {};  // written before a meeting by their rank, read after it by all
};

/// One rank of an in_process_group: a pointer and a number.
class in_process {
 public:
  constexpr in_process() = default;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return group_->ranks_; }

  /// Errors: invalid_argument (not one chunk per plane and peer), rank_mismatch (ranks disagree about
  /// the call; nothing was written), timed_out, poisoned.
  status exchange(std::span<const send_chunk> send, std::span<const receive_chunk> receive,
                  const call_signature& call) noexcept {
    return run({call, send, receive}, false);
  }

  /// Errors: as exchange().
  status all_gather(const send_chunk& own, std::span<const receive_chunk> receive,
                    const call_signature& call) noexcept {
    return run({call, {&own, 1}, receive}, true);
  }

  /// Takes part in the call that the peers are making, only to say that this rank cannot: they get
  /// rank_mismatch at once and do not wait for it. Errors: as exchange().
  status refuse() noexcept {
    call_signature call{"refused", 0, {}};
    return run({call, {}, {}}, false);
  }

  /// Errors: timed_out, poisoned.
  status barrier() noexcept { return group_->meet(rank_); }

 private:
  friend class in_process_group;
  using post = in_process_group::post;
  in_process(in_process_group* group, int rank) noexcept : group_(group), rank_(rank) {}

  status run(const post& mine, bool gather) noexcept {
    group_->posts_[rank_] = mine;
    const status met = group_->meet(rank_);
    if (!met.ok()) return met;
    const status agreed = agree(gather);
    if (agreed.ok()) {
      const std::size_t size = static_cast<std::size_t>(group_->ranks_);
      const std::size_t me = static_cast<std::size_t>(rank_);
      for (std::size_t i = 0; i < mine.receive.size(); ++i) {
        const post& from = group_->posts_[i % size];
        copy(gather ? from.send[0] : from.send[i / size * size + me], mine.receive[i]);
      }
    }
    const status parted = group_->meet(rank_);
    return parted.ok() ? agreed : parted;
  }

  /// The verdict on all posts, the same on every rank as it depends on nothing else.
  status agree(bool gather) const noexcept {
    const post* posts = group_->posts_;
    const int size = group_->ranks_;
    for (int i = 0; i < size; ++i) {
      if (posts[i].call.operation_id == 0) {
        return failure(errc::rank_mismatch, posts[i].call.operation,
                       "this rank (got) could not make the call", i, -1, "rank");
      }
    }
    // The odd one out is the rank that few agree with, not simply the first that differs from 0.
    int reference = 0;
    int most = 0;
    for (int i = 0; i < size; ++i) {
      int votes = 0;
      for (int j = 0; j < size; ++j) votes += same(posts[i].call, posts[j].call) ? 1 : 0;
      if (votes > most) {
        most = votes;
        reference = i;
      }
    }
    for (int i = 0; i < size; ++i) {
      const status matches = compare(posts[i].call, posts[reference].call, i);
      if (!matches.ok()) return matches;
    }
    const std::size_t peers = static_cast<std::size_t>(size);
    for (int i = 0; i < size; ++i) {
      const bool well_formed =
          gather ? posts[i].receive.size() == peers
                 : posts[i].send.size() % peers == 0 && posts[i].send.size() == posts[i].receive.size();
      if (!well_formed) {
        return failure(errc::invalid_argument, posts[i].call.operation,
                       "one chunk per plane and peer", static_cast<index_t>(posts[i].receive.size()),
                       gather ? size : static_cast<index_t>(posts[i].send.size()), "rank");
      }
      if (posts[i].receive.size() != posts[0].receive.size()) {
        return failure(errc::rank_mismatch, posts[i].call.operation,
                       "ranks exchange different numbers of planes",
                       static_cast<index_t>(posts[i].receive.size()),
                       static_cast<index_t>(posts[0].receive.size()), "rank");
      }
    }
    for (std::size_t to = 0; to < peers; ++to) {
      for (std::size_t i = 0; i < posts[to].receive.size(); ++i) {
        const post& from = posts[i % peers];
        const index_t sent = (gather ? from.send[0] : from.send[i / peers * peers + to]).bytes();
        if (sent != posts[to].receive[i].bytes()) {
          return failure(errc::rank_mismatch, posts[to].call.operation,
                         "a rank sends other bytes (got) than its peer expects", sent,
                         posts[to].receive[i].bytes(), "rank");
        }
      }
    }
    return {};
  }

  static bool same(const call_signature& a, const call_signature& b) noexcept {
    if (a.operation_id != b.operation_id) return false;
    for (int i = 0; i < call_signature::field_count; ++i) {
      if (a.fields[i] != b.fields[i]) return false;
    }
    return true;
  }

  /// The axis of the status is the field that differs; its operand the operation of the others.
  static status compare(const call_signature& one, const call_signature& others, int rank) noexcept {
    if (one.operation_id != others.operation_id) {
      return failure(errc::rank_mismatch, one.operation, "this rank (got) calls another operation",
                     rank, -1, "operation");
    }
    for (int i = 0; i < call_signature::field_count; ++i) {
      if (one.fields[i] != others.fields[i]) {
        return failure(errc::rank_mismatch, one.operation, odd_rank_messages[rank], one.fields[i],
                       others.fields[i], call_signature::field_names[i]);
      }
    }
    return {};
  }

  // A status has room for two values, and those are the field's; the rank is in the text.
  static constexpr const char* odd_rank_messages[max_ranks] = {
      "rank 0 differs from the others",  "rank 1 differs from the others",
      "rank 2 differs from the others",  "rank 3 differs from the others",
      "rank 4 differs from the others",  "rank 5 differs from the others",
      "rank 6 differs from the others",  "rank 7 differs from the others",
      "rank 8 differs from the others",  "rank 9 differs from the others",
      "rank 10 differs from the others", "rank 11 differs from the others",
      "rank 12 differs from the others", "rank 13 differs from the others",
      "rank 14 differs from the others", "rank 15 differs from the others"};

  static void copy(const send_chunk& from, const receive_chunk& to) noexcept {
    const auto* source = static_cast<const std::byte*>(from.data);
    auto* target = static_cast<std::byte*>(to.data);
    // The two sides may cut the same bytes into different runs.
    index_t source_run = 0;
    index_t target_run = 0;
    index_t source_at = 0;
    index_t target_at = 0;
    for (index_t left = from.bytes(); left > 0;) {
      const index_t step =
          detail::lesser(from.run_bytes - source_at, to.run_bytes - target_at);
      std::memcpy(target + target_run * to.pitch + target_at,
                  source + source_run * from.pitch + source_at, static_cast<std::size_t>(step));
      left -= step;
      source_at += step;
      target_at += step;
      if (source_at == from.run_bytes) {
        source_at = 0;
        ++source_run;
      }
      if (target_at == to.run_bytes) {
        target_at = 0;
        ++target_run;
      }
    }
  }

  in_process_group* group_ = nullptr;
  int rank_ = 0;
};

inline result<in_process> in_process_group::rank(int which) noexcept {
  const status size_ok = require_supported_ranks(ranks_);
  if (!size_ok.ok()) return size_ok;
  if (which < 0 || which >= ranks_) {
    return failure(errc::out_of_range, "rank", "a rank is below the size of its group", which,
                   ranks_);
  }
  return in_process(this, which);
}

static_assert(transport<in_process>);

}  // namespace headwise::inline v0
