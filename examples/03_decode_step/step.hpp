// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// The decode step itself: what each rank of a DCP group does, in three calls. The rest of the demo
// makes its inputs and checks its results. Collectives run in the host's memory or on GPUs, by
// Place (place.hpp); attention is the host's reference.

#include <headwise/headwise.hpp>
#include <headwise/reference/localize_topk.hpp>
#include <headwise/reference/mla_decode.hpp>

#include "data.hpp"

#include <algorithm>
#include <string>

namespace demo {

/// What a step says about itself, for the table.
struct step_facts {
  std::string query, partial, partial_lse;  ///< views
  gather_route gather;
  reduce_scatter_route scatter;
  index_t gather_bytes = 0;   ///< to each peer
  index_t scatter_bytes = 0;  ///< to each peer
};

template <class View>
std::string described(const View& what) {
  char text[256];
  describe_view(what, text, sizeof text);
  return text;
}

template <index_t Width, class T>
auto heads_view(T* data, index_t rows, index_t heads) {
  return view(data, packed(extent<axis::token>(rows), extent<axis::head>(heads),
                           extent<axis::head_dim, Width>()));
}
template <class T>
auto lse_view(T* data, index_t rows, index_t heads) {
  return view(data, packed(extent<axis::token>(rows), extent<axis::head>(heads)));
}

/// All memory of one rank, sized once. The kernel's buffers have `tiled` heads, of which `heads`
/// are the group's.
template <class Payload, log_base Base>
struct rank_memory {
  index_t rows, own_heads, heads, tiled;
  poisoned<bf16> query;             // [row, own head, head_dim]
  poisoned<bf16> gathered;          // [row, tiled head, head_dim]
  poisoned<Payload> partial;        // [row, tiled head, latent]
  poisoned<lse<Base>> partial_lse;  // [row, tiled head]
  poisoned<Payload> output;         // [row, own head, latent]
  poisoned<lse<Base>> merged;       // [row, own head]
  poisoned<std::byte> gather_workspace;
  poisoned<std::byte> scatter_workspace;

  rank_memory(const setting& how, const gathered_heads& group)
      : rows(how.rows()),
        own_heads(group.split.per_rank),
        heads(group.count()),
        tiled(group.tiled(how.tile)),
        query(rows * own_heads * head_dim),
        gathered(rows * tiled * head_dim),
        partial(rows * tiled * latent),
        partial_lse(rows * tiled),
        output(rows * own_heads * latent),
        merged(rows * own_heads),
        gather_workspace(
            all_gather_heads_bytes<bf16>({how.shape.dcp, rows, own_heads, head_dim}).value()),
        scatter_workspace(
            lse_reduce_scatter_bytes<Payload>({how.shape.dcp, rows, own_heads, latent}, how.format)
                .value()) {}

  template <class F>
  void for_each_buffer(F f) {
    f(query), f(gathered), f(partial), f(partial_lse), f(output), f(merged);
    f(gather_workspace), f(scatter_workspace);
  }

  // The live heads of the kernel's buffers. None of the slices can fail, as heads <= tiled.
  auto gathered_query() {
    return slice<axis::head>(heads_view<head_dim>(gathered.data(), rows, tiled), 0, heads).value();
  }
  auto partial_heads() {
    return slice<axis::head>(heads_view<latent>(partial.data(), rows, tiled), 0, heads).value();
  }
  auto partial_lse_heads() {
    return slice<axis::head>(lse_view(partial_lse.data(), rows, tiled), 0, heads).value();
  }
};

// [snippet: partial_views]
/// Heads [0, Heads) of a kernel that wrote Rows.
template <index_t Heads, index_t Rows>
using partial_of = layout<dim<axis::token, dynamic_extent, Rows * latent>,
                          dim<axis::head, Heads, latent>, dim<axis::head_dim, latent, 1>>;

/// The shapes that the reduce-scatter is compiled for: what kernels that write bf16 make of heads
/// that do not fill their tiles. All else takes strides that are read from the view and not from
/// its type, and comes to the same bits. How many instantiations there are can be seen here.
template <class Payload>
struct known_partials {
  using type = layouts<>;
};
template <>
struct known_partials<bf16> {
  using type =
      layouts<partial_of<22, 32>, partial_of<22, 24>, partial_of<33, 48>, partial_of<33, 40>,
              partial_of<66, 80>, partial_of<66, 72>, partial_of<99, 112>, partial_of<99, 104>>;
};

/// The layout of the LSE that belongs to a partial output, as static as that one is.
template <class Partial, index_t Pitch = Partial::static_strides[0]>
using lse_of = layout<
    dim<axis::token, dynamic_extent, Pitch == dynamic_stride ? dynamic_stride : Pitch / latent>,
    dim<axis::head, Partial::static_extents[1], 1>>;
// [/snippet]

/// This rank's keys, for all heads of the group.
template <class Record, class Query, class Output, class Lse>
status attend(const setting& how, const kv_cache<Record>& cache,
              std::span<const std::int32_t> candidates, const Query& query, const Output& output,
              const Lse& partial_lse) {
  const view lengths{how.lengths.data(),
                     packed(extent<axis::sequence>(static_cast<index_t>(how.lengths.size())))};
  if (how.attention == attention_kind::dense) {
    return reference::mla_decode(query, cache.pages, cache.block_table(), lengths,
                                 {softmax_scale, how.query_tokens, cache.shard}, output,
                                 partial_lse);
  }
  const auto shape = packed(extent<axis::token>(how.rows()), extent<axis::key, top_k>());
  poisoned<std::int32_t> slot_memory(how.rows() * top_k);
  poisoned<std::int32_t> count_memory(how.rows());
  const view slots{slot_memory.data(), shape};
  const view counts{count_memory.data(), packed(extent<axis::token>(how.rows()))};
  const status localized =
      reference::localize_topk(view(candidates.data(), shape), cache.block_table(), lengths,
                               {how.page, how.query_tokens, cache.shard}, slots, counts);
  if (!localized.ok()) return localized;
  return reference::mla_decode_sparse(query, cache.pages, slots, counts, softmax_scale, output,
                                      partial_lse);
}

/// Puts the partial results of the group together, into `mine.output` and `mine.merged`.
template <class Place, class Group, class Payload, log_base Base>
status combine(const setting& how, Place& place, Group& group, rank_memory<Payload, Base>& mine,
               step_facts& facts) {
  const status sent = place.send();
  if (!sent.ok()) return group.refuse(sent);
  const auto output = place(heads_view<latent>(mine.output.data(), mine.rows, mine.own_heads));
  const auto merged = place(lse_view(mine.merged.data(), mine.rows, mine.own_heads));
  const reduce_scatter_options options{how.format, route_preference::automatic};
  // [snippet: reduce_scatter]
  const typename known_partials<Payload>::type known{};
  const auto reduce_scatter = [&](const auto& partial) -> status {
    using partial_layout = typename std::remove_cvref_t<decltype(partial)>::layout_type;
    const auto partial_lse =
        refine<lse_of<partial_layout>>(place(mine.partial_lse_heads()), "partial_lse");
    if (!partial_lse.ok()) return partial_lse.why();

    facts.scatter = route_reduce_scatter(partial, partial_lse.value(), group.size(), options.format,
                                         false, options.preference);
    facts.partial = described(partial);
    facts.partial_lse = described(partial_lse.value());
    return lse_reduce_scatter<Base>(place.executor, group, partial, partial_lse.value(), output,
                                    merged, place(mine.scatter_workspace.span()), options);
  };
  const status combined = dispatch(place(mine.partial_heads()), known, reduce_scatter);
  // [/snippet]
  return combined.ok() ? place.fetch() : combined;
}

/// One rank's decode step: its own heads of the query in `mine.query`, its own keys in `cache`.
template <class Record, class Place, class Group, class Payload, log_base Base>
status decode_step(const setting& how, const kv_cache<Record>& cache,
                   std::span<const std::int32_t> candidates, Place& place, Group& group,
                   rank_memory<Payload, Base>& mine, step_facts& facts) {
  const status sent = place.send();
  if (!sent.ok()) return group.refuse(sent);
  // [snippet: gather]
  // The heads of all ranks side by side, in a buffer as wide as the kernel's tiles.
  const auto query = place(heads_view<head_dim>(mine.query.data(), mine.rows, mine.own_heads));
  const auto gathered = place(mine.gathered_query());
  const status got_heads =
      all_gather_heads(place.executor, group, query, gathered, place(mine.gather_workspace.span()));
  if (!got_heads.ok()) return got_heads;
  // [/snippet]
  facts.gather = route_all_gather(query, gathered, group.size(), route_preference::automatic);
  facts.query = described(gathered);
  facts.gather_bytes = query.size() * index_t{sizeof(bf16)};
  facts.scatter_bytes =
      message_plan::make<Payload>({group.size(), mine.rows, mine.own_heads, latent}, how.format)
          .value()
          .bytes_per_peer();

  const status fetched = place.fetch();
  const status attended = fetched.ok() ? attend(how, cache, candidates, mine.gathered_query(),
                                                mine.partial_heads(), mine.partial_lse_heads())
                                       : fetched;
  if (!attended.ok()) return group.refuse(attended);  // and the peers do not wait for this rank
  return combine(how, place, group, mine, facts);
}

}  // namespace demo
