// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/transport/transport.hpp>

namespace headwise::inline v0 {

/// Whether all ranks say yes: true on all of them, or false on all. For decisions that one rank
/// alone must not take, such as to fall back because something failed to start on it.
///
///     const result<bool> all_started = agree(group, pool.ok());
///
/// Collective. Errors: unsupported (ranks), those of the transport.
template <transport Transport>
result<bool> agree(Transport& group, bool mine) noexcept {
  const index_t ranks = group.size();
  if (!supported_ranks(ranks)) return require_supported_ranks(ranks);
  const std::uint8_t own = mine ? 1 : 0;
  std::uint8_t answers[max_ranks] = {};
  receive_chunk from[max_ranks];
  for (index_t r = 0; r < ranks; ++r) from[r] = {&answers[r], sizeof own};
  const std::span<const receive_chunk> receive(from, static_cast<std::size_t>(ranks));
  const auto ask = [&]() -> status {
    if constexpr (requires { group.all_gather_host({&own, 1}, receive, {"agree", {}}); }) {
      return group.all_gather_host({&own, sizeof own}, receive, {"agree", {}});
    } else {
      return group.all_gather({&own, sizeof own}, receive, {"agree", {}});
    }
  };
  const status asked = ask();
  if (!asked.ok()) return asked;
  bool all = true;
  for (index_t r = 0; r < ranks; ++r) all = all && answers[r] != 0;
  return all;
}

}  // namespace headwise::inline v0
