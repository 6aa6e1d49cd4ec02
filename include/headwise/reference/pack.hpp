// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/plan/shards.hpp>
#include <headwise/reference/materialize.hpp>

namespace headwise::inline v0 {

namespace reference {

/// Writes the LSE part of the messages, for payloads that are sent from where they are. Operands as
/// for pack(), already checked.
template <log_base Base, class Lse, class Valid>
void pack_lse(const Lse& partial_lse, const message_plan& plan, std::byte* message,
              const Valid& valid, index_t left_out = no_peer) noexcept {
  const index_t heads = plan.shape.heads;
  if (heads == 0) return;  // the tokens may be any number then
  for (index_t peer = 0; peer < plan.shape.ranks; ++peer) {
    if (peer == left_out) continue;
    for (index_t token = 0; token < plan.shape.tokens; ++token) {
      for (index_t head = 0; head < heads; ++head) {
        const auto value =
            detail::lse_to_send<Base>(partial_lse, valid, token, peer * heads + head);
        detail::store_lse_bits(message + plan.lse_at(peer, token, head), value.value,
                               plan.format.lse);
      }
    }
  }
}

/// Packs this rank's partial result into one message per peer: peer r gets heads [r * heads,
/// (r + 1) * heads).
///
/// `partial_output`  over token, head (ranks * heads) and head_dim; fp32, fp16 or bf16; any
///                   strides.
/// `partial_lse`     over token and head; lse<Base>, or fp32, fp16 or bf16, which travel as fp32.
/// `message`         plan.total_bytes, aligned to 16. Padding in it is not written.
/// `valid`           none, integers over token, or keys_by_sequence; a row without keys is sent as
///                   empty, whatever its LSE says.
/// `left_out`        the peer whose message is not written: this rank, whose own part stays.
/// Errors: shape_mismatch, misaligned, unsupported and those of validate(); then nothing is
/// written.
template <log_base Base, class Output, class Lse, class Valid = none_t>
status pack(const Output& partial_output, const Lse& partial_lse, const message_plan& plan,
            std::byte* message, const Valid& valid = {}, index_t left_out = no_peer) noexcept {
  static_assert(detail::reachable<host_accessible, Output> &&
                    detail::reachable<host_accessible, Lse> &&
                    detail::reachable<host_accessible, Valid>,
                "headwise: the host reference reads and writes views of host memory");
  using element = std::remove_cv_t<typename Output::value_type>;
  const status can = detail::check_pack<Base>(partial_output, partial_lse, plan, message, valid);
  if (!can.ok()) return can;
  const auto parts =
      split<axis::head, axis::rank, axis::head>(partial_output, plan.shape.ranks).value();
  const auto to = payload_view(plan, reinterpret_cast<element*>(message));
  const auto copy = [&](index_t first, index_t count) {
    detail::copy_elements(detail::slice_unchecked<axis::rank, dynamic_extent>(parts, first, count),
                          detail::slice_unchecked<axis::rank, dynamic_extent>(to, first, count));
  };
  if (left_out == no_peer) {
    copy(0, plan.shape.ranks);
  } else {
    copy(0, left_out);
    copy(left_out + 1, plan.shape.ranks - left_out - 1);
  }
  pack_lse<Base>(partial_lse, plan, message, valid, left_out);
  return {};
}

/// The inverse of pack(): the messages of all peers, each back to its place.
///
/// `output`       over rank, token, head and head_dim; of the element type that was packed.
/// `partial_lse`  over rank, token and head; lse<Base> or fp32. Any strides in both.
/// Errors: shape_mismatch, overlap, misaligned, unsupported and those of validate(); then nothing
/// is written.
template <log_base Base, class Output, class Lse>
status unpack(const std::byte* message, const message_plan& plan, const Output& output,
              const Lse& partial_lse) noexcept {
  static_assert(
      detail::reachable<host_accessible, Output> && detail::reachable<host_accessible, Lse>,
      "headwise: the host reference reads and writes views of host memory");
  static_assert(view_over<Output, axis::rank, axis::token, axis::head, axis::head_dim>,
                "headwise: unpack writes a view over rank, token, head and head_dim");
  static_assert(view_over<Lse, axis::rank, axis::token, axis::head>,
                "headwise: unpack writes LSEs over rank, token and head");
  static_assert(
      is_reducible<typename Output::value_type>,
      "headwise: a partial output is fp32, fp16 or bf16; fp8 can be moved, never reduced");
  static_assert(detail::reads_as_lse<typename Lse::value_type, Base> &&
                    element_kind_of<typename Lse::value_type> == element_kind::f32,
                "headwise: an unpacked LSE is fp32, in the log base that the call names");
  using element = typename Output::value_type;
  using lse_element = typename Lse::value_type;
  const status output_ok = validate_target("output", output);
  if (!output_ok.ok()) return output_ok;
  const status lse_ok = validate_target("partial_lse", partial_lse);
  if (!lse_ok.ok()) return lse_ok;
  const status message_ok = detail::check_message(message, plan);
  if (!message_ok.ok()) return message_ok;
  const status planned = detail::check_planned("output", output, plan, plan.shape.heads);
  if (!planned.ok()) return planned;
  if (output.template extent<axis::rank>() != plan.shape.ranks) {
    return failure(errc::shape_mismatch, "output", "one entry per rank of the plan",
                   output.template extent<axis::rank>(), plan.shape.ranks, axis::rank::name);
  }
  const status lse_fits =
      detail::same_extents("partial_lse", partial_lse, "must be that of output",
                           detail::fix_unchecked<axis::head_dim>(output, 0).layout());
  if (!lse_fits.ok()) return lse_fits;

  detail::copy_elements(payload_view(plan, reinterpret_cast<const element*>(message)), output);
  const auto by_axis = permute<axis::rank, axis::token, axis::head>(partial_lse);
  if (plan.shape.heads == 0) return {};
  for (index_t rank = 0; rank < plan.shape.ranks; ++rank) {
    for (index_t token = 0; token < plan.shape.tokens; ++token) {
      for (index_t head = 0; head < plan.shape.heads; ++head) {
        by_axis(rank, token, head) = detail::bit_cast<lse_element>(
            detail::load_lse_bits(message + plan.lse_at(rank, token, head), plan.format.lse));
      }
    }
  }
  return {};
}

}  // namespace reference

}  // namespace headwise::inline v0
