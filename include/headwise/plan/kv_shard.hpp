// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>
#include <headwise/core/status.hpp>
#include <headwise/plan/capacity.hpp>

#include <span>
#include <type_traits>

// Which rank holds which token of a sequence, and where. Blocks of `interleave` tokens go round the
// ranks; a rank stores its blocks one behind the other:
//
//   ranks 2, interleave 2    global   0 1 2 3 4 5 6 7 8
//                            owner    0 0 1 1 0 0 1 1 0
//                            local    0 1 0 1 2 3 2 3 4
//
// Global numbers count tokens of the whole sequence, local ones those of one rank. Nothing converts
// from one to the other but the functions below.

namespace headwise::inline v0 {

/// Tokens of a sequence per rank of the group, `[rank]`. Not an integer, and none can be made of
/// it: who leaves out the rank gets something that does not fit where one length is wanted.
struct shard_lengths {
  index_t count = 0;
  index_t length[max_ranks] = {};

  /// Precondition: 0 <= rank < count.
  HEADWISE_HD constexpr index_t operator[](index_t rank) const noexcept {
    HEADWISE_ASSERT(rank >= 0 && rank < count);
    return length[rank];
  }
  HEADWISE_HD constexpr index_t size() const noexcept { return count; }
  HEADWISE_HD constexpr const index_t* begin() const noexcept { return length; }
  HEADWISE_HD constexpr const index_t* end() const noexcept { return length + count; }
};

namespace detail {

/// Keeps one round over all ranks within 32 bits; no page is as large.
inline constexpr index_t largest_interleave = INT32_MAX / max_ranks;

constexpr status check_sequences(std::size_t out, std::size_t lengths, source_line where) noexcept {
  if (out == lengths) return {};
  return failure(errc::shape_mismatch, "out", "one entry per sequence", static_cast<index_t>(out),
                 static_cast<index_t>(lengths), "sequence", where);
}

}  // namespace detail

/// How the tokens of every sequence go round the ranks; the same value on all ranks. A filled
/// aggregate is taken as it is, make() checks it.
struct interleaving {
  index_t ranks = 1;
  index_t interleave = 1;  ///< tokens per block

  /// Errors: unsupported (ranks beyond 1 to 16), invalid_argument (interleave below 1, or so large
  /// that one round over the ranks leaves 32 bits).
  static constexpr result<interleaving> make(index_t ranks, index_t interleave,
                                             source_line where = source_line::current()) noexcept {
    const status counted = require_supported_ranks(ranks, where);
    if (!counted.ok()) return counted;
    if (interleave < 1) {
      return failure(errc::invalid_argument, "interleave", "a block has at least one token",
                     interleave, 1, "", where);
    }
    if (interleave > detail::largest_interleave) {
      return failure(errc::invalid_argument, "interleave", "beyond any page size", interleave,
                     detail::largest_interleave, "", where);
    }
    return interleaving{ranks, interleave};
  }

  /// Tokens of one round over all ranks.
  HEADWISE_HD constexpr index_t round() const noexcept { return ranks * interleave; }

  /// The rank that holds token `global`. Precondition: global >= 0.
  HEADWISE_HD constexpr index_t owner(index_t global) const noexcept {
    HEADWISE_ASSERT(global >= 0);
    return (global / interleave) % ranks;
  }

  /// The place of token `global` among the tokens of its owner. Precondition: global >= 0.
  HEADWISE_HD constexpr index_t local(index_t global) const noexcept {
    HEADWISE_ASSERT(global >= 0);
    return (global / round()) * interleave + global % interleave;
  }

  /// The token that `rank` stores at place `local`: the inverse of (owner, local).
  HEADWISE_HD constexpr index_t global(index_t rank, index_t local) const noexcept {
    HEADWISE_ASSERT(rank >= 0 && rank < ranks && local >= 0);
    return (local / interleave) * round() + rank * interleave + local % interleave;
  }

  /// How many of the first `length` tokens `rank` holds. A length below zero counts as zero.
  HEADWISE_HD constexpr index_t local_length(index_t length, index_t rank) const noexcept {
    HEADWISE_ASSERT(rank >= 0 && rank < ranks);
    if (length <= 0) return 0;
    const index_t rest = length % round() - rank * interleave;
    return (length / round()) * interleave + detail::clamp(rest, 0, interleave);
  }

  /// The same for all ranks, `[rank]`.
  HEADWISE_HD constexpr shard_lengths local_length(index_t length) const noexcept {
    shard_lengths all{ranks, {}};
    for (index_t rank = 0; rank < ranks; ++rank) all.length[rank] = local_length(length, rank);
    return all;
  }

  /// `[sequence]` to `[sequence, rank]`. Errors: shape_mismatch.
  template <class Length>
    requires std::is_integral_v<Length>
  constexpr status local_lengths(std::span<const Length> lengths, std::span<shard_lengths> out,
                                 source_line where = source_line::current()) const noexcept {
    const status sized = detail::check_sequences(out.size(), lengths.size(), where);
    if (!sized.ok()) return sized;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      out[i] = local_length(static_cast<index_t>(lengths[i]));
    }
    return {};
  }

  /// Blocks must not straddle pages, as a block table names whole pages.
  /// Errors: invalid_argument (got = page_size, expected = interleave).
  constexpr status check_page_size(index_t page_size,
                                   source_line where = source_line::current()) const noexcept {
    if (page_size >= 1 && page_size % interleave == 0) return {};
    return failure(errc::invalid_argument, "page_size",
                   "must be a multiple of the interleave (expected)", page_size, interleave, "",
                   where);
  }

  friend constexpr bool operator==(interleaving, interleaving) = default;
};

/// How many tokens of a sequence query token `j` of `query_tokens` may see when `length` counts the
/// query tokens too: the last one sees them all. Zero where the sequence is shorter (padded rows).
HEADWISE_HD constexpr index_t global_causal_bound(index_t length, index_t query_tokens,
                                                  index_t j) noexcept {
  HEADWISE_ASSERT(j >= 0 && j < query_tokens);
  return detail::greater(length - query_tokens + 1 + j, index_t{0});
}

/// One rank's share of the KV cache.
struct kv_shard {
  interleaving split = {};
  index_t rank = 0;

  /// Errors: those of interleaving::make, out_of_range (rank).
  static constexpr result<kv_shard> make(interleaving split, index_t rank,
                                         source_line where = source_line::current()) noexcept {
    const auto checked = interleaving::make(split.ranks, split.interleave, where);
    if (!checked.ok()) return checked.why();
    if (rank < 0 || rank >= split.ranks) {
      return failure(errc::out_of_range, "rank", "a rank of the group is below its size (expected)",
                     rank, split.ranks, "", where);
    }
    return kv_shard{split, rank};
  }

  HEADWISE_HD constexpr bool owns(index_t global) const noexcept {
    return split.owner(global) == rank;
  }

  /// The place of an owned token. Precondition: owns(global).
  HEADWISE_HD constexpr index_t local(index_t global) const noexcept {
    HEADWISE_ASSERT(owns(global));
    return split.local(global);
  }

  HEADWISE_HD constexpr index_t global(index_t local) const noexcept {
    return split.global(rank, local);
  }

  HEADWISE_HD constexpr index_t local_length(index_t length) const noexcept {
    return split.local_length(length, rank);
  }

  /// `[sequence]` to `[sequence]`; `lengths` and `out` may be the same. Errors: shape_mismatch.
  template <class Length>
    requires std::is_integral_v<Length>
  constexpr status local_lengths(std::span<const Length> lengths, std::span<Length> out,
                                 source_line where = source_line::current()) const noexcept {
    const status sized = detail::check_sequences(out.size(), lengths.size(), where);
    if (!sized.ok()) return sized;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      out[i] = static_cast<Length>(local_length(static_cast<index_t>(lengths[i])));
    }
    return {};
  }

  /// How many of this rank's tokens query token `j` of `query_tokens` may see: as tokens are stored
  /// in their global order, these are its first ones.
  HEADWISE_HD constexpr index_t causal_bound(index_t length, index_t query_tokens,
                                             index_t j) const noexcept {
    return local_length(global_causal_bound(length, query_tokens, j));
  }

  /// Pages that this rank's tokens take: the least width of its block table.
  HEADWISE_HD constexpr index_t pages(index_t length, index_t page_size) const noexcept {
    return detail::ceil_div(local_length(length), page_size);
  }

  friend constexpr bool operator==(kv_shard, kv_shard) = default;
};

namespace detail {

template <index_t Ranks, index_t Interleave>
constexpr interleaving checked_interleaving() noexcept {
  static_assert(supported_ranks(Ranks), "headwise: interleaving: a group has from 1 to 16 ranks");
  static_assert(Interleave >= 1, "headwise: interleaving: a block has at least one token");
  static_assert(Interleave <= largest_interleave,
                "headwise: interleaving: the interleave is beyond any page size");
  return {Ranks, Interleave};
}

}  // namespace detail

/// An interleaving known when compiling; a wrong one does not compile.
template <index_t Ranks, index_t Interleave = 1>
inline constexpr interleaving static_interleaving =
    detail::checked_interleaving<Ranks, Interleave>();

/// A place in a paged cache: which entry of the block table, and which slot of that page.
struct page_position {
  index_t page = 0;
  index_t slot = 0;
  friend constexpr bool operator==(page_position, page_position) = default;
};

/// Precondition: local >= 0 and page_size >= 1. `local` is a local index, never a global one.
HEADWISE_HD constexpr page_position locate(index_t local, index_t page_size) noexcept {
  HEADWISE_ASSERT(local >= 0 && page_size >= 1);
  return {local / page_size, local % page_size};
}

/// The offset of a slot, in the unit of the strides (elements, rows or bytes). A page's stride is
/// what the cache says, not slots times slot stride: pages may be padded or shared by several
/// tensors. Block tables hold 32-bit ids; they become 64 bits wide here, before the product.
HEADWISE_HD constexpr index_t page_offset(index_t page, index_t page_stride, index_t slot,
                                          index_t slot_stride) noexcept {
  HEADWISE_ASSERT(page >= 0 && slot >= 0);
  return page * page_stride + slot * slot_stride;
}

/// What a decode kernel can mask when one call has several query tokens. Each kernel states it as
/// `static constexpr causal_bounds causal`; nothing is concluded from anything else about it.
enum class causal_bounds : std::uint8_t {
  local_lengths,     ///< bounds counted back from the local length: right on a single rank only
  global_positions,  ///< a bound per query token, from positions in the whole sequence
};

constexpr const char* to_string(causal_bounds bounds) noexcept {
  switch (bounds) {
    case causal_bounds::local_lengths: return "local_lengths";
    case causal_bounds::global_positions: return "global_positions";
  }
  return "unknown";
}

/// A kernel that says how it masks.
template <class Kernel>
concept states_causal_bounds = requires {
  requires std::is_same_v<decltype(Kernel::causal), const causal_bounds>;
};

namespace detail {

/// Tokens of one call are neighbours and so live on different ranks: counting back from the end of
/// a shard masks the wrong ones as soon as there are several of both.
HEADWISE_HD constexpr bool masks_right(causal_bounds bounds, index_t query_tokens,
                                       index_t ranks) noexcept {
  return bounds == causal_bounds::global_positions || query_tokens <= 1 || ranks <= 1;
}

}  // namespace detail

/// Whether `Kernel` is right for `query_tokens` per request on `ranks` ranks.
/// Errors: unsupported (got = query_tokens, expected = 1).
template <class Kernel>
constexpr status require_causal_bounds(index_t query_tokens, index_t ranks,
                                       source_line where = source_line::current()) noexcept {
  static_assert(states_causal_bounds<Kernel>,
                "headwise: a decode kernel states `static constexpr causal_bounds causal`");
  if (detail::masks_right(Kernel::causal, query_tokens, ranks)) return {};
  return failure(errc::unsupported, "query_tokens",
                 "this kernel has no global causal bounds: one query token per request on more "
                 "than one rank",
                 query_tokens, 1, "", where);
}

/// The same where the number of query tokens is static. The number of ranks is a run-time value as
/// a rule, so the kernel must be right for any, unless `Ranks` says 1.
template <class Kernel, index_t QueryTokens, index_t Ranks = max_ranks>
constexpr void require_static_causal_bounds() noexcept {
  static_assert(states_causal_bounds<Kernel>,
                "headwise: a decode kernel states `static constexpr causal_bounds causal`");
  static_assert(detail::masks_right(Kernel::causal, QueryTokens, Ranks),
                "headwise: this kernel has no global causal bounds: it takes one query token per "
                "request on more than one rank");
}

}  // namespace headwise::inline v0
