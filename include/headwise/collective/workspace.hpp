// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/plan/capacity.hpp>
#include <headwise/plan/operands.hpp>
#include <headwise/transport/transport.hpp>

#include <span>

// What the verbs share: the caller's workspace, which operand may lie in whose place, and how a
// rank that cannot make a call says so.

namespace headwise::inline v0 {

/// Where every plane of a workspace starts, and how a workspace itself must be aligned, in bytes.
inline constexpr index_t workspace_alignment = 16;

namespace detail {

/// Errors: capacity_exceeded, misaligned.
inline status check_workspace(std::span<std::byte> workspace, checked_size needed) noexcept {
  const status fits = require_capacity("workspace", needed, static_cast<index_t>(workspace.size()));
  if (!fits.ok()) return fits;
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  if (needed.value() > 0 && address % workspace_alignment != 0) {
    return failure(errc::misaligned, "workspace", "starts on a multiple of 16 bytes",
                   static_cast<index_t>(address % workspace_alignment), 0);
  }
  return {};
}

/// An operand in `other`, which the call writes, would be overwritten before it has been read.
/// (Rows of the one in the gaps of the other are refused as well.) Errors: overlap, with the bytes
/// in common.
template <class T, class Layout, memory_space Space>
status check_apart(
    std::span<const std::byte> other, const char* operand, const view<T, Layout, Space>& which,
    const char* message = "shares memory with the workspace (bytes in common)") noexcept {
  const index_t common = bytes_in_common(other, memory_of(which));
  return common == 0 ? status{} : failure(errc::overlap, operand, message, common, 0);
}
inline status check_apart(std::span<const std::byte>, const char*, none_t,
                          const char* = "") noexcept {
  return {};
}
template <class Lengths, class QueryStarts>
status check_apart(
    std::span<const std::byte> other, const char*,
    const keys_by_sequence<Lengths, QueryStarts>& which,
    const char* message = "shares memory with the workspace (bytes in common)") noexcept {
  const status lengths_apart = check_apart(other, "lengths", which.lengths, message);
  return lengths_apart.ok() ? check_apart(other, "query_starts", which.query_starts, message)
                            : lengths_apart;
}

/// True where both views name the same elements of the same memory.
template <class T, class Other, class From, class... Dims, memory_space SpaceA, memory_space SpaceB>
constexpr bool same_place(const view<T, From, SpaceA>& one,
                          const view<Other, layout<Dims...>, SpaceB>& other) noexcept {
  const void* const first = one.data();
  return first == other.data() && ((one.template extent<typename Dims::axis_type>() == 1 ||
                                    one.template stride<typename Dims::axis_type>() ==
                                        other.template stride<typename Dims::axis_type>()) &&
                                   ...);
}

/// The heads of one rank in an operand with those of all. Precondition: their number divides.
template <class Operand>
constexpr auto heads_of(const Operand& operand, index_t ranks, index_t rank) noexcept {
  return fix_unchecked<axis::rank>(
      split_unchecked<axis::head, axis::rank, axis::head, dynamic_extent, dynamic_extent>(
          operand, ranks, operand.template extent<axis::head>() / ranks),
      rank);
}

/// Tells the peers that this rank cannot make the call, where the transport has a way to, so that
/// they do not wait for it; returns the reason.
template <transport Transport>
status refuse(Transport& group, const status& why) noexcept {
  if constexpr (requires { group.refuse(why); }) {
    return group.refuse(why);
  } else {
    return why;
  }
}

}  // namespace detail

}  // namespace headwise::inline v0
