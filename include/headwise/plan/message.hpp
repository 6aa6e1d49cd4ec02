// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/plan/capacity.hpp>
#include <headwise/view/view.hpp>

// What an LSE reduce-scatter puts on the wire. One message per peer: the peer's heads of the partial
// output and their LSE.

namespace headwise::inline v0 {

/// Where the LSE of a row travels.
enum class lse_placement : std::uint8_t {
  plane,        ///< fp32, in a plane of its own behind the payload, so that rows stay 16-byte aligned
  inline_bits,  ///< its 32 bits in the lanes behind the row's head_dim elements, low half first
};

/// Where the peer axis stands among the others.
enum class peer_placement : std::uint8_t {
  outermost,     ///< one message after the other: what an all-to-all of equal chunks wants
  inside_heads,  ///< [.., heads of one rank, peer, head_dim]
};

/// Which of token and head is the outer one inside a message. It follows the order of the axes in
/// the type of the partial output, which is the same on all ranks of one program.
enum class wire_order : std::uint8_t { token_major, head_major };

constexpr const char* to_string(lse_placement placement) noexcept {
  return placement == lse_placement::plane ? "plane" : "inline";
}
constexpr const char* to_string(peer_placement placement) noexcept {
  return placement == peer_placement::outermost ? "outermost" : "inside heads";
}
constexpr const char* to_string(wire_order order) noexcept {
  return order == wire_order::token_major ? "token-major" : "head-major";
}

struct message_format {
  lse_placement lse = lse_placement::plane;
  peer_placement peer = peer_placement::outermost;
  friend constexpr bool operator==(message_format, message_format) = default;
};

/// Lanes of an element type that hold the 32 bits of an LSE: 2 of a 16-bit type, 1 of fp32.
template <class T>
  requires(is_reducible<T>)
inline constexpr index_t lse_lanes = static_cast<index_t>(sizeof(float) / sizeof(T));

struct message_shape {
  index_t ranks = 1;
  index_t tokens = 0;
  index_t heads = 0;  ///< of one rank
  index_t head_dim = 0;
};

/// Sizes and strides of the messages to (or from) all peers in one buffer whose start is aligned to
/// 16 bytes. Every plane and every message starts on a multiple of 16 bytes.
struct message_plan {
  message_shape shape;
  message_format format;
  wire_order order = wire_order::token_major;
  index_t element_bytes = 2;

  index_t row_pitch = 0;  ///< bytes from a row to the next of the same peer
  index_t outer_pitch = 0;
  index_t peer_pitch = 0;

  index_t lse_offset = 0;  ///< bytes from the buffer's start to the LSE of peer 0, row 0
  index_t lse_row_pitch = 0;
  index_t lse_outer_pitch = 0;
  index_t lse_peer_pitch = 0;

  index_t payload_bytes = 0;  ///< of one peer (outermost) or of all (inside_heads), padding included
  index_t total_bytes = 0;    ///< of the whole buffer

  /// Errors: unsupported (ranks), invalid_argument (a negative extent), capacity_exceeded (the
  /// buffer would not fit into 64 bits).
  template <class T>
    requires(is_reducible<T>)
  static constexpr result<message_plan> make(const message_shape& shape,
                                             const message_format& format = {},
                                             wire_order order = wire_order::token_major) noexcept {
    const status ranks_ok = require_supported_ranks(shape.ranks);
    if (!ranks_ok.ok()) return ranks_ok;
    if (shape.tokens < 0 || shape.heads < 0 || shape.head_dim < 0) {
      return failure(errc::invalid_argument, "message", "an extent is not negative",
                     detail::lesser(shape.tokens, detail::lesser(shape.heads, shape.head_dim)), 0);
    }
    const index_t bytes = sizeof(T);
    const bool plane = format.lse == lse_placement::plane;
    const checked_size row = (checked_size(shape.head_dim) + (plane ? 0 : lse_lanes<T>)) * bytes;
    const checked_size rows = checked_size(shape.tokens) * shape.heads;
    const bool outermost = format.peer == peer_placement::outermost;
    const checked_size peers_together = outermost ? 1 : shape.ranks;
    const checked_size payload = (row * rows * peers_together).rounded_up(16);
    const checked_size lse =
        plane ? (rows * index_t{sizeof(float)} * peers_together).rounded_up(16) : checked_size(0);
    const checked_size total = (payload + lse) * (outermost ? shape.ranks : 1);
    if (!total.valid()) return require_capacity("message", total, INT64_MAX);

    message_plan plan;
    plan.shape = shape;
    plan.format = format;
    plan.order = order;
    plan.element_bytes = bytes;
    const index_t row_bytes = row.value();
    const index_t inner_extent = order == wire_order::token_major ? shape.heads : shape.tokens;
    plan.row_pitch = outermost ? row_bytes : row_bytes * shape.ranks;
    plan.outer_pitch = plan.row_pitch * inner_extent;
    plan.peer_pitch = outermost ? (payload + lse).value() : row_bytes;
    plan.payload_bytes = payload.value();
    plan.total_bytes = total.value();
    if (plane) {
      plan.lse_offset = payload.value();
      plan.lse_row_pitch = index_t{sizeof(float)} * (outermost ? 1 : shape.ranks);
      plan.lse_outer_pitch = plan.lse_row_pitch * inner_extent;
      plan.lse_peer_pitch = outermost ? plan.peer_pitch : index_t{sizeof(float)};
    } else {
      plan.lse_offset = shape.head_dim * bytes;
      plan.lse_row_pitch = plan.row_pitch;
      plan.lse_outer_pitch = plan.outer_pitch;
      plan.lse_peer_pitch = plan.peer_pitch;
    }
    return plan;
  }

  HEADWISE_HD constexpr index_t token_pitch() const noexcept {
    return order == wire_order::token_major ? outer_pitch : row_pitch;
  }
  HEADWISE_HD constexpr index_t head_pitch() const noexcept {
    return order == wire_order::token_major ? row_pitch : outer_pitch;
  }

  /// Bytes from the buffer's start to a row's first element.
  HEADWISE_HD constexpr index_t payload_at(index_t peer, index_t token,
                                           index_t head) const noexcept {
    return peer * peer_pitch + token * token_pitch() + head * head_pitch();
  }

  /// Bytes from the buffer's start to the 32 bits of a row's LSE. With inline bits and a 16-bit
  /// payload they are aligned to 2 bytes only.
  HEADWISE_HD constexpr index_t lse_at(index_t peer, index_t token, index_t head) const noexcept {
    const bool token_outer = order == wire_order::token_major;
    return lse_offset + peer * lse_peer_pitch +
           (token_outer ? token : head) * lse_outer_pitch +
           (token_outer ? head : token) * lse_row_pitch;
  }

  /// Bytes that travel to one peer, padding included where the message is one chunk.
  HEADWISE_HD constexpr index_t bytes_per_peer() const noexcept {
    return format.peer == peer_placement::outermost
               ? peer_pitch
               : shape.tokens * shape.heads *
                     (row_pitch / shape.ranks +
                      (format.lse == lse_placement::plane ? index_t{sizeof(float)} : 0));
  }
};

/// The payload rows of all messages in `buffer`.
template <class T>
HEADWISE_HD constexpr auto payload_view(const message_plan& plan, T* buffer) noexcept {
  const index_t bytes = plan.element_bytes;
  return view<T, layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>,
                        dim<axis::head_dim, dynamic_extent, 1>>>(
      buffer, {dim<axis::rank>(plan.shape.ranks, plan.peer_pitch / bytes),
               dim<axis::token>(plan.shape.tokens, plan.token_pitch() / bytes),
               dim<axis::head>(plan.shape.heads, plan.head_pitch() / bytes),
               dim<axis::head_dim, dynamic_extent, 1>(plan.shape.head_dim)});
}

}  // namespace headwise::inline v0
