// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/plan/shards.hpp>

namespace headwise::inline v0 {

namespace detail {

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
      const auto rows = source.at(token, head);
      for (int s = 0; s < shards; ++s) lses[s] = rows.template lse_of<Base>(s);
      const lse<Base> all = combine_weights<Base>(shards, lses, weights, policy);
      [[maybe_unused]] float factor = 1.0f;
      if constexpr (!is_none<Sink>) factor = sink_factor(all, load_lse<Base>(sink(head)));
      for (index_t d = 0; d < head_dim; ++d) {
        float sum = accumulator_start();
        for (int s = 0; s < shards; ++s) {
          // The payload of an empty row is not even read: it may never have been written.
          if (float_bits(weights[s]) == 0) continue;
          sum = accumulate(sum, weights[s], rows.value(s, d));
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
/// `source`  gathered_shards, received_shards, exchanged_shards, separate_shards or shard; fp32,
///           fp16 or bf16, any strides; their LSEs in base Base.
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
  static_assert(
      detail::reachable<host_accessible, Source> && detail::reachable<host_accessible, Output> &&
          detail::reachable<host_accessible, Merged> && detail::reachable<host_accessible, Sink>,
      "headwise: the host reference reads and writes views of host memory");
  const status combined_ok = detail::check_combined<Base>(output, merged, sink);
  if (!combined_ok.ok()) return combined_ok;
  const status source_ok = source.template check<Base>(output);
  if (!source_ok.ok()) return source_ok;
  detail::combine_rows<Base>(source, output, merged, sink, policy);
  return {};
}

}  // namespace reference

}  // namespace headwise::inline v0
