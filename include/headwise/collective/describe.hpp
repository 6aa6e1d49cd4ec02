// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>

// What a call would do, in words, without doing it: its route and why, what travels, and what runs.

namespace headwise::inline v0 {

namespace detail {

inline void put_route(text_sink& out, const char* operand, const route& which) noexcept {
  out.put("\n  ");
  out.put(operand);
  out.put(": ");
  out.put(to_string(which.which));
  out.put(" (");
  out.put(to_string(which.reason));
  out.put(")");
}

/// "1 token", "4 tokens".
inline void put_count(text_sink& out, index_t count, const char* what) noexcept {
  out.put(count);
  out.put(' ');
  out.put(what);
  if (count != 1) out.put('s');
}

inline void put_refusal(text_sink& out, const status& why) noexcept {
  char text[256] = {};
  format_status(why, text, sizeof text);
  out.put("\n  refused: ");
  out.put(text);
}

template <class Transport>
void put_transport(text_sink& out, const Transport& group) noexcept {
  if constexpr (requires(char* text) { group.describe(text, std::size_t{1}); }) {
    char text[96] = {};
    static_cast<void>(group.describe(text, sizeof text));
    out.put(", ");
    out.put(text);
  }
}

/// The steps of an executor that can tell what it would launch.
template <class Shape>
void put_launch(text_sink& out, const char* name, const Shape& shape) noexcept {
  out.put("\n  ");
  out.put(name);
  if (shape.blocks == 0) {
    out.put(": nothing to launch");
    return;
  }
  out.put(": grid ");
  out.put(index_t{shape.blocks});
  out.put(" x ");
  out.put(index_t{shape.peers});
  out.put(", block ");
  out.put(index_t{shape.threads});
  out.put(", ");
  put_count(out, shape.vector_bytes, "byte");
  out.put(" a load");
}

/// "lse_reduce_scatter: 2 ranks; 4 tokens, 11 heads a rank, head_dim 512, "
template <class Transport>
void put_call(text_sink& out, const char* name, const Transport& group,
              const message_shape& shape) noexcept {
  out.put(name);
  out.put(": ");
  put_count(out, shape.ranks, "rank");
  put_transport(out, group);
  out.put("; ");
  put_count(out, shape.tokens, "token");
  out.put(", ");
  put_count(out, shape.heads, "head");
  out.put(" a rank, head_dim ");
  out.put(shape.head_dim);
  out.put(", ");
}

}  // namespace detail

/// Writes what lse_reduce_scatter() would do with these operands, a line each for the operands, for
/// what travels and for every kernel; always terminated; returns the length of the whole text, as
/// snprintf does. Runs and waits for nothing. What the call would refuse is said in its words.
template <log_base Base, class Executor, transport Transport, class Output, class Lse, class Result,
          class Merged = none_t, class Valid = none_t, class Sink = none_t>
std::size_t describe_lse_reduce_scatter(const Executor& executor, Transport& group,
                                        const Output& partial_output, const Lse& partial_lse,
                                        const Result& output, const Merged& merged_lse,
                                        const reduce_scatter_options& options, char* buffer,
                                        std::size_t capacity, const Valid& valid = {},
                                        const Sink& sink = {}) noexcept {
  using element = typename Output::value_type;
  detail::text_sink out{buffer, capacity};
  const index_t ranks = group.size();
  const message_shape shape{ranks, output.template extent<axis::token>(),
                            output.template extent<axis::head>(),
                            output.template extent<axis::head_dim>()};
  detail::put_call(out, "lse_reduce_scatter", group, shape);
  out.put(to_string(element_kind_of<element>));
  out.put(", base ");
  out.put(to_string(Base));
  const auto planned = message_plan::make<element>(shape, options.format, wire_order_of<Output>());
  const index_t own_rank = group.rank();
  status can = require_supported_ranks(ranks);
  if (can.ok()) {
    can = detail::check_reduce_scatter<Base>(ranks, own_rank, partial_output, partial_lse, output,
                                             merged_lse, valid, sink);
  }
  if (can.ok()) can = planned.why();
  if (can.ok()) can = detail::check_executor(executor, shape);
  if (!can.ok()) {
    detail::put_refusal(out, can);
    return out.finish();
  }
  const message_plan& plan = planned.value();
  const reduce_scatter_route way_of = route_reduce_scatter(
      partial_output, partial_lse, ranks, options.format, !detail::is_none<Valid>,
      options.preference, detail::straight_from(group));
  detail::put_route(out, "partial_output", way_of.payload);
  detail::put_route(out, "partial_lse", way_of.lse);
  if (ranks > 1) {
    out.put("\n  message: ");
    detail::put_count(out, plan.bytes_per_peer(), "byte");
    out.put(" to each peer, in ");
    const bool whole = !travels_in_parts(plan, detail::straight_from(group));
    const bool planes = options.format.lse == lse_placement::plane;
    detail::put_count(out, whole || !planes ? 1 : 2, "transfer");
    out.put("; LSE ");
    out.put(to_string(plan.format.lse));
    out.put(", peers ");
    out.put(to_string(plan.format.peer));
    out.put(", ");
    out.put(to_string(plan.order));
    out.put("\n  workspace: ");
    detail::put_count(out, lse_reduce_scatter_bytes<element>(shape, options.format).value(),
                      "byte");
  }
  if constexpr (requires { executor.pack_shape(partial_output, plan, index_t{}); }) {
    if (way_of.payload.which == way::packed) {
      detail::put_launch(out, "pack", executor.pack_shape(partial_output, plan, own_rank));
    } else if (way_of.lse.which == way::packed) {
      detail::put_launch(out, "pack_lse", executor.pack_lse_shape(plan, own_rank));
    }
    const shard own{detail::heads_of(partial_output, ranks, own_rank),
                    detail::heads_of(partial_lse, ranks, own_rank), valid};
    if (ranks == 1) {
      detail::put_launch(out, "lse_combine", executor.lse_combine_shape(own, output));
    } else {
      // In place of the workspace, which is aligned to 16 bytes as a null pointer is.
      const exchanged_shards sources{received_shards<element>{plan, nullptr}, own,
                                     static_cast<int>(own_rank)};
      detail::put_launch(out, "lse_combine", executor.lse_combine_shape(sources, output));
    }
  }
  return out.finish();
}

/// The same of all_gather_heads().
template <class Executor, transport Transport, class Local, class Gathered>
std::size_t describe_all_gather_heads(const Executor&, Transport& group, const Local& local,
                                      const Gathered& gathered, const all_gather_options& options,
                                      char* buffer, std::size_t capacity) noexcept {
  using element = typename Local::value_type;
  detail::text_sink out{buffer, capacity};
  const index_t ranks = group.size();
  const message_shape shape{ranks, local.template extent<axis::token>(),
                            local.template extent<axis::head>(),
                            local.template extent<axis::head_dim>()};
  detail::put_call(out, "all_gather_heads", group, shape);
  detail::put_count(out, index_t{sizeof(element)}, "byte");
  out.put(" an element");
  status can = require_supported_ranks(ranks);
  if (can.ok()) can = detail::check_gather(ranks, group.rank(), local, gathered);
  const result<index_t> needed = all_gather_heads_bytes<element>(shape);
  if (can.ok()) can = needed.why();
  if (!can.ok()) {
    detail::put_refusal(out, can);
    return out.finish();
  }
  const gather_route way_of =
      detail::gather_route_over<Transport>(local, gathered, ranks, options.preference);
  detail::put_route(out, "local", way_of.send);
  detail::put_route(out, "gathered", way_of.receive);
  if (ranks > 1) {
    out.put("\n  message: ");
    detail::put_count(out, local.size() * index_t{sizeof(element)}, "byte");
    out.put(" to each peer\n  workspace: ");
    detail::put_count(out, needed.value(), "byte");
  }
  return out.finish();
}

}  // namespace headwise::inline v0
