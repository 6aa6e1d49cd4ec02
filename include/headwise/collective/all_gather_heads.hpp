// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/collective/workspace.hpp>
#include <headwise/plan/copy_plan.hpp>
#include <headwise/plan/route.hpp>

namespace headwise::inline v0 {

/// Equal on all ranks of a call.
struct all_gather_options {
  route_preference preference = route_preference::automatic;
};

/// Bytes of workspace that an all_gather_heads of up to this shape needs, whichever way it goes: this
/// rank's part and those of all. `shape.heads` counts the heads of one rank.
/// Errors: unsupported (ranks), invalid_argument (a negative extent), capacity_exceeded.
template <class T>
constexpr result<index_t> all_gather_heads_bytes(const message_shape& shape) noexcept {
  const status ranks_ok = require_supported_ranks(shape.ranks);
  if (!ranks_ok.ok()) return ranks_ok;
  if (shape.ranks == 1) return index_t{0};
  const checked_size part = (checked_size(shape.tokens) * shape.heads * shape.head_dim *
                             index_t{sizeof(T)})
                                .rounded_up(workspace_alignment);
  const checked_size all = part * (shape.ranks + 1);
  if (!all.valid()) return require_capacity("workspace", all, INT64_MAX);
  return all.value();
}

namespace detail {

/// The dims of `like`, packed in its order, at `data`.
template <class U, class T, class... Dims, memory_space Space>
constexpr auto packed_like(U* data, const view<T, layout<Dims...>, Space>& like) noexcept {
  const auto dense = packed(extent<typename Dims::axis_type, Dims::static_extent>(
      static_cast<const Dims&>(like.layout()).extent())...);
  return view<U, std::remove_cv_t<decltype(dense)>, Space>(data, dense);
}

}  // namespace detail

/// Every rank has its own heads of the query and gets those of all, rank by rank, bit for bit.
///
/// `local`      over token, head (h) and head_dim, any order and strides, any element type (fp8 too).
/// `gathered`   over the same axes with N * h heads: head r * h + i is head i of rank r. It may be a
///              slice of a larger buffer (99 heads in a tile of 104); what lies outside stays.
/// `workspace`  all_gather_heads_bytes(), aligned to 16; nothing else is allocated.
///
/// Collective: shapes, types, axis order and options are equal on all ranks. With one rank nothing
/// travels. With no tokens nothing is done, but every rank still takes part.
/// Errors: shape_mismatch, overlap, capacity_exceeded, misaligned, those of validate() and of the
/// transport. Nothing is written unless all ranks accept the call.
template <class Executor, transport Transport, class Local, class Gathered>
status all_gather_heads(const Executor& executor, Transport& group, const Local& local,
                        const Gathered& gathered, std::span<std::byte> workspace,
                        const all_gather_options& options = {}) noexcept {
  static_assert(view_over<Local, axis::token, axis::head, axis::head_dim> &&
                    view_over<Gathered, axis::token, axis::head, axis::head_dim>,
                "headwise: heads are gathered over token, head and head_dim");
  using element = typename Local::value_type;
  static_assert(detail::same_bits<element, typename Gathered::value_type>,
                "headwise: a gather moves bits and does not convert between element types");
  const int ranks = group.size();
  const index_t tokens = local.template extent<axis::token>();
  const index_t heads = local.template extent<axis::head>();
  const index_t head_dim = local.template extent<axis::head_dim>();

  const auto check = [&]() -> status {
    const status local_ok = validate("local", local);
    if (!local_ok.ok()) return local_ok;
    const status gathered_ok = validate_target("gathered", gathered);
    if (!gathered_ok.ok()) return gathered_ok;
    const index_t got[] = {gathered.template extent<axis::token>(),
                           gathered.template extent<axis::head>(),
                           gathered.template extent<axis::head_dim>()};
    const index_t expected[] = {tokens, heads * ranks, head_dim};
    const char* const names[] = {axis::token::name, axis::head::name, axis::head_dim::name};
    for (int i = 0; i < 3; ++i) {
      if (got[i] != expected[i]) {
        return failure(errc::shape_mismatch, "gathered", "holds the heads of all ranks", got[i],
                       expected[i], names[i]);
      }
    }
    return {};
  };
  const status checked = check();
  if (!checked.ok()) return detail::refuse(group, checked);
  if (ranks == 1) return executor.materialize(local, gathered);

  const result<index_t> needed = all_gather_heads_bytes<element>({ranks, tokens, heads, head_dim});
  if (!needed.ok()) return detail::refuse(group, needed.why());
  const gather_route route = route_all_gather(local, gathered, ranks, options.preference);
  const status room = detail::check_workspace(workspace, needed.value());
  if (!room.ok()) return detail::refuse(group, room);

  const index_t part = tokens * heads * head_dim * index_t{sizeof(element)};
  const index_t pitch = detail::round_up(part, workspace_alignment);
  auto* const outgoing = reinterpret_cast<element*>(workspace.data());
  std::byte* const incoming = workspace.data() + pitch;
  send_chunk own{local.data(), part};
  if (route.send.which == way::packed) {
    const status packed_ok = executor.materialize(local, detail::packed_like(outgoing, local));
    if (!packed_ok.ok()) return detail::refuse(group, packed_ok);
    own.data = outgoing;
  }
  const auto parts = headwise::split<axis::head, axis::rank, axis::head>(gathered, ranks);
  if (!parts.ok()) return detail::refuse(group, parts.why());
  receive_chunk from[max_ranks];
  for (int r = 0; r < ranks; ++r) {
    void* const to = route.receive.which == way::straight
                         ? static_cast<void*>(fix<axis::rank>(parts.value(), r).data())
                         : static_cast<void*>(incoming + r * pitch);
    from[r] = {to, part};
  }
  call_signature call{"all_gather_heads", detail::operation_id("all_gather_heads"), {}};
  constexpr bool token_major = view_of<Local, axis::token, axis::head, axis::head_dim>;
  const index_t fields[] = {tokens, heads, head_dim, index_t{sizeof(element)}, 0, token_major};
  for (int i = 0; i < call_signature::field_count; ++i) call.fields[i] = fields[i];
  const status gathered_all =
      group.all_gather(own, {from, static_cast<std::size_t>(ranks)}, call);
  if (!gathered_all.ok() || route.receive.which == way::straight) return gathered_all;
  for (int r = 0; r < ranks; ++r) {
    const auto* const arrived = reinterpret_cast<const element*>(incoming + r * pitch);
    const status placed = executor.materialize(detail::packed_like(arrived, local),
                                               fix<axis::rank>(parts.value(), r));
    if (!placed.ok()) return placed;
  }
  return {};
}

}  // namespace headwise::inline v0
