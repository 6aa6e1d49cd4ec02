// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/view/slice.hpp>
#include <headwise/view/view.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

using namespace headwise;

namespace {

using lse_layout = layout<dim<axis::token>, dim<axis::head>>;

alignas(16) float memory[64];

status checked(float* data, index_t tokens, index_t token_stride, index_t heads,
               index_t head_stride) {
  return validate("partial_lse",
                  view<float, lse_layout>(data, lse_layout(dim<axis::token>(tokens, token_stride),
                                                           dim<axis::head>(heads, head_stride))));
}

void check_why(const status& why, errc code, const char* axis, index_t got, index_t expected) {
  CHECK(why.code == code);
  CHECK(std::string(why.operand) == "partial_lse");
  CHECK(std::string(why.axis) == axis);
  CHECK(why.got == got);
  CHECK(why.expected == expected);
}

TEST_CASE("validate refuses what no view may be, and says where") {
  CHECK(checked(memory, 2, 32, 22, 1).ok());
  check_why(checked(memory, -2, 32, 22, 1), errc::invalid_argument, "token", -2, 0);
  check_why(checked(memory, 2, 32, -22, 1), errc::invalid_argument, "head", -22, 0);
  check_why(checked(memory, 2, -32, 22, 1), errc::invalid_argument, "token", -32, 0);
  check_why(checked(memory, 0, 1, 22, -1), errc::invalid_argument, "head", -1, 0);
  check_why(checked(nullptr, 2, 32, 22, 1), errc::invalid_argument, "", 0, 0);
}

TEST_CASE("validate accepts nothing, and a broadcast") {
  CHECK(checked(nullptr, 0, 32, 22, 1).ok());
  CHECK(checked(nullptr, 2, 32, 0, 1).ok());
  CHECK(checked(memory, 2, 0, 22, 1).ok());
  CHECK(checked(memory, 1, INT64_MAX, 1, INT64_MAX).ok());  // strides that nobody uses
  CHECK(validate("x", view<float, layout<>>(memory)).ok());
  CHECK_FALSE(validate("x", view<float, layout<>>()).ok());
}

TEST_CASE("validate refuses a view that leaves the address space") {
  const index_t most = INT64_MAX / 4;  // floats that a pointer difference can count
  CHECK(checked(memory, 1, 1, most, 1).ok());
  check_why(checked(memory, 1, 1, most + 1, 1), errc::out_of_range, "head", most + 1, most);
  check_why(checked(memory, INT64_MAX, INT64_MAX, 2, 1), errc::out_of_range, "token", INT64_MAX, 1);
  check_why(checked(memory, 2, most, 2, 1), errc::out_of_range, "token", 2, 1);
  check_why(checked(memory, 2, most - 1, 2, 1), errc::out_of_range, "head", 2, 1);
  CHECK(checked(memory, 2, most - 2, 2, 1).ok());
  CHECK(checked(memory, INT64_MAX, 0, 2, 1).ok());
  CHECK(checked(nullptr, INT64_MAX, INT64_MAX, 0, INT64_MAX).ok());
}

TEST_CASE("validate refuses a pointer that is not aligned for its element") {
  auto* const off_by_two = reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(memory) + 2);
  check_why(checked(off_by_two, 2, 32, 22, 1), errc::misaligned, "", 2, 0);
  CHECK(checked(off_by_two, 0, 32, 22, 1).ok());
}

// Both halves of G01 that a view can answer: the values, and that contiguity says nothing about
// addresses. That only whole 16 bytes take vectors is tested with the plans.
template <class T>
void check_offset(index_t first, std::uintptr_t bytes_off) {
  alignas(16) static T buffer[2 * 512 + 16];
  for (int i = 0; i < 2 * 512 + 16; ++i) buffer[i] = from_float<T>(static_cast<float>(i % 128));
  const auto rows =
      make_view(buffer + first, packed(extent<axis::token, 2>(), extent<axis::head_dim, 512>()));
  static_assert(decltype(rows)::layout_type::static_contiguity() == contiguity::always);
  CHECK(validate("rows", rows).ok());
  CHECK(reinterpret_cast<std::uintptr_t>(rows.data()) % 16 == bytes_off);
  int wrong = 0;
  for (int t = 0; t < 2; ++t) {
    for (int d = 0; d < 512; ++d) {
      const auto expected = static_cast<float>((first + 512 * t + d) % 128);
      if (to_float(rows(t, d)) != expected) ++wrong;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("G01: a contiguous view may begin anywhere its elements may") {
  check_offset<float>(0, 0);
  check_offset<float>(1, 4);
  check_offset<float>(2, 8);
  check_offset<float>(3, 12);
  check_offset<bf16>(0, 0);
  check_offset<bf16>(1, 2);
  check_offset<bf16>(2, 4);
  check_offset<bf16>(4, 8);
  check_offset<bf16>(8, 0);
}

}  // namespace
