// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/core/element.hpp>
#include <headwise/view/slice.hpp>
#include <headwise/view/view.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace headwise;

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

bool is_nan(bf16 value) { return (value.bits & 0x7fff) > 0x7f80; }

TEST_CASE("A01: 22 of 32 heads keep the strides of the buffer and never reach its padding") {
  constexpr index_t tokens = 4;
  constexpr index_t padded = 32;
  constexpr index_t live = 22;
  constexpr index_t width = 512;
  const bf16 poison{0x7fff};
  std::vector<bf16> out_memory(tokens * padded * width, poison);
  std::vector<float> lse_memory(tokens * padded, nan);
  for (index_t b = 0; b < tokens; ++b) {
    for (index_t h = 0; h < live; ++h) {
      const auto at = static_cast<std::size_t>(b * padded + h);
      lse_memory[at] = 0.0f;
      for (index_t d = 0; d < width; ++d) {
        out_memory[at * width + static_cast<std::size_t>(d)] =
            from_float<bf16>(static_cast<float>(32 * b + h));
      }
    }
  }

  const auto out = slice<axis::head>(
      make_view(out_memory.data(), packed(extent<axis::token>(tokens), extent<axis::head, padded>(),
                                          extent<axis::head_dim, width>())),
      constant<0>, constant<live>);
  const auto lse = slice<axis::head>(
      make_view(lse_memory.data(),
                packed(extent<axis::token>(tokens), extent<axis::head, padded>())),
      constant<0>, constant<live>);

  using out_layout = decltype(out)::layout_type;
  using lse_layout = decltype(lse)::layout_type;
  static_assert(out_layout::static_strides[0] == 16384 && out_layout::static_strides[1] == 512 &&
                out_layout::static_strides[2] == 1);
  static_assert(out_layout::static_extents[1] == 22 && out_layout::static_extents[2] == 512);
  static_assert(lse_layout::static_strides[0] == 32 && lse_layout::static_strides[1] == 1);
  static_assert(out_layout::static_contiguity() == contiguity::run_time);
  CHECK(out.data() == out_memory.data());
  CHECK(lse.data() == lse_memory.data());
  CHECK(out.extent<axis::token>() == tokens);
  CHECK(out.span_size() == 3 * 16384 + 22 * 512);
  CHECK(lse.span_size() == 3 * 32 + 22);
  CHECK_FALSE(out.is_contiguous());
  CHECK_FALSE(lse.is_contiguous());

  index_t wrong = 0;
  index_t poisoned = 0;
  for (index_t b = 0; b < tokens; ++b) {
    for (index_t h = 0; h < live; ++h) {
      if (std::isnan(lse(b, h))) ++poisoned;
      if (&lse(b, h) != &lse_memory[static_cast<std::size_t>(32 * b + h)]) ++wrong;
      for (index_t d = 0; d < width; ++d) {
        if (is_nan(out(b, h, d))) ++poisoned;
        if (to_float(out(b, h, d)) != static_cast<float>(32 * b + h)) ++wrong;
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(poisoned == 0);

  // The heads of rank r are 11 r to 11 r + 10, and still the caller's memory.
  const auto peers = split<axis::head, axis::rank, axis::head>(out, constant<2>);
  for (index_t r = 0; r < 2; ++r) {
    const auto mine = fix<axis::rank>(peers, r);
    CHECK(mine.extent<axis::head>() == 11);
    CHECK(mine.data() == out_memory.data() + 11 * 512 * r);
    CHECK(to_float(mine(3, 10, 511)) == static_cast<float>(32 * 3 + 11 * r + 10));
  }
}

TEST_CASE("A03: a column is read with its stride, not as so many numbers from a pointer") {
  std::int64_t memory[2][2] = {{0, 0}, {1, 1}};
  const auto table =
      make_view(&memory[0][0], packed(extent<axis::token, 2>(), extent<axis::head, 2>()));
  const auto column = fix<axis::head>(table, 0);
  static_assert(decltype(column)::rank == 1);
  CHECK(column.extent<axis::token>() == 2);
  CHECK(column.stride<axis::token>() == 2);
  CHECK(column.span_size() == 3);
  CHECK_FALSE(column.is_contiguous());
  static_assert(decltype(column)::layout_type::static_contiguity() == contiguity::never);
  for (int rank = 0; rank < 2; ++rank) {
    std::int64_t gathered[2] = {-1, -1};
    for (index_t i = 0; i < 2; ++i) gathered[i] = column(i);
    CHECK(gathered[0] == 0);
    CHECK(gathered[1] == 1);
  }
}

TEST_CASE("A12: where the peers stand is only a permutation of strides") {
  float memory[4 * 8];
  for (int h = 0; h < 4; ++h) {
    for (int d = 0; d < 8; ++d) memory[8 * h + d] = static_cast<float>(h);
  }
  const auto out = make_view(memory, packed(extent<axis::token, 1>(), extent<axis::head, 4>(),
                                            extent<axis::head_dim, 8>()));
  const auto peers = split<axis::head, axis::rank, axis::head>(out, constant<2>);
  const auto outer = permute<axis::rank, axis::token, axis::head, axis::head_dim>(peers);
  const auto inner = permute<axis::token, axis::head, axis::rank, axis::head_dim>(peers);
  CHECK(outer.data() == memory);
  CHECK(inner.data() == memory);
  static_assert(sizeof(outer) == sizeof(void*) && sizeof(inner) == sizeof(void*));

  // Read in the order of its axes, each gives the rows that its transport wants.
  std::vector<float> outer_rows;
  std::vector<float> inner_rows;
  for (int r = 0; r < 2; ++r) {
    for (int h = 0; h < 2; ++h) {
      outer_rows.push_back(outer(r, 0, h, 0));
      inner_rows.push_back(inner(0, r, h, 7));
    }
  }
  CHECK(outer_rows == std::vector<float>{0, 1, 2, 3});
  CHECK(inner_rows == std::vector<float>{0, 2, 1, 3});
  CHECK(outer.is_contiguous());
  CHECK_FALSE(inner.is_contiguous());
  static_assert(view_of<decltype(outer), axis::rank, axis::token, axis::head, axis::head_dim>);
  static_assert(view_of<decltype(inner), axis::token, axis::head, axis::rank, axis::head_dim>);
}

TEST_CASE("A13: queries inside a fused row are not packed rows") {
  constexpr int tokens = 3;
  std::vector<float> fused(tokens * 256, nan);
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < 2; ++h) {
      for (int d = 0; d < 64; ++d) {
        fused[static_cast<std::size_t>(256 * t + 64 * h + d)] = static_cast<float>(10 * t + h);
      }
    }
  }
  const auto rows =
      make_view(fused.data(), packed(extent<axis::token>(tokens), extent<axis::head_dim, 256>()));
  const auto query = split<axis::head_dim, axis::head, axis::head_dim>(
      slice<axis::head_dim>(rows, constant<0>, constant<128>), constant<2>);
  static_assert(view_of<decltype(query), axis::token, axis::head, axis::head_dim>);
  CHECK(query.stride<axis::token>() == 256);
  CHECK(query.stride<axis::head>() == 64);
  CHECK_FALSE(query.is_contiguous());
  int wrong = 0;
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < 2; ++h) {
      for (int d = 0; d < 64; ++d) {
        // Not so for a NaN either.
        if (!(query(t, h, d) == static_cast<float>(10 * t + h))) ++wrong;
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("B01: an LSE of (B, H, S) read as (tokens, heads)") {
  float memory[] = {0, 1, 10, 11};
  const auto given = make_view(
      memory, packed(extent<axis::sequence>(1), extent<axis::head, 2>(), extent<axis::slot>(2)));
  const auto lse = permute<axis::token, axis::head>(
      rename<axis::slot, axis::token>(fix<axis::sequence>(given, 0)));
  static_assert(view_of<decltype(lse), axis::token, axis::head>);
  CHECK(lse.data() == memory);
  CHECK(lse(0, 0) == 0);
  CHECK(lse(0, 1) == 10);
  CHECK(lse(1, 0) == 1);
  CHECK(lse(1, 1) == 11);
  CHECK_FALSE(lse.is_contiguous());
}

TEST_CASE("B03: padded (N, H, maxq) and packed (H, total_q) hold the same LSE") {
  constexpr int lengths[] = {1, 3};
  std::vector<float> padded(2 * 2 * 3, nan);
  std::vector<float> packed_memory(2 * 4, nan);
  for (int n = 0; n < 2; ++n) {
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < lengths[n]; ++i) {
        padded[static_cast<std::size_t>(6 * n + 3 * h + i)] =
            static_cast<float>(100 * n + 10 * h + i);
      }
    }
  }
  const auto from = make_view(padded.data(), packed(extent<axis::sequence>(2),
                                                    extent<axis::head>(2), extent<axis::token>(3)));
  const auto to =
      make_view(packed_memory.data(), packed(extent<axis::head>(2), extent<axis::token>(4)));
  index_t start = 0;
  for (int n = 0; n < 2; ++n) {
    const auto source = slice<axis::token>(fix<axis::sequence>(from, n), 0, lengths[n]);
    const auto target = slice<axis::token>(to, start, lengths[n]);
    REQUIRE(source.ok());
    REQUIRE(target.ok());
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < lengths[n]; ++i) target.value()(h, i) = source.value()(h, i);
    }
    start += lengths[n];
  }
  const auto at = [&](int n, int h, int i) {
    return padded[static_cast<std::size_t>(6 * n + 3 * h + i)];
  };
  for (int h = 0; h < 2; ++h) {
    CHECK(packed_memory[static_cast<std::size_t>(4 * h)] == at(0, h, 0));
    for (int i = 0; i < 3; ++i) {
      CHECK(packed_memory[static_cast<std::size_t>(4 * h + 1 + i)] == at(1, h, i));
    }
  }
  CHECK(packed_memory == std::vector<float>{0, 100, 101, 102, 10, 110, 111, 112});
}

TEST_CASE("B09: an LSE is stored with the strides that were asked for") {
  std::vector<float> memory(3 * 64, nan);
  const view lse(memory.data(), layout(dim<axis::token>(3, 64), dim<axis::head>(2, 1)));
  for (int t = 0; t < 3; ++t) {
    for (int h = 0; h < 2; ++h) lse(t, h) = static_cast<float>(10 * t + h);
  }
  int written = 0;
  for (const float value : memory) written += std::isnan(value) ? 0 : 1;
  CHECK(written == 6);
  for (std::size_t t = 0; t < 3; ++t) {
    for (std::size_t h = 0; h < 2; ++h) {
      CHECK(memory[64 * t + h] == static_cast<float>(10 * t + h));
    }
  }
}

void check_out_of_range(const status& why, index_t got, index_t expected) {
  CHECK(why.code == errc::out_of_range);
  CHECK(std::string(why.operand) == "slice");
  CHECK(std::string(why.axis) == "head");
  CHECK(why.got == got);
  CHECK(why.expected == expected);
}

TEST_CASE("slice: ranges that only the running program knows are checked") {
  float memory[4 * 32] = {};
  const auto all = make_view(memory, packed(extent<axis::token>(4), extent<axis::head>(32)));
  const auto heads = [&](index_t first, index_t count) {
    return slice<axis::head>(all, first, count);
  };
  CHECK(heads(0, 32).ok());
  CHECK(heads(32, 0).ok());
  CHECK(heads(10, 22).value().data() == memory + 10);
  CHECK(heads(10, 22).value().extent<axis::head>() == 22);
  CHECK(heads(10, 22).value().stride<axis::token>() == 32);
  check_out_of_range(heads(0, 33).why(), 33, 32);
  check_out_of_range(heads(20, 13).why(), 33, 32);
  check_out_of_range(heads(33, 0).why(), 33, 32);
  check_out_of_range(heads(-1, 2).why(), -1, 0);
  check_out_of_range(heads(2, -1).why(), -1, 0);
  check_out_of_range(heads(2, INT64_MAX).why(), INT64_MAX, 32);
  check_out_of_range(heads(INT64_MAX, INT64_MAX).why(), INT64_MAX, 32);

  // A count in the type stays there; a constant range of a run-time extent is checked at run time.
  const auto some = slice<axis::head>(all, 10, constant<22>);
  static_assert(std::remove_cvref_t<decltype(some.value())>::layout_type::static_extents[1] == 22);
  CHECK(some.ok());
  check_out_of_range(slice<axis::head>(all, 11, constant<22>).why(), 33, 32);
  check_out_of_range(slice<axis::head>(all, constant<11>, constant<22>).why(), 33, 32);
  CHECK(slice<axis::head>(all, constant<10>, constant<22>).value().data() == memory + 10);
  CHECK(slice<axis::head>(all, constant<10>, 22).value().data() == memory + 10);

  char text[128];
  format_status(heads(20, 13).why(), text, sizeof(text));
  CHECK(std::string(text) ==
        "out_of_range: slice, axis head: got 33, expected 32: the range ends beyond the axis");
}

TEST_CASE("split: groups that only the running program knows are checked") {
  float memory[24] = {};
  const auto all = make_view(memory, packed(extent<axis::token>(2), extent<axis::head>(12)));
  const auto by = [&](index_t count) {
    return split<axis::head, axis::rank, axis::head>(all, count);
  };
  const auto three = by(3);
  REQUIRE(three.ok());
  CHECK(three.value().extent<axis::rank>() == 3);
  CHECK(three.value().extent<axis::head>() == 4);
  CHECK(three.value().stride<axis::rank>() == 4);
  CHECK(&three.value()(1, 2, 3) == &memory[12 + 11]);
  CHECK(by(1).ok());
  CHECK(by(12).value().extent<axis::head>() == 1);

  CHECK(by(5).why().code == errc::shape_mismatch);
  CHECK(std::string(by(5).why().axis) == "head");
  CHECK(by(5).why().got == 12);
  CHECK(by(5).why().expected == 15);
  CHECK(by(INT64_MAX).why().expected == INT64_MAX);
  CHECK(by(0).why().code == errc::invalid_argument);
  CHECK(by(0).why().got == 0);
  CHECK(by(-3).why().code == errc::invalid_argument);
  CHECK(by(-3).why().got == -3);

  // A number of groups in the type, an extent that is not.
  const auto four = split<axis::head, axis::rank, axis::head>(all, constant<4>);
  static_assert(std::remove_cvref_t<decltype(four.value())>::layout_type::static_extents[1] == 4);
  CHECK(four.value().extent<axis::head>() == 3);
  CHECK(split<axis::head, axis::rank, axis::head>(all, constant<5>).why().got == 12);
  CHECK(split<axis::token, axis::sequence, axis::token>(all, 2).value().extent<axis::token>() == 1);
}

TEST_CASE("split of nothing, and of one group") {
  const view<float, layout<dim<axis::head, 0, 8>, dim<axis::head_dim, 8, 1>>> none;
  const auto parts = split<axis::head, axis::rank, axis::head>(none, constant<4>);
  CHECK(parts.extent<axis::rank>() == 4);
  CHECK(parts.extent<axis::head>() == 0);
  CHECK(parts.empty());
  CHECK(parts.data() == nullptr);
}

TEST_CASE("views without elements may be null, and stay so") {
  const view<float, layout<dim<axis::token, dynamic_extent, 32>, dim<axis::head, 32, 1>>> none;
  CHECK(none.data() == nullptr);
  CHECK(none.empty());
  CHECK(slice<axis::head>(none, constant<10>, constant<22>).data() == nullptr);
  CHECK(slice<axis::head>(none, 10, 22).value().data() == nullptr);
  CHECK(fix<axis::head>(none, 5).data() == nullptr);
  CHECK(fix<axis::head>(none, constant<31>).data() == nullptr);
  CHECK(split<axis::head, axis::rank, axis::head>(none, constant<2>).data() == nullptr);
}

TEST_CASE("a slice of no entries stays within its parent") {
  float memory[4 * 32] = {};
  const auto live =
      slice<axis::head>(make_view(memory, packed(extent<axis::token>(4), extent<axis::head, 32>())),
                        constant<0>, constant<22>);
  const auto behind = slice<axis::token>(live, 4, 0);
  REQUIRE(behind.ok());
  CHECK(behind.value().empty());
  CHECK(behind.value().data() == memory);
}

TEST_CASE("fix takes an axis away, down to a single element") {
  int memory[24];
  for (int i = 0; i < 24; ++i) memory[i] = i;
  const auto all = make_view(memory, packed(extent<axis::token, 2>(), extent<axis::head, 3>(),
                                            extent<axis::head_dim, 4>()));
  const auto row = fix<axis::head>(fix<axis::token>(all, 1), constant<2>);
  static_assert(view_of<decltype(row), axis::head_dim>);
  CHECK(row(3) == 23);
  const auto element = fix<axis::head_dim>(row, 0);
  static_assert(decltype(element)::rank == 0 && sizeof(element) == sizeof(void*));
  CHECK(element() == 20);
  element() = -1;
  CHECK(memory[20] == -1);
}

TEST_CASE("every function of views works in constant expressions") {
  constexpr auto whole =
      packed(extent<axis::token, 2>(), extent<axis::head, 4>(), extent<axis::head_dim, 8>());
  static constexpr float memory[64] = {};
  constexpr view all(memory, whole);
  constexpr auto last = slice<axis::head>(all, constant<3>, constant<1>);
  static_assert(last.data() == memory + 24);
  constexpr auto some = slice<axis::token>(all, 1, 1);
  static_assert(some.ok() && some.value().data() == memory + 32);
  static_assert(fix<axis::token>(all, 1).data() == memory + 32);
  static_assert(split<axis::head, axis::rank, axis::head>(all, constant<2>).stride<axis::rank>() ==
                16);
  static_assert(permute<axis::head_dim, axis::token, axis::head>(all).stride<axis::token>() == 32);
  static_assert(rename<axis::head, axis::rank>(all).extent<axis::rank>() == 4);
  static_assert(all(1, 3, 7) == 0.0f);
  CHECK(validate("all", all).ok());
  CHECK(all.is_contiguous());
}

}  // namespace

// Found by the fuzzer: strides that are never stepped along may be anything.
TEST_CASE("a split into one group, and parts without elements, overflow no offset") {
  constexpr index_t huge = INT64_MAX / 2;
  int one = 7;
  const view lone(&one, layout(dim<axis::token>(1, huge), dim<axis::head>(1, huge)));
  REQUIRE(validate("lone", lone).ok());
  const auto group = split<axis::head, axis::rank, axis::head>(lone, 1);
  REQUIRE(group.ok());
  CHECK(group.value()(0, 0, 0) == 7);

  const view none(&one, layout(dim<axis::token>(0, huge), dim<axis::head>(215, huge)));
  REQUIRE(validate("none", none).ok());
  const auto part = slice<axis::head>(none, 200, 15);
  REQUIRE(part.ok());
  CHECK(part.value().data() == &one);
  CHECK(split<axis::head, axis::rank, axis::head>(none, 5).ok());
}
