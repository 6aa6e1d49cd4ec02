// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/lse/partial.hpp>
#include <headwise/plan/message.hpp>
#include <headwise/reference/materialize.hpp>
#include <headwise/view/slice.hpp>

namespace headwise::inline v0 {

/// Stands for an optional operand that the caller does not have.
struct none_t {};
inline constexpr none_t none{};

namespace detail {

template <class T>
inline constexpr bool is_none = std::is_same_v<std::remove_cv_t<T>, none_t>;

/// An element that can be read as an LSE in base Base: an lse<Base>, or a bare fp32, fp16 or bf16
/// whose base the caller vouches for by naming it.
template <class T, log_base Base>
inline constexpr bool reads_as_lse = is_reducible<T>;
template <log_base Other, log_base Base>
inline constexpr bool reads_as_lse<lse<Other>, Base> = Other == Base;
template <log_base Other, log_base Base>
inline constexpr bool reads_as_lse<const lse<Other>, Base> = Other == Base;

// By bytes: inline LSE bits behind 16-bit rows are aligned to 2 bytes only.
inline void store_lse_bits(std::byte* at, float value) noexcept {
  std::memcpy(at, &value, sizeof value);
}
inline float load_lse_bits(const std::byte* at) noexcept {
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Whether partial output and LSE belong together, and the LSE is in the base that the call names.
template <log_base Base, class Output, class Lse>
constexpr status check_partial(const Output& output, const Lse& lse) noexcept {
  static_assert(view_over<Output, axis::token, axis::head, axis::head_dim>,
                "headwise: a partial output is a view over token, head and head_dim");
  static_assert(view_over<Lse, axis::token, axis::head>,
                "headwise: a partial LSE is a view over token and head");
  static_assert(is_reducible<typename Output::value_type>,
                "headwise: a partial output is fp32, fp16 or bf16; fp8 can be moved, never reduced");
  static_assert(reads_as_lse<typename Lse::value_type, Base>,
                "headwise: the LSE is not in the log base that the call combines in");
  const status output_ok = validate("partial_output", output);
  if (!output_ok.ok()) return output_ok;
  const status lse_ok = validate("partial_lse", lse);
  if (!lse_ok.ok()) return lse_ok;
  if (lse.template extent<axis::token>() != output.template extent<axis::token>()) {
    return failure(errc::shape_mismatch, "partial_lse", "must be that of partial_output",
                   lse.template extent<axis::token>(), output.template extent<axis::token>(),
                   axis::token::name);
  }
  if (lse.template extent<axis::head>() != output.template extent<axis::head>()) {
    return failure(errc::shape_mismatch, "partial_lse", "must be that of partial_output",
                   lse.template extent<axis::head>(), output.template extent<axis::head>(),
                   axis::head::name);
  }
  return {};
}

/// `valid`: none, or a count per token (0: this rank has no key for it).
template <class Valid>
constexpr status check_valid(const Valid& valid, index_t tokens) noexcept {
  if constexpr (!is_none<Valid>) {
    static_assert(view_of<Valid, axis::token>, "headwise: valid counts are a view over token");
    const status well_formed = validate("valid", valid);
    if (!well_formed.ok()) return well_formed;
    if (valid.template extent<axis::token>() != tokens) {
      return failure(errc::shape_mismatch, "valid", "one count per token",
                     valid.template extent<axis::token>(), tokens, axis::token::name);
    }
  }
  return {};
}

constexpr status check_message(const message_plan& plan, index_t tokens, index_t heads,
                               index_t head_dim, index_t element_bytes) noexcept {
  const char* const names[] = {axis::token::name, axis::head::name, axis::head_dim::name, "bytes"};
  const index_t got[] = {tokens, heads, head_dim, element_bytes};
  const index_t expected[] = {plan.shape.tokens, plan.shape.heads, plan.shape.head_dim,
                              plan.element_bytes};
  for (int i = 0; i < 4; ++i) {
    if (got[i] != expected[i]) {
      return failure(errc::shape_mismatch, "message", "the plan is for another shape", got[i],
                     expected[i], names[i]);
    }
  }
  return {};
}

/// lse(peer, token, head) of this rank's own operand, cleaned of what cannot travel as fp32.
template <log_base Base, class Lse, class Valid>
float lse_to_send(const Lse& lse, const Valid& valid, index_t token, index_t head) noexcept {
  const auto by_axis = permute<axis::token, axis::head>(lse);
  const auto loaded = load_lse<Base>(by_axis(token, head));
  if constexpr (is_none<Valid>) {
    return loaded.value;
  } else {
    return mask_lse(loaded, valid(token)).value;
  }
}

}  // namespace detail

namespace reference {

/// Writes the LSE part of all messages. Operands as for pack(), already checked.
template <log_base Base, class Lse, class Valid>
void pack_lse(const Lse& lse, const message_plan& plan, std::byte* message,
              const Valid& valid) noexcept {
  for (index_t peer = 0; peer < plan.shape.ranks; ++peer) {
    for (index_t token = 0; token < plan.shape.tokens; ++token) {
      for (index_t head = 0; head < plan.shape.heads; ++head) {
        const float value = detail::lse_to_send<Base>(lse, valid, token,
                                                      peer * plan.shape.heads + head);
        detail::store_lse_bits(message + plan.lse_at(peer, token, head), value);
      }
    }
  }
}

/// Packs this rank's partial result into one message per peer: peer r gets heads
/// [r * heads, (r + 1) * heads) of `output` (over token, head = ranks * heads, head_dim; fp32, fp16 or
/// bf16; any strides) and of `lse` (over token and head; lse<Base> or fp32, fp16, bf16, widened to
/// fp32). `valid`: none, or [token] counts; a row of count 0 is sent as empty, whatever its LSE says.
/// `message`: plan.total_bytes, aligned to 16.
/// Errors: shape_mismatch and those of validate(); then nothing is written.
template <log_base Base, class Output, class Lse, class Valid = none_t>
status pack(const Output& output, const Lse& lse, const message_plan& plan, std::byte* message,
            const Valid& valid = {}) noexcept {
  const status partial_ok = detail::check_partial<Base>(output, lse);
  if (!partial_ok.ok()) return partial_ok;
  const status valid_ok = detail::check_valid(valid, output.template extent<axis::token>());
  if (!valid_ok.ok()) return valid_ok;
  const auto parts = split<axis::head, axis::rank, axis::head>(output, plan.shape.ranks);
  if (!parts.ok()) return parts.why();
  using element = typename Output::value_type;
  const status shape_ok = detail::check_message(
      plan, output.template extent<axis::token>(), parts.value().template extent<axis::head>(),
      output.template extent<axis::head_dim>(), sizeof(element));
  if (!shape_ok.ok()) return shape_ok;
  const status copied = materialize(
      parts.value(), payload_view(plan, reinterpret_cast<element*>(message)));
  if (!copied.ok()) return copied;
  pack_lse<Base>(lse, plan, message, valid);
  return {};
}

/// The inverse of pack(): the messages of all peers back into `output` over [rank, token, head,
/// head_dim] and `lse` over [rank, token, head], any strides.
/// Errors: shape_mismatch, overlap and those of validate(); then nothing is written.
template <log_base Base, class Output, class Lse>
status unpack(const std::byte* message, const message_plan& plan, const Output& output,
              const Lse& lse) noexcept {
  static_assert(view_over<Output, axis::rank, axis::token, axis::head, axis::head_dim>,
                "headwise: unpack writes a view over rank, token, head and head_dim");
  static_assert(view_over<Lse, axis::rank, axis::token, axis::head>,
                "headwise: unpack writes LSEs over rank, token and head");
  static_assert(detail::reads_as_lse<typename Lse::value_type, Base> &&
                    element_kind_of<typename Lse::value_type> == element_kind::f32,
                "headwise: an unpacked LSE is fp32 in the log base that the call names");
  using element = typename Output::value_type;
  const status shape_ok = detail::check_message(
      plan, output.template extent<axis::token>(), output.template extent<axis::head>(),
      output.template extent<axis::head_dim>(), sizeof(element));
  if (!shape_ok.ok()) return shape_ok;
  const status lse_ok = validate_target("lse", lse);
  if (!lse_ok.ok()) return lse_ok;
  const index_t got[] = {lse.template extent<axis::rank>(), lse.template extent<axis::token>(),
                         lse.template extent<axis::head>()};
  const index_t expected[] = {plan.shape.ranks, plan.shape.tokens, plan.shape.heads};
  const char* const names[] = {axis::rank::name, axis::token::name, axis::head::name};
  for (int i = 0; i < 3; ++i) {
    if (got[i] != expected[i]) {
      return failure(errc::shape_mismatch, "lse", "the plan is for another shape", got[i],
                     expected[i], names[i]);
    }
  }
  const auto rows = payload_view(plan, reinterpret_cast<const element*>(message));
  const status copied = materialize(rows, output);
  if (!copied.ok()) return copied;
  const auto by_axis = permute<axis::rank, axis::token, axis::head>(lse);
  for (index_t rank = 0; rank < plan.shape.ranks; ++rank) {
    for (index_t token = 0; token < plan.shape.tokens; ++token) {
      for (index_t head = 0; head < plan.shape.heads; ++head) {
        by_axis(rank, token, head) = detail::bit_cast<typename Lse::value_type>(
            detail::load_lse_bits(message + plan.lse_at(rank, token, head)));
      }
    }
  }
  return {};
}

}  // namespace reference

}  // namespace headwise::inline v0
