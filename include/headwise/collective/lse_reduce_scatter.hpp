// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/collective/workspace.hpp>
#include <headwise/plan/route.hpp>
#include <headwise/reference/lse_combine.hpp>

namespace headwise::inline v0 {

/// Equal on all ranks of a call.
struct reduce_scatter_options {
  message_format format{};
  route_preference preference = route_preference::automatic;
};

/// Bytes of workspace that any lse_reduce_scatter of up to this shape needs, whichever way it goes:
/// the messages to all peers and those from all. `shape.heads` counts the heads of one rank.
/// Errors: as message_plan::make().
template <class T>
constexpr result<index_t> lse_reduce_scatter_bytes(const message_shape& shape,
                                                   const message_format& format = {}) noexcept {
  const result<message_plan> plan = message_plan::make<T>(shape, format);
  if (!plan.ok()) return plan.why();
  if (shape.ranks == 1) return index_t{0};
  const checked_size both = checked_size(plan.value().total_bytes) * 2;
  if (!both.valid()) return require_capacity("workspace", both, INT64_MAX);
  return both.value();
}

namespace detail {

/// The chunks of one exchange: up to two planes (payload and LSE), plane-major.
struct exchange_chunks {
  send_chunk send[2 * max_ranks];
  receive_chunk receive[2 * max_ranks];
  std::size_t count = 0;

  void add(const void* from, void* to, index_t run_bytes, index_t runs = 1, index_t pitch = 0) {
    send[count] = {from, run_bytes, runs, pitch};
    receive[count] = {to, run_bytes, runs, pitch};
    ++count;
  }
};

/// Chunks of messages that were packed into `from` and arrive in `to`.
inline void add_packed_messages(exchange_chunks& chunks, const message_plan& plan,
                                const std::byte* from, std::byte* to) noexcept {
  const index_t rows = plan.shape.tokens * plan.shape.heads;
  const bool outermost = plan.format.peer == peer_placement::outermost;
  for (index_t peer = 0; peer < plan.shape.ranks; ++peer) {
    const index_t at = peer * plan.peer_pitch;
    if (outermost) {
      chunks.add(from + at, to + at, plan.peer_pitch);
    } else {
      chunks.add(from + at, to + at, plan.peer_pitch, rows, plan.row_pitch);
    }
  }
  if (outermost || plan.format.lse == lse_placement::inline_bits) return;
  for (index_t peer = 0; peer < plan.shape.ranks; ++peer) {
    const index_t at = plan.lse_at(peer, 0, 0);
    chunks.add(from + at, to + at, sizeof(float), rows, plan.lse_row_pitch);
  }
}

/// Chunks of payloads that are sent from the caller's memory, and of their LSEs, from there too or
/// out of `packed`.
template <class Output, class Lse>
void add_straight(exchange_chunks& chunks, const message_plan& plan, const Output& output,
                  const Lse& partial_lse, bool lse_straight, const std::byte* packed,
                  std::byte* to) noexcept {
  const index_t rows = plan.shape.tokens * plan.shape.heads;
  const index_t heads = plan.shape.heads;
  for (index_t peer = 0; peer < plan.shape.ranks; ++peer) {
    chunks.add(output.data() + peer * heads * output.template stride<axis::head>(),
               to + plan.payload_at(peer, 0, 0),
               rows * plan.shape.head_dim * plan.element_bytes);
  }
  for (index_t peer = 0; peer < plan.shape.ranks; ++peer) {
    const index_t at = plan.lse_at(peer, 0, 0);
    const void* from = packed + at;
    if (lse_straight) {
      from = partial_lse.data() + peer * heads * partial_lse.template stride<axis::head>();
    }
    chunks.add(from, to + at, rows * index_t{sizeof(float)});
  }
}

inline call_signature reduce_scatter_signature(const message_plan& plan,
                                               const reduce_scatter_route& route, bool base_two) {
  call_signature call{"lse_reduce_scatter", operation_id("lse_reduce_scatter"), {}};
  call.fields[0] = plan.shape.tokens;
  call.fields[1] = plan.shape.heads;
  call.fields[2] = plan.shape.head_dim;
  call.fields[3] = plan.element_bytes;
  call.fields[4] = static_cast<index_t>(route.payload.which) * 8 +
                   static_cast<index_t>(route.lse.which);
  call.fields[5] = static_cast<index_t>(plan.format.lse) + 2 * static_cast<index_t>(plan.format.peer) +
                   4 * static_cast<index_t>(plan.order) + (base_two ? 8 : 0);
  return call;
}

}  // namespace detail

/// Every rank has a partial result for all heads of the group and gets the combined one for its own:
/// rank r the heads [r * H/N, (r + 1) * H/N).
///
/// `partial_output`  over token, head (H) and head_dim, token or head outermost; fp32, fp16 or bf16; any
///                   strides. `partial_lse` over token and head; lse<Base>, or fp32, fp16, bf16.
/// `output`          over token, head (H/N) and head_dim; same element type; any strides.
/// `merged_lse`      none, or over token and head (H/N): the LSE of all keys, fp32 in base Base.
/// `workspace`       lse_reduce_scatter_bytes(), aligned to 16; nothing else is allocated.
/// `valid`           none, or [token] counts of this rank's keys; a row of count 0 is empty.
/// `sink`            none, or [head] (H/N) logits in base Base, applied once after the merge.
///
/// Collective: shapes, types, strides and options are equal on all ranks. With one rank nothing
/// travels. With no tokens nothing is done, but every rank still takes part.
/// Errors: shape_mismatch, overlap, capacity_exceeded, misaligned, those of validate() and of the
/// transport. Nothing of `output` is written unless all ranks accept the call.
template <log_base Base, class Executor, transport Transport, class Output, class Lse, class Result,
          class Merged = none_t, class Valid = none_t, class Sink = none_t,
          class Policy = nan_policy::empty>
status lse_reduce_scatter(const Executor& executor, Transport& group, const Output& partial_output,
                          const Lse& partial_lse, const Result& output, const Merged& merged_lse,
                          std::span<std::byte> workspace,
                          const reduce_scatter_options& options = {}, const Valid& valid = {},
                          const Sink& sink = {}, const Policy& policy = {}) noexcept {
  using element = typename Output::value_type;
  static_assert(detail::same_bits<element, typename Result::value_type>,
                "headwise: output has the element type of partial_output");
  const int ranks = group.size();
  const index_t tokens = partial_output.template extent<axis::token>();
  const index_t total_heads = partial_output.template extent<axis::head>();

  const auto check = [&]() -> status {
    const status partial_ok = detail::check_partial<Base>(partial_output, partial_lse);
    if (!partial_ok.ok()) return partial_ok;
    const status valid_ok = detail::check_valid(valid, tokens);
    if (!valid_ok.ok()) return valid_ok;
    const status combined_ok = detail::check_combined<Base>(output, merged_lse, sink);
    if (!combined_ok.ok()) return combined_ok;
    if (total_heads < 1 || total_heads % ranks != 0) {
      return failure(errc::shape_mismatch, "partial_output",
                     "its heads are a positive multiple of the number of ranks (expected)",
                     total_heads, ranks, axis::head::name);
    }
    const index_t got[] = {output.template extent<axis::token>(),
                           output.template extent<axis::head>(),
                           output.template extent<axis::head_dim>()};
    const index_t expected[] = {tokens, total_heads / ranks,
                                partial_output.template extent<axis::head_dim>()};
    const char* const names[] = {axis::token::name, axis::head::name, axis::head_dim::name};
    for (int i = 0; i < 3; ++i) {
      if (got[i] != expected[i]) {
        return failure(errc::shape_mismatch, "output", "is this rank's part of partial_output",
                       got[i], expected[i], names[i]);
      }
    }
    return {};
  };
  const status checked = check();
  if (!checked.ok()) return detail::refuse(group, checked);

  if (ranks == 1) {
    const masked_shard own{partial_output, partial_lse, valid};
    return executor.template lse_combine<Base>(own, output, merged_lse, sink, policy);
  }

  const result<message_plan> planned = message_plan::make<element>(
      {ranks, tokens, total_heads / ranks, partial_output.template extent<axis::head_dim>()},
      options.format, wire_order_of<Output>());
  if (!planned.ok()) return detail::refuse(group, planned.why());
  const message_plan& plan = planned.value();
  const checked_size needed = checked_size(plan.total_bytes) * 2;
  const status room = detail::check_workspace(workspace, needed.value());
  if (!room.ok()) return detail::refuse(group, room);

  const reduce_scatter_route route =
      route_reduce_scatter(partial_output, partial_lse, ranks, options.format,
                           !detail::is_none<Valid>, options.preference);
  std::byte* const outgoing = workspace.data();
  std::byte* const incoming = workspace.data() + plan.total_bytes;
  detail::exchange_chunks chunks;
  if (route.payload.which == way::straight) {
    const bool lse_straight = route.lse.which == way::straight;
    if (!lse_straight) {
      const status packed =
          executor.template pack_lse<Base>(partial_lse, plan, outgoing, valid);
      if (!packed.ok()) return detail::refuse(group, packed);
    }
    detail::add_straight(chunks, plan, partial_output, partial_lse, lse_straight, outgoing,
                         incoming);
  } else {
    const status packed =
        executor.template pack<Base>(partial_output, partial_lse, plan, outgoing, valid);
    if (!packed.ok()) return detail::refuse(group, packed);
    detail::add_packed_messages(chunks, plan, outgoing, incoming);
  }
  const status exchanged =
      group.exchange({chunks.send, chunks.count}, {chunks.receive, chunks.count},
                     detail::reduce_scatter_signature(plan, route, Base == log_base::two));
  if (!exchanged.ok()) return exchanged;
  return executor.template lse_combine<Base>(received_shards<element>{plan, incoming}, output,
                                             merged_lse, sink, policy);
}

}  // namespace headwise::inline v0
