// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/config.hpp>

#include <concepts>

namespace headwise::inline v0 {

/// Names of what a dimension counts. A view of [token, head] handed on as [head, token] does not
/// compile, even where the two sizes agree. An engine adds an axis by defining such a struct.
namespace axis {

struct token {
  static constexpr const char* name = "token";
};
struct head {
  static constexpr const char* name = "head";
};
struct head_dim {
  static constexpr const char* name = "head_dim";
};
struct rank {
  static constexpr const char* name = "rank";
};
struct sequence {
  static constexpr const char* name = "sequence";
};
struct page {
  static constexpr const char* name = "page";
};
struct slot {
  static constexpr const char* name = "slot";
};

}  // namespace axis

template <class T>
concept axis_type = requires {
  { T::name } -> std::convertible_to<const char*>;
};

}  // namespace headwise::inline v0
