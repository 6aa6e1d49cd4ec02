// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/launch.cuh>
#include <headwise/plan/shards.hpp>

// Writes a partial result into one message per peer, in one launch: payload and LSE, the LSE of
// rows without keys masked and 16-bit LSEs widened on the way.
//
// template  Base; Width, bytes of a load or store; the types of the views, whose static strides the
//           compiler folds in
// grid      x: rows (token, head) of a peer, any number; y: the peers that get a message
// block     up to 256 threads; a group of `lanes` a row, two loads in flight a thread
// in, out   views of any strides; the messages as message_plan lays them out, padding not written
// numerics  moves bits; an LSE of 16 bits is widened exactly

namespace headwise::inline v0 {

namespace detail {

/// A row of one peer's message.
struct message_row {
  index_t token;
  index_t head;  ///< in the partial output, which has the heads of all peers
  std::byte* payload;
  std::byte* lse_bits;
};

/// Row `row` of the peer that block row y stands for: of all peers, or of all but one.
__device__ inline message_row find_row(const message_plan& plan, std::byte* message,
                                       index_t left_out, const row_divider& inner,
                                       std::uint32_t row) noexcept {
  index_t peer = blockIdx.y;
  if (left_out != no_peer && peer >= left_out) ++peer;
  const row_place at = inner.place(row);
  const bool token_major = plan.order == wire_order::token_major;
  const index_t token = token_major ? at.outer : at.inner;
  const index_t head = token_major ? at.inner : at.outer;
  return {token, peer * plan.shape.heads + head, message + plan.payload_at(peer, token, head),
          message + plan.lse_at(peer, token, head)};
}

template <log_base Base, int Width, class Output, class Lse, class Valid>
__global__ void __launch_bounds__(256)
    pack_kernel(Output partial_output, Lse partial_lse, Valid valid, message_plan plan,
                std::byte* message, index_t left_out, unsigned lanes, std::uint32_t row_count,
                row_divider inner) {
  enter_kernel();
  using element = typename Output::value_type;
  using raw = typename raw_bits<Width>::type;
  constexpr unsigned unroll = 2;
  constexpr unsigned columns = Width / sizeof(element);
  const unsigned lane = threadIdx.x & (lanes - 1);
  const std::uint32_t row = blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
  if (row >= row_count) return;
  const message_row at = find_row(plan, message, left_out, inner, row);
  // On its way before the payload, which it would else wait for.
  lse<Base> value = empty_lse<Base>();
  if (lane == 0) value = lse_to_send<Base>(partial_lse, valid, at.token, at.head);

  const auto from = row_of(partial_output, at.token, at.head);
  auto* const to = reinterpret_cast<element*>(at.payload);
  const auto head_dim = static_cast<unsigned>(partial_output.template extent<axis::head_dim>());
  const unsigned units = head_dim / columns;
  for (unsigned first = lane; first < units; first += unroll * lanes) {
    raw moved[unroll];
#pragma unroll
    for (unsigned k = 0; k < unroll; ++k) {
      const unsigned unit = first + k * lanes;
      if (unit >= units) continue;
      if constexpr (columns == 1) {
        moved[k] = *reinterpret_cast<const raw*>(from.data + unit * from.stride);
      } else {
        moved[k] = reinterpret_cast<const raw*>(from.data)[unit];
      }
    }
#pragma unroll
    for (unsigned k = 0; k < unroll; ++k) {
      const unsigned unit = first + k * lanes;
      if (unit < units) reinterpret_cast<raw*>(to)[unit] = moved[k];
    }
  }
  if constexpr (columns > 1) {
    for (unsigned d = units * columns + lane; d < head_dim; d += lanes) to[d] = from.data[d];
  }
  if (lane == 0) store_lse_bits(at.lse_bits, value.value, plan.format.lse);
}

template <log_base Base, class Lse, class Valid>
__global__ void __launch_bounds__(256)
    pack_lse_kernel(Lse partial_lse, Valid valid, message_plan plan, std::byte* message,
                    index_t left_out, std::uint32_t row_count, row_divider inner) {
  enter_kernel();
  const std::uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= row_count) return;
  const message_row at = find_row(plan, message, left_out, inner, row);
  const auto value = lse_to_send<Base>(partial_lse, valid, at.token, at.head);
  store_lse_bits(at.lse_bits, value.value, plan.format.lse);
}

/// Rows (token, head) of each peer, and how many of them neighbour each other on the wire.
struct packed_rows {
  index_t count;
  index_t inner;
};
constexpr packed_rows rows_of(const message_plan& plan) noexcept {
  const index_t tokens = plan.shape.tokens;
  const index_t heads = plan.shape.heads;
  return {heads == 0 ? 0 : tokens * heads, plan.order == wire_order::token_major ? heads : tokens};
}

/// The grid of a pack whose loads are `width` bytes wide.
constexpr launch_shape pack_launch(const message_plan& plan, index_t left_out, int width) noexcept {
  launch_shape shape;
  const index_t rows = rows_of(plan).count;
  const index_t peers = plan.shape.ranks - (left_out == no_peer ? 0 : 1);
  if (rows == 0 || peers == 0) return shape;
  const index_t units = greater(plan.shape.head_dim * plan.element_bytes / width, index_t{1});
  shape.vector_bytes = width;
  shape.peers = static_cast<unsigned>(peers);
  // Two units a lane where there are rows enough to fill the device, one where there are not.
  constexpr index_t plenty = 4096;
  shape.lanes = lanes_for(rows * peers >= plenty ? ceil_div(units, 2) : units);
  shape.threads = threads_for(rows * peers * shape.lanes, 256);
  shape.blocks = static_cast<unsigned>(ceil_div(rows, shape.threads / shape.lanes));
  return shape;
}

/// The grid of a pack of LSEs alone.
constexpr launch_shape pack_lse_launch(const message_plan& plan, index_t left_out) noexcept {
  launch_shape shape = pack_launch(plan, left_out, 16);
  if (shape.blocks == 0) return shape;
  const index_t rows = rows_of(plan).count;
  shape.lanes = 1;
  shape.vector_bytes = sizeof(float);
  shape.threads = threads_for(rows * shape.peers, 256);
  shape.blocks = static_cast<unsigned>(ceil_div(rows, shape.threads));
  return shape;
}

/// What the rows of a pack are aligned to, or-ed with the pitches of the messages.
template <class Output>
std::uint64_t pack_alignment(const Output& partial_output, const message_plan& plan) noexcept {
  return row_alignment(partial_output) |
         static_cast<std::uint64_t>(plan.token_pitch | plan.head_pitch | plan.peer_pitch);
}

}  // namespace detail

namespace kernel {

/// What pack() would launch for these operands.
template <class Output>
launch_shape pack_shape(const Output& partial_output, const message_plan& plan,
                        index_t left_out = no_peer) noexcept {
  constexpr int least = sizeof(typename Output::value_type);
  const std::uint64_t alignment = detail::pack_alignment(partial_output, plan);
  const int width = detail::widest_vector(alignment, least);
  return detail::pack_launch(plan, left_out, width);
}

/// reference::pack() on a stream, with the same bits; `message` is memory that the device reaches.
/// One launch; none where there is no row. What `valid` says is read when the stream gets there.
/// Errors: those of reference::pack(), unsupported (2^31 rows or columns), cuda_failed.
template <log_base Base, class Output, class Lse, class Valid = none_t>
status pack(const Output& partial_output, const Lse& partial_lse, const message_plan& plan,
            std::byte* message, const on_stream& stream, const Valid& valid = {},
            index_t left_out = no_peer) noexcept {
  static_assert(detail::reachable<device_accessible, Output> &&
                    detail::reachable<device_accessible, Lse> &&
                    detail::reachable<device_accessible, Valid>,
                "headwise: a kernel reads and writes views of device or pinned memory");
  const status can = detail::check_pack<Base>(partial_output, partial_lse, plan, message, valid);
  if (!can.ok()) return can;
  const status numbered =
      detail::check_rows("pack", plan.shape.tokens, plan.shape.heads, plan.shape.head_dim);
  if (!numbered.ok()) return numbered;
  const detail::packed_rows rows = detail::rows_of(plan);
  constexpr int least = sizeof(typename Output::value_type);
  constexpr auto possible = detail::static_row_alignment(std::type_identity<Output>{});
  return detail::with_vector<least, possible>(
      detail::pack_alignment(partial_output, plan), [&](auto width) -> status {
        const launch_shape shape = detail::pack_launch(plan, left_out, width);
        return detail::launch("pack", detail::pack_kernel<Base, width.value, Output, Lse, Valid>,
                              shape, stream, partial_output, partial_lse, valid, plan, message,
                              left_out, shape.lanes, static_cast<std::uint32_t>(rows.count),
                              detail::row_divider(rows.inner));
      });
}

/// reference::pack_lse() on a stream: only the LSE part of the messages. Operands as for pack(),
/// already checked. Errors: unsupported (2^31 rows), cuda_failed.
template <log_base Base, class Lse, class Valid = none_t>
status pack_lse(const Lse& partial_lse, const message_plan& plan, std::byte* message,
                const on_stream& stream, const Valid& valid = {},
                index_t left_out = no_peer) noexcept {
  static_assert(
      detail::reachable<device_accessible, Lse> && detail::reachable<device_accessible, Valid>,
      "headwise: a kernel reads and writes views of device or pinned memory");
  const status numbered = detail::check_rows("pack_lse", plan.shape.tokens, plan.shape.heads, 0);
  if (!numbered.ok()) return numbered;
  const detail::packed_rows rows = detail::rows_of(plan);
  return detail::launch("pack_lse", detail::pack_lse_kernel<Base, Lse, Valid>,
                        detail::pack_lse_launch(plan, left_out), stream, partial_lse, valid, plan,
                        message, left_out, static_cast<std::uint32_t>(rows.count),
                        detail::row_divider(rows.inner));
}

}  // namespace kernel

}  // namespace headwise::inline v0
