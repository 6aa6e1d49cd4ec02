// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// What the steps of lse_reduce_scatter cost on one card: N ranks that take turns on one stream, and
// plain copies in place of a transport. Out of 128 of 144 heads.

#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/kernel/lse_combine.cuh>
#include <headwise/kernel/pack.cuh>

#include "harness.cuh"
#include "operands.cuh"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace headwise;
using bench::check;
using bench::width;

constexpr index_t heads = 128;
constexpr index_t padded_heads = 144;

auto partial_output(bf16* data, index_t tokens) {
  return bench::partial_output<heads, padded_heads>(data, tokens);
}
auto partial_lse(float* data, index_t tokens) {
  return bench::partial_lse<heads, padded_heads>(data, tokens);
}

/// What one rank holds.
struct rank_memory {
  bench::buffers<bf16> partial;
  bench::buffers<float> lse;
  bench::buffers<std::byte> outgoing;
  bench::buffers<std::byte> incoming;
  bench::buffers<bf16> output;

  rank_memory(index_t sets, const message_plan& plan)
      : partial(sets, plan.shape.tokens * padded_heads * width),
        lse(sets, plan.shape.tokens * padded_heads, -8, 8),
        outgoing(sets, plan.total_bytes),
        incoming(sets, plan.total_bytes),
        output(sets, plan.shape.tokens * plan.shape.heads * width) {}
};

struct group {
  message_plan plan;
  std::vector<std::unique_ptr<rank_memory>> members;

  index_t size() const { return plan.shape.ranks; }
  const rank_memory& of(index_t rank) const { return *members[static_cast<std::size_t>(rank)]; }

  void pack(cudaStream_t stream, index_t set, index_t rank) const {
    const index_t tokens = plan.shape.tokens;
    check(kernel::pack<log_base::e>(partial_output(of(rank).partial[set], tokens),
                                    partial_lse(of(rank).lse[set], tokens), plan,
                                    of(rank).outgoing[set], stream, none, rank));
  }
  void send(cudaStream_t stream, index_t set, index_t rank) const {
    for (index_t peer = 0; peer < size(); ++peer) {
      if (peer == rank) continue;
      check(cudaMemcpyAsync(of(peer).incoming[set] + rank * plan.peer_pitch,
                            of(rank).outgoing[set] + peer * plan.peer_pitch,
                            static_cast<std::size_t>(plan.peer_pitch), cudaMemcpyDeviceToDevice,
                            stream));
    }
  }
  void combine(cudaStream_t stream, index_t set, index_t rank) const {
    const index_t tokens = plan.shape.tokens;
    const shard own{
        headwise::detail::heads_of(partial_output(of(rank).partial[set], tokens), size(), rank),
        headwise::detail::heads_of(partial_lse(of(rank).lse[set], tokens), size(), rank)};
    const auto output = bench::output_view(of(rank).output[set], tokens, plan.shape.heads);
    const exchanged_shards sources{received_shards<bf16>{plan, of(rank).incoming[set]}, own,
                                   static_cast<int>(rank)};
    check(kernel::lse_combine<log_base::e>(sources, output, stream));
  }

  /// So that a combine that is timed alone reads messages.
  void prepare(index_t sets) const {
    for (index_t set = 0; set < sets; ++set) {
      for (index_t rank = 0; rank < size(); ++rank) pack(nullptr, set, rank);
      for (index_t rank = 0; rank < size(); ++rank) send(nullptr, set, rank);
    }
  }
};

void reduce_scatter(bench::harness& bench, index_t ranks, index_t tokens) {
  const std::string shape = "N=" + std::to_string(ranks) + " B=" + std::to_string(tokens);
  if (!bench.wanted(shape)) return;
  group loopback{bench::checked(message_plan::make<bf16>({ranks, tokens, heads / ranks, width})),
                 {}};
  // Of one rank: rows packed for the peers, then rows of all ranks combined into those of one.
  const auto rows = static_cast<double>(tokens * heads / ranks);
  const auto n = static_cast<double>(ranks);
  const double packed_bytes = 2 * (n - 1) * rows * (2 * width + 4);
  const double combined_bytes = rows * (n * (2 * width + 4) + 2 * width);
  const index_t sets = bench.sets_for(std::min(packed_bytes, combined_bytes));
  for (index_t rank = 0; rank < ranks; ++rank) {
    loopback.members.push_back(std::make_unique<rank_memory>(sets, loopback.plan));
  }
  loopback.prepare(sets);

  const auto all = [&](auto step) {
    return [&, step](cudaStream_t stream, index_t set) {
      for (index_t rank = 0; rank < ranks; ++rank) (loopback.*step)(stream, set, rank);
    };
  };
  bench.compare(shape,
                {{"one rank: pack and combine", packed_bytes + combined_bytes,
                  [&](cudaStream_t stream, index_t set) {
                    loopback.pack(stream, set, 0);
                    loopback.combine(stream, set, 0);
                  }},
                 {"one rank: pack", packed_bytes,
                  [&](cudaStream_t stream, index_t set) { loopback.pack(stream, set, 0); }},
                 {"one rank: combine", combined_bytes,
                  [&](cudaStream_t stream, index_t set) { loopback.combine(stream, set, 0); }},
                 {"all ranks: packs", n * packed_bytes, all(&group::pack)},
                 {"all ranks: copies", n * packed_bytes, all(&group::send)},
                 {"all ranks: combines", n * combined_bytes, all(&group::combine)},
                 {"all ranks: whole", n * (2 * packed_bytes + combined_bytes),
                  [&](cudaStream_t stream, index_t set) {
                    for (index_t rank = 0; rank < ranks; ++rank) loopback.pack(stream, set, rank);
                    for (index_t rank = 0; rank < ranks; ++rank) loopback.send(stream, set, rank);
                    for (index_t rank = 0; rank < ranks; ++rank) {
                      loopback.combine(stream, set, rank);
                    }
                  }}},
                sets);
}

}  // namespace

int main(int argc, char** argv) {
  bench::harness bench(argc, argv, "lse_reduce_scatter");
  for (const index_t ranks : {2, 8}) {
    for (const index_t tokens : {1, 4, 16, 64, 256}) reduce_scatter(bench, ranks, tokens);
  }
  return bench.finish();
}
