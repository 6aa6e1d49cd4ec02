// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The shortest program that does what Headwise is for: two ranks, each with a partial attention
// result over half of the keys, each getting the exact result for its own half of the heads.

#include <headwise/headwise.hpp>
#include <headwise/transport/in_process.hpp>

#include <cstdio>
#include <thread>
#include <vector>

namespace hw = headwise;
namespace axis = headwise::axis;

// [snippet: kernel_buffers]
// What an attention kernel left behind: it works in tiles of 16 heads, so 22 live heads came back
// in buffers of 32. The rows behind them hold whatever was there before.
constexpr hw::index_t tokens = 4;
constexpr int ranks = 2;
using padded_output =
    hw::packed_layout_t<hw::extent<axis::token, tokens>, hw::extent<axis::head, 32>,
                        hw::extent<axis::head_dim, 512>>;
using padded_lse = hw::packed_layout_t<hw::extent<axis::token, tokens>, hw::extent<axis::head, 32>>;
// [/snippet]

void one_rank(hw::in_process group) {
  std::vector<hw::bf16> output_memory(tokens * 32 * 512, hw::bf16{0x7fff});  // NaN, like a fresh
  std::vector<float> lse_memory(tokens * 32, 0.0f);                          // buffer may be
  for (hw::index_t row = 0; row < tokens * 32; ++row) {
    if (row % 32 >= 22) continue;
    const float value = static_cast<float>(row % 32) + (group.rank() == 0 ? 0.0f : 2.0f);
    for (hw::index_t d = 0; d < 512; ++d) {
      output_memory[static_cast<std::size_t>(row * 512 + d)] = hw::from_float<hw::bf16>(value);
    }
  }

  // [snippet: slice_and_combine]
  // The 22 live heads, as views with strides in the type: no copy, no contiguous().
  const auto partial_output = hw::slice<axis::head>(
      hw::view<hw::bf16, padded_output>(output_memory.data()), hw::constant<0>, hw::constant<22>);
  const auto partial_lse = hw::slice<axis::head>(hw::view<float, padded_lse>(lse_memory.data()),
                                                 hw::constant<0>, hw::constant<22>);

  // Room for this rank's 11 heads, and for the messages; sized once, before the first step.
  std::vector<hw::bf16> combined_memory(tokens * 11 * 512);
  const hw::view combined{combined_memory.data(), hw::packed(hw::extent<axis::token, tokens>(),
                                                             hw::extent<axis::head, 11>(),
                                                             hw::extent<axis::head_dim, 512>())};
  const hw::message_shape shape{ranks, tokens, 11, 512};
  std::vector<std::byte> workspace(
      static_cast<std::size_t>(hw::lse_reduce_scatter_bytes<hw::bf16>(shape).value()));

  // The log base is named, as no two producers agree on it; `none`: no merged LSE wanted.
  const hw::status done = hw::lse_reduce_scatter<hw::log_base::e>(
      hw::host_executor{}, group, partial_output, partial_lse, combined, hw::none, workspace);
  // [/snippet]

  char text[256];
  hw::format_status(done, text, sizeof text);
  std::printf("rank %d: %s, head %d of the group is %g\n", group.rank(), text, group.rank() * 11,
              static_cast<double>(hw::to_float(combined(0, 0, 0))));
}

int main() {
  // [snippet: two_ranks]
  hw::in_process_group group(ranks);  // ranks are threads; a peer that never comes is a time-out
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(one_rank, group.rank(r).value());
  for (std::thread& thread : threads) thread.join();
  // [/snippet]
}
