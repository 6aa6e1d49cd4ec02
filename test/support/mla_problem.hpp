// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

// Decode steps to test with: records written bit by bit, paged caches full of poison, and the
// answer in long double. Shares no arithmetic with the library, only its types.

#include <headwise/plan/mla_call.hpp>
#include <headwise/plan/paged_kv.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace mla_test {

using headwise::index_t;

inline std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

struct random_source {
  explicit random_source(std::uint64_t seed) : engine(seed) {}

  /// A whole number from low to high, both included.
  index_t in(index_t low, index_t high) {
    return low + static_cast<index_t>(engine() % (static_cast<std::uint64_t>(high - low) + 1));
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[in(0, static_cast<index_t>(values.size()) - 1)];
  }

  std::mt19937_64 engine;
};

/// The bits of a number that bf16 holds exactly.
inline std::uint16_t bf16_bits(float number) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

inline double e4m3_number(unsigned code) {
  const int exponent = static_cast<int>(code >> 3) & 15;
  const int mantissa = static_cast<int>(code & 7);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// A random number with 7 significant bits, and so exact in every format.
inline float some_number(random_source& random) {
  return static_cast<float>(random.in(-127, 127)) / 64.0f;
}

/// A record's shape as run-time values, so that most of this file is compiled once.
struct record_format {
  bool fp8 = false;
  index_t latent = 0;
  index_t rope = 0;
  index_t head_dim = 0;
  index_t record_bytes = 0;

  template <index_t Latent, index_t Rope>
  static record_format of(headwise::kv_bf16<Latent, Rope>) {
    return {false, Latent, Rope, Latent + Rope, 2 * (Latent + Rope)};
  }
  template <index_t Latent, index_t Rope>
  static record_format of(headwise::kv_fp8_ds_mla<Latent, Rope>) {
    return {true, Latent, Rope, Latent + Rope, Latent + 4 * (Latent / 128) + 2 * Rope};
  }
};

inline void write_bf16_row(std::byte* record, double* numbers, index_t count,
                           random_source& random) {
  for (index_t i = 0; i < count; ++i) {
    const float number = some_number(random);
    const std::uint16_t bits = bf16_bits(number);
    std::memcpy(record + 2 * i, &bits, sizeof bits);
    numbers[i] = static_cast<double>(number);
  }
}

/// Fills one record and says which numbers it stands for. In fp8 any e4m3 number but NaN, and
/// scales of 24 significant bits, such as a producer has that does not round them to powers of two.
inline void write_record(const record_format& format, std::byte* record, double* numbers,
                         random_source& random) {
  if (!format.fp8) return write_bf16_row(record, numbers, format.head_dim, random);
  for (index_t group = 0; group < format.latent / 128; ++group) {
    const float scale = std::ldexp(static_cast<float>(random.in(1 << 23, (1 << 24) - 1)), -23 - 9);
    std::memcpy(record + format.latent + 4 * group, &scale, sizeof scale);
    for (index_t i = 128 * group; i < 128 * (group + 1); ++i) {
      const auto code =
          static_cast<unsigned>(random.in(0, 126)) | (random.in(0, 1) == 0 ? 0u : 0x80u);
      record[i] = static_cast<std::byte>(code);
      numbers[i] = e4m3_number(code) * static_cast<double>(scale);
    }
  }
  write_bf16_row(record + format.latent + 4 * (format.latent / 128), numbers + format.latent,
                 format.rope, random);
}

/// One head's answer for one query row.
struct answer {
  std::vector<double> output;
  double lse = -std::numeric_limits<double>::infinity();
  std::vector<double> magnitude;  ///< sum of weight * |value|, which errors are relative to
};

/// Puts shards' answers together, by the formula of the algebra.
inline answer merge(const std::vector<answer>& parts) {
  answer all;
  all.output.assign(parts.front().output.size(), 0);
  double highest = all.lse;
  for (const answer& part : parts) highest = std::max(highest, part.lse);
  if (std::isinf(highest)) return all;
  long double total = 0;
  for (const answer& part : parts) {
    if (!std::isinf(part.lse)) total += std::exp(static_cast<long double>(part.lse - highest));
  }
  for (std::size_t d = 0; d < all.output.size(); ++d) {
    long double sum = 0;
    for (const answer& part : parts) {
      if (std::isinf(part.lse)) continue;
      sum += std::exp(static_cast<long double>(part.lse - highest)) *
             static_cast<long double>(part.output[d]);
    }
    all.output[d] = static_cast<double>(sum / total);
  }
  all.lse = highest + static_cast<double>(std::log(total));
  return all;
}

/// What one rank holds: its tokens, one behind the other, in pages that lie in any order.
struct paged_memory {
  std::vector<std::byte> memory;
  index_t page_count = 0;
  index_t page_size = 0;
  index_t page_stride = 0;
  index_t row_stride = 0;
  std::vector<std::int32_t> table;  ///< [sequence, page], rows table_stride apart
  index_t table_width = 0;
  index_t table_stride = 0;

  auto block_table() const {
    using namespace headwise;
    const index_t sequences = static_cast<index_t>(table.size()) / table_stride;
    return view(table.data(), layout(dim<axis::sequence>(sequences, table_stride),
                                     dim<axis::page>(table_width, 1)));
  }
};

/// The same with its record's type.
template <class Record>
struct paged_cache : paged_memory {
  headwise::paged_kv<Record> kv;

  explicit paged_cache(paged_memory pages) : paged_memory(std::move(pages)) {
    kv = {memory.data(), page_count, page_size, page_stride, row_stride};
  }
  paged_cache(const paged_cache&) = delete;
  paged_cache& operator=(const paged_cache&) = delete;
};

/// A batch of sequences of the lengths given, with random keys and queries.
struct any_problem {
  record_format format;
  index_t heads;
  index_t query_tokens;
  double scale = 0.02;
  std::vector<std::int32_t> lengths;
  std::vector<std::vector<std::byte>> records;  ///< of each sequence, packed
  std::vector<std::vector<double>> keys;        ///< of each sequence, [position, head_dim]
  std::vector<std::uint16_t> query;             ///< bf16, [token, head, head_dim]
  std::vector<double> query_numbers;

  any_problem(const record_format& record, std::vector<std::int32_t> all_lengths, index_t q,
              index_t h, std::uint64_t seed)
      : format(record), heads(h), query_tokens(q), lengths(std::move(all_lengths)) {
    random_source random(seed);
    for (const std::int32_t length : lengths) {
      std::vector<std::byte> rows(at(length * format.record_bytes));
      std::vector<double> numbers(at(length * format.head_dim));
      for (index_t i = 0; i < length; ++i) {
        write_record(format, rows.data() + i * format.record_bytes,
                     numbers.data() + i * format.head_dim, random);
      }
      records.push_back(std::move(rows));
      keys.push_back(std::move(numbers));
    }
    for (index_t i = 0; i < tokens() * heads * format.head_dim; ++i) {
      const float number = some_number(random);
      query.push_back(bf16_bits(number));
      query_numbers.push_back(static_cast<double>(number));
    }
  }

  index_t sequences() const { return static_cast<index_t>(lengths.size()); }
  index_t tokens() const { return sequences() * query_tokens; }

  auto query_view() const {
    using namespace headwise;
    return view(reinterpret_cast<const bf16*>(query.data()),
                packed(extent<axis::token>(tokens()), extent<axis::head>(heads),
                       extent<axis::head_dim>(format.head_dim)));
  }
  auto lengths_view() const {
    using namespace headwise;
    return view(lengths.data(), packed(extent<axis::sequence>(sequences())));
  }

  /// How many positions of its sequence a query token sees.
  index_t visible(index_t token) const {
    const index_t length = lengths[at(token / query_tokens)];
    return std::max(length - query_tokens + 1 + token % query_tokens, index_t{0});
  }

  /// Attention of one row to the positions given, in the order given.
  answer attend(index_t token, index_t head, const std::vector<index_t>& positions) const {
    const std::vector<double>& all = keys[at(token / query_tokens)];
    const double* q = query_numbers.data() + (token * heads + head) * format.head_dim;
    std::vector<long double> logits;
    long double highest = -std::numeric_limits<long double>::infinity();
    for (const index_t position : positions) {
      const double* key = all.data() + position * format.head_dim;
      long double product = 0;
      for (index_t d = 0; d < format.head_dim; ++d) {
        product += static_cast<long double>(q[d]) * static_cast<long double>(key[d]);
      }
      logits.push_back(product * static_cast<long double>(scale));
      highest = std::max(highest, logits.back());
    }
    answer result;
    result.output.assign(at(format.latent), 0);
    result.magnitude.assign(at(format.latent), 0);
    if (positions.empty()) return result;
    long double total = 0;
    std::vector<long double> sums(at(format.latent), 0);
    std::vector<long double> magnitudes(at(format.latent), 0);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const long double weight = std::exp(logits[i] - highest);
      total += weight;
      for (index_t d = 0; d < format.latent; ++d) {
        const auto value = static_cast<long double>(all[at(positions[i] * format.head_dim + d)]);
        sums[at(d)] += weight * value;
        magnitudes[at(d)] += weight * std::fabs(value);
      }
    }
    for (std::size_t d = 0; d < sums.size(); ++d) {
      result.output[d] = static_cast<double>(sums[d] / total);
      result.magnitude[d] = static_cast<double>(magnitudes[d] / total);
    }
    result.lse = static_cast<double>(highest + std::log(total));
    return result;
  }

  answer attend_all(index_t token, index_t head) const {
    std::vector<index_t> positions;
    for (index_t i = 0; i < visible(token); ++i) positions.push_back(i);
    return attend(token, head, positions);
  }

  /// The positions of a sequence that a rank holds, dealt out in blocks like cards.
  std::vector<index_t> held(index_t sequence, headwise::kv_shard shard) const {
    std::vector<index_t> mine;
    index_t rank = 0;
    index_t in_block = 0;
    for (index_t i = 0; i < lengths[at(sequence)]; ++i) {
      if (rank == shard.rank) mine.push_back(i);
      if (++in_block == shard.split.interleave) {
        in_block = 0;
        rank = rank + 1 == shard.split.ranks ? 0 : rank + 1;
      }
    }
    return mine;
  }

  answer attend_shard(index_t token, index_t head, headwise::kv_shard shard) const {
    std::vector<index_t> positions = held(token / query_tokens, shard);
    while (!positions.empty() && positions.back() >= visible(token)) positions.pop_back();
    return attend(token, head, positions);
  }

  /// The shard's cache. All that is not a token's record is 0xff: NaN as bf16, e4m3 and fp32 alike.
  /// Rows and pages are `gap` bytes apart, the table's rows two entries, and entries that name no
  /// page would lead far outside.
  paged_memory pages(headwise::kv_shard shard, index_t page_size, index_t gap,
                     std::uint64_t seed) const {
    random_source random(seed);
    paged_memory result;
    std::vector<std::vector<index_t>> mine;
    index_t used_pages = 0;
    for (index_t s = 0; s < sequences(); ++s) {
      mine.push_back(held(s, shard));
      const index_t pages = (static_cast<index_t>(mine.back().size()) + page_size - 1) / page_size;
      used_pages += pages;
      result.table_width = std::max(result.table_width, pages);
    }
    result.table_width += random.in(0, 1);
    result.table_stride = result.table_width + 2;
    const index_t page_count = used_pages + 2;
    std::vector<std::int32_t> order;
    for (index_t page = 0; page < page_count; ++page) {
      order.push_back(static_cast<std::int32_t>(page));
    }
    std::shuffle(order.begin(), order.end(), random.engine);

    const index_t row_stride = format.record_bytes + gap;
    const index_t page_stride = page_size * row_stride + gap;
    result.memory.assign(at(page_count * page_stride), std::byte{0xff});
    result.page_count = page_count;
    result.page_size = page_size;
    result.page_stride = page_stride;
    result.row_stride = row_stride;
    for (index_t i = 0; i < sequences() * result.table_stride; ++i) {
      result.table.push_back(random.in(0, 1) == 0 ? -1 : 2147480000);
    }
    std::size_t next = 0;
    for (index_t s = 0; s < sequences(); ++s) {
      for (std::size_t i = 0; i < mine[at(s)].size(); ++i) {
        const auto local = static_cast<index_t>(i);
        std::int32_t& page = result.table[at(s * result.table_stride + local / page_size)];
        if (local % page_size == 0) page = order[next++];
        std::memcpy(result.memory.data() + page * page_stride + local % page_size * row_stride,
                    records[at(s)].data() + mine[at(s)][i] * format.record_bytes,
                    at(format.record_bytes));
      }
    }
    return result;
  }
};

template <class Record>
struct problem : any_problem {
  problem(std::vector<std::int32_t> all_lengths, index_t q, index_t h, std::uint64_t seed)
      : any_problem(record_format::of(Record{}), std::move(all_lengths), q, h, seed) {}

  paged_cache<Record> cache(headwise::kv_shard shard, index_t page_size, index_t gap,
                            std::uint64_t seed) const {
    return paged_cache<Record>(pages(shard, page_size, gap, seed));
  }
};

/// Output and LSE of a call, full of NaN before it.
template <class Element, headwise::log_base Base = headwise::log_base::e>
struct any_outputs {
  index_t tokens;
  index_t heads;
  index_t width;
  std::vector<Element> output;
  std::vector<headwise::lse<Base>> lses;

  any_outputs(index_t t, index_t h, index_t w) : tokens(t), heads(h), width(w) {
    Element poison;
    std::memset(&poison, 0xff, sizeof poison);
    output.assign(at(t * h * w), poison);
    headwise::lse<Base> lse_poison;
    std::memset(&lse_poison, 0xff, sizeof lse_poison);
    lses.assign(at(t * h), lse_poison);
  }

  auto output_view() {
    using namespace headwise;
    return view(output.data(), packed(extent<axis::token>(tokens), extent<axis::head>(heads),
                                      extent<axis::head_dim>(width)));
  }
  auto lse_view() {
    using namespace headwise;
    return view(lses.data(), packed(extent<axis::token>(tokens), extent<axis::head>(heads)));
  }
  const Element* row(index_t token, index_t head) const {
    return output.data() + (token * heads + head) * width;
  }
  float lse_of(index_t token, index_t head) const { return lses[at(token * heads + head)].value; }

  bool untouched() const { return same_bits(any_outputs(tokens, heads, width)); }

  bool same_bits(const any_outputs& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
    };
    return same(output, other.output) && same(lses, other.lses);
  }
};

template <class Element, index_t Width, headwise::log_base Base = headwise::log_base::e>
struct outputs : any_outputs<Element, Base> {
  outputs(index_t t, index_t h) : any_outputs<Element, Base>(t, h, Width) {}
};

}  // namespace mla_test
