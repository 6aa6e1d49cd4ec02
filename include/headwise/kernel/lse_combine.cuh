// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/instructions.cuh>
#include <headwise/core/launch.cuh>
#include <headwise/plan/shards.hpp>

// Combines the partial results of N shards, in one launch.
//
// template  Base; Width, bytes of a load; Chunk and OnePass, see the kernel; the source and the
//           types of the views, whose static strides the compiler folds in; the policy for LSEs
//           that are no number
// grid      one-dimensional, any number of rows (token, head)
// block     x: the 32 to 256 threads of a row; y: rows. In each warp lane r turns the LSE of
//           shard r into its weight (of two shards, every lane both); all lanes sum up columns
// in, out   N up to 16, at run time; any strides. An element is read before the one of its place
//           is written, by the same thread, and the LSEs of a row before its merged LSE: output
//           and merged LSE may be those of a shard. The payload of a row without keys is loaded
//           with the others and selected out
// numerics  the steps of lse/partial.hpp, in the order of ranks: the bits of the host

namespace headwise::inline v0 {

namespace detail {

/// What the merged LSE of a row is made of.
struct merged_row {
  float highest = 0.0f;  ///< the largest LSE; NaN if the row is poisoned, -inf if it is empty
  float sum = 0.0f;      ///< of the weights below it

  __device__ bool live() const noexcept { return is_finite(highest); }
  template <log_base Base>
  __device__ lse<Base> merged() const noexcept {
    return live() ? merged_lse<Base>(highest, sum) : lse<Base>{highest};
  }
};

/// combine_weights() of up to two shards, by every lane for itself. The larger LSE weighs exactly 1
/// before the division, so one exponential will do.
template <log_base Base, class Policy>
__device__ merged_row combine_weights_of_two(int n, float first, float second, const Policy& policy,
                                             float (&weights)[2]) noexcept {
  const bool first_empty = policy.is_empty(first);
  const bool second_empty = n < 2 || policy.is_empty(second);
  const bool first_leads =
      second_empty || (!first_empty && ordered_bits(first) >= ordered_bits(second));
  merged_row row;
  row.highest = first_empty && second_empty ? -infinity() : first_leads ? first : second;
  const float below = weight_below<Base>(first_leads ? second : first, row.highest, policy);
  const float other = (first_leads ? second_empty : first_empty) ? 0.0f : below;
  row.sum = add_rn(1.0f, other);
  const float scale = reciprocal(row.sum);
  weights[0] = first_leads ? scale : mul_rn(other, scale);
  weights[1] = first_leads ? mul_rn(other, scale) : scale;
  const bool poisoned = policy.is_poison(first) || (n > 1 && policy.is_poison(second));
  if (poisoned) row.highest = canonical_nan();
  if (!row.live()) weights[0] = weights[1] = poisoned ? canonical_nan() : 0.0f;
  return row;
}

/// combine_weights() by a warp, lane r having the LSE of shard r: the same operations in the same
/// order, but for the largest LSE and the weights, which do not depend on one.
template <log_base Base, int Chunk, class Policy>
__device__ merged_row combine_weights_of_warp(int n, float mine, const Policy& policy,
                                              float& weight_of_lane) noexcept {
  const bool counted = static_cast<int>(threadIdx.x % 32) < n;
  const bool empty = !counted || policy.is_empty(mine);
  const bool poisoned = __any_sync(whole_warp, counted && policy.is_poison(mine)) != 0;
  merged_row row;
  row.highest =
      from_ordered_bits(__reduce_max_sync(whole_warp, ordered_bits(empty ? -infinity() : mine)));
  if (poisoned) row.highest = canonical_nan();
  if (!row.live()) {
    weight_of_lane = poisoned ? canonical_nan() : 0.0f;
    return row;
  }
  const float weight = empty ? 0.0f : weight_below<Base>(mine, row.highest, policy);
  // Lanes beyond the shards hold +0, which adds nothing: up to Chunk of them cost less than a loop.
  if (n <= Chunk) {
#pragma unroll
    for (int r = 0; r < Chunk; ++r) row.sum = add_rn(row.sum, __shfl_sync(whole_warp, weight, r));
  } else {
    for (int r = 0; r < n; ++r) row.sum = add_rn(row.sum, __shfl_sync(whole_warp, weight, r));
  }
  weight_of_lane = mul_rn(weight, reciprocal(row.sum));
  return row;
}

/// `Columns` neighbouring elements of a row, in as few words as they take.
template <class T, int Columns>
struct column_vector {
  static constexpr int bytes = Columns * static_cast<int>(sizeof(T));
  static constexpr int piece_bytes = bytes < 16 ? bytes : 16;
  using piece = typename raw_bits<piece_bytes>::type;
  static constexpr int pieces = bytes / piece_bytes;

  piece held[static_cast<std::size_t>(pieces)];

  __device__ void load(const T* from) noexcept {
#pragma unroll
    for (int i = 0; i < pieces; ++i) held[i] = reinterpret_cast<const piece*>(from)[i];
  }
  __device__ void store(T* to) const noexcept {
#pragma unroll
    for (int i = 0; i < pieces; ++i) reinterpret_cast<piece*>(to)[i] = held[i];
  }
  /// Word i of the vector (in registers: the index is known when compiling).
  __device__ unsigned word(int i) const noexcept {
    if constexpr (piece_bytes == 16) {
      const uint4& four = held[i / 4];
      return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
    } else if constexpr (piece_bytes == 8) {
      return i == 0 ? held[0].x : held[0].y;
    } else {
      return held[0];
    }
  }
  __device__ void set_word(int i, unsigned bits) noexcept {
    if constexpr (piece_bytes == 16) {
      uint4& four = held[i / 4];
      (i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w) = bits;
    } else if constexpr (piece_bytes == 8) {
      (i == 0 ? held[0].x : held[0].y) = bits;
    } else {
      held[0] = static_cast<piece>(bits);
    }
  }
  __device__ float number(int column) const noexcept {
    if constexpr (sizeof(T) == 4) {
      return number_of<T>(word(column));
    } else {
      return number_of<T>(word(column / 2) >> (16 * (column % 2)));
    }
  }
  __device__ void round(const float* numbers) noexcept {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < Columns; ++i) {
        set_word(i, float_bits(is_nan(numbers[i]) ? canonical_nan() : numbers[i]));
      }
    } else if constexpr (Columns == 1) {
      set_word(0, rounded_pair<T>(numbers[0], 0.0f) & 0xffffu);
    } else {
#pragma unroll
      for (int i = 0; i < Columns / 2; ++i) {
        set_word(i, rounded_pair<T>(numbers[2 * i], numbers[2 * i + 1]));
      }
    }
  }
};

/// True where head is the outermost axis of a view over token, head and head_dim.
template <class View>
inline constexpr bool head_leads = false;
template <class T, index_t Extent, index_t Stride, class... Dims, memory_space Space>
inline constexpr bool head_leads<view<T, layout<dim<axis::head, Extent, Stride>, Dims...>, Space>> =
    true;

/// `Chunk` shards are in flight. In one pass there are no more shards than that, and no more
/// vectors in a row than threads; then nothing of the kernel is a loop.
template <log_base Base, int Width, int Chunk, bool OnePass, class Source, class Output,
          class Merged, class Sink, class Policy>
__global__ void __launch_bounds__(256, Width == 16 && !OnePass ? 1 : 0)
    lse_combine_kernel(Source source, Output output, Merged merged, Sink sink, Policy policy,
                       std::uint32_t row_count, row_divider inner, bool merged_in_place) {
  enter_kernel();
  using element = typename Source::element_type;
  using result = typename Output::value_type;
  constexpr int columns = Width / static_cast<int>(sizeof(element));
  const std::uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  const bool inside = row < row_count;
  if (!inside && !merged_in_place) return;
  const row_place place = inner.place(inside ? row : 0);
  const index_t token = head_leads<Output> ? place.inner : place.outer;
  const index_t head = head_leads<Output> ? place.outer : place.inner;

  const int n = source.count();
  const auto rows = source.at(token, head);
  const auto units =
      static_cast<unsigned>(output.template extent<axis::head_dim>() / index_t{columns});
  column_vector<element, columns> in[Chunk];
  const auto load = [&](unsigned unit, int s0) {
#pragma unroll
    for (int i = 0; i < Chunk; ++i) {
      if (s0 + i >= n) break;
      const auto from = rows.row(s0 + i);
      in[i].load(from.data + index_t{unit} * (columns == 1 ? from.stride : index_t{columns}));
    }
  };
  // The LSEs first, and the payload on its way while the weights are made of them.
  float lses[Chunk == 2 ? 2 : 1];
  if constexpr (Chunk == 2) {
    lses[0] = rows.template lse_of<Base>(0).value;
    lses[1] = n > 1 ? rows.template lse_of<Base>(1).value : -infinity();
  } else {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    lses[0] = lane < n ? rows.template lse_of<Base>(lane).value : -infinity();
  }
  if (threadIdx.x < units) load(threadIdx.x, 0);
  float weights[Chunk == 2 ? 2 : 1];
  merged_row all;
  if constexpr (Chunk == 2) {
    all = combine_weights_of_two<Base>(n, lses[0], lses[1], policy, weights);
  } else {
    all = combine_weights_of_warp<Base, Chunk>(n, lses[0], policy, weights[0]);
  }
  float sums[columns];
  const auto add = [&](int s0) {
    float weight[Chunk];
#pragma unroll
    for (int i = 0; i < Chunk; ++i) {
      if constexpr (Chunk == 2) {
        weight[i] = weights[i];
      } else {
        weight[i] = __shfl_sync(whole_warp, weights[0], s0 + i);
      }
    }
#pragma unroll
    for (int i = 0; i < Chunk; ++i) {
      // As accumulate(): selected out. Beyond the shards every weight is 0.
      if (float_bits(weight[i]) == 0) continue;
#pragma unroll
      for (int c = 0; c < columns; ++c) sums[c] = fma_rn(weight[i], in[i].number(c), sums[c]);
    }
  };
  [[maybe_unused]] float factor = 1.0f;
  if constexpr (!is_none<Sink>) {
    factor = sink_factor(all.template merged<Base>(), load_lse<Base>(element_of(sink, head)));
  }
  const auto out = row_of(output, token, head);
  auto* const to = const_cast<result*>(out.data);
  const auto finish_columns = [&](unsigned unit) {
    if (!is_none<Sink> || !all.live()) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        sums[c] = finish(sums[c], lse<Base>{all.highest});
        if constexpr (!is_none<Sink>) sums[c] = apply_sink(sums[c], factor);
      }
    }
    column_vector<result, columns> rounded;
    rounded.round(sums);
    rounded.store(to + index_t{unit} * (columns == 1 ? out.stride : index_t{columns}));
  };
  const auto start = [&] {
#pragma unroll
    for (int c = 0; c < columns; ++c) sums[c] = accumulator_start();
  };

  if constexpr (OnePass) {
    start();
    add(0);
    if (threadIdx.x < units && inside) finish_columns(threadIdx.x);
  } else {
    // All lanes of a warp go round together, as they hand each other weights.
    for (unsigned first = threadIdx.x & ~31u; first < units && inside; first += blockDim.x) {
      const unsigned unit = first + threadIdx.x % 32;
      start();
      for (int s0 = 0; s0 < n; s0 += Chunk) {
        if (unit < units && (s0 > 0 || unit != threadIdx.x)) load(unit, s0);
        add(s0);
      }
      if (unit < units) finish_columns(unit);
    }
  }
  if constexpr (!is_none<Merged>) {
    // Not before all warps of the row have read the LSEs that this one may replace.
    if (merged_in_place) __syncthreads();
    if (threadIdx.x == 0 && inside) {
      element_of(permute<axis::token, axis::head>(merged), token, head) =
          bit_cast<typename Merged::value_type>(all.template merged<Base>().value);
    }
  }
}

/// The grid of a combine of this many rows of `units` vectors.
constexpr launch_shape lse_combine_launch(index_t rows, index_t units, int width) noexcept {
  launch_shape shape;
  if (rows == 0) return shape;
  shape.vector_bytes = width;
  shape.rows_in_y = true;
  while (shape.lanes < 256 && shape.lanes < units) shape.lanes *= 2;
  shape.threads = greater(threads_for(rows * shape.lanes, 128), shape.lanes);
  shape.blocks = static_cast<unsigned>(ceil_div(rows, shape.threads / shape.lanes));
  return shape;
}

/// What loads and stores of a combine are aligned to, in bytes of the source's elements.
template <class Source, class Output>
std::uint64_t lse_combine_alignment(const Source& source, const Output& output) noexcept {
  constexpr std::uint64_t in = sizeof(typename Source::element_type);
  constexpr std::uint64_t out = sizeof(typename Output::value_type);
  const std::uint64_t stores = row_alignment(output);
  const auto columns = static_cast<std::uint64_t>(output.template extent<axis::head_dim>());
  return source.alignment() | (in >= out ? stores * (in / out) : stores / (out / in)) |
         columns * in;
}

}  // namespace detail

namespace kernel {

/// What lse_combine() would launch for these operands.
template <class Source, class Output>
launch_shape lse_combine_shape(const Source& source, const Output& output) noexcept {
  constexpr int least = sizeof(typename Source::element_type);
  const std::uint64_t alignment = detail::lse_combine_alignment(source, output);
  const int width = detail::widest_vector(alignment, least);
  const auto layout = detail::fix_unchecked<axis::head_dim>(output, 0).layout();
  return detail::lse_combine_launch(
      layout.size(), output.template extent<axis::head_dim>() / (width / least), width);
}

/// reference::lse_combine() on a stream, with the same bits; the shards have one element type.
/// One launch; none where there is no row. Operands as there, in place too, in memory that the
/// device reaches.
/// Errors: those of reference::lse_combine(), unsupported (2^31 rows or columns), cuda_failed.
template <log_base Base, class Source, class Output, class Merged = none_t, class Sink = none_t,
          class Policy = nan_policy::empty>
status lse_combine(const Source& source, const Output& output, const on_stream& stream,
                   const Merged& merged = {}, const Sink& sink = {},
                   const Policy& policy = {}) noexcept {
  static_assert(detail::reachable<device_accessible, Source> &&
                    detail::reachable<device_accessible, Output> &&
                    detail::reachable<device_accessible, Merged> &&
                    detail::reachable<device_accessible, Sink>,
                "headwise: a kernel reads and writes views of device or pinned memory");
  const status combined_ok = detail::check_combined<Base>(output, merged, sink);
  if (!combined_ok.ok()) return combined_ok;
  const status source_ok = source.template check<Base>(output);
  if (!source_ok.ok()) return source_ok;
  const index_t heads = output.template extent<axis::head>();
  const index_t tokens = output.template extent<axis::token>();
  const status numbered =
      detail::check_rows("lse_combine", tokens, heads, output.template extent<axis::head_dim>());
  if (!numbered.ok()) return numbered;
  const index_t rows = tokens * heads;
  const index_t inner = detail::head_leads<Output> ? tokens : heads;
  bool merged_in_place = false;
  if constexpr (!detail::is_none<Merged>) {
    merged_in_place = source.has_lse_in(detail::memory_of(merged));
  }
  constexpr int least = sizeof(typename Source::element_type);
  return detail::with_vector<
      least, 0>(detail::lse_combine_alignment(source, output), [&](auto width) -> status {
    const index_t units = output.template extent<axis::head_dim>() / (width.value / index_t{least});
    const launch_shape shape = detail::lse_combine_launch(rows, units, width);
    const auto launch = [&](auto kernel) {
      return detail::launch("lse_combine", kernel, shape, stream, source, output, merged, sink,
                            policy, static_cast<std::uint32_t>(rows), detail::row_divider(inner),
                            merged_in_place);
    };
    if constexpr (width.value == 16) {
      if (units <= shape.lanes && source.count() <= 2) {
        return launch(
            detail::lse_combine_kernel<Base, 16, 2, true, Source, Output, Merged, Sink, Policy>);
      }
      if (units <= shape.lanes && source.count() <= 8) {
        return launch(
            detail::lse_combine_kernel<Base, 16, 8, true, Source, Output, Merged, Sink, Policy>);
      }
    }
    return launch(detail::lse_combine_kernel<Base, width.value, 8, false, Source, Output, Merged,
                                             Sink, Policy>);
  });
}

}  // namespace kernel

}  // namespace headwise::inline v0
