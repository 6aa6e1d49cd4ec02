// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/reference/pack.hpp>

namespace headwise::inline v0 {

namespace detail {

/// Checks the operands that every form of the combine writes or reads per head.
template <log_base Base, class Output, class Merged, class Sink>
constexpr status check_combined(const Output& output, const Merged& merged, const Sink& sink) {
  static_assert(view_over<Output, axis::token, axis::head, axis::head_dim>,
                "headwise: a combined output is a view over token, head and head_dim");
  static_assert(is_reducible<typename Output::value_type>,
                "headwise: a combined output is fp32, fp16 or bf16");
  const status output_ok = validate_target("output", output);
  if (!output_ok.ok()) return output_ok;
  if constexpr (!is_none<Merged>) {
    static_assert(view_over<Merged, axis::token, axis::head>,
                  "headwise: a merged LSE is a view over token and head");
    static_assert(reads_as_lse<typename Merged::value_type, Base> &&
                      element_kind_of<typename Merged::value_type> == element_kind::f32,
                  "headwise: a merged LSE is fp32 in the log base that the call combines in");
    const status merged_ok = validate_target("merged_lse", merged);
    if (!merged_ok.ok()) return merged_ok;
    const index_t got[] = {merged.template extent<axis::token>(),
                           merged.template extent<axis::head>()};
    const index_t expected[] = {output.template extent<axis::token>(),
                                output.template extent<axis::head>()};
    for (int i = 0; i < 2; ++i) {
      if (got[i] != expected[i]) {
        return failure(errc::shape_mismatch, "merged_lse", "must be that of output", got[i],
                       expected[i], i == 0 ? axis::token::name : axis::head::name);
      }
    }
  }
  if constexpr (!is_none<Sink>) {
    static_assert(view_of<Sink, axis::head> &&
                      reads_as_lse<typename Sink::value_type, Base>,
                  "headwise: sinks are a view over head, in the log base that the call combines in");
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

/// Every row of the combine. A row's LSEs are read before anything of it is written, and each element
/// before the one of the same index is, so that the output may be one of the shards.
template <log_base Base, class Source, class Output, class Merged, class Sink, class Policy>
void combine_rows(const Source& source, const Output& output, const Merged& merged,
                  const Sink& sink, const Policy& policy) noexcept {
  using element = typename Output::value_type;
  const auto out = permute<axis::token, axis::head, axis::head_dim>(output);
  const index_t tokens = out.template extent<axis::token>();
  const index_t heads = out.template extent<axis::head>();
  const index_t head_dim = out.template extent<axis::head_dim>();
  const int shards = source.count();
  for (index_t token = 0; token < tokens; ++token) {
    for (index_t head = 0; head < heads; ++head) {
      lse<Base> lses[max_ranks];
      float weights[max_ranks];
      for (int s = 0; s < shards; ++s) {
        lses[s] = source.template lse_of<Base>(s, token, head);
      }
      const lse<Base> all = combine_weights<Base>(shards, lses, weights, policy);
      float factor = 1.0f;
      if constexpr (!is_none<Sink>) factor = sink_factor(all, load_lse<Base>(sink(head)));
      for (index_t d = 0; d < head_dim; ++d) {
        float sum = accumulator_start();
        for (int s = 0; s < shards; ++s) {
          // An empty shard's payload is not even read: it may never have been written.
          if (float_bits(weights[s]) == 0) continue;
          sum = accumulate(sum, weights[s], source.value(s, token, head, d));
        }
        float value = finish(sum, all);
        if constexpr (!is_none<Sink>) value = apply_sink(value, factor);
        out(token, head, d) = from_float<element>(value);
      }
      if constexpr (!is_none<Merged>) {
        permute<axis::token, axis::head>(merged)(token, head) =
            bit_cast<typename Merged::value_type>(all.value);
      }
    }
  }
}

}  // namespace detail

// Where the shards of a combine are. Each form has check(output), count(), and reads one LSE and one
// element at a time.

/// Partial results in one view over [rank, token, head, head_dim], their LSEs in one over [rank,
/// token, head]; any strides.
template <class Outputs, class Lses>
struct gathered_shards {
  static_assert(view_over<Outputs, axis::rank, axis::token, axis::head, axis::head_dim>,
                "headwise: gathered outputs are a view over rank, token, head and head_dim");
  static_assert(view_over<Lses, axis::rank, axis::token, axis::head>,
                "headwise: gathered LSEs are a view over rank, token and head");

  Outputs outputs;
  Lses lses;

  template <log_base Base, class Output>
  constexpr status check(const Output& output) const noexcept {
    const index_t ranks = outputs.template extent<axis::rank>();
    const status ranks_ok = require_supported_ranks(ranks);
    if (!ranks_ok.ok()) return ranks_ok;
    if (lses.template extent<axis::rank>() != ranks) {
      return failure(errc::shape_mismatch, "partial_lse", "must be that of partial_output",
                     lses.template extent<axis::rank>(), ranks, axis::rank::name);
    }
    const auto first = fix<axis::rank>(outputs, 0);
    const status partial_ok = detail::check_partial<Base>(first, fix<axis::rank>(lses, 0));
    if (!partial_ok.ok()) return partial_ok;
    return detail::same_extents(std::type_identity<typename Output::layout_type>{},
                                "partial_output", first, output);
  }
  constexpr int count() const noexcept {
    return static_cast<int>(outputs.template extent<axis::rank>());
  }
  template <log_base Base>
  constexpr lse<Base> lse_of(int s, index_t token, index_t head) const noexcept {
    return load_lse<Base>(permute<axis::rank, axis::token, axis::head>(lses)(s, token, head));
  }
  constexpr float value(int s, index_t token, index_t head, index_t d) const noexcept {
    return to_float(permute<axis::rank, axis::token, axis::head, axis::head_dim>(outputs)(
        s, token, head, d));
  }
};
template <class Outputs, class Lses>
gathered_shards(Outputs, Lses) -> gathered_shards<Outputs, Lses>;

/// The messages of all ranks, as pack() of each made them for this one.
template <class Element>
struct received_shards {
  const message_plan& plan;
  const std::byte* message;

  template <log_base Base, class Output>
  constexpr status check(const Output& output) const noexcept {
    return detail::check_message(plan, output.template extent<axis::token>(),
                                 output.template extent<axis::head>(),
                                 output.template extent<axis::head_dim>(), sizeof(Element));
  }
  constexpr int count() const noexcept { return static_cast<int>(plan.shape.ranks); }
  template <log_base Base>
  lse<Base> lse_of(int s, index_t token, index_t head) const noexcept {
    return {detail::load_lse_bits(message + plan.lse_at(s, token, head))};
  }
  float value(int s, index_t token, index_t head, index_t d) const noexcept {
    const auto rows = payload_view(plan, reinterpret_cast<const Element*>(message));
    return to_float(rows(s, token, head, d));
  }
};

/// One partial result: an output over token, head and head_dim, and its LSE over token and head.
template <class Output, class Lse>
struct shard {
  Output output;
  Lse partial_lse;
};
template <class Output, class Lse>
shard(Output, Lse) -> shard<Output, Lse>;

/// Partial results that each have views, types and strides of their own: the merge of a cascade or of
/// chunked prefill.
template <class First, class... Rest>
struct separate_shards {
  static_assert(sizeof...(Rest) < max_ranks, "headwise: at most 16 partial results are combined");

  First first;
  separate_shards<Rest...> rest;

  constexpr explicit separate_shards(First one, Rest... others) noexcept
      : first(one), rest(others...) {}

  template <log_base Base, class Output>
  constexpr status check(const Output& output) const noexcept {
    const status first_ok = separate_shards<First>(first).template check<Base>(output);
    return first_ok.ok() ? rest.template check<Base>(output) : first_ok;
  }
  constexpr int count() const noexcept { return 1 + rest.count(); }
  template <log_base Base>
  constexpr lse<Base> lse_of(int s, index_t token, index_t head) const noexcept {
    return s == 0 ? separate_shards<First>(first).template lse_of<Base>(0, token, head)
                  : rest.template lse_of<Base>(s - 1, token, head);
  }
  constexpr float value(int s, index_t token, index_t head, index_t d) const noexcept {
    return s == 0 ? separate_shards<First>(first).value(0, token, head, d)
                  : rest.value(s - 1, token, head, d);
  }
};
template <class First>
struct separate_shards<First> {
  First first;

  constexpr explicit separate_shards(First one) noexcept : first(one) {}

  template <log_base Base, class Output>
  constexpr status check(const Output& output) const noexcept {
    const status partial_ok = detail::check_partial<Base>(first.output, first.partial_lse);
    if (!partial_ok.ok()) return partial_ok;
    return detail::same_extents(std::type_identity<typename Output::layout_type>{},
                                "partial_output", first.output, output);
  }
  constexpr int count() const noexcept { return 1; }
  template <log_base Base>
  constexpr lse<Base> lse_of(int, index_t token, index_t head) const noexcept {
    return load_lse<Base>(permute<axis::token, axis::head>(first.partial_lse)(token, head));
  }
  constexpr float value(int, index_t token, index_t head, index_t d) const noexcept {
    return to_float(permute<axis::token, axis::head, axis::head_dim>(first.output)(token, head, d));
  }
};
template <class... Shards>
separate_shards(Shards...) -> separate_shards<Shards...>;

/// One partial result whose rows of valid count 0 are empty, whatever their LSE says.
template <class Output, class Lse, class Valid>
struct masked_shard {
  Output output;
  Lse partial_lse;
  Valid valid;

  template <log_base Base, class Target>
  constexpr status check(const Target& target) const noexcept {
    return separate_shards(shard{output, partial_lse}).template check<Base>(target);
  }
  constexpr int count() const noexcept { return 1; }
  template <log_base Base>
  lse<Base> lse_of(int, index_t token, index_t head) const noexcept {
    return {detail::lse_to_send<Base>(partial_lse, valid, token, head)};
  }
  constexpr float value(int, index_t token, index_t head, index_t d) const noexcept {
    return to_float(permute<axis::token, axis::head, axis::head_dim>(output)(token, head, d));
  }
};
template <class Output, class Lse, class Valid>
masked_shard(Output, Lse, Valid) -> masked_shard<Output, Lse, Valid>;

namespace reference {

/// Combines partial results (`source`: gathered_shards, received_shards, separate_shards or
/// masked_shard; fp32, fp16 or bf16, any strides) into `output` over token, head and head_dim, which may be of another
/// such type and may be one of the separate shards. Arithmetic: lse/partial.hpp, in rank order.
/// `merged`: none, or a view over token and head that gets the LSE of all keys, in base Base.
/// `sink`: none, or [head] logits in base Base, applied once after the merge and not part of the
/// merged LSE. `policy`: what an LSE that is no number means.
/// Errors: unsupported (ranks), shape_mismatch, overlap and those of validate(); then nothing is
/// written.
template <log_base Base, class Source, class Output, class Merged = none_t, class Sink = none_t,
          class Policy = nan_policy::empty>
status lse_combine(const Source& source, const Output& output, const Merged& merged = {},
                   const Sink& sink = {}, const Policy& policy = {}) noexcept {
  const status combined_ok = detail::check_combined<Base>(output, merged, sink);
  if (!combined_ok.ok()) return combined_ok;
  const status source_ok = source.template check<Base>(output);
  if (!source_ok.ok()) return source_ok;
  detail::combine_rows<Base>(source, output, merged, sink, policy);
  return {};
}

}  // namespace reference

}  // namespace headwise::inline v0
