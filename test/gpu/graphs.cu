// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The steps of an LSE reduce-scatter in CUDA graphs: all ranks of a group on one stream, messages
// copied from one to the other. Every result is compared with the host's combine of the partials.

#include <headwise/executor/cuda_executor.cuh>
#include <headwise/reference/lse_combine.hpp>
#include <headwise/reference/pack.hpp>
#include <headwise/view/slice.hpp>

#include <support/device.hpp>
#include <support/packed.hpp>
#include <support/random.hpp>
#include <support/scatter.hpp>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

constexpr auto e = log_base::e;
constexpr auto two = log_base::two;
constexpr float infinity = std::numeric_limits<float>::infinity();

/// A graph of kernels and copies alone, whose capture takes no device memory.
class recording : public graph {
 public:
  template <class Work>
  recording(const stream& on, const Work& work) : graph(capture_in_place(on, work)) {
    CHECK(nodes() == kernels() + copies());
  }

 private:
  template <class Work>
  static cudaGraph_t capture_in_place(const stream& on, const Work& work) {
    const std::size_t before = free_memory();
    const cudaGraph_t captured = capture(on, work);
    CHECK(free_memory() == before);
    return captured;
  }
  static std::size_t free_memory() {
    std::size_t available = 0, total = 0;
    REQUIRE_CUDA(cudaMemGetInfo(&available, &total));
    return available;
  }
};

using rows_type = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
using plane_type = layout<dim<axis::token>, dim<axis::head>>;
using counts_type = layout<dim<axis::token>>;

rows_type rows_at(const row_strides& by, index_t tokens, index_t heads, index_t head_dim) {
  return {dim<axis::token>(tokens, by.token), dim<axis::head>(heads, by.head),
          dim<axis::head_dim>(head_dim, by.head_dim)};
}
plane_type plane_at(const row_strides& by, index_t tokens, index_t heads) {
  return {dim<axis::token>(tokens, by.token), dim<axis::head>(heads, by.head)};
}

/// Where the operands of a rank are.
struct placement {
  row_strides rows, lses, output, merged;
};
placement packed_placement(const scatter_shape& shape) {
  return {strides_of(style::packed, shape.tokens, shape.all_heads(), shape.head_dim),
          strides_of(style::packed, shape.tokens, shape.all_heads(), 1),
          strides_of(style::packed, shape.tokens, shape.heads, shape.head_dim),
          strides_of(style::packed, shape.tokens, shape.heads, 1)};
}

/// All ranks of a reduce-scatter of up to capacity.tokens tokens, on one device.
template <class T, log_base Base>
struct loopback {
  struct member {
    memory_pair<T> rows;
    memory_pair<float> lses;
    memory_pair<std::int32_t> counts;
    memory_pair<T> output;
    memory_pair<float> merged;
    device_array<std::byte> workspace;  ///< what is sent, and behind it what is received

    member(const scatter_shape& capacity, const placement& at, const message_format& format)
        : rows(rows_at(at.rows, capacity.tokens, capacity.all_heads(), capacity.head_dim)
                   .span_size()),
          lses(plane_at(at.lses, capacity.tokens, capacity.all_heads()).span_size()),
          counts(capacity.tokens),
          output(
              rows_at(at.output, capacity.tokens, capacity.heads, capacity.head_dim).span_size()),
          merged(plane_at(at.merged, capacity.tokens, capacity.heads).span_size()),
          workspace(2 * message_plan::make<T>(capacity.message(), format).value().total_bytes) {}
  };

  scatter_shape shape;
  placement at;
  message_format format;
  bool overlap = false;  ///< kernels are brought up while those before them run
  std::vector<std::unique_ptr<member>> members;

  explicit loopback(const scatter_shape& capacity, const message_format& which = {})
      : loopback(capacity, packed_placement(capacity), which) {}
  loopback(const scatter_shape& capacity, const placement& where, const message_format& which = {})
      : shape(capacity), at(where), format(which) {
    for (int r = 0; r < shape.ranks; ++r) {
      members.push_back(std::make_unique<member>(shape, at, format));
    }
  }

  rows_type rows_shape() const {
    return rows_at(at.rows, shape.tokens, shape.all_heads(), shape.head_dim);
  }
  plane_type lses_shape() const { return plane_at(at.lses, shape.tokens, shape.all_heads()); }
  rows_type output_shape() const {
    return rows_at(at.output, shape.tokens, shape.heads, shape.head_dim);
  }
  plane_type merged_shape() const { return plane_at(at.merged, shape.tokens, shape.heads); }
  counts_type counts_shape() const { return counts_type(dim<axis::token>(shape.tokens, 1)); }
  member& of(index_t rank) const { return *members[static_cast<std::size_t>(rank)]; }

  /// New partial results for all ranks. `keys(rank, token)` says how many keys there are; rows
  /// without any keep what they hold, with an LSE that is a number like others.
  template <class Keys>
  void renew(random_source& random, const Keys& keys) {
    for (index_t r = 0; r < shape.ranks; ++r) {
      member& one = of(r);
      const view rows(one.rows.host.data(), rows_shape());
      const view lses(one.lses.host.data(), lses_shape());
      for (index_t t = 0; t < shape.tokens; ++t) {
        one.counts.host.data()[t] = static_cast<std::int32_t>(keys(r, t));
        for (index_t h = 0; h < shape.all_heads(); ++h) {
          const bool silent = random.one_in(10);
          lses(t, h) = silent ? -infinity : static_cast<float>(random.real(-8, 8));
          if (silent || keys(r, t) == 0) continue;
          for (index_t d = 0; d < shape.head_dim; ++d) {
            rows(t, h, d) = from_float<T>(static_cast<float>(random.real(-4, 4)));
          }
        }
      }
      upload(one);
    }
  }
  void renew(random_source& random) {
    renew(random, [](index_t, index_t) { return 70; });
  }
  static void upload(member& one) {
    one.rows.upload();
    one.lses.upload();
    one.counts.upload();
  }

  /// Puts the whole call on a stream.
  void enqueue(const stream& on) const {
    const message_plan plan = message_plan::make<T>(shape.message(), format).value();
    const cuda_executor executor{{on, overlap}};
    const auto chunk = static_cast<std::size_t>(plan.peer_pitch);
    for (index_t r = 0; r < shape.ranks; ++r) {
      const member& one = of(r);
      REQUIRE(executor
                  .template pack<Base>(input(one.rows, rows_shape()), input(one.lses, lses_shape()),
                                       plan, one.workspace.data(),
                                       input(one.counts, counts_shape()), r)
                  .ok());
    }
    for (index_t to = 0; to < shape.ranks; ++to) {
      for (index_t from = 0; from < shape.ranks; ++from) {
        if (from == to) continue;
        REQUIRE_CUDA(cudaMemcpyAsync(
            of(to).workspace.data() + plan.total_bytes + from * plan.peer_pitch,
            of(from).workspace.data() + to * plan.peer_pitch, chunk, cudaMemcpyDeviceToDevice, on));
      }
    }
    for (index_t r = 0; r < shape.ranks; ++r) {
      const member& one = of(r);
      const auto own_heads = [&](const auto& all) {
        return slice<axis::head>(all, r * shape.heads, shape.heads).value();
      };
      const auto own = own_heads(input(one.rows, rows_shape()));
      const auto own_lse = own_heads(input(one.lses, lses_shape()));
      const received_shards<T> received{plan, one.workspace.data() + plan.total_bytes};
      REQUIRE(
          executor
              .template lse_combine<Base>(
                  exchanged_shards{received, shard{own, own_lse, input(one.counts, counts_shape())},
                                   static_cast<int>(r)},
                  make_view<memory_space::device>(one.output.device.data(), output_shape()),
                  make_view<memory_space::device>(one.merged.device.data(), merged_shape()), none,
                  nan_policy::empty{})
              .ok());
    }
  }
  template <class Element, class Layout>
  static auto input(const memory_pair<Element>& of, const Layout& shape) {
    return make_view<memory_space::device>(static_cast<const Element*>(of.device.data()), shape);
  }

  void run(const stream& on) const {
    enqueue(on);
    on.wait();
  }

  /// Forgets the results.
  void poison() const {
    for (const auto& one : members) {
      one->output.device.poison();
      one->merged.device.poison();
      one->workspace.poison();
    }
  }
  /// Elements of the results of all ranks that are not what the host combines the partials to, and
  /// whatever else was written.
  index_t wrong() const {
    index_t total = 0;
    for (index_t r = 0; r < shape.ranks; ++r) {
      member& one = of(r);
      expect(r);
      total += one.output.differences() + one.merged.differences() + one.rows.differences() +
               one.lses.differences() + one.counts.differences() + one.workspace.stray_bytes();
    }
    return total;
  }
  /// The result of a rank on the device, by token, head and head_dim, and its merged LSEs.
  std::pair<std::vector<T>, std::vector<float>> result(index_t rank, index_t tokens) const {
    const member& one = of(rank);
    const std::vector<T> output = one.output.device.fetch();
    const std::vector<float> merged = one.merged.device.fetch();
    std::pair<std::vector<T>, std::vector<float>> found;
    for (index_t t = 0; t < tokens; ++t) {
      for (index_t h = 0; h < shape.heads; ++h) {
        found.second.push_back(merged[static_cast<std::size_t>(merged_shape().offset(t, h))]);
        for (index_t d = 0; d < shape.head_dim; ++d) {
          found.first.push_back(output[static_cast<std::size_t>(output_shape().offset(t, h, d))]);
        }
      }
    }
    return found;
  }

 private:
  /// Writes to a rank's host memory what it should get, from all partials as they were made. What
  /// is not the result's is the poison.
  void expect(index_t rank) const {
    rows_operand<T> result(style::packed, shape.tokens, shape.heads, shape.head_dim);
    plane_operand<float> lses(style::packed, shape.tokens, shape.heads);
    const index_t block = shape.tokens * shape.heads;
    std::vector<T> rows(static_cast<std::size_t>(shape.ranks * block * shape.head_dim));
    std::vector<float> row_lses(static_cast<std::size_t>(shape.ranks * block));
    const view all =
        packed_outputs(rows.data(), shape.ranks, shape.tokens, shape.heads, shape.head_dim);
    const view all_lses = packed_lses(row_lses.data(), shape.ranks, shape.tokens, shape.heads);
    for (index_t s = 0; s < shape.ranks; ++s) {
      member& one = of(s);
      const view from(one.rows.host.data(), rows_shape());
      const view from_lses(one.lses.host.data(), lses_shape());
      for (index_t t = 0; t < shape.tokens; ++t) {
        for (index_t h = 0; h < shape.heads; ++h) {
          const index_t head = rank * shape.heads + h;
          all_lses(s, t, h) = one.counts.host.data()[t] == 0 ? -infinity : from_lses(t, head);
          for (index_t d = 0; d < shape.head_dim; ++d) all(s, t, h, d) = from(t, head, d);
        }
      }
    }
    REQUIRE(reference::lse_combine<Base>(gathered_shards{all, all_lses}, result.view(), lses.view())
                .ok());
    member& to = of(rank);
    std::memset(to.output.host.data(), 0xff,
                static_cast<std::size_t>(to.output.host.size()) * sizeof(T));
    std::memset(to.merged.host.data(), 0xff,
                static_cast<std::size_t>(to.merged.host.size()) * sizeof(float));
    fill(view(to.output.host.data(), output_shape()),
         [&](const auto& i) { return result.view()(i[0], i[1], i[2]); });
    fill(view(to.merged.host.data(), merged_shape()),
         [&](const auto& i) { return lses.view()(i[0], i[1]); });
  }
};

/// Eagerly, captured, and replayed with new data: every word each time. With kernels that wait for
/// those before them to end, and with kernels that are brought up before.
template <class T, log_base Base, class Keys>
void check_loopback(loopback<T, Base>& group, random_source& random, const Keys& keys) {
  const index_t ranks = group.shape.ranks;
  CAPTURE(ranks);
  const stream on;
  for (const bool overlap : {false, true}) {
    CAPTURE(overlap);
    group.overlap = overlap;
    group.renew(random, keys);
    group.poison();
    group.run(on);
    CHECK(group.wrong() == 0);
    const recording captured(on, [&] { group.enqueue(on); });
    // A rank of a group of one sends nothing.
    CHECK(captured.kernels() == (ranks > 1 ? 2 * ranks : 1));
    CHECK(captured.copies() == ranks * (ranks - 1));
    for (int replay = 0; replay < 3; ++replay) {
      group.renew(random, keys);
      group.poison();
      captured.replay(on);
      CHECK(group.wrong() == 0);
    }
  }
}

}  // namespace

TEST_CASE("graphs: a reduce-scatter of every size of group, eager and replayed: bf16, base e") {
  random_source random(91);
  for (const int ranks : {1, 2, 3, 6, 8, 16}) {
    for (const lse_placement lse : {lse_placement::plane, lse_placement::inline_bits}) {
      loopback<bf16, e> group(
          {ranks, random.in(1, 4), random.in(1, 3), random.one_of({64, 100, 512})},
          {lse, peer_placement::outermost});
      check_loopback(group, random, [](index_t r, index_t t) { return (r + t) % 3; });
    }
  }
}
TEST_CASE("graphs: a reduce-scatter of every size of group, eager and replayed: fp32, base two") {
  random_source random(92);
  for (const int ranks : {2, 3, 6, 8, 16}) {
    loopback<float, two> group(
        {ranks, random.in(1, 4), random.in(1, 3), random.one_of({8, 33, 512})});
    check_loopback(group, random, [](index_t, index_t) { return 1; });
  }
}

TEST_CASE("H01: a graph outlives a larger call that was made after its capture") {
  random_source random(93);
  const stream on;
  loopback<bf16, e> few({4, 4, 2, 128});
  few.renew(random);
  few.run(on);
  const recording captured(on, [&] { few.enqueue(on); });
  loopback<bf16, e> many({4, 64, 2, 128});
  many.renew(random);
  many.run(on);
  CHECK(many.wrong() == 0);
  few.renew(random);
  few.poison();
  captured.replay(on);
  CHECK(few.wrong() == 0);
  CHECK(many.wrong() == 0);
}

TEST_CASE("H02: graphs of eight rows and of four in the same buffers, replayed in turn") {
  random_source random(94);
  const stream on;
  loopback<bf16, e> group({3, 8, 11, 512});
  const auto with_tokens = [&](index_t tokens) {
    group.shape.tokens = tokens;
    group.poison();
    group.renew(random);
  };
  with_tokens(8);
  group.run(on);
  CHECK(group.wrong() == 0);
  const recording eight(on, [&] { group.enqueue(on); });
  group.shape.tokens = 4;
  const recording four(on, [&] { group.enqueue(on); });
  for (const index_t tokens : {4, 8, 4}) {
    CAPTURE(tokens);
    with_tokens(tokens);
    (tokens == 4 ? four : eight).replay(on);
    CHECK(group.wrong() == 0);
    with_tokens(tokens);
    group.run(on);
    CHECK(group.wrong() == 0);
  }
}

TEST_CASE("H04: counts of keys are read at replay, not at capture") {
  random_source random(95);
  const stream on;
  loopback<bf16, e> group({2, 3, 4, 64});
  index_t keys[2][3] = {{3, 0, 3}, {0, 0, 3}};
  const auto renew = [&] { group.renew(random, [&](index_t r, index_t t) { return keys[r][t]; }); };
  renew();
  group.run(on);
  CHECK(group.wrong() == 0);
  const recording captured(on, [&] { group.enqueue(on); });
  const index_t later[3][2][3] = {
      {{7, 7, 7}, {7, 7, 7}}, {{0, 0, 0}, {0, 0, 0}}, {{0, 7, 0}, {7, 0, 0}}};
  for (const auto& these : later) {
    std::memcpy(keys, these, sizeof keys);
    // The counts alone change first, then the data too.
    for (index_t r = 0; r < 2; ++r) {
      for (index_t t = 0; t < 3; ++t) {
        group.of(r).counts.host.data()[t] = static_cast<std::int32_t>(keys[r][t]);
      }
      group.of(r).counts.upload();
    }
    group.poison();
    captured.replay(on);
    CHECK(group.wrong() == 0);
    renew();
    group.poison();
    captured.replay(on);
    CHECK(group.wrong() == 0);
  }
}

TEST_CASE("H09: every operation is captured on a stream of its own, and replays what it did") {
  random_source random(96);
  const stream on;
  loopback<bf16, e> group({2, 3, 2, 64});
  group.renew(random);
  const message_plan plan = message_plan::make<bf16>(group.shape.message()).value();
  auto& one = group.of(0);
  const auto rows = group.input(one.rows, group.rows_shape());
  const auto lses = group.input(one.lses, group.lses_shape());
  const auto counts = group.input(one.counts, group.counts_shape());
  const cuda_executor executor{cudaStream_t{on}};
  device_array<std::byte> bytes(plan.total_bytes);
  device_array<bf16> copied(rows.span_size());
  const auto check = [&](const auto& work, auto& result) {
    REQUIRE(work().ok());
    on.wait();
    const auto eager = result.fetch();
    const recording captured(on, [&] { REQUIRE(work().ok()); });
    CHECK(captured.kernels() == 1);
    CHECK(captured.copies() == 0);
    result.poison();
    const auto untouched = result.fetch();
    captured.replay(on);
    const auto replayed = result.fetch();
    CHECK(std::memcmp(eager.data(), replayed.data(), eager.size() * sizeof(eager[0])) == 0);
    CHECK(std::memcmp(eager.data(), untouched.data(), eager.size() * sizeof(eager[0])) != 0);
    CHECK(result.stray_bytes() == 0);
  };
  check([&] { return executor.pack<e>(rows, lses, plan, bytes.data(), counts, no_peer); }, bytes);
  check(
      [&] {
        return executor.lse_combine<e>(
            received_shards<bf16>{plan, bytes.data()},
            make_view<memory_space::device>(one.output.device.data(), group.output_shape()),
            make_view<memory_space::device>(one.merged.device.data(), group.merged_shape()), none,
            nan_policy::empty{});
      },
      one.output.device);
  check(
      [&] {
        return executor.materialize(
            rows, make_view<memory_space::device>(copied.data(), group.rows_shape()));
      },
      copied);
  // Not the whole message: the rest stays the poison.
  device_array<std::byte> lse_part(plan.total_bytes);
  check([&] { return executor.pack_lse<e>(lses, plan, lse_part.data(), counts, 1); }, lse_part);
  CHECK(cudaGetLastError() == cudaSuccess);
}

namespace {

/// Three rows in a batch of four whose last row is padding, against the three alone: the keys of
/// the padding row are 0 on every rank, and nothing else was ever written there.
void check_padding_row(random_source& random, index_t keys_of_others) {
  constexpr int ranks = 4;
  const stream on;
  const scatter_shape three_rows{ranks, 3, 2, 128}, four_rows{ranks, 4, 2, 128};
  loopback<bf16, e> alone(three_rows), batch(four_rows);
  batch.renew(random, [&](index_t, index_t t) { return t < 3 ? keys_of_others : 0; });
  const auto copy_rows = [&] {
    for (index_t r = 0; r < ranks; ++r) {
      auto& from = batch.of(r);
      auto& to = alone.of(r);
      std::memcpy(to.rows.host.data(), from.rows.host.data(),
                  static_cast<std::size_t>(to.rows.host.size()) * sizeof(bf16));
      std::memcpy(to.lses.host.data(), from.lses.host.data(),
                  static_cast<std::size_t>(to.lses.host.size()) * sizeof(float));
      std::memcpy(to.counts.host.data(), from.counts.host.data(), 3 * sizeof(std::int32_t));
      alone.upload(to);
    }
  };
  batch.run(on);
  const recording captured(on, [&] { batch.enqueue(on); });
  for (int replay = 0; replay < 3; ++replay) {
    batch.renew(random, [&](index_t, index_t t) { return t < 3 ? keys_of_others : 0; });
    copy_rows();
    batch.poison();
    captured.replay(on);
    alone.run(on);
    CHECK(batch.wrong() == 0);
    CHECK(alone.wrong() == 0);
    for (index_t r = 0; r < ranks; ++r) {
      const auto rows = batch.result(r, 4);
      const auto wanted = alone.result(r, 3);
      const std::vector<bf16> first(rows.first.begin(), rows.first.begin() + 3 * 2 * 128);
      const std::vector<float> first_lse(rows.second.begin(), rows.second.begin() + 3 * 2);
      CHECK(first == wanted.first);
      CHECK(std::memcmp(first_lse.data(), wanted.second.data(), 6 * sizeof(float)) == 0);
      for (const bf16 value : first) CHECK(detail::is_finite(to_float(value)));
      // Row 3.
      for (std::size_t i = 3 * 2 * 128; i < rows.first.size(); ++i) {
        CHECK(rows.first[i] == bf16{0});
      }
      CHECK(rows.second[6] == -infinity);
      CHECK(rows.second[7] == -infinity);
    }
  }
}

}  // namespace

TEST_CASE("H11: three rows padded to a graph of four: the padding row is not read") {
  random_source random(97);
  check_padding_row(random, 1);
}
TEST_CASE("C13: lengths 5, 5, 5 and 0 in a graph of four: row 3 is empty, the others as alone") {
  random_source random(98);
  check_padding_row(random, 5);
}

// ---- parity --------------------------------------------------------------------------------

TEST_CASE("parity 29: supported layouts are taken as they are, and results stay head-major") {
  random_source random(99);
  constexpr index_t tokens = 4, heads = 4, head_dim = 64;
  const row_strides head_major{head_dim, tokens * head_dim, 1}, head_major_lse{1, tokens, 1};
  // zeros(4, 24, 64)[:, :16] with its LSE; then storage (16, 8, 64) transposed, [:4].
  const placement sliced{{24 * 64, 64, 1}, {24, 1, 1}, head_major, head_major_lse};
  const placement major{{64, 8 * 64, 1}, {1, 8, 1}, head_major, head_major_lse};
  CHECK(head_major.head == 256);
  for (const placement& at : {sliced, major}) {
    for (const lse_placement lse : {lse_placement::plane, lse_placement::inline_bits}) {
      loopback<bf16, e> group({4, tokens, heads, head_dim}, at, {lse, peer_placement::outermost});
      // Two kernels a rank and the exchange: no copy in front of them.
      check_loopback(group, random, [](index_t, index_t) { return 70; });
    }
  }
}

namespace {

template <class T, log_base Base, bool Merged>
void check_parity_32(random_source& random) {
  // What a rank packs for its peers, read as if the peers had sent it: shard s of head j is head
  // s * heads + j.
  constexpr index_t ranks = 4, tokens = 7, heads = 2, head_dim = 32, all = ranks * heads;
  memory_pair<T> rows(tokens * all * head_dim), output(heads * tokens * head_dim);
  memory_pair<float> lses(tokens * all), merged(tokens * heads);
  const row_strides by{all * head_dim, head_dim, 1}, lse_by{all, 1, 1};
  // [token, head, head_dim] by name, head-major in memory.
  const rows_type result = rows_at({head_dim, tokens * head_dim, 1}, tokens, heads, head_dim);
  const plane_type result_lse = plane_at({heads, 1, 1}, tokens, heads);
  const layout gathered(dim<axis::rank>(ranks, heads * head_dim),
                        dim<axis::token>(tokens, all * head_dim), dim<axis::head>(heads, head_dim),
                        dim<axis::head_dim>(head_dim, 1));
  const layout gathered_lses(dim<axis::rank>(ranks, heads), dim<axis::token>(tokens, all),
                             dim<axis::head>(heads, 1));
  const gathered_shards expected{view(rows.host.data(), gathered),
                                 view(lses.host.data(), gathered_lses)};
  const auto renew = [&] {
    for (index_t i = 0; i < rows.host.size(); ++i) {
      rows.host.data()[i] = from_float<T>(static_cast<float>(random.real(-3, 3)));
    }
    for (index_t i = 0; i < lses.host.size(); ++i) {
      lses.host.data()[i] = static_cast<float>(random.real(-2, 2));
    }
    rows.upload();
    lses.upload();
  };
  for (const lse_placement lse : {lse_placement::plane, lse_placement::inline_bits}) {
    const message_plan plan =
        message_plan::make<T>({ranks, tokens, heads, head_dim}, {lse, {}}).value();
    const device_array<std::byte> message(plan.total_bytes);
    const stream on;
    const auto merged_lse = [&](auto* memory, auto make) {
      if constexpr (Merged) {
        return make(memory, result_lse);
      } else {
        return none;
      }
    };
    const auto here = [](auto* memory, const auto& shape) { return make_view(memory, shape); };
    const auto there = [](auto* memory, const auto& shape) {
      return make_view<memory_space::device>(memory, shape);
    };
    const auto enqueue = [&] {
      REQUIRE(
          kernel::pack<Base>(
              there(static_cast<const T*>(rows.device.data()), rows_at(by, tokens, all, head_dim)),
              there(static_cast<const float*>(lses.device.data()), plane_at(lse_by, tokens, all)),
              plan, message.data(), cudaStream_t{on})
              .ok());
      REQUIRE(kernel::lse_combine<Base>(received_shards<T>{plan, message.data()},
                                        there(output.device.data(), result), cudaStream_t{on},
                                        merged_lse(merged.device.data(), there))
                  .ok());
    };
    const auto check = [&] {
      REQUIRE(reference::lse_combine<Base>(expected, here(output.host.data(), result),
                                           merged_lse(merged.host.data(), here))
                  .ok());
      CHECK(output.differences() == 0);
      CHECK(merged.differences() == 0);
      CHECK(message.stray_bytes() == 0);
      output.device.poison();
      merged.device.poison();
    };
    renew();
    enqueue();
    on.wait();
    check();
    const recording captured(on, enqueue);
    CHECK(captured.kernels() == 2);
    CHECK(captured.copies() == 0);
    renew();
    captured.replay(on);
    check();
  }
}

}  // namespace

TEST_CASE_TEMPLATE("parity 32: pack, loop back, combine: bases, with and without merged LSE", T,
                   fp16, bf16, float) {
  random_source random(100 + sizeof(T));
  check_parity_32<T, e, false>(random);
  check_parity_32<T, e, true>(random);
  check_parity_32<T, two, false>(random);
  check_parity_32<T, two, true>(random);
}

TEST_CASE("parity 33: a reduce-scatter of head-major operands has a head-major result") {
  // Storage arange(8, 3, 16) on both ranks; the LSEs are equal, so the mean is what both have.
  constexpr index_t tokens = 3, heads = 4, head_dim = 16;
  const placement at{{head_dim, tokens * head_dim, 1},
                     {1, tokens, 1},
                     {head_dim, tokens * head_dim, 1},
                     {1, tokens, 1}};
  loopback<float, two> group({2, tokens, heads, head_dim}, at);
  for (index_t r = 0; r < 2; ++r) {
    auto& one = group.of(r);
    for (index_t i = 0; i < one.rows.host.size(); ++i) {
      one.rows.host.data()[i] = static_cast<float>(i);
    }
    for (index_t i = 0; i < one.lses.host.size(); ++i) one.lses.host.data()[i] = 0.25f;
    for (index_t i = 0; i < tokens; ++i) one.counts.host.data()[i] = 1;
    group.upload(one);
  }
  CHECK(group.output_shape().stride<axis::token>() == 16);
  CHECK(group.output_shape().stride<axis::head>() == 48);
  CHECK(group.output_shape().stride<axis::head_dim>() == 1);
  const stream on;
  group.run(on);
  const recording captured(on, [&] { group.enqueue(on); });
  for (int i = 0; i < 2; ++i) {
    CHECK(group.wrong() == 0);
    for (index_t r = 0; r < 2; ++r) {
      // Its storage is the rank's half of the operand's storage.
      std::vector<float> wanted;
      for (index_t k = 0; k < heads * tokens * head_dim; ++k) {
        wanted.push_back(static_cast<float>(r * heads * tokens * head_dim + k));
      }
      CHECK(group.of(r).output.device.fetch() == wanted);
      CHECK(group.of(r).merged.device.fetch() ==
            std::vector<float>(static_cast<std::size_t>(tokens * heads), 1.25f));
    }
    group.poison();
    captured.replay(on);
  }
}

TEST_CASE(
    "parity 35: one workspace serves calls of several shapes and formats, one after another") {
  random_source random(105);
  const stream on;
  // Room for five tokens with the larger format.
  loopback<bf16, e> group({4, 5, 2, 32}, {lse_placement::plane, peer_placement::outermost});
  for (int i = 0; i < 4; ++i) {
    for (const index_t tokens : {5, 1, 5, 3}) {
      CAPTURE(tokens);
      group.shape.tokens = tokens;
      for (const auto& one : group.members) {
        one->output.device.poison();
        one->merged.device.poison();
      }
      // What the call before has left there is not read.
      group.renew(random, [&](index_t r, index_t) { return i == 0 ? 70 : r; });
      group.run(on);
      CHECK(group.wrong() == 0);
    }
  }
}
