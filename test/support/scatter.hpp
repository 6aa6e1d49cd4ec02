// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/host_executor.hpp>

#include <support/exact_combine.hpp>
#include <support/guarded.hpp>
#include <support/random.hpp>
#include <support/ranks.hpp>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

// One LSE reduce-scatter as a test sees it: what every rank puts in (a pure function of a seed, so
// that any layout and any thread can produce it), and what float64 makes of it.

namespace support {

using headwise::log_base;

/// A well-mixed number from a few others.
inline std::uint64_t mixed(std::uint64_t seed, std::initializer_list<index_t> numbers) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
  for (const index_t number : numbers) {
    x ^= static_cast<std::uint64_t>(number) + 0x9e3779b97f4a7c15u + (x << 6) + (x >> 2);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

/// Uniform in [-1, 1).
inline float unit_float(std::uint64_t bits) {
  return static_cast<float>(static_cast<std::int64_t>(bits) >> 40) * 0x1p-23f;
}

/// Strides of an operand over token, head and head_dim, whatever the order of the axes in its type.
enum class style {
  packed,        ///< [token, head, head_dim] without gaps
  tiled,         ///< the heads of a token padded to a tile of 16
  head_major,    ///< [head, token, head_dim] without gaps
  head_pitched,  ///< head-major with room for more tokens between the heads
  wide_rows,     ///< rows with a gap behind head_dim
  scattered,     ///< elements with a gap between them
};
inline constexpr style all_styles[] = {style::packed,       style::tiled,     style::head_major,
                                       style::head_pitched, style::wide_rows, style::scattered};
inline style any_style(random_source& random) {
  return all_styles[random.in(0, static_cast<index_t>(std::size(all_styles)) - 1)];
}

inline constexpr headwise::message_format all_formats[] = {
    {headwise::lse_placement::plane, headwise::peer_placement::outermost},
    {headwise::lse_placement::inline_bits, headwise::peer_placement::outermost},
    {headwise::lse_placement::plane, headwise::peer_placement::inside_heads},
    {headwise::lse_placement::inline_bits, headwise::peer_placement::inside_heads},
};

struct row_strides {
  index_t token;
  index_t head;
  index_t head_dim;
};

inline row_strides strides_of(style which, index_t tokens, index_t heads, index_t head_dim) {
  const index_t tile = headwise::detail::round_up(heads, 16);
  switch (which) {
    case style::packed: return {heads * head_dim, head_dim, 1};
    case style::tiled: return {tile * head_dim, head_dim, 1};
    case style::head_major: return {head_dim, tokens * head_dim, 1};
    case style::head_pitched: return {head_dim, (tokens + 3) * head_dim, 1};
    case style::wide_rows: return {heads * (head_dim + 5), head_dim + 5, 1};
    case style::scattered: return {heads * head_dim * 2, head_dim * 2, 2};
  }
  return {};
}

/// Memory and view of an operand over token, head and head_dim; `HeadMajor` is the order of the
/// axes in the type.
template <class T, bool HeadMajor = false>
struct rows_operand {
  using token = headwise::axis::token;
  using head = headwise::axis::head;
  using head_dim = headwise::axis::head_dim;
  using layout_type = std::conditional_t<
      HeadMajor,
      headwise::layout<headwise::dim<head>, headwise::dim<token>, headwise::dim<head_dim>>,
      headwise::layout<headwise::dim<token>, headwise::dim<head>, headwise::dim<head_dim>>>;
  using view_type = headwise::view<T, layout_type>;

  static layout_type layout_of(style which, index_t tokens, index_t heads, index_t dim) {
    const row_strides strides = strides_of(which, tokens, heads, dim);
    const headwise::dim<token> t(tokens, strides.token);
    const headwise::dim<head> h(heads, strides.head);
    const headwise::dim<head_dim> d(dim, strides.head_dim);
    if constexpr (HeadMajor) {
      return layout_type(h, t, d);
    } else {
      return layout_type(t, h, d);
    }
  }

  rows_operand(style which, index_t tokens, index_t heads, index_t dim)
      : layout(layout_of(which, tokens, heads, dim)), memory(layout.span_size()) {}

  view_type view() { return {memory.data(), layout}; }
  headwise::view<const T, layout_type> input() { return view(); }
  /// By token, head and head_dim, for expectations.
  auto by_token() { return headwise::permute<token, head, head_dim>(view()); }

  layout_type layout;
  guarded<T> memory;
};

/// The same of an operand over token and head.
template <class T, bool HeadMajor = false>
struct plane_operand {
  using token = headwise::axis::token;
  using head = headwise::axis::head;
  using layout_type =
      std::conditional_t<HeadMajor, headwise::layout<headwise::dim<head>, headwise::dim<token>>,
                         headwise::layout<headwise::dim<token>, headwise::dim<head>>>;

  static layout_type layout_of(style which, index_t tokens, index_t heads) {
    // Rows of one element: a gap behind them is a gap between elements.
    const row_strides strides = strides_of(which, tokens, heads, 1);
    const headwise::dim<token> t(tokens, strides.token);
    const headwise::dim<head> h(heads, strides.head);
    if constexpr (HeadMajor) {
      return layout_type(h, t);
    } else {
      return layout_type(t, h);
    }
  }

  plane_operand(style which, index_t tokens, index_t heads)
      : layout(layout_of(which, tokens, heads)), memory(layout.span_size()) {}

  headwise::view<T, layout_type> view() { return {memory.data(), layout}; }
  headwise::view<const T, layout_type> input() { return view(); }
  auto by_token() { return headwise::permute<token, head>(view()); }

  layout_type layout;
  guarded<T> memory;
};

struct scatter_shape {
  int ranks = 1;
  index_t tokens = 1;
  index_t heads = 1;  ///< of one rank
  index_t head_dim = 1;

  index_t all_heads() const { return heads * ranks; }
  headwise::message_shape message() const { return {ranks, tokens, heads, head_dim}; }
};

/// What the ranks put into a reduce-scatter. About one row in eight is empty on a rank: its LSE is
/// one of the three values that say so, its payload is NaN or has never been written.
template <class T, log_base Base = log_base::e>
struct scatter_problem {
  scatter_shape shape;
  std::uint64_t seed = 1;
  bool sixteenths = false;  ///< LSEs that a 16-bit type can say exactly

  float lse(index_t rank, index_t token, index_t head) const {
    const std::uint64_t bits = mixed(seed, {rank, token, head, -1});
    if (bits % 8 == 0) {
      constexpr float infinity = std::numeric_limits<float>::infinity();
      const float empty[] = {-infinity, infinity, std::numeric_limits<float>::quiet_NaN()};
      return empty[bits / 8 % 3];
    }
    const float value = 8.0f * unit_float(bits);
    return sixteenths ? std::floor(value * 16.0f) / 16.0f : value;
  }
  bool empty(index_t rank, index_t token, index_t head) const {
    return !std::isfinite(lse(rank, token, head));
  }
  T output(index_t rank, index_t token, index_t head, index_t d) const {
    return headwise::from_float<T>(4.0f * unit_float(mixed(seed, {rank, token, head, d})));
  }

  /// Writes what `rank` has; empty rows stay the NaN that the memory was filled with.
  template <class Outputs, class Lses>
  void put(index_t rank, Outputs& partial_output, Lses& partial_lse) const {
    using lse_element = typename decltype(partial_lse.view())::value_type;
    for_each_element(partial_lse.by_token(), [&](const auto& at, index_t offset) {
      partial_lse.view().data()[offset] =
          headwise::from_float<lse_element>(lse(rank, at[0], at[1]));
    });
    for_each_element(partial_output.by_token(), [&](const auto& at, index_t offset) {
      if (empty(rank, at[0], at[1])) return;
      partial_output.view().data()[offset] = output(rank, at[0], at[1], at[2]);
    });
  }

  exact_row exact(index_t token, index_t head) const {
    std::vector<double> lses;
    for (index_t r = 0; r < shape.ranks; ++r) lses.push_back(double{lse(r, token, head)});
    return merge_exactly(Base, lses);
  }

  /// Rows of rank `rank` (its results over token, head and head_dim; its merged LSEs) that are not
  /// what float64 makes of the partials, to the bound of docs/numerics.md.
  template <class Results, class Merged>
  index_t wrong_rows(index_t rank, Results& result, Merged& merged) const {
    index_t wrong = 0;
    const auto out = result.by_token();
    const auto lses = merged.by_token();
    for (index_t token = 0; token < shape.tokens; ++token) {
      for (index_t h = 0; h < shape.heads; ++h) {
        const index_t head = rank * shape.heads + h;
        const exact_row row = exact(token, head);
        bool right = true;
        const double got_lse = double{headwise::to_float(lses(token, h))};
        if (std::isinf(row.lse)) {
          right = got_lse == row.lse;
        } else {
          right = std::fabs(got_lse - row.lse) <= lse_bound(Base, shape.ranks, row.lse);
        }
        for (index_t d = 0; right && d < shape.head_dim; ++d) {
          std::vector<double> values;
          for (index_t r = 0; r < shape.ranks; ++r) {
            values.push_back(double{headwise::to_float(output(r, token, head, d))});
          }
          const double wanted = row.output(values);
          const double bound = combine_bound<T>(shape.ranks, wanted, row.magnitude(values), 4.0);
          const T got = out(token, h, d);
          right = std::isinf(row.lse)
                      ? same_bits(got, headwise::from_float<T>(0.0f))
                      : std::fabs(double{headwise::to_float(got)} - wanted) <= bound;
        }
        wrong += right ? 0 : 1;
      }
    }
    return wrong;
  }
};

/// The operands of one rank, each with strides of its own.
template <class T, class Lse = float, bool HeadMajor = false>
struct scatter_operands {
  scatter_operands(const scatter_shape& shape, style output_style, style lse_style,
                   style result_style = style::packed)
      : partial_output(output_style, shape.tokens, shape.all_heads(), shape.head_dim),
        partial_lse(lse_style, shape.tokens, shape.all_heads()),
        output(result_style, shape.tokens, shape.heads, shape.head_dim),
        merged(result_style, shape.tokens, shape.heads) {}

  /// Bytes outside of the operands that somebody has written.
  index_t stray_bytes() {
    return partial_output.memory.stray_bytes(partial_output.view()) +
           partial_lse.memory.stray_bytes(partial_lse.view()) +
           output.memory.stray_bytes(output.view()) + merged.memory.stray_bytes(merged.view());
  }
  /// Bytes of the results that have been written, wherever.
  index_t written_bytes() { return output.memory.stray_bytes() + merged.memory.stray_bytes(); }

  rows_operand<T, HeadMajor> partial_output;
  plane_operand<Lse> partial_lse;
  rows_operand<T> output;
  plane_operand<float> merged;
};

/// The bytes of a result in the order of token, head and head_dim: what is compared between two
/// calls.
template <class Operand>
std::vector<std::uint8_t> bits_of(Operand& operand) {
  const auto what = operand.by_token();
  using element = typename decltype(operand.view())::value_type;
  std::vector<std::uint8_t> bits;
  for_each_element(what, [&](const auto&, index_t offset) {
    std::uint8_t bytes[sizeof(element)];
    std::memcpy(bytes, what.data() + offset, sizeof(element));
    bits.insert(bits.end(), bytes, bytes + sizeof(element));
  });
  return bits;
}

/// Room for one call of this shape, guarded.
template <class T>
guarded<std::byte> scatter_workspace(const scatter_shape& shape,
                                     const headwise::message_format& format = {}) {
  return guarded<std::byte>(headwise::lse_reduce_scatter_bytes<T>(shape.message(), format).value());
}
inline std::span<std::byte> whole(guarded<std::byte>& memory) {
  return {memory.data(), static_cast<std::size_t>(memory.size())};
}

/// What one rank got, and what went wrong.
struct scatter_outcome {
  headwise::status came_to;
  index_t wrong_rows = 0;
  index_t stray_bytes = 0;
  std::vector<std::uint8_t> output;
  std::vector<std::uint8_t> merged;

  bool good() const { return came_to.ok() && wrong_rows == 0 && stray_bytes == 0; }
  std::string told() const {
    return sentence(came_to) + ", " + std::to_string(wrong_rows) + " wrong rows, " +
           std::to_string(stray_bytes) + " stray bytes";
  }
};

/// One whole call on one rank, from fresh memory to a checked result.
template <class T, log_base Base, class Lse = float, bool HeadMajor = false,
          class Executor = headwise::host_executor>
scatter_outcome scatter_once(headwise::in_process& me, const scatter_problem<T, Base>& problem,
                             style output_style, style lse_style,
                             style result_style = style::packed,
                             const headwise::reduce_scatter_options& options = {},
                             const Executor& executor = {}) {
  scatter_operands<T, Lse, HeadMajor> mine(problem.shape, output_style, lse_style, result_style);
  problem.put(me.rank(), mine.partial_output, mine.partial_lse);
  auto workspace = scatter_workspace<T>(problem.shape, options.format);
  scatter_outcome outcome;
  outcome.came_to = headwise::lse_reduce_scatter<Base>(
      executor, me, mine.partial_output.input(), mine.partial_lse.input(), mine.output.view(),
      mine.merged.view(), whole(workspace), options);
  outcome.wrong_rows = problem.wrong_rows(me.rank(), mine.output, mine.merged);
  // A guard in front of and behind the workspace too.
  const headwise::view workspace_view{
      workspace.data(), headwise::packed(headwise::extent<headwise::axis::slot>(workspace.size()))};
  outcome.stray_bytes = mine.stray_bytes() + workspace.stray_bytes(workspace_view);
  outcome.output = bits_of(mine.output);
  outcome.merged = bits_of(mine.merged);
  return outcome;
}

/// The first of the outcomes that is not good, told; or nothing.
inline std::string first_wrong(const std::vector<scatter_outcome>& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    if (!outcomes[r].good()) return "rank " + std::to_string(r) + ": " + outcomes[r].told();
  }
  return "";
}

/// Whether every rank got the same bits both times.
inline bool same_results(const std::vector<scatter_outcome>& a,
                         const std::vector<scatter_outcome>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t r = 0; r < a.size(); ++r) {
    if (a[r].output != b[r].output || a[r].merged != b[r].merged) return false;
  }
  return true;
}

}  // namespace support
