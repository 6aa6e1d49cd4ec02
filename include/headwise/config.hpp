// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

// The first header of every other one: the language check and the only macros that an including
// program sees (HEADWISE_VERSION lives in version.hpp).

#if defined(_MSVC_LANG)
#if _MSVC_LANG < 202002L
#error "Headwise needs C++20: compile with /std:c++20"
#endif
#elif __cplusplus < 202002L
#error "Headwise needs C++20: compile with -std=c++20, and pass -std=c++20 to nvcc as well"
#endif

#if defined(__CUDACC__)
#define HEADWISE_HD __host__ __device__
#else
#define HEADWISE_HD
#endif

/// Precondition hook, off by default. Define it before the first include, and alike in every
/// translation unit, to turn broken preconditions (an index out of bounds) into a trap of your own.
#ifndef HEADWISE_ASSERT
#define HEADWISE_ASSERT(condition) static_cast<void>(0)
#endif

#include <cstddef>
#include <cstdint>

namespace headwise::inline v0 {

/// Extents, strides, offsets and counts of elements. Always 64-bit: a page id of 2^18 times a page
/// stride of 2^14 elements already leaves 32 bits.
using index_t = std::int64_t;

/// The largest group that one KV cache is spread over.
inline constexpr int max_ranks = 16;

namespace detail {

template <class...>
inline constexpr bool always_false = false;

/// std::bit_cast is a host function to nvcc; the builtin behind it is not.
template <class To, class From>
  requires(sizeof(To) == sizeof(From))
HEADWISE_HD constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}

template <class T>
HEADWISE_HD constexpr T lesser(T a, T b) noexcept {
  return b < a ? b : a;
}

template <class T>
HEADWISE_HD constexpr T greater(T a, T b) noexcept {
  return a < b ? b : a;
}

HEADWISE_HD constexpr index_t clamp(index_t value, index_t low, index_t high) noexcept {
  return value < low ? low : (value > high ? high : value);
}

HEADWISE_HD constexpr index_t ceil_div(index_t value, index_t by) noexcept {
  return (value + by - 1) / by;
}

HEADWISE_HD constexpr index_t round_up(index_t value, index_t to) noexcept {
  return ceil_div(value, to) * to;
}

}  // namespace detail

}  // namespace headwise::inline v0
