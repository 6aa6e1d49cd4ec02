// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/plan/capacity.hpp>
#include <headwise/view/view.hpp>

// How an LSE reduce-scatter lays out what it sends. One message per peer: the peer's heads of the
// partial output, and their LSEs.

namespace headwise::inline v0 {

/// Where the LSE of a row travels.
enum class lse_placement : std::uint8_t {
  plane,        ///< fp32, in a plane of its own behind the payload: rows stay 16-byte aligned
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

namespace detail {

template <class T>
consteval index_t lse_lanes_of() noexcept {
  static_assert(is_reducible<T>,
                "headwise: a message carries fp32, fp16 or bf16 partial results; fp8 can be moved, "
                "never reduced");
  return static_cast<index_t>(sizeof(float) / sizeof(T));
}

}  // namespace detail

/// Lanes of an element type that hold the 32 bits of an LSE: 2 of a 16-bit type, 1 of fp32.
template <class T>
inline constexpr index_t lse_lanes = detail::lse_lanes_of<T>();

struct message_shape {
  index_t ranks = 1;
  index_t tokens = 0;
  index_t heads = 0;  ///< of one rank
  index_t head_dim = 0;
};

/// Sizes and strides of the messages to (or from) all peers, in one buffer that is aligned to 16
/// bytes. An LSE plane, and a message that has one, starts on a multiple of 16 bytes. Inline bits
/// leave nothing between the rows: peers outermost and token-major, the buffer is what other
/// engines exchange, a dense [rank, token, head, head_dim + lse_lanes].
struct message_plan {
  message_shape shape;
  message_format format;
  wire_order order = wire_order::token_major;
  index_t element_bytes = 0;

  index_t token_pitch = 0;  ///< bytes from a row to that of the next token
  index_t head_pitch = 0;   ///< to that of the next head of the same peer
  index_t peer_pitch = 0;   ///< to the same of the next peer

  index_t lse_offset = 0;  ///< bytes from the buffer's start to the LSE of peer 0, row 0
  index_t lse_token_pitch = 0;
  index_t lse_head_pitch = 0;
  index_t lse_peer_pitch = 0;

  index_t total_bytes = 0;  ///< of the buffer, padded to a multiple of 16

  /// For partial results of type T. Errors: unsupported (ranks), invalid_argument (a negative
  /// extent), capacity_exceeded (the buffer, or a pitch in it, does not fit into 64 bits).
  template <class T>
  static constexpr result<message_plan> make(const message_shape& shape,
                                             const message_format& format = {},
                                             wire_order order = wire_order::token_major) noexcept {
    const status shape_ok = check_shape(shape);
    if (!shape_ok.ok()) return shape_ok;
    constexpr index_t bytes = sizeof(T);
    constexpr index_t lse_bytes = sizeof(float);
    const bool plane = format.lse == lse_placement::plane;
    const bool outermost = format.peer == peer_placement::outermost;
    const bool token_major = order == wire_order::token_major;
    // Between two rows of one peer stand those of its peers, or none.
    const index_t together = outermost ? 1 : shape.ranks;
    const index_t inner = token_major ? shape.heads : shape.tokens;
    const index_t outer = token_major ? shape.tokens : shape.heads;

    const checked_size row = (checked_size(shape.head_dim) + (plane ? 0 : lse_lanes<T>)) * bytes;
    const checked_size outer_pitch = row * together * inner;
    const checked_size lse_outer_pitch = checked_size(plane ? lse_bytes : 0) * together * inner;
    checked_size payload = outer_pitch * outer;
    if (plane) payload = payload.rounded_up(16);
    const checked_size message = payload + (lse_outer_pitch * outer).rounded_up(16);
    const checked_size total = (message * (outermost ? shape.ranks : 1)).rounded_up(16);
    if (!total.valid()) return require_capacity("message", total, INT64_MAX);

    message_plan plan;
    plan.shape = shape;
    plan.format = format;
    plan.order = order;
    plan.element_bytes = bytes;
    const index_t row_pitch = row.value() * together;
    plan.token_pitch = token_major ? outer_pitch.value() : row_pitch;
    plan.head_pitch = token_major ? row_pitch : outer_pitch.value();
    plan.peer_pitch = outermost ? message.value() : row.value();
    plan.total_bytes = total.value();
    if (plane) {
      const index_t lse_row_pitch = lse_bytes * together;
      plan.lse_offset = payload.value();
      plan.lse_token_pitch = token_major ? lse_outer_pitch.value() : lse_row_pitch;
      plan.lse_head_pitch = token_major ? lse_row_pitch : lse_outer_pitch.value();
      plan.lse_peer_pitch = outermost ? message.value() : lse_bytes;
    } else {
      plan.lse_offset = shape.head_dim * bytes;
      plan.lse_token_pitch = plan.token_pitch;
      plan.lse_head_pitch = plan.head_pitch;
      plan.lse_peer_pitch = plan.peer_pitch;
    }
    return plan;
  }

  /// Bytes from a row to the next of the same peer, along the inner axis of the wire order.
  HEADWISE_HD constexpr index_t row_pitch() const noexcept {
    return order == wire_order::token_major ? head_pitch : token_pitch;
  }
  HEADWISE_HD constexpr index_t lse_row_pitch() const noexcept {
    return order == wire_order::token_major ? lse_head_pitch : lse_token_pitch;
  }

  /// Bytes from the buffer's start to a row's first element.
  HEADWISE_HD constexpr index_t payload_at(index_t peer, index_t token,
                                           index_t head) const noexcept {
    return peer * peer_pitch + token * token_pitch + head * head_pitch;
  }

  /// Bytes from the buffer's start to the 32 bits of a row's LSE. With inline bits and a 16-bit
  /// payload they are aligned to 2 bytes only.
  HEADWISE_HD constexpr index_t lse_at(index_t peer, index_t token, index_t head) const noexcept {
    return lse_offset + peer * lse_peer_pitch + token * lse_token_pitch + head * lse_head_pitch;
  }

  /// Bytes of one peer's rows and their LSEs, in every format the same; padding not counted.
  HEADWISE_HD constexpr index_t bytes_per_peer() const noexcept {
    if (shape.tokens == 0 || shape.heads == 0) return 0;  // a row may be of any size then
    return shape.tokens * shape.heads * (shape.head_dim * element_bytes + index_t{sizeof(float)});
  }

 private:
  static constexpr status check_shape(const message_shape& shape) noexcept {
    const status ranks_ok = require_supported_ranks(shape.ranks);
    if (!ranks_ok.ok()) return ranks_ok;
    const index_t extents[] = {shape.tokens, shape.heads, shape.head_dim};
    const char* const names[] = {axis::token::name, axis::head::name, axis::head_dim::name};
    for (int i = 0; i < 3; ++i) {
      if (extents[i] >= 0) continue;
      return failure(errc::invalid_argument, "message", "an extent is not negative", extents[i], 0,
                     names[i]);
    }
    return {};
  }
};

/// The payload rows of all messages in `buffer`: [rank, token, head, head_dim]. Precondition: T has
/// the size that the plan was made for.
template <class T>
HEADWISE_HD constexpr auto payload_view(const message_plan& plan, T* buffer) noexcept {
  HEADWISE_ASSERT(plan.element_bytes == index_t{sizeof(T)});
  constexpr index_t bytes = sizeof(T);
  using rows = layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>,
                      dim<axis::head_dim, dynamic_extent, 1>>;
  return view<T, rows>(buffer, rows(dim<axis::rank>(plan.shape.ranks, plan.peer_pitch / bytes),
                                    dim<axis::token>(plan.shape.tokens, plan.token_pitch / bytes),
                                    dim<axis::head>(plan.shape.heads, plan.head_pitch / bytes),
                                    dim<axis::head_dim, dynamic_extent, 1>(plan.shape.head_dim)));
}

}  // namespace headwise::inline v0
