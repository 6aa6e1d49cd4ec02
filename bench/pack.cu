// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// What packing a partial result into messages costs, out of a head-sliced view and out of a dense
// one, beside a plain copy of the payload.

#include <headwise/kernel/pack.cuh>

#include "harness.cuh"
#include "operands.cuh"

#include <algorithm>
#include <cstddef>
#include <string>

namespace {

using namespace headwise;
using bench::check;
using bench::partial_lse;
using bench::partial_output;
using bench::width;

/// Operands of packs of one shape. The same memory serves a head-sliced view and a dense one. Rank
/// 0 is the one that packs.
template <index_t Heads, index_t Held>
struct problem {
  index_t ranks;
  index_t tokens;
  message_plan plan;
  message_plan inline_plan;
  double row_bytes;  ///< of the payload, read plus written
  double lse_bytes;  ///< read plus written
  index_t sets;
  bench::buffers<bf16> outputs;
  bench::buffers<float> lses;
  bench::buffers<bf16> short_lses;
  bench::buffers<int> valid;
  bench::buffers<std::byte> messages;

  static message_plan plan_of(index_t ranks, index_t tokens, lse_placement where) {
    return bench::checked(message_plan::make<bf16>({ranks, tokens, Heads / ranks, width}, {where}));
  }
  problem(const bench::harness& bench, index_t n, index_t batch)
      : ranks(n),
        tokens(batch),
        plan(plan_of(n, batch, lse_placement::plane)),
        inline_plan(plan_of(n, batch, lse_placement::inline_bits)),
        row_bytes(2.0 * sizeof(bf16) * static_cast<double>(tokens * Heads * width)),
        lse_bytes(2.0 * sizeof(float) * static_cast<double>(tokens * Heads)),
        sets(bench.sets_for(row_bytes * static_cast<double>(n - 1) / static_cast<double>(n))),
        outputs(sets, tokens * Held * width),
        lses(sets, tokens * Held, -8, 8),
        short_lses(sets, tokens * Held, -8, 8),
        valid(sets, tokens, 0, 4),
        messages(sets, std::max(plan.total_bytes, inline_plan.total_bytes)) {}

  /// Of what travels when this rank keeps its own part.
  double peers_part() const { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); }

  bench::variant copy(const char* name, double part) const {
    return bench::plain_copy(name, messages, outputs, static_cast<index_t>(row_bytes * part / 2));
  }
  template <index_t Kept>
  bench::variant pack(const char* name, const char* baseline, index_t left_out,
                      bool overlap = false) const {
    const double part = left_out == no_peer ? 1 : peers_part();
    return {name, (row_bytes + lse_bytes) * part,
            [this, left_out, overlap](cudaStream_t stream, index_t set) {
              check(kernel::pack<log_base::e>(partial_output<Heads, Kept>(outputs[set], tokens),
                                              partial_lse<Heads, Kept>(lses[set], tokens), plan,
                                              messages[set], {stream, overlap}, none, left_out));
            },
            baseline};
  }
};

template <index_t Heads, index_t Held>
void packs(bench::harness& bench, index_t ranks, index_t tokens) {
  const std::string shape = "N=" + std::to_string(ranks) + " B=" + std::to_string(tokens) + " " +
                            std::to_string(Heads) + " of " + std::to_string(Held) + " heads";
  if (!bench.wanted(shape)) return;
  const problem<Heads, Held> with(bench, ranks, tokens);
  bench.compare(shape,
                {with.copy("memcpy", 1), bench::empty_launch(),
                 with.template pack<Heads>("dense", "memcpy", no_peer),
                 with.template pack<Held>("head-sliced", "dense", no_peer),
                 with.copy("memcpy to peers", with.peers_part()),
                 with.template pack<Heads>("dense to peers", "memcpy to peers", 0),
                 with.template pack<Held>("head-sliced to peers", "dense to peers", 0),
                 with.template pack<Held>("head-sliced to peers (launches overlap)",
                                          "memcpy to peers", 0, true)},
                with.sets);
}

/// What the other forms of the LSE cost, out of a head-sliced view.
void lse_forms(bench::harness& bench, index_t ranks, index_t tokens) {
  constexpr index_t heads = 128;
  constexpr index_t held = 144;
  const std::string shape =
      "N=" + std::to_string(ranks) + " B=" + std::to_string(tokens) + " forms of the LSE";
  if (!bench.wanted(shape)) return;
  const problem<heads, held> with(bench, ranks, tokens);
  const double bytes = with.row_bytes + with.lse_bytes;
  const auto output = [&](index_t set) {
    return partial_output<heads, held>(with.outputs[set], tokens);
  };
  const auto lse = [&](index_t set) { return partial_lse<heads, held>(with.lses[set], tokens); };
  bench.compare(shape,
                {with.pack<held>("fp32", "", no_peer),
                 {"bf16", bytes - with.lse_bytes / 4,
                  [&](cudaStream_t stream, index_t set) {
                    check(kernel::pack<log_base::e>(
                        output(set), partial_lse<heads, held>(with.short_lses[set], tokens),
                        with.plan, with.messages[set], stream));
                  }},
                 {"fp32 masked", bytes + 4.0 * static_cast<double>(tokens),
                  [&](cudaStream_t stream, index_t set) {
                    const auto valid = make_view<memory_space::device>(
                        with.valid[set], packed(extent<axis::token>(tokens)));
                    check(kernel::pack<log_base::e>(output(set), lse(set), with.plan,
                                                    with.messages[set], stream, valid));
                  }},
                 {"fp32 inline on the wire", bytes,
                  [&](cudaStream_t stream, index_t set) {
                    check(kernel::pack<log_base::e>(output(set), lse(set), with.inline_plan,
                                                    with.messages[set], stream));
                  }}},
                with.sets);
}

}  // namespace

int main(int argc, char** argv) {
  bench::harness bench(argc, argv, "pack");
  for (const index_t ranks : {2, 8}) {
    for (const index_t tokens : {1, 2, 4, 8, 16, 32, 64, 256}) {
      packs<128, 144>(bench, ranks, tokens);
    }
    lse_forms(bench, ranks, 256);
  }
  for (const index_t tokens : {1, 4, 16, 64, 256}) packs<22, 32>(bench, 2, tokens);
  return bench.finish();
}
