// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/reference/pack.hpp>

#include <cstring>

namespace headwise::inline v0 {

// Where the partial results ("shards") of a combine are. Each source has check<Base>(output), the
// number of its shards, and the LSE of a row and an element of it, shard by shard.

/// Shards in one view over [rank, token, head, head_dim], their LSEs in one over [rank, token,
/// head]; any strides.
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
    const status outputs_ok = validate("partial_output", outputs);
    if (!outputs_ok.ok()) return outputs_ok;
    const status lses_ok = validate("partial_lse", lses);
    if (!lses_ok.ok()) return lses_ok;
    if (lses.template extent<axis::rank>() != ranks) {
      return failure(errc::shape_mismatch, "partial_lse", "must be that of partial_output",
                     lses.template extent<axis::rank>(), ranks, axis::rank::name);
    }
    const auto first = fix<axis::rank>(outputs, 0);
    const status partial_ok = detail::check_partial<Base>(first, fix<axis::rank>(lses, 0));
    if (!partial_ok.ok()) return partial_ok;
    return detail::same_extents("partial_output", first, "must be that of output", output.layout());
  }
  constexpr int count() const noexcept {
    return static_cast<int>(outputs.template extent<axis::rank>());
  }
  template <log_base Base>
  constexpr lse<Base> lse_of(int s, index_t token, index_t head) const noexcept {
    return load_lse<Base>(permute<axis::rank, axis::token, axis::head>(lses)(s, token, head));
  }
  constexpr float value(int s, index_t token, index_t head, index_t d) const noexcept {
    return to_float(
        permute<axis::rank, axis::token, axis::head, axis::head_dim>(outputs)(s, token, head, d));
  }
};
template <class Outputs, class Lses>
gathered_shards(Outputs, Lses) -> gathered_shards<Outputs, Lses>;

/// The messages of all ranks, as pack() of each made them for this one.
template <class Element>
struct received_shards {
  static_assert(
      is_reducible<Element>,
      "headwise: a partial output is fp32, fp16 or bf16; fp8 can be moved, never reduced");

  message_plan plan;
  const std::byte* message = nullptr;

  template <log_base Base, class Output>
  status check(const Output& output) const noexcept {
    const status message_ok = detail::check_message(message, plan);
    if (!message_ok.ok()) return message_ok;
    if (index_t{sizeof(Element)} != plan.element_bytes) {
      return failure(errc::shape_mismatch, "message", "is planned for elements of another size",
                     plan.element_bytes, sizeof(Element));
    }
    return detail::check_planned("output", output, plan, plan.shape.heads);
  }
  constexpr int count() const noexcept { return static_cast<int>(plan.shape.ranks); }
  template <log_base Base>
  lse<Base> lse_of(int s, index_t token, index_t head) const noexcept {
    return {detail::load_lse_bits(message + plan.lse_at(s, token, head))};
  }
  float value(int s, index_t token, index_t head, index_t d) const noexcept {
    Element element;
    std::memcpy(&element, message + plan.payload_at(s, token, head) + d * index_t{sizeof(Element)},
                sizeof(Element));
    return to_float(element);
  }
};

/// One partial result: an output over token, head and head_dim, its LSE over token and head; any
/// strides. A source of one shard; separate_shards makes one of several.
template <class Output, class Lse>
struct shard {
  Output output;
  Lse partial_lse;

  template <log_base Base, class Combined>
  constexpr status check(const Combined& combined) const noexcept {
    const status partial_ok = detail::check_partial<Base>(output, partial_lse);
    if (!partial_ok.ok()) return partial_ok;
    return detail::same_extents("partial_output", output, "must be that of output",
                                combined.layout());
  }
  constexpr int count() const noexcept { return 1; }
  template <log_base Base>
  constexpr lse<Base> lse_of(int, index_t token, index_t head) const noexcept {
    return load_lse<Base>(permute<axis::token, axis::head>(partial_lse)(token, head));
  }
  constexpr float value(int, index_t token, index_t head, index_t d) const noexcept {
    return to_float(permute<axis::token, axis::head, axis::head_dim>(output)(token, head, d));
  }
};
template <class Output, class Lse>
shard(Output, Lse) -> shard<Output, Lse>;

/// The same, with a count of keys per token (none, or integers over token): a row of count 0 is
/// empty, whatever its LSE says.
template <class Output, class Lse, class Valid>
struct masked_shard {
  Output output;
  Lse partial_lse;
  Valid valid;

  template <log_base Base, class Combined>
  constexpr status check(const Combined& combined) const noexcept {
    const status shard_ok = shard{output, partial_lse}.template check<Base>(combined);
    if (!shard_ok.ok()) return shard_ok;
    return detail::check_valid(valid, output.template extent<axis::token>());
  }
  constexpr int count() const noexcept { return 1; }
  template <log_base Base>
  lse<Base> lse_of(int, index_t token, index_t head) const noexcept {
    return detail::lse_to_send<Base>(partial_lse, valid, token, head);
  }
  constexpr float value(int s, index_t token, index_t head, index_t d) const noexcept {
    return shard{output, partial_lse}.value(s, token, head, d);
  }
};
template <class Output, class Lse, class Valid>
masked_shard(Output, Lse, Valid) -> masked_shard<Output, Lse, Valid>;

/// Several shards, masked or not, that each have types and strides of their own: the merge of a
/// cascade or of chunked prefill.
///
///     lse_combine<log_base::e>(separate_shards(shard{prefix, prefix_lse}, shard{suffix,
///     suffix_lse}),
///                              output);
template <class First, class... Rest>
struct separate_shards {
  static_assert(sizeof...(Rest) < max_ranks, "headwise: at most 16 partial results are combined");

  First first;
  separate_shards<Rest...> rest;

  constexpr explicit separate_shards(const First& one, const Rest&... others) noexcept
      : first(one), rest(others...) {}

  template <log_base Base, class Output>
  constexpr status check(const Output& output) const noexcept {
    const status first_ok = first.template check<Base>(output);
    return first_ok.ok() ? rest.template check<Base>(output) : first_ok;
  }
  constexpr int count() const noexcept { return 1 + rest.count(); }
  template <log_base Base>
  constexpr lse<Base> lse_of(int s, index_t token, index_t head) const noexcept {
    return s == 0 ? first.template lse_of<Base>(0, token, head)
                  : rest.template lse_of<Base>(s - 1, token, head);
  }
  constexpr float value(int s, index_t token, index_t head, index_t d) const noexcept {
    return s == 0 ? first.value(0, token, head, d) : rest.value(s - 1, token, head, d);
  }
};
template <class First>
struct separate_shards<First> {
  First first;

  constexpr explicit separate_shards(const First& one) noexcept : first(one) {}

  template <log_base Base, class Output>
  constexpr status check(const Output& output) const noexcept {
    return first.template check<Base>(output);
  }
  constexpr int count() const noexcept { return 1; }
  template <log_base Base>
  constexpr lse<Base> lse_of(int, index_t token, index_t head) const noexcept {
    return first.template lse_of<Base>(0, token, head);
  }
  constexpr float value(int, index_t token, index_t head, index_t d) const noexcept {
    return first.value(0, token, head, d);
  }
};
template <class... Shards>
separate_shards(Shards...) -> separate_shards<Shards...>;

namespace detail {

/// The operands that every form of the combine writes, or reads per head.
template <log_base Base, class Output, class Merged, class Sink>
constexpr status check_combined(const Output& output, [[maybe_unused]] const Merged& merged,
                                [[maybe_unused]] const Sink& sink) noexcept {
  static_assert(view_over<Output, axis::token, axis::head, axis::head_dim>,
                "headwise: a combined output is a view over token, head and head_dim");
  static_assert(
      is_reducible<typename Output::value_type>,
      "headwise: a combined output is fp32, fp16 or bf16; fp8 can be moved, never reduced");
  static_assert(host_accessible(Output::space),
                "headwise: the host reference reads and writes views of host memory");
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

/// Every row of the combine. The LSEs of a row are read before anything of it is written, and an
/// element before the one of the same indices is written, so that output and merged LSE may be
/// those of one of the shards.
template <log_base Base, class Source, class Output, class Merged, class Sink, class Policy>
void combine_rows(const Source& source, const Output& output, [[maybe_unused]] const Merged& merged,
                  [[maybe_unused]] const Sink& sink, const Policy& policy) noexcept {
  using element = typename Output::value_type;
  const auto out = permute<axis::token, axis::head, axis::head_dim>(output);
  const index_t tokens = out.template extent<axis::token>();
  const index_t heads = out.template extent<axis::head>();
  const index_t head_dim = out.template extent<axis::head_dim>();
  const int shards = source.count();
  if (heads == 0) return;  // the tokens may be any number then
  for (index_t token = 0; token < tokens; ++token) {
    for (index_t head = 0; head < heads; ++head) {
      lse<Base> lses[max_ranks];
      float weights[max_ranks];
      for (int s = 0; s < shards; ++s) {
        lses[s] = source.template lse_of<Base>(s, token, head);
      }
      const lse<Base> all = combine_weights<Base>(shards, lses, weights, policy);
      [[maybe_unused]] float factor = 1.0f;
      if constexpr (!is_none<Sink>) factor = sink_factor(all, load_lse<Base>(sink(head)));
      for (index_t d = 0; d < head_dim; ++d) {
        float sum = accumulator_start();
        for (int s = 0; s < shards; ++s) {
          // The payload of an empty row is not even read: it may never have been written.
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

namespace reference {

/// Combines partial results into one, by the arithmetic of lse/partial.hpp, in the order of ranks.
///
/// `source`  gathered_shards, received_shards, separate_shards, shard or masked_shard; fp32, fp16
/// or
///           bf16, any strides; their LSEs in base Base.
/// `output`  over token, head and head_dim; fp32, fp16 or bf16; any strides.
/// `merged`  none, or over token and head: the LSE of all keys, fp32 in base Base.
/// `sink`    none, or [head] logits in base Base, applied once, after the merge; the merged LSE
///           stays without it.
/// `policy`  what an LSE that is no number means.
/// In place: output and merged LSE may be the views of one of the shards. Another overlap is not
/// allowed, nor checked.
/// Errors: unsupported (ranks), shape_mismatch, overlap, misaligned and those of validate(); then
/// nothing is written.
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
