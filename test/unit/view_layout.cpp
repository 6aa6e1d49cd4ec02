// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/view/layout.hpp>
#include <headwise/view/slice.hpp>
#include <headwise/view/view.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>

using namespace headwise;

namespace {

using rows_layout = layout<dim<axis::token, dynamic_extent, 16384>, dim<axis::head, 22, 512>,
                           dim<axis::head_dim, 512, 1>>;

rows_layout rows(index_t tokens) {
  return {dim<axis::token, dynamic_extent, 16384>(tokens), {}, {}};
}

TEST_CASE("is_contiguous: an extent of 1 ignores its stride, nothing has no gap") {
  CHECK(rows(1).is_contiguous());
  CHECK_FALSE(rows(2).is_contiguous());
  CHECK(rows(0).is_contiguous());
  using open = layout<dim<axis::token>, dim<axis::head>>;
  CHECK(open(dim<axis::token>(1, 99), dim<axis::head>(4, 1)).is_contiguous());
  CHECK(open(dim<axis::token>(4, 1), dim<axis::head>(1, 99)).is_contiguous());
  CHECK(open(dim<axis::token>(1, 7), dim<axis::head>(1, 9)).is_contiguous());
  CHECK(open(dim<axis::token>(3, 4), dim<axis::head>(4, 1)).is_contiguous());
  CHECK_FALSE(open(dim<axis::token>(3, 5), dim<axis::head>(4, 1)).is_contiguous());
  CHECK_FALSE(open(dim<axis::token>(3, 1), dim<axis::head>(4, 3)).is_contiguous());
  CHECK_FALSE(open(dim<axis::token>(3, 0), dim<axis::head>(4, 1)).is_contiguous());
  CHECK(open(dim<axis::token>(3, 5), dim<axis::head>(0, 1)).is_contiguous());
  CHECK(layout<>{}.is_contiguous());
}

TEST_CASE("span_size and size, with and without elements") {
  CHECK(rows(4).size() == 4 * 22 * 512);
  CHECK(rows(4).span_size() == 3 * 16384 + 21 * 512 + 511 + 1);
  CHECK(rows(1).span_size() == 22 * 512);
  CHECK(rows(0).span_size() == 0);
  CHECK(rows(0).size() == 0);
  CHECK(rows(0).empty());
  CHECK_FALSE(rows(1).empty());
  using open = layout<dim<axis::token>, dim<axis::head>>;
  CHECK(open(dim<axis::token>(1000, 1000), dim<axis::head>(0, 1)).span_size() == 0);
  CHECK(open(dim<axis::token>(3, 0), dim<axis::head>(4, 1)).span_size() == 4);
  CHECK(open(dim<axis::token>(1, 1000), dim<axis::head>(1, 1000)).span_size() == 1);
  CHECK(layout<>{}.size() == 1);
  CHECK(layout<>{}.span_size() == 1);
  CHECK_FALSE(layout<>{}.empty());
  // A size that leaves 64 bits in the middle is still known to be nothing.
  using deep = layout<dim<axis::page>, dim<axis::token>, dim<axis::head>>;
  const index_t huge = index_t{1} << 40;
  CHECK(deep(dim<axis::page>(0, 1), dim<axis::token>(huge, 1), dim<axis::head>(huge, 1)).empty());
}

TEST_CASE("A15: span size of a corner of a matrix") {
  static int storage[20];
  const auto parent =
      make_view(storage, packed(extent<axis::token, 4>(), extent<axis::head_dim, 5>()));
  const auto corner = slice<axis::head_dim>(slice<axis::token>(parent, constant<2>, constant<2>),
                                            constant<3>, constant<2>);
  CHECK(corner.extent<axis::token>() == 2);
  CHECK(corner.extent<axis::head_dim>() == 2);
  CHECK(corner.stride<axis::token>() == 5);
  CHECK(corner.stride<axis::head_dim>() == 1);
  CHECK(corner.data() - parent.data() == 13);
  CHECK(corner.span_size() == 7);
  CHECK(corner.data() - parent.data() + corner.span_size() == parent.span_size());
  CHECK(&corner(1, 1) == &storage[19]);
}

TEST_CASE("F01: a page far away keeps its 64-bit offset") {
  // A pool of 2^18 + 2 pages of 32 slots x 512; page 262145 times 16384 wraps to 16384 in 32 bits.
  using pool = layout<dim<axis::page, dynamic_extent, 16384>, dim<axis::slot, 32, 512>,
                      dim<axis::head_dim, 512, 1>>;
  const pool pages(dim<axis::page, dynamic_extent, 16384>(262146), {}, {});
  static_assert(std::is_same_v<decltype(pages.offset(0, 0, 0)), std::int64_t>);
  CHECK(pages.offset(262145, 0, 0) == 4294983680);
  CHECK(pages.offset(262145, 31, 511) == 4294983680 + 16383);
  CHECK(pages.offset(std::int32_t{262145}, std::uint32_t{0}, std::uint8_t{0}) == 4294983680);
  CHECK(pages.span_size() == index_t{262146} * 16384);
  // The same with strides that only the running program knows.
  const layout<dim<axis::page>, dim<axis::slot>> open(dim<axis::page>(262146, 16384),
                                                      dim<axis::slot>(32, 512));
  CHECK(open.offset(262145, 0) == 4294983680);
}

TEST_CASE("F03: one block id apart, across 2^31") {
  using blocks = layout<dim<axis::page, dynamic_extent, 32768>>;
  const blocks pool(dim<axis::page, dynamic_extent, 32768>(65537));
  CHECK(pool.offset(65535) == 2147450880);
  CHECK(pool.offset(65536) == 2147483648);
  CHECK(pool.span_size() == 2147483649);
}

TEST_CASE("F05: exactly 2^31 elements, and more") {
  const auto rows =
      packed(extent<axis::token>(262144), extent<axis::head, 32>(), extent<axis::head_dim, 256>());
  CHECK(rows.offset(0, 0, 0) == 0);
  CHECK(rows.offset(262143, 31, 255) + 1 == index_t{1} << 31);
  CHECK(rows.size() == index_t{1} << 31);
  CHECK(rows.span_size() == index_t{1} << 31);

  const auto gathered = packed(extent<axis::rank, 8>(), extent<axis::token>(8193),
                               extent<axis::head, 64>(), extent<axis::head_dim, 512>());
  CHECK(gathered.size() == 2147745792);
  CHECK(gathered.offset(7, 8192, 63, 511) == 2147745791);
  CHECK(gathered.stride<axis::rank>() == 268468224);
  CHECK(gathered.offset(7, 0, 0, 0) == 1879277568);
}

TEST_CASE("offsets by hand, ranks 0 to 4") {
  CHECK(layout<>{}.offset() == 0);
  CHECK(layout<dim<axis::token, 4, 3>>{}.offset(3) == 9);
  CHECK(layout<dim<axis::token, 4, 3>, dim<axis::head, 5, 100>>{}.offset(3, 4) == 409);
  CHECK(rows(4).offset(3, 21, 511) == 3 * 16384 + 21 * 512 + 511);
  const auto four = packed(extent<axis::rank>(2), extent<axis::token>(3), extent<axis::head>(5),
                           extent<axis::head_dim>(7));
  CHECK(four.offset(1, 2, 4, 6) == 2 * 3 * 5 * 7 - 1);
  CHECK(four.offset(1, 0, 0, 0) == 105);
  CHECK(four.offset(0, 1, 0, 0) == 35);
  CHECK(four.offset(0, 0, 1, 0) == 7);

  float one = 5.0f;
  const view<float, layout<>> scalar(&one);
  CHECK(scalar() == 5.0f);
  CHECK(scalar.size() == 1);
}

TEST_CASE("a layout built and asked by name") {
  const layout lse(dim<axis::token, dynamic_extent, 32>(4), dim<axis::head, 22, 1>());
  CHECK(lse.extent<axis::token>() == 4);
  CHECK(lse.stride<axis::token>() == 32);
  CHECK(lse.get<axis::head>().extent() == 22);
  static_assert(decltype(lse)::rank == 2);
  static_assert(decltype(lse)::has_axis<axis::head> && !decltype(lse)::has_axis<axis::page>);
  static_assert(std::is_same_v<decltype(lse)::dim_at<1>, dim<axis::head, 22, 1>>);
  CHECK(lse.extents()[0] == 4);
  CHECK(lse.strides()[1] == 1);
}

TEST_CASE("an empty layout has no elements, however large its other extents are") {
  const index_t huge = INT64_MAX / 2;
  const layout none(dim<axis::token>(huge, 1), dim<axis::head>(huge, 1), dim<axis::rank>(0, 1));
  CHECK(none.size() == 0);
  CHECK(none.span_size() == 0);
  CHECK(none.is_contiguous());
}

}  // namespace
