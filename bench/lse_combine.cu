// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// What combining partial results costs: N messages as a reduce-scatter receives them, and two
// shards in place, beside a plain copy of as many bytes.

#include <headwise/kernel/lse_combine.cuh>

#include "harness.cuh"
#include "operands.cuh"

#include <cstddef>
#include <cstdio>
#include <string>

namespace {

using namespace headwise;
using bench::check;
using bench::lse_view;
using bench::output_view;
using bench::width;

/// The messages of `shards` ranks, and what they are combined into.
struct problem {
  index_t tokens;
  index_t heads;
  message_plan plan;
  double bytes;  ///< payloads and LSEs read, output written
  index_t sets;
  bench::buffers<std::byte> messages;
  bench::buffers<bf16> outputs;
  bench::buffers<float> merged;
  bench::buffers<std::byte> copied;

  problem(const bench::harness& bench, index_t shards, index_t batch, index_t own_heads)
      : tokens(batch),
        heads(own_heads),
        plan(bench::checked(message_plan::make<bf16>({shards, batch, own_heads, width}))),
        bytes(static_cast<double>(tokens * heads) *
              static_cast<double>(shards * (2 * width + 4) + 2 * width)),
        sets(bench.sets_for(bytes)),
        messages(sets, plan.total_bytes),
        outputs(sets, tokens * heads * width),
        merged(sets, tokens * heads),
        copied(sets, half()) {
    for (index_t set = 0; set < sets; ++set) {
      for (index_t s = 0; s < shards; ++s) {
        auto* const payload = messages[set] + plan.payload_at(s, 0, 0);
        auto* const lse = messages[set] + plan.lse_at(s, 0, 0);
        bench::fill(reinterpret_cast<bf16*>(payload), tokens * heads * width, -1, 1);
        bench::fill(reinterpret_cast<float*>(lse), tokens * heads, -8, 8);
      }
    }
  }

  /// A copy reads and writes as many bytes as it copies.
  index_t half() const { return static_cast<index_t>(bytes / 2); }

  bench::variant copy() const {
    return bench::plain_copy("memcpy of as many bytes", copied, messages, half());
  }
  received_shards<bf16> source(index_t set) const { return {plan, messages[set]}; }
};

bench::variant combine(const problem& with, const char* name, bool overlap) {
  return {name, with.bytes, [&with, overlap](cudaStream_t stream, index_t set) {
            check(kernel::lse_combine<log_base::e>(
                with.source(set), output_view(with.outputs[set], with.tokens, with.heads),
                {stream, overlap}));
          }};
}
bench::variant combine_with_lse(const problem& with, const char* name, bool overlap) {
  return {name, with.bytes + 4.0 * static_cast<double>(with.tokens * with.heads),
          [&with, overlap](cudaStream_t stream, index_t set) {
            check(kernel::lse_combine<log_base::two>(
                with.source(set), output_view(with.outputs[set], with.tokens, with.heads),
                {stream, overlap}, lse_view(with.merged[set], with.tokens, with.heads)));
          }};
}

void received(bench::harness& bench, index_t ranks, index_t tokens) {
  const std::string shape =
      "N=" + std::to_string(ranks) + " B=" + std::to_string(tokens) + " of 128 heads";
  if (!bench.wanted(shape)) return;
  const problem with(bench, ranks, tokens, 128 / ranks);
  bench.compare(shape,
                {with.copy(), bench::empty_launch(), combine(with, "received shards", false),
                 combine(with, "received shards (launches overlap)", true)},
                with.sets);
}

/// FlashInfer's MergeStates over 64 heads of 512 bf16, microseconds: the best of its ways to lay
/// the heads out, with the same inputs each time and with inputs that rotate past the L2 cache.
struct elsewhere {
  index_t shards;
  index_t tokens;
  double warm_us;
  double cold_us;
};
constexpr elsewhere merge_states[] = {{2, 1, 1.64, 1.67},     {2, 64, 3.61, 5.19},
                                      {2, 256, 13.05, 14.08}, {8, 1, 2.25, 2.28},
                                      {8, 64, 6.19, 11.75},   {8, 256, 39.88, 39.34}};

void beside_merge_states(bench::harness& bench, const elsewhere& other) {
  constexpr index_t heads = 64;
  const std::string shape = "n=" + std::to_string(other.shards) +
                            " B=" + std::to_string(other.tokens) + " 64 heads merged LSE";
  if (!bench.wanted(shape)) return;
  const problem with(bench, other.shards, other.tokens, heads);
  bench.compare(shape,
                {with.copy(), combine_with_lse(with, "received shards", false),
                 combine_with_lse(with, "received shards (launches overlap)", true)},
                with.sets);
  char text[160];
  std::snprintf(text, sizeof text,
                "FlashInfer MergeStates, measured elsewhere, same kind of card (H200): "
                "warm %.2f us, cold %.2f us",
                other.warm_us, other.cold_us);
  bench.note(text);
}

/// Merges a suffix into a prefix where that lies, as a cascade does.
void in_place(bench::harness& bench, index_t tokens) {
  constexpr index_t heads = 128;
  const std::string shape = "B=" + std::to_string(tokens) + " 128 heads in place";
  if (!bench.wanted(shape)) return;
  const index_t rows = tokens * heads;
  const double bytes = static_cast<double>(rows) * (3 * 2 * width + 3 * 4);
  const index_t sets = bench.sets_for(bytes);
  const bench::buffers<bf16> prefix(sets, rows * width);
  const bench::buffers<bf16> suffix(sets, rows * width);
  const bench::buffers<float> prefix_lse(sets, rows, -8, 8);
  const bench::buffers<float> suffix_lse(sets, rows, -8, 8);
  // A copy reads and writes as many bytes as it copies.
  const index_t half = rows * (3 * width + 6);
  const bench::buffers<std::byte> from(sets, half);
  const bench::buffers<std::byte> to(sets, half);
  bench.compare(
      shape,
      {bench::plain_copy("memcpy of as many bytes", to, from, half),
       {"two separate shards", bytes,
        [&](cudaStream_t stream, index_t set) {
          const auto output = output_view(prefix[set], tokens, heads);
          const auto lse = lse_view(prefix_lse[set], tokens, heads);
          check(kernel::lse_combine<log_base::e>(
              separate_shards(shard{output, lse}, shard{output_view(suffix[set], tokens, heads),
                                                        lse_view(suffix_lse[set], tokens, heads)}),
              output, stream, lse));
        }}},
      sets);
}

}  // namespace

int main(int argc, char** argv) {
  bench::harness bench(argc, argv, "lse_combine");
  for (const index_t ranks : {2, 8}) {
    for (const index_t tokens : {1, 2, 4, 8, 16, 32, 64, 256}) received(bench, ranks, tokens);
  }
  for (const elsewhere& other : merge_states) beside_merge_states(bench, other);
  for (const index_t tokens : {1, 16, 64, 256}) in_place(bench, tokens);
  return bench.finish();
}
