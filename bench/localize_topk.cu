// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// What turning top-k positions into slots of a rank's cache costs: 2,048 positions a token out of
// 128Ki, pages of 64.

#include <headwise/kernel/localize_topk.cuh>

#include "harness.cuh"

#include <string>

namespace {

using namespace headwise;
using bench::check;

void localize(bench::harness& bench, index_t ranks, index_t tokens) {
  constexpr index_t keys = 2048;
  constexpr index_t context = index_t{128} << 10;
  constexpr index_t page_size = 64;
  const std::string shape =
      "N=" + std::to_string(ranks) + " B=" + std::to_string(tokens) + " top 2048";
  if (!bench.wanted(shape)) return;

  const interleaving split = bench::checked(interleaving::make(ranks, 1));
  const kv_shard own = bench::checked(kv_shard::make(split, 0));
  const index_t pages = own.pages(context, page_size);
  // Positions read, slots written, and an entry of the block table for each position that is held.
  const double bytes = 4.0 * static_cast<double>(tokens) *
                       (2.0 * keys + static_cast<double>(keys) / static_cast<double>(ranks) + 2.0);
  const index_t sets = bench.sets_for(bytes);
  const bench::buffers<int> positions(sets, tokens * keys, 0, static_cast<float>(context));
  const bench::buffers<int> table(sets, tokens * pages, 0, static_cast<float>(tokens * pages));
  const bench::buffers<int> lengths(sets, tokens, static_cast<float>(context),
                                    static_cast<float>(context + 1));
  const bench::buffers<int> slots(sets, tokens * keys, 0, 1000);
  const bench::buffers<int> counts(sets, tokens, 0, 1000);

  const auto by_key = packed(extent<axis::token>(tokens), extent<axis::key, keys>());
  const auto by_page = packed(extent<axis::sequence>(tokens), extent<axis::page>(pages));
  const auto run = [&](cudaStream_t stream, index_t set) {
    const auto device = [](int* data, auto layout) {
      return make_view<memory_space::device>(data, layout);
    };
    check(kernel::localize_topk(device(positions[set], by_key), device(table[set], by_page),
                                device(lengths[set], packed(extent<axis::sequence>(tokens))),
                                localize_options{page_size, 1, own}, device(slots[set], by_key),
                                device(counts[set], packed(extent<axis::token>(tokens))), stream));
  };
  bench.compare(shape,
                {bench::plain_copy("memcpy of the positions", slots, positions,
                                   tokens * keys * index_t{sizeof(int)}),
                 bench::empty_launch(),
                 {"localize_topk", bytes, run}},
                sets);
}

}  // namespace

int main(int argc, char** argv) {
  bench::harness bench(argc, argv, "localize_topk");
  for (const index_t ranks : {2, 8}) {
    for (const index_t tokens : {1, 16, 128}) localize(bench, ranks, tokens);
  }
  return bench.finish();
}
