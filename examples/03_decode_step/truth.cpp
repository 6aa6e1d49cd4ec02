// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include "check.hpp"

namespace demo {

truth::truth(const setting& how, std::span<const std::int32_t> candidates, outcome& result)
    : heads(how.shape.heads + 1), output(how.rows() * heads * latent), merged(how.rows() * heads) {
  poisoned<bf16> query_memory(how.rows() * heads * head_dim);
  const auto query = heads_view<head_dim>(query_memory.data(), how.rows(), heads);
  const auto outputs = heads_view<latent>(output.data(), how.rows(), heads);
  const auto lses = lse_view(merged.data(), how.rows(), heads);
  status done[2];
  with_cache(how, kv_shard{}, [&](const auto& cache) {
    // Heads do not know of each other, so half of them may go on another core.
    on_threads(2, [&](index_t half) {
      const index_t first = half * (heads / 2);
      const index_t count = half == 0 ? heads / 2 : heads - heads / 2;
      for (index_t row = 0; row < how.rows(); ++row) {
        for (index_t h = first; h < first + count; ++h) {
          const index_t head = h < how.shape.heads ? h : how.heads().padded();
          fill_query(how, row, head, fix<axis::head>(fix<axis::token>(query, row), h));
        }
      }
      done[half] = attend(how, cache, candidates, slice<axis::head>(query, first, count).value(),
                          slice<axis::head>(outputs, first, count).value(),
                          slice<axis::head>(lses, first, count).value());
    });
  });
  for (const status& half : done) result.require(half, "unsharded attention");
}

}  // namespace demo
