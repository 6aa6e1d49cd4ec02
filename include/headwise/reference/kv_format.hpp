// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/core/element.hpp>
#include <headwise/plan/paged_kv.hpp>

#include <cstddef>
#include <cstring>
#include <span>

// Writing and reading the records of plan/paged_kv.hpp. All accesses go byte by byte, as records
// promise no alignment.

namespace headwise::inline v0 {

/// How encode() finds the scale of 128 e4m3 numbers from the largest magnitude among them, amax.
enum class kv_scale : std::uint8_t {
  /// 2^ceil(log2(amax / 448)), not below 2^-13. Dividing by it is exact, so that all processors
  /// encode alike.
  power_of_two,
  /// amax / 448 in fp32, not below the smallest normal number.
  exact,
};

constexpr const char* to_string(kv_scale kind) noexcept {
  switch (kind) {
    case kv_scale::power_of_two: return "power_of_two";
    case kv_scale::exact: return "exact";
  }
  return "unknown";
}

namespace reference {

/// The scale for numbers of magnitude up to `amax`. Precondition: amax is finite and not negative.
constexpr float kv_scale_for(float amax, kv_scale kind) noexcept {
  if (kind == kv_scale::exact) return detail::greater(amax / 448.0f, 0x1p-126f);
  // The floor of 1e-4 that the format's producers have, rounded up as everything else is.
  float scale = 0x1p-13f;
  while (amax > 448.0f * scale) scale *= 2.0f;
  return scale;
}

}  // namespace reference

namespace detail {

constexpr std::size_t count_of(index_t count) noexcept { return static_cast<std::size_t>(count); }

template <class T>
T load_bytes(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void store_bytes(std::byte* to, const T& value) noexcept {
  std::memcpy(to, &value, sizeof(T));
}

inline void store_bf16_row(std::byte* to, const float* from, index_t count) noexcept {
  for (index_t i = 0; i < count; ++i) store_bytes(to + 2 * i, from_float<bf16>(from[i]));
}

inline void load_bf16_row(const std::byte* from, double* to, index_t count) noexcept {
  for (index_t i = 0; i < count; ++i) {
    to[i] = static_cast<double>(to_float(load_bytes<bf16>(from + 2 * i)));
  }
}

/// The 256 numbers of e4m3.
struct e4m3_values {
  double number[256] = {};
  constexpr e4m3_values() noexcept {
    for (int code = 0; code < 256; ++code) {
      number[code] = static_cast<double>(e4m3_to_float(static_cast<std::uint8_t>(code)));
    }
  }
};
inline constexpr e4m3_values e4m3_table{};

}  // namespace detail

namespace reference {

/// `[head_dim]` numbers, latent first, into one record. Rounds to nearest even.
template <index_t Latent, index_t Rope>
void encode(
    kv_bf16<Latent, Rope>, std::span<const float, detail::count_of(Latent + Rope)> numbers,
    std::span<std::byte, detail::count_of(kv_bf16<Latent, Rope>::record_bytes)> record) noexcept {
  detail::store_bf16_row(record.data(), numbers.data(), Latent + Rope);
}

/// The same. A NaN stays one and an infinity saturates; neither takes part in finding the scale.
template <index_t Latent, index_t Rope>
void encode(
    kv_fp8_ds_mla<Latent, Rope>, std::span<const float, detail::count_of(Latent + Rope)> numbers,
    std::span<std::byte, detail::count_of(kv_fp8_ds_mla<Latent, Rope>::record_bytes)> record,
    kv_scale kind = kv_scale::power_of_two) noexcept {
  using format = kv_fp8_ds_mla<Latent, Rope>;
  for (index_t group = 0; group < format::scale_count; ++group) {
    const float* from = numbers.data() + group * format::scale_group;
    std::byte* to = record.data() + group * format::scale_group;
    float amax = 0;
    for (index_t i = 0; i < format::scale_group; ++i) {
      const float magnitude = from[i] < 0 ? -from[i] : from[i];
      if (detail::is_finite(magnitude) && magnitude > amax) amax = magnitude;
    }
    const float scale = kv_scale_for(amax, kind);
    for (index_t i = 0; i < format::scale_group; ++i) {
      detail::store_bytes(to + i, from_float<fp8_e4m3>(from[i] / scale));
    }
    detail::store_bytes(record.data() + format::scale_offset + 4 * group, scale);
  }
  detail::store_bf16_row(record.data() + format::rope_offset, numbers.data() + Latent, Rope);
}

/// One record as `[head_dim]` numbers, latent first. Exact.
template <index_t Latent, index_t Rope>
void decode(
    kv_bf16<Latent, Rope>,
    std::span<const std::byte, detail::count_of(kv_bf16<Latent, Rope>::record_bytes)> record,
    std::span<double, detail::count_of(Latent + Rope)> numbers) noexcept {
  detail::load_bf16_row(record.data(), numbers.data(), Latent + Rope);
}

/// The same, and exact too: 4 bits of e4m3 times 24 bits of the scale fit a double.
template <index_t Latent, index_t Rope>
void decode(
    kv_fp8_ds_mla<Latent, Rope>,
    std::span<const std::byte, detail::count_of(kv_fp8_ds_mla<Latent, Rope>::record_bytes)> record,
    std::span<double, detail::count_of(Latent + Rope)> numbers) noexcept {
  using format = kv_fp8_ds_mla<Latent, Rope>;
  for (index_t group = 0; group < format::scale_count; ++group) {
    const double scale = static_cast<double>(
        detail::load_bytes<float>(record.data() + format::scale_offset + 4 * group));
    const index_t first = group * format::scale_group;
    for (index_t i = first; i < first + format::scale_group; ++i) {
      const auto code = std::to_integer<std::uint8_t>(record.data()[i]);
      numbers.data()[i] = detail::e4m3_table.number[code] * scale;
    }
  }
  detail::load_bf16_row(record.data() + format::rope_offset, numbers.data() + Latent, Rope);
}

}  // namespace reference

}  // namespace headwise::inline v0
