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

inline void put_count(text_sink& out, index_t count, const char* what) noexcept {
  out.put(count);
  out.put(what);
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
  put_count(out, shape.blocks, " x ");
  put_count(out, shape.peers, ", block ");
  put_count(out, shape.threads, ", ");
  put_count(out, shape.vector_bytes, " bytes a load");
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
  out.put("lse_reduce_scatter: ");
  detail::put_count(out, ranks, " ranks");
  detail::put_transport(out, group);
  out.put("; ");
  detail::put_count(out, shape.tokens, " tokens, ");
  detail::put_count(out, shape.heads, " heads a rank, head_dim ");
  detail::put_count(out, shape.head_dim, ", ");
  out.put(to_string(element_kind_of<element>));
  out.put(", base ");
  out.put(to_string(Base));
  const auto planned = message_plan::make<element>(shape, options.format, wire_order_of<Output>());
  status can = require_supported_ranks(ranks);
  if (can.ok()) {
    can = detail::check_reduce_scatter<Base>(ranks, partial_output, partial_lse, output, merged_lse,
                                             valid, sink);
  }
  if (can.ok()) can = planned.why();
  if (!can.ok()) {
    char text[256] = {};
    format_status(can, text, sizeof text);
    out.put("\n  refused: ");
    out.put(text);
    return out.finish();
  }
  const message_plan& plan = planned.value();
  const reduce_scatter_route way_of =
      route_reduce_scatter(partial_output, partial_lse, ranks, options.format,
                           !detail::is_none<Valid>, options.preference);
  detail::put_route(out, "partial_output", way_of.payload);
  detail::put_route(out, "partial_lse", way_of.lse);
  if (ranks > 1) {
    out.put("\n  message: ");
    detail::put_count(out, plan.bytes_per_peer(), " bytes to each peer, in ");
    const bool whole = !travels_in_parts(plan);
    const bool planes = options.format.lse == lse_placement::plane;
    detail::put_count(out, whole || !planes ? 1 : 2, " transfers; LSE ");
    out.put(to_string(plan.format.lse));
    out.put(", peers ");
    out.put(to_string(plan.format.peer));
    out.put(", ");
    out.put(to_string(plan.order));
    out.put("\n  workspace: ");
    detail::put_count(out, lse_reduce_scatter_bytes<element>(shape, options.format).value(),
                      " bytes");
  }
  if constexpr (requires { executor.pack_shape(partial_output, plan, index_t{}); }) {
    const index_t own = group.rank();
    if (way_of.payload.which == way::packed) {
      detail::put_launch(out, "pack", executor.pack_shape(partial_output, plan, own));
    } else if (way_of.lse.which == way::packed) {
      detail::put_launch(out, "pack_lse", executor.pack_lse_shape(plan, own));
    }
    const shard mine{detail::heads_of(partial_output, ranks, own),
                     detail::heads_of(partial_lse, ranks, own), valid};
    detail::put_launch(out, "lse_combine", executor.lse_combine_shape(mine, output));
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
  out.put("all_gather_heads: ");
  detail::put_count(out, ranks, " ranks");
  detail::put_transport(out, group);
  out.put("; ");
  detail::put_count(out, shape.tokens, " tokens, ");
  detail::put_count(out, shape.heads, " heads a rank, head_dim ");
  detail::put_count(out, shape.head_dim, ", ");
  detail::put_count(out, index_t{sizeof(element)}, " bytes an element");
  const gather_route way_of =
      detail::gather_route_over<Transport>(local, gathered, ranks, options.preference);
  detail::put_route(out, "local", way_of.send);
  detail::put_route(out, "gathered", way_of.receive);
  if (ranks > 1) {
    out.put("\n  message: ");
    detail::put_count(out, local.size() * index_t{sizeof(element)}, " bytes to each peer");
    const result<index_t> needed = all_gather_heads_bytes<element>(shape);
    out.put("\n  workspace: ");
    detail::put_count(out, needed.ok() ? needed.value() : 0, " bytes");
  }
  return out.finish();
}

}  // namespace headwise::inline v0
