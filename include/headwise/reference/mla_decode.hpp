// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/plan/mla_call.hpp>
#include <headwise/reference/kv_format.hpp>
#include <headwise/view/slice.hpp>

#include <new>

// Decode attention of absorbed MLA in float64, on the host. Every head of a query row looks at the
// same keys; the value of a key is its latent part:
//
//     logit_i = softmax_scale * sum over head_dim of query * key_i
//     output  = sum_i exp(logit_i) * latent_i / sum_i exp(logit_i)
//     lse     = log(sum_i exp(logit_i))
//
// The bits of a result depend on that row's query and on the sequence of its keys, and on nothing
// else: not on the batch, the other heads, pages, holes in a slot list, the compiler, its -O,
// -march or -ffp-contract (but -ffast-math is not for this file). Two things see to it:
//
//  - Every sum takes its terms in one order, by column and by key. The loops run over independent
//    sums, so that a compiler can use vector registers without touching that order.
//  - Where a product meets a sum, either the product is exact, so that fusing the two changes
//    nothing, or the fma is written out. A query has up to 24 significant bits and a key up to 28
//    (4 of e4m3 times 24 of its scale): 52 of the 53 that a double holds. A weight is cut to 48
//    bits and meets its value in two halves of 24.
//
// exp and log are the C library's: for the same bits the same library, on a processor for which it
// takes the same path. A weight is off by some 2^-47 of it, plus 2^-52 of its logit.

namespace headwise::inline v0 {

namespace detail {

/// A weight's leading bits.
template <int Bits>
double leading_bits(double weight) noexcept {
  constexpr std::uint64_t dropped = (std::uint64_t{1} << (53 - Bits)) - 1;
  return bit_cast<double>(bit_cast<std::uint64_t>(weight) & ~dropped);
}

inline double infinity64() noexcept { return bit_cast<double>(std::uint64_t{0x7ff0000000000000u}); }

/// One rounding into T. A double that passes through a float on its way to 16 bits is rounded to
/// odd first, as two roundings to nearest are not one.
template <class T>
T from_double(double value) noexcept {
  if constexpr (element_kind_of<T> == element_kind::f64) {
    return bit_cast<T>(value);
  } else {
    float nearest = static_cast<float>(value);
    if constexpr (element_kind_of<T> != element_kind::f32) {
      if (!is_nan(nearest) && static_cast<double>(nearest) != value) {
        const double magnitude = value < 0 ? -value : value;
        const double reached = static_cast<double>(nearest < 0 ? -nearest : nearest);
        const std::uint32_t toward_zero = float_bits(nearest) - (reached > magnitude ? 1u : 0u);
        nearest = bit_cast<float>(toward_zero | 1u);
      }
    }
    return from_float<T>(nearest);
  }
}

/// Working memory for some heads of one query row and some keys; about 300 KiB at 512 + 64.
template <kv_record Record>
struct mla_tile {
  static constexpr std::size_t most_heads = 16;
  static constexpr std::size_t most_keys = 16;
  /// Columns are taken four at a time; zeros behind the last one add exactly nothing.
  static constexpr auto width = static_cast<std::size_t>(round_up(Record::head_dim, 4));
  static constexpr auto latent = static_cast<std::size_t>(Record::latent);

  double query[most_heads][width];
  double keys[most_keys][width];
  double columns[width][most_keys];  ///< the keys again, transposed
  double sums[most_heads][latent];   ///< of weight * value
  double highest[most_heads];        ///< largest product query . key so far, unscaled
  double weights[most_heads];        ///< their sum, relative to the highest
};

// The two inner loops. Each has one sum per element, which takes its products in order.

/// query . key for all keys of a tile, `columns` being [width][count].
template <std::size_t Count>
void multiply_keys(double* __restrict products, const double* __restrict query,
                   const double (*__restrict columns)[Count], std::size_t width) noexcept {
  for (std::size_t i = 0; i < Count; ++i) products[i] = 0;
  for (std::size_t d = 0; d < width; d += 4) {
    for (std::size_t i = 0; i < Count; ++i) {
      products[i] = (((products[i] + query[d] * columns[d][i]) + query[d + 1] * columns[d + 1][i]) +
                     query[d + 2] * columns[d + 2][i]) +
                    query[d + 3] * columns[d + 3][i];
    }
  }
}

/// sums += weight * value for four keys.
template <std::size_t Count, std::size_t Width>
void add_weighted(double* __restrict sums, const double* __restrict weights,
                  const double (*__restrict keys)[Width]) noexcept {
  for (std::size_t d = 0; d < Count; ++d) {
    sums[d] = (((sums[d] + weights[0] * keys[0][d]) + weights[1] * keys[1][d]) +
               weights[2] * keys[2][d]) +
              weights[3] * keys[3][d];
  }
}

/// Takes the keys of the tile into account for one head (an online softmax).
template <kv_record Record>
void attend_head(mla_tile<Record>& tile, std::size_t head, std::size_t keys,
                 double scale) noexcept {
  using shape = mla_tile<Record>;
  double products[shape::most_keys];
  multiply_keys<shape::most_keys>(products, tile.query[head], tile.columns, shape::width);
  double highest = tile.highest[head];
  for (std::size_t i = 0; i < keys; ++i) {
    if (products[i] > highest) highest = products[i];
  }
  if (highest > tile.highest[head]) {
    // fma with 0 is a product that no later sum can swallow.
    const double shrink = __builtin_exp((tile.highest[head] - highest) * scale);
    tile.weights[head] = __builtin_fma(tile.weights[head], shrink, 0.0);
    for (double& sum : tile.sums[head]) sum = __builtin_fma(sum, shrink, 0.0);
    tile.highest[head] = highest;
  }
  // Two halves of each weight, so that both products with a value are exact.
  double high[shape::most_keys] = {};
  double low[shape::most_keys] = {};
  for (std::size_t i = 0; i < keys; ++i) {
    double weight = 0;
    // The difference first: scaled by itself, a large product would lose the bits that count. A key
    // at -inf weighs nothing, also while there is no other.
    if (products[i] != -infinity64()) {
      weight = leading_bits<48>(__builtin_exp((products[i] - highest) * scale));
    }
    // So that no product below is subnormal, and exact no more.
    if (weight < 0x1p-512) weight = 0;
    tile.weights[head] += weight;
    high[i] = leading_bits<24>(weight);
    low[i] = weight - high[i];
  }
  for (std::size_t i = 0; i < keys; i += 4) {
    add_weighted<shape::latent>(tile.sums[head], high + i, tile.keys + i);
    add_weighted<shape::latent>(tile.sums[head], low + i, tile.keys + i);
  }
}

template <kv_record Record, class Output, class Lse>
void store_head(const mla_tile<Record>& tile, std::size_t at, index_t token, index_t head,
                double scale, const Output& output, const Lse& lse) noexcept {
  using element = typename Output::value_type;
  using lse_type = typename Lse::value_type;
  const double total = tile.weights[at];
  const bool empty = total == 0;
  for (index_t d = 0; d < Record::latent; ++d) {
    output(token, head, d) =
        from_double<element>(empty ? 0.0 : tile.sums[at][static_cast<std::size_t>(d)] / total);
  }
  double logarithm =
      empty ? -infinity64() : __builtin_fma(tile.highest[at], scale, __builtin_log(total));
  if (lse_type::base == log_base::two) logarithm *= 0x1.71547652b82fep+0;  // log2(e)
  lse(token, head) = lse_type{from_double<float>(logarithm)};
}

template <kv_record Record, class Query>
void load_head(mla_tile<Record>& tile, std::size_t at, const Query& query, index_t token,
               index_t head) noexcept {
  for (double& number : tile.query[at]) number = 0;
  for (index_t d = 0; d < Record::head_dim; ++d) {
    tile.query[at][static_cast<std::size_t>(d)] =
        static_cast<double>(to_float(query(token, head, d)));
  }
  for (double& sum : tile.sums[at]) sum = 0;
  tile.highest[at] = -infinity64();
  tile.weights[at] = 0;
}

template <kv_record Record>
void load_key(mla_tile<Record>& tile, std::size_t at, const std::byte* record) noexcept {
  constexpr auto head_dim = static_cast<std::size_t>(Record::head_dim);
  constexpr auto bytes = static_cast<std::size_t>(Record::record_bytes);
  for (double& number : tile.keys[at]) number = 0;
  reference::decode(Record{}, std::span<const std::byte, bytes>(record, bytes),
                    std::span<double, head_dim>(tile.keys[at], head_dim));
  for (std::size_t d = 0; d < mla_tile<Record>::width; ++d) tile.columns[d][at] = tile.keys[at][d];
}

/// One query row. `record_of(i)` for i in [0, count) is the record of its i-th key, or null where
/// there is none; views are [token, head, head_dim] and [token, head].
template <kv_record Record, class Query, class RecordOf, class Output, class Lse>
void attend_row(mla_tile<Record>& tile, const Query& query, index_t token, index_t count,
                const RecordOf& record_of, double scale, const Output& output,
                const Lse& lse) noexcept {
  using shape = mla_tile<Record>;
  const index_t all_heads = query.template extent<axis::head>();
  constexpr auto block = static_cast<index_t>(shape::most_heads);
  for (index_t first = 0; first < all_heads; first += block) {
    const auto heads = static_cast<std::size_t>(lesser(block, all_heads - first));
    for (std::size_t h = 0; h < heads; ++h) {
      load_head(tile, h, query, token, first + static_cast<index_t>(h));
    }
    index_t i = 0;
    while (i < count) {
      // A tile is filled with keys, not with holes: the same keys make the same tiles.
      std::size_t keys = 0;
      for (; i < count && keys < shape::most_keys; ++i) {
        if (const std::byte* record = record_of(i)) load_key<Record>(tile, keys++, record);
      }
      // What add_weighted takes along with the last keys has weight 0 and must not be NaN.
      for (std::size_t k = keys; k % 4 != 0; ++k) {
        for (double& number : tile.keys[k]) number = 0;
      }
      for (std::size_t h = 0; h < heads; ++h) attend_head<Record>(tile, h, keys, scale);
    }
    for (std::size_t h = 0; h < heads; ++h) {
      store_head<Record>(tile, h, token, first + static_cast<index_t>(h), scale, output, lse);
    }
  }
}

/// The one allocation of the reference.
template <class T>
class heap_object {
 public:
  heap_object() noexcept : object_(new (std::nothrow) T()) {}
  ~heap_object() { delete object_; }
  heap_object(const heap_object&) = delete;
  heap_object& operator=(const heap_object&) = delete;

  bool ok() const noexcept { return object_ != nullptr; }
  T& operator*() const noexcept { return *object_; }

 private:
  T* object_;
};

template <kv_record Record>
constexpr status no_memory(source_line where) noexcept {
  return failure(errc::capacity_exceeded, "mla_decode", "no memory for the working tile, in bytes",
                 static_cast<index_t>(sizeof(mla_tile<Record>)), 0, "", where);
}

/// Lengths, the width of the block table, and each entry of it that is going to be used.
template <class BlockTable, class Lengths>
status check_block_table(const BlockTable& block_table, const Lengths& lengths,
                         const kv_shard& shard, index_t page_size, index_t page_count,
                         source_line where) noexcept {
  const auto table = permute<axis::sequence, axis::page>(block_table);
  for (index_t s = 0; s < lengths.template extent<axis::sequence>(); ++s) {
    const auto length = static_cast<index_t>(lengths(s));
    if (length < 0) {
      return failure(errc::invalid_argument, "lengths", "a sequence length is not negative", length,
                     0, axis::sequence::name, where);
    }
    const index_t pages = shard.pages(length, page_size);
    if (pages > table.template extent<axis::page>()) {
      return failure(errc::shape_mismatch, "block_table",
                     "this rank's share of a sequence takes more pages than its row has",
                     table.template extent<axis::page>(), pages, axis::page::name, where);
    }
    for (index_t p = 0; p < pages; ++p) {
      const auto page = static_cast<index_t>(table(s, p));
      if (page < 0 || page >= page_count) {
        return failure(errc::out_of_range, "block_table",
                       "a page that is in use must be in [0, expected)", page, page_count,
                       axis::page::name, where);
      }
    }
  }
  return {};
}

/// `count_of(token)` entries of each row are in use.
template <class Slots, class CountOf>
status check_slots(const Slots& slots, const CountOf& count_of, index_t slot_count,
                   source_line where) noexcept {
  const auto table = permute<axis::token, axis::key>(slots);
  for (index_t t = 0; t < table.template extent<axis::token>(); ++t) {
    const index_t count = count_of(t);
    if (count < 0 || count > table.template extent<axis::key>()) {
      return failure(errc::out_of_range, "counts", "a count leaves its row of slots", count,
                     table.template extent<axis::key>(), axis::token::name, where);
    }
    for (index_t i = 0; i < count; ++i) {
      const auto slot = static_cast<index_t>(table(t, i));
      if (slot < -1 || slot >= slot_count) {
        return failure(errc::out_of_range, "slots", "a slot is -1 (none) or in [0, expected)", slot,
                       slot_count, axis::key::name, where);
      }
    }
  }
  return {};
}

template <class Query, kv_record Record, memory_space Space, class Slots, class CountOf,
          class Output, class Lse>
status mla_decode_slots(const Query& query, const paged_kv<Record, Space>& kv, const Slots& slots,
                        const CountOf& count_of, double softmax_scale, const Output& output,
                        const Lse& lse, source_line where) noexcept {
  static_assert(view_over<Slots, axis::token, axis::key> && integer_view<Slots>,
                "headwise: mla_decode: slots are a view of integers over token and key");
  static_assert(host_accessible(Space),
                "headwise: mla_decode: the reference runs on the host and cannot read a cache in "
                "device memory");
  const status shapes = check_mla_operands(query, kv, softmax_scale, output, lse, where);
  if (!shapes.ok()) return shapes;
  const index_t tokens = query.template extent<axis::token>();
  const status well_formed = first_failure({validate("slots", slots)}, where);
  if (!well_formed.ok()) return well_formed;
  const status listed = check_extents(
      {extent_is<axis::token>("slots", slots, tokens, "the tokens of the query")}, where);
  if (!listed.ok()) return listed;
  const status used = check_slots(slots, count_of, kv.slot_count(), where);
  if (!used.ok()) return used;
  const heap_object<mla_tile<Record>> tile;
  if (!tile.ok()) return no_memory<Record>(where);

  const auto rows = permute<axis::token, axis::head, axis::head_dim>(query);
  const auto out = permute<axis::token, axis::head, axis::head_dim>(output);
  const auto out_lse = permute<axis::token, axis::head>(lse);
  const auto table = permute<axis::token, axis::key>(slots);
  for (index_t t = 0; t < tokens; ++t) {
    const auto record_of = [&](index_t i) -> const std::byte* {
      const auto slot = static_cast<index_t>(table(t, i));
      return slot < 0 ? nullptr : kv.record(slot);
    };
    attend_row<Record>(*tile, rows, t, count_of(t), record_of, softmax_scale, out, out_lse);
  }
  return {};
}

}  // namespace detail

namespace reference {

/// Attention of this rank's share of every sequence.
///
/// `query`: over [token, head, head_dim = latent + rope]; fp32, fp16 or bf16.
/// `kv`: this rank's pages. A token lies at its local index, and a page that the block table names
/// holds page_size of them. Nothing else is read: rows behind the last token, other pages, unused
/// entries of the table may hold anything.
/// `block_table`: over [sequence, page], integers; its width is that of the local share.
/// `lengths`: [sequence], tokens of the whole sequence on all ranks, query tokens included; 0 for a
/// padded row.
/// `output`: over [token, head, head_dim = latent]; fp64, fp32, fp16 or bf16, rounded once. `lse`:
/// over [token, head], of lse<log_base::e> or lse<log_base::two>. A row without keys on this rank
/// gets exactly 0 and -inf.
///
/// All views have strides of their own. Outputs do not overlap the inputs. A NaN in a key or a
/// query reaches the rows that use it and no other. Allocates a few hundred KiB for the time of the
/// call.
///
/// Errors: those of validate(); shape_mismatch, invalid_argument (options, a negative length),
/// out_of_range (a page), overlap, capacity_exceeded (no memory); then nothing is written.
template <class Query, kv_record Record, memory_space Space, class BlockTable, class Lengths,
          class Output, class Lse>
status mla_decode(const Query& query, const paged_kv<Record, Space>& kv,
                  const BlockTable& block_table, const Lengths& lengths, const mla_options& options,
                  const Output& output, const Lse& lse,
                  source_line where = source_line::current()) noexcept {
  static_assert(host_accessible(Space),
                "headwise: mla_decode: the reference runs on the host and cannot read a cache in "
                "device memory");
  const status shapes =
      detail::check_mla_operands(query, kv, options.softmax_scale, output, lse, where);
  if (!shapes.ok()) return shapes;
  const index_t tokens = query.template extent<axis::token>();
  const index_t query_tokens = options.query_tokens;
  const status sequences =
      detail::check_sequences(block_table, lengths, query_tokens, options.shard, tokens, where);
  if (!sequences.ok()) return sequences;
  const status used = detail::check_block_table(block_table, lengths, options.shard, kv.page_size,
                                                kv.page_count, where);
  if (!used.ok()) return used;
  const detail::heap_object<detail::mla_tile<Record>> tile;
  if (!tile.ok()) return detail::no_memory<Record>(where);

  const auto rows = permute<axis::token, axis::head, axis::head_dim>(query);
  const auto out = permute<axis::token, axis::head, axis::head_dim>(output);
  const auto out_lse = permute<axis::token, axis::head>(lse);
  const auto table = permute<axis::sequence, axis::page>(block_table);
  for (index_t t = 0; t < tokens; ++t) {
    const index_t s = t / query_tokens;
    const index_t count = options.shard.causal_bound(static_cast<index_t>(lengths(s)), query_tokens,
                                                     t % query_tokens);
    const auto record_of = [&](index_t i) {
      const page_position at = locate(i, kv.page_size);
      return kv.record(static_cast<index_t>(table(s, at.page)), at.slot);
    };
    detail::attend_row<Record>(*tile, rows, t, count, record_of, options.softmax_scale, out,
                               out_lse);
  }
  return {};
}

/// Sparse attention: query row t looks at the slots of row t of `slots`, over [token, key], and at
/// nothing else. -1 stands for no key and may be anywhere, also in all of a row. Slots are of this
/// rank's cache and causal already: see localize_topk. The rest as in mla_decode.
///
/// The bits are those of the same slots without holes, and of a block table that names the same
/// keys in the same order.
///
/// Errors: those of mla_decode; out_of_range (a slot).
template <class Query, kv_record Record, memory_space Space, class Slots, class Output, class Lse>
status mla_decode_sparse(const Query& query, const paged_kv<Record, Space>& kv, const Slots& slots,
                         double softmax_scale, const Output& output, const Lse& lse,
                         source_line where = source_line::current()) noexcept {
  const auto count_of = [&](index_t) { return slots.template extent<axis::key>(); };
  return detail::mla_decode_slots(query, kv, slots, count_of, softmax_scale, output, lse, where);
}

/// The same with `counts`, `[token]`: only the first counts[t] slots of a row are read.
/// Errors: also shape_mismatch and out_of_range (a count).
template <class Query, kv_record Record, memory_space Space, class Slots, class Counts,
          class Output, class Lse>
status mla_decode_sparse(const Query& query, const paged_kv<Record, Space>& kv, const Slots& slots,
                         const Counts& counts, double softmax_scale, const Output& output,
                         const Lse& lse, source_line where = source_line::current()) noexcept {
  static_assert(view_of<Counts, axis::token> && detail::integer_view<Counts>,
                "headwise: mla_decode: counts are a view of integers over token");
  const status well_formed = detail::first_failure({validate("counts", counts)}, where);
  if (!well_formed.ok()) return well_formed;
  const status counted = detail::check_extents(
      {detail::extent_is<axis::token>("counts", counts, query.template extent<axis::token>(),
                                      "the tokens of the query")},
      where);
  if (!counted.ok()) return counted;
  const auto count_of = [&](index_t token) { return static_cast<index_t>(counts(token)); };
  return detail::mla_decode_slots(query, kv, slots, count_of, softmax_scale, output, lse, where);
}

}  // namespace reference

}  // namespace headwise::inline v0
