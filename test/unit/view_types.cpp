// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// What the types of views promise, as static assertions: this file passes when it compiles. The
// test cases name the groups, so that a list of tests shows them.

#include <headwise/core/status.hpp>
#include <headwise/view/refine.hpp>
#include <headwise/view/slice.hpp>
#include <headwise/view/view.hpp>

#include <doctest/doctest.h>

#include <type_traits>

using namespace headwise;

namespace engine {

// Sixteen-bit types as an engine has them, bound without a cast.
struct bfloat {
  unsigned short raw;
};
struct half {
  unsigned short raw;
};
struct record {
  unsigned char bytes[656];
};

}  // namespace engine

template <>
struct headwise::element_traits<engine::bfloat> {
  static constexpr headwise::element_kind kind = headwise::element_kind::bf16;
};
template <>
struct headwise::element_traits<engine::half> {
  static constexpr headwise::element_kind kind = headwise::element_kind::f16;
};

namespace {

constexpr index_t dyn = dynamic_extent;

template <index_t Extent, index_t Stride>
using token = dim<axis::token, Extent, Stride>;
template <index_t Extent, index_t Stride>
using head = dim<axis::head, Extent, Stride>;
template <index_t Extent, index_t Stride>
using head_dim = dim<axis::head_dim, Extent, Stride>;

template <class T>
constexpr bool is_plain = std::is_trivially_copyable_v<T>&& std::is_trivially_destructible_v<T>&&
    std::is_nothrow_default_constructible_v<T>&& std::is_nothrow_copy_constructible_v<T>;

TEST_CASE("N11: sizes of the public types") {
  static_assert(sizeof(index_t) == 8 && std::is_signed_v<index_t>);
  static_assert(sizeof(bf16) == 2 && alignof(bf16) == 2 && std::is_trivial_v<bf16>);
  static_assert(sizeof(fp16) == 2 && alignof(fp16) == 2 && std::is_trivial_v<fp16>);
  static_assert(sizeof(fp8_e4m3) == 1 && alignof(fp8_e4m3) == 1 && std::is_trivial_v<fp8_e4m3>);
  static_assert(sizeof(memory_space) == 1 && sizeof(errc) == 1 && sizeof(contiguity) == 1);
  static_assert(sizeof(element_kind) == 1);
  static_assert(sizeof(status) == 64 && alignof(status) == 8 && is_plain<status>);
  static_assert(std::is_standard_layout_v<status>);
  static_assert(offsetof(status, code) == 0 && offsetof(status, operand) == 8);
  static_assert(offsetof(status, axis) == 16 && offsetof(status, message) == 24);
  static_assert(offsetof(status, got) == 32 && offsetof(status, expected) == 40);
  static_assert(offsetof(status, where) == 48 && sizeof(source_line) == 16);

  // A pointer, and eight bytes for each extent and each stride that is not in the type.
  using engine_view = view<bf16, layout<token<dyn, dyn>, head<dyn, dyn>, head_dim<dyn, dyn>>>;
  static_assert(sizeof(engine_view) == 8 + 6 * 8 && alignof(engine_view) == 8);
  static_assert(sizeof(view<float, layout<>>) == sizeof(void*));
  static_assert(sizeof(view<float, layout<token<4, 32>>>) == sizeof(void*));
  static_assert(sizeof(view<float, layout<token<4, 32>, head<22, 1>>>) == sizeof(void*));
  static_assert(sizeof(view<bf16, layout<token<4, 16384>, head<22, 512>, head_dim<512, 1>>>) ==
                sizeof(void*));
  static_assert(sizeof(view<bf16, layout<token<dyn, 16384>, head<22, 512>, head_dim<512, 1>>>) ==
                8 + 8);
  static_assert(sizeof(view<bf16, layout<token<4, dyn>, head<22, 512>, head_dim<512, 1>>>) ==
                8 + 8);
  static_assert(sizeof(view<bf16, layout<token<dyn, dyn>, head<22, 512>, head_dim<512, 1>>>) ==
                8 + 16);
  static_assert(sizeof(view<bf16, layout<token<dyn, dyn>, head<dyn, 512>, head_dim<512, 1>>>) ==
                8 + 24);
  static_assert(sizeof(view<bf16, layout<token<dyn, dyn>, head<dyn, dyn>, head_dim<512, dyn>>>) ==
                8 + 40);
  // Layouts and dims: only what is not in the type, except that an object has a size.
  static_assert(sizeof(token<dyn, dyn>) == 16 && sizeof(token<4, dyn>) == 8);
  static_assert(std::is_empty_v<token<4, 32>> && std::is_empty_v<extent<axis::head, 4>>);
  static_assert(std::is_empty_v<layout<token<4, 32>, head<22, 1>>> && std::is_empty_v<layout<>>);
  static_assert(sizeof(layout<token<dyn, 32>, head<22, dyn>>) == 16);
  static_assert(std::is_empty_v<constant_t<22>>);
}

TEST_CASE("views are trivially copyable, whatever their layout") {
  static_assert(is_plain<view<bf16, layout<>>>);
  static_assert(is_plain<view<bf16, layout<token<4, 16384>, head<22, 512>, head_dim<512, 1>>>>);
  static_assert(is_plain<view<const float, layout<token<dyn, dyn>, head<22, 1>>>>);
  static_assert(is_plain<view<bf16, layout<token<dyn, dyn>, head<dyn, dyn>, head_dim<dyn, dyn>>,
                              memory_space::device>>);
  static_assert(is_plain<layout<token<dyn, dyn>>> && is_plain<token<dyn, 1>>);
}

TEST_CASE("a view that is initialised at compile time keeps its pointer") {
  // g++ 12 lost it while the layout was a [[no_unique_address]] member.
  static float memory[4 * 22] = {};
  using fixed = view<float, layout<token<4, 22>, head<22, 1>>>;
  static constexpr fixed stored(memory);
  static const fixed also_stored(memory, {});
  const view<const float, layout<token<dyn, 22>, head<22, 1>>> widened = stored;
  constexpr view<float, layout<>> scalar(memory);
  const float* const expected = memory;
  CHECK(stored.data() == expected);
  CHECK(also_stored.data() == expected);
  CHECK(widened.data() == expected);
  CHECK(scalar.data() == expected);
}

TEST_CASE("contiguity is a three-valued fact of the type") {
  constexpr auto always = contiguity::always;
  constexpr auto never = contiguity::never;
  constexpr auto run_time = contiguity::run_time;

  static_assert(layout<>::static_contiguity() == always);
  static_assert(layout<head_dim<512, 1>>::static_contiguity() == always);
  static_assert(layout<head_dim<dyn, 1>>::static_contiguity() == always);
  static_assert(layout<head_dim<512, 2>>::static_contiguity() == never);
  static_assert(layout<head_dim<dyn, 2>>::static_contiguity() == run_time);  // at an extent of 1
  static_assert(layout<head_dim<1, 2>>::static_contiguity() == always);
  static_assert(layout<head_dim<dyn, dyn>>::static_contiguity() == run_time);
  static_assert(layout<head_dim<2, 0>>::static_contiguity() == never);  // a broadcast

  // 22 of 32 heads: contiguous at one token, not at two.
  using rows = head<22, 512>;
  using row = head_dim<512, 1>;
  static_assert(layout<token<dyn, 16384>, rows, row>::static_contiguity() == run_time);
  static_assert(layout<token<4, 16384>, rows, row>::static_contiguity() == never);
  static_assert(layout<token<1, 16384>, rows, row>::static_contiguity() == always);
  static_assert(layout<token<1, dyn>, rows, row>::static_contiguity() == always);
  static_assert(layout<token<4, dyn>, rows, row>::static_contiguity() == run_time);
  static_assert(layout<token<dyn, dyn>, rows, row>::static_contiguity() == run_time);
  static_assert(layout<token<4, 22 * 512>, rows, row>::static_contiguity() == always);
  static_assert(layout<token<dyn, 22 * 512>, rows, row>::static_contiguity() == always);
  // A gap further in decides, whatever stands around it.
  static_assert(layout<token<dyn, dyn>, head<22, 576>, row>::static_contiguity() == never);
  static_assert(layout<token<dyn, dyn>, head<dyn, 576>, row>::static_contiguity() == run_time);
  static_assert(layout<token<1, 7>, head<1, 9>, head_dim<1, 5>>::static_contiguity() == always);
  // Its LSE.
  static_assert(layout<token<dyn, 32>, head<22, 1>>::static_contiguity() == run_time);
  static_assert(layout<token<4, 32>, head<22, 1>>::static_contiguity() == never);
  static_assert(layout<token<1, 32>, head<22, 1>>::static_contiguity() == always);
  // Head-major, as some kernels have it.
  static_assert(layout<head<22, 1>, token<4, 32>>::static_contiguity() == never);
  // A run-time extent hides what the strides around it must be.
  static_assert(layout<token<4, 1024>, head<dyn, 512>, row>::static_contiguity() == run_time);
  // Nothing there, so no gap.
  static_assert(layout<token<4, 7>, head<0, 9>>::static_contiguity() == always);
  static_assert(layout<token<0, 7>, head<4, 9>>::static_contiguity() == always);
}

TEST_CASE("static extents and strides stay static through every change of a view") {
  using whole = view<bf16, layout<token<dyn, 16384>, head<32, 512>, head_dim<512, 1>>>;
  using live = view<bf16, layout<token<dyn, 16384>, head<22, 512>, head_dim<512, 1>>>;
  constexpr whole all{};
  static_assert(std::is_same_v<decltype(slice<axis::head>(all, constant<0>, constant<22>)), live>);
  static_assert(std::is_same_v<decltype(slice<axis::head>(all, 3, constant<22>)), result<live>>);
  static_assert(std::is_same_v<
                decltype(slice<axis::head>(all, 3, 22)),
                result<view<bf16, layout<token<dyn, 16384>, head<dyn, 512>, head_dim<512, 1>>>>>);
  static_assert(
      std::is_same_v<decltype(slice<axis::token>(all, constant<0>, constant<2>)),
                     result<view<bf16, layout<token<2, 16384>, head<32, 512>, head_dim<512, 1>>>>>);
  static_assert(std::is_same_v<decltype(fix<axis::token>(all, 1)),
                               view<bf16, layout<head<32, 512>, head_dim<512, 1>>>>);
  static_assert(std::is_same_v<decltype(fix<axis::head>(all, constant<31>)),
                               view<bf16, layout<token<dyn, 16384>, head_dim<512, 1>>>>);
  static_assert(
      std::is_same_v<decltype(permute<axis::head, axis::head_dim, axis::token>(all)),
                     view<bf16, layout<head<32, 512>, head_dim<512, 1>, token<dyn, 16384>>>>);
  static_assert(
      std::is_same_v<decltype(split<axis::head, axis::rank, axis::head>(live{}, constant<2>)),
                     view<bf16, layout<token<dyn, 16384>, dim<axis::rank, 2, 11 * 512>,
                                       head<11, 512>, head_dim<512, 1>>>>);
  static_assert(
      std::is_same_v<decltype(split<axis::token, axis::sequence, axis::token>(all, constant<3>)),
                     result<view<bf16, layout<dim<axis::sequence, 3, dyn>, token<dyn, 16384>,
                                              head<32, 512>, head_dim<512, 1>>>>>);
  static_assert(
      std::is_same_v<
          decltype(rename<axis::token, axis::sequence>(all)),
          view<bf16, layout<dim<axis::sequence, dyn, 16384>, head<32, 512>, head_dim<512, 1>>>>);
}

TEST_CASE("packed() finds the strides, static where the extents further in are") {
  using packed_view =
      packed_layout_t<extent<axis::token>, extent<axis::head, 32>, extent<axis::head_dim, 512>>;
  static_assert(
      std::is_same_v<packed_view, layout<token<dyn, 16384>, head<32, 512>, head_dim<512, 1>>>);
  static_assert(
      std::is_same_v<
          packed_layout_t<extent<axis::token, 4>, extent<axis::head>, extent<axis::head_dim, 512>>,
          layout<token<4, dyn>, head<dyn, 512>, head_dim<512, 1>>>);
  static_assert(std::is_same_v<packed_layout_t<>, layout<>>);
  static_assert(packed(extent<axis::token>(3), extent<axis::head>(5)).stride<axis::token>() == 5);
  static_assert(packed(extent<axis::token>(3), extent<axis::head>(0)).span_size() == 0);
  static_assert(packed_view::static_contiguity() == contiguity::always);
}

TEST_CASE("an engine's own types bind by element_traits") {
  using rows = layout<token<dyn, dyn>, head<dyn, dyn>>;
  static_assert(element_kind_of<engine::bfloat> == element_kind::bf16);
  static_assert(element_kind_of<const engine::half> == element_kind::f16);
  static_assert(element_kind_of<engine::record> == element_kind::opaque);
  static_assert(is_reducible<engine::bfloat> && is_reducible<engine::half>);
  static_assert(!is_reducible<engine::record> && !is_reducible<fp8_e4m3>);
  static_assert(view_type<view<engine::bfloat, rows>> && view_type<view<engine::record, rows>>);
  engine::bfloat memory[2] = {{0x3f80}, {0x4040}};  // 1 and 3
  const auto bound = make_view(memory, packed(extent<axis::token>(1), extent<axis::head>(2)));
  CHECK(to_float(bound(0, 1)) == 3.0f);
  bound(0, 0) = from_float<engine::bfloat>(-2.0f);
  CHECK(memory[0].raw == 0xc000);
}

TEST_CASE("views convert where nothing is lost but knowledge") {
  using fixed = layout<token<4, 32>, head<22, 1>>;
  using open = layout<token<dyn, dyn>, head<dyn, dyn>>;
  using half_open = layout<token<dyn, 32>, head<22, 1>>;
  // T to const T, static to dynamic, both at once; never back.
  static_assert(std::is_convertible_v<view<float, fixed>, view<const float, fixed>>);
  static_assert(!std::is_convertible_v<view<const float, fixed>, view<float, fixed>>);
  static_assert(std::is_convertible_v<view<float, fixed>, view<float, open>>);
  static_assert(std::is_convertible_v<view<float, fixed>, view<const float, half_open>>);
  static_assert(!std::is_convertible_v<view<float, open>, view<float, half_open>>);
  static_assert(!std::is_convertible_v<view<float, fixed>, view<double, fixed>>);
  static_assert(!std::is_constructible_v<view<float, fixed>, view<float, open>>);
  // Other numbers, other axes, other memory: other views.
  static_assert(
      !std::is_convertible_v<view<float, fixed>, view<float, layout<token<4, 32>, head<21, 1>>>>);
  static_assert(
      !std::is_convertible_v<view<float, fixed>, view<float, layout<head<22, 1>, token<4, 32>>>>);
  static_assert(!std::is_convertible_v<view<float, open>,
                                       view<float, layout<head<dyn, dyn>, token<dyn, dyn>>>>);
  static_assert(
      !std::is_convertible_v<view<float, fixed>, view<float, fixed, memory_space::device>>);
  static_assert(!std::is_convertible_v<view<float, layout<token<4, 32>>>, view<float, fixed>>);

  float memory[4 * 32] = {};
  const view<float, fixed> narrow(memory);
  const view<const float, open> wide = narrow;
  CHECK(wide.data() == memory);
  CHECK(wide.extent<axis::token>() == 4);
  CHECK(wide.stride<axis::token>() == 32);
  CHECK(wide.extent<axis::head>() == 22);
  CHECK(wide.stride<axis::head>() == 1);
}

template <class View>
concept lse_of_tokens = view_of<View, axis::token, axis::head>;

TEST_CASE("concepts tell axes and their order") {
  using lse = view<float, layout<token<dyn, dyn>, head<dyn, dyn>>>;
  using turned = view<float, layout<head<dyn, dyn>, token<dyn, dyn>>>;
  static_assert(lse_of_tokens<lse> && lse_of_tokens<const lse> && !lse_of_tokens<turned>);
  static_assert(!lse_of_tokens<int> && !lse_of_tokens<view<float, layout<token<4, 1>>>>);
  static_assert(view_over<turned, axis::token, axis::head>);
  static_assert(!view_over<turned, axis::token, axis::page>);
  static_assert(!view_over<turned, axis::token>);
  static_assert(axis_type<axis::page> && !axis_type<int>);
}

TEST_CASE("G06: the width of the output is the value's, not the key's") {
  // Latent 512 and rope 64: keys of 576, values of 512.
  using keys = view<const bf16, layout<token<dyn, 576>, head_dim<576, 1>>>;
  using values = decltype(slice<axis::head_dim>(keys{}, constant<0>, constant<512>));
  using output = view<bf16, layout<token<dyn, 512>, head_dim<512, 1>>>;
  static_assert(values::layout_type::static_extents[1] == 512);
  static_assert(values::layout_type::static_strides[0] == 576);
  static_assert(!std::is_convertible_v<view<bf16, keys::layout_type>, output>);
  static_assert(!std::is_constructible_v<output, view<bf16, keys::layout_type>>);
  // With run-time sizes the status says it.
  bf16 memory[576] = {};
  const auto wide = make_view(memory, packed(extent<axis::token>(1), extent<axis::head_dim>(576)));
  const status why = refine<output::layout_type>(wide, "output").why();
  CHECK(why.code == errc::shape_mismatch);
  CHECK(why.got == 576);
  CHECK(why.expected == 512);
}

}  // namespace
