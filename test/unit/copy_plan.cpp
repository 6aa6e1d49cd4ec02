// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/plan/copy_plan.hpp>
#include <headwise/view/slice.hpp>

#include <support/copy_truth.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace headwise;

namespace {

constexpr index_t dyn = dynamic_extent;

template <class T, index_t Tokens, index_t Heads, index_t HeadDim>
using packed_view = view<T, packed_layout_t<extent<axis::token, Tokens>, extent<axis::head, Heads>,
                                            extent<axis::head_dim, HeadDim>>>;
/// Rows [token, head] of a buffer with `Padded` heads.
template <class T, index_t Tokens, index_t Heads, index_t Padded, index_t HeadDim>
using sliced_view =
    view<T, layout<dim<axis::token, Tokens, Padded * HeadDim>, dim<axis::head, Heads, HeadDim>,
                   dim<axis::head_dim, HeadDim, 1>>>;
template <class T>
using dynamic_view = view<T, layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>>;

template <class T>
dynamic_view<T> strided(T* data, index_t tokens, index_t heads, index_t head_dim, index_t by_token,
                        index_t by_head, index_t by_element) {
  return {data,
          {dim<axis::token>(tokens, by_token), dim<axis::head>(heads, by_head),
           dim<axis::head_dim>(head_dim, by_element)}};
}

/// Compares all of a plan with what listing the elements says.
template <class Source, class Target>
void check_against_listing(const Source& source, const Target& target) {
  REQUIRE(check_copy("source", source, "target", target).ok());
  const copy_steps steps = plan_copy(source, target);
  const std::vector<support::move_of> moves = support::moves_of(source, target);
  CHECK(support::moves_of(steps) == moves);
  CHECK(steps.run == support::longest_equal_run(moves));
  CHECK(steps.kind == support::kind_of(moves));
  CHECK(steps.run_count() * steps.run == static_cast<index_t>(moves.size()));
  CHECK(steps.vector_bytes ==
        support::widest_vector(moves, steps.run, sizeof(typename Target::value_type),
                               reinterpret_cast<std::uintptr_t>(source.data()),
                               reinterpret_cast<std::uintptr_t>(target.data())));
}

TEST_CASE("22 of 32 heads into a packed buffer: runs by type, one transfer at one token") {
  using source = sliced_view<const bf16, dyn, 22, 32, 512>;
  using target = packed_view<bf16, dyn, 22, 512>;
  using plan = copy_plan<source, target>;
  static_assert(plan::kind == copy_kind::runs);
  static_assert(plan::steps.run == 22 * 512 && plan::steps.outer == 1);
  static_assert(plan::steps.extents[0] == dynamic_extent);
  static_assert(plan::steps.source_strides[0] == 16384 && plan::steps.target_strides[0] == 11264);
  static_assert(plan::vector_bytes == 16);

  alignas(16) static bf16 from[4 * 32 * 512];
  alignas(16) static bf16 to[4 * 22 * 512];
  const auto sized = [](index_t tokens) {
    return plan_copy(source(from, {dim<axis::token, dyn, 16384>(tokens), {}, {}}),
                     target(to, packed(extent<axis::token>(tokens), extent<axis::head, 22>(),
                                       extent<axis::head_dim, 512>())));
  };
  const copy_steps four = sized(4);
  CHECK(four.kind == copy_kind::runs);
  CHECK(four.run == 11264);
  CHECK(four.outer == 1);
  CHECK(four.extents[0] == 4);
  CHECK(four.source_strides[0] == 16384);
  CHECK(four.target_strides[0] == 11264);
  CHECK(four.run_count() == 4);
  CHECK(four.vector_bytes == 16);
  const copy_steps one = sized(1);
  CHECK(one.kind == copy_kind::contiguous);
  CHECK(one.run == 11264);
  CHECK(one.run_count() == 1);
  CHECK(sized(0).empty);
  CHECK(sized(0).run_count() == 0);
}

TEST_CASE("a contiguous copy of any batch is one transfer, and its vector is known by type") {
  using whole = packed_view<float, dyn, 32, 512>;
  static_assert(copy_plan<whole, whole>::kind == copy_kind::contiguous);
  static_assert(copy_plan<whole, whole>::steps.run == dynamic_extent);
  static_assert(copy_plan<whole, whole>::vector_bytes == 16);
  // 66 bytes a row: a batch of rows divides by 2, two heads of them by 4.
  static_assert(copy_plan<packed_view<bf16, dyn, 1, 33>, packed_view<bf16, dyn, 1, 33>>::kind ==
                copy_kind::contiguous);
  static_assert(
      copy_plan<packed_view<bf16, dyn, 1, 33>, packed_view<bf16, dyn, 1, 33>>::vector_bytes == 2);
  static_assert(
      copy_plan<packed_view<bf16, dyn, 2, 33>, packed_view<bf16, dyn, 2, 33>>::vector_bytes == 4);
  static_assert(copy_plan<packed_view<bf16, 8, 2, 33>, packed_view<bf16, 8, 2, 33>>::vector_bytes ==
                16);
  alignas(16) float memory[24];
  check_against_listing(strided<const float>(memory, 2, 3, 4, 12, 4, 1),
                        strided<float>(memory, 2, 3, 4, 12, 4, 1));
}

TEST_CASE("the order in which a type names its axes does not matter, only where elements are") {
  using token_major =
      view<bf16,
           layout<dim<axis::token, 4, 96>, dim<axis::head, 3, 32>, dim<axis::head_dim, 32, 1>>>;
  using named_otherwise =
      view<bf16,
           layout<dim<axis::head_dim, 32, 1>, dim<axis::token, 4, 96>, dim<axis::head, 3, 32>>>;
  using head_major =
      view<bf16,
           layout<dim<axis::token, 4, 32>, dim<axis::head, 3, 128>, dim<axis::head_dim, 32, 1>>>;
  static_assert(copy_plan<token_major, token_major>::kind == copy_kind::contiguous);
  static_assert(copy_plan<named_otherwise, token_major>::kind == copy_kind::contiguous);
  static_assert(copy_plan<token_major, named_otherwise>::kind == copy_kind::contiguous);
  static_assert(copy_plan<head_major, head_major>::kind == copy_kind::contiguous);
  // From one order of addresses to the other: the rows are what both have in common.
  static_assert(copy_plan<token_major, head_major>::kind == copy_kind::runs);
  static_assert(copy_plan<token_major, head_major>::steps.run == 32);
  static_assert(copy_plan<named_otherwise, head_major>::steps.run == 32);

  alignas(16) static bf16 from[384];
  alignas(16) static bf16 to[384];
  check_against_listing(token_major(from), token_major(to));
  check_against_listing(token_major(from), named_otherwise(to));
  check_against_listing(named_otherwise(from), head_major(to));
  check_against_listing(head_major(from), token_major(to));
}

TEST_CASE("columns, broadcasts and transposed rows go element by element") {
  alignas(16) static float from[256];
  alignas(16) static float to[256];
  const auto column = strided<const float>(from, 1, 5, 4, 0, 16, 2);
  const auto packed_target = strided<float>(to, 1, 5, 4, 20, 4, 1);
  CHECK(plan_copy(column, packed_target).kind == copy_kind::strided);
  CHECK(plan_copy(column, packed_target).run == 1);
  check_against_listing(column, packed_target);
  // One row for all heads: runs of a row. One number for all: elements.
  const auto row = strided<const float>(from, 2, 5, 4, 8, 0, 1);
  CHECK(plan_copy(row, strided<float>(to, 2, 5, 4, 20, 4, 1)).kind == copy_kind::runs);
  check_against_listing(row, strided<float>(to, 2, 5, 4, 20, 4, 1));
  const auto number = strided<const float>(from, 2, 5, 4, 0, 0, 0);
  CHECK(plan_copy(number, strided<float>(to, 2, 5, 4, 20, 4, 1)).kind == copy_kind::strided);
  check_against_listing(number, strided<float>(to, 2, 5, 4, 20, 4, 1));
  check_against_listing(strided<const float>(from, 3, 1, 7, 1, 9, 3),
                        strided<float>(to, 3, 1, 7, 7, 9, 1));
  // A single element is a single transfer, whatever the strides.
  check_against_listing(strided<const float>(from, 1, 1, 1, 7, 9, 5),
                        strided<float>(to, 1, 1, 1, 3, 0, 2));
}

TEST_CASE("extents of 1 do not stand between dims that continue each other") {
  alignas(16) static float from[256];
  alignas(16) static float to[256];
  const auto source = strided<const float>(from, 3, 1, 8, 8, 1000, 1);
  const auto target = strided<float>(to, 3, 1, 8, 8, 3, 1);
  CHECK(plan_copy(source, target).kind == copy_kind::contiguous);
  check_against_listing(source, target);
  using one_head =
      view<float,
           layout<dim<axis::token, dyn, 8>, dim<axis::head, 1, 1000>, dim<axis::head_dim, 8, 1>>>;
  using packed_target = packed_view<float, dyn, 1, 8>;
  static_assert(copy_plan<one_head, packed_target>::kind == copy_kind::contiguous);
}

TEST_CASE("what a type promises of unknown extents is kept by every value") {
  // The rows are runs, of an extent that the type does not know; one of 1 is still called a run.
  using rows = view<float, layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim, dyn, 1>>>;
  static_assert(copy_plan<rows, rows>::kind == copy_kind::runs);
  static_assert(copy_plan<rows, rows>::steps.run == dynamic_extent);
  static_assert(copy_plan<rows, rows>::vector_bytes == 4);
  alignas(16) static float from[256];
  alignas(16) static float to[256];
  const auto sized = [](float* data, index_t head_dim) {
    return rows(data, {dim<axis::token>(2, 50), dim<axis::head>(3, 10),
                       dim<axis::head_dim, dyn, 1>(head_dim)});
  };
  const copy_steps thin = plan_copy(sized(from, 1), sized(to, 1));
  CHECK(thin.kind == copy_kind::runs);
  CHECK(thin.run == 1);
  CHECK(thin.run_count() == 6);
  const copy_steps wide = plan_copy(sized(from, 10), sized(to, 10));
  CHECK(wide.kind == copy_kind::runs);
  CHECK(wide.run == 30);
  // The same extents without the type's promise.
  CHECK(plan_copy(strided<const float>(from, 2, 3, 1, 50, 10, 1),
                  strided<float>(to, 2, 3, 1, 50, 10, 1))
            .kind == copy_kind::strided);
  // A type that leaves all strides open promises nothing.
  static_assert(copy_plan<dynamic_view<float>, dynamic_view<float>>::kind == copy_kind::strided);
  static_assert(copy_plan<dynamic_view<float>, dynamic_view<float>>::vector_bytes == 4);
}

template <class T, index_t HeadDim>
constexpr int row_gate =
    copy_plan<sliced_view<T, dyn, 22, 32, HeadDim>, packed_view<T, dyn, 22, HeadDim>>::vector_bytes;
/// Every second head: the rows themselves are the runs.
template <class T, index_t HeadDim>
constexpr int single_row_gate =
    copy_plan<view<T, layout<dim<axis::token, dyn, 44 * HeadDim>, dim<axis::head, 22, 2 * HeadDim>,
                             dim<axis::head_dim, HeadDim, 1>>>,
              packed_view<T, dyn, 22, HeadDim>>::vector_bytes;

TEST_CASE("G04: the widest vector is a constant of head dim and element, and of the pointers") {
  static_assert(single_row_gate<bf16, 66> == 4);  // 132 bytes
  static_assert(single_row_gate<bf16, 33> == 2);  // 66 bytes
  static_assert(single_row_gate<bf16, 80> == 16);
  static_assert(single_row_gate<bf16, 96> == 16);
  static_assert(single_row_gate<bf16, 192> == 16);
  static_assert(single_row_gate<bf16, 576> == 16);
  static_assert(single_row_gate<fp8_e4m3, 576> == 16);
  static_assert(single_row_gate<fp8_e4m3, 580> == 4);
  static_assert(single_row_gate<float, 33> == 4);
  // 22 neighbouring rows of 66 bytes are a run of 1452.
  static_assert(row_gate<bf16, 33> == 4 && row_gate<bf16, 66> == 8);

  alignas(16) static bf16 from[4 * 44 * 66];
  alignas(16) static bf16 to[4 * 22 * 66];
  const auto gate = [](index_t head_dim, index_t source_past, index_t target_past) {
    const auto source =
        strided<const bf16>(from + source_past, 3, 22, head_dim, 44 * head_dim, 2 * head_dim, 1);
    const auto target =
        strided<bf16>(to + target_past, 3, 22, head_dim, 22 * head_dim, head_dim, 1);
    check_against_listing(source, target);
    return plan_copy(source, target).vector_bytes;
  };
  CHECK(gate(66, 0, 0) == 4);
  CHECK(gate(33, 0, 0) == 2);
  CHECK(gate(64, 0, 0) == 16);
  CHECK(gate(64, 1, 0) == 2);
  CHECK(gate(64, 0, 2) == 4);
  CHECK(gate(64, 4, 4) == 8);
}

TEST_CASE("G01: a contiguous view at an odd offset is not one of 16-byte vectors") {
  alignas(16) static float floats[2][520];
  struct row {
    int past, width;
  };
  for (const row& r : {row{0, 16}, row{1, 4}, row{2, 8}, row{3, 4}, row{4, 16}}) {
    const int past = r.past, width = r.width;
    CAPTURE(past);
    const auto source = strided<const float>(floats[0] + past, 1, 1, 512, 512, 512, 1);
    const auto target = strided<float>(floats[1], 1, 1, 512, 512, 512, 1);
    CHECK(source.is_contiguous());
    CHECK(plan_copy(source, target).kind == copy_kind::contiguous);
    CHECK(plan_copy(source, target).vector_bytes == width);
    CHECK(plan_copy(strided<const float>(floats[0], 1, 1, 512, 512, 512, 1),
                    strided<float>(floats[1] + past, 1, 1, 512, 512, 512, 1))
              .vector_bytes == width);
  }
  alignas(16) static bf16 halves[2][528];
  for (const row& r : {row{0, 16}, row{1, 2}, row{2, 4}, row{4, 8}, row{8, 16}}) {
    const int past = r.past, width = r.width;
    CAPTURE(past);
    const auto source = strided<const bf16>(halves[0] + past, 1, 1, 512, 512, 512, 1);
    const auto target = strided<bf16>(halves[1], 1, 1, 512, 512, 512, 1);
    CHECK(plan_copy(source, target).vector_bytes == width);
  }
}

TEST_CASE("an odd pitch on either side narrows the vector, though every run would divide") {
  alignas(16) static bf16 from[1024];
  alignas(16) static bf16 to[1024];
  const auto width = [](index_t source_pitch, index_t target_pitch) {
    const auto source = strided<const bf16>(from, 1, 4, 64, 0, source_pitch, 1);
    const auto target = strided<bf16>(to, 1, 4, 64, 0, target_pitch, 1);
    check_against_listing(source, target);
    return plan_copy(source, target).vector_bytes;
  };
  CHECK(width(72, 64) == 16);
  CHECK(width(65, 64) == 2);
  CHECK(width(64, 66) == 4);
  CHECK(width(68, 100) == 8);
}

TEST_CASE("a copy without elements is one empty transfer") {
  using none = packed_view<float, dyn, 0, 4>;
  static_assert(copy_plan<none, none>::kind == copy_kind::contiguous);
  static_assert(copy_plan<none, none>::steps.empty);
  const copy_steps steps = plan_copy(strided<const float>(nullptr, 5, 0, 4, 1, 1, 1),
                                     strided<float>(nullptr, 5, 0, 4, 7, 7, 7));
  CHECK(steps.empty);
  CHECK(steps.run_count() == 0);
  CHECK(support::moves_of(steps).empty());
}

TEST_CASE("G06: a copy from 576 columns into 512 is refused with the axis and both extents") {
  alignas(16) static float from[2 * 3 * 576];
  alignas(16) static float to[2 * 3 * 576];
  const auto query = strided<const float>(from, 2, 3, 576, 3 * 576, 576, 1);
  const auto value = strided<float>(to, 2, 3, 512, 3 * 512, 512, 1);
  const status why = check_copy("query", query, "output", value);
  CHECK(why.code == errc::shape_mismatch);
  CHECK(std::string(why.operand) == "query");
  CHECK(std::string(why.axis) == "head_dim");
  CHECK(why.got == 576);
  CHECK(why.expected == 512);
  // The value part of it is a slice.
  const auto first = slice<axis::head_dim>(query, 0, 512);
  REQUIRE(first.ok());
  CHECK(check_copy("query", first.value(), "output", value).ok());
}

TEST_CASE("a target whose elements share memory is refused, with axis, stride and least stride") {
  alignas(16) static float to[1024];
  const auto refused = [](const dynamic_view<float>& target, const char* axis, index_t got,
                          index_t expected) {
    const status why = validate_target("output", target);
    CHECK(why.code == errc::overlap);
    CHECK(std::string(why.operand) == "output");
    CHECK(std::string(why.axis) == axis);
    CHECK(why.got == got);
    CHECK(why.expected == expected);
  };
  refused(strided<float>(to, 2, 3, 4, 12, 0, 1), "head", 0, 1);
  refused(strided<float>(to, 2, 3, 4, 11, 4, 1), "token", 11, 12);
  refused(strided<float>(to, 2, 3, 4, 12, 3, 1), "head", 3, 4);
  refused(strided<float>(to, 2, 3, 4, 12, 1, 1), "head_dim", 1, 3);
  // No two of 0, 2, 4, 3, 5, 7 are the same, but the dims interleave.
  refused(strided<float>(to, 1, 2, 3, 0, 3, 2), "head", 3, 5);
  CHECK(validate_target("output", strided<float>(to, 2, 3, 4, 12, 4, 1)).ok());
  CHECK(validate_target("output", strided<float>(to, 2, 3, 4, 4, 8, 1)).ok());
  CHECK(validate_target("output", strided<float>(to, 2, 3, 4, 1, 8, 2)).ok());
  CHECK(validate_target("output", strided<float>(to, 1, 1, 1, 0, 0, 0)).ok());
  CHECK(validate_target("output", strided<float>(nullptr, 2, 0, 4, 0, 0, 0)).ok());
  // A source may share.
  CHECK(check_copy("row", strided<const float>(to, 2, 3, 4, 0, 0, 1), "output",
                   strided<float>(to + 512, 2, 3, 4, 12, 4, 1))
            .ok());
}

TEST_CASE("A15: what a target spans ends with its last element, not with its last row") {
  // Rows 2 and 3, columns 3 and 4 of 4 x 5.
  alignas(16) static float parent[20];
  const auto whole = view(parent, packed(extent<axis::head, 4>(), extent<axis::head_dim, 5>()));
  const auto corner = slice<axis::head_dim>(slice<axis::head>(whole, constant<2>, constant<2>),
                                            constant<3>, constant<2>);
  CHECK(corner.data() - whole.data() == 13);
  CHECK(corner.span_size() == 7);
  CHECK(corner.data() + corner.span_size() == parent + 20);
  CHECK(validate_target("corner", corner).ok());
  // The largest pitch that still fits into the address space, and one more.
  const index_t most = INT64_MAX / index_t{sizeof(float)} - 1;
  CHECK(validate_target("row", strided<float>(parent, 2, 1, 1, most, 1, 1)).ok());
  CHECK(validate_target("row", strided<float>(parent, 2, 1, 1, most + 1, 1, 1)).code ==
        errc::out_of_range);
}

TEST_CASE("what no view may be is refused before anything is planned") {
  alignas(16) static float memory[64];
  const auto good = strided<const float>(memory, 2, 3, 4, 12, 4, 1);
  const auto target = strided<float>(memory, 2, 3, 4, 12, 4, 1);
  CHECK(check_copy("source", good, "target", target).ok());
  const status null =
      check_copy("source", good, "target", strided<float>(nullptr, 2, 3, 4, 12, 4, 1));
  CHECK(null.code == errc::invalid_argument);
  CHECK(std::string(null.operand) == "target");
  const status negative =
      check_copy("source", strided<const float>(memory, 2, -3, 4, 12, 4, 1), "target", target);
  CHECK(negative.code == errc::invalid_argument);
  CHECK(std::string(negative.operand) == "source");
  CHECK(std::string(negative.axis) == "head");
  CHECK(negative.got == -3);
  auto* const odd = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(memory) + 2);
  const status misaligned =
      check_copy("source", strided<const float>(odd, 2, 3, 4, 12, 4, 1), "target", target);
  CHECK(misaligned.code == errc::misaligned);
  CHECK(std::string(misaligned.operand) == "source");
  // Extents so large that their product is no number, of a source that repeats one element.
  const index_t huge = index_t{1} << 62;
  const status repeated = check_copy("source", strided<const float>(memory, huge, huge, 4, 0, 0, 1),
                                     "target", strided<float>(memory, huge, huge, 4, 0, 0, 1));
  CHECK(repeated.code == errc::overlap);
}

TEST_CASE("strides up to the end of the address space are planned without overflow") {
  const index_t far = index_t{1} << 62;
  auto* const somewhere = reinterpret_cast<fp8_e4m3*>(std::uintptr_t{64});
  const auto spread = strided<fp8_e4m3>(somewhere, 2, 1, 16, far, far, 1);
  REQUIRE(check_copy("source", spread, "target", spread).ok());
  const copy_steps steps = plan_copy(spread, spread);
  CHECK(steps.kind == copy_kind::runs);
  CHECK(steps.run == 16);
  CHECK(steps.source_strides[0] == far);
  CHECK(steps.vector_bytes == 16);
}

struct lane {
  static constexpr const char* name = "lane";
};

TEST_CASE("an axis of the engine's own can be copied too, up to eight of them") {
  alignas(16) static bf16 memory[2][240];
  using many = layout<dim<axis::rank, 2, 120>, dim<axis::sequence, 1, 1>, dim<axis::page, 3, 40>,
                      dim<axis::slot, 1, 7>, dim<axis::token, 2, 20>, dim<axis::head, 5, 4>,
                      dim<lane, 2, 2>, dim<axis::head_dim, 2, 1>>;
  static_assert(many::rank == max_copy_rank);
  static_assert(copy_plan<view<bf16, many>, view<bf16, many>>::kind == copy_kind::contiguous);
  CHECK(plan_copy(view<bf16, many>(memory[0]), view<bf16, many>(memory[1])).run == 240);
}

}  // namespace
