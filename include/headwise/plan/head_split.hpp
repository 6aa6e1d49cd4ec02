// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>
#include <headwise/core/status.hpp>
#include <headwise/plan/capacity.hpp>

// Which rank has which query heads. Heads that do not divide are padded at the end:
//
//   64 heads, 6 ranks    rank    0      1       2       3       4       5
//                        heads   0..10  11..21  22..32  33..43  44..54  55..63 + 2 dummies
//
// so the dummies are the last heads of the last ranks. They travel like any other head and no
// kernel has to know of them; only who reads the final result leaves them out.

namespace headwise::inline v0 {

/// What else the heads of one rank must satisfy.
struct head_split_options {
  index_t alignment = 1;  ///< heads per rank are a multiple of this
  index_t head_dim = 1;   ///< heads per rank times head_dim ...
  index_t block = 1;      ///< ... is a multiple of this (a quantisation block)
  bool padding = true;    ///< false: dummy heads are an error
};

namespace detail {

enum class head_split_fault : std::uint8_t {
  none,
  no_heads,
  no_ranks,
  bad_constraint,
  too_large,
  more_ranks_than_heads,
  needs_padding,
};

/// Beyond any model; keeps every product below 2^61.
inline constexpr index_t largest_head_count = index_t{1} << 20;

HEADWISE_HD constexpr index_t greatest_common_divisor(index_t a, index_t b) noexcept {
  while (b != 0) {
    const index_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/// The least count whose multiples satisfy both the alignment and the block.
constexpr index_t heads_unit(const head_split_options& options) noexcept {
  const index_t by_block = options.block / greatest_common_divisor(options.block, options.head_dim);
  return options.alignment / greatest_common_divisor(options.alignment, by_block) * by_block;
}

constexpr index_t heads_per_rank(index_t heads, index_t ranks,
                                 const head_split_options& options) noexcept {
  return round_up(ceil_div(heads, ranks), heads_unit(options));
}

/// The one check, for the static form and the run-time form.
constexpr head_split_fault find_fault(index_t heads, index_t ranks,
                                      const head_split_options& options) noexcept {
  if (heads < 1) return head_split_fault::no_heads;
  if (ranks < 1) return head_split_fault::no_ranks;
  if (options.alignment < 1 || options.head_dim < 1 || options.block < 1) {
    return head_split_fault::bad_constraint;
  }
  if (heads > largest_head_count || ranks > largest_head_count ||
      options.alignment > largest_head_count || options.head_dim > largest_head_count ||
      options.block > largest_head_count) {
    return head_split_fault::too_large;
  }
  if (options.padding) return head_split_fault::none;
  if (ranks > heads) return head_split_fault::more_ranks_than_heads;
  return heads_per_rank(heads, ranks, options) * ranks == heads ? head_split_fault::none
                                                                : head_split_fault::needs_padding;
}

}  // namespace detail

/// Heads over ranks, the same value on all ranks. Head numbers are global ones: `[0, heads)` are
/// real, `[heads, padded())` dummies.
struct head_split {
  index_t heads = 1;
  index_t ranks = 1;
  index_t per_rank = 1;

  /// Errors: invalid_argument (no heads, no ranks, a constraint below 1, or dummies where padding
  /// is forbidden; it carries the heads and the ranks), out_of_range (more than 2^20 of anything).
  static constexpr result<head_split> make(index_t heads, index_t ranks,
                                           const head_split_options& options = {},
                                           source_line where = source_line::current()) noexcept {
    using detail::head_split_fault;
    switch (detail::find_fault(heads, ranks, options)) {
      case head_split_fault::none: break;
      case head_split_fault::no_heads:
        return failure(errc::invalid_argument, "heads", "there are no heads to split", heads, 1, "",
                       where);
      case head_split_fault::no_ranks:
        return failure(errc::invalid_argument, "ranks", "there is at least one rank", ranks, 1, "",
                       where);
      case head_split_fault::bad_constraint:
        return failure(
            errc::invalid_argument, "options", "alignment, head_dim and block are at least 1",
            detail::lesser(options.alignment, detail::lesser(options.head_dim, options.block)), 1,
            "", where);
      case head_split_fault::too_large:
        return failure(errc::out_of_range, "heads", "more than 2^20 heads, ranks or a constraint",
                       heads, detail::largest_head_count, "", where);
      case head_split_fault::more_ranks_than_heads:
        return failure(errc::invalid_argument, "ranks",
                       "more ranks (got) than heads (expected), and padding is forbidden", ranks,
                       heads, "head", where);
      case head_split_fault::needs_padding:
        return failure(errc::invalid_argument, "heads",
                       "do not divide over the ranks as asked (expected: with padding), and "
                       "padding is forbidden",
                       heads, detail::heads_per_rank(heads, ranks, options) * ranks, "head", where);
    }
    return head_split{heads, ranks, detail::heads_per_rank(heads, ranks, options)};
  }

  HEADWISE_HD constexpr index_t padded() const noexcept { return per_rank * ranks; }
  HEADWISE_HD constexpr index_t dummies() const noexcept { return padded() - heads; }
  HEADWISE_HD constexpr bool is_dummy(index_t head) const noexcept { return head >= heads; }

  /// The rank that has `head`. Precondition: 0 <= head < padded().
  HEADWISE_HD constexpr index_t owner(index_t head) const noexcept {
    HEADWISE_ASSERT(head >= 0 && head < padded());
    return head / per_rank;
  }

  /// The first of a rank's heads; a rank that has only dummies begins at or behind `heads`.
  HEADWISE_HD constexpr index_t first(index_t rank) const noexcept {
    HEADWISE_ASSERT(rank >= 0 && rank < ranks);
    return rank * per_rank;
  }

  /// Real heads of a rank: its first ones.
  HEADWISE_HD constexpr index_t real(index_t rank) const noexcept {
    return detail::clamp(heads - first(rank), 0, per_rank);
  }

  /// Dummies of a rank: its last heads.
  HEADWISE_HD constexpr index_t dummies(index_t rank) const noexcept {
    return per_rank - real(rank);
  }

  friend constexpr bool operator==(head_split, head_split) = default;
};

namespace detail {

template <index_t Heads, index_t Ranks, head_split_options Options>
constexpr head_split checked_head_split() noexcept {
  constexpr head_split_fault fault = find_fault(Heads, Ranks, Options);
  static_assert(fault != head_split_fault::no_heads,
                "headwise: head_split: there are no heads to split");
  static_assert(fault != head_split_fault::no_ranks,
                "headwise: head_split: there is at least one rank");
  static_assert(fault != head_split_fault::bad_constraint,
                "headwise: head_split: alignment, head_dim and block are at least 1");
  static_assert(fault != head_split_fault::too_large,
                "headwise: head_split: more than 2^20 heads, ranks or a constraint");
  static_assert(fault != head_split_fault::more_ranks_than_heads,
                "headwise: head_split: more ranks than heads, and padding is forbidden");
  static_assert(fault != head_split_fault::needs_padding,
                "headwise: head_split: the heads do not divide over the ranks as asked, and "
                "padding is forbidden");
  if constexpr (fault == head_split_fault::none) {
    return {Heads, Ranks, heads_per_rank(Heads, Ranks, Options)};
  } else {
    return {};
  }
}

}  // namespace detail

/// A split known when compiling, for extents in types: `static_head_split<64, 6>.per_rank` is 11.
/// What cannot be split does not compile.
template <index_t Heads, index_t Ranks, head_split_options Options = head_split_options{}>
inline constexpr head_split static_head_split = detail::checked_head_split<Heads, Ranks, Options>();

/// The tensor-parallel ranks that share one KV cache: a contiguous block of them.
struct dcp_group {
  index_t tp_ranks = 1;   ///< ranks over which the heads are split
  index_t dcp_ranks = 1;  ///< ranks over which one KV cache is spread
  index_t tp_rank = 0;    ///< this one

  /// Errors: unsupported (dcp_ranks beyond 1 to 16), invalid_argument (tp_ranks below 1, or not a
  /// multiple of dcp_ranks: got = tp_ranks, expected = dcp_ranks), out_of_range (tp_rank).
  static constexpr result<dcp_group> make(index_t tp_ranks, index_t dcp_ranks, index_t tp_rank,
                                          source_line where = source_line::current()) noexcept {
    if (tp_ranks < 1) {
      return failure(errc::invalid_argument, "tp_ranks", "there is at least one rank", tp_ranks, 1,
                     "", where);
    }
    if (!supported_ranks(dcp_ranks)) {
      return failure(errc::unsupported, "dcp_ranks", "a group has from 1 to 16 ranks", dcp_ranks,
                     max_ranks, "", where);
    }
    if (tp_ranks % dcp_ranks != 0) {
      return failure(errc::invalid_argument, "tp_ranks",
                     "must be a multiple of dcp_ranks (expected)", tp_ranks, dcp_ranks, "rank",
                     where);
    }
    if (tp_rank < 0 || tp_rank >= tp_ranks) {
      return failure(errc::out_of_range, "tp_rank", "a rank is below tp_ranks (expected)", tp_rank,
                     tp_ranks, "rank", where);
    }
    return dcp_group{tp_ranks, dcp_ranks, tp_rank};
  }

  HEADWISE_HD constexpr index_t groups() const noexcept { return tp_ranks / dcp_ranks; }
  HEADWISE_HD constexpr index_t group() const noexcept { return tp_rank / dcp_ranks; }

  /// The place in the group, `[0, dcp_ranks)`.
  HEADWISE_HD constexpr index_t rank() const noexcept { return tp_rank % dcp_ranks; }

  /// The tensor-parallel rank at place `dcp_rank` of this group.
  HEADWISE_HD constexpr index_t member(index_t dcp_rank) const noexcept {
    HEADWISE_ASSERT(dcp_rank >= 0 && dcp_rank < dcp_ranks);
    return group() * dcp_ranks + dcp_rank;
  }

  friend constexpr bool operator==(dcp_group, dcp_group) = default;
};

/// A group whose sizes are known when compiling. Precondition: 0 <= tp_rank < TpRanks.
template <index_t TpRanks, index_t DcpRanks>
HEADWISE_HD constexpr dcp_group static_dcp_group(index_t tp_rank) noexcept {
  static_assert(TpRanks >= 1, "headwise: dcp_group: there is at least one rank");
  static_assert(supported_ranks(DcpRanks), "headwise: dcp_group: a group has from 1 to 16 ranks");
  static_assert(DcpRanks < 1 || TpRanks % DcpRanks == 0,
                "headwise: dcp_group: tp_ranks must be a multiple of dcp_ranks");
  HEADWISE_ASSERT(tp_rank >= 0 && tp_rank < TpRanks);
  return {TpRanks, DcpRanks, tp_rank};
}

/// Numbers of heads that a kernel was built for, in any order. Which these are depends on the
/// kernel, its element type and its mode, so each has a list of its own.
template <index_t... Widths>
struct width_list {
  static_assert(sizeof...(Widths) > 0 && ((Widths > 0) && ...),
                "headwise: width_list: at least one width, all positive");

  /// The least width that holds `heads`. Errors: unsupported (expected = the largest width).
  static constexpr result<index_t> next(index_t heads,
                                        source_line where = source_line::current()) noexcept {
    if (heads >= 1 && heads <= largest()) return least(heads);
    return failure(errc::unsupported, "heads", "the kernel has no width for so many", heads,
                   largest(), "head", where);
  }

  /// The same when compiling: nothing wide enough does not compile.
  template <index_t Heads>
  HEADWISE_HD static constexpr index_t static_next() noexcept {
    static_assert(Heads >= 1, "headwise: width_list: there are no heads");
    static_assert(Heads <= largest(),
                  "headwise: width_list: the kernel has no width for so many heads");
    return least(Heads);
  }

  HEADWISE_HD static constexpr index_t largest() noexcept {
    index_t best = 0;
    ((best = detail::greater(best, Widths)), ...);
    return best;
  }

 private:
  HEADWISE_HD static constexpr index_t least(index_t heads) noexcept {
    index_t best = largest();
    ((best = Widths >= heads ? detail::lesser(best, Widths) : best), ...);
    return best;
  }
};

/// Heads in a kernel that works in tiles of `tile` (16 or 8, say). Precondition: both at least 1.
HEADWISE_HD constexpr index_t tiled_width(index_t heads, index_t tile) noexcept {
  HEADWISE_ASSERT(heads >= 1 && tile >= 1);
  return detail::round_up(heads, tile);
}

/// The heads that a group gathers: those of its members one behind the other, unpadded, so a kernel
/// sees `[0, count())` and pads that to its own width afterwards. (Padding the share of each rank
/// first multiplies the padding by the ranks, and is wider than any kernel.)
struct gathered_heads {
  head_split split = {};
  dcp_group group = {};

  /// Errors: shape_mismatch (the heads are not split over the ranks of which this is a group).
  static constexpr result<gathered_heads> make(
      head_split split, dcp_group group, source_line where = source_line::current()) noexcept {
    if (split.ranks != group.tp_ranks) {
      return failure(errc::shape_mismatch, "split", "must be over tp_ranks (expected)", split.ranks,
                     group.tp_ranks, "rank", where);
    }
    return gathered_heads{split, group};
  }

  HEADWISE_HD constexpr index_t count() const noexcept { return split.per_rank * group.dcp_ranks; }

  /// The first gathered head of a member.
  HEADWISE_HD constexpr index_t first(index_t dcp_rank) const noexcept {
    HEADWISE_ASSERT(dcp_rank >= 0 && dcp_rank < group.dcp_ranks);
    return dcp_rank * split.per_rank;
  }

  /// The member, by its place in the group, to whom the result of a gathered head goes back.
  HEADWISE_HD constexpr index_t owner(index_t gathered) const noexcept {
    HEADWISE_ASSERT(gathered >= 0 && gathered < count());
    return gathered / split.per_rank;
  }

  /// The global head that a gathered one is.
  HEADWISE_HD constexpr index_t global(index_t gathered) const noexcept {
    HEADWISE_ASSERT(gathered >= 0 && gathered < count());
    return group.group() * count() + gathered;
  }

  HEADWISE_HD constexpr bool is_dummy(index_t gathered) const noexcept {
    return split.is_dummy(global(gathered));
  }

  /// Real heads of the group: its first ones.
  HEADWISE_HD constexpr index_t real() const noexcept {
    return detail::clamp(split.heads - group.group() * count(), 0, count());
  }

  /// Dummies of the group: its last heads.
  HEADWISE_HD constexpr index_t dummies() const noexcept { return count() - real(); }

  /// Rows of a kernel that works in tiles.
  HEADWISE_HD constexpr index_t tiled(index_t tile) const noexcept {
    return tiled_width(count(), tile);
  }

  /// Rows of a kernel that was built for a list of widths. Errors: those of width_list::next.
  template <index_t... Widths>
  constexpr result<index_t> width(width_list<Widths...>,
                                  source_line where = source_line::current()) const noexcept {
    return width_list<Widths...>::next(count(), where);
  }
};

/// Whether query heads share the KV heads evenly.
/// Errors: invalid_argument (got = q_heads, expected = kv_heads).
constexpr status check_kv_heads(index_t q_heads, index_t kv_heads,
                                source_line where = source_line::current()) noexcept {
  if (kv_heads >= 1 && q_heads >= 1 && q_heads % kv_heads == 0) return {};
  return failure(errc::invalid_argument, "q_heads", "must be a multiple of kv_heads (expected)",
                 q_heads, kv_heads, "head", where);
}

/// The KV head that a query head reads. All three are global and unpadded: a rank's own number of
/// query heads gives another ratio and the wrong KV head. A dummy head reads the last KV head, so
/// that it reads something that is there. Precondition: check_kv_heads(q_heads, kv_heads).ok().
HEADWISE_HD constexpr index_t kv_head_of(index_t q_head, index_t q_heads,
                                         index_t kv_heads) noexcept {
  HEADWISE_ASSERT(q_head >= 0);
  return detail::lesser(q_head / (q_heads / kv_heads), kv_heads - 1);
}

}  // namespace headwise::inline v0
