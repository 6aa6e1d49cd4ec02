// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>
#include <headwise/core/memory_space.hpp>
#include <headwise/core/status.hpp>
#include <headwise/plan/capacity.hpp>
#include <headwise/plan/kv_shard.hpp>

#include <concepts>
#include <cstddef>

// What a token's key looks like in a paged MLA cache, and where it lies. The value of a token is
// the latent part of its key: there is one record for both, and so one set of scales.

namespace headwise::inline v0 {

/// A row of bf16 numbers: `latent` of the compressed key, then `rope` rotated ones.
template <index_t Latent, index_t Rope>
struct kv_bf16 {
  static_assert(Latent >= 1 && Rope >= 0, "headwise: kv_bf16: a record has a latent part");
  static constexpr const char* name = "bf16";
  static constexpr index_t latent = Latent;
  static constexpr index_t rope = Rope;
  static constexpr index_t head_dim = Latent + Rope;
  static constexpr index_t record_bytes = 2 * head_dim;
};

/// The `fp8_ds_mla` record of vLLM, FlashMLA (V3.2) and b12x. For 512 + 64, 656 bytes:
///
///     [0, 512)    latent, e4m3
///     [512, 528)  four fp32 scales, one per 128 latent numbers; number = e4m3 * scale
///     [528, 656)  rope, bf16
template <index_t Latent, index_t Rope>
struct kv_fp8_ds_mla {
  static constexpr index_t scale_group = 128;
  static_assert(Latent >= 1 && Latent % scale_group == 0 && Rope >= 0,
                "headwise: kv_fp8_ds_mla: the latent part is a multiple of 128, as each scale "
                "belongs to 128 numbers");
  static constexpr const char* name = "fp8_ds_mla";
  static constexpr index_t latent = Latent;
  static constexpr index_t rope = Rope;
  static constexpr index_t head_dim = Latent + Rope;
  static constexpr index_t scale_count = Latent / scale_group;
  static constexpr index_t scale_offset = Latent;                         ///< bytes
  static constexpr index_t rope_offset = scale_offset + 4 * scale_count;  ///< bytes
  static constexpr index_t record_bytes = rope_offset + 2 * Rope;
};

template <class Record>
concept kv_record = requires {
  { Record::latent } -> std::convertible_to<index_t>;
  { Record::rope } -> std::convertible_to<index_t>;
  { Record::head_dim } -> std::convertible_to<index_t>;
  { Record::record_bytes } -> std::convertible_to<index_t>;
};

/// Pages of records in somebody else's memory. Strides are in bytes and are what the cache says:
/// a page may be followed by other tensors, and rows may be padded. Nothing is assumed about the
/// alignment of a record (656 is a multiple of 16, of 64 it is not).
///
/// A slot is a row's number over the whole pool, page * page_size + row, with no regard to strides.
template <kv_record Record, memory_space Space = memory_space::host>
struct paged_kv {
  using record_type = Record;
  static constexpr memory_space space = Space;

  const std::byte* data = nullptr;
  index_t page_count = 0;
  index_t page_size = 1;                      ///< records per page; any number
  index_t page_stride = 0;                    ///< bytes
  index_t row_stride = Record::record_bytes;  ///< bytes

  /// Pages without gaps.
  HEADWISE_HD static constexpr paged_kv packed(const std::byte* data, index_t page_count,
                                               index_t page_size) noexcept {
    return {data, page_count, page_size, page_size * Record::record_bytes, Record::record_bytes};
  }

  HEADWISE_HD constexpr index_t slot_count() const noexcept { return page_count * page_size; }

  /// Bytes from `data` to a record. Precondition: 0 <= page < page_count, 0 <= row < page_size.
  HEADWISE_HD constexpr index_t offset(index_t page, index_t row) const noexcept {
    HEADWISE_ASSERT(page < page_count && row < page_size);
    return page_offset(page, page_stride, row, row_stride);
  }

  HEADWISE_HD constexpr const std::byte* record(index_t page, index_t row) const noexcept {
    return data + offset(page, row);
  }

  /// The record of a slot. Precondition: 0 <= slot < slot_count().
  HEADWISE_HD constexpr const std::byte* record(index_t slot) const noexcept {
    const page_position at = locate(slot, page_size);
    return record(at.page, at.slot);
  }
};

/// Refuses what no cache may be. Errors: invalid_argument, stride_mismatch (a stride below the size
/// of a record, such as one counted in elements), capacity_exceeded (offsets beyond 64 bits).
template <kv_record Record, memory_space Space>
constexpr status validate(const char* operand, const paged_kv<Record, Space>& kv,
                          source_line where = source_line::current()) noexcept {
  if (kv.page_count < 0) {
    return failure(errc::invalid_argument, operand, "a number of pages is not negative",
                   kv.page_count, 0, "page", where);
  }
  if (kv.page_size < 1) {
    return failure(errc::invalid_argument, operand, "a page has at least one row", kv.page_size, 1,
                   "row", where);
  }
  if (kv.page_stride < (kv.page_count > 1 ? Record::record_bytes : 0)) {
    return failure(errc::stride_mismatch, operand,
                   "the page stride, in bytes, is below the size of a record (expected)",
                   kv.page_stride, Record::record_bytes, "page", where);
  }
  if (kv.row_stride < (kv.page_size > 1 ? Record::record_bytes : 0)) {
    return failure(errc::stride_mismatch, operand,
                   "the row stride, in bytes, is below the size of a record (expected)",
                   kv.row_stride, Record::record_bytes, "row", where);
  }
  if (kv.page_count == 0) return {};
  if (kv.data == nullptr) {
    return failure(errc::invalid_argument, operand, "a cache with pages has a null pointer",
                   kv.page_count, 0, "page", where);
  }
  const checked_size bytes = checked_size(kv.page_count) * checked_size(kv.page_stride) +
                             checked_size(kv.page_size) * checked_size(kv.row_stride);
  const checked_size slots = checked_size(kv.page_count) * checked_size(kv.page_size);
  if (!bytes.valid() || !slots.valid()) {
    return failure(errc::capacity_exceeded, operand, "offsets do not fit in 64 bits", kv.page_count,
                   0, "page", where);
  }
  return {};
}

}  // namespace headwise::inline v0
