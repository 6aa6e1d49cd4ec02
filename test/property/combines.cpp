// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Laws of the combine on views: within the bound of float64, and each row's bits its own.

#include <headwise/reference/lse_combine.hpp>
#include <headwise/reference/pack.hpp>
#include <headwise/view/slice.hpp>

#include <support/exact_combine.hpp>
#include <support/guarded.hpp>
#include <support/random.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

using namespace headwise;
using support::guarded;
using support::random_source;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class T>
using outputs_view =
    view<T, layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>>;
template <class T>
using lses_view = view<T, layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>>>;
template <class T>
using output_view = view<T, layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>>;
template <class T>
using lse_view = view<T, layout<dim<axis::token>, dim<axis::head>>>;

/// Strides of a random order of addresses, with random gaps.
template <std::size_t Rank>
std::array<index_t, Rank> some_strides(random_source& random,
                                       const std::array<index_t, Rank>& extents) {
  std::array<int, Rank> order{};
  for (std::size_t i = 0; i < Rank; ++i) order[i] = static_cast<int>(Rank - 1 - i);
  if (random.one_in(2)) random.shuffle(order.data(), static_cast<int>(Rank));
  std::array<index_t, Rank> strides{};
  index_t next = 1;
  for (const int which : order) {
    const auto i = static_cast<std::size_t>(which);
    strides[i] = next;
    next = next * extents[i] + (random.one_in(2) ? 0 : random.in(1, 5));
  }
  return strides;
}

/// Partial results of some ranks in memory of a random layout, with room for one result.
template <class T, class Result = T>
struct shards {
  index_t ranks, tokens, heads, head_dim;
  std::array<index_t, 4> output_strides;
  std::array<index_t, 3> lse_strides;
  std::array<index_t, 3> result_strides;
  std::array<index_t, 2> merged_strides;
  guarded<T> output_memory;
  guarded<float> lse_memory;
  guarded<Result> result_memory;
  guarded<float> merged_memory;

  shards(random_source& random, index_t n, index_t b, index_t h, index_t d)
      : ranks(n),
        tokens(b),
        heads(h),
        head_dim(d),
        output_strides(some_strides<4>(random, {n, b, h, d})),
        lse_strides(some_strides<3>(random, {n, b, h})),
        result_strides(some_strides<3>(random, {b, h, d})),
        merged_strides(some_strides<2>(random, {b, h})),
        output_memory(outputs_of(nullptr).span_size()),
        lse_memory(lses_of(nullptr).span_size()),
        result_memory(result_of(nullptr).span_size()),
        merged_memory(merged_of(nullptr).span_size()) {}

  outputs_view<T> outputs() { return outputs_of(output_memory.data()); }
  lses_view<float> lses() { return lses_of(lse_memory.data()); }
  output_view<Result> result() { return result_of(result_memory.data()); }
  lse_view<float> merged() { return merged_of(merged_memory.data()); }

  /// Within +-reach of each other, some empty in one of the ways to say so, with payloads that must
  /// not be read.
  void fill(random_source& random) {
    const double reach = random.one_in(3) ? 100.0 : random.one_in(2) ? 3.0 : 0.1;
    const double around = random.one_in(4) ? random.real(-1e4, 1e4) : random.real(-20.0, 20.0);
    const bool often_empty = random.one_in(3);
    const auto out = outputs();
    const auto lse = lses();
    for (index_t n = 0; n < ranks; ++n) {
      for (index_t b = 0; b < tokens; ++b) {
        for (index_t h = 0; h < heads; ++h) {
          const bool empty = random.one_in(often_empty ? 2 : 12);
          const float no_keys = random.one_in(3) ? nan : random.one_in(2) ? infinity : -infinity;
          lse(n, b, h) = empty ? no_keys : static_cast<float>(around + random.real(-reach, reach));
          const double scale = std::exp2(random.real(-8.0, 8.0));
          for (index_t d = 0; d < head_dim; ++d) {
            out(n, b, h, d) = empty ? from_float<T>(random.one_in(2) ? nan : infinity)
                                    : from_float<T>(static_cast<float>(random.real(-scale, scale)));
          }
        }
      }
    }
  }

 private:
  outputs_view<T> outputs_of(T* data) const {
    const auto& s = output_strides;
    return {data,
            {dim<axis::rank>(ranks, s[0]), dim<axis::token>(tokens, s[1]),
             dim<axis::head>(heads, s[2]), dim<axis::head_dim>(head_dim, s[3])}};
  }
  lses_view<float> lses_of(float* data) const {
    const auto& s = lse_strides;
    return {data,
            {dim<axis::rank>(ranks, s[0]), dim<axis::token>(tokens, s[1]),
             dim<axis::head>(heads, s[2])}};
  }
  output_view<Result> result_of(Result* data) const {
    const auto& s = result_strides;
    return {data,
            {dim<axis::token>(tokens, s[0]), dim<axis::head>(heads, s[1]),
             dim<axis::head_dim>(head_dim, s[2])}};
  }
  lse_view<float> merged_of(float* data) const {
    return {
        data,
        {dim<axis::token>(tokens, merged_strides[0]), dim<axis::head>(heads, merged_strides[1])}};
  }
};

struct error_tally {
  int wrong = 0;
  double of_bound = 0;      // largest error as a part of its bound
  double of_magnitude = 0;  // of an fp32 result, in 2^-24 sum w |o|
  double of_lse = 0;        // the same of merged LSEs, as a part of their bound
};

template <class T, class Result, log_base Base>
void law_of_error(random_source& random, error_tally& tally) {
  const index_t ranks = random.in(1, 16);
  shards<T, Result> of(random, ranks, random.in(1, 3), random.in(1, 3), random.in(1, 12));
  of.fill(random);
  const auto result = of.result();
  const auto merged = of.merged();
  if (!reference::lse_combine<Base>(gathered_shards{of.outputs(), of.lses()}, result, merged)
           .ok()) {
    ++tally.wrong;
    return;
  }
  if (of.result_memory.stray_bytes(result) + of.merged_memory.stray_bytes(merged) != 0) {
    ++tally.wrong;
  }
  for (index_t b = 0; b < of.tokens; ++b) {
    for (index_t h = 0; h < of.heads; ++h) {
      std::vector<float> lses;
      for (index_t n = 0; n < ranks; ++n) lses.push_back(of.lses()(n, b, h));
      const support::exact_row row = support::merge_exactly(Base, lses);
      const bool empty = !std::isfinite(row.lse);
      const float got_lse = merged(b, h);
      if (empty) {
        if (got_lse != -infinity) ++tally.wrong;
      } else {
        const double bound = support::lse_bound(Base, ranks, row.lse);
        const double error = std::fabs(static_cast<double>(got_lse) - row.lse);
        if (!(error <= bound)) ++tally.wrong;
        tally.of_lse = (std::max)(tally.of_lse, error / bound);
      }
      for (index_t d = 0; d < of.head_dim; ++d) {
        const Result stored = result(b, h, d);
        const auto got = static_cast<double>(to_float(stored));
        if (empty) {
          if (!support::same_bits(stored, from_float<Result>(0.0f))) ++tally.wrong;
          continue;
        }
        std::vector<double> column;
        double largest = 0;
        for (index_t n = 0; n < ranks; ++n) {
          column.push_back(static_cast<double>(to_float(of.outputs()(n, b, h, d))));
          if (std::isfinite(lses[static_cast<std::size_t>(n)])) {
            largest = (std::max)(largest, std::fabs(column.back()));
          }
        }
        const double exact = row.output(column);
        const double magnitude = row.magnitude(column);
        const double bound = support::combine_bound<Result>(ranks, exact, magnitude, largest);
        const double error = std::fabs(got - exact);
        if (!(error <= bound)) ++tally.wrong;
        if (bound > 0) tally.of_bound = (std::max)(tally.of_bound, error / bound);
        if (sizeof(Result) == 4 && magnitude > 0x1p-100) {
          tally.of_magnitude = (std::max)(tally.of_magnitude, error / (0x1p-24 * magnitude));
        }
      }
    }
  }
}

TEST_CASE("the combine of any shards is within its bound of float64 on the same partials") {
  constexpr int iterations = 30000;
  random_source random("error of the combine", iterations);
  error_tally tally;
  for (int i = 0; i < iterations; ++i) {
    switch (i % 6) {
      case 0: law_of_error<float, float, log_base::e>(random, tally); break;
      case 1: law_of_error<float, float, log_base::two>(random, tally); break;
      case 2: law_of_error<bf16, bf16, log_base::e>(random, tally); break;
      case 3: law_of_error<fp16, fp16, log_base::two>(random, tally); break;
      case 4: law_of_error<bf16, float, log_base::e>(random, tally); break;
      default: law_of_error<float, fp16, log_base::e>(random, tally); break;
    }
  }
  std::printf(
      "          largest error: %.3f of the bound; fp32 results %.2f * 2^-24 * sum w|o|; "
      "merged LSE %.3f of its bound\n",
      tally.of_bound, tally.of_magnitude, tally.of_lse);
  CHECK(tally.wrong == 0);
  CHECK(tally.of_bound > 0.1);  // a bound that nothing comes near would show nothing
}

/// A row's output and merged LSE.
template <class T>
struct row_bits {
  std::vector<T> output;
  float lse = 0;
  friend bool operator==(const row_bits& a, const row_bits& b) {
    if (a.output.size() != b.output.size() || !support::same_bits(a.lse, b.lse)) return false;
    for (std::size_t i = 0; i < a.output.size(); ++i) {
      if (!support::same_bits(a.output[i], b.output[i])) return false;
    }
    return true;
  }
};

template <class T>
row_bits<T> row_of(shards<T>& of, index_t b, index_t h) {
  row_bits<T> row;
  const auto result = of.result();
  for (index_t d = 0; d < of.head_dim; ++d) row.output.push_back(result(b, h, d));
  row.lse = of.merged()(b, h);
  return row;
}

/// The row in a batch of other rows, at another place, in another layout.
template <class T, log_base Base>
row_bits<T> in_another_batch(random_source& random, shards<T>& of, index_t b, index_t h) {
  shards<T> other(random, of.ranks, random.in(1, 6), random.in(1, 4), of.head_dim);
  other.fill(random);
  const index_t at_b = random.in(0, other.tokens - 1);
  const index_t at_h = random.in(0, other.heads - 1);
  for (index_t n = 0; n < of.ranks; ++n) {
    other.lses()(n, at_b, at_h) = of.lses()(n, b, h);
    for (index_t d = 0; d < of.head_dim; ++d) {
      other.outputs()(n, at_b, at_h, d) = of.outputs()(n, b, h, d);
    }
  }
  REQUIRE(reference::lse_combine<Base>(gathered_shards{other.outputs(), other.lses()},
                                       other.result(), other.merged())
              .ok());
  return row_of(other, at_b, at_h);
}

/// Among ranks without keys, which must not change a bit.
template <class T, log_base Base>
row_bits<T> among_empty_ranks(random_source& random, shards<T>& of, index_t b, index_t h) {
  const index_t more = random.in(0, max_ranks - of.ranks);
  shards<T> wider(random, of.ranks + more, 1, 1, of.head_dim);
  for (index_t n = 0, from = 0; n < wider.ranks; ++n) {
    // One of those that are left, or one more that is empty.
    const bool empty = random.in(0, wider.ranks - n - 1) >= of.ranks - from;
    wider.lses()(n, 0, 0) = empty ? -infinity : of.lses()(from, b, h);
    for (index_t d = 0; d < of.head_dim; ++d) {
      wider.outputs()(n, 0, 0, d) = empty ? from_float<T>(nan) : of.outputs()(from, b, h, d);
    }
    if (!empty) ++from;
  }
  REQUIRE(reference::lse_combine<Base>(gathered_shards{wider.outputs(), wider.lses()},
                                       wider.result(), wider.merged())
              .ok());
  return row_of(wider, 0, 0);
}

/// All rows as messages bring them.
template <class T, log_base Base>
void through_messages(random_source& random, shards<T>& of) {
  const message_format format{
      random.one_in(2) ? lse_placement::plane : lse_placement::inline_bits,
      random.one_in(2) ? peer_placement::outermost : peer_placement::inside_heads};
  const wire_order order = random.one_in(2) ? wire_order::token_major : wire_order::head_major;
  const message_plan plan =
      message_plan::make<T>({of.ranks, of.tokens, of.heads, of.head_dim}, format, order).value();
  // A rank whose heads for peer n are shard n: it gets its own messages back.
  shards<T> sender(random, 1, of.tokens, of.ranks * of.heads, of.head_dim);
  for (index_t n = 0; n < of.ranks; ++n) {
    for (index_t b = 0; b < of.tokens; ++b) {
      for (index_t h = 0; h < of.heads; ++h) {
        sender.lses()(0, b, n * of.heads + h) = of.lses()(n, b, h);
        for (index_t d = 0; d < of.head_dim; ++d) {
          sender.outputs()(0, b, n * of.heads + h, d) = of.outputs()(n, b, h, d);
        }
      }
    }
  }
  guarded<std::byte> message(plan.total_bytes);
  REQUIRE(reference::pack<Base>(fix<axis::rank>(sender.outputs(), 0),
                                fix<axis::rank>(sender.lses(), 0), plan, message.data())
              .ok());
  REQUIRE(reference::lse_combine<Base>(received_shards<T>{plan, message.data()}, of.result(),
                                       of.merged())
              .ok());
}

/// All rows from two, three or four views, in place of the last of them.
template <class T, log_base Base>
bool in_place(shards<T>& of, row_bits<T>& got, index_t b, index_t h) {
  const auto one = [&of](index_t n) {
    return shard{fix<axis::rank>(of.outputs(), n), fix<axis::rank>(of.lses(), n)};
  };
  const auto into = one(of.ranks - 1);
  const auto combine = [&](const auto&... all) {
    REQUIRE(
        reference::lse_combine<Base>(separate_shards(all...), into.output, into.partial_lse).ok());
  };
  switch (of.ranks) {
    case 1: combine(one(0)); break;
    case 2: combine(one(0), one(1)); break;
    case 3: combine(one(0), one(1), one(2)); break;
    case 4: combine(one(0), one(1), one(2), one(3)); break;
    default: return false;
  }
  got.output.clear();
  for (index_t d = 0; d < of.head_dim; ++d) got.output.push_back(into.output(b, h, d));
  got.lse = into.partial_lse(b, h);
  return true;
}

struct bits_tally {
  int batch = 0, empty_ranks = 0, messages = 0, in_place = 0, again = 0;
  int tried_in_place = 0;
};

template <class T, log_base Base>
void law_of_bits(random_source& random, bits_tally& wrong) {
  shards<T> of(random, random.one_in(2) ? random.in(1, 4) : random.in(1, 16), random.in(1, 4),
               random.in(1, 3), random.in(1, 9));
  of.fill(random);
  const auto combine = [&] {
    REQUIRE(reference::lse_combine<Base>(gathered_shards{of.outputs(), of.lses()}, of.result(),
                                         of.merged())
                .ok());
  };
  combine();
  const index_t b = random.in(0, of.tokens - 1);
  const index_t h = random.in(0, of.heads - 1);
  const row_bits<T> row = row_of(of, b, h);
  combine();
  if (!(row_of(of, b, h) == row)) ++wrong.again;
  if (!(in_another_batch<T, Base>(random, of, b, h) == row)) ++wrong.batch;
  if (!(among_empty_ranks<T, Base>(random, of, b, h) == row)) ++wrong.empty_ranks;
  through_messages<T, Base>(random, of);
  if (!(row_of(of, b, h) == row)) ++wrong.messages;
  row_bits<T> placed;
  if (in_place<T, Base>(of, placed, b, h)) {  // last: it overwrites a shard
    ++wrong.tried_in_place;
    if (!(placed == row)) ++wrong.in_place;
  }
}

TEST_CASE("a row's bits are its own: not its batch's, its layout's, its ranks' or its way's") {
  constexpr int iterations = 8000;
  random_source random("bits of a row", iterations);
  bits_tally wrong;
  for (int i = 0; i < iterations; ++i) {
    switch (i % 4) {
      case 0: law_of_bits<bf16, log_base::e>(random, wrong); break;
      case 1: law_of_bits<fp16, log_base::two>(random, wrong); break;
      case 2: law_of_bits<float, log_base::e>(random, wrong); break;
      default: law_of_bits<float, log_base::two>(random, wrong); break;
    }
  }
  CHECK(wrong.again == 0);
  CHECK(wrong.batch == 0);
  CHECK(wrong.empty_ranks == 0);
  CHECK(wrong.messages == 0);
  CHECK(wrong.in_place == 0);
  CHECK(wrong.tried_in_place > iterations / 3);
}

}  // namespace
