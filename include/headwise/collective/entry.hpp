// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/plan/operands.hpp>

namespace headwise::inline v0 {

/// What a verb over a pool takes. The kernels read any strides; `strict` is for callers who also
/// hand their operands to pools that do not, and want to hear it here.
enum class entry : std::uint8_t {
  strided,
  strict,  ///< operands without gaps only: not_contiguous, or an error of the compiler
};

namespace detail {

/// Errors: not_contiguous. A type that always has gaps does not compile.
template <entry Entry, class View>
constexpr status check_entry([[maybe_unused]] const char* operand,
                             [[maybe_unused]] const View& what) noexcept {
  if constexpr (Entry == entry::strict && !is_none<View>) {
    static_assert(
        View::layout_type::static_contiguity() != contiguity::never,
        "headwise: strict entry: an operand of this type always has gaps; materialize it, "
        "or take entry::strided");
    if (!what.is_contiguous()) {
      return failure(errc::not_contiguous, operand, "must be contiguous");
    }
  }
  return {};
}

}  // namespace detail

}  // namespace headwise::inline v0
