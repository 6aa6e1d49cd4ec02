// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/plan/capacity.hpp>

#include <initializer_list>

// What lies where in the memory of a peer pool, and which way a call takes through it: pure
// functions of numbers that are equal on all ranks, so that ranks never have to ask each other.

namespace headwise::inline v0 {

/// How bytes get to a peer. docs/10_peer_pool.md has the pictures.
enum class protocol : std::uint8_t {
  ll,    ///< data and tag in one 16-byte store: no fence, twice the bytes
  push,  ///< stores into the peer's memory, then a flag for each chunk
  pull,  ///< stores into own memory, a flag for each chunk, and the peer reads
};

constexpr const char* to_string(protocol which) noexcept {
  switch (which) {
    case protocol::ll: return "ll";
    case protocol::push: return "push";
    case protocol::pull: return "pull";
  }
  return "unknown";
}

/// What a channel of a pool can do.
enum class pool_operation : std::uint8_t { reduce_scatter, all_gather };

constexpr const char* to_string(pool_operation which) noexcept {
  return which == pool_operation::reduce_scatter ? "lse_reduce_scatter" : "all_gather_heads";
}

/// What a channel has room for. Equal on all ranks.
struct pool_capacity {
  index_t tokens = 0;
  index_t heads = 0;      ///< of one rank
  index_t row_bytes = 0;  ///< of the widest row (token, head): head_dim elements
  /// Payload bytes per peer up to which `ll` has room: it takes twice that, twice.
  index_t ll_bytes = index_t{1} << 20;
};

/// Which protocol a call takes, by its payload bytes per peer. Equal on all ranks.
struct protocol_table {
  static constexpr int max_steps = 4;

  struct step {
    index_t up_to = INT64_MAX;  ///< bytes per peer, this many included
    protocol which = protocol::push;
    friend constexpr bool operator==(step, step) = default;
  };
  /// Ascending; beyond the last step stays with its protocol.
  struct steps {
    step at[max_steps] = {};

    constexpr protocol pick(index_t bytes) const noexcept {
      for (int i = 0; i < max_steps - 1; ++i) {
        if (bytes <= at[i].up_to) return at[i].which;
      }
      return at[max_steps - 1].which;
    }
    friend constexpr bool operator==(const steps&, const steps&) = default;
  };

  steps reduce_scatter{};
  steps all_gather{};

  /// One protocol for everything.
  static constexpr protocol_table only(protocol which) noexcept {
    protocol_table table;
    for (steps* each : {&table.reduce_scatter, &table.all_gather}) {
      for (step& one : each->at) one.which = which;
    }
    return table;
  }

  constexpr protocol pick(pool_operation operation, index_t bytes) const noexcept {
    return (operation == pool_operation::reduce_scatter ? reduce_scatter : all_gather).pick(bytes);
  }
  friend constexpr bool operator==(const protocol_table&, const protocol_table&) = default;
};

namespace detail {

inline constexpr index_t signal_line = 128;  ///< of its own for each word that a peer polls
inline constexpr index_t ll_line = 16;
inline constexpr index_t ll_data = 8;  ///< bytes of data in a line

/// One operand's rows as they travel. Row i is head i % heads of token i / heads.
struct pool_rows {
  index_t count = 0;
  index_t row_bytes = 0;

  HEADWISE_HD constexpr index_t bytes() const noexcept { return count * row_bytes; }
  /// Units of 16 bytes, in a slot of `push` and `pull`, where rows lie one behind the other.
  HEADWISE_HD constexpr index_t units() const noexcept { return ceil_div(row_bytes, 16); }
  HEADWISE_HD constexpr index_t pitch() const noexcept { return units() * 16; }
  /// In lines of `ll`: the data, and one with the LSE and the signature of the call.
  HEADWISE_HD constexpr index_t lines() const noexcept { return ceil_div(row_bytes, ll_data) + 1; }
};

/// Offsets in a slab, in bytes. A slab begins with signals: the word that poisons a channel, what
/// each peer is about to do, a flag for each slot, chunk and writer. Then two slots of `ll` and two
/// of `push` and `pull`, which never share memory: payload could look like a tag. All strides come
/// from the capacity and none from a call: a slot never moves.
struct slab_layout {
  index_t ranks = 0;
  index_t chunks = 0;  ///< most that a call is cut into
  index_t announcements = 0;
  index_t flags = 0;
  index_t ll = 0;
  index_t ll_region = 0;  ///< of one peer
  index_t payload = 0;
  index_t region = 0;  ///< of one peer
  index_t bytes = 0;

  /// Errors: unsupported (ranks), invalid_argument, capacity_exceeded.
  static constexpr result<slab_layout> make(index_t ranks, const pool_capacity& capacity,
                                            index_t chunks) noexcept {
    const status ranks_ok = require_supported_ranks(ranks);
    if (!ranks_ok.ok()) return ranks_ok;
    const index_t least[] = {capacity.tokens, capacity.heads, capacity.row_bytes};
    const char* const names[] = {"tokens", "heads", "row_bytes"};
    for (int i = 0; i < 3; ++i) {
      if (least[i] >= 1) continue;
      return failure(errc::invalid_argument, "pool_capacity", "must be positive", least[i], 1,
                     names[i]);
    }
    if (capacity.ll_bytes < 0) {
      return failure(errc::invalid_argument, "pool_capacity", "must not be negative",
                     capacity.ll_bytes, 0, "ll_bytes");
    }
    const checked_size rows = checked_size(capacity.tokens) * capacity.heads;
    // Behind the rows stand their LSEs, those of each chunk on lines of their own.
    const checked_size region =
        rows *
        (checked_size(capacity.row_bytes).rounded_up(16) + signal_line).rounded_up(signal_line);
    if (!region.valid()) return require_capacity("slab", region, INT64_MAX);
    const checked_size all = rows * capacity.row_bytes;
    const index_t ll_rows = lesser(all.value(), capacity.ll_bytes) / capacity.row_bytes;
    const pool_rows ll_part{ll_rows, capacity.row_bytes};
    const checked_size ll_region =
        (checked_size(ll_rows) * ll_part.lines() * ll_line).rounded_up(signal_line);

    slab_layout at;
    at.ranks = ranks;
    at.chunks = chunks;
    at.announcements = signal_line;
    const checked_size flags =
        checked_size(at.announcements) + checked_size(signal_line) * 2 * ranks;
    const checked_size ll = flags + checked_size(signal_line) * 2 * ranks * chunks;
    const checked_size payload = ll + ll_region * 2 * ranks;
    const checked_size bytes = (payload + region * 2 * ranks).rounded_up(256);
    if (!bytes.valid()) return require_capacity("slab", bytes, INT64_MAX);
    at.flags = flags.value();
    at.ll = ll.value();
    at.ll_region = ll_region.value();
    at.payload = payload.value();
    at.region = region.value();
    at.bytes = bytes.value();
    return at;
  }

  HEADWISE_HD constexpr index_t announcement_at(index_t slot, index_t writer) const noexcept {
    return announcements + (slot * ranks + writer) * signal_line;
  }
  HEADWISE_HD constexpr index_t flag_at(index_t slot, index_t chunk,
                                        index_t writer) const noexcept {
    return flags + ((slot * chunks + chunk) * ranks + writer) * signal_line;
  }
  HEADWISE_HD constexpr index_t ll_at(index_t slot, index_t peer) const noexcept {
    return ll + (slot * ranks + peer) * ll_region;
  }
  HEADWISE_HD constexpr index_t payload_at(index_t slot, index_t peer) const noexcept {
    return payload + (slot * ranks + peer) * region;
  }

  /// What the rows of a call, one operand behind the other, take of a peer's region.
  static constexpr checked_size needs(protocol which, pool_operation operation,
                                      const pool_rows& first,
                                      const pool_rows& second = {}) noexcept {
    const auto of = [&](const pool_rows& rows) {
      const index_t lses = operation == pool_operation::reduce_scatter ? signal_line : 0;
      return checked_size(rows.count) *
             (which == protocol::ll ? rows.lines() * ll_line : rows.pitch() + lses);
    };
    return of(first) + of(second);
  }
  constexpr index_t room(protocol which) const noexcept {
    return which == protocol::ll ? ll_region : region;
  }
  constexpr bool fits(protocol which, pool_operation operation, const pool_rows& first,
                      const pool_rows& second = {}) const noexcept {
    return needs(which, operation, first, second).value() <= room(which);
  }
};

/// Threads of a block that waits for peers, at most. Two of them fit on a multiprocessor, and all
/// blocks of all channels and ranks of a GPU do: a block that is not resident would be waited for
/// in vain.
inline constexpr unsigned pool_threads = 256;
inline constexpr index_t pool_blocks_per_multiprocessor = 2;

/// Chunks per block that a call is cut into at most: four for each warp that sends.
inline constexpr index_t pool_chunks_per_block = 16;

/// How a call of `push` or `pull` is cut. The same on all ranks: chunk i is flagged and waited for
/// as a whole.
struct pool_chunks {
  index_t rows = 1;  ///< of a chunk, the last one may have fewer
  index_t count = 0;

  /// Bytes that the LSEs of a chunk take. Behind their rows rather than among them, and apart from
  /// those of other chunks: what several warps read of one line of the host's memory they read one
  /// after the other.
  HEADWISE_HD constexpr index_t lse_pitch() const noexcept {
    return round_up(rows * index_t{sizeof(float)}, signal_line);
  }

  /// Small chunks are combined while the next are on their way, and cost a fence each. Up to two
  /// for each warp they are as small as can be, then of four rows, then as many as flags are.
  static constexpr pool_chunks cut(index_t rows, index_t most) noexcept {
    const index_t least = clamp(ceil_div(rows, greater(most / 2, index_t{1})), 1, 4);
    const index_t of_chunk = greater(ceil_div(rows, greater(most, index_t{1})), least);
    return {of_chunk, ceil_div(rows, of_chunk)};
  }
};

/// The epoch after `epoch`. Its low word, the tag of `ll`, is never 0, which is what memory starts
/// with; where it would be, two are left out, so that slots go on taking turns.
HEADWISE_HD constexpr std::uint64_t epoch_after(std::uint64_t epoch) noexcept {
  const std::uint64_t next = epoch + 1;
  return static_cast<std::uint32_t>(next) == 0 ? next + 2 : next;
}

/// Whether an operation wipes the lines of the slot used next. A line that only large batches use
/// keeps its tag, and 2^32 epochs later that tag would pass for new. Two operations in a row, one
/// for each slot, four times in 2^32.
HEADWISE_HD constexpr bool epoch_wipes(std::uint64_t epoch) noexcept {
  const std::uint64_t phase = epoch & ((std::uint64_t{1} << 30) - 1);
  return phase == 2 || phase == 3;
}

/// What failed on a channel, as it is written into the peers' memory; 0 is no failure.
struct pool_failure {
  enum cause : std::uint8_t { none, timed_out, mismatch };

  cause why = none;
  std::uint8_t operation = 0;
  std::uint8_t missing = 0;   ///< the rank that did not come, or did something else
  std::uint8_t reporter = 0;  ///< the rank that saw it first

  HEADWISE_HD constexpr std::uint64_t word(std::uint64_t epoch) const noexcept {
    return std::uint64_t{why} << 56 | std::uint64_t{operation} << 48 |
           std::uint64_t{missing} << 40 | std::uint64_t{reporter} << 32 |
           static_cast<std::uint32_t>(epoch);
  }
  static constexpr pool_failure from(std::uint64_t word) noexcept {
    return {static_cast<cause>(word >> 56), static_cast<std::uint8_t>(word >> 48),
            static_cast<std::uint8_t>(word >> 40), static_cast<std::uint8_t>(word >> 32)};
  }
};

}  // namespace detail

}  // namespace headwise::inline v0
