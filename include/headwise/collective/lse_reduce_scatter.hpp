// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/collective/workspace.hpp>
#include <headwise/plan/route.hpp>
#include <headwise/plan/shards.hpp>

namespace headwise::inline v0 {

struct reduce_scatter_options {
  /// Equal on all ranks.
  message_format format{};
  /// Each rank's own.
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
  const checked_size both =
      checked_size(plan.value().total_bytes).rounded_up(workspace_alignment) * 2;
  if (!both.valid()) return require_capacity("workspace", both, INT64_MAX);
  return both.value();
}

namespace detail {

/// What travels to (or from) each peer in one transfer: the payload rows, the LSEs, or all of a
/// message that is one run.
struct message_rows {
  index_t offset;  ///< bytes from the buffer's start to the first row of peer 0
  index_t peer_pitch;
  index_t row_bytes;
  index_t row_pitch;
  index_t rows;

  static constexpr message_rows whole(const message_plan& plan) noexcept {
    const bool nothing = plan.bytes_per_peer() == 0;
    return {0, plan.peer_pitch, plan.peer_pitch, plan.peer_pitch, nothing ? 0 : 1};
  }
  static constexpr message_rows payload(const message_plan& plan) noexcept {
    const bool outermost = plan.format.peer == peer_placement::outermost;
    return {0, plan.peer_pitch, outermost ? plan.row_pitch() : plan.row_pitch() / plan.shape.ranks,
            plan.row_pitch(), plan.shape.tokens * plan.shape.heads};
  }
  static constexpr message_rows lses(const message_plan& plan) noexcept {
    return {plan.lse_offset, plan.lse_peer_pitch, sizeof(float), plan.lse_row_pitch(),
            plan.shape.tokens * plan.shape.heads};
  }

  constexpr index_t bytes() const noexcept { return rows * row_bytes; }

  /// The rows of one peer in `buffer`; nothing of it is touched where there are no bytes.
  template <class Chunk, class Byte>
  constexpr Chunk chunk(Byte* buffer, index_t peer) const noexcept {
    if (bytes() == 0) return {};
    Byte* const first = buffer + offset + peer * peer_pitch;
    if (row_pitch == row_bytes) return {first, bytes(), 1, 0};
    return {first, row_bytes, rows, row_pitch};
  }
};

/// The chunks of one exchange: up to two planes (payloads and LSEs), plane by plane.
struct exchange_chunks {
  send_chunk send[2 * max_ranks];
  receive_chunk receive[2 * max_ranks];
  std::size_t count = 0;

  constexpr void add(const send_chunk& from, const receive_chunk& to) noexcept {
    send[count] = from;
    receive[count] = to;
    ++count;
  }
};

/// Adds one plane, sent out of `operand` (over token and head at least, with the heads of all
/// peers) where it goes straight, and else out of `packed`; it arrives in `incoming`. What a rank
/// has for itself stays where it is.
template <class Operand>
void add_plane(exchange_chunks& chunks, const message_rows& rows, index_t ranks, index_t own,
               way which, const Operand& operand, const std::byte* packed,
               std::byte* incoming) noexcept {
  for (index_t peer = 0; peer < ranks; ++peer) {
    if (peer == own) {
      chunks.add({}, {});
      continue;
    }
    send_chunk from = rows.chunk<send_chunk>(packed, peer);
    if (which == way::straight) from = {heads_of(operand, ranks, peer).data(), rows.bytes()};
    chunks.add(from, rows.chunk<receive_chunk>(incoming, peer));
  }
}

/// Every number that decides what travels.
constexpr call_signature reduce_scatter_signature(const message_plan& plan, element_kind element,
                                                  log_base base, bool in_parts) noexcept {
  return {"lse_reduce_scatter",
          {{axis::token::name, plan.shape.tokens},
           {axis::head::name, plan.shape.heads},
           {axis::head_dim::name, plan.shape.head_dim},
           {"element_kind", static_cast<index_t>(element)},
           {"log_base", static_cast<index_t>(base)},
           {"lse_placement", static_cast<index_t>(plan.format.lse)},
           {"peer_placement", static_cast<index_t>(plan.format.peer)},
           {"wire_order", static_cast<index_t>(plan.order)},
           {"transfers", in_parts ? 2 : 1}},
          !in_parts};
}

/// A result is written while `partial` is still read, element by element: it may take the place of
/// this rank's own part, and no other place in there. Errors: overlap.
template <class Partial, class Own, class Result>
status check_in_place(const char* name, const Partial& partial, [[maybe_unused]] const Own& own,
                      [[maybe_unused]] const Result& result) noexcept {
  if constexpr (!is_none<Result>) {
    if (!same_place(own, result)) {
      return check_apart(memory_of(result), name, partial,
                         "shares memory with its result, out of its place (bytes in common)");
    }
  }
  return {};
}

/// A result may not lie where another operand does. Errors: overlap.
template <class Result, class Operand>
status check_result(const char* name, const Operand& operand,
                    [[maybe_unused]] const Result& result) noexcept {
  if constexpr (is_none<Result>) {
    return {};
  } else {
    return check_apart(memory_of(result), name, operand,
                       "shares memory with a result (bytes in common)");
  }
}

template <log_base Base, class Output, class Lse, class Result, class Merged, class Valid,
          class Sink>
status check_reduce_scatter(index_t ranks, index_t own_rank, const Output& partial_output,
                            const Lse& partial_lse, const Result& output, const Merged& merged_lse,
                            const Valid& valid, const Sink& sink) noexcept {
  using element = typename Output::value_type;
  static_assert(same_bits<element, typename Result::value_type>,
                "headwise: output has the element type of partial_output");
  static_assert(dim_type<typename Output::layout_type, axis::head>::static_extent != 0,
                "headwise: lse_reduce_scatter: there are no heads");
  const status partial_ok = check_partial<Base>(partial_output, partial_lse);
  if (!partial_ok.ok()) return partial_ok;
  const index_t tokens = partial_output.template extent<axis::token>();
  const index_t heads = partial_output.template extent<axis::head>();
  const status valid_ok = check_valid(valid, tokens);
  if (!valid_ok.ok()) return valid_ok;
  const status combined_ok = check_combined<Base>(output, merged_lse, sink);
  if (!combined_ok.ok()) return combined_ok;
  if (heads < 1 || heads % ranks != 0) {
    return failure(errc::shape_mismatch, "partial_output",
                   "its heads are a positive multiple of the number of ranks (expected)", heads,
                   ranks, axis::head::name);
  }
  const auto own_output = heads_of(partial_output, ranks, own_rank);
  const auto own_lse = heads_of(partial_lse, ranks, own_rank);
  const status output_fits =
      same_extents("output", output, "is one rank's part of partial_output", own_output.layout());
  if (!output_fits.ok()) return output_fits;
  for (const status& apart :
       {check_in_place("partial_output", partial_output, own_output, output),
        check_in_place("partial_lse", partial_lse, own_lse, merged_lse),
        check_result("partial_lse", partial_lse, output),
        check_result("partial_output", partial_output, merged_lse),
        check_result("merged_lse", merged_lse, output), check_result("valid", valid, output),
        check_result("sink", sink, output), check_result("valid", valid, merged_lse),
        check_result("sink", sink, merged_lse)}) {
    if (!apart.ok()) return apart;
  }
  return {};
}

/// What an executor asks of the shape, if it does. Errors: those of the executor.
template <class Executor>
status check_executor([[maybe_unused]] const Executor& executor,
                      [[maybe_unused]] const message_shape& shape) noexcept {
  if constexpr (requires { executor.check(shape); }) {
    return executor.check(shape);
  } else {
    return {};
  }
}

}  // namespace detail

/// Every rank has a partial result for all heads of the group and gets the combined one for its
/// own: rank r the heads [r * H/N, (r + 1) * H/N).
///
/// `partial_output`  over token, head (H) and head_dim, token or head outermost; fp32, fp16 or
///                   bf16; any strides.
/// `partial_lse`     over token and head; lse<Base>, or fp32, fp16 or bf16; any strides.
/// `output`          over token, head (H/N) and head_dim; same element type; any strides. May be
///                   this rank's own heads of partial_output.
/// `merged_lse`      none, or over token and head (H/N): the LSE of all keys, fp32 in base Base.
/// `workspace`       lse_reduce_scatter_bytes(), aligned to 16; nothing else is allocated.
/// `valid`           none, [token] counts of this rank's keys, or keys_by_sequence; a row without
///                   keys is empty.
/// `sink`            none, or [head] (H/N) logits in base Base, applied once after the merge.
///
/// Collective: shapes, element types, the order of the axes of partial_output, Base and the format
/// are equal on all ranks. Strides, alignment, the type of the LSE, `valid` and the preference are
/// each rank's own: they decide where it sends from, not what travels. With one rank nothing
/// travels. With no tokens nothing is done, but every rank still takes part.
/// Errors: unsupported (ranks), shape_mismatch, overlap, capacity_exceeded, misaligned, those of
/// validate(), of the executor and of the transport. Nothing of `output` is written unless all
/// ranks accept the call.
template <log_base Base, class Executor, transport Transport, class Output, class Lse, class Result,
          class Merged = none_t, class Valid = none_t, class Sink = none_t,
          class Policy = nan_policy::empty>
status lse_reduce_scatter(const Executor& executor, Transport& group, const Output& partial_output,
                          const Lse& partial_lse, const Result& output, const Merged& merged_lse,
                          std::span<std::byte> workspace,
                          const reduce_scatter_options& options = {}, const Valid& valid = {},
                          const Sink& sink = {}, const Policy& policy = {}) noexcept {
  using element = typename Output::value_type;
  const index_t ranks = group.size();
  const status ranks_ok = require_supported_ranks(ranks);
  if (!ranks_ok.ok()) return ranks_ok;
  const status operands_ok = detail::check_reduce_scatter<Base>(
      ranks, group.rank(), partial_output, partial_lse, output, merged_lse, valid, sink);
  if (!operands_ok.ok()) return detail::refuse(group, operands_ok);
  const index_t own_rank = group.rank();
  const shard own{detail::heads_of(partial_output, ranks, own_rank),
                  detail::heads_of(partial_lse, ranks, own_rank), valid};
  if (ranks == 1) {
    return executor.template lse_combine<Base>(own, output, merged_lse, sink, policy);
  }

  const message_shape shape{ranks, output.template extent<axis::token>(),
                            output.template extent<axis::head>(),
                            output.template extent<axis::head_dim>()};
  const result<message_plan> planned =
      message_plan::make<element>(shape, options.format, wire_order_of<Output>());
  if (!planned.ok()) return detail::refuse(group, planned.why());
  const status taken = detail::check_executor(executor, shape);
  if (!taken.ok()) return detail::refuse(group, taken);
  const message_plan& plan = planned.value();
  const checked_size half = checked_size(plan.total_bytes).rounded_up(workspace_alignment);
  const status room = detail::check_workspace(workspace, half * 2);
  if (!room.ok()) return detail::refuse(group, room);
  for (const status& apart : {detail::check_apart(workspace, "partial_output", partial_output),
                              detail::check_apart(workspace, "partial_lse", partial_lse),
                              detail::check_apart(workspace, "output", output),
                              detail::check_apart(workspace, "merged_lse", merged_lse),
                              detail::check_apart(workspace, "valid", valid),
                              detail::check_apart(workspace, "sink", sink)}) {
    if (!apart.ok()) return detail::refuse(group, apart);
  }

  const index_t straight_from = detail::straight_from(group);
  const bool in_parts = travels_in_parts(plan, straight_from);
  const reduce_scatter_route route =
      route_reduce_scatter(partial_output, partial_lse, ranks, options.format,
                           !detail::is_none<Valid>, options.preference, straight_from);
  std::byte* const outgoing = workspace.data();
  std::byte* const incoming = workspace.data() + half.value();
  status packed{};
  if (route.payload.which == way::packed) {
    packed =
        executor.template pack<Base>(partial_output, partial_lse, plan, outgoing, valid, own_rank);
  } else if (route.lse.which == way::packed) {
    packed = executor.template pack_lse<Base>(partial_lse, plan, outgoing, valid, own_rank);
  }
  if (!packed.ok()) return detail::refuse(group, packed);

  const call_signature call =
      detail::reduce_scatter_signature(plan, element_kind_of<element>, Base, in_parts);
  detail::exchange_chunks chunks;
  const auto add = [&](const detail::message_rows& rows, way which, const auto& operand) {
    detail::add_plane(chunks, rows, ranks, own_rank, which, operand, outgoing, incoming);
  };
  if (!in_parts) {
    add(detail::message_rows::whole(plan), way::packed, partial_output);
  } else {
    add(detail::message_rows::payload(plan), route.payload.which, partial_output);
    if (options.format.lse == lse_placement::plane) {
      add(detail::message_rows::lses(plan), route.lse.which, partial_lse);
    }
  }
  const status exchanged =
      group.exchange({chunks.send, chunks.count}, {chunks.receive, chunks.count}, call);
  if (!exchanged.ok()) return exchanged;
  const exchanged_shards sources{received_shards<element>{plan, incoming}, own,
                                 static_cast<int>(own_rank)};
  return executor.template lse_combine<Base>(sources, output, merged_lse, sink, policy);
}

}  // namespace headwise::inline v0
