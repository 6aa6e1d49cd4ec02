// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/lse/partial.hpp>
#include <headwise/plan/copy_plan.hpp>
#include <headwise/plan/message.hpp>
#include <headwise/view/slice.hpp>

#include <concepts>
#include <span>
#include <type_traits>

// What the operands of a pack and of a combine may be, and what must be true of them together; the
// same for host loops and for kernels.

namespace headwise::inline v0 {

/// Stands for an optional operand that the caller does not have.
struct none_t {};
inline constexpr none_t none{};

/// Where a peer can be left out and none is.
inline constexpr index_t no_peer = -1;

/// How many keys this rank holds for each token, told by sequence, as an engine's metadata has it.
///
/// `lengths`       [sequence]: tokens of each sequence that this rank holds.
/// `query_starts`  [sequence], one more than lengths, ascending: the query tokens of sequence s are
///                 the rows from query_starts[s] up to query_starts[s + 1]. Rows behind the last
///                 boundary are padding, and hold no keys.
template <class Lengths, class QueryStarts>
struct keys_by_sequence {
  static_assert(view_of<Lengths, axis::sequence> && view_of<QueryStarts, axis::sequence> &&
                    std::integral<typename Lengths::value_type> &&
                    std::integral<typename QueryStarts::value_type>,
                "headwise: lengths and query starts are views of integers over sequence");

  Lengths lengths;
  QueryStarts query_starts;
};
template <class Lengths, class QueryStarts>
keys_by_sequence(Lengths, QueryStarts) -> keys_by_sequence<Lengths, QueryStarts>;

namespace detail {

template <class T>
inline constexpr bool is_none = std::is_same_v<std::remove_cv_t<T>, none_t>;

/// An element that can be read as an LSE in base Base: an lse<Base>, or a bare fp32, fp16 or bf16
/// whose base the caller vouches for by naming it.
template <class T, log_base Base>
inline constexpr bool reads_as_lse = is_reducible<T>;
template <log_base Other, log_base Base>
inline constexpr bool reads_as_lse<lse<Other>, Base> = Other == Base;

template <class T>
inline constexpr bool is_keys_by_sequence = false;
template <class Lengths, class QueryStarts>
inline constexpr bool is_keys_by_sequence<keys_by_sequence<Lengths, QueryStarts>> = true;

/// Whether all views that an operand is made of lie where Reaches says (host_accessible or
/// device_accessible).
template <bool (*Reaches)(memory_space), class T>
inline constexpr bool reachable = true;
template <bool (*Reaches)(memory_space), class T, class Layout, memory_space Space>
inline constexpr bool reachable<Reaches, view<T, Layout, Space>> = Reaches(Space);
template <bool (*Reaches)(memory_space), class Lengths, class QueryStarts>
inline constexpr bool reachable<Reaches, keys_by_sequence<Lengths, QueryStarts>> =
    reachable<Reaches, Lengths>&& reachable<Reaches, QueryStarts>;

/// All memory from a view's first element to its last.
template <class T, class Layout, memory_space Space>
std::span<const std::byte> memory_of(const view<T, Layout, Space>& which) noexcept {
  if (which.empty()) return {};
  return {reinterpret_cast<const std::byte*>(which.data()),
          static_cast<std::size_t>(which.span_size()) * sizeof(T)};
}

inline index_t bytes_in_common(std::span<const std::byte> one,
                               std::span<const std::byte> other) noexcept {
  if (one.empty() || other.empty()) return 0;
  const auto one_first = reinterpret_cast<std::uintptr_t>(one.data());
  const auto other_first = reinterpret_cast<std::uintptr_t>(other.data());
  const auto first = greater(one_first, other_first);
  const auto last = lesser(one_first + one.size(), other_first + other.size());
  return first < last ? static_cast<index_t>(last - first) : 0;
}

/// An element, for code that runs where the memory can be reached: on the host or in a kernel,
/// which one the type of the view cannot tell.
template <class View, class... Indices>
HEADWISE_HD constexpr auto& element_of(const View& what, Indices... indices) noexcept {
  return what.data()[what.layout().offset(indices...)];
}

/// Keys that this rank holds for a token; 1 where the caller says nothing of them.
template <class Valid>
HEADWISE_HD constexpr index_t keys_of([[maybe_unused]] const Valid& valid,
                                      [[maybe_unused]] index_t token) noexcept {
  if constexpr (is_none<Valid>) {
    return 1;
  } else if constexpr (is_keys_by_sequence<Valid>) {
    const index_t sequences = valid.lengths.template extent<axis::sequence>();
    if (token >= static_cast<index_t>(element_of(valid.query_starts, sequences))) return 0;
    index_t low = 0;  // the sequence that the token is of is in [low, high)
    for (index_t high = sequences; high - low > 1;) {
      const index_t middle = low + (high - low) / 2;
      (static_cast<index_t>(element_of(valid.query_starts, middle)) <= token ? low : high) = middle;
    }
    return sequences > 0 ? static_cast<index_t>(element_of(valid.lengths, low)) : 0;
  } else {
    return static_cast<index_t>(element_of(valid, token));
  }
}

/// The LSE of a row as it travels: fp32, and empty where this rank holds no key.
template <log_base Base, class Lse, class Valid>
HEADWISE_HD constexpr lse<Base> lse_to_send(const Lse& partial_lse, const Valid& valid,
                                            index_t token, index_t head) noexcept {
  const auto loaded =
      load_lse<Base>(element_of(permute<axis::token, axis::head>(partial_lse), token, head));
  return is_none<Valid> ? loaded : mask_lse(loaded, keys_of(valid, token));
}

/// A partial LSE: what it may be, and that it belongs to `output`.
template <log_base Base, class Output, class Lse>
constexpr status check_partial_lse(const Output& output, const Lse& partial_lse) noexcept {
  static_assert(view_over<Lse, axis::token, axis::head>,
                "headwise: a partial LSE is a view over token and head");
  static_assert(reads_as_lse<typename Lse::value_type, Base>,
                "headwise: an LSE is fp32, fp16 or bf16, in the log base that the call names");
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
  const status output_ok = validate("partial_output", output);
  return output_ok.ok() ? check_partial_lse<Base>(output, partial_lse) : output_ok;
}

/// `valid`: none, a count per token (0: this rank has no key for it), or keys_by_sequence.
template <class Valid>
constexpr status check_valid([[maybe_unused]] const Valid& valid,
                             [[maybe_unused]] index_t tokens) noexcept {
  if constexpr (is_keys_by_sequence<Valid>) {
    const status lengths_ok = validate("lengths", valid.lengths);
    if (!lengths_ok.ok()) return lengths_ok;
    const status starts_ok = validate("query_starts", valid.query_starts);
    if (!starts_ok.ok()) return starts_ok;
    const index_t sequences = valid.lengths.template extent<axis::sequence>();
    const index_t bounds = valid.query_starts.template extent<axis::sequence>();
    if (bounds == sequences + 1) return {};
    return failure(errc::shape_mismatch, "query_starts", "one boundary more than sequences", bounds,
                   sequences + 1, axis::sequence::name);
  } else if constexpr (!is_none<Valid>) {
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

/// The operands that every form of the combine writes, or reads per head.
template <log_base Base, class Output, class Merged, class Sink>
constexpr status check_combined(const Output& output, [[maybe_unused]] const Merged& merged,
                                [[maybe_unused]] const Sink& sink) noexcept {
  static_assert(view_over<Output, axis::token, axis::head, axis::head_dim>,
                "headwise: a combined output is a view over token, head and head_dim");
  static_assert(
      is_reducible<typename Output::value_type>,
      "headwise: a combined output is fp32, fp16 or bf16; fp8 can be moved, never reduced");
  const status output_ok = validate_target("output", output);
  if (!output_ok.ok()) return output_ok;
  if constexpr (!is_none<Merged>) {
    static_assert(view_over<Merged, axis::token, axis::head>,
                  "headwise: a merged LSE is a view over token and head");
    static_assert(reads_as_lse<typename Merged::value_type, Base> &&
                      element_kind_of<typename Merged::value_type> == element_kind::f32,
                  "headwise: a merged LSE is fp32, in the log base that the call names");
    const status merged_ok = validate_target("merged_lse", merged);
    if (!merged_ok.ok()) return merged_ok;
    const status merged_fits = same_extents("merged_lse", merged, "must be that of output",
                                            fix_unchecked<axis::head_dim>(output, 0).layout());
    if (!merged_fits.ok()) return merged_fits;
  }
  if constexpr (!is_none<Sink>) {
    static_assert(view_of<Sink, axis::head>, "headwise: sinks are a view over head");
    static_assert(reads_as_lse<typename Sink::value_type, Base>,
                  "headwise: a sink is fp32, fp16 or bf16, in the log base that the call names");
    const status sink_ok = validate("sink", sink);
    if (!sink_ok.ok()) return sink_ok;
    if (sink.template extent<axis::head>() != output.template extent<axis::head>()) {
      return failure(errc::shape_mismatch, "sink", "one per head",
                     sink.template extent<axis::head>(), output.template extent<axis::head>(),
                     axis::head::name);
    }
  }
  return {};
}

/// Everything that a pack asks of its operands.
template <log_base Base, class Output, class Lse, class Valid>
constexpr status check_pack(const Output& partial_output, const Lse& partial_lse,
                            const message_plan& plan, const std::byte* message,
                            const Valid& valid) noexcept {
  const status partial_ok = check_partial<Base>(partial_output, partial_lse);
  if (!partial_ok.ok()) return partial_ok;
  const status valid_ok = check_valid(valid, partial_output.template extent<axis::token>());
  if (!valid_ok.ok()) return valid_ok;
  const status message_ok = check_message(message, plan);
  if (!message_ok.ok()) return message_ok;
  const checked_size all_heads = checked_size(plan.shape.ranks) * plan.shape.heads;
  return check_planned("partial_output", partial_output, plan, all_heads.value());
}

}  // namespace detail

}  // namespace headwise::inline v0
