// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>

namespace headwise::inline v0 {

/// Where a view's elements live. Part of the view's type, so that host code which dereferences
/// device memory does not compile.
enum class memory_space : std::uint8_t {
  host,    ///< pageable memory of this process
  device,  ///< memory of a GPU
  pinned,  ///< page-locked host memory that kernels may read and write too
};

constexpr const char* to_string(memory_space space) noexcept {
  switch (space) {
    case memory_space::host: return "host";
    case memory_space::device: return "device";
    case memory_space::pinned: return "pinned";
  }
  return "unknown";
}

constexpr bool host_accessible(memory_space space) noexcept {
  return space != memory_space::device;
}

constexpr bool device_accessible(memory_space space) noexcept {
  return space != memory_space::host;
}

}  // namespace headwise::inline v0
