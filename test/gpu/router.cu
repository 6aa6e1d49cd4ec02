// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The router with ranks that are threads and share a GPU, or two: which way a call goes, that both
// ways give the bits of the host, and that no failure of one rank sends it another way than the
// rest. And the tuner, whose table is the same on all ranks.

#include <headwise/collective/router.cuh>
#include <headwise/pool/table_text.hpp>
#include <headwise/pool/tune.cuh>
#include <headwise/reference/lse_combine.hpp>
#include <headwise/transport/in_process_cuda.cuh>

#include <support/gpu_main.hpp>
#include <support/pool.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

using routed = router<in_process_cuda>;

constexpr index_t heads = 11;
constexpr index_t head_dim = 64;
constexpr index_t most_tokens = 12;

pool_options options_for_tests() {
  pool_options options;
  options.capacity = {most_tokens, heads, head_dim * 4};
  options.timeout = std::chrono::seconds(5);
  return options;
}

template <class T>
auto rows_of(T* data, index_t tokens, index_t count, index_t width = head_dim) {
  return make_view(data, packed(extent<axis::token>(tokens), extent<axis::head>(count),
                                extent<axis::head_dim>(width)));
}
template <class T>
auto plane_of(T* data, index_t tokens, index_t count) {
  return make_view(data, packed(extent<axis::token>(tokens), extent<axis::head>(count)));
}

bf16 payload(std::uint64_t seed, index_t rank, index_t token, index_t head, index_t d) {
  return from_float<bf16>(unit_float(mixed(seed, {rank, token, head, d})));
}
/// About one row in eight is empty.
float lse_value(std::uint64_t seed, index_t rank, index_t token, index_t head) {
  const std::uint64_t bits = mixed(seed, {rank, token, head, -1});
  return bits % 8 == 0 ? -detail::infinity() : 8.0f * unit_float(bits);
}

/// A reduce-scatter over a router, and whether it gave the bits of the host.
class reduce_over {
 public:
  reduce_over(pool_rank& me, index_t tokens) : me_(me), tokens_(tokens), all_(heads * me.size()) {
    partial_ = me.memory.take<bf16>("partial_output", tokens * all_ * head_dim);
    lses_ = me.memory.take<float>("partial_lse", tokens * all_);
    output_ = me.memory.take<bf16>("output", tokens * heads * head_dim);
    merged_ = me.memory.take<float>("merged_lse", tokens * heads);
    const message_shape shape{me.size(), tokens, heads, head_dim};
    bytes_ = lse_reduce_scatter_bytes<bf16>(shape).value();
    workspace_ = me.memory.take<std::byte>("workspace", bytes_ + 16);
  }

  auto partial() const { return me_.memory.there(rows_of(partial_, tokens_, all_)); }
  auto lses() const { return me_.memory.there(plane_of(lses_, tokens_, all_)); }
  auto output() const { return me_.memory.there(rows_of(output_, tokens_, heads)); }
  auto merged() const { return me_.memory.there(plane_of(merged_, tokens_, heads)); }
  std::span<std::byte> workspace() const {
    return {me_.memory.there(workspace_), static_cast<std::size_t>(bytes_)};
  }

  status enqueue(const routed& ways, const pool_channel& channel) const {
    return ways.lse_reduce_scatter<log_base::e>(channel, me_.stream, partial(), lses(), output(),
                                                merged(), workspace());
  }
  std::string words(const routed& ways, const pool_channel& channel) const {
    char text[1024];
    const std::size_t length = ways.describe_lse_reduce_scatter<log_base::e>(
        channel, partial(), lses(), output(), merged(), {}, text, sizeof text);
    return length < sizeof text ? text : "too long";
  }
  pool_route way(const routed& ways, const pool_channel& channel) const {
    return ways.route<bf16>(channel, pool_operation::reduce_scatter,
                            {me_.size(), tokens_, heads, head_dim});
  }

  /// New operands on the device, and poison where the results go.
  std::string fill(std::uint64_t seed) {
    seed_ = seed;
    const auto rows = rows_of(partial_, tokens_, all_);
    for (index_t t = 0; t < tokens_; ++t) {
      for (index_t h = 0; h < all_; ++h) {
        plane_of(lses_, tokens_, all_)(t, h) = lse_value(seed, me_.rank(), t, h);
        for (index_t d = 0; d < head_dim; ++d) rows(t, h, d) = payload(seed, me_.rank(), t, h, d);
      }
    }
    TRY_CUDA(me_.memory.upload(me_.stream));
    TRY_CUDA(cudaStreamSynchronize(me_.stream));
    TRY_OK(me_.meet());
    return "";
  }
  /// What the results on the device are not, once the stream has got there.
  std::string check() {
    const index_t block = tokens_ * heads;
    std::vector<bf16> from(static_cast<std::size_t>(me_.size() * block * head_dim));
    std::vector<float> from_lses(static_cast<std::size_t>(me_.size() * block));
    const auto values =
        make_view(from.data(), packed(extent<axis::rank>(me_.size()), extent<axis::token>(tokens_),
                                      extent<axis::head>(heads), extent<axis::head_dim>(head_dim)));
    const auto planes = make_view(
        from_lses.data(), packed(extent<axis::rank>(me_.size()), extent<axis::token>(tokens_),
                                 extent<axis::head>(heads)));
    for (index_t s = 0; s < me_.size(); ++s) {
      for (index_t t = 0; t < tokens_; ++t) {
        for (index_t h = 0; h < heads; ++h) {
          const index_t head = me_.rank() * heads + h;
          planes(s, t, h) = lse_value(seed_, s, t, head);
          for (index_t d = 0; d < head_dim; ++d) values(s, t, h, d) = payload(seed_, s, t, head, d);
        }
      }
    }
    std::vector<bf16> wanted(static_cast<std::size_t>(block * head_dim));
    std::vector<float> wanted_lses(static_cast<std::size_t>(block));
    const gathered_shards shards{values, planes};
    TRY_OK(reference::lse_combine<log_base::e>(shards, rows_of(wanted.data(), tokens_, heads),
                                               plane_of(wanted_lses.data(), tokens_, heads)));
    TRY_CUDA(me_.memory.fetch(me_.stream));
    TRY_CUDA(cudaStreamSynchronize(me_.stream));
    const auto got = me_.memory.fetched(rows_of(output_, tokens_, heads));
    const auto got_lses = me_.memory.fetched(plane_of(merged_, tokens_, heads));
    TRY_THAT(std::memcmp(got.data(), wanted.data(), got.size()) == 0, "the output is another");
    TRY_THAT(std::memcmp(got_lses.data(), wanted_lses.data(), got_lses.size()) == 0,
             "the merged LSE is another");
    return "";
  }

  std::string run(const routed& ways, const pool_channel& channel, std::uint64_t seed) {
    TRY(fill(seed));
    TRY_OK(enqueue(ways, channel));
    TRY_CUDA(cudaStreamSynchronize(me_.stream));
    TRY_OK(channel.size() == me_.size() ? channel.state() : status{});
    TRY(check());
    TRY_OK(me_.meet());
    return "";
  }

 private:
  pool_rank& me_;
  index_t tokens_;
  index_t all_;
  std::uint64_t seed_ = 0;
  bf16* partial_ = nullptr;
  float* lses_ = nullptr;
  bf16* output_ = nullptr;
  float* merged_ = nullptr;
  index_t bytes_ = 0;
  std::byte* workspace_ = nullptr;
};

/// Runs work(rank, router) on ranks with a router that has been opened, and channel "calls" of it.
template <class Work>
std::string over_routers(int ranks, int gpus, const pool_options& pool,
                         const router_options& options, const Work& work) {
  in_process_cuda_group group(ranks, std::chrono::seconds(30));
  return on_pool_ranks(ranks, gpus, [&](pool_rank& me) -> std::string {
    in_process_cuda transport = group.rank(me.rank(), cuda_copy{me.stream}).value();
    const auto ways = std::make_unique<routed>(transport);
    TRY_OK(ways->open(me.group, pool, options));
    TRY_OK(ways->prepare(me.group, {"calls"}));
    const std::string wrong = work(me, *ways);
    const status closed = ways->close(me.group);
    return wrong.empty() && !closed.ok() ? "close: " + sentence(closed) : wrong;
  });
}

bool begins(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

}  // namespace

TEST_CASE("router: J06: with a cap of 8, 8 tokens go over the pool and 9 over the transport") {
  for (const int gpus : one_or_two_gpus()) {
    for (const int ranks : {2, 3, 6, 9}) {
      const std::string wrong = over_routers(
          ranks, gpus, options_for_tests(), {8}, [](pool_rank& me, routed& ways) -> std::string {
            TRY_THAT(ways.has_pool(), sentence(ways.pool_status()));
            const pool_channel channel = ways.channel("calls").value();
            std::uint64_t seed = 100;
            // In any order, and back: the two ways have nothing in common that would get in step.
            for (const index_t tokens : {8, 9, 1, 12, 8, 0, 9}) {
              me.memory.forget();
              reduce_over call(me, tokens);
              const bool pooled = tokens <= 8;
              TRY_THAT(call.way(ways, channel) ==
                           (pooled ? pool_route{carrier::pool, pool_reason::fits}
                                   : pool_route{carrier::transport, pool_reason::many_tokens}),
                       std::to_string(tokens));
              TRY_THAT(begins(call.words(ways, channel),
                              pooled ? "router: over the pool (fits)\nlse_reduce_scatter: "
                                     : "router: over the transport (more tokens than the cap): "),
                       call.words(ways, channel));
              const message_shape shape{me.size(), tokens, heads, head_dim};
              const auto workspace =
                  ways.workspace_bytes<bf16>(channel, pool_operation::reduce_scatter, shape);
              TRY_OK(workspace.why());
              TRY_THAT((workspace.value() == 0) == pooled, std::to_string(workspace.value()));
              TRY(call.run(ways, channel, ++seed));
            }
            return "";
          });
      CHECK(wrong == "");
    }
  }
}

TEST_CASE("router: J05: options that the pool refuses on one rank, and all go on without it") {
  for (const int odd : {0, 1, 2}) {
    in_process_cuda_group group(3, std::chrono::seconds(30));
    const std::string wrong = on_pool_ranks(3, 1, [&](pool_rank& me) -> std::string {
      in_process_cuda transport = group.rank(me.rank(), cuda_copy{me.stream}).value();
      const auto ways = std::make_unique<routed>(transport);
      pool_options options = options_for_tests();
      if (me.rank() == odd) options.timeout = std::chrono::nanoseconds(0);
      TRY_OK(ways->open(me.group, options));
      TRY_THAT(!ways->has_pool(), "there is a pool");
      TRY_THAT(ways->pool_status().code == errc::invalid_argument, sentence(ways->pool_status()));
      TRY_THAT(ways->channel("calls").why().code == errc::invalid_argument, "not prepared yet");
      TRY_OK(ways->prepare(me.group, {"calls", "more"}));
      TRY_THAT(ways->prepare(me.group, {"more"}).code == errc::invalid_argument, "twice");
      TRY_THAT(ways->channel_count() == 2, std::to_string(ways->channel_count()));
      const result<pool_channel> channel = ways->channel("calls");
      TRY_OK(channel.why());
      for (const index_t tokens : {1, 8}) {
        me.memory.forget();
        reduce_over call(me, tokens);
        TRY_THAT(call.way(*ways, channel.value()).reason == pool_reason::no_pool, "the reason");
        TRY_THAT(begins(call.words(*ways, channel.value()),
                        "router: over the transport (no pool: the ranks agreed to do without)\n"
                        "  pool: invalid_argument: "),
                 call.words(*ways, channel.value()));
        TRY(call.run(*ways, channel.value(), 7));
      }
      TRY_OK(ways->roll_back(me.group, 1));
      TRY_THAT(!ways->channel("more").ok(), "it was given back");
      TRY_OK(ways->reset(me.group));
      TRY_OK(ways->close(me.group));
      return "";
    });
    CHECK(wrong == "");
  }
}

TEST_CASE("router: a channel that has failed fails its calls on every rank, until it is reset") {
  const std::string wrong =
      over_routers(3, 1, options_for_tests(), {8}, [](pool_rank& me, routed& ways) -> std::string {
        const pool_channel channel = ways.channel("calls").value();
        {
          // Rank 1 makes another call than the rest.
          reduce_over call(me, me.rank() == 1 ? 3 : 4);
          TRY(call.fill(1));
          TRY_OK(call.enqueue(ways, channel));
          TRY_CUDA(cudaStreamSynchronize(me.stream));
          TRY_THAT(!channel.state().ok(), "nobody has noticed");
          TRY_OK(me.meet());
        }
        me.memory.forget();
        reduce_over few(me, 4);
        reduce_over many(me, 9);
        TRY(few.fill(2));
        for (int again = 0; again < 3; ++again) {
          const status refused = few.enqueue(ways, channel);
          TRY_THAT(refused.code == errc::rank_mismatch || refused.code == errc::poisoned,
                   sentence(refused));
          TRY_THAT(few.way(ways, channel).which == carrier::pool, "it was sent another way");
        }
        TRY_THAT(few.words(ways, channel).find("\n  refused: ") != std::string::npos,
                 few.words(ways, channel));
        // What has nothing to do with the channel goes on.
        TRY(many.fill(3));
        TRY_OK(many.enqueue(ways, channel));
        TRY_CUDA(cudaStreamSynchronize(me.stream));
        TRY(many.check());
        TRY_OK(ways.reset(me.group));
        for (std::uint64_t seed = 4; seed < 8; ++seed) TRY(few.run(ways, channel, seed));
        return "";
      });
  CHECK(wrong == "");
}

TEST_CASE("router: what a pool does not move goes over the transport, and so does an all-to-all") {
  const std::string wrong =
      over_routers(3, 1, options_for_tests(), {}, [](pool_rank& me, routed& ways) -> std::string {
        const pool_channel channel = ways.channel("calls").value();
        constexpr index_t tokens = 4;
        const index_t all = heads * me.size();
        const auto gathers = [&](auto value) -> std::string {
          using T = decltype(value);
          constexpr index_t width = 8;
          me.memory.forget();
          T* const local = me.memory.take<T>("local", tokens * heads * width);
          T* const gathered = me.memory.take<T>("gathered", tokens * all * width);
          const index_t bytes =
              all_gather_heads_bytes<T>({me.size(), tokens, heads, width}).value();
          std::byte* const room = me.memory.take<std::byte>("workspace", bytes);
          const auto at = [&](index_t t, index_t h, index_t d) {
            return static_cast<T>(mixed(9, {t, h, d}));
          };
          const auto from = rows_of(local, tokens, heads, width);
          for (index_t t = 0; t < tokens; ++t) {
            for (index_t h = 0; h < heads; ++h) {
              for (index_t d = 0; d < width; ++d) from(t, h, d) = at(t, me.rank() * heads + h, d);
            }
          }
          TRY_CUDA(me.memory.upload(me.stream));
          TRY_CUDA(cudaStreamSynchronize(me.stream));
          TRY_OK(me.meet());
          const pool_route way =
              ways.route<T>(channel, pool_operation::all_gather, {me.size(), tokens, heads, width});
          TRY_THAT(way.reason == (sizeof(T) == 8 ? pool_reason::element_size : pool_reason::fits),
                   to_string(way.reason));
          TRY_OK(ways.all_gather_heads(channel, me.stream, me.memory.there(from),
                                       me.memory.there(rows_of(gathered, tokens, all, width)),
                                       {me.memory.there(room), static_cast<std::size_t>(bytes)}));
          TRY_CUDA(me.memory.fetch(me.stream));
          TRY_CUDA(cudaStreamSynchronize(me.stream));
          const auto got = me.memory.fetched(rows_of(gathered, tokens, all, width));
          std::vector<T> wanted;
          for (index_t t = 0; t < tokens; ++t) {
            for (index_t h = 0; h < all; ++h) {
              for (index_t d = 0; d < width; ++d) wanted.push_back(at(t, h, d));
            }
          }
          TRY_THAT(std::memcmp(got.data(), wanted.data(), got.size()) == 0, "other heads");
          TRY_OK(me.meet());
          return "";
        };
        TRY(gathers(std::uint64_t{}));
        TRY(gathers(std::uint8_t{}));
        TRY(gathers(std::uint16_t{}));

        me.memory.forget();
        const auto entries = [&](std::int32_t* data) {
          return make_view(data, packed(extent<axis::rank>(me.size()), extent<axis::token>(5)));
        };
        std::int32_t* const sent = me.memory.take<std::int32_t>("send", 5 * me.size());
        std::int32_t* const received = me.memory.take<std::int32_t>("receive", 5 * me.size());
        for (index_t r = 0; r < me.size(); ++r) {
          for (index_t i = 0; i < 5; ++i) {
            entries(sent)(r, i) = static_cast<std::int32_t>(me.rank() * 1000 + r * 10 + i);
          }
        }
        TRY_CUDA(me.memory.upload(me.stream));
        TRY_CUDA(cudaStreamSynchronize(me.stream));
        TRY_OK(ways.all_to_all(me.stream, me.memory.there(entries(sent)),
                               me.memory.there(entries(received)), {}));
        for (index_t r = 0; r < me.size(); ++r) {
          for (index_t i = 0; i < 5; ++i) {
            entries(received)(r, i) = static_cast<std::int32_t>(r * 1000 + me.rank() * 10 + i);
          }
        }
        TRY_CUDA(me.memory.fetch(me.stream));
        TRY_CUDA(cudaStreamSynchronize(me.stream));
        TRY(me.memory.differences());
        return "";
      });
  CHECK(wrong == "");
}

TEST_CASE("router: options that differ, and channels that are none, are refused on all ranks") {
  in_process_cuda_group group(2, std::chrono::seconds(30));
  const std::string wrong = on_pool_ranks(2, 1, [&](pool_rank& me) -> std::string {
    in_process_cuda transport = group.rank(me.rank(), cuda_copy{me.stream}).value();
    const auto ways = std::make_unique<routed>(transport);
    const pool_options pool = options_for_tests();
    TRY_THAT(ways->open(me.group, pool, {me.rank() == 1 ? 9 : 8}).code == errc::rank_mismatch,
             "another cap");
    TRY_THAT(ways->open(me.group, pool, {me.rank() == 1 ? -1 : 8}).code == errc::invalid_argument,
             "a cap below 0");
    TRY_THAT(ways->open(me.group, pool,
                        {8, me.rank() == 1 ? carrier_preference::transport
                                           : carrier_preference::automatic})
                     .code == errc::rank_mismatch,
             "another preference");
    TRY_OK(ways->open(me.group, pool));
    TRY_THAT(ways->open(me.group, pool).code == errc::invalid_argument, "open already");
    TRY_OK(ways->prepare(me.group, {"calls"}));
    reduce_over call(me, 2);
    TRY(call.fill(1));
    const status refused = call.enqueue(*ways, pool_channel{});
    TRY_THAT(sentence(refused) == "invalid_argument: channel: is not of this router's pool",
             sentence(refused));
    TRY(call.run(*ways, ways->channel("calls").value(), 2));
    TRY_OK(ways->close(me.group));
    // Asked for: nothing is opened, and nothing has failed.
    TRY_OK(ways->open(me.group, pool, {8, carrier_preference::transport}));
    TRY_OK(ways->prepare(me.group, {"calls"}));
    TRY_OK(ways->pool_status());
    const pool_channel none_of_a_pool = ways->channel("calls").value();
    TRY_THAT(call.way(*ways, none_of_a_pool).reason == pool_reason::asked_for, "the reason");
    TRY(call.run(*ways, none_of_a_pool, 3));
    TRY_OK(ways->close(me.group));
    return "";
  });
  CHECK(wrong == "");
}

TEST_CASE("tune: one table for all ranks, and a pool that goes on with the one that it had") {
  std::vector<std::string> texts(3);
  const std::string wrong =
      over_routers(3, 1, options_for_tests(), {}, [&](pool_rank& me, routed& ways) -> std::string {
        auto& pool = ways.pool();
        const int channels = pool.channel_count();
        const protocol_table before = pool.channel("calls").value().table();
        tune_options options;
        options.operations = 5;
        options.replays = 5;
        const result<tuned_protocols> tuned = tune(pool, me.group, options);
        TRY_OK(tuned.why());
        // 1, 2, 4, 8 and 12 tokens.
        TRY_THAT(tuned.value().sizes == 5, std::to_string(tuned.value().sizes));
        for (int i = 0; i < tuned.value().sizes; ++i) {
          for (const double taken : tuned.value().reduce_scatter[i].nanoseconds) {
            TRY_THAT(taken > 0.0 && taken < 1e9, std::to_string(taken));
          }
        }
        TRY_THAT(pool.channel_count() == channels, "a channel is left");
        TRY_THAT(pool.channel("calls").value().table() == before, "another table");
        char text[512];
        TRY_THAT(format_protocol_table(tuned.value().table, text, sizeof text) < sizeof text, "");
        texts[static_cast<std::size_t>(me.rank())] = text;
        const result<protocol_table> read = parse_protocol_table(text);
        TRY_OK(read.why());
        TRY_OK(pool.use(me.group, read.value()));
        TRY_THAT(pool.channel("calls").value().table() == read.value(), "not the table in use");
        reduce_over call(me, 12);
        for (std::uint64_t seed = 1; seed < 4; ++seed) {
          TRY(call.run(ways, pool.channel("calls").value(), seed));
        }
        // Another one on one rank is refused on all, and nothing changes.
        const protocol_table odd =
            protocol_table::only(me.rank() == 2 ? protocol::ll : protocol::pull);
        TRY_THAT(pool.use(me.group, odd).code == errc::rank_mismatch, "another table on rank 2");
        TRY_THAT(pool.channel("calls").value().table() == read.value(), "not the table in use");
        options.replays = 65;
        TRY_THAT(tune(pool, me.group, options).why().code == errc::invalid_argument, "replays");
        TRY_THAT(pool.channel_count() == channels, "a channel is left");
        return "";
      });
  CHECK(wrong == "");
  CHECK(texts[0] != "");
  CHECK(texts[0] == texts[1]);
  CHECK(texts[0] == texts[2]);
}

int main(int argc, char** argv) {
  // Before CUDA is there. Streams that share a hardware queue take turns, and a kernel that is
  // loaded when it is first used may wait for one that waits for this rank.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return support::gpu_main(argc, argv);
}
