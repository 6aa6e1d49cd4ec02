// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

// Decode steps on a GPU, what they are to come to, and how far off they are: steps of
// mla_problem.hpp, which the reference answers on the host, and larger ones, which one kernel makes
// and another answers in double, key by key.

#include <headwise/kernel/mla_decode.cuh>
#include <headwise/reference/lse_combine.hpp>
#include <headwise/reference/mla_decode.hpp>

#include <support/device.hpp>
#include <support/mla_problem.hpp>
#include <support/packed.hpp>
#include <support/scatter.hpp>
#include <support/sentence.hpp>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace mla_test {

using headwise::bf16;
using headwise::kv_shard;
using headwise::log_base;
using headwise::memory_space;
using headwise::paged_kv;
using support::device_array;

// Extents and strides at run time, so that one instance of the kernel serves every shape.
using rows_layout =
    headwise::layout<headwise::dim<headwise::axis::token>, headwise::dim<headwise::axis::head>,
                     headwise::dim<headwise::axis::head_dim>>;
using plane_layout =
    headwise::layout<headwise::dim<headwise::axis::token>, headwise::dim<headwise::axis::head>>;
using table_layout =
    headwise::layout<headwise::dim<headwise::axis::sequence>, headwise::dim<headwise::axis::page>>;
using list_layout =
    headwise::layout<headwise::dim<headwise::axis::token>, headwise::dim<headwise::axis::key>>;
template <class Axis>
using along = headwise::layout<headwise::dim<Axis>>;

template <class T, class Layout>
using device_view = headwise::view<T, Layout, memory_space::device>;

struct shape {
  index_t tokens;
  index_t heads;
  index_t width;
};

inline rows_layout rows_at(const shape& of, const support::row_strides& by) {
  using namespace headwise;
  return {dim<axis::token>(of.tokens, by.token), dim<axis::head>(of.heads, by.head),
          dim<axis::head_dim>(of.width, by.head_dim)};
}
inline rows_layout rows_of(const shape& of, support::style which = support::style::packed) {
  return rows_at(of, support::strides_of(which, of.tokens, of.heads, of.width));
}
inline plane_layout plane_at(const shape& of, index_t token_stride, index_t head_stride) {
  using namespace headwise;
  return {dim<axis::token>(of.tokens, token_stride), dim<axis::head>(of.heads, head_stride)};
}
inline plane_layout plane_of(const shape& of, support::style which = support::style::packed) {
  const support::row_strides by = support::strides_of(which, of.tokens, of.heads, 1);
  return plane_at(of, by.token, by.head);
}

// ---- answers ----------------------------------------------------------------------------------

/// What a call comes to, or should: by token, head and column.
struct answers {
  shape of;
  std::vector<double> output;
  std::vector<double> lses;  ///< base e

  explicit answers(const shape& any)
      : of(any), output(at(any.tokens * any.heads * any.width)), lses(at(any.tokens * any.heads)) {}

  double* row(index_t token, index_t head) {
    return output.data() + (token * of.heads + head) * of.width;
  }
  double& lse(index_t token, index_t head) { return lses[at(token * of.heads + head)]; }

  /// Rows that are exactly +0 and -inf, as one without keys is.
  index_t empty_rows() const {
    index_t empty = 0;
    for (std::size_t r = 0; r < lses.size(); ++r) empty += is_empty(static_cast<index_t>(r));
    return empty;
  }
  bool is_empty(index_t r) const {
    const double* const numbers = output.data() + r * of.width;
    return lses[at(r)] == -std::numeric_limits<double>::infinity() &&
           std::all_of(numbers, numbers + of.width,
                       [](double number) { return number == 0 && !std::signbit(number); });
  }
};

/// Of outputs relative: norm of the error by that of the truth. Of LSEs the largest, in base e.
struct deviation {
  double output = 0;           ///< of all rows together
  double output_of_token = 0;  ///< of the heads of a query token, the largest
  double lse = 0;
  index_t wrong_rows = 0;  ///< empty, or no numbers, and should not be so; or the other way round
};

inline deviation compare(const answers& got, const answers& truth) {
  REQUIRE(got.output.size() == truth.output.size());
  REQUIRE(got.lses.size() == truth.lses.size());
  const auto relative = [](double error, double all) {
    return error == 0 ? 0 : std::sqrt(error / all);
  };
  deviation found;
  double error = 0;
  double all = 0;
  for (index_t t = 0; t < truth.of.tokens; ++t) {
    double error_of_token = 0;
    double all_of_token = 0;
    for (index_t row = t * truth.of.heads; row < (t + 1) * truth.of.heads; ++row) {
      if (truth.is_empty(row) || got.is_empty(row)) {
        found.wrong_rows += !truth.is_empty(row) || !got.is_empty(row);
        continue;
      }
      const double lse_off = std::fabs(got.lses[at(row)] - truth.lses[at(row)]);
      index_t unlike = std::isfinite(got.lses[at(row)]) != std::isfinite(truth.lses[at(row)]);
      double error_of_row = 0;
      for (index_t i = row * truth.of.width; i < (row + 1) * truth.of.width; ++i) {
        const double wanted = truth.output[at(i)];
        const double off = got.output[at(i)] - wanted;
        unlike += std::isfinite(got.output[at(i)]) != std::isfinite(wanted);
        if (!std::isfinite(wanted)) continue;
        error_of_row += off * off;
        all_of_token += wanted * wanted;
      }
      found.wrong_rows += unlike > 0;
      if (unlike > 0) continue;
      error_of_token += error_of_row;
      if (std::isfinite(lse_off)) found.lse = std::max(found.lse, lse_off);
    }
    found.output_of_token = std::max(found.output_of_token, relative(error_of_token, all_of_token));
    error += error_of_token;
    all += all_of_token;
  }
  found.output = relative(error, all);
  return found;
}

/// Of each slot of a cache, whether a token has it.
template <class Problem, class Cache>
std::vector<bool> live_slots(const Problem& step, const Cache& cache) {
  std::vector<bool> live(at(cache.page_count * cache.page_size));
  for (index_t s = 0; s < step.sequences(); ++s) {
    for (index_t i = 0; i < step.lengths[at(s)]; ++i) {
      const index_t page = cache.table[at(s * cache.table_stride + i / cache.page_size)];
      live[at(page * cache.page_size + i % cache.page_size)] = true;
    }
  }
  return live;
}

/// Weights are rounded to bf16, off by 2^-9 at most, and the output to its type. The query token
/// that is furthest off is so by little more than all of them together.
template <class Element>
inline constexpr double output_bound = sizeof(Element) == 4 ? 2.1e-3 : 2.5e-3;
inline constexpr double output_bound_of_token = 3e-3;
inline constexpr double lse_bound = 1e-5;

/// `lse_off`: what an LSE may be off by.
template <class Element>
deviation check_close(const answers& got, const answers& truth, double lse_off = lse_bound) {
  const deviation found = compare(got, truth);
  CHECK(found.wrong_rows == 0);
  CHECK(found.output <= output_bound<Element>);
  CHECK(found.output_of_token <= output_bound_of_token);
  CHECK(found.lse <= lse_off);
  return found;
}

/// The largest deviations of a test, which it prints when it ends.
class largest_deviations {
 public:
  explicit largest_deviations(const char* what) : what_(what) {}
  largest_deviations(const largest_deviations&) = delete;
  largest_deviations& operator=(const largest_deviations&) = delete;
  ~largest_deviations() {
    std::printf(
        "mla_decode kernel: %s: outputs are off by %.3g of them, those of a token by %.3g, an LSE "
        "by %.3g\n",
        what_, output_, output_of_token_, lse_);
  }

  void take(const deviation& found) {
    output_ = std::max(output_, found.output);
    output_of_token_ = std::max(output_of_token_, found.output_of_token);
    lse_ = std::max(lse_, found.lse);
  }

 private:
  const char* what_;
  double output_ = 0;
  double output_of_token_ = 0;
  double lse_ = 0;
};

// ---- what the reference says ------------------------------------------------------------------

/// Calls work(i) for i in [0, count), on all cores; whether each came to true.
template <class Work>
bool on_all_cores(std::size_t count, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> good{true};
  const auto take = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      if (!work(i)) good = false;
    }
  };
  std::vector<std::thread> others;
  const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1u);
  for (std::size_t i = 1; i < std::min(cores, count); ++i) others.emplace_back(take);
  take();
  for (std::thread& other : others) other.join();
  return good;
}

/// Some heads of one sequence, or of one query token: a share for a core.
struct share_of_heads {
  index_t unit;
  index_t head;
  index_t heads;
};
inline std::vector<share_of_heads> shares_of_heads(index_t units, index_t heads) {
  constexpr index_t together = 16;
  std::vector<share_of_heads> shares;
  for (index_t unit = 0; unit < units; ++unit) {
    for (index_t head = 0; head < heads; head += together) {
      shares.push_back({unit, head, std::min(together, heads - head)});
    }
  }
  return shares;
}

template <class Outputs>
answers answers_of(const Outputs& result) {
  answers all({result.tokens, result.heads, result.width});
  for (std::size_t i = 0; i < all.output.size(); ++i) all.output[i] = result.output[i];
  for (std::size_t i = 0; i < all.lses.size(); ++i) {
    all.lses[i] = static_cast<double>(result.lses[i].value);
  }
  return all;
}

/// `query_tokens` rows from the first of a unit on, some of their heads.
template <class View>
auto part_of(const View& whole, const share_of_heads& share, index_t query_tokens) {
  using namespace headwise;
  return slice<axis::head>(
             slice<axis::token>(whole, share.unit * query_tokens, query_tokens).value(), share.head,
             share.heads)
      .value();
}

template <class Record>
answers reference_answers(const problem<Record>& step, const paged_cache<Record>& cache,
                          kv_shard shard = {}) {
  using namespace headwise;
  outputs<double, Record::latent> result(step.tokens(), step.heads);
  const auto shares = shares_of_heads(step.sequences(), step.heads);
  const bool good = on_all_cores(shares.size(), [&](std::size_t i) {
    const share_of_heads& share = shares[i];
    return reference::mla_decode(
               part_of(step.query_view(), share, step.query_tokens), cache.kv,
               slice<axis::sequence>(cache.block_table(), share.unit, index_t{1}).value(),
               slice<axis::sequence>(step.lengths_view(), share.unit, index_t{1}).value(),
               {.softmax_scale = step.scale, .query_tokens = step.query_tokens, .shard = shard},
               part_of(result.output_view(), share, step.query_tokens),
               part_of(result.lse_view(), share, step.query_tokens))
        .ok();
  });
  REQUIRE(good);
  return answers_of(result);
}

/// `slots`: [token, key], -1 for none.
template <class Record, class Slot>
answers reference_answers(const problem<Record>& step, const paged_cache<Record>& cache,
                          const std::vector<Slot>& slots) {
  using namespace headwise;
  outputs<double, Record::latent> result(step.tokens(), step.heads);
  const index_t keys = static_cast<index_t>(slots.size()) / step.tokens();
  const view list(slots.data(),
                  packed(extent<axis::token>(step.tokens()), extent<axis::key>(keys)));
  const auto shares = shares_of_heads(step.tokens(), step.heads);
  const bool good = on_all_cores(shares.size(), [&](std::size_t i) {
    const share_of_heads& share = shares[i];
    return reference::mla_decode_sparse(part_of(step.query_view(), share, 1), cache.kv,
                                        slice<axis::token>(list, share.unit, index_t{1}).value(),
                                        step.scale, part_of(result.output_view(), share, 1),
                                        part_of(result.lse_view(), share, 1))
        .ok();
  });
  REQUIRE(good);
  return answers_of(result);
}

/// Partial results of ranks, in fp32, put together.
inline answers combined(const std::vector<answers>& partials) {
  using namespace headwise;
  const shape of = partials.front().of;
  std::vector<float> rows;
  std::vector<float> lses;
  for (const answers& one : partials) {
    for (const double number : one.output) rows.push_back(static_cast<float>(number));
    for (const double number : one.lses) lses.push_back(static_cast<float>(number));
  }
  answers all(of);
  std::vector<float> output(all.output.size());
  std::vector<float> merged(all.lses.size());
  const auto ranks = static_cast<index_t>(partials.size());
  const status done = reference::lse_combine<log_base::e>(
      gathered_shards{support::packed_outputs(rows.data(), ranks, of.tokens, of.heads, of.width),
                      support::packed_lses(lses.data(), ranks, of.tokens, of.heads)},
      support::packed_output(output.data(), of.tokens, of.heads, of.width),
      support::packed_lse(merged.data(), of.tokens, of.heads));
  REQUIRE(done.ok());
  std::copy(output.begin(), output.end(), all.output.begin());
  std::copy(merged.begin(), merged.end(), all.lses.begin());
  return all;
}

// ---- operands on the device -------------------------------------------------------------------

/// The query of a problem, in rows of any strides; NaN in the gaps.
struct device_query {
  rows_layout rows;
  device_array<bf16> memory;

  explicit device_query(const any_problem& step)
      : device_query(step, rows_of({step.tokens(), step.heads, step.format.head_dim})) {}
  /// `past`: elements that it begins behind an address of 256 bytes.
  device_query(const any_problem& step, const rows_layout& where, index_t past = 0)
      : rows(where), memory(where.span_size(), past) {
    renew(step);
  }
  void renew(const any_problem& step) {
    std::vector<bf16> numbers(at(rows.span_size()), bf16{0xffff});
    support::for_each_element(
        headwise::view(numbers.data(), rows), [&](const auto& i, index_t offset) {
          const index_t row = i[0] * step.heads + i[1];
          numbers[at(offset)].bits = step.query[at(row * step.format.head_dim + i[2])];
        });
    memory.upload(numbers);
  }
  device_view<const bf16, rows_layout> view() const { return {memory.data(), rows}; }
};

/// A cache of a problem. In front of its first record there are NaN, where slot -1 would be.
template <class Record, class Integer = std::int32_t>
struct device_cache {
  static constexpr index_t room_in_front = 4096;

  device_array<std::byte> records;
  paged_kv<Record, memory_space::device> kv;
  table_layout pages;
  device_array<Integer> table;

  explicit device_cache(const paged_cache<Record>& from)
      : device_cache(from, {from.table.begin(), from.table.end()}) {}
  /// With other names in the table, rows as far apart.
  device_cache(const paged_cache<Record>& from, const std::vector<Integer>& names)
      : records(from.memory, room_in_front),
        kv{records.data(), from.page_count, from.page_size, from.page_stride, from.row_stride},
        pages(pages_of(from)),
        table(names) {}

  device_view<const Integer, table_layout> block_table() const { return {table.data(), pages}; }

 private:
  static table_layout pages_of(const paged_memory& from) {
    using namespace headwise;
    return {dim<axis::sequence>(static_cast<index_t>(from.table.size()) / from.table_stride,
                                from.table_stride),
            dim<axis::page>(from.table_width, 1)};
  }
};

/// Integers without gaps: lengths, or counts.
template <class Axis, class Integer>
struct device_numbers {
  device_array<Integer> memory;

  template <class From>
  explicit device_numbers(const std::vector<From>& numbers)
      : memory(std::vector<Integer>(numbers.begin(), numbers.end())) {}
  device_view<const Integer, along<Axis>> view() const {
    return {memory.data(), along<Axis>(headwise::dim<Axis>(memory.size(), 1))};
  }
};
template <class Integer = std::int32_t>
using device_lengths = device_numbers<headwise::axis::sequence, Integer>;
template <class Integer = std::int32_t>
using device_counts = device_numbers<headwise::axis::token, Integer>;

/// Lists of slots of all query tokens.
template <class Slot>
struct device_slots {
  list_layout rows;
  device_array<Slot> memory;

  device_slots(const std::vector<Slot>& slots, index_t tokens)
      : rows(list_of(static_cast<index_t>(slots.size()) / tokens, tokens)), memory(slots) {}
  device_view<const Slot, list_layout> view() const { return {memory.data(), rows}; }

 private:
  static list_layout list_of(index_t keys, index_t tokens) {
    using namespace headwise;
    return {dim<axis::token>(tokens, keys), dim<axis::key>(keys, 1)};
  }
};

/// Where a call leaves its results: NaN, and NaN between them.
template <class Element, log_base Base = log_base::e>
struct device_results {
  rows_layout rows;
  plane_layout plane;
  device_array<Element> output;
  device_array<headwise::lse<Base>> lses;

  explicit device_results(const shape& of) : device_results(rows_of(of), plane_of(of)) {}
  /// `past`: elements that the output begins behind an address of 256 bytes.
  device_results(const rows_layout& where, const plane_layout& lses_where, index_t past = 0)
      : rows(where),
        plane(lses_where),
        output(where.span_size(), past),
        lses(lses_where.span_size()) {}

  device_view<Element, rows_layout> output_view() const { return {output.data(), rows}; }
  device_view<headwise::lse<Base>, plane_layout> lse_view() const { return {lses.data(), plane}; }

  void poison() {
    output.poison();
    lses.poison();
  }
  /// What there is, and that nothing else was written.
  answers fetch() const {
    const auto numbers = output.fetch();
    const auto logarithms = lses.fetch();
    const headwise::view rows_here(numbers.data(), rows);
    const headwise::view lses_here(logarithms.data(), plane);
    CHECK(output.stray_bytes() + stray(numbers, rows_here) == 0);
    CHECK(lses.stray_bytes() + stray(logarithms, lses_here) == 0);
    answers all({rows.template extent<headwise::axis::token>(),
                 rows.template extent<headwise::axis::head>(),
                 rows.template extent<headwise::axis::head_dim>()});
    constexpr double to_base_e = Base == log_base::two ? 0.69314718055994530942 : 1.0;
    support::for_each_element(rows_here, [&](const auto& i, index_t offset) {
      all.row(i[0], i[1])[i[2]] = static_cast<double>(headwise::to_float(numbers[at(offset)]));
    });
    support::for_each_element(lses_here, [&](const auto& i, index_t offset) {
      all.lse(i[0], i[1]) = static_cast<double>(logarithms[at(offset)].value) * to_base_e;
    });
    return all;
  }
  /// Whether nothing at all was written.
  bool untouched() const {
    const auto all_ones = [](const auto& memory) {
      const auto elements = memory.fetch();
      return memory.stray_bytes() + support::count_stray(bytes_of(elements), size_of(elements), {});
    };
    return all_ones(output) + all_ones(lses) == 0;
  }
  /// Bits of both, gaps included.
  std::vector<std::byte> bits() const {
    std::vector<std::byte> all;
    const auto add = [&all](const auto& elements) {
      all.insert(all.end(), bytes_of(elements), bytes_of(elements) + size_of(elements));
    };
    add(output.fetch());
    add(lses.fetch());
    return all;
  }

 private:
  template <class T>
  static const std::byte* bytes_of(const std::vector<T>& elements) {
    return reinterpret_cast<const std::byte*>(elements.data());
  }
  template <class T>
  static index_t size_of(const std::vector<T>& elements) {
    return static_cast<index_t>(elements.size() * sizeof(T));
  }
  template <class T, class View>
  static index_t stray(const std::vector<T>& elements, const View& written) {
    if (written.is_contiguous()) return 0;
    const std::vector<support::places> allowed{support::places_of(written)};
    return support::count_stray(bytes_of(elements), size_of(elements), allowed);
  }
};

/// Zeroed once, before the first call.
class device_workspace {
 public:
  explicit device_workspace(index_t bytes) : memory_(bytes) {
    REQUIRE_CUDA(cudaMemset(memory_.data(), 0, static_cast<std::size_t>(bytes)));
    REQUIRE_CUDA(cudaDeviceSynchronize());
  }
  /// For `rows` rows of the query a sequence.
  template <class Record>
  static device_workspace of(index_t rows, const headwise::mla_launch& how = {}) {
    const auto bytes = headwise::kernel::mla_decode_bytes<Record>(rows, how);
    REQUIRE(bytes.ok());
    return device_workspace(bytes.value());
  }

  std::span<std::byte> all() const {
    return {memory_.data(), static_cast<std::size_t>(memory_.size())};
  }
  index_t stray_bytes() const { return memory_.stray_bytes(); }
  std::vector<std::byte> fetch() const { return memory_.fetch(); }

 private:
  device_array<std::byte> memory_;
};

/// A check for a call that is to succeed, in words.
inline void require_ok(const headwise::status& came_to) {
  const std::string said = support::sentence(came_to);
  REQUIRE_MESSAGE(came_to.ok(), said);
}

// ---- one call ---------------------------------------------------------------------------------

/// How a step is put on the device.
struct arrangement {
  support::style query = support::style::packed;
  support::style output = support::style::packed;
  support::style lses = support::style::packed;
  index_t past = 0;  ///< elements that query and output are off their alignment
  headwise::mla_launch how = {};
};

/// Runs a step on the device: its result, after a look at all that should not have been written.
template <class Element, log_base Base = log_base::e, class Integer = std::int32_t, class Record>
answers decode(const problem<Record>& step, const paged_cache<Record>& cache, kv_shard shard = {},
               const arrangement& as = {}) {
  const shape in{step.tokens(), step.heads, Record::head_dim};
  const shape out{step.tokens(), step.heads, Record::latent};
  const device_query query(step, rows_of(in, as.query), as.past);
  const device_cache<Record, Integer> records(cache);
  const device_lengths<Integer> lengths(step.lengths);
  const device_results<Element, Base> results(rows_of(out, as.output), plane_of(out, as.lses),
                                              as.past);
  const auto workspace = device_workspace::of<Record>(step.query_tokens * step.heads, as.how);
  const support::stream stream;
  require_ok(headwise::kernel::mla_decode(
      query.view(), records.kv, records.block_table(), lengths.view(),
      headwise::mla_options{step.scale, step.query_tokens, shard}, results.output_view(),
      results.lse_view(), workspace.all(), stream, as.how));
  stream.wait();
  CHECK(workspace.stray_bytes() == 0);
  return results.fetch();
}

/// The same of a list of slots, [token, key], of which `counts` (none, or a number for each token)
/// are in use.
template <class Element, log_base Base = log_base::e, class Record, class Slot,
          class Counts = headwise::none_t>
answers decode_sparse(const problem<Record>& step, const paged_cache<Record>& cache,
                      const std::vector<Slot>& slots, const Counts& counts = {},
                      const arrangement& as = {}) {
  const shape in{step.tokens(), step.heads, Record::head_dim};
  const shape out{step.tokens(), step.heads, Record::latent};
  const device_query query(step, rows_of(in, as.query), as.past);
  const device_cache<Record> records(cache);
  const device_slots<Slot> list(slots, step.tokens());
  const device_results<Element, Base> results(rows_of(out, as.output), plane_of(out, as.lses),
                                              as.past);
  const auto workspace = device_workspace::of<Record>(step.heads, as.how);
  const support::stream stream;
  require_ok(headwise::kernel::mla_decode_sparse(query.view(), records.kv, list.view(), step.scale,
                                                 results.output_view(), results.lse_view(),
                                                 workspace.all(), stream, counts, as.how));
  stream.wait();
  CHECK(workspace.stray_bytes() == 0);
  return results.fetch();
}

// ---- steps of all sorts -----------------------------------------------------------------------

inline constexpr index_t head_counts[] = {1,  3,  4,  6,  8,  11, 12, 16, 20,  22, 24,
                                          32, 33, 48, 63, 64, 66, 96, 99, 126, 128};
inline constexpr index_t page_sizes[] = {1, 2, 16, 32, 53, 61, 64, 128, 256};
inline constexpr headwise::interleaving groups[] = {{1, 1}, {2, 1}, {3, 1}, {6, 16}, {8, 64}};

template <class T, std::size_t Count>
const T& turn(const T (&all)[Count], index_t i) {
  return all[static_cast<std::size_t>(i) % Count];
}

/// Few tokens, fewer than query tokens, a full page and one more or less, and some hundred.
inline std::vector<std::int32_t> some_lengths(random_source& random, index_t query_tokens,
                                              index_t page_size) {
  const index_t pages = random.in(1, std::max(index_t{600} / page_size, index_t{1}));
  const index_t all[] = {random.in(0, query_tokens), random.in(0, 70),
                         pages * page_size + random.in(-1, 1), random.in(1, 700)};
  std::vector<std::int32_t> lengths;
  for (const index_t length : all) lengths.push_back(static_cast<std::int32_t>(length));
  std::shuffle(lengths.begin(), lengths.end(), random.engine);
  return lengths;
}

inline arrangement any_arrangement(random_source& random) {
  const auto any_style = [&] { return turn(support::all_styles, random.in(0, 100)); };
  return {any_style(), any_style(), any_style(), random.one_of<index_t>({0, 0, 1, 2, 4, 8}), {}};
}

/// Steps of every number of heads, and of query tokens, over groups of ranks, pages and strides,
/// against the reference.
template <class Record, class Element, log_base Base, class Integer>
void check_steps(const char* what, std::initializer_list<index_t> query_tokens,
                 std::uint64_t seed) {
  largest_deviations largest(what);
  random_source random(seed);
  index_t i = 0;
  for (const index_t heads : head_counts) {
    for (const index_t tokens : query_tokens) {
      ++i;
      const index_t page_size = turn(page_sizes, i);
      const headwise::interleaving split = turn(groups, i / 2);
      const kv_shard shard{split, random.in(0, split.ranks - 1)};
      const index_t gap = random.one_of<index_t>({0, 16, 48});
      const arrangement as = any_arrangement(random);
      CAPTURE(heads);
      CAPTURE(tokens);
      CAPTURE(page_size);
      CAPTURE(shard.split.ranks);
      CAPTURE(shard.split.interleave);
      CAPTURE(shard.rank);
      CAPTURE(gap);
      const problem<Record> step(some_lengths(random, tokens, page_size), tokens, heads,
                                 seed + static_cast<std::uint64_t>(i));
      const auto cache = step.cache(shard, page_size, gap, seed);
      largest.take(check_close<Element>(decode<Element, Base, Integer>(step, cache, shard, as),
                                        reference_answers(step, cache, shard)));
    }
  }
}

/// Makes all tokens alike: `latent` in each column, `rope` in the first one of rope. The query is
/// `q_rope` there and 0 elsewhere, so that each logit is q_rope * rope * scale.
template <index_t Latent, index_t Rope>
void make_alike(problem<headwise::kv_bf16<Latent, Rope>>& step, float latent, float rope,
                float q_rope) {
  const index_t width = Latent + Rope;
  for (auto& records : step.records) {
    for (index_t i = 0; i < static_cast<index_t>(records.size()) / 2; ++i) {
      const float number = i % width < Latent ? latent : i % width == Latent ? rope : 0.0f;
      const std::uint16_t bits = bf16_bits(number);
      std::memcpy(records.data() + 2 * i, &bits, sizeof bits);
    }
  }
  for (std::size_t i = 0; i < step.query.size(); ++i) {
    step.query[i] = bf16_bits(static_cast<index_t>(i) % width == Latent ? q_rope : 0.0f);
  }
}

// ---- steps that a kernel makes ----------------------------------------------------------------

namespace kernels {

__device__ inline std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}
/// Numbers as some_number() and write_record() make them, a function of the token's name.
__device__ inline std::uint32_t word(std::uint32_t seed, index_t name, std::uint32_t i) {
  const auto low = static_cast<std::uint32_t>(name);
  const auto high = static_cast<std::uint32_t>(name >> 32);
  return mixed(mixed(mixed(seed + low) + high) ^ (i * 0x9e3779b9u));
}
__device__ inline std::uint16_t bf16_of(std::uint32_t word) {
  const float number = static_cast<float>(static_cast<int>(word % 255) - 127) / 64.0f;
  return static_cast<std::uint16_t>(__float_as_uint(number) >> 16);
}

/// Rows of bf16 numbers, a block each.
static __global__ void write_rows(std::uint16_t* rows, index_t width, std::uint32_t seed) {
  for (index_t d = threadIdx.x; d < width; d += blockDim.x) {
    rows[blockIdx.x * width + d] = bf16_of(word(seed, blockIdx.x, static_cast<std::uint32_t>(d)));
  }
}

/// The records of tokens, a block each: `names` says which token a slot holds.
template <class Record>
__global__ void write_records(std::byte* memory, paged_kv<Record, memory_space::device> kv,
                              const index_t* slots, const index_t* names, std::uint32_t seed) {
  const index_t slot = slots[blockIdx.x];
  const index_t name = names[blockIdx.x];
  std::byte* const record =
      memory + slot / kv.page_size * kv.page_stride + slot % kv.page_size * kv.row_stride;
  const auto of = [&](index_t i) { return word(seed, name, static_cast<std::uint32_t>(i)); };
  index_t codes = 0;
  index_t bf16_at = 0;
  if constexpr (requires { Record::scale_count; }) {
    codes = Record::latent;
    bf16_at = Record::rope_offset;
    for (index_t i = threadIdx.x; i < codes; i += blockDim.x) {
      const std::uint32_t some = of(i);
      record[i] = static_cast<std::byte>(some % 127 | (some >> 24 & 0x80u));
    }
    for (index_t g = threadIdx.x; g < Record::scale_count; g += blockDim.x) {
      // From 2^-9 to 2^-8, of 24 significant bits.
      const std::uint32_t bits = (118u << 23) | (of(Record::head_dim + g) >> 9);
      *reinterpret_cast<std::uint32_t*>(record + Record::scale_offset + 4 * g) = bits;
    }
  }
  for (index_t i = codes + threadIdx.x; i < Record::head_dim; i += blockDim.x) {
    *reinterpret_cast<std::uint16_t*>(record + bf16_at + 2 * (i - codes)) = bf16_of(of(i));
  }
}

__device__ inline double bf16_number(const std::byte* from) {
  const unsigned bits = *reinterpret_cast<const std::uint16_t*>(from);
  return static_cast<double>(__uint_as_float(bits << 16));
}
template <class Record>
__device__ double number_of(const std::byte* record, int d) {
  if constexpr (requires { Record::scale_count; }) {
    if (d < Record::latent) {
      const auto code = static_cast<unsigned>(record[d]);
      const unsigned exponent = code >> 3 & 15u;
      const unsigned mantissa = code & 7u;
      const double magnitude =
          exponent == 0
              ? static_cast<double>(mantissa) / 512
              : static_cast<double>(__uint_as_float(((exponent + 120u) << 23) | (mantissa << 20)));
      const float scale =
          *reinterpret_cast<const float*>(record + Record::scale_offset + d / 128 * 4);
      return ((code & 0x80u) != 0 ? -magnitude : magnitude) * static_cast<double>(scale);
    }
    return bf16_number(record + Record::rope_offset + 2 * (d - Record::latent));
  } else {
    return bf16_number(record + 2 * d);
  }
}

inline constexpr unsigned threads = 256;

/// What all threads of a block make of their numbers.
template <class Combine>
__device__ double by_all(double mine, const Combine& combine) {
  __shared__ double shared[threads];
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned other = blockDim.x / 2; other > 0; other /= 2) {
    if (threadIdx.x < other) {
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + other]);
    }
    __syncthreads();
  }
  const double all = shared[0];
  __syncthreads();
  return all;
}

/// Attention as it is written down, a block for each row of the query: row r looks at the first
/// bounds[r / heads] slots of the list of its sequence. `weights`: room for [row, most].
template <class Record>
__global__ void attend_rows(const bf16* query, paged_kv<Record, memory_space::device> kv,
                            const index_t* slots, index_t most, const index_t* bounds,
                            index_t query_tokens, index_t heads, double scale, double* weights,
                            double* output, double* lses) {
  const index_t row = blockIdx.x;
  const index_t token = row / heads;
  const bf16* const q = query + row * Record::head_dim;
  const index_t* const list = slots + token / query_tokens * most;
  const index_t count = bounds[token];
  double* const weight = weights + row * most;
  const auto record_of = [&](index_t slot) {
    return kv.data + slot / kv.page_size * kv.page_stride + slot % kv.page_size * kv.row_stride;
  };

  double highest = -HUGE_VAL;
  for (index_t i = threadIdx.x; i < count; i += blockDim.x) {
    double product = -HUGE_VAL;
    if (list[i] >= 0) {
      product = 0;
      for (int d = 0; d < Record::head_dim; ++d) {
        product += bf16_number(reinterpret_cast<const std::byte*>(q + d)) *
                   number_of<Record>(record_of(list[i]), d);
      }
    }
    weight[i] = product * scale;
    highest = fmax(highest, weight[i]);
  }
  highest = by_all(highest, [](double a, double b) { return fmax(a, b); });
  double total = 0;
  for (index_t i = threadIdx.x; i < count; i += blockDim.x) {
    weight[i] = list[i] >= 0 ? exp(weight[i] - highest) : 0;
    total += weight[i];
  }
  total = by_all(total, [](double a, double b) { return a + b; });
  for (int d = static_cast<int>(threadIdx.x); d < Record::latent;
       d += static_cast<int>(blockDim.x)) {
    double sum = 0;
    for (index_t i = 0; i < count; ++i) {
      if (list[i] >= 0) sum += weight[i] * number_of<Record>(record_of(list[i]), d);
    }
    output[row * Record::latent + d] = total > 0 ? sum / total : 0;
  }
  if (threadIdx.x == 0) lses[row] = total > 0 ? highest + log(total) : -HUGE_VAL;
}

}  // namespace kernels

/// A query of random numbers, without gaps. Returns before they are there.
inline void write_query(const device_array<bf16>& query, index_t rows, index_t width,
                        std::uint32_t seed, cudaStream_t stream = nullptr) {
  if (rows == 0) return;
  kernels::write_rows<<<static_cast<unsigned>(rows), 128, 0, stream>>>(
      reinterpret_cast<std::uint16_t*>(query.data()), width, seed);
}

/// Writes the tokens `names` to the slots of a cache.
template <class Record>
void write_records(std::byte* memory, const paged_kv<Record, memory_space::device>& kv,
                   const std::vector<index_t>& slots, const std::vector<index_t>& names,
                   std::uint32_t seed) {
  REQUIRE(slots.size() == names.size());
  if (slots.empty()) return;
  const device_array<index_t> to(slots);
  const device_array<index_t> tokens(names);
  kernels::write_records<Record>
      <<<static_cast<unsigned>(slots.size()), 128>>>(memory, kv, to.data(), tokens.data(), seed);
  REQUIRE_CUDA(cudaDeviceSynchronize());
}

/// The truth for a packed query and lists of slots, [sequence, most], of which query tokens see the
/// first bounds[token].
template <class Record>
answers device_answers(const device_array<bf16>& query,
                       const paged_kv<Record, memory_space::device>& kv,
                       const std::vector<index_t>& slots, index_t most,
                       const std::vector<index_t>& bounds, index_t query_tokens, index_t heads,
                       double scale) {
  answers truth({static_cast<index_t>(bounds.size()), heads, Record::latent});
  const index_t rows = truth.of.tokens * heads;
  const device_array<index_t> lists(slots);
  const device_array<index_t> counts(bounds);
  const device_array<double> weights(rows * most);
  const device_array<double> output(rows * Record::latent);
  const device_array<double> lses(rows);
  kernels::attend_rows<Record><<<static_cast<unsigned>(rows), kernels::threads>>>(
      query.data(), kv, lists.data(), most, counts.data(), query_tokens, heads, scale,
      weights.data(), output.data(), lses.data());
  REQUIRE_CUDA(cudaDeviceSynchronize());
  truth.output = output.fetch();
  truth.lses = lses.fetch();
  return truth;
}

/// A batch of sequences that may be long.
template <class Record>
struct long_step {
  std::vector<std::int32_t> lengths;
  index_t query_tokens;
  index_t heads;
  std::uint32_t seed;
  double scale = 0.02;
  device_array<bf16> query;  ///< [token, head, head_dim]

  long_step(std::vector<std::int32_t> all_lengths, index_t q, index_t h, std::uint32_t with_seed)
      : lengths(std::move(all_lengths)),
        query_tokens(q),
        heads(h),
        seed(with_seed),
        query(tokens() * h * Record::head_dim) {
    renew_query(seed);
  }
  void renew_query(std::uint32_t with_seed) {
    write_query(query, tokens() * heads, Record::head_dim, with_seed);
    REQUIRE_CUDA(cudaDeviceSynchronize());
  }

  index_t sequences() const { return static_cast<index_t>(lengths.size()); }
  index_t tokens() const { return sequences() * query_tokens; }
  shape result_shape() const { return {tokens(), heads, Record::latent}; }

  device_view<const bf16, rows_layout> query_view() const {
    return {query.data(), rows_of({tokens(), heads, Record::head_dim})};
  }

  /// What a rank holds, in pages in no order; NaN elsewhere. Rows and pages are `gap` bytes apart.
  struct cache {
    index_t width;                    ///< of the table
    index_t most;                     ///< tokens of a sequence that it has pages for
    std::vector<std::int32_t> names;  ///< of pages, [sequence, width]
    std::vector<index_t> slots;       ///< [sequence, most], -1 behind the last token
    device_array<std::byte> memory;
    paged_kv<Record, memory_space::device> kv;
    device_array<std::int32_t> table;

    cache(const long_step& step, index_t page_size, index_t gap = 0, kv_shard shard = {})
        : width(width_of(step, page_size, shard)),
          most(width * page_size),
          names(at(step.sequences() * width), 2147480000),
          slots(at(step.sequences() * most), -1),
          memory((step.sequences() * width + 2) * (page_size * (Record::record_bytes + gap) + gap)),
          kv{memory.data(), step.sequences() * width + 2, page_size,
             page_size * (Record::record_bytes + gap) + gap, Record::record_bytes + gap},
          table(step.sequences() * width) {
      std::vector<std::int32_t> order(at(kv.page_count));
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
      random_source random(step.seed);
      std::shuffle(order.begin(), order.end(), random.engine);
      std::vector<index_t> held_slots;
      std::vector<index_t> held_names;
      for (index_t s = 0; s < step.sequences(); ++s) {
        for (index_t i = 0; i < shard.local_length(step.lengths[at(s)]); ++i) {
          const std::size_t entry = at(s * width + i / page_size);
          names[entry] = order[entry];
          const index_t slot = order[entry] * page_size + i % page_size;
          slots[at(s * most + i)] = slot;
          held_slots.push_back(slot);
          held_names.push_back((s << 32) + shard.global(i));
        }
      }
      table.upload(names);
      write_records(memory.data(), kv, held_slots, held_names, step.seed);
    }

    device_view<const std::int32_t, table_layout> block_table() const {
      using namespace headwise;
      return {table.data(), table_layout(dim<axis::sequence>(table.size() / width, width),
                                         dim<axis::page>(width, 1))};
    }

   private:
    static index_t width_of(const long_step& step, index_t page_size, kv_shard shard) {
      index_t width = 1;
      for (const std::int32_t length : step.lengths) {
        width = std::max(width, shard.pages(length, page_size));
      }
      return width;
    }
  };

  /// Of an unsharded cache, for lengths that are these or shorter.
  answers truth(const cache& whole, const std::vector<std::int32_t>& of_lengths) const {
    std::vector<index_t> bounds;
    for (index_t t = 0; t < tokens(); ++t) {
      const index_t length = of_lengths[at(t / query_tokens)];
      bounds.push_back(std::max(length - query_tokens + 1 + t % query_tokens, index_t{0}));
    }
    return device_answers(query, whole.kv, whole.slots, whole.most, bounds, query_tokens, heads,
                          scale);
  }
  answers truth(const cache& whole) const { return truth(whole, lengths); }

  /// Puts the step on a stream.
  template <class Element, log_base Base>
  headwise::status launch(const cache& from, const device_lengths<>& of_lengths,
                          const device_results<Element, Base>& to,
                          const device_workspace& workspace, const headwise::on_stream& stream,
                          const headwise::mla_launch& how = {}, kv_shard shard = {}) const {
    return headwise::kernel::mla_decode(
        query_view(), from.kv, from.block_table(), of_lengths.view(),
        headwise::mla_options{scale, query_tokens, shard}, to.output_view(), to.lse_view(),
        workspace.all(), stream, how);
  }

  /// Runs it.
  template <class Element, log_base Base = log_base::e>
  answers decode(const cache& from, const headwise::mla_launch& how = {},
                 kv_shard shard = {}) const {
    const device_lengths<> all_lengths(lengths);
    const device_results<Element, Base> results(result_shape());
    const auto workspace = device_workspace::of<Record>(query_tokens * heads, how);
    const support::stream stream;
    require_ok(launch(from, all_lengths, results, workspace, stream, how, shard));
    stream.wait();
    CHECK(workspace.stray_bytes() == 0);
    return results.fetch();
  }
};

/// Gigabytes, which a device may not have: then there is none of it. All NaN.
class vast_memory {
 public:
  explicit vast_memory(std::size_t bytes) : bytes_(bytes) {
    if (cudaMalloc(reinterpret_cast<void**>(&memory_), bytes) != cudaSuccess) {
      memory_ = nullptr;
      static_cast<void>(cudaGetLastError());
      MESSAGE("not run: the device has no ", bytes >> 20, " MiB for it");
      return;
    }
    poison();
  }
  vast_memory(const vast_memory&) = delete;
  vast_memory& operator=(const vast_memory&) = delete;
  ~vast_memory() { cudaFree(memory_); }

  void poison() const {
    REQUIRE_CUDA(cudaMemset(memory_, 0xff, bytes_));
    REQUIRE_CUDA(cudaDeviceSynchronize());
  }
  bool there() const { return memory_ != nullptr; }
  std::byte* data() const { return memory_; }

 private:
  std::size_t bytes_;
  std::byte* memory_ = nullptr;
};

}  // namespace mla_test
