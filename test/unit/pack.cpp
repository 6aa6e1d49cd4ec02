// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/reference/pack.hpp>
#include <headwise/view/slice.hpp>

#include <support/guarded.hpp>
#include <support/packed.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

// Counts what the program allocates, for the tests that say that nothing is. Not inlined, or g++
// sees a free() of what it knows to come from operator new.
namespace {
std::atomic<long> allocations = 0;
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size != 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
// The default of this one asks ASan's allocator where it replaces the functions of the language.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

using namespace headwise;
using support::guarded;
using support::packed_lse;
using support::packed_lses;
using support::packed_output;
using support::packed_outputs;
using support::same_bits;
using support::wrong_elements;

namespace {

constexpr auto e = log_base::e;
constexpr index_t dyn = dynamic_extent;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

constexpr message_format formats[] = {
    {lse_placement::plane, peer_placement::outermost},
    {lse_placement::inline_bits, peer_placement::outermost},
    {lse_placement::plane, peer_placement::inside_heads},
    {lse_placement::inline_bits, peer_placement::inside_heads},
};

template <class T>
message_plan made(const message_shape& shape, const message_format& format = {},
                  wire_order order = wire_order::token_major) {
  const auto plan = message_plan::make<T>(shape, format, order);
  REQUIRE(plan.ok());
  return plan.value();
}

template <class T>
T element_at(const std::byte* message, index_t at) {
  T element;
  std::memcpy(&element, message + at, sizeof element);
  return element;
}

/// Distinct bits for (token, head, head_dim), never the poison's.
template <class T>
T numbered(index_t token, index_t head, index_t d) {
  const auto bits = static_cast<std::uint64_t>((token * 131 + head) * 977 + d) * 2654435761u;
  return support::element_of_bits<T>(bits >> 8);
}
float numbered_lse(index_t token, index_t head) {
  return static_cast<float>(token * 100 + head) + 0.125f;
}

TEST_CASE("A01: half of the heads of a padded buffer is packed without a copy or an allocation") {
  // [4, 32, 512] and [4, 32]: heads 22 to 31 are what the kernel's tile has too many, and NaN.
  constexpr index_t tokens = 4, live = 22, padded = 32, head_dim = 512, ranks = 2, heads = 11;
  guarded<bf16> output_memory(tokens * padded * head_dim);
  guarded<float> lse_memory(tokens * padded);
  const auto output = slice<axis::head>(
      view(output_memory.data(), packed(extent<axis::token>(tokens), extent<axis::head, padded>(),
                                        extent<axis::head_dim, head_dim>())),
      constant<0>, constant<live>);
  const auto lse = slice<axis::head>(
      view(lse_memory.data(), packed(extent<axis::token>(tokens), extent<axis::head, padded>())),
      constant<0>, constant<live>);
  static_assert(decltype(output)::layout_type::static_strides[0] == 16384);
  static_assert(decltype(lse)::layout_type::static_strides[0] == 32);
  CHECK(output.stride<axis::head>() == 512);
  support::fill(output, [](const auto& at) {
    return from_float<bf16>(static_cast<float>(32 * at[0] + at[1]));
  });
  support::fill(lse, [](const auto&) { return 0.0f; });

  for (const message_format& format : formats) {
    const message_plan plan = made<bf16>({ranks, tokens, heads, head_dim}, format);
    guarded<std::byte> message(plan.total_bytes);
    const long before = allocations;
    const status packed_ok = reference::pack<e>(output, lse, plan, message.data());
    const long allocated = allocations - before;
    REQUIRE(packed_ok.ok());
    CHECK(allocated == 0);
    index_t wrong = 0, nans = 0;
    for (index_t r = 0; r < ranks; ++r) {
      for (index_t b = 0; b < tokens; ++b) {
        for (index_t j = 0; j < heads; ++j) {
          const float row = static_cast<float>(32 * b + heads * r + j);
          for (index_t d = 0; d < head_dim; ++d) {
            const auto got =
                to_float(element_at<bf16>(message.data(), plan.payload_at(r, b, j) + 2 * d));
            if (got != row) ++wrong;
            if (detail::is_nan(got)) ++nans;
          }
          if (element_at<float>(message.data(), plan.lse_at(r, b, j)) != 0.0f) ++wrong;
        }
      }
    }
    CHECK(wrong == 0);
    CHECK(nans == 0);
    CHECK(message.stray_bytes(
              view(message.data(), layout(dim<axis::slot, dyn, 1>(plan.total_bytes)))) == 0);
  }
}

/// Packs the partial result of each rank and gives each rank the shards that are meant for it:
/// the exchange of a reduce-scatter, on buffers of one process.
template <class T, class Output, class Lse>
std::vector<std::vector<std::byte>> exchanged(const std::vector<Output>& outputs,
                                              const std::vector<Lse>& lses,
                                              const message_plan& plan) {
  const auto ranks = static_cast<std::size_t>(plan.shape.ranks);
  const auto chunk = static_cast<std::size_t>(plan.peer_pitch);
  std::vector<std::vector<std::byte>> received(
      ranks, std::vector<std::byte>(static_cast<std::size_t>(plan.total_bytes)));
  for (std::size_t from = 0; from < ranks; ++from) {
    std::vector<std::byte> sent(static_cast<std::size_t>(plan.total_bytes));
    REQUIRE(reference::pack<e>(outputs[from], lses[from], plan, sent.data()).ok());
    for (std::size_t to = 0; to < ranks; ++to) {
      std::memcpy(received[to].data() + from * chunk, sent.data() + to * chunk, chunk);
    }
  }
  return received;
}

TEST_CASE("A05: a column-major operand is scattered by rows, and summed from strided shards") {
  // [[1, 2], [3, 4]] on both ranks, its first axis scattered: stored 1 3 2 4.
  float storage[2][4] = {{1, 3, 2, 4}, {1, 3, 2, 4}};
  float lse_storage[2] = {0, 0};
  using column_major =
      view<float, layout<dim<axis::token, 1, 4>, dim<axis::head, 2, 1>, dim<axis::head_dim, 2, 2>>>;
  const std::vector<column_major> outputs{column_major(storage[0]), column_major(storage[1])};
  const auto lse = packed_lse(lse_storage, 1, 2);
  const message_plan plan = made<float>({2, 1, 1, 2});
  const auto received = exchanged<float>(outputs, std::vector{lse, lse}, plan);
  const float expected[2][2] = {{2, 4}, {6, 8}};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    // Shards 7 apart, their columns 3 apart, guarded between.
    guarded<float> memory(11);
    guarded<float> lses(2);
    const view<float, layout<dim<axis::rank, 2, 7>, dim<axis::token, 1, 0>, dim<axis::head, 1, 0>,
                             dim<axis::head_dim, 2, 3>>>
        shards(memory.data());
    REQUIRE(
        reference::unpack<e>(received[rank].data(), plan, shards, packed_lses(lses.data(), 2, 1, 1))
            .ok());
    CHECK(memory.stray_bytes(shards) == 0);
    for (index_t d = 0; d < 2; ++d) {
      CHECK(shards(0, 0, 0, d) + shards(1, 0, 0, d) == expected[rank][d]);
    }
  }
}

TEST_CASE("A07: a sum of shards goes back through the view of the original memory") {
  // Ones, stride 3, on both ranks.
  constexpr index_t count = 4;
  guarded<float> storage[2] = {guarded<float>(10), guarded<float>(10)};
  using every_third =
      view<float,
           layout<dim<axis::token, 1, 0>, dim<axis::head, 1, 0>, dim<axis::head_dim, count, 3>>>;
  float lse_storage = 0;
  const auto lse = packed_lse(&lse_storage, 1, 1);
  const message_plan plan = made<float>({1, 1, 1, count});
  guarded<float> arrived[2] = {guarded<float>(10), guarded<float>(10)};
  for (int rank = 0; rank < 2; ++rank) {
    const every_third mine(storage[rank].data());
    support::fill(mine, [](const auto&) { return 1.0f; });
    guarded<std::byte> message(plan.total_bytes);
    REQUIRE(reference::pack<e>(mine, lse, plan, message.data()).ok());
    const view<float, layout<dim<axis::rank, 1, 0>, dim<axis::token, 1, 0>, dim<axis::head, 1, 0>,
                             dim<axis::head_dim, count, 3>>>
        gapped(arrived[rank].data());
    float lse_out = nan;
    REQUIRE(
        reference::unpack<e>(message.data(), plan, gapped, packed_lses(&lse_out, 1, 1, 1)).ok());
    CHECK(arrived[rank].stray_bytes(gapped) == 0);
  }
  for (int rank = 0; rank < 2; ++rank) {
    float* const original = storage[rank].data();
    const every_third mine(original);
    for (index_t i = 0; i < count; ++i) {
      mine(0, 0, i) = arrived[0].data()[3 * i] + arrived[1].data()[3 * i];
    }
    for (index_t i = 0; i < count; ++i) CHECK(original[3 * i] == 2.0f);
    CHECK(storage[rank].stray_bytes(mine) == 0);
  }
}

/// The heads in the order in which their rows stand in a message, by a plan of either placement.
std::vector<float> rows_in_memory(const message_format& format) {
  constexpr index_t ranks = 2, heads = 2, head_dim = 8;
  float memory[4 * 8];
  float lses[4] = {};
  const auto output = packed_output(memory, 1, 4, 8);
  support::fill(output, [](const auto& at) { return static_cast<float>(at[1]); });
  const message_plan plan = made<float>({ranks, 1, heads, head_dim}, format);
  std::vector<std::byte> message(static_cast<std::size_t>(plan.total_bytes) + 16);
  void* aligned = message.data();
  std::size_t space = message.size();
  aligned = std::align(16, static_cast<std::size_t>(plan.total_bytes), aligned, space);
  auto* const bytes = static_cast<std::byte*>(aligned);
  REQUIRE(reference::pack<e>(output, packed_lse(lses, 1, 4), plan, bytes).ok());
  std::vector<float> rows;
  const index_t row = format.peer == peer_placement::outermost ? plan.row_pitch() : plan.peer_pitch;
  const index_t chunk = format.peer == peer_placement::outermost ? plan.peer_pitch : 2 * row;
  for (index_t i = 0; i < 4; ++i) {
    const index_t at = i / 2 * chunk + i % 2 * row;
    rows.push_back(element_at<float>(bytes, at));
    for (index_t d = 1; d < head_dim; ++d) {
      CHECK(element_at<float>(bytes, at + 4 * d) == rows.back());
    }
  }
  return rows;
}

TEST_CASE("A12: one packer serves both places of the peer axis, and neither needs a copy before") {
  for (const lse_placement lse : {lse_placement::plane, lse_placement::inline_bits}) {
    CHECK(rows_in_memory({lse, peer_placement::outermost}) == std::vector<float>{0, 1, 2, 3});
    CHECK(rows_in_memory({lse, peer_placement::inside_heads}) == std::vector<float>{0, 2, 1, 3});
  }
  // As views of the caller's own memory: both orders are there without moving anything.
  float memory[4 * 8];
  const auto output = view(memory, packed(extent<axis::token, 1>(), extent<axis::head, 4>(),
                                          extent<axis::head_dim, 8>()));
  support::fill(output, [](const auto& at) { return static_cast<float>(at[1]); });
  const auto parts = split<axis::head, axis::rank, axis::head>(output, constant<2>);
  const auto outer = permute<axis::rank, axis::token, axis::head, axis::head_dim>(parts);
  const auto inner = permute<axis::token, axis::head, axis::rank, axis::head_dim>(parts);
  CHECK(outer.data() == memory);
  CHECK(inner.data() == memory);
  std::vector<float> outer_rows, inner_rows;
  for (index_t i = 0; i < 2; ++i) {
    for (index_t j = 0; j < 2; ++j) {
      outer_rows.push_back(outer(i, 0, j, 7));
      inner_rows.push_back(inner(0, i, j, 7));
    }
  }
  CHECK(outer_rows == std::vector<float>{0, 1, 2, 3});
  CHECK(inner_rows == std::vector<float>{0, 2, 1, 3});
}

template <class T>
float lse_after_a_message(T stored) {
  bf16 row[1] = {from_float<bf16>(1.0f)};
  T lse[1] = {stored};
  float back = nan;
  bf16 row_back[1];
  for (const message_format& format : formats) {
    const message_plan plan = made<bf16>({1, 1, 1, 1}, format);
    guarded<std::byte> message(plan.total_bytes);
    REQUIRE(
        reference::pack<e>(packed_output(row, 1, 1, 1), packed_lse(lse, 1, 1), plan, message.data())
            .ok());
    back = nan;
    REQUIRE(reference::unpack<e>(message.data(), plan, packed_outputs(row_back, 1, 1, 1, 1),
                                 packed_lses(&back, 1, 1, 1))
                .ok());
    CHECK(row_back[0] == row[0]);
  }
  return back;
}

TEST_CASE("B05: a 16-bit LSE is converted, never read as half of an fp32") {
  CHECK(from_float<bf16>(3.0f).bits == 0x4040);
  CHECK(lse_after_a_message(from_float<bf16>(3.0f)) == 3.0f);
  CHECK(lse_after_a_message(from_float<fp16>(3.0f)) == 3.0f);
  CHECK(lse_after_a_message(3.0f) == 3.0f);
  CHECK(lse_after_a_message(lse<e>{3.0f}) == 3.0f);
  CHECK(lse_after_a_message(from_float<bf16>(-infinity)) == -infinity);
  // Two neighbours of 16 bits must not become one number of 32.
  bf16 lses[2] = {from_float<bf16>(3.0f), from_float<bf16>(3.0f)};
  bf16 rows[2] = {};
  const message_plan plan = made<bf16>({2, 1, 1, 1});
  guarded<std::byte> message(plan.total_bytes);
  REQUIRE(
      reference::pack<e>(packed_output(rows, 1, 2, 1), packed_lse(lses, 1, 2), plan, message.data())
          .ok());
  for (index_t r = 0; r < 2; ++r) {
    CHECK(element_at<float>(message.data(), plan.lse_at(r, 0, 0)) == 3.0f);
  }
}

/// Every element and every LSE of a message in all formats, and the way back.
template <class T>
void check_round_trip(index_t ranks, index_t tokens, index_t heads, index_t head_dim) {
  const index_t all_heads = ranks * heads;
  guarded<T> output_memory(tokens * all_heads * head_dim);
  guarded<float> lse_memory(tokens * all_heads);
  const auto output = packed_output(output_memory.data(), tokens, all_heads, head_dim);
  const auto lse = packed_lse(lse_memory.data(), tokens, all_heads);
  support::fill(output, [](const auto& at) { return numbered<T>(at[0], at[1], at[2]); });
  support::fill(lse, [](const auto& at) { return numbered_lse(at[0], at[1]); });
  for (const message_format& format : formats) {
    for (const wire_order order : {wire_order::token_major, wire_order::head_major}) {
      const message_plan plan = made<T>({ranks, tokens, heads, head_dim}, format, order);
      guarded<std::byte> message(plan.total_bytes);
      REQUIRE(reference::pack<e>(output, lse, plan, message.data()).ok());
      CHECK(message.stray_bytes(
                view(message.data(), layout(dim<axis::slot, dyn, 1>(plan.total_bytes)))) == 0);
      guarded<T> back_memory(tokens * all_heads * head_dim);
      guarded<float> lse_back_memory(tokens * all_heads);
      const auto back = packed_outputs(back_memory.data(), ranks, tokens, heads, head_dim);
      const auto lse_back = packed_lses(lse_back_memory.data(), ranks, tokens, heads);
      REQUIRE(reference::unpack<e>(message.data(), plan, back, lse_back).ok());
      CHECK(wrong_elements(back, [&](const auto& at) {
              return numbered<T>(at[1], at[0] * heads + at[2], at[3]);
            }) == 0);
      CHECK(wrong_elements(lse_back, [&](const auto& at) {
              return numbered_lse(at[1], at[0] * heads + at[2]);
            }) == 0);
      CHECK(back_memory.stray_bytes(back) == 0);
      CHECK(lse_back_memory.stray_bytes(lse_back) == 0);
    }
  }
}

TEST_CASE("B06: packed round trips of any head dim equal the two operands, in every format") {
  for (const index_t head_dim : {512, 576, 80, 96, 33, 66, 1}) {
    CAPTURE(head_dim);
    check_round_trip<bf16>(4, 3, 2, head_dim);
    check_round_trip<fp16>(2, 3, 2, head_dim);
    check_round_trip<float>(3, 3, 2, head_dim);
  }
  // fp8 moves as bytes: into rows of 580, with four bytes of something else behind each.
  guarded<fp8_e4m3> from(3 * 2 * 576);
  guarded<fp8_e4m3> to(3 * 2 * 580);
  const auto source = packed_output(from.data(), 3, 2, 576);
  const auto target = slice<axis::head_dim>(packed_output(to.data(), 3, 2, 580), 0, 576);
  REQUIRE(target.ok());
  const auto value = [](const auto& at) { return numbered<fp8_e4m3>(at[0], at[1], at[2]); };
  support::fill(source, value);
  REQUIRE(reference::materialize(source, target.value()).ok());
  CHECK(wrong_elements(target.value(), value) == 0);
  CHECK(to.stray_bytes(target.value()) == 0);
}

TEST_CASE("an LSE travels bit for bit, infinities and NaN payloads too") {
  const std::uint32_t patterns[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00001,
                                    0xffaaaaaa, 0x7fffffff, 0x00000001, 0x0000ffff, 0xffff0000};
  constexpr index_t heads = 10;
  float lses[heads];
  for (std::size_t i = 0; i < heads; ++i) std::memcpy(&lses[i], &patterns[i], 4);
  bf16 rows[heads] = {};
  for (const message_format& format : formats) {
    const message_plan plan = made<bf16>({5, 1, 2, 1}, format);
    guarded<std::byte> message(plan.total_bytes);
    REQUIRE(reference::pack<e>(packed_output(rows, 1, heads, 1), packed_lse(lses, 1, heads), plan,
                               message.data())
                .ok());
    for (index_t head = 0; head < heads; ++head) {
      const auto bits =
          element_at<std::uint32_t>(message.data(), plan.lse_at(head / 2, 0, head % 2));
      CHECK(bits == patterns[head]);
    }
    if (format.lse == lse_placement::inline_bits) {
      // Low half first, as the engines that use this format read it.
      const index_t at = plan.lse_at(3, 0, 0);
      CHECK(element_at<std::uint16_t>(message.data(), at) == 0xffff);
      CHECK(element_at<std::uint16_t>(message.data(), at + 2) == 0x7fff);
    }
    float back[heads];
    bf16 rows_back[heads];
    REQUIRE(reference::unpack<e>(message.data(), plan, packed_outputs(rows_back, 5, 1, 2, 1),
                                 packed_lses(back, 5, 1, 2))
                .ok());
    CHECK(std::memcmp(back, lses, sizeof back) == 0);
  }
}

TEST_CASE("C15: a row of valid count 0 is sent as empty, whatever LSE its producer wrote") {
  constexpr index_t tokens = 3, heads = 4;
  float rows[tokens * heads];
  float lses[tokens * heads];
  for (float& l : lses) l = 3.7f;
  for (float& value : rows) value = 9.0f;
  const auto output = packed_output(rows, tokens, heads, 1);
  const message_plan plan = made<float>({2, tokens, 2, 1});
  const auto check = [&](const auto& valid) {
    guarded<std::byte> message(plan.total_bytes);
    REQUIRE(reference::pack<e>(output, packed_lse(lses, tokens, heads), plan, message.data(), valid)
                .ok());
    for (index_t token = 0; token < tokens; ++token) {
      for (index_t head = 0; head < heads; ++head) {
        const float sent =
            element_at<float>(message.data(), plan.lse_at(head / 2, token, head % 2));
        CHECK(sent == (token == 1 ? -infinity : 3.7f));
      }
    }
  };
  const std::int32_t counts[tokens] = {5, 0, 1};
  check(view(counts, packed(extent<axis::token, tokens>())));
  // Of any integer type, at any stride.
  const std::uint8_t spread[2 * tokens - 1] = {5, 9, 0, 9, 1};
  check(view<const std::uint8_t, layout<dim<axis::token, tokens, 2>>>(spread));
}

TEST_CASE("parity 29: head-sliced and head-major operands make the same messages") {
  // zeros(4, 24, 64)[:, :16] with its LSE, and storage (16, 8, 64) transposed, [:4].
  constexpr index_t tokens = 4, heads = 16, head_dim = 64, ranks = 4;
  guarded<bf16> sliced_memory(tokens * 24 * head_dim);
  guarded<float> sliced_lse_memory(tokens * 24);
  guarded<bf16> major_memory(heads * 8 * head_dim);
  guarded<float> major_lse_memory(heads * 8);
  const auto sliced = slice<axis::head>(
      view(sliced_memory.data(), packed(extent<axis::token>(tokens), extent<axis::head, 24>(),
                                        extent<axis::head_dim, head_dim>())),
      constant<0>, constant<heads>);
  const auto sliced_lse = slice<axis::head>(
      view(sliced_lse_memory.data(), packed(extent<axis::token>(tokens), extent<axis::head, 24>())),
      constant<0>, constant<heads>);
  const auto major = slice<axis::token>(
      view(major_memory.data(), packed(extent<axis::head, heads>(), extent<axis::token, 8>(),
                                       extent<axis::head_dim, head_dim>())),
      constant<0>, constant<tokens>);
  const auto major_lse = slice<axis::token>(
      view(major_lse_memory.data(), packed(extent<axis::head, heads>(), extent<axis::token, 8>())),
      constant<0>, constant<tokens>);
  static_assert(decltype(major)::layout_type::static_strides[0] == 8 * head_dim);
  support::fill(sliced, [](const auto& at) { return numbered<bf16>(at[0], at[1], at[2]); });
  support::fill(sliced_lse, [](const auto& at) { return numbered_lse(at[0], at[1]); });
  support::fill(major, [](const auto& at) { return numbered<bf16>(at[1], at[0], at[2]); });
  support::fill(major_lse, [](const auto& at) { return numbered_lse(at[1], at[0]); });
  for (const message_format& format : formats) {
    for (const wire_order order : {wire_order::token_major, wire_order::head_major}) {
      const message_plan plan = made<bf16>({ranks, tokens, heads / ranks, head_dim}, format, order);
      guarded<std::byte> first(plan.total_bytes);
      guarded<std::byte> second(plan.total_bytes);
      REQUIRE(reference::pack<e>(sliced, sliced_lse, plan, first.data()).ok());
      REQUIRE(reference::pack<e>(major, major_lse, plan, second.data()).ok());
      CHECK(std::memcmp(first.data(), second.data(), static_cast<std::size_t>(plan.total_bytes)) ==
            0);
      CHECK(same_bits(element_at<bf16>(first.data(), plan.payload_at(2, 3, 1) + 2 * 63),
                      numbered<bf16>(3, 9, 63)));
    }
  }
}

TEST_CASE("a refused pack or unpack writes nothing and says why") {
  constexpr index_t tokens = 3, heads = 4, head_dim = 8;
  guarded<bf16> rows(tokens * heads * head_dim);
  guarded<float> lses(tokens * heads);
  const auto output = packed_output(rows.data(), tokens, heads, head_dim);
  const auto lse = packed_lse(lses.data(), tokens, heads);
  const message_plan plan = made<bf16>({2, tokens, 2, head_dim});
  guarded<std::byte> message(plan.total_bytes);
  const auto expect = [&](const status& why, errc code, const char* operand, const char* axis,
                          index_t got, index_t expected) {
    CHECK(why.code == code);
    CHECK(std::string(why.operand) == operand);
    CHECK(std::string(why.axis) == axis);
    CHECK(why.got == got);
    CHECK(why.expected == expected);
    CHECK(message.stray_bytes() == 0);
    CHECK(rows.stray_bytes() == 0);
    CHECK(lses.stray_bytes() == 0);
  };
  const auto pack = [&](const auto& what, const auto& its_lse, const message_plan& by,
                        std::byte* to) { return reference::pack<e>(what, its_lse, by, to); };
  std::byte* const to = message.data();
  expect(pack(output, packed_lse(lses.data(), tokens, 3), plan, to), errc::shape_mismatch,
         "partial_lse", "head", 3, 4);
  expect(pack(output, packed_lse(lses.data(), 2, heads), plan, to), errc::shape_mismatch,
         "partial_lse", "token", 2, 3);
  expect(pack(output, lse, made<bf16>({3, tokens, 1, head_dim}), to), errc::shape_mismatch,
         "partial_output", "head", 4, 3);
  expect(pack(output, lse, made<bf16>({2, 2, 2, head_dim}), to), errc::shape_mismatch,
         "partial_output", "token", 3, 2);
  expect(pack(output, lse, made<bf16>({2, tokens, 2, 16}), to), errc::shape_mismatch,
         "partial_output", "head_dim", 8, 16);
  expect(pack(output, lse, made<float>({2, tokens, 2, head_dim}), to), errc::shape_mismatch,
         "partial_output", "", 2, 4);
  expect(pack(output, lse, plan, to + 8), errc::misaligned, "message", "", 8, 0);
  expect(pack(output, lse, plan, nullptr), errc::invalid_argument, "message", "", 0, 0);
  message_plan forged = plan;
  forged.shape.ranks = 0;
  expect(pack(output, lse, forged, to), errc::unsupported, "ranks", "", 0, max_ranks);
  const std::int32_t counts[2] = {1, 1};
  expect(reference::pack<e>(output, lse, plan, to, view(counts, packed(extent<axis::token, 2>()))),
         errc::shape_mismatch, "valid", "token", 2, 3);
  expect(pack(packed_output(static_cast<bf16*>(nullptr), tokens, heads, head_dim), lse, plan, to),
         errc::invalid_argument, "partial_output", "", 0, 0);
  expect(pack(output, packed_lse(static_cast<float*>(nullptr), tokens, heads), plan, to),
         errc::invalid_argument, "partial_lse", "", 0, 0);

  // The other way. Poison is a message as good as any.
  const auto back = packed_outputs(rows.data(), 2, tokens, 2, head_dim);
  const auto lse_back = packed_lses(lses.data(), 2, tokens, 2);
  const auto unpack = [&](const auto& what, const auto& its_lse, const message_plan& by,
                          const std::byte* from) {
    return reference::unpack<e>(from, by, what, its_lse);
  };
  expect(unpack(back, packed_lses(lses.data(), 2, tokens, 1), plan, to), errc::shape_mismatch,
         "partial_lse", "head", 1, 2);
  expect(unpack(back, packed_lses(lses.data(), 3, tokens, 1), plan, to), errc::shape_mismatch,
         "partial_lse", "rank", 3, 2);
  expect(unpack(packed_outputs(rows.data(), 1, tokens, 2, head_dim),
                packed_lses(lses.data(), 1, tokens, 2), plan, to),
         errc::shape_mismatch, "output", "rank", 1, 2);
  expect(unpack(packed_outputs(rows.data(), 2, tokens, 2, 4), lse_back, plan, to),
         errc::shape_mismatch, "output", "head_dim", 4, 8);
  expect(unpack(back, lse_back, plan, to + 4), errc::misaligned, "message", "", 4, 0);
  const view<bf16, layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>>
      sharing(rows.data(), {dim<axis::rank>(2, 8), dim<axis::token>(tokens, 8),
                            dim<axis::head>(2, 24), dim<axis::head_dim>(head_dim, 1)});
  expect(unpack(sharing, lse_back, plan, to), errc::overlap, "output", "token", 8, 16);
}

TEST_CASE("B=0, and no heads of whatever many tokens, is a message of nothing") {
  const auto check = [](index_t tokens, index_t heads) {
    const message_plan plan = made<bf16>({2, tokens, heads, 64});
    CHECK(plan.total_bytes == 0);
    const auto output = packed_output(static_cast<const bf16*>(nullptr), tokens, 2 * heads, 64);
    const auto lse = packed_lse(static_cast<const float*>(nullptr), tokens, 2 * heads);
    CHECK(reference::pack<e>(output, lse, plan, nullptr).ok());
    CHECK(reference::unpack<e>(nullptr, plan,
                               packed_outputs(static_cast<bf16*>(nullptr), 2, tokens, heads, 64),
                               packed_lses(static_cast<float*>(nullptr), 2, tokens, heads))
              .ok());
  };
  check(0, 3);
  check(5, 0);
  check(index_t{1} << 40, 0);
}

template <class T>
index_t wrong_after_round_trip(index_t ranks, index_t tokens, index_t heads, index_t head_dim) {
  const message_plan plan = made<T>({ranks, tokens, heads, head_dim});
  std::vector<T> rows(static_cast<std::size_t>(tokens * ranks * heads * head_dim));
  std::vector<float> lses(static_cast<std::size_t>(tokens * ranks * heads));
  const auto output = packed_output(rows.data(), tokens, ranks * heads, head_dim);
  const auto lse = packed_lse(lses.data(), tokens, ranks * heads);
  support::fill(output, [](const auto& at) { return numbered<T>(at[0], at[1], at[2]); });
  support::fill(lse, [](const auto& at) { return numbered_lse(at[0], at[1]); });
  guarded<std::byte> message(plan.total_bytes);
  guarded<T> back_memory(tokens * ranks * heads * head_dim);
  guarded<float> lse_memory(tokens * ranks * heads);
  const auto back = packed_outputs(back_memory.data(), ranks, tokens, heads, head_dim);
  const auto lse_back = packed_lses(lse_memory.data(), ranks, tokens, heads);
  REQUIRE(reference::pack<e>(output, lse, plan, message.data()).ok());
  REQUIRE(reference::unpack<e>(message.data(), plan, back, lse_back).ok());
  return wrong_elements(
             back,
             [&](const auto& at) { return numbered<T>(at[1], at[0] * heads + at[2], at[3]); }) +
         wrong_elements(lse_back,
                        [&](const auto& at) { return numbered_lse(at[1], at[0] * heads + at[2]); });
}

TEST_CASE("F06: no count of rows is too many for a message") {
  CHECK(wrong_after_round_trip<bf16>(1, 65535, 1, 8) == 0);
  CHECK(wrong_after_round_trip<bf16>(1, 65536, 1, 8) == 0);
  CHECK(wrong_after_round_trip<bf16>(1, 70000, 1, 8) == 0);
  CHECK(wrong_after_round_trip<bf16>(8, 1024, 8, 8) == 0);
}

TEST_CASE("F08: no count of heads is too many for a message") {
  for (const index_t head_dim : {128, 256, 512}) {
    CAPTURE(head_dim);
    for (const index_t heads : {64, 65, 96, 97, 128, 200}) {
      CAPTURE(heads);
      CHECK(wrong_after_round_trip<bf16>(1, 1, heads, head_dim) == 0);
      if (heads % 4 == 0) CHECK(wrong_after_round_trip<bf16>(4, 2, heads / 4, head_dim) == 0);
    }
  }
}

}  // namespace
