// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>
#include <headwise/core/status.hpp>
#include <headwise/view/axis.hpp>

// What a group, a message, a workspace or a kernel can hold. Warm-up and dispatch ask the same
// functions, so that a call which was refused at start-up is refused (and falls back) in the same
// way later.

namespace headwise::inline v0 {

/// The one question whether a group of this size can run; every size from 1 to 16, odd ones too.
HEADWISE_HD constexpr bool supported_ranks(index_t ranks) noexcept {
  return ranks >= 1 && ranks <= max_ranks;
}

/// supported_ranks() as a status. Errors: unsupported.
constexpr status require_supported_ranks(index_t ranks,
                                         source_line where = source_line::current()) noexcept {
  if (supported_ranks(ranks)) return {};
  return failure(errc::unsupported, "ranks", "a group has from 1 to 16 ranks", ranks, max_ranks, "",
                 where);
}

/// A count of bytes, rows or elements that is never silently wrong: a product or a sum that leaves
/// 64 bits, or a negative operand, makes it invalid, and it stays so.
class checked_size {
 public:
  constexpr checked_size() noexcept = default;
  HEADWISE_HD constexpr checked_size(index_t value) noexcept  // NOLINT: implicit by design
      : value_(value < 0 ? 0 : value), valid_(value >= 0) {}

  HEADWISE_HD constexpr bool valid() const noexcept { return valid_; }

  /// The exact count, or the largest index_t where it is not valid: more than anything holds.
  HEADWISE_HD constexpr index_t value() const noexcept { return valid_ ? value_ : largest; }

  HEADWISE_HD friend constexpr checked_size operator*(checked_size a, checked_size b) noexcept {
    // Invalid times zero is invalid too: a size that was never known is not known to be nothing.
    if (!a.valid_ || !b.valid_) return invalid();
    if (b.value_ != 0 && a.value_ > largest / b.value_) return invalid();
    return {a.value_ * b.value_};
  }

  HEADWISE_HD friend constexpr checked_size operator+(checked_size a, checked_size b) noexcept {
    if (!a.valid_ || !b.valid_ || a.value_ > largest - b.value_) return invalid();
    return {a.value_ + b.value_};
  }

  /// The next multiple of `to`. Precondition: to >= 1.
  HEADWISE_HD constexpr checked_size rounded_up(index_t to) const noexcept {
    HEADWISE_ASSERT(to >= 1);
    const index_t rest = value_ % to;
    return rest == 0 ? *this : *this + checked_size(to - rest);
  }

 private:
  static constexpr index_t largest = INT64_MAX;

  HEADWISE_HD static constexpr checked_size invalid() noexcept { return {index_t{-1}}; }

  index_t value_ = 0;
  bool valid_ = true;
};

/// Whether `needed` fits into `available`; the status names the operand and carries both.
/// Errors: capacity_exceeded (got = needed, expected = available).
constexpr status require_capacity(const char* operand, checked_size needed, index_t available,
                                  source_line where = source_line::current()) noexcept {
  if (!needed.valid()) {
    return failure(errc::capacity_exceeded, operand,
                   "the size is negative or does not fit in 64 bits", needed.value(), available, "",
                   where);
  }
  if (needed.value() <= available) return {};
  return failure(errc::capacity_exceeded, operand, "more is needed (got) than available (expected)",
                 needed.value(), available, "", where);
}

namespace detail {

/// Kernels number rows, and the columns of one, in 31 bits.
inline constexpr index_t most_rows = INT32_MAX;

/// Whether the rows (token, head) of one rank, and their columns, can be numbered. Errors:
/// unsupported.
constexpr status check_rows(const char* name, index_t tokens, index_t heads,
                            index_t head_dim) noexcept {
  if (heads > 0 && (checked_size(tokens) * heads).value() > most_rows) {
    return failure(errc::unsupported, name, "more rows (got) than a kernel numbers (expected)",
                   (checked_size(tokens) * heads).value(), most_rows);
  }
  if (head_dim <= most_rows) return {};
  return failure(errc::unsupported, name, "more columns (got) than a kernel numbers (expected)",
                 head_dim, most_rows, axis::head_dim::name);
}

}  // namespace detail

/// Rows of one call: padded requests times query tokens each, the `B` of `[B, H, D]`.
///
/// A type of its own, because two other numbers look like it and must not decide anything: the
/// number of requests (a request of a multi-token decode has several rows), and the live rows of
/// one rank (they differ between ranks, and then so would the ways that the ranks take).
struct query_rows {
  index_t count = 0;

  /// Errors: invalid_argument (a negative count), capacity_exceeded (the product leaves 64 bits).
  static constexpr result<query_rows> make(index_t requests, index_t query_tokens,
                                           source_line where = source_line::current()) noexcept {
    if (requests < 0) {
      return failure(errc::invalid_argument, "requests", "must not be negative", requests, 0, "",
                     where);
    }
    if (query_tokens < 1) {
      return failure(errc::invalid_argument, "query_tokens", "a request has at least one",
                     query_tokens, 1, "", where);
    }
    const checked_size rows = checked_size(requests) * checked_size(query_tokens);
    if (!rows.valid()) return require_capacity("query_rows", rows, INT64_MAX, where);
    return query_rows{rows.value()};
  }

  friend constexpr bool operator==(query_rows, query_rows) = default;
};

/// How many rows a pool, a workspace or a fast path takes. Equal on all ranks.
struct row_capacity {
  index_t rows = 0;

  /// Ranks that ask about the same call get the same answer, as it depends on nothing local.
  HEADWISE_HD constexpr bool accepts(query_rows call) const noexcept { return call.count <= rows; }

  /// accepts() as a status. Errors: capacity_exceeded.
  constexpr status require(const char* operand, query_rows call,
                           source_line where = source_line::current()) const noexcept {
    return require_capacity(operand, call.count, rows, where);
  }
};

/// A buffer cut into equal stages, each of which begins aligned when the buffer does. (Aligning the
/// whole and then halving it does not do: half of a multiple of 16 may be one of 8 only.)
struct staging {
  index_t stages = 1;
  index_t stage_bytes = 0;

  /// At least `bytes` in `stages` stages. Errors: invalid_argument, capacity_exceeded.
  static constexpr result<staging> make(index_t bytes, index_t stages, index_t alignment = 16,
                                        source_line where = source_line::current()) noexcept {
    if (bytes < 0) {
      return failure(errc::invalid_argument, "bytes", "must not be negative", bytes, 0, "", where);
    }
    if (stages < 1) {
      return failure(errc::invalid_argument, "stages", "there is at least one", stages, 1, "",
                     where);
    }
    if (alignment < 1 || (alignment & (alignment - 1)) != 0) {
      return failure(errc::invalid_argument, "alignment", "must be a power of two", alignment, 16,
                     "", where);
    }
    const index_t share = bytes / stages + (bytes % stages != 0 ? 1 : 0);
    const checked_size stage = checked_size(share).rounded_up(alignment);
    const checked_size total = stage * checked_size(stages);
    if (!total.valid()) return require_capacity("staging", total, INT64_MAX, where);
    return staging{stages, stage.value()};
  }

  HEADWISE_HD constexpr index_t bytes() const noexcept { return stages * stage_bytes; }

  /// Where a stage begins, in bytes. Precondition: 0 <= stage < stages.
  HEADWISE_HD constexpr index_t offset(index_t stage) const noexcept {
    HEADWISE_ASSERT(stage >= 0 && stage < stages);
    return stage * stage_bytes;
  }

  friend constexpr bool operator==(staging, staging) = default;
};

}  // namespace headwise::inline v0
