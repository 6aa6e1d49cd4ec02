// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <span>

#include <headwise/plan/capacity.hpp>
#include <headwise/transport/transport.hpp>

namespace headwise::inline v0 {

/// Where every plane of a workspace starts, and how a workspace itself must be aligned, in bytes.
inline constexpr index_t workspace_alignment = 16;

namespace detail {

/// Errors: capacity_exceeded, misaligned.
inline status check_workspace(std::span<std::byte> workspace, index_t needed) noexcept {
  const status fits =
      require_capacity("workspace", needed, static_cast<index_t>(workspace.size()));
  if (!fits.ok()) return fits;
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  if (needed > 0 && address % workspace_alignment != 0) {
    return failure(errc::misaligned, "workspace", "starts on a multiple of 16 bytes",
                   static_cast<index_t>(address % workspace_alignment), 0);
  }
  return {};
}

/// Tells the peers that this rank cannot make the call, where the transport has a way to, so that
/// they do not wait for it; returns the reason.
template <transport Transport>
status refuse(Transport& group, const status& why) noexcept {
  if constexpr (requires { group.refuse(); }) {
    static_cast<void>(group.refuse().ok());
  }
  return why;
}

/// FNV-1a, so that an operation has the same number in every process.
constexpr std::uint64_t operation_id(const char* name) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<std::uint8_t>(*name)) * 0x100000001b3u;
  return hash;
}

}  // namespace detail

}  // namespace headwise::inline v0
