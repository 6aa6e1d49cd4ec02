// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/collective/agree.hpp>
#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/all_to_all.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/plan/kv_shard.hpp>

#include <support/random.hpp>
#include <support/scatter.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

using namespace headwise;
using namespace support;
using namespace std::chrono_literals;

namespace {

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define UNDER_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(UNDER_SANITIZER)
constexpr int share = 8;  // a sanitizer costs about as much
#else
constexpr int share = 1;
#endif

/// Random numbers that each rank can draw alike, or of its own, without a word between them.
class draws {
 public:
  explicit draws(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t bits() { return mixed(seed_, {++count_}); }
  index_t in(index_t low, index_t high) {
    return low + static_cast<index_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::uint64_t seed_;
  index_t count_ = 0;
};

/// Now and then a rank dawdles, some of the time long enough for the others to go to sleep.
void dawdle(draws& own) {
  const index_t kind = own.in(0, 63);
  if (kind < 4) std::this_thread::yield();
  if (kind == 4) std::this_thread::sleep_for(std::chrono::microseconds(own.in(1, 60)));
}

status wrong(const char* what, index_t operation, index_t count) {
  return failure(errc::invalid_argument, what, "wrong words (expected) in operation (got)",
                 operation, count);
}

/// Words of up to 256 KiB per peer, of other sizes from pair to pair; each carries the number of
/// the operation.
status exchange_words(in_process& me, std::uint64_t seed, index_t operation, draws& shared) {
  const auto size = static_cast<std::size_t>(me.size());
  const bool large = shared.in(0, 199) == 0;
  const index_t most = large ? (256 << 10) / 4 : 64;
  const auto words = [&](index_t from, index_t to) {
    const auto x = static_cast<index_t>(mixed(seed, {operation, from, to}) % 1000);
    return x < 100 ? 0 : 4 + x * (most - 4) / 1000;
  };
  const auto word = [&](index_t from, index_t to, index_t i) {
    return static_cast<std::uint32_t>(operation * 0x9e3779b1 + from * 0x85ebca6b + to * 0xc2b2ae35 +
                                      i);
  };
  std::vector<std::vector<std::uint32_t>> out(size);
  std::vector<std::vector<std::uint32_t>> in(size);
  std::vector<send_chunk> send(size);
  std::vector<receive_chunk> receive(size);
  for (std::size_t peer = 0; peer < size; ++peer) {
    const auto p = static_cast<index_t>(peer);
    out[peer].resize(static_cast<std::size_t>(words(me.rank(), p)));
    in[peer].assign(static_cast<std::size_t>(words(p, me.rank())), 0xffffffffu);
    for (std::size_t i = 0; i < out[peer].size(); ++i) {
      out[peer][i] = word(me.rank(), p, static_cast<index_t>(i));
    }
    send[peer] = {out[peer].data(), static_cast<index_t>(4 * out[peer].size())};
    receive[peer] = {in[peer].data(), static_cast<index_t>(4 * in[peer].size())};
  }
  const status done = me.exchange(send, receive, {"words", {{"operation", operation}}});
  if (!done.ok()) return done;
  index_t stale = 0;
  for (std::size_t peer = 0; peer < size; ++peer) {
    for (std::size_t i = 0; i < in[peer].size(); ++i) {
      stale += in[peer][i] == word(static_cast<index_t>(peer), me.rank(), static_cast<index_t>(i))
                   ? 0
                   : 1;
    }
    // What was sent may be overwritten as soon as the call returns.
    std::fill(out[peer].begin(), out[peer].end(), 0xdeadbeefu);
  }
  return stale == 0 ? status{} : wrong("words", operation, stale);
}

/// One of the verbs, with operands of random shape and strides; every element compared.
template <class T>
status any_verb(in_process& me, std::uint64_t seed, index_t operation, draws& shared, draws& own) {
  const index_t ranks = me.size();
  const index_t tokens = shared.in(0, 3);
  const index_t heads = shared.in(1, 3);
  const index_t head_dim = shared.in(1, 9);
  const auto any_style = [&] { return all_styles[own.in(0, 5)]; };
  const auto preference =
      own.in(0, 1) == 0 ? route_preference::automatic : route_preference::packed;
  const index_t kind = shared.in(0, 3);
  if (kind == 0) {
    const message_format format{static_cast<lse_placement>(shared.in(0, 1)),
                                static_cast<peer_placement>(shared.in(0, 1))};
    const scatter_problem<T> problem{{me.size(), tokens, heads, head_dim},
                                     mixed(seed, {operation})};
    const auto outcome =
        scatter_once(me, problem, any_style(), any_style(), any_style(), {format, preference});
    if (!outcome.came_to.ok()) return outcome.came_to;
    return outcome.good() ? status{} : wrong("reduce_scatter", operation, outcome.wrong_rows);
  }
  if (kind == 1) {
    rows_operand<T> local(any_style(), tokens, heads, head_dim);
    rows_operand<T> gathered(any_style(), tokens, heads * ranks, head_dim);
    const auto value = [&](index_t rank, index_t token, index_t head, index_t d) {
      return element_of_bits<T>(mixed(seed, {operation, rank, token, head, d}));
    };
    fill(local.view(), [&](const auto& at) { return value(me.rank(), at[0], at[1], at[2]); });
    guarded<std::byte> room(all_gather_heads_bytes<T>({ranks, tokens, heads, head_dim}).value());
    const status done = all_gather_heads(host_executor{}, me, local.view(), gathered.view(),
                                         whole(room), {preference});
    if (!done.ok()) return done;
    const index_t bad = wrong_elements(gathered.view(), [&](const auto& at) {
      return value(at[1] / heads, at[0], at[1] % heads, at[2]);
    });
    const index_t stray = gathered.memory.stray_bytes(gathered.view());
    return bad + stray == 0 ? status{} : wrong("gather", operation, bad);
  }
  if (kind == 2) {
    using entries = layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>>;
    const auto any_layout = [&] {
      const index_t gap = own.in(0, 2);
      return entries{dim<axis::rank>(ranks, tokens * (heads + gap) + own.in(0, 3)),
                     dim<axis::token>(tokens, heads + gap), dim<axis::head>(heads, 1)};
    };
    const entries send_layout = any_layout();
    const entries receive_layout = any_layout();
    guarded<T> sent(send_layout.span_size());
    guarded<T> received(receive_layout.span_size());
    const view<T, entries> send(sent.data(), send_layout);
    const view<T, entries> receive(received.data(), receive_layout);
    const auto value = [&](index_t from, index_t to, index_t token, index_t head) {
      return element_of_bits<T>(mixed(seed, {operation, from, to, token, head}));
    };
    fill(send, [&](const auto& at) { return value(me.rank(), at[0], at[1], at[2]); });
    guarded<std::byte> room(all_to_all_bytes(send, receive).value());
    const status done = all_to_all(host_executor{}, me, send, receive, whole(room));
    if (!done.ok()) return done;
    const index_t bad = wrong_elements(
        receive, [&](const auto& at) { return value(at[0], me.rank(), at[1], at[2]); });
    return bad + received.stray_bytes(receive) == 0 ? status{}
                                                    : wrong("all_to_all", operation, bad);
  }
  const index_t dissenter = shared.in(-1, ranks - 1);
  const result<bool> decided = agree(me, me.rank() != dissenter);
  if (!decided.ok()) return decided.why();
  return decided.value() == (dissenter < 0) ? me.barrier() : wrong("agree", operation, 1);
}

}  // namespace

TEST_CASE("J08: 20,000 exchanges in a row, of changing sizes, never hand over a stale word") {
  random_source random("exchanges in a row", 20000 / share);
  struct run_of {
    int ranks;
    index_t operations;
  };
  for (const run_of& run : {run_of{2, 12000}, {3, 4000}, {5, 2400}, {9, 1000}, {16, 600}}) {
    const std::uint64_t seed = random.bits();
    const auto came_to = on_ranks(run.ranks, [&](in_process& me) {
      draws shared(seed);
      draws own(mixed(seed, {-7, me.rank()}));
      for (index_t operation = 0; operation < run.operations / share; ++operation) {
        dawdle(own);
        const status done = exchange_words(me, seed, operation, shared);
        if (!done.ok()) return done;
      }
      return status{};
    });
    INFO(run.ranks << " ranks: " << sentence(first_failure(came_to)));
    CHECK(first_failure(came_to).ok());
  }
}

TEST_CASE(
    "collectives: thousands of verbs in a row, of any shape and strides, get every element right") {
  random_source random("verbs in a row", 6000 / share);
  struct run_of {
    int ranks;
    index_t operations;
  };
  for (const run_of& run :
       {run_of{1, 1000}, {2, 2000}, {3, 1400}, {4, 800}, {7, 500}, {12, 200}, {16, 100}}) {
    const std::uint64_t seed = random.bits();
    const auto came_to = on_ranks(run.ranks, [&](in_process& me) {
      draws shared(seed);
      draws own(mixed(seed, {-8, me.rank()}));
      for (index_t operation = 0; operation < run.operations / share; ++operation) {
        dawdle(own);
        const index_t type = shared.in(0, 2);
        const status done = type == 0   ? any_verb<bf16>(me, seed, operation, shared, own)
                            : type == 1 ? any_verb<fp16>(me, seed, operation, shared, own)
                                        : any_verb<float>(me, seed, operation, shared, own);
        if (!done.ok()) return done;
      }
      return status{};
    });
    INFO(run.ranks << " ranks: " << sentence(first_failure(came_to)));
    CHECK(first_failure(came_to).ok());
  }
}

TEST_CASE("collectives: whatever one rank does wrong, all ranks succeed or none, and all go on") {
  random_source random("faults", 3 * 400 / share);
  for (const int ranks : {2, 4, 7}) {
    const std::uint64_t seed = random.bits();
    in_process_group group(ranks, 30ms);
    struct history {
      std::vector<status> came_to;
      index_t resets = 0;
    };
    const auto histories = on_ranks(group, ranks, [&](in_process& me) {
      history mine;
      draws shared(seed);
      draws own(mixed(seed, {-9, me.rank()}));
      for (index_t operation = 0; operation < 400 / share; ++operation) {
        const index_t fault = shared.in(0, 19);
        const bool at_fault = me.rank() == shared.in(0, ranks - 1);
        // Both draws have been made by all, so that they stay in step.
        const bool shared_draws_of_exchange = shared.in(0, 1) == 0;
        draws sizes(mixed(seed, {operation, shared_draws_of_exchange ? 1 : 2}));
        status done{};
        if (at_fault && fault == 0) {
          std::this_thread::sleep_for(45ms);  // late
          done = exchange_words(me, seed, operation, sizes);
        } else if (at_fault && fault == 1) {
          done = me.refuse(failure(errc::unsupported, "odd", ""));
        } else if (at_fault && fault == 2) {
          done = exchange_words(me, seed, operation + 1, sizes);  // another call
        } else if (at_fault && fault == 3) {
          done = me.barrier();
        } else if (at_fault && fault == 4) {
          done = me.reset();  // out of the blue
          mine.came_to.push_back(failure(errc::poisoned, "", ""));
          if (done.ok()) continue;
        } else if (at_fault && fault == 5) {
          done = me.exchange({}, std::array<receive_chunk, 1>{}, {"words", {}});  // malformed
        } else {
          done = exchange_words(me, seed, operation, sizes);
        }
        if (!(at_fault && fault == 4)) mine.came_to.push_back(done);
        if (done.code != errc::timed_out && done.code != errc::poisoned) continue;
        while (!me.reset().ok()) {
        }
        ++mine.resets;
      }
      return mine;
    });
    index_t torn = 0;
    index_t failed = 0;
    index_t wrong_words = 0;
    for (std::size_t operation = 0; operation < histories[0].came_to.size(); ++operation) {
      int succeeded = 0;
      for (const history& one : histories) {
        const status& came_to = one.came_to.at(operation);
        succeeded += came_to.ok() ? 1 : 0;
        wrong_words += std::string(came_to.message) == "wrong words (expected) in operation (got)";
      }
      torn += succeeded != 0 && succeeded != ranks ? 1 : 0;
      failed += succeeded == 0 ? 1 : 0;
    }
    INFO(ranks << " ranks, " << failed << " failed operations, " << histories[0].resets
               << " resets");
    CHECK(torn == 0);
    CHECK(wrong_words == 0);
    CHECK(failed > 0);
    CHECK(failed < static_cast<index_t>(histories[0].came_to.size()));
  }
}

TEST_CASE("collectives: two groups at once change nothing of each other's bits") {
  random_source random("two groups at once", 40 / share);
  for (int i = 0; i < 40 / share; ++i) {
    const int ranks = static_cast<int>(random.in(2, 6));
    const scatter_problem<bf16> problem{{ranks, random.in(1, 5), random.in(1, 4), random.in(1, 40)},
                                        random.bits()};
    const scatter_problem<bf16> other{problem.shape, random.bits()};
    const auto expected = on_ranks(ranks, [&](in_process& me) {
      return scatter_once(me, problem, style::tiled, style::tiled);
    });
    REQUIRE(first_wrong(expected) == "");
    in_process_group first(ranks);
    in_process_group second(ranks);
    std::vector<scatter_outcome> of_second;
    std::thread beside([&] {
      of_second = on_ranks(second, ranks, [&](in_process& me) {
        scatter_outcome last;
        for (int k = 0; k < 3; ++k) last = scatter_once(me, other, style::packed, style::packed);
        return last;
      });
    });
    std::vector<scatter_outcome> again;
    for (int k = 0; k < 3; ++k) {
      again = on_ranks(first, ranks, [&](in_process& me) {
        return scatter_once(me, problem, style::tiled, style::packed);
      });
      CHECK(same_results(again, expected));
    }
    beside.join();
    CHECK(first_wrong(of_second) == "");
  }
}

TEST_CASE("collectives: the bits of a row are those of one combine over the gathered partials") {
  random_source random("one arithmetic", 60 / share);
  for (int i = 0; i < 60 / share; ++i) {
    const int ranks = static_cast<int>(random.in(1, 16));
    const scatter_problem<fp16, log_base::two> problem{
        {ranks, random.in(1, 4), random.in(1, 3), random.in(1, 33)}, random.bits()};
    const auto outcomes = on_ranks(ranks, [&](in_process& me) {
      return scatter_once(me, problem, all_styles[me.rank() % 6], all_styles[me.rank() / 3 % 6]);
    });
    CHECK(first_wrong(outcomes) == "");
    // All partials side by side in one memory, and no transport.
    const index_t all = problem.shape.all_heads();
    const index_t tokens = problem.shape.tokens;
    const index_t head_dim = problem.shape.head_dim;
    std::vector<fp16> outputs(static_cast<std::size_t>(ranks * tokens * all * head_dim));
    std::vector<float> lses(static_cast<std::size_t>(ranks * tokens * all));
    const view gathered{outputs.data(),
                        packed(extent<axis::rank>(ranks), extent<axis::token>(tokens),
                               extent<axis::head>(all), extent<axis::head_dim>(head_dim))};
    const view gathered_lse{
        lses.data(),
        packed(extent<axis::rank>(ranks), extent<axis::token>(tokens), extent<axis::head>(all))};
    fill(gathered, [&](const auto& at) { return problem.output(at[0], at[1], at[2], at[3]); });
    fill(gathered_lse, [&](const auto& at) { return problem.lse(at[0], at[1], at[2]); });
    for (int r = 0; r < ranks; ++r) {
      rows_operand<fp16> output(style::packed, tokens, problem.shape.heads, head_dim);
      plane_operand<float> merged(style::packed, tokens, problem.shape.heads);
      const index_t first = r * problem.shape.heads;
      const gathered_shards shards{
          slice<axis::head>(gathered, first, problem.shape.heads).value(),
          slice<axis::head>(gathered_lse, first, problem.shape.heads).value()};
      REQUIRE(reference::lse_combine<log_base::two>(shards, output.view(), merged.view()).ok());
      CHECK(bits_of(output) == outcomes[static_cast<std::size_t>(r)].output);
      CHECK(bits_of(merged) == outcomes[static_cast<std::size_t>(r)].merged);
    }
  }
}

namespace {

/// Attention of one head over some keys, in float64: logits and values are given.
struct attention {
  double lse = -std::numeric_limits<double>::infinity();
  std::vector<double> output;
  std::vector<double> magnitude;  // sum of p |v|
};
template <class Keys, class Logit, class Value>
attention attend(const Keys& keys, index_t head_dim, Logit logit, Value value) {
  attention result;
  result.output.assign(static_cast<std::size_t>(head_dim), 0.0);
  result.magnitude = result.output;
  if (keys.empty()) return result;
  double highest = -std::numeric_limits<double>::infinity();
  for (const index_t key : keys) highest = std::max(highest, logit(key));
  double sum = 0;
  for (const index_t key : keys) sum += std::exp(logit(key) - highest);
  result.lse = highest + std::log(sum);
  for (const index_t key : keys) {
    const double p = std::exp(logit(key) - result.lse);
    for (index_t d = 0; d < head_dim; ++d) {
      result.output[static_cast<std::size_t>(d)] += p * value(key, d);
      result.magnitude[static_cast<std::size_t>(d)] += p * std::fabs(value(key, d));
    }
  }
  return result;
}

/// How much of its bound the worst element used, over all ranks of one random decode step.
template <class T>
double sharded_attention(random_source& random) {
  const int ranks = static_cast<int>(random.in(1, 16));
  const interleaving split{ranks, random.one_of({1, 2, 16, 64})};
  const scatter_shape shape{ranks, random.in(1, 4), random.in(1, 2), random.in(1, 16)};
  const std::uint64_t seed = random.bits();
  std::vector<index_t> lengths;
  for (index_t token = 0; token < shape.tokens; ++token) {
    lengths.push_back(random.one_of({0, 1, 2, ranks - 1, ranks, 17, 63, 64, 65, 300}));
  }
  const auto logit = [&](index_t token, index_t head) {
    return [=](index_t key) {
      return 9.0 * double{unit_float(mixed(seed, {1, token, head, key}))};
    };
  };
  const auto value = [&](index_t token) {
    return [=](index_t key, index_t d) {
      return 3.0 * double{unit_float(mixed(seed, {2, token, key, d}))};
    };
  };
  std::vector<std::vector<double>> used(static_cast<std::size_t>(ranks), {0.0});
  const auto came_to = on_ranks(ranks, [&](in_process& me) {
    scatter_operands<T> mine(shape, style::tiled, style::tiled);
    const kv_shard shard{split, me.rank()};
    for (index_t token = 0; token < shape.tokens; ++token) {
      std::vector<index_t> keys;
      const index_t length = lengths[static_cast<std::size_t>(token)];
      for (index_t local = 0; local < shard.local_length(length); ++local) {
        keys.push_back(shard.global(local));
      }
      for (index_t head = 0; head < shape.all_heads(); ++head) {
        const attention part = attend(keys, shape.head_dim, logit(token, head), value(token));
        mine.partial_lse.view()(token, head) = static_cast<float>(part.lse);
        if (keys.empty()) continue;  // never written
        for (index_t d = 0; d < shape.head_dim; ++d) {
          mine.partial_output.view()(token, head, d) =
              from_float<T>(static_cast<float>(part.output[static_cast<std::size_t>(d)]));
        }
      }
    }
    auto room = scatter_workspace<T>(shape);
    const status done = lse_reduce_scatter<log_base::e>(
        host_executor{}, me, mine.partial_output.view(), mine.partial_lse.view(),
        mine.output.view(), mine.merged.view(), whole(room));
    if (!done.ok()) return done;

    double& worst = used[static_cast<std::size_t>(me.rank())][0];
    for (index_t token = 0; token < shape.tokens; ++token) {
      std::vector<index_t> keys(static_cast<std::size_t>(lengths[static_cast<std::size_t>(token)]));
      for (std::size_t k = 0; k < keys.size(); ++k) keys[k] = static_cast<index_t>(k);
      for (index_t h = 0; h < shape.heads; ++h) {
        const index_t head = me.rank() * shape.heads + h;
        const attention whole_row = attend(keys, shape.head_dim, logit(token, head), value(token));
        const float merged = mine.merged.view()(token, h);
        if (keys.empty()) {
          if (merged != -std::numeric_limits<float>::infinity()) worst = 1e9;
        } else {
          // An LSE on its way is an fp32, and so is the merged one.
          const double rounded = std::fabs(whole_row.lse) + 12.0;
          worst = std::max(worst,
                           std::fabs(double{merged} - whole_row.lse) /
                               (lse_bound(log_base::e, ranks, whole_row.lse) + 0x1p-24 * rounded));
        }
        for (index_t d = 0; d < shape.head_dim; ++d) {
          const auto at = static_cast<std::size_t>(d);
          const double wanted = whole_row.output[at];
          // The combine's bound, the rounding of the partials to T, and of their LSEs to fp32
          // (which moves a weight by its absolute error; logits are within 9, a length adds 6 at
          // most).
          const double magnitude = whole_row.magnitude[at];
          const double bound = combine_bound<T>(ranks, wanted, magnitude, 3.0) +
                               (unit_roundoff<T> + (1 + 4 * 15.0) * 0x1p-24) * magnitude +
                               subnormal_roundoff<T>;
          const double got = double{to_float(mine.output.view()(token, h, d))};
          worst = std::max(worst, std::fabs(got - wanted) / bound);
        }
      }
    }
    const index_t stray = mine.output.memory.stray_bytes(mine.output.view());
    return stray == 0 ? status{} : failure(errc::invalid_argument, "test", "stray", stray, 0);
  });
  CHECK(first_failure(came_to).ok());
  double worst = 0;
  for (const auto& one : used) worst = std::max(worst, one[0]);
  return worst;
}

}  // namespace

TEST_CASE_TEMPLATE("collectives: shard-then-combine is unsharded softmax, to the bound", T, float,
                   fp16, bf16) {
  const int iterations = 150 / share;
  random_source random("shard-then-combine", iterations);
  double worst = 0;
  for (int i = 0; i < iterations; ++i) worst = std::max(worst, sharded_attention<T>(random));
  std::printf("  worst element: %.3f of the bound (%s)\n", worst, to_string(element_kind_of<T>));
  CHECK(worst <= 1.0);
}
