// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// Numbers for queries and keys, made from their place alone, so that each rank can make its own;
// and memory in which everything that is not used is a NaN.

#include <headwise/plan/mla_call.hpp>
#include <headwise/reference/kv_format.hpp>

#include "coverage.hpp"
#include "setting.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace demo {

using namespace headwise;

/// 0xff in each byte is a NaN in every element type, the scales of fp8 records included.
inline constexpr std::byte poison{0xff};
/// What unused entries of a block table hold: a page that no cache has.
inline constexpr std::int32_t no_page = 2147480000;

template <class T>
bool is_poison(const T* first, index_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(first);
  return std::all_of(bytes, bytes + count * index_t{sizeof(T)},
                     [](std::byte b) { return b == poison; });
}

template <class T>
void make_poison(T* first, index_t count) {
  std::memset(static_cast<void*>(first), 0xff, static_cast<std::size_t>(count) * sizeof(T));
}
template <class T>
bool same_bits(const T* a, const T* b, index_t count) {
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(T)) == 0;
}

/// `count` elements between two guards, all poison; 16-byte aligned.
template <class T>
class poisoned {
 public:
  explicit poisoned(index_t count = 0)
      : count_(count),
        bytes_(static_cast<std::size_t>(2 * guard + count * index_t{sizeof(T)}), poison) {}

  T* data() { return reinterpret_cast<T*>(bytes_.data() + guard); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + guard); }
  index_t size() const { return count_; }
  T& operator[](index_t i) { return data()[i]; }
  const T& operator[](index_t i) const { return data()[i]; }
  std::span<T> span() { return {data(), static_cast<std::size_t>(count_)}; }
  std::span<std::byte> with_guards() { return bytes_; }

  bool guards_intact() const {
    return is_poison(bytes_.data(), guard) &&
           is_poison(bytes_.data() + bytes_.size() - guard, guard);
  }

 private:
  static constexpr index_t guard = 256;
  index_t count_;
  std::vector<std::byte> bytes_;
};

/// A hash of a place; the first word says what lies there.
enum class stream : std::uint64_t { query, key, loudness, pages, candidates };
constexpr std::uint64_t hash_of(std::uint64_t seed, stream what, index_t a, index_t b, index_t c) {
  std::uint64_t h = mix(seed + static_cast<std::uint64_t>(what));
  for (const index_t part : {a, b, c}) h = mix(h ^ static_cast<std::uint64_t>(part));
  return h;
}

/// Uniform in [-1, 1), a multiple of 2^-15: exact in fp32.
constexpr float number(std::uint64_t hash, int lane) {
  const auto bits = static_cast<std::uint16_t>(hash >> (16 * lane));
  return static_cast<float>(static_cast<std::int32_t>(bits) - 32768) * 0x1p-15f;
}

/// The query of a row for a head of the model; dummy heads have none.
template <class Row>
void fill_query(const setting& how, index_t row, index_t head, const Row& query) {
  const float scale = how.heads().is_dummy(head) ? 0.0f : 4.0f;
  for (index_t d = 0; d < head_dim; ++d) {
    const std::uint64_t hash = hash_of(how.seed, stream::query, row, head, d / 4);
    query(d) = from_float<bf16>(scale * number(hash, static_cast<int>(d % 4)));
  }
}

/// The key of a token, encoded into its record. One in 32 is loud, so that ranks differ in weight.
template <class Record>
void fill_record(const setting& how, index_t sequence, index_t token, std::byte* record) {
  const bool loud = hash_of(how.seed, stream::loudness, sequence, token, 0) % 32 == 0;
  float numbers[head_dim];
  for (index_t d = 0; d < head_dim; d += 4) {
    const std::uint64_t hash = hash_of(how.seed, stream::key, sequence, token, d);
    for (int lane = 0; lane < 4; ++lane) {
      numbers[d + lane] = (loud ? 3.0f : 1.0f) * number(hash, lane);
    }
  }
  reference::encode(Record{}, std::span<const float, head_dim>(numbers),
                    std::span<std::byte, Record::record_bytes>(
                        record, static_cast<std::size_t>(Record::record_bytes)));
}

/// One rank's share of all sequences: pages in no particular order, some of them never used, gaps
/// between pages, and a block table that is wider than it needs to be.
template <class Record>
struct kv_cache {
  kv_shard shard;
  poisoned<std::byte> memory;
  paged_kv<Record> pages;
  index_t table_width = 0;
  std::vector<std::int32_t> table;

  kv_cache(const setting& how, const kv_shard& whose) : shard(whose) {
    index_t used = 0;
    for (const index_t length : how.lengths) {
      used += shard.pages(length, how.page);
      table_width = std::max(table_width, shard.pages(length, how.page));
    }
    table_width += 2;
    const index_t page_count = used + used / 8 + 2;
    const index_t page_stride = how.page * Record::record_bytes + 192;
    memory = poisoned<std::byte>(page_count * page_stride);
    pages = {memory.data(), page_count, how.page, page_stride, Record::record_bytes};

    std::vector<std::int32_t> ids(static_cast<std::size_t>(page_count));
    std::iota(ids.begin(), ids.end(), 0);
    for (std::size_t i = ids.size(); i > 1; --i) {
      const auto draw = hash_of(how.seed, stream::pages, shard.rank, static_cast<index_t>(i), 0);
      std::swap(ids[i - 1], ids[draw % i]);
    }
    table.assign(how.lengths.size() * static_cast<std::size_t>(table_width), no_page);
    auto next = ids.begin();
    for (index_t s = 0; s < static_cast<index_t>(how.lengths.size()); ++s) {
      const index_t length = how.lengths[static_cast<std::size_t>(s)];
      for (index_t p = 0; p < shard.pages(length, how.page); ++p) {
        table[static_cast<std::size_t>(s * table_width + p)] = *next++;
      }
      for (index_t local = 0; local < shard.local_length(length); ++local) {
        const page_position at = locate(local, how.page);
        const index_t page = table[static_cast<std::size_t>(s * table_width + at.page)];
        fill_record<Record>(how, s, shard.global(local),
                            memory.data() + pages.offset(page, at.slot));
      }
    }
  }

  auto block_table() const {
    const auto sequences = static_cast<index_t>(table.size()) / table_width;
    return view(table.data(),
                packed(extent<axis::sequence>(sequences), extent<axis::page>(table_width)));
  }
};

/// f(cache) with the share of one rank, in the format that the setting names.
template <class F>
auto with_cache(const setting& how, const kv_shard& shard, const F& f) {
  if (how.cache == cache_kind::bf16) return f(kv_cache<kv_bf16<latent, rope>>(how, shard));
  return f(kv_cache<kv_fp8_ds_mla<latent, rope>>(how, shard));
}

/// What an indexer chose for each query row: positions in the whole sequence, [token, key], in no
/// order, with holes (-1) among them. Every other row leaves out all tokens of one rank.
inline std::vector<std::int32_t> choose_candidates(const setting& how) {
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(how.rows() * top_k), -1);
  for (index_t row = 0; row < how.rows(); ++row) {
    const index_t length = how.lengths[static_cast<std::size_t>(row / how.query_tokens)];
    const index_t sees = global_causal_bound(length, how.query_tokens, row % how.query_tokens);
    for (index_t i = 0; i < top_k; ++i) {
      const std::uint64_t hash = hash_of(how.seed, stream::candidates, row, i, 0);
      const index_t position = sees > top_k ? i * sees / top_k : i;
      const bool left_out =
          row % 2 == 1 && how.split().owner(position) == (row / 2) % how.shape.dcp;
      if (position >= sees || left_out || hash % 8 == 0) continue;
      // 101 and 256 have no common factor: a permutation.
      chosen[static_cast<std::size_t>(row * top_k + i * 101 % top_k)] =
          static_cast<std::int32_t>(position);
    }
  }
  return chosen;
}

}  // namespace demo
