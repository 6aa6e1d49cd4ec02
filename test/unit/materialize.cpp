// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/reference/materialize.hpp>
#include <headwise/view/slice.hpp>

#include <support/copy_truth.hpp>
#include <support/guarded.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>

using namespace headwise;
using support::guarded;
using support::wrong_elements;

namespace {

constexpr index_t dyn = dynamic_extent;
constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T>
using dynamic_view = view<T, layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>>;

template <class T>
dynamic_view<T> strided(T* data, index_t tokens, index_t heads, index_t head_dim, index_t by_token,
                        index_t by_head, index_t by_element) {
  return {data,
          {dim<axis::token>(tokens, by_token), dim<axis::head>(heads, by_head),
           dim<axis::head_dim>(head_dim, by_element)}};
}

/// Distinct bits for every index.
template <class T>
constexpr auto numbered = [](const auto& at) {
  std::uint64_t bits = 0;
  for (const index_t i : at) bits = bits * 1000 + static_cast<std::uint64_t>(i) + 1;
  return support::element_of_bits<T>(bits);
};

TEST_CASE("A03: a column is copied by its stride, not as so many neighbours") {
  // t = [[0, 0], [1, 1]] and its first column, as each of two ranks has it.
  std::int64_t t[4] = {0, 0, 1, 1};
  const view<std::int64_t, layout<dim<axis::head, 2, 2>>> column(t);
  guarded<std::int64_t> gathered(4);
  for (index_t rank = 0; rank < 2; ++rank) {
    const view<std::int64_t, layout<dim<axis::head, 2, 1>>> row(gathered.data() + 2 * rank);
    REQUIRE(reference::materialize(column, row).ok());
  }
  const std::int64_t expected[4] = {0, 1, 0, 1};
  for (int i = 0; i < 4; ++i) CHECK(gathered.data()[i] == expected[i]);
  const view<std::int64_t, layout<dim<axis::head, 4, 1>>> all(gathered.data());
  CHECK(gathered.stray_bytes(all) == 0);
}

TEST_CASE("A06: a column is written by its stride, its gaps keep what they hold") {
  using column_view = view<float, layout<dim<axis::head, 2, 2>>>;
  using packed_view = view<float, layout<dim<axis::head, 2, 1>>>;
  // Storage [v, 0, v, v] with v = rank + 1; the view is elements 0 and 2.
  float storage[2][4] = {{1, 0, 1, 1}, {2, 0, 2, 2}};
  guarded<float> wire(2);
  REQUIRE(reference::materialize(column_view(storage[1]), packed_view(wire.data())).ok());
  CHECK(wire.stray_bytes(packed_view(wire.data())) == 0);
  // What arrives goes into a column again, with guarded gaps.
  guarded<float> arrived(3);
  REQUIRE(reference::materialize(packed_view(wire.data()), column_view(arrived.data())).ok());
  CHECK(arrived.stray_bytes(column_view(arrived.data())) == 0);

  float sum[2];
  for (index_t i = 0; i < 2; ++i) {
    sum[i] = column_view(storage[0])(i) + column_view(arrived.data())(i);
  }
  REQUIRE(reference::materialize(packed_view(sum), column_view(storage[0])).ok());
  CHECK(storage[0][0] == 3.0f);
  CHECK(storage[0][2] == 3.0f);
  CHECK(storage[0][1] == 0.0f);
  CHECK(storage[0][3] == 1.0f);
}

TEST_CASE("A13: the query inside of a fused qkv row is read by the row's stride") {
  constexpr index_t tokens = 3;
  guarded<bf16> qkv(tokens * 256);  // NaN but for the query
  const view<bf16, layout<dim<axis::token, tokens, 256>, dim<axis::head, 2, 64>,
                          dim<axis::head_dim, 64, 1>>>
      query(qkv.data());
  const auto value = [](const auto& at) {
    return from_float<bf16>(static_cast<float>(10 * at[0] + at[1]));
  };
  support::fill(query, value);

  // Into the second rank's heads of a gathered query.
  guarded<bf16> memory(tokens * 4 * 64);
  const view<bf16, layout<dim<axis::token, tokens, 256>, dim<axis::head, 4, 64>,
                          dim<axis::head_dim, 64, 1>>>
      gathered(memory.data());
  const auto part = slice<axis::head>(gathered, constant<2>, constant<2>);
  REQUIRE(reference::materialize(query, part).ok());
  CHECK(wrong_elements(part, value) == 0);
  CHECK(memory.stray_bytes(part) == 0);
  for (index_t i = 0; i < 2 * 64; ++i) CHECK(gathered.data()[2 * 64 + i].bits != 0xffff);
}

TEST_CASE("A15: copying a corner of a matrix stays inside of what the corner spans") {
  guarded<float> parent(20);
  const view<float, layout<dim<axis::token, 4, 5>, dim<axis::head, 5, 1>>> whole(parent.data());
  const auto corner = slice<axis::head>(slice<axis::token>(whole, constant<2>, constant<2>),
                                        constant<3>, constant<2>);
  CHECK(corner.data() + corner.span_size() == parent.data() + 20);
  float values[4] = {1, 2, 3, 4};
  const view<float, layout<dim<axis::token, 2, 2>, dim<axis::head, 2, 1>>> packed_values(values);
  REQUIRE(reference::materialize(packed_values, corner).ok());
  CHECK(parent.data()[13] == 1.0f);
  CHECK(parent.data()[14] == 2.0f);
  CHECK(parent.data()[18] == 3.0f);
  CHECK(parent.data()[19] == 4.0f);
  CHECK(parent.stray_bytes(corner) == 0);
}

TEST_CASE("B01: an LSE in [sequence, head, token] becomes one in [token, head] by its axes") {
  float memory[4] = {0, 1, 10, 11};
  const auto produced = view(memory, packed(extent<axis::sequence, 1>(), extent<axis::head, 2>(),
                                            extent<axis::token, 2>()));
  const auto by_head = fix<axis::sequence>(produced, constant<0>);
  guarded<float> merged(4);
  const auto wanted =
      view(merged.data(), packed(extent<axis::token, 2>(), extent<axis::head, 2>()));
  REQUIRE(reference::materialize(by_head, wanted).ok());
  CHECK(wanted(0, 0) == 0.0f);
  CHECK(wanted(0, 1) == 10.0f);
  CHECK(wanted(1, 0) == 1.0f);
  CHECK(wanted(1, 1) == 11.0f);
  CHECK(merged.stray_bytes(wanted) == 0);
}

TEST_CASE("B03: a padded LSE per sequence and a packed one of all tokens hold the same numbers") {
  constexpr index_t lengths[2] = {1, 3};
  guarded<float> padded_memory(2 * 2 * 3);
  const auto padded =
      view(padded_memory.data(),
           packed(extent<axis::sequence, 2>(), extent<axis::head, 2>(), extent<axis::token, 3>()));
  for (index_t n = 0; n < 2; ++n) {
    for (index_t h = 0; h < 2; ++h) {
      for (index_t i = 0; i < lengths[n]; ++i) {
        padded(n, h, i) = static_cast<float>(100 * n + 10 * h + i);
      }
    }
  }
  guarded<float> packed_memory(2 * 4);
  const auto all =
      view(packed_memory.data(), packed(extent<axis::head, 2>(), extent<axis::token, 4>()));
  index_t first = 0;
  for (index_t n = 0; n < 2; ++n) {
    const auto from = slice<axis::token>(fix<axis::sequence>(padded, n), 0, lengths[n]);
    const auto to = slice<axis::token>(all, first, lengths[n]);
    REQUIRE(from.ok());
    REQUIRE(to.ok());
    REQUIRE(reference::materialize(from.value(), to.value()).ok());
    first += lengths[n];
  }
  for (index_t h = 0; h < 2; ++h) {
    CHECK(all(h, 0) == static_cast<float>(10 * h));
    for (index_t i = 0; i < 3; ++i) CHECK(all(h, 1 + i) == static_cast<float>(100 + 10 * h + i));
  }
  CHECK(packed_memory.stray_bytes(all) == 0);
}

TEST_CASE("B04: the LSE of a sequence without keys lands in its own tokens of a packed buffer") {
  // Query lengths 3 and 1, two heads; sequence 1 has no keys.
  guarded<float> memory(2 * 4);
  const auto all = view(memory.data(), packed(extent<axis::head, 2>(), extent<axis::token, 4>()));
  const float nothing = -infinity;
  const view<const float, layout<dim<axis::head, 2, 0>, dim<axis::token, 1, 0>>> empty(&nothing);
  const auto second = slice<axis::token>(all, constant<3>, constant<1>);
  REQUIRE(reference::materialize(empty, second).ok());
  CHECK(memory.data()[3] == -infinity);
  CHECK(memory.data()[7] == -infinity);
  CHECK(memory.stray_bytes(second) == 0);
}

TEST_CASE("B09: an LSE is stored by the strides that its view has") {
  float values[6] = {1, 2, 3, 4, 5, 6};
  guarded<float> memory(3 * 64);
  const view<float, layout<dim<axis::token, 3, 64>, dim<axis::head, 2, 1>>> stored(memory.data());
  const auto packed_values =
      view(values, packed(extent<axis::token, 3>(), extent<axis::head, 2>()));
  REQUIRE(reference::materialize(packed_values, stored).ok());
  int found = 0;
  for (index_t i = 0; i < memory.size(); ++i) {
    if (detail::is_nan(memory.data()[i])) continue;
    ++found;
    CHECK((i % 64 < 2 && i / 64 < 3));
    CHECK(memory.data()[i] == values[2 * (i / 64) + i % 64]);
  }
  CHECK(found == 6);
  CHECK(memory.stray_bytes(stored) == 0);
}

TEST_CASE("G01: a copy from or to an odd offset is right") {
  const auto check = [](auto element, index_t source_past, index_t target_past) {
    using T = decltype(element);
    CAPTURE(source_past);
    CAPTURE(target_past);
    guarded<T> from(512, source_past);
    guarded<T> to(512, target_past);
    const auto source = strided<T>(from.data(), 1, 1, 512, 512, 512, 1);
    const auto target = strided<T>(to.data(), 1, 1, 512, 512, 512, 1);
    support::fill(source, numbered<T>);
    REQUIRE(reference::materialize(source, target).ok());
    CHECK(wrong_elements(target, numbered<T>) == 0);
    CHECK(to.stray_bytes(target) == 0);
  };
  for (const index_t past : {0, 1, 2, 3}) {
    check(float{}, past, 0);
    check(float{}, 0, past);
    check(float{}, past, 1);
  }
  for (const index_t past : {0, 1, 2, 4, 8}) {
    check(bf16{}, past, 0);
    check(bf16{}, 0, past);
    check(bf16{}, past, 1);
  }
}

TEST_CASE_TEMPLATE("G04: head dims of any size and remainder are copied whole", T, fp8_e4m3, bf16,
                   float) {
  for (const index_t head_dim : {1, 2, 3, 33, 64, 66, 80, 96, 192, 512, 576, 580}) {
    CAPTURE(head_dim);
    constexpr index_t tokens = 2, heads = 3, padded = 5;
    guarded<T> from(tokens * padded * head_dim);
    guarded<T> to(tokens * heads * head_dim);
    const auto source =
        strided<T>(from.data(), tokens, heads, head_dim, padded * head_dim, head_dim, 1);
    const auto target =
        strided<T>(to.data(), tokens, heads, head_dim, heads * head_dim, head_dim, 1);
    support::fill(source, numbered<T>);
    REQUIRE(reference::materialize(source, target).ok());
    CHECK(wrong_elements(target, numbered<T>) == 0);
    CHECK(to.stray_bytes(target) == 0);
  }
}

TEST_CASE("L08: fp8 is moved as bytes, every bit pattern of it") {
  guarded<fp8_e4m3> from(4 * 2 * 64 * 2);
  guarded<fp8_e4m3> to(4 * 2 * 64);
  const auto source = strided<fp8_e4m3>(from.data(), 4, 1, 64, 256, 64, 1);
  const auto target = strided<fp8_e4m3>(to.data(), 4, 1, 64, 1, 256, 4);
  const auto value = [](const auto& at) {
    return fp8_e4m3{static_cast<std::uint8_t>(at[0] * 64 + at[2])};
  };
  support::fill(source, value);
  REQUIRE(reference::materialize(source, target).ok());
  CHECK(wrong_elements(target, value) == 0);  // 0x7f and 0xff, the NaNs, among them
  CHECK(to.stray_bytes(target) == 0);
}

/// A copy between views of these types, each in a buffer of its own.
template <class Source, class Target>
void check_copy_of(Source source, Target target) {
  using T = typename Target::value_type;
  guarded<T> from(source.span_size());
  guarded<T> to(target.span_size());
  const Source reads(from.data(), source.layout());
  const Target writes(to.data(), target.layout());
  const auto moves = support::moves_of(reads, writes);
  guarded<T> wanted(target.span_size());
  std::uint64_t bits = 0x51;
  for (const support::move_of& one : moves) {
    const T element = support::element_of_bits<T>(bits);
    bits = bits * 6364136223846793005u + 1442695040888963407u;
    from.data()[one.source] = element;
    wanted.data()[one.target] = element;
  }
  REQUIRE(reference::materialize(reads, writes).ok());
  index_t wrong = 0;
  for (const support::move_of& one : moves) {
    if (!support::same_bits(to.data()[one.target], wanted.data()[one.target])) ++wrong;
  }
  CHECK(wrong == 0);
  CHECK(to.stray_bytes(writes) == 0);
}

template <class... Dims>
using of = view<bf16, layout<Dims...>>;

TEST_CASE("static, mixed and dynamic layouts of either order of axes take the same elements over") {
  using token = dim<axis::token, 4, 160>;
  using some_tokens = dim<axis::token, dyn, 160>;
  using head = dim<axis::head, 3, 48>;
  using head_dim = dim<axis::head_dim, 16, 1>;
  const auto by_token = of<token, head, head_dim>(nullptr);
  const auto mixed = of<some_tokens, head, head_dim>(nullptr, {some_tokens(4), head(), head_dim()});
  const auto some_heads =
      of<token, dim<axis::head, dyn, 48>, head_dim>(nullptr, {{}, dim<axis::head, dyn, 48>(3), {}});
  const auto named_otherwise = of<head_dim, head, token>(nullptr);
  const auto dense = of<dim<axis::token, 4, 48>, dim<axis::head, 3, 16>, head_dim>(nullptr);
  const auto head_major = of<dim<axis::token, 4, 16>, dim<axis::head, 3, 64>, head_dim>(nullptr);
  const auto transposed =
      of<dim<axis::token, 4, 48>, dim<axis::head, 3, 1>, dim<axis::head_dim, 16, 3>>(nullptr);
  const auto dynamic = strided<bf16>(nullptr, 4, 3, 16, 200, 50, 3);
  const auto from_all = [&](const auto& target) {
    check_copy_of(by_token, target);
    check_copy_of(mixed, target);
    check_copy_of(some_heads, target);
    check_copy_of(named_otherwise, target);
    check_copy_of(dense, target);
    check_copy_of(transposed, target);
    check_copy_of(dynamic, target);
  };
  from_all(mixed);
  from_all(dense);
  from_all(head_major);
  from_all(dynamic);
}

TEST_CASE("runs of one, two and three elements") {
  for (const index_t run : {1, 2, 3}) {
    CAPTURE(run);
    check_copy_of(strided<bf16>(nullptr, 2, 3, run, 20, 5, 1),
                  strided<bf16>(nullptr, 2, 3, run, 3 * run, run, 1));
    check_copy_of(strided<bf16>(nullptr, 2, 3, run, 3 * run, run, 1),
                  strided<bf16>(nullptr, 2, 3, run, 24, 4, 1));
  }
}

TEST_CASE("one element, no axes, and no elements") {
  check_copy_of(strided<bf16>(nullptr, 1, 1, 1, 5, 9, 7), strided<bf16>(nullptr, 1, 1, 1, 0, 0, 0));
  bf16 from{7};
  bf16 to{9};
  CHECK(reference::materialize(view<bf16, layout<>>(&from), view<bf16, layout<>>(&to)).ok());
  CHECK(to.bits == 7);
  // No elements: no memory either.
  CHECK(reference::materialize(strided<const bf16>(nullptr, 0, 3, 16, 1, 1, 1),
                               strided<bf16>(nullptr, 0, 3, 16, 1, 1, 1))
            .ok());
  CHECK(reference::materialize(strided<const bf16>(nullptr, INT64_MAX, 0, 16, 1, 1, 1),
                               strided<bf16>(nullptr, INT64_MAX, 0, 16, 1, 1, 1))
            .ok());
  const of<dim<axis::token, 2, 0>, dim<axis::head, 0, 0>> nothing(nullptr);
  CHECK(reference::materialize(nothing, nothing).ok());
}

TEST_CASE("a record of any size is moved as its bytes") {
  struct record {
    unsigned char bytes[656];
  };
  guarded<record> from(6);
  guarded<record> to(3);
  const view<record, layout<dim<axis::slot, 3, 2>>> source(from.data());
  const view<record, layout<dim<axis::slot, 3, 1>>> target(to.data());
  const auto value = [](const auto& at) {
    record one{};
    for (int i = 0; i < 656; ++i) one.bytes[i] = static_cast<unsigned char>(at[0] + i % 200);
    return one;
  };
  support::fill(source, value);
  REQUIRE(reference::materialize(source, target).ok());
  CHECK(wrong_elements(target, value) == 0);
  CHECK(to.stray_bytes(target) == 0);
}

TEST_CASE("a refused copy writes nothing") {
  guarded<float> from(64);
  guarded<float> to(64);
  const auto good = strided<const float>(from.data(), 2, 3, 4, 12, 4, 1);
  const auto refused = [&](const auto& source, const auto& target, errc code, const char* operand,
                           const char* axis, index_t got, index_t expected) {
    const status why = reference::materialize(source, target);
    CHECK(why.code == code);
    CHECK(std::string(why.operand) == operand);
    CHECK(std::string(why.axis) == axis);
    CHECK(why.got == got);
    CHECK(why.expected == expected);
    CHECK(to.stray_bytes() == 0);
  };
  refused(good, strided<float>(to.data(), 2, 3, 5, 15, 5, 1), errc::shape_mismatch, "source",
          "head_dim", 4, 5);
  refused(good, strided<float>(to.data(), 2, 2, 4, 12, 4, 1), errc::shape_mismatch, "source",
          "head", 3, 2);
  refused(good, strided<float>(to.data(), 1, 3, 4, 12, 4, 1), errc::shape_mismatch, "source",
          "token", 2, 1);
  refused(good, strided<float>(to.data(), 2, 3, 4, 12, 4, 0), errc::overlap, "target", "head_dim",
          0, 1);
  refused(good, strided<float>(to.data(), 2, 3, 4, 4, 4, 1), errc::overlap, "target", "head", 4, 8);
  refused(good, strided<float>(to.data(), -2, 3, 4, 12, 4, 1), errc::invalid_argument, "target",
          "token", -2, 0);
  refused(good, strided<float>(to.data(), 2, 3, 4, -12, 4, 1), errc::invalid_argument, "target",
          "token", -12, 0);
  refused(good, strided<float>(nullptr, 2, 3, 4, 12, 4, 1), errc::invalid_argument, "target", "", 0,
          0);
  refused(strided<const float>(nullptr, 2, 3, 4, 12, 4, 1),
          strided<float>(to.data(), 2, 3, 4, 12, 4, 1), errc::invalid_argument, "source", "", 0, 0);
}

}  // namespace
