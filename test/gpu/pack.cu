// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/kernel/pack.cuh>
#include <headwise/reference/pack.hpp>
#include <headwise/view/slice.hpp>

#include <support/device.hpp>
#include <support/random.hpp>
#include <support/scatter.hpp>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

constexpr auto e = log_base::e;
constexpr auto two = log_base::two;
constexpr float infinity = std::numeric_limits<float>::infinity();

constexpr wire_order both_orders[] = {wire_order::token_major, wire_order::head_major};

/// Any bits but the poison, gaps included.
template <class T>
void fill_with_anything(guarded<T>& memory, random_source& random) {
  for (index_t i = 0; i < memory.size(); ++i) {
    memory.data()[i] = element_of_bits<T>(random.bits());
  }
}

// ---- keys ----------------------------------------------------------------------------------

/// Integers along an axis, in host memory and on the device. What lies between them would count as
/// keys.
template <class Count, class Axis>
struct integers {
  using layout_type = layout<dim<Axis>>;

  layout_type shape;
  std::vector<Count> host;
  device_array<Count> device;

  explicit integers(const std::vector<Count>& from, index_t stride = 1)
      : shape(dim<Axis>(static_cast<index_t>(from.size()), stride)),
        host(static_cast<std::size_t>(shape.span_size()), Count{1000}),
        device(shape.span_size()) {
    for (std::size_t i = 0; i < from.size(); ++i)
      host[i * static_cast<std::size_t>(stride)] = from[i];
    device.upload(host);
  }
  auto here() const { return view<const Count, layout_type>(host.data(), shape); }
  auto there() const {
    return make_view<memory_space::device>(static_cast<const Count*>(device.data()), shape);
  }
};

struct all_keys {
  all_keys(random_source&, index_t) {}
  none_t here() const { return none; }
  none_t there() const { return none; }
};

template <class Count>
struct counted_keys {
  integers<Count, axis::token> counts;

  counted_keys(random_source& random, index_t tokens)
      : counts(drawn(random, tokens), random.in(1, 3)) {}
  static std::vector<Count> drawn(random_source& random, index_t count) {
    std::vector<Count> numbers;
    for (index_t i = 0; i < count; ++i) {
      // Of a 64-bit count the low half may be 0.
      constexpr index_t large = sizeof(Count) == 8 ? index_t{1} << 40 : 70;
      numbers.push_back(static_cast<Count>(random.one_of({0, 0, -1, 1, 70, large})));
    }
    return numbers;
  }
  auto here() const { return counts.here(); }
  auto there() const { return counts.there(); }
};

template <class Count>
struct sequence_keys {
  integers<Count, axis::sequence> lengths;
  integers<Count, axis::sequence> query_starts;

  sequence_keys(random_source& random, index_t tokens)
      : sequence_keys(random, tokens, random.in(0, 5)) {}
  sequence_keys(random_source& random, index_t tokens, index_t sequences)
      : lengths(counted_keys<Count>::drawn(random, sequences), random.in(1, 2)),
        query_starts(boundaries(random, tokens, sequences), random.in(1, 2)) {}
  /// Ascending from 0, often equal; the rows behind the last one are padding.
  static std::vector<Count> boundaries(random_source& random, index_t tokens, index_t sequences) {
    std::vector<Count> at{0};
    for (index_t s = 0; s < sequences; ++s) {
      const index_t rest = tokens - static_cast<index_t>(at.back());
      at.push_back(static_cast<Count>(at.back() + static_cast<Count>(random.in(0, lesser(rest)))));
    }
    return at;
  }
  static index_t lesser(index_t rest) { return rest < 2 ? rest : 2; }
  auto here() const { return keys_by_sequence{lengths.here(), query_starts.here()}; }
  auto there() const { return keys_by_sequence{lengths.there(), query_starts.there()}; }
};

// ---- any pack ------------------------------------------------------------------------------

struct pack_run {
  scatter_shape shape;
  style output_style = style::packed;
  style lse_style = style::packed;
  message_format format{};
  wire_order order = wire_order::token_major;
  index_t left_out = no_peer;
  index_t past = 0;  ///< elements that pointers are off their alignment
};

std::string told(const pack_run& run) {
  return std::to_string(run.shape.ranks) + " ranks, " + std::to_string(run.shape.tokens) +
         " tokens, " + std::to_string(run.shape.heads) + " heads, " +
         std::to_string(run.shape.head_dim) + " wide, style " +
         std::to_string(static_cast<int>(run.output_style)) + ", lse style " +
         std::to_string(static_cast<int>(run.lse_style)) + ", " + to_string(run.format.lse) + ", " +
         to_string(run.format.peer) + ", " + to_string(run.order) + ", left out " +
         std::to_string(run.left_out) + ", past " + std::to_string(run.past);
}

/// pack() and pack_lse() of operands of any bits: the messages of the host, padding and operands
/// untouched.
template <class T, class Lse, log_base Base, class Keys, bool HeadMajor = false>
void check_pack(const pack_run& run, random_source& random) {
  const std::string which = told(run);
  INFO(which);
  const scatter_shape& s = run.shape;
  const message_plan plan = message_plan::make<T>(s.message(), run.format, run.order).value();
  rows_operand<T, HeadMajor> rows(run.output_style, s.tokens, s.all_heads(), s.head_dim);
  plane_operand<Lse> lses(run.lse_style, s.tokens, s.all_heads());
  fill_with_anything(rows.memory, random);
  fill_with_anything(lses.memory, random);
  const Keys keys(random, s.tokens);
  const device_array<T> rows_there(rows.memory, run.past);
  const device_array<Lse> lses_there(lses.memory, run.past);
  guarded<std::byte> message(plan.total_bytes), lse_part(plan.total_bytes);
  const device_array<std::byte> message_there(plan.total_bytes), lse_part_there(plan.total_bytes);
  const auto device_rows = on_device<const T>(rows_there.data(), rows.input());
  const auto device_lses = on_device<const Lse>(lses_there.data(), lses.input());

  const stream on;
  REQUIRE(kernel::pack<Base>(device_rows, device_lses, plan, message_there.data(), cudaStream_t{on},
                             keys.there(), run.left_out)
              .ok());
  REQUIRE(kernel::pack_lse<Base>(device_lses, plan, lse_part_there.data(), cudaStream_t{on},
                                 keys.there(), run.left_out)
              .ok());
  REQUIRE(reference::pack<Base>(rows.input(), lses.input(), plan, message.data(), keys.here(),
                                run.left_out)
              .ok());
  reference::pack_lse<Base>(lses.input(), plan, lse_part.data(), keys.here(), run.left_out);
  on.wait();
  CHECK(message_there.differences(message.data()) == 0);
  CHECK(lse_part_there.differences(lse_part.data()) == 0);
  CHECK(rows_there.differences(rows.memory.data()) == 0);
  CHECK(lses_there.differences(lses.memory.data()) == 0);
}

/// Every format, order, peer left out and style of strides, with every head dim; the rest drawn.
void check_all(std::uint64_t seed, void (*check)(const pack_run&, random_source&)) {
  constexpr index_t head_dims[] = {1, 8, 33, 66, 80, 96, 100, 192, 512, 576};
  random_source random(seed);
  std::size_t count = 0;
  for (const message_format& format : all_formats) {
    for (const wire_order order : both_orders) {
      for (const int leave_out : {0, 1, 2}) {
        for (const style which : all_styles) {
          const auto ranks = static_cast<int>(random.one_of({1, 2, 3, 4, 6, 8, 16}));
          const style lse_style = any_style(random);
          const index_t left_out[] = {no_peer, 0, ranks - 1};
          check({{ranks, random.in(0, 5), random.in(1, 3), head_dims[count++ % 10]},
                 which,
                 lse_style,
                 format,
                 order,
                 left_out[leave_out],
                 random.one_in(3) ? random.in(1, 3) : 0},
                random);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("pack kernel: the bits of the host: bf16, LSE in fp32") {
  check_all(41, check_pack<bf16, float, e, all_keys>);
}
TEST_CASE("pack kernel: the bits of the host: fp16, LSE in fp16, base two, counts") {
  check_all(42, check_pack<fp16, fp16, two, counted_keys<std::int32_t>>);
}
TEST_CASE("pack kernel: the bits of the host: fp32, LSE in bf16, head-major, by sequence") {
  check_all(43, check_pack<float, bf16, e, sequence_keys<std::int32_t>, true>);
}
TEST_CASE("pack kernel: the bits of the host: bf16, LSE with its base, counts of 64 bits") {
  check_all(44, check_pack<bf16, lse<two>, two, counted_keys<std::int64_t>>);
}
TEST_CASE("pack kernel: the bits of the host: fp16, LSE in fp32, by sequence in 64 bits") {
  check_all(45, check_pack<fp16, float, e, sequence_keys<std::int64_t>>);
}
TEST_CASE("pack kernel: the bits of the host where rows fill the device") {
  random_source random(46);
  for (const index_t head_dim : {33, 66, 512, 576}) {
    for (const message_format& format : all_formats) {
      for (const wire_order order : both_orders) {
        const pack_run run{
            {8, 300, 2, head_dim}, style::tiled, style::head_major, format, order, 3};
        check_pack<bf16, float, e, all_keys>(run, random);
      }
    }
  }
}

// ---- static types --------------------------------------------------------------------------

namespace {

/// The live ones of the heads that a kernel pads to: [token, head, 512] and their LSEs.
template <class T, index_t Padded>
using padded_rows =
    packed_layout_t<extent<axis::token>, extent<axis::head, Padded>, extent<axis::head_dim, 512>>;
template <index_t Padded>
using padded_lses = packed_layout_t<extent<axis::token>, extent<axis::head, Padded>>;

template <index_t Live, class View>
auto live_heads(const View& all) {
  return slice<axis::head>(all, constant<0>, constant<Live>);
}

/// Both at both places.
template <class T, index_t Padded>
struct padded_operands {
  operand<T, padded_rows<T, Padded>> rows;
  operand<float, padded_lses<Padded>> lses;

  explicit padded_operands(index_t tokens)
      : rows(packed(extent<axis::token>(tokens), extent<axis::head, Padded>(),
                    extent<axis::head_dim, 512>())),
        lses(packed(extent<axis::token>(tokens), extent<axis::head, Padded>())) {}
  void upload() {
    rows.upload();
    lses.upload();
  }
};

template <class T, log_base Base, index_t Live, index_t Padded>
void check_live_heads(random_source& random, int ranks, index_t tokens) {
  padded_operands<T, Padded> of(tokens);
  fill_with_anything(of.rows.host, random);
  fill_with_anything(of.lses.host, random);
  of.upload();
  for (const message_format& format : all_formats) {
    for (const wire_order order : both_orders) {
      const message_plan plan =
          message_plan::make<T>({ranks, tokens, Live / ranks, 512}, format, order).value();
      guarded<std::byte> message(plan.total_bytes);
      const device_array<std::byte> message_there(plan.total_bytes);
      const stream on;
      REQUIRE(kernel::pack<Base>(live_heads<Live>(of.rows.input_there()),
                                 live_heads<Live>(of.lses.input_there()), plan,
                                 message_there.data(), cudaStream_t{on})
                  .ok());
      REQUIRE(reference::pack<Base>(live_heads<Live>(of.rows.input()),
                                    live_heads<Live>(of.lses.input()), plan, message.data())
                  .ok());
      on.wait();
      CHECK(message_there.differences(message.data()) == 0);
    }
  }
}

}  // namespace

TEST_CASE("pack kernel: live heads of a padded buffer, known in the type") {
  random_source random(47);
  for (const index_t tokens : {1, 4, 40}) {
    CAPTURE(tokens);
    check_live_heads<bf16, e, 22, 32>(random, 2, tokens);
    check_live_heads<bf16, e, 22, 32>(random, 11, tokens);
    check_live_heads<float, two, 128, 144>(random, 8, tokens);
  }
}

TEST_CASE("A01: pack kernel: half of the heads of a padded buffer, in one launch") {
  // [4, 32, 512] and [4, 32]: heads 22 to 31 are what the kernel's tile has too many, and NaN.
  constexpr index_t tokens = 4, live = 22, padded = 32, head_dim = 512, ranks = 2, heads = 11;
  padded_operands<bf16, padded> of(tokens);
  fill(live_heads<live>(of.rows.here()),
       [](const auto& at) { return from_float<bf16>(static_cast<float>(32 * at[0] + at[1])); });
  fill(live_heads<live>(of.lses.here()), [](const auto&) { return 0.0f; });
  of.upload();
  const auto output = live_heads<live>(of.rows.input_there());
  const auto lse = live_heads<live>(of.lses.input_there());
  static_assert(decltype(output)::layout_type::static_strides[0] == 16384);
  static_assert(decltype(lse)::layout_type::static_strides[0] == 32);
  for (const message_format& format : all_formats) {
    const message_plan plan =
        message_plan::make<bf16>({ranks, tokens, heads, head_dim}, format).value();
    const device_array<std::byte> message_there(plan.total_bytes);
    const stream on;
    const graph captured(on, [&] {
      REQUIRE(kernel::pack<e>(output, lse, plan, message_there.data(), cudaStream_t{on}).ok());
    });
    CHECK(captured.nodes() == 1);
    CHECK(captured.kernels() == 1);
    captured.replay(on);
    const std::vector<std::byte> message = message_there.fetch();
    index_t wrong = message_there.stray_bytes(), nans = 0;
    for (index_t r = 0; r < ranks; ++r) {
      for (index_t b = 0; b < tokens; ++b) {
        for (index_t j = 0; j < heads; ++j) {
          bf16 row[head_dim];
          std::memcpy(row, message.data() + plan.payload_at(r, b, j), sizeof row);
          for (const bf16 value : row) {
            if (to_float(value) != static_cast<float>(32 * b + heads * r + j)) ++wrong;
            if (detail::is_nan(to_float(value))) ++nans;
          }
          float sent = 1.0f;
          std::memcpy(&sent, message.data() + plan.lse_at(r, b, j), sizeof sent);
          if (!same_bits(sent, 0.0f)) ++wrong;
        }
      }
    }
    CHECK(wrong == 0);
    CHECK(nans == 0);
  }
}

// ---- numbers -------------------------------------------------------------------------------

namespace {

/// The message that a kernel makes of these operands, in host memory.
template <log_base Base, class T, class Lse, class Keys = none_t>
void pack_on_device(rows_operand<T>& rows, plane_operand<Lse>& lses, const message_plan& plan,
                    guarded<std::byte>& message, const Keys& valid = {}) {
  const device_array<T> rows_there(rows.memory);
  const device_array<Lse> lses_there(lses.memory);
  const device_array<std::byte> message_there(plan.total_bytes);
  const stream on;
  REQUIRE(kernel::pack<Base>(on_device<const T>(rows_there.data(), rows.input()),
                             on_device<const Lse>(lses_there.data(), lses.input()), plan,
                             message_there.data(), cudaStream_t{on}, valid)
              .ok());
  on.wait();
  CHECK(message_there.stray_bytes() == 0);
  const std::vector<std::byte> got = message_there.fetch();
  if (!got.empty()) std::memcpy(message.data(), got.data(), got.size());
}

float lse_in(guarded<std::byte>& message, const message_plan& plan, index_t peer, index_t token,
             index_t head) {
  float value = 0;
  std::memcpy(&value, message.data() + plan.lse_at(peer, token, head), sizeof value);
  return value;
}

}  // namespace

TEST_CASE("A12: pack kernel: both places of the peer axis") {
  for (const message_format& format : all_formats) {
    rows_operand<float> rows(style::packed, 1, 4, 8);
    plane_operand<float> lses(style::packed, 1, 4);
    fill(rows.view(), [](const auto& at) { return static_cast<float>(at[1]); });
    fill(lses.view(), [](const auto&) { return 0.0f; });
    const message_plan plan = message_plan::make<float>({2, 1, 2, 8}, format).value();
    guarded<std::byte> message(plan.total_bytes);
    pack_on_device<e>(rows, lses, plan, message);
    // The rows in the order in which they stand in memory.
    const bool outermost = format.peer == peer_placement::outermost;
    const index_t row = outermost ? plan.row_pitch() : plan.peer_pitch;
    const index_t chunk = outermost ? plan.peer_pitch : 2 * row;
    std::vector<float> found;
    for (index_t i = 0; i < 4; ++i) {
      float columns[8];
      std::memcpy(columns, message.data() + i / 2 * chunk + i % 2 * row, sizeof columns);
      found.push_back(columns[0]);
      for (const float column : columns) CHECK(column == columns[0]);
    }
    CHECK(found == (outermost ? std::vector<float>{0, 1, 2, 3} : std::vector<float>{0, 2, 1, 3}));
  }
}

namespace {

template <class Lse>
void check_lse_of_three() {
  for (const message_format& format : all_formats) {
    rows_operand<bf16> rows(style::packed, 1, 2, 1);
    plane_operand<Lse> lses(style::packed, 1, 2);
    fill(rows.view(), [](const auto&) { return from_float<bf16>(1.0f); });
    fill(lses.view(), [](const auto&) { return from_float<Lse>(3.0f); });
    const message_plan plan = message_plan::make<bf16>({2, 1, 1, 1}, format).value();
    guarded<std::byte> message(plan.total_bytes);
    pack_on_device<e>(rows, lses, plan, message);
    for (index_t r = 0; r < 2; ++r) CHECK(lse_in(message, plan, r, 0, 0) == 3.0f);
  }
}

}  // namespace

TEST_CASE("B05: pack kernel: a 16-bit LSE is converted, never read as half of an fp32") {
  check_lse_of_three<bf16>();
  check_lse_of_three<fp16>();
  check_lse_of_three<float>();
}

TEST_CASE("B09: pack kernel: an LSE is read by the strides of its view") {
  // Token stride 64, head stride 1, NaN between.
  operand<float, plane_operand<float>::layout_type> lses(
      {dim<axis::token>(3, 64), dim<axis::head>(2, 1)});
  fill(lses.here(), [](const auto& at) { return static_cast<float>(10 * at[0] + at[1]); });
  lses.upload();
  const message_plan plan = message_plan::make<bf16>({2, 3, 1, 8}).value();
  const device_array<std::byte> message_there(plan.total_bytes);
  const stream on;
  REQUIRE(
      kernel::pack_lse<e>(lses.input_there(), plan, message_there.data(), cudaStream_t{on}).ok());
  on.wait();
  // Exactly six words are written.
  const std::vector<std::byte> message = message_there.fetch();
  index_t written = 0;
  for (std::size_t at = 0; at < message.size(); at += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, message.data() + at, 4);
    written += word != 0xffffffffu ? 1 : 0;
  }
  CHECK(written == 6);
  for (index_t t = 0; t < 3; ++t) {
    for (index_t h = 0; h < 2; ++h) {
      float sent = 0;
      std::memcpy(&sent, message.data() + plan.lse_at(h, t, 0), sizeof sent);
      CHECK(sent == static_cast<float>(10 * t + h));
    }
  }
  CHECK(message_there.stray_bytes() == 0);
}

namespace {

/// What a kernel packed, unpacked by the host, is the two operands again.
template <class T>
void check_round_trip(random_source& random, int ranks, index_t tokens, index_t heads,
                      index_t head_dim) {
  CAPTURE(head_dim);
  for (const message_format& format : all_formats) {
    for (const wire_order order : both_orders) {
      rows_operand<T> rows(style::packed, tokens, ranks * heads, head_dim);
      plane_operand<float> lses(style::packed, tokens, ranks * heads);
      fill_with_anything(rows.memory, random);
      fill_with_anything(lses.memory, random);
      const message_plan plan =
          message_plan::make<T>({ranks, tokens, heads, head_dim}, format, order).value();
      guarded<std::byte> message(plan.total_bytes);
      pack_on_device<e>(rows, lses, plan, message);
      guarded<T> back(rows.memory.size());
      guarded<float> lses_back(lses.memory.size());
      // Where head (rank, head) of the operand was.
      const layout by_rank(dim<axis::rank>(ranks, heads * head_dim),
                           dim<axis::token>(tokens, ranks * heads * head_dim),
                           dim<axis::head>(heads, head_dim), dim<axis::head_dim>(head_dim, 1));
      const layout lses_by_rank(dim<axis::rank>(ranks, heads),
                                dim<axis::token>(tokens, ranks * heads), dim<axis::head>(heads, 1));
      REQUIRE(reference::unpack<e>(message.data(), plan, view(back.data(), by_rank),
                                   view(lses_back.data(), lses_by_rank))
                  .ok());
      index_t wrong = 0;
      for (index_t i = 0; i < back.size(); ++i) {
        wrong += same_bits(back.data()[i], rows.memory.data()[i]) ? 0 : 1;
      }
      for (index_t i = 0; i < lses_back.size(); ++i) {
        wrong += same_bits(lses_back.data()[i], lses.memory.data()[i]) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("B06: pack kernel: round trips equal the two operands, in every format", T, bf16,
                   fp16, float) {
  random_source random(48);
  for (const index_t head_dim : {512, 576, 80, 96, 33, 66, 1}) {
    check_round_trip<T>(random, 4, 3, 2, head_dim);
  }
}
TEST_CASE("G04: pack kernel: rows of any size, multiples of 16 bytes or not") {
  random_source random(49);
  for (const index_t head_dim : {66, 33, 80, 96, 192, 576}) {
    check_round_trip<bf16>(random, 2, 5, 3, head_dim);
  }
}

TEST_CASE("C15: pack kernel: a row of count 0 is sent as empty, whatever LSE its producer wrote") {
  for (const message_format& format : all_formats) {
    rows_operand<fp16> rows(style::packed, 3, 4, 1);
    plane_operand<fp16> lses(style::packed, 3, 4);
    fill(rows.view(), [](const auto&) { return from_float<fp16>(9.0f); });
    fill(lses.view(), [](const auto&) { return from_float<fp16>(3.75f); });
    const integers<std::int32_t, axis::token> counts({5, 0, 1}, 2);
    const message_plan plan = message_plan::make<fp16>({2, 3, 2, 1}, format).value();
    guarded<std::byte> message(plan.total_bytes);
    pack_on_device<two>(rows, lses, plan, message, counts.there());
    for (index_t token = 0; token < 3; ++token) {
      for (index_t head = 0; head < 4; ++head) {
        CHECK(lse_in(message, plan, head / 2, token, head % 2) == (token == 1 ? -infinity : 3.75f));
      }
    }
  }
}

namespace {

/// The LSE that each of six tokens of LSE 1 is sent with.
std::vector<float> sent_by_sequence(const std::vector<std::int64_t>& lengths,
                                    const std::vector<std::int64_t>& query_starts) {
  rows_operand<fp16> rows(style::packed, 6, 2, 512);
  plane_operand<float> lses(style::packed, 6, 2);
  fill(rows.view(), [](const auto&) { return from_float<fp16>(9.0f); });
  fill(lses.view(), [](const auto&) { return 1.0f; });
  const integers<std::int64_t, axis::sequence> length(lengths), start(query_starts);
  const message_plan plan = message_plan::make<fp16>({2, 6, 1, 512}).value();
  guarded<std::byte> message(plan.total_bytes);
  pack_on_device<e>(rows, lses, plan, message, keys_by_sequence{length.there(), start.there()});
  std::vector<float> sent;
  for (index_t token = 0; token < 6; ++token) {
    sent.push_back(lse_in(message, plan, 0, token, 0));
    CHECK(lse_in(message, plan, 1, token, 0) == sent.back());
  }
  return sent;
}

}  // namespace

TEST_CASE("pack kernel: rows of a sequence without keys, and padding rows, are sent as empty") {
  constexpr float none_here = -infinity;
  // Sequence 1 has no query tokens, sequence 2 no keys; token 5 is padding.
  CHECK(sent_by_sequence({3, 4, 0}, {0, 2, 2, 5}) ==
        std::vector<float>{1, 1, none_here, none_here, none_here, none_here});
  CHECK(sent_by_sequence({0, 1, 2}, {0, 2, 4, 6}) ==
        std::vector<float>{none_here, none_here, 1, 1, 1, 1});
  // More than two tokens of one sequence, and none behind the last boundary.
  CHECK(sent_by_sequence({0, 7}, {0, 1, 6}) == std::vector<float>{none_here, 1, 1, 1, 1, 1});
  CHECK(sent_by_sequence({0, 0}, {0, 3, 6}) == std::vector<float>(6, none_here));
  // All rows are padding.
  CHECK(sent_by_sequence({5}, {0, 0}) == std::vector<float>(6, none_here));
}
TEST_CASE("pack kernel: a rank of no sequence at all sends nothing but empty rows") {
  CHECK(sent_by_sequence({}, {0}) == std::vector<float>(6, -infinity));
}

// ---- sizes ---------------------------------------------------------------------------------

TEST_CASE("F06: pack kernel: no count of rows is too many") {
  random_source random(50);
  const auto check_size = check_pack<bf16, float, e, all_keys>;
  for (const index_t tokens : {65535, 65536, 70000}) check_size({{1, tokens, 1, 8}}, random);
  check_size({{8, 1024, 8, 8}}, random);
  check_size({{1, 1024, 64, 8}}, random);
}
TEST_CASE("F06: pack kernel: a million tokens") {
  random_source random(51);
  check_pack<bf16, float, e, all_keys>({{1, 1048576, 1, 8}}, random);
}

TEST_CASE("F08: pack kernel: no count of heads is too many") {
  random_source random(52);
  for (const index_t head_dim : {128, 256, 512}) {
    for (const index_t heads : {64, 65, 96, 97, 128, 200}) {
      for (const int ranks : {1, 2, 4, 5, 8}) {
        if (heads % ranks != 0) continue;
        check_pack<bf16, float, e, all_keys>(
            {{ranks, 2, heads / ranks, head_dim},
             style::packed,
             style::packed,
             {},
             random.one_in(2) ? wire_order::token_major : wire_order::head_major},
            random);
      }
    }
  }
}

namespace {

/// Bytes of the loads that a pack of these rows chooses.
template <class T>
int load_bytes(index_t past) {
  rows_operand<T> rows(style::packed, 2, 4, 512);
  const message_plan plan = message_plan::make<T>({2, 2, 2, 512}).value();
  const device_array<T> memory(rows.memory.size(), past);
  int bytes = 0;
  const status chosen = detail::with_vector<int{sizeof(T)}, 0>(
      detail::pack_alignment(on_device(memory.data(), rows.view()), plan), [&](auto width) {
        bytes = width.value;
        return status{};
      });
  CHECK(chosen.ok());
  return bytes;
}

}  // namespace

TEST_CASE("G01: pack kernel: pointers off the alignment of a vector") {
  random_source random(53);
  for (const index_t past : {0, 1, 2, 3}) {
    CAPTURE(past);
    CHECK(load_bytes<float>(past) == (past == 0 ? 16 : 4));
    for (const message_format& format : all_formats) {
      check_pack<float, bf16, e, sequence_keys<std::int32_t>, true>(
          {{2, 3, 2, 512}, style::packed, style::packed, format, {}, no_peer, past}, random);
    }
  }
  for (const index_t past : {0, 1, 2, 4, 8}) {
    CAPTURE(past);
    CHECK(load_bytes<bf16>(past) == (past % 8 == 0 ? 16 : past % 2 == 0 ? 4 : 2));
    for (const message_format& format : all_formats) {
      check_pack<bf16, float, e, all_keys>(
          {{2, 3, 2, 512}, style::packed, style::packed, format, {}, no_peer, past}, random);
    }
  }
}

// ---- nothing -------------------------------------------------------------------------------

TEST_CASE("J02: pack kernel: no tokens, no heads or no peers: no launch and no error") {
  const stream on;
  const auto check = [&](int ranks, index_t tokens, index_t heads, index_t left_out) {
    const message_plan plan = message_plan::make<bf16>({ranks, tokens, heads, 8}).value();
    const index_t all = ranks * heads;
    const device_array<bf16> rows(64);
    const device_array<float> lses(64);
    const device_array<std::byte> message(plan.total_bytes);
    const auto output = make_view<memory_space::device>(
        static_cast<const bf16*>(rows.data()),
        rows_operand<bf16>::layout_of(style::packed, tokens, all, 8));
    const auto lse = make_view<memory_space::device>(
        static_cast<const float*>(lses.data()),
        plane_operand<float>::layout_of(style::packed, tokens, all));
    const auto pack = [&] {
      CHECK(kernel::pack<e>(output, lse, plan, message.data(), cudaStream_t{on}, none, left_out)
                .ok());
      CHECK(kernel::pack_lse<e>(lse, plan, message.data(), cudaStream_t{on}, none, left_out).ok());
    };
    pack();
    on.wait();
    const graph captured(on, pack);
    CHECK(captured.nodes() == 0);
    captured.replay(on);
    CHECK(cudaGetLastError() == cudaSuccess);
    const std::vector<std::byte> got = message.fetch();
    CHECK(got == std::vector<std::byte>(got.size(), std::byte{0xff}));
    CHECK(message.stray_bytes() == 0);
  };
  check(2, 0, 3, no_peer);
  check(2, 0, 3, 1);
  check(2, 5, 0, no_peer);
  check(2, index_t{1} << 40, 0, no_peer);
  check(1, 2, 2, 0);
}
