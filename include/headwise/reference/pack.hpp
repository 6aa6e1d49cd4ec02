// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/lse/partial.hpp>
#include <headwise/plan/message.hpp>
#include <headwise/reference/materialize.hpp>
#include <headwise/view/slice.hpp>

#include <concepts>
#include <cstring>

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

// By bytes: inline bits behind a 16-bit row are aligned to 2 bytes only. Low half first, as the
// byte order of every CUDA host and device has it.
inline void store_lse_bits(std::byte* at, float value) noexcept {
  std::memcpy(at, &value, sizeof value);
}
inline float load_lse_bits(const std::byte* at) noexcept {
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// A partial LSE: what it may be, and that it belongs to `output`.
template <log_base Base, class Output, class Lse>
constexpr status check_partial_lse(const Output& output, const Lse& partial_lse) noexcept {
  static_assert(view_over<Lse, axis::token, axis::head>,
                "headwise: a partial LSE is a view over token and head");
  static_assert(reads_as_lse<typename Lse::value_type, Base>,
                "headwise: an LSE is fp32, fp16 or bf16, in the log base that the call names");
  static_assert(host_accessible(Lse::space),
                "headwise: the host reference reads and writes views of host memory");
  const status well_formed = validate("partial_lse", partial_lse);
  if (!well_formed.ok()) return well_formed;
  return same_extents("partial_lse", partial_lse, "must be that of partial_output",
                      fix_unchecked<axis::head_dim>(output, 0).layout());
}

/// A partial result: output and LSE, and that they belong together.
template <log_base Base, class Output, class Lse>
constexpr status check_partial(const Output& output, const Lse& partial_lse) noexcept {
  static_assert(view_over<Output, axis::token, axis::head, axis::head_dim>,
                "headwise: a partial output is a view over token, head and head_dim");
  static_assert(
      is_reducible<typename Output::value_type>,
      "headwise: a partial output is fp32, fp16 or bf16; fp8 can be moved, never reduced");
  static_assert(host_accessible(Output::space),
                "headwise: the host reference reads and writes views of host memory");
  const status output_ok = validate("partial_output", output);
  return output_ok.ok() ? check_partial_lse<Base>(output, partial_lse) : output_ok;
}

/// `valid`: none, or a count per token (0: this rank has no key for it).
template <class Valid>
constexpr status check_valid([[maybe_unused]] const Valid& valid,
                             [[maybe_unused]] index_t tokens) noexcept {
  if constexpr (!is_none<Valid>) {
    static_assert(view_of<Valid, axis::token> && std::integral<typename Valid::value_type>,
                  "headwise: valid counts are a view of integers over token");
    const status well_formed = validate("valid", valid);
    if (!well_formed.ok()) return well_formed;
    if (valid.template extent<axis::token>() != tokens) {
      return failure(errc::shape_mismatch, "valid", "one count per token",
                     valid.template extent<axis::token>(), tokens, axis::token::name);
    }
  }
  return {};
}

/// Whether `operand`, of `heads` heads where the plan has `plan_heads`, is what the plan is for.
template <class View>
constexpr status check_planned(const char* name, const View& operand, const message_plan& plan,
                               index_t plan_heads) noexcept {
  const index_t got[] = {operand.template extent<axis::token>(),
                         operand.template extent<axis::head>(),
                         operand.template extent<axis::head_dim>()};
  const index_t planned[] = {plan.shape.tokens, plan_heads, plan.shape.head_dim};
  const char* const names[] = {axis::token::name, axis::head::name, axis::head_dim::name};
  for (int i = 0; i < 3; ++i) {
    if (got[i] == planned[i]) continue;
    return failure(errc::shape_mismatch, name, "the message is planned for another shape", got[i],
                   planned[i], names[i]);
  }
  constexpr index_t bytes = sizeof(typename View::value_type);
  if (bytes == plan.element_bytes) return {};
  return failure(errc::shape_mismatch, name,
                 "the message is planned for elements of another size (bytes)", bytes,
                 plan.element_bytes);
}

/// Errors: unsupported (a plan that make() did not make), invalid_argument (a null pointer),
/// misaligned.
inline status check_message(const std::byte* message, const message_plan& plan) noexcept {
  const status ranks_ok = require_supported_ranks(plan.shape.ranks);
  if (!ranks_ok.ok() || plan.total_bytes == 0) return ranks_ok;
  if (message == nullptr) return failure(errc::invalid_argument, "message", "is a null pointer");
  const auto past = static_cast<index_t>(reinterpret_cast<std::uintptr_t>(message) % 16);
  if (past == 0) return {};
  return failure(errc::misaligned, "message", "starts on a multiple of 16 bytes", past, 0);
}

/// The LSE of a row as it travels: fp32, and empty where the counts say so.
template <log_base Base, class Lse, class Valid>
lse<Base> lse_to_send(const Lse& partial_lse, [[maybe_unused]] const Valid& valid, index_t token,
                      index_t head) noexcept {
  const auto loaded = load_lse<Base>(permute<axis::token, axis::head>(partial_lse)(token, head));
  if constexpr (is_none<Valid>) {
    return loaded;
  } else {
    return mask_lse(loaded, static_cast<index_t>(valid(token)));
  }
}

}  // namespace detail

namespace reference {

/// Writes the LSE part of all messages, for payloads that are sent from where they are. Operands as
/// for pack(), already checked.
template <log_base Base, class Lse, class Valid>
void pack_lse(const Lse& partial_lse, const message_plan& plan, std::byte* message,
              const Valid& valid) noexcept {
  const index_t heads = plan.shape.heads;
  if (heads == 0) return;  // the tokens may be any number then
  for (index_t peer = 0; peer < plan.shape.ranks; ++peer) {
    for (index_t token = 0; token < plan.shape.tokens; ++token) {
      for (index_t head = 0; head < heads; ++head) {
        const auto value =
            detail::lse_to_send<Base>(partial_lse, valid, token, peer * heads + head);
        detail::store_lse_bits(message + plan.lse_at(peer, token, head), value.value);
      }
    }
  }
}

/// Packs this rank's partial result into one message per peer: peer r gets heads [r * heads,
/// (r + 1) * heads).
///
/// `partial_output`  over token, head (ranks * heads) and head_dim; fp32, fp16 or bf16; any
/// strides. `partial_lse`     over token and head; lse<Base>, or fp32, fp16 or bf16, which travel
/// as fp32. `message`         plan.total_bytes, aligned to 16. Padding in it is not written.
/// `valid`           none, or integers over token; a row of count 0 is sent as empty, whatever its
///                   LSE says.
/// Errors: shape_mismatch, misaligned, unsupported and those of validate(); then nothing is
/// written.
template <log_base Base, class Output, class Lse, class Valid = none_t>
status pack(const Output& partial_output, const Lse& partial_lse, const message_plan& plan,
            std::byte* message, const Valid& valid = {}) noexcept {
  using element = std::remove_cv_t<typename Output::value_type>;
  const status partial_ok = detail::check_partial<Base>(partial_output, partial_lse);
  if (!partial_ok.ok()) return partial_ok;
  const status valid_ok = detail::check_valid(valid, partial_output.template extent<axis::token>());
  if (!valid_ok.ok()) return valid_ok;
  const status message_ok = detail::check_message(message, plan);
  if (!message_ok.ok()) return message_ok;
  const checked_size all_heads = checked_size(plan.shape.ranks) * plan.shape.heads;
  const status planned =
      detail::check_planned("partial_output", partial_output, plan, all_heads.value());
  if (!planned.ok()) return planned;

  const auto parts =
      split<axis::head, axis::rank, axis::head>(partial_output, plan.shape.ranks).value();
  detail::copy_elements(parts, payload_view(plan, reinterpret_cast<element*>(message)));
  pack_lse<Base>(partial_lse, plan, message, valid);
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
            detail::load_lse_bits(message + plan.lse_at(rank, token, head)));
      }
    }
  }
  return {};
}

}  // namespace reference

}  // namespace headwise::inline v0
