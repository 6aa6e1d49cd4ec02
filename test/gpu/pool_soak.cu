// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Calls of a peer pool back to back, with new words in every one and every word compared; what that
// finds when a channel has one slot only; and the epoch where its low word comes round.
// HEADWISE_POOL_SOAK: calls of each soak.

#include <support/pool_words.hpp>
#include <support/random.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

int soak_calls() { return count_from("HEADWISE_POOL_SOAK", 2000); }

/// Small calls by ll, larger ones by push, the largest by pull.
protocol_table mixed_table() {
  protocol_table table;
  for (protocol_table::steps* each : {&table.reduce_scatter, &table.all_gather}) {
    each->at[0] = {2 << 10, protocol::ll};
    each->at[1] = {16 << 10, protocol::push};
    for (int i = 2; i < protocol_table::max_steps; ++i) each->at[i] = {INT64_MAX, protocol::pull};
  }
  return table;
}

template <class Memory = automatic_memory>
std::string soak_with(int ranks, int gpus, const protocol_table& table, std::uint32_t seed,
                      int calls) {
  const auto start = std::chrono::steady_clock::now();
  const std::string wrong = on_pool_ranks(ranks, gpus, [&](pool_rank& me) {
    pool_options options;
    options.capacity = soak_capacity();
    options.table = &table;
    return with_pool<Memory>(me, options, {"soak"}, [&](auto& pool) {
      soak_run run;
      run.seed = seed;
      run.calls = calls;
      return soak(me, pool.channel("soak").value(), run);
    });
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("soak: %d ranks on %d GPUs, seed %u, %d calls in %.1f s: %s\n", ranks, gpus, seed,
              calls, took.count(), wrong.empty() ? "right" : wrong.c_str());
  return wrong;
}

void check_soak(const protocol_table& table, std::uint32_t seed) {
  for (const int gpus : one_or_two_gpus()) {
    for (const int ranks : {2, 3, 8}) {
      CHECK(soak_with(ranks, gpus, table, seed + static_cast<std::uint32_t>(ranks), soak_calls()) ==
            "");
    }
  }
}

}  // namespace

TEST_CASE("J08: soak: ll") { check_soak(protocol_table::only(protocol::ll), 100); }
TEST_CASE("J08: soak: push") { check_soak(protocol_table::only(protocol::push), 200); }
TEST_CASE("J08: soak: pull") { check_soak(protocol_table::only(protocol::pull), 300); }
TEST_CASE("J08: soak: all three on one channel, by size") { check_soak(mixed_table(), 400); }
TEST_CASE("J08: soak: through pinned host memory, all three protocols") {
  for (const int gpus : one_or_two_gpus()) {
    CHECK(soak_with<host_memory>(3, gpus, mixed_table(), 500, soak_calls() / 4) == "");
  }
}

// ---- negative control -----------------------------------------------------------------------

namespace {

/// A channel whose two slots are one.
struct one_slot {
  __device__ static int slot(std::uint64_t) noexcept { return 0; }
};

/// Many rows by one block, so that a rank that is late still reads a call's words when the rank
/// that it was late for writes those of the next call.
template <class Rules>
std::string soak_late(protocol how, int calls) {
  return on_pool_ranks(2, 1, [&](pool_rank& me) {
    pool_options options;
    options.capacity = soak_capacity();
    options.timeout = std::chrono::milliseconds(300);
    options.blocks = 1;
    return with_channel(me, options, how, [&](auto&, const pool_channel& channel) {
      soak_run run;
      run.seed = 600;
      run.calls = calls;
      run.tokens = 24;
      run.heads = 11;
      run.head_dim = 512;
      run.late_rank = 1;
      run.delay = 50'000;
      return soak<Rules>(me, channel, run);
    });
  });
}

}  // namespace

TEST_CASE("J08: soak: with one slot in place of two it finds wrong words, or ranks that wait") {
  for (const protocol how : all_protocols) {
    const std::string with_two = soak_late<detail::pool_rules>(how, 500);
    const std::string with_one = soak_late<one_slot>(how, 2000);
    std::printf("one slot, %s: %s\n", to_string(how), with_one.c_str());
    CHECK(with_two == "");
    const bool words = with_one.find("wrong words") != std::string::npos;
    const bool waits = with_one.find("timed_out") != std::string::npos ||
                       with_one.find("rank_mismatch") != std::string::npos;
    CHECK((words || waits));
  }
}

// ---- the epoch ------------------------------------------------------------------------------

namespace {

/// Calls of given sizes, each with new words, rank `late` late to the last of them.
class stepper {
 public:
  explicit stepper(pool_rank& me) : me_(&me) {}

  std::string open(std::uint32_t seed) {
    const auto opened = [&]() -> std::string {
      TRY(call_.open(*me_, soak_most(me_->size()), seed));
      return verdict_.open();
    };
    const std::string wrong = opened();
    TRY_OK(me_->meet());
    return wrong;
  }
  /// Does not wait: the next call may stand behind it on the stream.
  status step(const pool_channel& channel, int tokens, bool gather, bool late) {
    const call_number number{nullptr, count_++};
    call_.set({me_->size(), tokens, tokens == 1 ? 1 : 11, tokens == 1 ? 64 : 512, gather}, {});
    words_ += call_.words();
    const auto put = [](cudaError_t said) { return detail::cuda_status(said, "test"); };
    status came_to = put(call_.fill(me_->stream, number));
    if (came_to.ok() && late) came_to = put(spin(me_->stream, 3'000'000));
    if (came_to.ok()) came_to = call_.enqueue(channel, {me_->stream});
    if (came_to.ok()) came_to = put(call_.check(me_->stream, number, verdict_.report()));
    return came_to;
  }
  std::string told() const { return verdict_.told(me_->stream, words_); }

 private:
  pool_rank* me_;
  word_call call_;
  word_verdict verdict_;
  std::uint32_t count_ = 0;
  unsigned long long words_ = 0;
};

constexpr std::uint64_t power(int exponent) { return std::uint64_t{1} << exponent; }

std::string across(pool_rank& me, protocol how, std::uint64_t first) {
  pool_options options;
  options.capacity = soak_capacity();
  options.timeout = std::chrono::seconds(2);
  options.first_epoch = first;
  const std::string wrong =
      with_channel(me, options, how, [&](auto&, const pool_channel& channel) -> std::string {
        stepper steps(me);
        TRY(steps.open(701));
        for (const bool gather : {false, true}) {
          TRY_OK(steps.step(channel, 24, gather, false));
          TRY_OK(steps.step(channel, 24, gather, false));
          for (int i = 0; i < 6; ++i) TRY_OK(steps.step(channel, 1, i % 3 == 2, false));
          for (const int late : {0, 1}) {
            TRY_OK(steps.step(channel, 24, gather, me.rank() == late));
            TRY_OK(steps.step(channel, 24, gather, false));
          }
        }
        TRY_CUDA(cudaStreamSynchronize(me.stream));
        TRY_OK(channel.state());
        return steps.told();
      });
  return wrong.empty() ? "" : "first epoch " + std::to_string(first) + ": " + wrong;
}

}  // namespace

TEST_CASE(
    "pool: the epoch passes 2^31, 2^32 and where lines are wiped: large, small, large with one "
    "rank late") {
  const std::uint64_t borders[] = {
      power(30), power(31), 3 * power(30), power(32), power(32) + power(30), power(33), power(63)};
  for (const int gpus : one_or_two_gpus()) {
    for (const int ranks : {2, 3}) {
      CHECK(on_pool_ranks(ranks, gpus, [&](pool_rank& me) -> std::string {
              for (const protocol how : all_protocols) {
                for (const std::uint64_t border : borders) {
                  for (const unsigned before : {2u, 5u}) TRY(across(me, how, border - before));
                }
              }
              return "";
            }) == "");
    }
  }
}

namespace {

/// Every line of both slots as an operation of 2^32 epochs ago would have left it: with other data,
/// and the tag that `epoch` will have.
std::string plant(pool_rank& me, const std::byte* slab, const detail::slab_layout& layout,
                  std::uint64_t epoch) {
  const auto bytes = static_cast<std::size_t>(layout.payload - layout.ll);
  std::vector<std::uint64_t> lines(bytes / sizeof(std::uint64_t));
  for (std::uint64_t& one : lines) one = (epoch & 0xffffffffu) << 32 | 0x3f803f80u;
  TRY_OK(me.meet());
  TRY_CUDA(cudaMemcpy(const_cast<std::byte*>(slab) + layout.ll, lines.data(), bytes,
                      cudaMemcpyHostToDevice));
  TRY_CUDA(cudaDeviceSynchronize());
  TRY_OK(me.meet());
  return "";
}

/// What comes of a large call, late on one rank, whose tag stands in all lines since before the
/// `small` calls in front of it.
std::string meet_old_tags(pool_rank& me, std::uint64_t first, int small) {
  pool_options options;
  options.capacity = soak_capacity();
  options.timeout = std::chrono::seconds(2);
  options.first_epoch = first;
  return with_channel<open_memory>(
      me, options, protocol::ll, [&](auto& pool, const pool_channel& channel) -> std::string {
        const auto layout = detail::slab_layout::make(
            me.size(), options.capacity, pool.blocks() * detail::pool_chunks_per_block);
        TRY_OK(layout.why());
        TRY_THAT(layout.value().bytes == pool.bytes_of_channel(), "another layout");
        std::uint64_t epoch = first;
        for (int i = 0; i <= small; ++i) epoch = detail::epoch_after(epoch);
        stepper steps(me);
        TRY(steps.open(801));
        TRY(plant(me, pool.memory().last().of[me.rank()], layout.value(), epoch));
        for (int i = 0; i < small; ++i) TRY_OK(steps.step(channel, 1, false, false));
        TRY_OK(steps.step(channel, 24, false, me.rank() == 1));
        TRY_CUDA(cudaStreamSynchronize(me.stream));
        TRY_OK(channel.state());
        return steps.told();
      });
}

}  // namespace

TEST_CASE("pool: a tag of 2^32 epochs ago does not pass for new: its lines were wiped since") {
  for (const int ranks : {2, 3}) {
    for (const std::uint64_t border :
         {power(30), power(31), 3 * power(30), power(32), power(32) + power(30)}) {
      for (const int small : {7, 8}) {
        CAPTURE(border);
        CAPTURE(small);
        CHECK(on_pool_ranks(ranks, 1, [&](pool_rank& me) {
                return meet_old_tags(me, border - 2, small);
              }) == "");
      }
    }
  }
  // Where nothing is wiped in between the old lines are taken: the test can fail.
  CHECK(on_pool_ranks(2, 1, [](pool_rank& me) { return meet_old_tags(me, 1000, 7); }) != "");
}
