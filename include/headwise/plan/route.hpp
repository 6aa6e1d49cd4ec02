// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/plan/message.hpp>
#include <headwise/view/slice.hpp>

// Which way an operand goes: a pure function of types, shapes, strides and of what the caller asked
// for, so that the same question, asked at warm-up and at the call, gets the same answer.
//
// A way says where a rank sends from and receives into, never what travels: that depends on values
// which are equal on all ranks (shapes, types, format), and a packed and a straight rank understand
// each other. So ranks may hold operands of different strides, and no choice of one can hang the
// rest.

namespace headwise::inline v0 {

enum class way : std::uint8_t {
  local,     ///< one rank: nothing travels
  straight,  ///< sent from (or received into) the caller's memory
  packed,    ///< through the workspace
};

enum class route_reason : std::uint8_t {
  one_rank,
  contiguous_chunks,   ///< each peer's part is one run already
  chunks_have_gaps,    ///< each peer's part has gaps, or its axes stand in another order
  inline_lse,          ///< the format puts the LSE between the rows
  peers_inside_heads,  ///< the format puts the peers between the rows
  not_fp32,            ///< an LSE of 16 bits is converted on its way
  masked,              ///< empty rows are masked on their way
  with_the_payload,    ///< the payload is packed, and the LSE shares its message
  one_transfer,        ///< so little that a second transfer would cost more than packing
  asked_for,           ///< the caller asked for packing
};

constexpr const char* to_string(way which) noexcept {
  switch (which) {
    case way::local: return "local";
    case way::straight: return "straight";
    case way::packed: return "packed";
  }
  return "unknown";
}

constexpr const char* to_string(route_reason reason) noexcept {
  switch (reason) {
    case route_reason::one_rank: return "one rank";
    case route_reason::contiguous_chunks: return "each peer's part is one run";
    case route_reason::chunks_have_gaps: return "a peer's part has gaps";
    case route_reason::inline_lse: return "the LSE travels inside the rows";
    case route_reason::peers_inside_heads: return "peers stand inside the heads";
    case route_reason::not_fp32: return "a 16-bit LSE is widened";
    case route_reason::masked: return "empty rows are masked";
    case route_reason::with_the_payload: return "it shares the payload's message";
    case route_reason::one_transfer: return "one transfer is less than two";
    case route_reason::asked_for: return "asked for";
  }
  return "unknown";
}

struct route {
  way which = way::packed;
  route_reason reason = route_reason::chunks_have_gaps;
  friend constexpr bool operator==(route, route) = default;
};

/// What the caller allows. `automatic` goes straight where it can.
enum class route_preference : std::uint8_t { automatic, packed };

constexpr const char* to_string(route_preference preference) noexcept {
  return preference == route_preference::automatic ? "automatic" : "packed";
}

/// The preference of that name. Errors: invalid_argument for a name that is none.
constexpr result<route_preference> parse_route_preference(const char* name) noexcept {
  const auto equal = [](const char* a, const char* b) {
    while (*a != '\0' && *a == *b) {
      ++a;
      ++b;
    }
    return *a == *b;
  };
  for (const auto preference : {route_preference::automatic, route_preference::packed}) {
    if (name != nullptr && equal(name, to_string(preference))) return preference;
  }
  return failure(errc::invalid_argument, "route_preference", "is 'automatic' or 'packed'");
}

/// The ways of the two operands of an LSE reduce-scatter.
struct reduce_scatter_route {
  route payload;
  route lse;
};

namespace detail {

/// True where the part of each of `ranks` peers (equal neighbours on axis head) is one run, in the
/// order of the view's axes.
template <class View>
constexpr bool peer_parts_contiguous(const View& operand, index_t ranks) noexcept {
  const auto parts = headwise::split<axis::head, axis::rank, axis::head>(operand, ranks);
  return parts.ok() && fix<axis::rank>(parts.value(), 0).is_contiguous();
}

template <class View>
inline constexpr bool lse_is_fp32 = element_kind_of<typename View::value_type> == element_kind::f32;

}  // namespace detail

/// Order of token and head on the wire: that of the partial output's type.
template <class Output>
constexpr wire_order wire_order_of() noexcept {
  static_assert(view_over<Output, axis::token, axis::head, axis::head_dim>,
                "headwise: a partial output is a view over token, head and head_dim");
  constexpr bool token_major = view_of<Output, axis::token, axis::head, axis::head_dim>;
  constexpr bool head_major = view_of<Output, axis::head, axis::token, axis::head_dim>;
  static_assert(token_major || head_major,
                "headwise: a partial output is [token, head, head_dim] or [head, token, head_dim]");
  return token_major ? wire_order::token_major : wire_order::head_major;
}

/// Whether payload and LSEs travel as two transfers per peer, so that a rank may send either
/// straight from its memory, or the whole message as one. A rank that could go straight must not
/// decide it alone: this asks only what is the same on all of them. Where there are several tokens,
/// outermost, the part of a peer has gaps on every rank, and nothing is lost by packing.
/// `straight_from`: the bytes per peer from which a second transfer costs the transport less than
/// packing.
constexpr bool travels_in_parts(const message_plan& plan, index_t straight_from = 0) noexcept {
  return plan.format.peer == peer_placement::inside_heads ||
         (plan.format.lse == lse_placement::plane &&
          (plan.order == wire_order::head_major || plan.shape.tokens <= 1) &&
          plan.bytes_per_peer() >= straight_from);
}

/// The ways of `output` ([token, head, head_dim] or [head, token, head_dim]) and `lse` over token
/// and head. `masked`: lengths or counts come with the call. `straight_from`: see
/// travels_in_parts().
template <class Output, class Lse>
constexpr reduce_scatter_route route_reduce_scatter(const Output& output, const Lse& lse,
                                                    index_t ranks, const message_format& format,
                                                    bool masked, route_preference preference,
                                                    index_t straight_from = 0) {
  const auto both = [](way which, route_reason reason) {
    return reduce_scatter_route{{which, reason}, {which, reason}};
  };
  if (ranks == 1) return both(way::local, route_reason::one_rank);
  if (preference == route_preference::packed) return both(way::packed, route_reason::asked_for);
  if (format.lse == lse_placement::inline_bits) {
    return both(way::packed, route_reason::inline_lse);
  }
  if (format.peer == peer_placement::inside_heads) {
    return both(way::packed, route_reason::peers_inside_heads);
  }
  // Several tokens, outermost, leave gaps in each peer's part; see travels_in_parts().
  const bool may_be_one_run = wire_order_of<Output>() == wire_order::head_major ||
                              output.template extent<axis::token>() <= 1;
  if (may_be_one_run && straight_from > 0) {
    constexpr index_t element_bytes = sizeof(typename Output::value_type);
    const index_t row =
        output.template extent<axis::head_dim>() * element_bytes + index_t{sizeof(float)};
    if (lse.size() / (ranks > 0 ? ranks : 1) * row < straight_from) {
      return both(way::packed, route_reason::one_transfer);
    }
  }
  if (!may_be_one_run || !detail::peer_parts_contiguous(output, ranks)) {
    return {{way::packed, route_reason::chunks_have_gaps},
            {way::packed, route_reason::with_the_payload}};
  }
  const route straight{way::straight, route_reason::contiguous_chunks};
  if (!detail::lse_is_fp32<Lse>) return {straight, {way::packed, route_reason::not_fp32}};
  if (masked) return {straight, {way::packed, route_reason::masked}};
  const bool lse_contiguous = [&] {
    if constexpr (wire_order_of<Output>() == wire_order::token_major) {
      return detail::peer_parts_contiguous(permute<axis::token, axis::head>(lse), ranks);
    } else {
      return detail::peer_parts_contiguous(permute<axis::head, axis::token>(lse), ranks);
    }
  }();
  if (!lse_contiguous) return {straight, {way::packed, route_reason::chunks_have_gaps}};
  return {straight, straight};
}

/// The two ends of a gather: from the local operand, and into the gathered one.
struct gather_route {
  route send;
  route receive;
};

/// The ways of all_gather_heads: `local` has the heads of one rank, `gathered` those of all, rank
/// by rank, both over token, head and head_dim. The wire has the order of `local`.
template <class Local, class Gathered>
constexpr gather_route route_all_gather(const Local& local, const Gathered& gathered, index_t ranks,
                                        route_preference preference) {
  const route straight{way::straight, route_reason::contiguous_chunks};
  const route gaps{way::packed, route_reason::chunks_have_gaps};
  if (ranks == 1) {
    const route alone{way::local, route_reason::one_rank};
    return {alone, alone};
  }
  if (preference == route_preference::packed) {
    const route asked{way::packed, route_reason::asked_for};
    return {asked, asked};
  }
  constexpr bool same_order = std::is_same_v<typename detail::axes_of<Local>::type,
                                             typename detail::axes_of<Gathered>::type>;
  return {local.is_contiguous() ? straight : gaps,
          same_order && detail::peer_parts_contiguous(gathered, ranks) ? straight : gaps};
}

// A call whose ranks also have a peer pool goes over the pool or over the transport. That is no
// choice of one rank: who goes over the pool waits there for all the others. So it is decided from
// what is equal on all of them, and from nothing that one rank alone knows: no pointer, no stride,
// no live rows, no failure of its own.

enum class carrier : std::uint8_t { pool, transport };

constexpr const char* to_string(carrier which) noexcept {
  return which == carrier::pool ? "pool" : "transport";
}

enum class pool_reason : std::uint8_t {
  fits,
  asked_for,     ///< the group asked for the transport
  one_rank,      ///< nothing travels
  no_pool,       ///< the ranks have voted, and it could not be opened on one of them
  no_operation,  ///< a pool has none of that name
  element_size,
  many_tokens,
  many_bytes,
};

constexpr const char* to_string(pool_reason reason) noexcept {
  switch (reason) {
    case pool_reason::fits: return "fits";
    case pool_reason::asked_for: return "asked for";
    case pool_reason::one_rank: return "one rank";
    case pool_reason::no_pool: return "no pool: the ranks agreed to do without";
    case pool_reason::no_operation: return "a pool has no such operation";
    case pool_reason::element_size: return "element of a size a pool does not move";
    case pool_reason::many_tokens: return "more tokens than the cap";
    case pool_reason::many_bytes: return "more bytes than a channel holds";
  }
  return "unknown";
}

/// What the group allows, equal on all ranks. `automatic` takes the pool where it can.
enum class carrier_preference : std::uint8_t { automatic, transport };

constexpr const char* to_string(carrier_preference preference) noexcept {
  return preference == carrier_preference::automatic ? "automatic" : "transport";
}

struct pool_route {
  carrier which = carrier::transport;
  pool_reason reason = pool_reason::no_pool;
  friend constexpr bool operator==(pool_route, pool_route) = default;
};

/// What the ranks have agreed on, once, for all calls.
struct pool_terms {
  index_t ranks = 0;
  bool open = false;              ///< the vote
  index_t token_cap = INT64_MAX;  ///< tokens of a call up to which it goes over the pool
  carrier_preference preference = carrier_preference::automatic;
};

/// What a pool asks of a call.
struct pool_call {
  index_t tokens = 0;  ///< of the padded batch, never the live ones of one rank
  index_t element_bytes = 0;
  bool has_operation = true;
  bool has_room = true;  ///< the channel, for the rows of the call
};

/// The sizes of elements that a pool moves.
constexpr bool pool_moves(index_t element_bytes) noexcept {
  return element_bytes == 1 || element_bytes == 2 || element_bytes == 4;
}

/// Over what a call goes; asked before anything is checked, sent or copied, by a warm-up as by the
/// call itself.
constexpr pool_route route_pool(const pool_terms& terms, const pool_call& call) noexcept {
  const auto by_transport = [](pool_reason reason) {
    return pool_route{carrier::transport, reason};
  };
  if (terms.ranks == 1) return by_transport(pool_reason::one_rank);
  if (terms.preference == carrier_preference::transport) {
    return by_transport(pool_reason::asked_for);
  }
  if (!terms.open) return by_transport(pool_reason::no_pool);
  if (!call.has_operation) return by_transport(pool_reason::no_operation);
  if (!pool_moves(call.element_bytes)) return by_transport(pool_reason::element_size);
  if (call.tokens > terms.token_cap) return by_transport(pool_reason::many_tokens);
  if (!call.has_room) return by_transport(pool_reason::many_bytes);
  return {carrier::pool, pool_reason::fits};
}

/// Whether the pool takes the call: route_pool(), and no other judgement.
constexpr bool supports(const pool_terms& terms, const pool_call& call) noexcept {
  return route_pool(terms, call).which == carrier::pool;
}

}  // namespace headwise::inline v0
