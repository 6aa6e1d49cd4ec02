// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// What becomes of a peer pool whose ranks do not do their part: nothing hangs, all ranks hear the
// same, no plausible number survives, and the pool can be used again. And what it takes of memory.

#include <support/pool.hpp>
#include <support/random.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

using reduce = reduce_call<bf16, log_base::e>;
using reduce_two = reduce_call<bf16, log_base::two>;
using gather = gather_call<bf16>;
using gather_fp16 = gather_call<fp16>;

using clock_type = std::chrono::steady_clock;
double milliseconds_since(clock_type::time_point start) {
  return std::chrono::duration<double, std::milli>(clock_type::now() - start).count();
}

pool_options small_pool() {
  pool_options options;
  options.capacity = {8, 4, 256, index_t{1} << 20};
  return options;
}

/// Between two events on a stream, in milliseconds.
class stopwatch {
 public:
  stopwatch() = default;
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;
  ~stopwatch() {
    for (const cudaEvent_t one : at_) {
      if (one != nullptr) cudaEventDestroy(one);
    }
  }
  std::string open() {
    for (cudaEvent_t& one : at_) TRY_CUDA(cudaEventCreate(&one));
    return "";
  }
  cudaError_t start(cudaStream_t stream) { return cudaEventRecord(at_[0], stream); }
  cudaError_t stop(cudaStream_t stream) { return cudaEventRecord(at_[1], stream); }
  std::string read(double& milliseconds) const {
    float took = 0;
    TRY_CUDA(cudaEventElapsedTime(&took, at_[0], at_[1]));
    milliseconds = double{took};
    return "";
  }

 private:
  cudaEvent_t at_[2] = {};
};

/// A call that must fail, from new operands on: its results are NaN, and nothing else was written.
template <class Call>
std::string check_failing(pool_rank& me, const pool_channel& channel, std::uint64_t seed,
                          Call& call, stopwatch& watch, double& milliseconds) {
  call.fill(seed);
  TRY_CUDA(me.memory.upload(me.stream));
  TRY_CUDA(watch.start(me.stream));
  TRY_OK(call.enqueue(channel, me.stream));
  TRY_CUDA(watch.stop(me.stream));
  TRY_CUDA(me.memory.fetch(me.stream));
  TRY_CUDA(cudaStreamSynchronize(me.stream));
  TRY(watch.read(milliseconds));
  TRY_THAT(!channel.state().ok(), "a call that must fail did not");
  call.expect_poison();
  return me.memory.differences();
}

/// Fails at once, with what the channel says, and without a launch.
template <class Call>
std::string check_refused(pool_rank& me, const pool_channel& channel, Call& call) {
  const status state = channel.state();
  call.fill(77);
  TRY_CUDA(me.memory.upload(me.stream));
  TRY_CUDA(cudaStreamSynchronize(me.stream));
  const auto start = clock_type::now();
  const status came_to = call.enqueue(channel, me.stream);
  const double took = milliseconds_since(start);
  TRY_THAT(!came_to.ok() && came_to.code == state.code && came_to.got == state.got &&
               came_to.expected == state.expected,
           sentence(came_to) + ", not " + sentence(state));
  TRY_THAT(took < 50, std::to_string(took) + " ms");
  TRY_CUDA(me.memory.fetch(me.stream));
  TRY_CUDA(cudaStreamSynchronize(me.stream));
  return me.memory.differences();
}

template <class Call>
std::string check_some(pool_rank& me, const pool_channel& channel, Call& call) {
  for (std::uint64_t i = 0; i < 4; ++i) TRY(check_calls(me, channel, 500 + i, call));
  return "";
}

/// Low words of the epochs that ranks have announced in the slab of this one: the largest.
std::string last_announced(pool_rank& me, const std::byte* slab, const detail::slab_layout& layout,
                           std::uint32_t& last) {
  last = 0;
  for (int slot = 0; slot < 2; ++slot) {
    for (int writer = 0; writer < me.size(); ++writer) {
      std::uint64_t word = 0;
      TRY_CUDA(cudaMemcpy(&word, slab + layout.announcement_at(slot, writer), sizeof word,
                          cudaMemcpyDeviceToHost));
      last = detail::greater(last, static_cast<std::uint32_t>(word));
    }
  }
  return "";
}

/// One rank does not make a call.
template <class Call, class Run>
std::string check_absent(pool_rank& me, protocol how, int absent, double limit, const Run& run) {
  pool_options options = small_pool();
  options.timeout = std::chrono::milliseconds(static_cast<int>(limit));
  options.concurrent_channels = 2;
  const protocol_table table = protocol_table::only(how);
  options.table = &table;
  stopwatch watch;
  TRY(watch.open());
  return with_pool<open_memory>(me, options, {"one"}, [&](auto& pool) -> std::string {
    const pool_channel one = pool.channel("one").value();
    const mapped_slab slab = pool.memory().last();  // of this channel
    TRY_OK(pool.prepare(me.group, {"two"}));
    const pool_channel two = pool.channel("two").value();
    const auto layout = detail::slab_layout::make(me.size(), options.capacity,
                                                  pool.blocks() * detail::pool_chunks_per_block);
    TRY_OK(layout.why());
    me.memory.forget();
    Call call(me.memory, run, me.rank());
    TRY(check_some(me, one, call));
    TRY_OK(me.meet());
    const auto failed = [&](const status& is) -> std::string {
      TRY_THAT(is.code == errc::timed_out && is.got == absent && is.expected != absent &&
                   is.expected < me.size(),
               sentence(is));
      return "";
    };
    double took = 0;
    if (me.rank() != absent) {
      TRY(check_failing(me, one, 501, call, watch, took));
      TRY(failed(one.state()));
      // Who saw it has waited so long; others may have begun a little later.
      const bool saw_it = one.state().expected == me.rank();
      TRY_THAT(took >= limit * (saw_it ? 0.99 : 0.5) && took <= limit * 1.1,
               std::to_string(took) + " ms");
      TRY(check_refused(me, one, call));
    }
    TRY_OK(me.meet());
    // The one that did not come finds out when it comes.
    if (me.rank() == absent) {
      TRY_OK(one.state());
      TRY(check_failing(me, one, 502, call, watch, took));
      TRY_THAT(took < limit, std::to_string(took) + " ms");
      TRY(failed(one.state()));
      TRY(check_refused(me, one, call));
    }
    // The GPUs are none the worse, nor is another channel.
    TRY(check_some(me, two, call));
    std::uint32_t before = 0, after = 0;
    TRY_OK(me.meet());
    TRY(last_announced(me, slab.of[me.rank()], layout.value(), before));
    std::uint32_t all_before[max_ranks] = {};
    TRY_OK(detail::gather_each(me.group, before, all_before));
    TRY_OK(pool.reset(me.group));
    TRY_OK(one.state());
    TRY(check_some(me, one, call));
    TRY(check_some(me, two, call));
    TRY_OK(me.meet());
    TRY(last_announced(me, slab.of[me.rank()], layout.value(), after));
    TRY_OK(me.meet());
    for (int r = 0; r < me.size(); ++r) {
      // Four calls since.
      TRY_THAT(after >= all_before[r] + 4, "an epoch is used twice: " + std::to_string(after) +
                                               " after " + std::to_string(all_before[r]));
    }
    // A second time.
    if (me.rank() != absent) TRY(check_failing(me, one, 503, call, watch, took));
    TRY_OK(me.meet());
    TRY_OK(pool.reset(me.group));
    return check_some(me, one, call);
  });
}

}  // namespace

TEST_CASE(
    "pool: a rank that does not call is named in time, and after a reset all is right again") {
  for (const int gpus : one_or_two_gpus()) {
    for (const int ranks : {2, 3, 8}) {
      for (const int absent : {0, ranks - 1}) {
        CAPTURE(absent);
        CHECK(on_pool_ranks(ranks, gpus, [&](pool_rank& me) -> std::string {
                for (const protocol how : all_protocols) {
                  const auto wrong = [&](const std::string& text) {
                    return text.empty() ? "" : std::string(to_string(how)) + ": " + text;
                  };
                  const scatter_shape shape{ranks, 3, 2, 64};
                  TRY(wrong(check_absent<reduce>(me, how, absent, 200, reduce_run{shape})));
                  TRY(wrong(check_absent<gather>(me, how, absent, 200, gather_run{shape})));
                }
                return "";
              }) == "");
      }
    }
  }
}

TEST_CASE("pool: the same through pinned host memory, which a reset wipes too") {
  for (const int gpus : one_or_two_gpus()) {
    for (const int ranks : {2, 3}) {
      CHECK(on_pool_ranks(ranks, gpus, [&](pool_rank& me) -> std::string {
              pool_options options = small_pool();
              options.timeout = std::chrono::milliseconds(200);
              stopwatch watch;
              TRY(watch.open());
              const auto work = [&](auto& pool, const pool_channel& channel) -> std::string {
                me.memory.forget();
                reduce call(me.memory, {{ranks, 3, 2, 64}}, me.rank());
                for (const int absent : {0, 1}) {
                  TRY(check_some(me, channel, call));
                  TRY_OK(me.meet());
                  double took = 0;
                  if (me.rank() != absent) {
                    TRY(check_failing(me, channel, 510, call, watch, took));
                    TRY_THAT(took <= 220, std::to_string(took) + " ms");
                    const status is = channel.state();
                    TRY_THAT(is.code == errc::timed_out && is.got == absent, sentence(is));
                    TRY(check_refused(me, channel, call));
                  }
                  TRY_OK(me.meet());
                  TRY_OK(pool.reset(me.group));
                }
                return check_some(me, channel, call);
              };
              for (const protocol how : all_protocols) {
                TRY(with_channel<host_memory>(me, options, how, work));
              }
              return "";
            }) == "");
    }
  }
}

TEST_CASE("pool: the limit is what was asked for: ten milliseconds") {
  CHECK(on_pool_ranks(2, 1, [&](pool_rank& me) -> std::string {
          for (const protocol how : all_protocols) {
            pool_options options = small_pool();
            options.timeout = std::chrono::milliseconds(10);
            stopwatch watch;
            TRY(watch.open());
            TRY(with_channel(me, options, how,
                             [&](auto&, const pool_channel& channel) -> std::string {
                               me.memory.forget();
                               reduce call(me.memory, {{2, 1, 1, 64}}, me.rank());
                               double took = 0;
                               if (me.rank() == 0) {
                                 TRY(check_failing(me, channel, 1, call, watch, took));
                                 // The grace that other blocks are given to end takes a
                                 // millisecond.
                                 TRY_THAT(took >= 9.9 && took <= 13, std::to_string(took) + " ms");
                               }
                               TRY_OK(me.meet());
                               return "";
                             }));
          }
          return "";
        }) == "");
}

// ---- ranks that do different things -------------------------------------------------------------

namespace {

/// What ranks do, and the odd one among them.
template <class Usual, class Odd, class UsualRun, class OddRun>
std::string check_odd(pool_rank& me, protocol how, const UsualRun& usual, const OddRun& odd) {
  pool_options options = small_pool();
  options.timeout = std::chrono::milliseconds(1500);
  stopwatch watch;
  TRY(watch.open());
  return with_channel(me, options, how,
                      [&](auto& pool, const pool_channel& channel) -> std::string {
                        constexpr int odd_rank = 1;
                        // In the first call, and in a later one, when there is something of the one
                        // before.
                        for (const int before : {0, 3}) {
                          me.memory.forget();
                          Usual call(me.memory, usual, me.rank());
                          for (int i = 0; i < before; ++i) TRY(check_calls(me, channel, 600, call));
                          double took = 0;
                          if (me.rank() == odd_rank) {
                            me.memory.forget();
                            Odd other(me.memory, odd, me.rank());
                            TRY(check_failing(me, channel, 601, other, watch, took));
                          } else {
                            TRY(check_failing(me, channel, 601, call, watch, took));
                          }
                          const status is = channel.state();
                          // Two ranks that differ see it of each other; whoever sees it first tells
                          // all.
                          const bool named = (is.got == odd_rank) != (is.expected == odd_rank);
                          TRY_THAT(is.code == errc::rank_mismatch && named, sentence(is));
                          TRY_THAT(took < 1000, std::to_string(took) + " ms");
                          TRY_OK(me.meet());
                          TRY_OK(pool.reset(me.group));
                        }
                        me.memory.forget();
                        Usual call(me.memory, usual, me.rank());
                        return check_some(me, channel, call);
                      });
}

template <class Usual, class Odd, class UsualRun, class OddRun>
void check_odd_one(const char* what, const UsualRun& usual, const OddRun& odd) {
  CAPTURE(what);
  for (const int gpus : one_or_two_gpus()) {
    for (const int ranks : {2, 3}) {
      CHECK(on_pool_ranks(ranks, gpus, [&](pool_rank& me) -> std::string {
              UsualRun one = usual;
              OddRun other = odd;
              one.shape.ranks = other.shape.ranks = ranks;
              for (const protocol how : all_protocols) {
                const std::string wrong = check_odd<Usual, Odd>(me, how, one, other);
                if (!wrong.empty()) return std::string(to_string(how)) + ": " + wrong;
              }
              return "";
            }) == "");
    }
  }
}

}  // namespace

TEST_CASE("pool: a rank that makes another call is found out: operation, shape, type, base") {
  const reduce_run three{{0, 3, 2, 64}}, two{{0, 2, 2, 64}}, one{{0, 1, 2, 64}},
      eight{{0, 8, 2, 64}};
  const reduce_run wider{{0, 3, 2, 128}}, heads{{0, 2, 3, 64}}, narrow{{0, 3, 2, 33}};
  const gather_run rows{{0, 3, 2, 64}}, fewer{{0, 2, 2, 64}}, wide{{0, 3, 2, 128}};
  check_odd_one<reduce, gather>("a gather among reductions", three, rows);
  check_odd_one<gather, reduce>("a reduction among gathers", rows, three);
  check_odd_one<reduce, reduce>("fewer tokens", three, two);
  check_odd_one<reduce, reduce>("more tokens", two, three);
  check_odd_one<reduce, reduce>("far more tokens", one, eight);
  check_odd_one<reduce, reduce>("as many rows, other heads", three, heads);
  check_odd_one<reduce, reduce>("wider rows", three, wider);
  check_odd_one<reduce, reduce>("narrower rows", three, narrow);
  check_odd_one<reduce, reduce_two>("another base", three, three);
  check_odd_one<gather, gather>("fewer tokens to gather", rows, fewer);
  check_odd_one<gather, gather>("wider rows to gather", rows, wide);
  check_odd_one<gather, gather_fp16>("another type of the same size", rows, rows);
}

// ---- opening a pool
// -------------------------------------------------------------------------------

namespace {

/// Memory whose writes from rank 0 to rank 1 go nowhere, as some drivers have it. It can fall back,
/// if it is told so.
template <bool CanFallBack>
class dropping_memory {
 public:
  result<mapped_slab> map(bootstrap_ref ranks, index_t bytes) noexcept {
    if (fallen_back_) return host_.map(ranks, bytes);
    result<mapped_slab> mapped = memory_.map(ranks, bytes);
    if (!mapped.ok() || ranks.rank() != 0) return mapped;
    mapped_slab slab = mapped.value();
    if (cudaMalloc(reinterpret_cast<void**>(&nowhere_), static_cast<std::size_t>(bytes)) !=
            cudaSuccess ||
        cudaMemset(nowhere_, 0, static_cast<std::size_t>(bytes)) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess) {
      std::abort();  // an error of the test itself
    }
    slab.of[1] = nowhere_;
    return slab;
  }
  status unmap(bootstrap_ref ranks, mapped_slab& slab) noexcept {
    if (fallen_back_) return host_.unmap(ranks, slab);
    const status came_to = memory_.unmap(ranks, slab);
    cudaFree(nowhere_);
    nowhere_ = nullptr;
    return came_to;
  }
  memory_kind kind() const noexcept { return fallen_back_ ? host_.kind() : memory_.kind(); }
  memory_reason reason() const noexcept {
    return fallen_back_ ? memory_reason::probe_failed : memory_.reason();
  }
  status fall_back() noexcept requires CanFallBack {
    if (fallen_back_) return failure(errc::unsupported, "memory", "there is no other");
    fallen_back_ = true;
    return {};
  }

 private:
  peer_access_memory memory_;
  host_memory host_;
  std::byte* nowhere_ = nullptr;
  bool fallen_back_ = false;
};
static_assert(peer_memory<dropping_memory<false>> && peer_memory<dropping_memory<true>>);

}  // namespace

namespace failing {

/// Memory that cannot be had on one rank.
class failing_memory {
 public:
  result<mapped_slab> map(bootstrap_ref ranks, index_t bytes) noexcept {
    const status mine =
        ranks.rank() == 1 ? failure(errc::cuda_failed, "test", "no memory", 2) : status{};
    const status all = detail::unanimous(ranks, mine, "memory");
    if (!all.ok()) return all;
    return memory_.map(ranks, bytes);
  }
  status unmap(bootstrap_ref ranks, mapped_slab& slab) noexcept {
    return memory_.unmap(ranks, slab);
  }
  memory_kind kind() const noexcept { return memory_.kind(); }
  memory_reason reason() const noexcept { return memory_.reason(); }

 private:
  peer_access_memory memory_;
};
}  // namespace failing

namespace {

using failing::failing_memory;
static_assert(peer_memory<failing_memory>);

/// That all ranks come to the same, and what that is.
std::string agree(pool_rank& me, const status& came_to, errc& code) {
  code = came_to.code;
  std::uint64_t all[max_ranks] = {};
  TRY_OK(detail::gather_each(me.group, static_cast<std::uint64_t>(came_to.code), all));
  for (int r = 0; r < me.size(); ++r) {
    TRY_THAT(all[r] == static_cast<std::uint64_t>(code),
             "another verdict than on rank " + std::to_string(r) + ": " + sentence(came_to));
  }
  return "";
}

std::string expect_code(pool_rank& me, const status& came_to, errc wanted) {
  errc code{};
  TRY(agree(me, came_to, code));
  TRY_THAT(code == wanted, sentence(came_to));
  return "";
}

}  // namespace

TEST_CASE(
    "I01: J05: pool: writes that get lost are found when it is opened, by all ranks, in time") {
  for (const int gpus : one_or_two_gpus()) {
    for (const int ranks : {2, 3, 6}) {
      CHECK(on_pool_ranks(ranks, gpus, [&](pool_rank& me) -> std::string {
              pool_options options = small_pool();
              options.timeout = std::chrono::milliseconds(300);
              const auto pool = std::make_unique<peer_pool<dropping_memory<false>>>();
              const auto start = clock_type::now();
              const status opened = pool->open(me.group, options);
              const double took = milliseconds_since(start);
              errc code{};
              TRY(agree(me, opened, code));
              TRY_THAT(code == errc::timed_out || code == errc::unsupported, sentence(opened));
              TRY_THAT(took < 5000, std::to_string(took) + " ms");
              TRY_THAT(pool->channel_count() == 0, "channels are left");
              const status prepared = pool->prepare(me.group, {"calls"});
              return expect_code(me, prepared, errc::invalid_argument);
            }) == "");
    }
  }
}

TEST_CASE("I01: pool: where writes get lost and there is other memory, all ranks take that") {
  for (const int gpus : one_or_two_gpus()) {
    for (const int ranks : {2, 3, 6}) {
      CHECK(on_pool_ranks(ranks, gpus, [&](pool_rank& me) -> std::string {
              pool_options options = small_pool();
              options.timeout = std::chrono::milliseconds(300);
              return with_pool<dropping_memory<true>>(
                  me, options, {"calls"}, [&](auto& pool) -> std::string {
                    TRY_THAT(pool.memory().kind() == memory_kind::host,
                             to_string(pool.memory().kind()));
                    TRY_THAT(pool.memory().reason() == memory_reason::probe_failed,
                             to_string(pool.memory().reason()));
                    const pool_channel channel = pool.channel("calls").value();
                    me.memory.forget();
                    reduce call(me.memory, {{ranks, 3, 2, 64}}, me.rank());
                    gather other(me.memory, {{ranks, 3, 2, 64}}, me.rank());
                    call.fill(1);
                    other.fill(2);
                    return check_calls(me, channel, 700, call, other);
                  });
            }) == "");
    }
  }
}

TEST_CASE("J05: pool: a rank that cannot have its memory: no rank has a pool") {
  for (const int ranks : {2, 3}) {
    CHECK(on_pool_ranks(ranks, 1, [&](pool_rank& me) -> std::string {
            const auto pool = std::make_unique<peer_pool<failing_memory>>();
            TRY(expect_code(me, pool->open(me.group, small_pool()), errc::cuda_failed));
            TRY_THAT(pool->channel_count() == 0, to_string(pool->memory().reason()));
            return "";
          }) == "");
  }
}

TEST_CASE("pool: a rank that does not come to open it is not waited for for ever") {
  const auto start = clock_type::now();
  const auto came_to = on_ranks(
      3,
      [](in_process& me) -> status {
        if (me.rank() == 2) return {};
        transport_bootstrap group(me);
        const auto pool = std::make_unique<peer_pool<>>();
        return pool->open(group, small_pool());
      },
      std::chrono::milliseconds(300));
  CHECK(sentence(came_to[0]).find("timed_out") == 0);
  CHECK(sentence(came_to[1]).find("timed_out") == 0);
  CHECK(milliseconds_since(start) < 3000);
}

TEST_CASE("pool: options that differ are named on all ranks") {
  const protocol_table table = protocol_table::only(protocol::push);
  const struct {
    const char* name;
    std::function<void(pool_options&)> change;
  } changes[] = {
      {"tokens", [](pool_options& is) { is.capacity.tokens = 9; }},
      {"heads", [](pool_options& is) { is.capacity.heads = 5; }},
      {"row_bytes", [](pool_options& is) { is.capacity.row_bytes = 128; }},
      {"ll_bytes", [](pool_options& is) { is.capacity.ll_bytes = 4096; }},
      {"timeout", [](pool_options& is) { is.timeout = std::chrono::seconds(3); }},
      {"concurrent_channels", [](pool_options& is) { is.concurrent_channels = 2; }},
      {"blocks", [](pool_options& is) { is.blocks = 2; }},
      {"table", [&](pool_options& is) { is.table = &table; }},
      {"first_epoch", [](pool_options& is) { is.first_epoch = 5; }},
  };
  CHECK(on_pool_ranks(3, 1, [&](pool_rank& me) -> std::string {
          for (const auto& change : changes) {
            for (const int odd : {0, 2}) {
              pool_options options = small_pool();
              if (me.rank() == odd) change.change(options);
              const auto pool = std::make_unique<peer_pool<>>();
              const status opened = pool->open(me.group, options);
              TRY(expect_code(me, opened, errc::rank_mismatch));
              TRY_THAT(opened.axis == std::string(change.name), sentence(opened));
              const std::string seen = "seen on rank " + std::to_string(odd);
              TRY_THAT(opened.message == seen, sentence(opened));
            }
          }
          return "";
        }) == "");
}

TEST_CASE(
    "pool: options that no pool can have are refused on all ranks, also where one rank has them") {
  const struct {
    const char* name;
    errc code;
    std::function<void(pool_options&)> change;
  } changes[] = {
      {"no tokens", errc::invalid_argument, [](pool_options& is) { is.capacity.tokens = 0; }},
      {"no heads", errc::invalid_argument, [](pool_options& is) { is.capacity.heads = -1; }},
      {"no width", errc::invalid_argument, [](pool_options& is) { is.capacity.row_bytes = 0; }},
      {"too much", errc::capacity_exceeded,
       [](pool_options& is) { is.capacity.tokens = INT64_MAX / 2; }},
      {"no time", errc::invalid_argument,
       [](pool_options& is) { is.timeout = std::chrono::seconds(0); }},
      {"no channels", errc::invalid_argument, [](pool_options& is) { is.concurrent_channels = 0; }},
  };
  CHECK(on_pool_ranks(3, 1, [&](pool_rank& me) -> std::string {
          for (const auto& change : changes) {
            for (const bool all : {true, false}) {
              pool_options options = small_pool();
              if (all || me.rank() == 1) change.change(options);
              const auto pool = std::make_unique<peer_pool<>>();
              const std::string wrong = expect_code(me, pool->open(me.group, options), change.code);
              if (!wrong.empty()) return change.name + (": " + wrong);
            }
          }
          // What could not be resident together.
          pool_options options = small_pool();
          options.blocks = 100'000;
          auto pool = std::make_unique<peer_pool<>>();
          TRY(expect_code(me, pool->open(me.group, options), errc::unsupported));
          options = small_pool();
          options.concurrent_channels = 100'000;
          pool = std::make_unique<peer_pool<>>();
          TRY(expect_code(me, pool->open(me.group, options), errc::unsupported));
          // And after all that, one that can be.
          options = small_pool();
          options.blocks = 1;
          return with_pool(me, options, {"calls"}, [&](auto& usable) -> std::string {
            TRY_THAT(usable.blocks() == 1, std::to_string(usable.blocks()));
            me.memory.forget();
            reduce call(me.memory, {{3, 8, 4, 64}}, me.rank());
            return check_some(me, usable.channel("calls").value(), call);
          });
        }) == "");
}

// ---- channels -----------------------------------------------------------------------------------

TEST_CASE(
    "H06: pool: channels: names that differ, in number or in text, are an error on all ranks") {
  CHECK(on_pool_ranks(3, 1, [](pool_rank& me) -> std::string {
          return with_pool(me, small_pool(), {"first"}, [&](auto& pool) -> std::string {
            const bool odd = me.rank() == 1;
            const auto said = [&](std::initializer_list<const char*> usual,
                                  std::initializer_list<const char*> other) {
              return pool.prepare(me.group, odd ? other : usual);
            };
            TRY(expect_code(me, said({"a", "b"}, {"a", "b", "c"}), errc::rank_mismatch));
            TRY(expect_code(me, said({"a", "b"}, {"a"}), errc::rank_mismatch));
            TRY(expect_code(me, said({"a", "b"}, {"a", "c"}), errc::rank_mismatch));
            TRY(expect_code(me, said({"a", "a"}, {"a", "a"}), errc::invalid_argument));
            TRY(expect_code(me, said({"first"}, {"first"}), errc::invalid_argument));
            TRY(expect_code(me, said({"a"}, {"first"}), errc::invalid_argument));
            TRY(expect_code(me, said({""}, {""}), errc::invalid_argument));
            TRY(expect_code(me, said({nullptr}, {"a"}), errc::invalid_argument));
            const std::string long_name(48, 'x');
            TRY(expect_code(me, said({long_name.c_str()}, {"a"}), errc::invalid_argument));
            TRY_THAT(pool.channel_count() == 1, std::to_string(pool.channel_count()));
            const auto missing = pool.channel("a");
            TRY_THAT(!missing.ok() && missing.why().code == errc::invalid_argument,
                     sentence(missing.why()));
            // In another order on one rank: a name is the same channel on all of them.
            TRY_OK(said({"b", "a", "c"}, {"c", "b", "a"}));
            TRY_THAT(pool.channel_count() == 4, std::to_string(pool.channel_count()));
            me.memory.forget();
            reduce call(me.memory, {{3, 2, 2, 64}}, me.rank());
            for (const char* const name : {"c", "first", "a", "b", "a"}) {
              const pool_channel channel = pool.channel(name).value();
              TRY_THAT(channel.name() == std::string(name), channel.name());
              TRY(check_some(me, channel, call));
            }
            return "";
          });
        }) == "");
}

TEST_CASE("pool: as many channels as there can be, and not one more") {
  CHECK(on_pool_ranks(2, 1, [](pool_rank& me) -> std::string {
          pool_options options = small_pool();
          options.capacity = {1, 1, 64, 64};
          return with_pool(me, options, {"first"}, [&](auto& pool) -> std::string {
            std::vector<std::string> names;
            for (int i = 0; i < 63; ++i) names.push_back("channel " + std::to_string(i));
            std::vector<const char*> given;
            for (const std::string& name : names) given.push_back(name.c_str());
            given.push_back("one more");
            TRY(expect_code(me, pool.prepare(me.group, given), errc::capacity_exceeded));
            given.pop_back();
            TRY_OK(pool.prepare(me.group, given));
            TRY(expect_code(me, pool.prepare(me.group, {"one more"}), errc::capacity_exceeded));
            me.memory.forget();
            reduce call(me.memory, {{2, 1, 1, 32}}, me.rank());
            return check_some(me, pool.channel("channel 62").value(), call);
          });
        }) == "");
}

TEST_CASE("pool: what is not open, or closed") {
  CHECK(on_pool_ranks(2, 1, [](pool_rank& me) -> std::string {
          const auto pool = std::make_unique<peer_pool<>>();
          TRY(expect_code(me, pool->prepare(me.group, {"a"}), errc::invalid_argument));
          TRY_OK(pool->close(me.group));
          for (int times = 0; times < 3; ++times) {
            TRY_OK(pool->open(me.group, small_pool()));
            TRY(expect_code(me, pool->open(me.group, small_pool()), errc::invalid_argument));
            TRY_OK(pool->prepare(me.group, {"a"}));
            me.memory.forget();
            reduce call(me.memory, {{2, 2, 2, 64}}, me.rank());
            TRY(check_some(me, pool->channel("a").value(), call));
            // A reset of what has not failed changes nothing.
            TRY_OK(pool->reset(me.group));
            TRY(check_some(me, pool->channel("a").value(), call));
            TRY_OK(pool->close(me.group));
            TRY_THAT(!pool->channel("a").ok(), "is there after close()");
          }
          const pool_channel none_of_a_pool;
          TRY_THAT(none_of_a_pool.state().code == errc::invalid_argument,
                   sentence(none_of_a_pool.state()));
          return "";
        }) == "");
}

namespace {

/// Something that is refused on all ranks while rank 0 captures a stream.
template <class Call>
std::string check_captured(pool_rank& me, cudaStream_t stream, cudaStreamCaptureMode mode,
                           bool survives, const Call& call) {
  const bool captures = me.rank() == 0;
  const cudaError_t began = captures ? cudaStreamBeginCapture(stream, mode) : cudaSuccess;
  const status met = me.meet();
  const status came_to = call();
  const status met_again = me.meet();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = captures ? cudaStreamEndCapture(stream, &graph) : cudaSuccess;
  if (graph != nullptr) cudaGraphDestroy(graph);
  static_cast<void>(cudaGetLastError());
  TRY_CUDA(began);
  TRY_OK(met);
  TRY_OK(met_again);
  TRY(expect_code(me, came_to, errc::invalid_argument));
  TRY_THAT(came_to.operand == std::string("capture"), sentence(came_to));
  const std::string words = came_to.message;
  TRY_THAT(words.find("a stream is being captured") == 0 || words.find("seen on rank") == 0, words);
  if (survives) TRY_CUDA(ended);
  return "";
}

}  // namespace

TEST_CASE(
    "pool: none is opened and no channel prepared while a stream is being captured; both can be "
    "afterwards") {
  CHECK(on_pool_ranks(2, 1, [](pool_rank& me) -> std::string {
          // Waits for the legacy stream; me.stream does not.
          TRY_CUDA(cudaStreamCreate(&me.other_stream));
          return with_pool(me, small_pool(), {"first"}, [&](auto& pool) -> std::string {
            const auto another = std::make_unique<peer_pool<>>();
            for (const bool blocking : {true, false}) {
              const cudaStream_t stream = blocking ? me.other_stream : me.stream;
              for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                      cudaStreamCaptureModeRelaxed}) {
                const auto refused = [&](const auto& call) -> std::string {
                  const std::string wrong = check_captured(me, stream, mode, blocking, call);
                  return wrong.empty()
                             ? ""
                             : wrong + ", mode " + std::to_string(static_cast<int>(mode)) +
                                   (blocking ? ", blocking" : "");
                };
                TRY(refused([&] { return pool.prepare(me.group, {"second"}); }));
                TRY_THAT(pool.channel_count() == 1, std::to_string(pool.channel_count()));
                TRY(refused([&] { return another->open(me.group, small_pool()); }));
              }
            }
            TRY_OK(another->open(me.group, small_pool()));
            // No other memory was taken for it.
            TRY_THAT(another->memory().kind() == pool.memory().kind(),
                     to_string(another->memory().kind()));
            TRY_OK(another->close(me.group));
            TRY_OK(pool.prepare(me.group, {"second"}));
            me.memory.forget();
            reduce call(me.memory, {{2, 2, 2, 64}}, me.rank());
            return check_some(me, pool.channel("second").value(), call);
          });
        }) == "");
}

// ---- memory -------------------------------------------------------------------------------------

namespace {

/// The calls of CUDA, with the bytes that a rank has.
struct counting_calls : cuda_calls {
  static inline thread_local index_t bytes = 0;
  static inline thread_local int slabs = 0;

  static cudaError_t allocate(void*& data, std::size_t size) noexcept {
    bytes += static_cast<index_t>(size);
    ++slabs;
    return cuda_calls::allocate(data, size);
  }
  static cudaError_t release(void* data) noexcept {
    --slabs;
    return cuda_calls::release(data);
  }
};

}  // namespace

TEST_CASE("pool: bytes_required is what is allocated, for every shape") {
  using memory = basic_peer_access_memory<counting_calls>;
  for (const int ranks : {1, 2, 3, 8}) {
    CHECK(on_pool_ranks(ranks, 1, [&](pool_rank& me) -> std::string {
            for (const pool_capacity& capacity :
                 {pool_capacity{1, 1, 2, 0}, pool_capacity{8, 4, 256, 1 << 20},
                  pool_capacity{5, 11, 66, 300}, pool_capacity{64, 64, 1152}}) {
              pool_options options;
              options.capacity = capacity;
              const auto pool = std::make_unique<peer_pool<memory>>();
              TRY_OK(pool->open(me.group, options));
              TRY_THAT(counting_calls::slabs == 0, "the probe left a slab");
              const auto required =
                  peer_pool<memory>::bytes_required(me.size(), options, pool->blocks());
              TRY_OK(required.why());
              counting_calls::bytes = 0;
              TRY_OK(pool->prepare(me.group, {"a", "b", "c"}));
              TRY_THAT(counting_calls::slabs == 3, std::to_string(counting_calls::slabs));
              TRY_THAT(counting_calls::bytes == 3 * required.value() &&
                           pool->bytes_of_channel() == required.value(),
                       std::to_string(counting_calls::bytes) + " and three times " +
                           std::to_string(required.value()));
              TRY_OK(pool->roll_back(me.group, 1));
              TRY_THAT(counting_calls::slabs == 1, std::to_string(counting_calls::slabs));
              TRY_OK(pool->close(me.group));
              TRY_THAT(counting_calls::slabs == 0, std::to_string(counting_calls::slabs));
            }
            return "";
          }) == "");
  }
}

TEST_CASE("pool: a roll-back gives the memory back, a hundred captures that are thrown away too") {
  for (const int gpus : one_or_two_gpus()) {
    CHECK(
        on_pool_ranks(2, gpus, [](pool_rank& me) -> std::string {
          pool_options options = small_pool();
          options.capacity = {64, 64, 1024, index_t{1} << 20};  // slabs of several MiB
          return with_pool(me, options, {"kept"}, [&](auto& pool) -> std::string {
            me.memory.forget();
            reduce call(me.memory, {{2, 2, 2, 64}}, me.rank());
            call.fill(1);
            const auto throw_away = [&]() -> std::string {
              TRY_OK(pool.prepare(me.group, {"profile", "draft"}));
              const pool_channel channel = pool.channel("profile").value();
              {
                recorded graph;
                TRY(graph.record(me, me.stream, [&] { return call.enqueue(channel, me.stream); }));
                TRY_CUDA(graph.launch(me.stream));
                TRY_CUDA(cudaStreamSynchronize(me.stream));
                TRY_OK(channel.state());
                TRY_OK(me.meet());
              }
              TRY_OK(pool.roll_back(me.group, 1));
              TRY_THAT(pool.channel_count() == 1, std::to_string(pool.channel_count()));
              TRY_THAT(!pool.channel("draft").ok() && pool.channel("kept").ok(), "others");
              return "";
            };
            TRY(throw_away());
            std::size_t before = 0, with = 0, after = 0;
            TRY(free_memory(me, before));
            TRY_OK(pool.prepare(me.group, {"profile", "draft"}));
            TRY(free_memory(me, with));
            const auto two_slabs = static_cast<std::size_t>(2 * pool.bytes_of_channel());
            TRY_THAT(with + two_slabs <= before, "they take no memory");
            TRY_OK(pool.roll_back(me.group, 1));
            TRY(free_memory(me, after));
            TRY_THAT(after == before, std::to_string(before) + " and " + std::to_string(after));
            for (int i = 0; i < 100; ++i) TRY(throw_away());
            TRY(free_memory(me, after));
            TRY_THAT(after >= before, std::to_string(before) + " and " + std::to_string(after));
            TRY(expect_code(me, pool.roll_back(me.group, 2), errc::out_of_range));
            TRY(expect_code(me, pool.roll_back(me.group, me.rank() == 1 ? -1 : 1),
                            errc::out_of_range));
            // The one that was kept is as it was.
            return check_some(me, pool.channel("kept").value(), call);
          });
        }) == "");
  }
}
