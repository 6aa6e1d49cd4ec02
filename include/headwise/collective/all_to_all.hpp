// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/collective/all_gather_heads.hpp>

namespace headwise::inline v0 {

namespace detail {

/// The parts of an all-to-all for all ranks, packed.
template <class View>
constexpr checked_size packed_parts_bytes(const View& operand) noexcept {
  const index_t ranks = operand.template extent<axis::rank>();
  if (ranks <= 1 || operand.empty() || fix<axis::rank>(operand, 0).is_contiguous()) return 0;
  const auto extents = operand.layout().extents();
  checked_size all = index_t{sizeof(typename View::value_type)};
  for (int i = 0; i < View::rank; ++i) all = all * extents[i];
  return all.rounded_up(workspace_alignment);
}

/// The same parts as `operand` has, packed at `data`, rank by rank.
template <class Element, class View>
constexpr auto packed_parts(Element* data, const View& operand) noexcept {
  const auto one = packed_like(data, fix<axis::rank>(operand, 0));
  return repeated<axis::rank>(one, operand.template extent<axis::rank>(), one.size());
}

/// The axes of an all-to-all with their extents, in order, and the elements.
template <class T, class... Dims, memory_space Space>
constexpr call_signature all_to_all_signature(
    const view<T, layout<Dims...>, Space>& operand) noexcept {
  static_assert(sizeof...(Dims) + 2 <= call_signature::max_fields,
                "headwise: more axes than an all-to-all can have");
  return {"all_to_all",
          {{Dims::axis_type::name, operand.template extent<typename Dims::axis_type>()}...,
           {"element_kind", static_cast<index_t>(element_kind_of<T>)},
           {"element_bytes", index_t{sizeof(T)}}}};
}

}  // namespace detail

/// Bytes of workspace that all_to_all needs for these operands: a packed copy of each whose parts
/// are not contiguous. Errors: capacity_exceeded. Precondition: the operands pass validate().
template <class Send, class Receive>
constexpr result<index_t> all_to_all_bytes(const Send& send, const Receive& receive) noexcept {
  const checked_size needed =
      detail::packed_parts_bytes(send) + detail::packed_parts_bytes(receive);
  if (!needed.valid()) return require_capacity("workspace", needed, INT64_MAX);
  return needed.value();
}

/// Sends entry j on axis rank of `send` to rank j, where it becomes entry i of `receive`, i being
/// this rank; bit for bit, any element type, fp8 included.
///
/// `send`, `receive`  over rank (N) and any other axes, of the same extents; any strides; apart.
/// `workspace`        all_to_all_bytes(), aligned to 16.
///
/// Collective: extents, element types and the order of the axes are equal on all ranks, strides are
/// each rank's own. With one rank nothing travels.
/// Errors: unsupported (ranks), shape_mismatch, overlap, capacity_exceeded, misaligned, those of
/// validate(), of the executor and of the transport. Nothing is written unless all ranks accept the
/// call.
template <class Executor, transport Transport, class Send, class Receive>
status all_to_all(const Executor& executor, Transport& group, const Send& send,
                  const Receive& receive, std::span<std::byte> workspace) noexcept {
  static_assert(std::is_same_v<typename detail::axes_of<Send>::type,
                               typename detail::axes_of<Receive>::type> &&
                    Send::layout_type::template has_axis<axis::rank>,
                "headwise: all_to_all exchanges views over rank and the same other axes, in the "
                "same order");
  using element = typename Send::value_type;
  static_assert(alignof(element) <= workspace_alignment,
                "headwise: elements are aligned to at most 16 bytes");
  static_assert(detail::same_bits<element, typename Receive::value_type>,
                "headwise: an all-to-all moves bits and does not convert between element types");
  const index_t ranks = group.size();
  const status ranks_ok = require_supported_ranks(ranks);
  if (!ranks_ok.ok()) return ranks_ok;
  const auto check = [&]() -> status {
    const status copy_ok = check_copy("send", send, "receive", receive);
    if (!copy_ok.ok()) return copy_ok;
    if (send.template extent<axis::rank>() != ranks) {
      return failure(errc::shape_mismatch, "send", "one entry per rank",
                     send.template extent<axis::rank>(), ranks, axis::rank::name);
    }
    return detail::check_apart(detail::memory_of(receive), "send", send,
                               "shares memory with receive (bytes in common)");
  };
  const status checked = check();
  if (!checked.ok()) return detail::refuse(group, checked);
  if (ranks == 1) return executor.materialize(send, receive);
  const result<index_t> needed = all_to_all_bytes(send, receive);
  if (!needed.ok()) return detail::refuse(group, needed.why());
  const status room = detail::check_workspace(workspace, needed.value());
  if (!room.ok()) return detail::refuse(group, room);
  for (const status& apart : {detail::check_apart(workspace, "send", send),
                              detail::check_apart(workspace, "receive", receive)}) {
    if (!apart.ok()) return detail::refuse(group, apart);
  }

  const index_t part = send.size() / ranks * index_t{sizeof(element)};
  const bool send_straight = fix<axis::rank>(send, 0).is_contiguous();
  const bool receive_straight = fix<axis::rank>(receive, 0).is_contiguous();
  std::byte* const outgoing = workspace.data();
  std::byte* const incoming = outgoing + detail::packed_parts_bytes(send).value();
  if (!send_straight) {
    const status packed_ok = executor.materialize(
        send, detail::packed_parts(reinterpret_cast<element*>(outgoing), send));
    if (!packed_ok.ok()) return detail::refuse(group, packed_ok);
  }
  send_chunk to[max_ranks];
  receive_chunk from[max_ranks];
  // A workspace that nothing needs may be null: no arithmetic on it.
  for (index_t r = 0; r < ranks; ++r) {
    to[r].run_bytes = from[r].run_bytes = part;
    if (send_straight) {
      to[r].data = fix<axis::rank>(send, r).data();
    } else {
      to[r].data = outgoing + r * part;
    }
    if (receive_straight) {
      from[r].data = fix<axis::rank>(receive, r).data();
    } else {
      from[r].data = incoming + r * part;
    }
  }
  const auto count = static_cast<std::size_t>(ranks);
  const status exchanged =
      group.exchange({to, count}, {from, count}, detail::all_to_all_signature(send));
  if (!exchanged.ok() || receive_straight) return exchanged;
  return executor.materialize(
      detail::packed_parts(reinterpret_cast<const element*>(incoming), receive), receive);
}

}  // namespace headwise::inline v0
