// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>

#include <type_traits>

namespace headwise::inline v0 {

enum class errc : std::uint8_t {
  ok,
  invalid_argument,   ///< a value that no call could accept (a negative extent, zero ranks)
  shape_mismatch,     ///< two extents that must be equal are not
  stride_mismatch,    ///< a stride is not the one that a layout promises
  out_of_range,       ///< an index or a range leaves its axis
  not_contiguous,     ///< a strict entry was given a view with gaps
  misaligned,         ///< a pointer or a pitch is not aligned as required
  overlap,            ///< a destination whose elements share memory
  capacity_exceeded,  ///< a workspace or a message does not fit
  unsupported,        ///< well formed, but nothing here can do it
  rank_mismatch,      ///< ranks of one group made different calls
  timed_out,          ///< a rank did not arrive in time
  poisoned,           ///< an earlier failure has made this group unusable until it is reset
  cuda_failed,        ///< a call of the CUDA runtime; got is its cudaError_t
  nccl_failed,        ///< a call of NCCL; got is its ncclResult_t
  system_failed,      ///< a call of the operating system; got is its errno
};

constexpr const char* to_string(errc code) noexcept {
  switch (code) {
    case errc::ok: return "ok";
    case errc::invalid_argument: return "invalid_argument";
    case errc::shape_mismatch: return "shape_mismatch";
    case errc::stride_mismatch: return "stride_mismatch";
    case errc::out_of_range: return "out_of_range";
    case errc::not_contiguous: return "not_contiguous";
    case errc::misaligned: return "misaligned";
    case errc::overlap: return "overlap";
    case errc::capacity_exceeded: return "capacity_exceeded";
    case errc::unsupported: return "unsupported";
    case errc::rank_mismatch: return "rank_mismatch";
    case errc::timed_out: return "timed_out";
    case errc::poisoned: return "poisoned";
    case errc::cuda_failed: return "cuda_failed";
    case errc::nccl_failed: return "nccl_failed";
    case errc::system_failed: return "system_failed";
  }
  return "unknown";
}

/// The line that found the failure. std::source_location is missing from clang 14, the builtins are
/// not.
struct source_line {
  const char* file = "";
  int line = 0;

  static constexpr source_line current(const char* file = __builtin_FILE(),
                                       int line = __builtin_LINE()) noexcept {
    return {file, line};
  }
};

/// What a call came to. A failure names the operand (and the axis, where there is one) and carries
/// the two values that disagree; all text is static, so a status is cheap to return and never
/// allocates. format_status() writes it out as a sentence.
struct [[nodiscard]] status {
  errc code = errc::ok;
  const char* operand = "";
  const char* axis = "";
  const char* message = "";
  index_t got = 0;
  index_t expected = 0;
  source_line where = {};

  constexpr bool ok() const noexcept { return code == errc::ok; }
};

/// A failed status at the caller's line.
constexpr status failure(errc code, const char* operand, const char* message, index_t got = 0,
                         index_t expected = 0, const char* axis = "",
                         source_line where = source_line::current()) noexcept {
  return {code, operand, axis, message, got, expected, where};
}

namespace detail {

/// Appends to a fixed buffer and goes on counting past its end, as snprintf does.
struct text_sink {
  char* data;
  std::size_t capacity;
  std::size_t length = 0;

  constexpr void put(char c) noexcept {
    if (capacity != 0 && length < capacity - 1) data[length] = c;
    ++length;
  }
  constexpr void put(const char* text) noexcept {
    while (*text != '\0') put(*text++);
  }
  constexpr void put(index_t number) noexcept {
    char digits[20] = {};
    int count = 0;
    const bool negative = number < 0;
    std::uint64_t rest = static_cast<std::uint64_t>(number);
    if (negative) rest = 0 - rest;
    do {
      digits[count++] = static_cast<char>('0' + rest % 10);
      rest /= 10;
    } while (rest != 0);
    if (negative) put('-');
    while (count > 0) put(digits[--count]);
  }
  constexpr std::size_t finish() noexcept {
    if (capacity != 0) data[length < capacity ? length : capacity - 1] = '\0';
    return length;
  }
};

}  // namespace detail

/// Writes "shape_mismatch: partial_lse, axis head: got 31, expected 32: <message>" into `buffer`,
/// always terminated, and returns the length that the whole text has (as snprintf does).
constexpr std::size_t format_status(const status& what, char* buffer,
                                    std::size_t capacity) noexcept {
  detail::text_sink out{buffer, capacity};
  out.put(to_string(what.code));
  if (!what.ok()) {
    if (*what.operand != '\0') {
      out.put(": ");
      out.put(what.operand);
    }
    if (*what.axis != '\0') {
      out.put(", axis ");
      out.put(what.axis);
    }
    if (what.got != what.expected) {
      out.put(": got ");
      out.put(what.got);
      out.put(", expected ");
      out.put(what.expected);
    }
    if (*what.message != '\0') {
      out.put(": ");
      out.put(what.message);
    }
  }
  return out.finish();
}

namespace detail {

/// Room for a value that may be missing; a T without a default constructor must be trivially
/// copyable.
template <class T, bool = std::is_default_constructible_v<T>>
struct result_value {
  T value{};
};
template <class T>
struct result_value<T, false> {
  static_assert(std::is_trivially_copyable_v<T>,
                "headwise: a result holds a type that is default-constructible or trivially "
                "copyable");
  union {
    char none;
    T value;
  };
  constexpr result_value() noexcept : none{} {}
  constexpr explicit result_value(const T& held) noexcept : value(held) {}
};

}  // namespace detail

/// A value or the status that says why there is none.
template <class T>
class [[nodiscard]] result {
 public:
  constexpr result(T value) noexcept : held_{static_cast<T&&>(value)} {}  // NOLINT: implicit
  constexpr result(const status& why) noexcept : why_(why) {              // NOLINT: implicit
    HEADWISE_ASSERT(!why.ok());
  }

  constexpr bool ok() const noexcept { return why_.ok(); }
  constexpr const status& why() const noexcept { return why_; }

  /// Precondition: ok(). Of a temporary result it is the value itself, so that
  /// `const auto& v = f().value();` does not dangle.
  constexpr const T& value() const& noexcept {
    HEADWISE_ASSERT(ok());
    return held_.value;
  }
  constexpr T value() && noexcept {
    HEADWISE_ASSERT(ok());
    return static_cast<T&&>(held_.value);
  }

 private:
  detail::result_value<T> held_{};
  status why_{};
};

}  // namespace headwise::inline v0
