// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/collective/workspace.hpp>
#include <headwise/plan/copy_plan.hpp>
#include <headwise/plan/route.hpp>

namespace headwise::inline v0 {

struct all_gather_options {
  route_preference preference = route_preference::automatic;  ///< each rank's own
};

/// Bytes of workspace that an all_gather_heads of up to this shape needs, whichever way it goes:
/// this rank's part and those of all. `shape.heads` counts the heads of one rank.
/// Errors: unsupported (ranks), capacity_exceeded (a negative extent too).
template <class T>
constexpr result<index_t> all_gather_heads_bytes(const message_shape& shape) noexcept {
  const status ranks_ok = require_supported_ranks(shape.ranks);
  if (!ranks_ok.ok()) return ranks_ok;
  if (shape.ranks == 1) return index_t{0};
  const checked_size part =
      checked_size(shape.tokens) * shape.heads * shape.head_dim * index_t{sizeof(T)};
  const checked_size all = part.rounded_up(workspace_alignment) + part * shape.ranks;
  if (!all.valid()) return require_capacity("workspace", all, INT64_MAX);
  return all.value();
}

namespace detail {

/// The dims of `like`, packed in its order, at `data`.
template <class Other, class T, class... Dims, memory_space Space>
constexpr auto packed_like(Other* data, const view<T, layout<Dims...>, Space>& like) noexcept {
  const auto dense = packed(extent<typename Dims::axis_type, Dims::static_extent>(
      static_cast<const Dims&>(like.layout()).extent())...);
  return view<Other, std::remove_cv_t<decltype(dense)>, Space>(data, dense);
}

/// `count` views like `one`, each `stride` elements behind the last, as one view with Axis
/// outermost.
template <class Axis, class T, class... Dims, memory_space Space>
constexpr auto repeated(const view<T, layout<Dims...>, Space>& one, index_t count,
                        index_t stride) noexcept {
  const layout all(dim<Axis>(count, stride), static_cast<const Dims&>(one.layout())...);
  return view<T, std::remove_cv_t<decltype(all)>, Space>(one.data(), all);
}

/// How many of the axes stand to the left of Axis.
template <class Axis, class T, class... Dims, memory_space Space>
constexpr index_t place_of(const view<T, layout<Dims...>, Space>&) noexcept {
  index_t place = 0;
  bool found = false;
  ((found = found || std::is_same_v<Axis, typename Dims::axis_type>, place += found ? 0 : 1), ...);
  return place;
}

/// What all_gather_heads() asks of its operands. Precondition: supported_ranks().
template <class Local, class Gathered>
status check_gather(index_t ranks, index_t own, const Local& local,
                    const Gathered& gathered) noexcept {
  const status local_ok = validate("local", local);
  if (!local_ok.ok()) return local_ok;
  const status gathered_ok = validate_target("gathered", gathered);
  if (!gathered_ok.ok()) return gathered_ok;
  const index_t heads = (checked_size(local.template extent<axis::head>()) * ranks).value();
  const status fits =
      same_extents("gathered", gathered, "holds the heads of all ranks",
                   replace_dim<axis::head>(local.layout(), dim<axis::head>(heads, 0)));
  if (!fits.ok() || same_place(local, heads_of(gathered, ranks, own))) return fits;
  return check_apart(memory_of(gathered), "local", local,
                     "shares memory with gathered, out of its place (bytes in common)");
}

/// route_all_gather(), and what the transport asks of it.
template <class Transport, class Local, class Gathered>
constexpr gather_route gather_route_over(const Local& local, const Gathered& gathered,
                                         index_t ranks, route_preference preference) noexcept {
  gather_route route = route_all_gather(local, gathered, ranks, preference);
  if (gathers_adjacent<Transport>() && route.receive.which == way::straight &&
      gathered.template stride<axis::head>() * local.template extent<axis::head>() !=
          local.size()) {
    route.receive = {way::packed, route_reason::chunks_have_gaps};
  }
  return route;
}

}  // namespace detail

/// Every rank has its own heads of the query and gets those of all, rank by rank, bit for bit.
///
/// `local`      over token, head (h) and head_dim, any order and strides, any element type.
/// `gathered`   over the same axes with N * h heads: head r * h + i is head i of rank r. It may be
///              a slice of a larger buffer (99 heads in a tile of 104); what lies outside stays.
///              `local` may be this rank's own place in it.
/// `workspace`  all_gather_heads_bytes(), aligned to 16; nothing else is allocated.
///
/// Collective: shapes, element types and the order of the axes of `local` are equal on all ranks.
/// Strides and the preference are each rank's own. With one rank nothing travels. With no tokens
/// nothing is done, but every rank still takes part.
/// Errors: unsupported (ranks), shape_mismatch, overlap, capacity_exceeded, misaligned, those of
/// validate(), of the executor and of the transport. Nothing is written unless all ranks accept the
/// call.
template <class Executor, transport Transport, class Local, class Gathered>
status all_gather_heads(const Executor& executor, Transport& group, const Local& local,
                        const Gathered& gathered, std::span<std::byte> workspace,
                        const all_gather_options& options = {}) noexcept {
  static_assert(view_over<Local, axis::token, axis::head, axis::head_dim> &&
                    view_over<Gathered, axis::token, axis::head, axis::head_dim>,
                "headwise: heads are gathered over token, head and head_dim");
  using element = typename Local::value_type;
  static_assert(alignof(element) <= workspace_alignment,
                "headwise: elements are aligned to at most 16 bytes");
  static_assert(detail::same_bits<element, typename Gathered::value_type>,
                "headwise: a gather moves bits and does not convert between element types");
  const index_t ranks = group.size();
  const status ranks_ok = require_supported_ranks(ranks);
  if (!ranks_ok.ok()) return ranks_ok;
  const index_t tokens = local.template extent<axis::token>();
  const index_t heads = local.template extent<axis::head>();
  const index_t head_dim = local.template extent<axis::head_dim>();

  const status checked = detail::check_gather(ranks, group.rank(), local, gathered);
  if (!checked.ok()) return detail::refuse(group, checked);
  const auto parts = headwise::split<axis::head, axis::rank, axis::head>(gathered, ranks);
  if (!parts.ok()) return detail::refuse(group, parts.why());
  const auto place = fix<axis::rank>(parts.value(), group.rank());
  if (ranks == 1) {
    return detail::same_place(local, place) ? status{} : executor.materialize(local, place);
  }

  const result<index_t> needed = all_gather_heads_bytes<element>({ranks, tokens, heads, head_dim});
  if (!needed.ok()) return detail::refuse(group, needed.why());
  const status room = detail::check_workspace(workspace, needed.value());
  if (!room.ok()) return detail::refuse(group, room);
  for (const status& apart : {detail::check_apart(workspace, "local", local),
                              detail::check_apart(workspace, "gathered", gathered)}) {
    if (!apart.ok()) return detail::refuse(group, apart);
  }

  const gather_route route =
      detail::gather_route_over<Transport>(local, gathered, ranks, options.preference);
  const index_t part = tokens * heads * head_dim * index_t{sizeof(element)};
  auto* const outgoing = reinterpret_cast<element*>(workspace.data());
  // The parts arrive one behind the other, as every all-gather can write them.
  std::byte* const incoming = workspace.data() + detail::round_up(part, workspace_alignment);
  send_chunk own{local.data(), part};
  if (route.send.which == way::packed) {
    const status packed_ok = executor.materialize(local, detail::packed_like(outgoing, local));
    if (!packed_ok.ok()) return detail::refuse(group, packed_ok);
    own.data = outgoing;
  }
  receive_chunk from[max_ranks];
  for (index_t r = 0; r < ranks; ++r) {
    from[r] = {incoming + r * part, part};
    if (route.receive.which == way::straight) {
      from[r].data = fix<axis::rank>(parts.value(), r).data();
    }
  }
  const call_signature call{"all_gather_heads",
                            {{axis::token::name, tokens},
                             {axis::head::name, heads},
                             {axis::head_dim::name, head_dim},
                             {"place of token", detail::place_of<axis::token>(local)},
                             {"place of head", detail::place_of<axis::head>(local)},
                             {"element_kind", static_cast<index_t>(element_kind_of<element>)},
                             {"element_bytes", index_t{sizeof(element)}}}};
  const status arrived = group.all_gather(own, {from, static_cast<std::size_t>(ranks)}, call);
  if (!arrived.ok() || route.receive.which == way::straight) return arrived;
  const auto one = detail::packed_like(reinterpret_cast<const element*>(incoming), local);
  return executor.materialize(detail::repeated<axis::rank>(one, ranks, one.size()), parts.value());
}

}  // namespace headwise::inline v0
