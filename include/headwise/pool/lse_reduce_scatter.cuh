// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/pool/rows.cuh>

// One-shot LSE reduce-scatter over peer memory, in one launch: every rank writes each peer's rows
// of its partial result into a slot, through the strides of the caller's view, and combines what
// the peers wrote with its own rows, which do not travel.
//
// template  Base; Chunk, shards in flight (2 for two ranks); Vector, whether rows are whole aligned
//           units; the types of the views, whose static strides the compiler folds in; Rules, for
//           tests that break an invariant
// grid      a pure function of the shape and the block budget of the channel: all of it is resident
// block     ll: x: the 32 to 128 threads of a row; y: rows. push, pull: 4 warps that send chunks
//           of rows, 4 that combine them
// in, out   as detail::check_reduce_scatter() takes them; row i is head i % (H/N) of token i/(H/N)
// numerics  the steps of lse/partial.hpp in the order of ranks: the bits of the host

namespace headwise::inline v0 {

namespace detail {

/// The operands of a call, by value.
template <class Partial, class Lse, class Valid, class Result, class Merged, class Sink,
          class Policy>
struct reduce_operands {
  using element = typename Partial::value_type;
  using result_element = typename Result::value_type;

  Partial partial_output;
  Lse partial_lse;
  Valid valid;
  Result output;
  Merged merged_lse;
  Sink sink;
  Policy policy;
  pool_rows rows;  ///< of one rank
  row_divider heads;

  __device__ unsigned head_dim() const noexcept {
    return static_cast<unsigned>(output.template extent<axis::head_dim>());
  }
  /// Row `at` of the part of `rank`.
  __device__ auto row_for(int rank, const row_place& at) const noexcept {
    return row_of(partial_output, at.outer, head_for(rank, at));
  }
  template <log_base Base>
  __device__ lse<Base> lse_for(int rank, const row_place& at) const noexcept {
    return lse_to_send<Base>(partial_lse, valid, at.outer, head_for(rank, at));
  }

  /// NaN in every row of the results, so that no plausible number survives.
  __device__ void poison(unsigned lane) const noexcept {
    for (index_t row = 0; row < rows.count; ++row) {
      const row_place at = heads.place(static_cast<std::uint32_t>(row));
      const auto out = row_of(output, at.outer, at.inner);
      auto* const to = const_cast<result_element*>(out.data);
      for (index_t d = lane; d < head_dim(); d += 32) {
        to[d * out.stride] = from_float<result_element>(canonical_nan());
      }
      if constexpr (!is_none<Merged>) {
        if (lane == 0) {
          element_of(permute<axis::token, axis::head>(merged_lse), at.outer, at.inner) =
              bit_cast<typename Merged::value_type>(canonical_nan());
        }
      }
    }
  }

 private:
  __device__ index_t head_for(int rank, const row_place& at) const noexcept {
    return rank * output.template extent<axis::head>() + at.inner;
  }
};

/// One row on its way from its shards to its result, by the warps whose threads are numbered
/// `thread` of `threads`. Own rows come from the caller's memory.
template <log_base Base, int Chunk, bool Vector, class Form, class Operands>
class combined_row {
  using element = typename Operands::element;
  using result_element = typename Operands::result_element;
  using unit = typename Form::unit;
  using raw = typename Form::raw;
  static constexpr int columns = Form::bytes / static_cast<int>(sizeof(element));
  static constexpr int in_flight = Chunk == 2 ? 2 : 1;  // units of a thread

 public:
  /// What this rank has itself: before anything of the peers is there.
  __device__ void load_own(const Operands& with, const channel_ports& ports, const pool_turn& turn,
                           const row_place& at, unsigned thread, unsigned threads) noexcept {
    own_ = with.row_for(ports.rank, at);
    load_own_units(with, ports, turn, thread, threads, 0);
    const auto lane = static_cast<int>(thread % 32);
    mine_ = -infinity();
    if (Chunk == 2 || lane == ports.rank) {
      mine_ = with.template lse_for<Base>(ports.rank, at).value;
    }
  }

  /// `from(s)` is where the row of shard s lies in its slot, `lse_at(s)` where its LSE does. Waits
  /// for LSEs, where they are to be waited for, before it loads payload: they are sent behind it,
  /// and to look for all of it again and again would keep it from coming. Of two shards every
  /// thread has both LSEs, of more lane s has that of shard s.
  template <class From, class LseAt>
  __device__ void load_peers(const Operands& with, const channel_ports& ports, pool_turn& turn,
                             unsigned thread, unsigned threads, const From& from,
                             const LseAt& lse_at) noexcept {
    const auto lane = static_cast<int>(thread % 32);
    const int source = Chunk == 2 ? 1 - ports.rank : lane < ports.ranks ? lane : ports.rank;
    if (source != ports.rank) {
      theirs_ = Form::load_lse(lse_at(source));
      while (!Form::ready(theirs_, turn) && !gives_up(ports, turn, source)) {
        theirs_ = Form::load_lse(lse_at(source));
      }
    }
    load_peer_units(with, ports, thread, threads, 0, from);
  }

  template <class From>
  __device__ void combine(const Operands& with, const channel_ports& ports, pool_turn& turn,
                          const row_place& at, unsigned thread, unsigned threads,
                          const From& from) noexcept {
    const int n = ports.ranks;
    const auto lane = static_cast<int>(thread % 32);
    const int source = Chunk == 2 ? 1 - ports.rank : lane < n ? lane : ports.rank;
    float theirs = mine_;
    if (source != ports.rank) theirs = Form::unwrap_lse(theirs_, ports, turn, source);
    // What one lane has found out is true for all.
    if (Chunk > 2 && warp_failed(turn)) return;
    float weights[Chunk == 2 ? 2 : 1];
    merged_row all;
    if constexpr (Chunk == 2) {
      const bool first = ports.rank == 0;
      all = combine_weights_of_two<Base>(2, first ? mine_ : theirs, first ? theirs : mine_,
                                         with.policy, weights);
    } else {
      all = combine_weights_of_warp<Base, Chunk>(n, theirs, with.policy, weights[0]);
    }
    [[maybe_unused]] float factor = 1.0f;
    if constexpr (!is_none<decltype(with.sink)>) {
      factor =
          sink_factor(all.template merged<Base>(), load_lse<Base>(element_of(with.sink, at.inner)));
    }
    const auto out = row_of(with.output, at.outer, at.inner);
    auto* const to = const_cast<result_element*>(out.data);

    const unsigned units = units_of(with);
    const unsigned first_of_warp = thread & ~31u;
    for (unsigned base = first_of_warp; base < units; base += threads * in_flight) {
      const unsigned first = base + thread % 32;
      float sums[in_flight][columns];
#pragma unroll
      for (int k = 0; k < in_flight; ++k) {
#pragma unroll
        for (int c = 0; c < columns; ++c) sums[k][c] = accumulator_start();
      }
      for (int s0 = 0; s0 < n; s0 += Chunk) {
        if (s0 > 0 || base != first_of_warp) {
          load_own_units(with, ports, turn, first, threads, s0);
          load_peer_units(with, ports, first, threads, s0, from);
        }
        wait(with, ports, turn, first, threads, s0, from);
        if constexpr (Chunk > 2) __syncwarp();
#pragma unroll
        for (int i = 0; i < Chunk; ++i) {
          float weight;
          if constexpr (Chunk == 2) {
            weight = weights[i];
          } else {
            weight = __shfl_sync(whole_warp, weights[0], (s0 + i) % 32);
          }
          // As accumulate(): selected out. Beyond the shards every weight is 0.
          if (float_bits(weight) == 0) continue;
#pragma unroll
          for (int k = 0; k < in_flight; ++k) {
            const unit data = Form::unwrap(in_[k][i]);
#pragma unroll
            for (int c = 0; c < columns; ++c) {
              sums[k][c] = fma_rn(weight, data.number(c), sums[k][c]);
            }
          }
        }
      }
      if (turn.failed != 0) continue;
#pragma unroll
      for (int k = 0; k < in_flight; ++k) {
        const unsigned index = first + static_cast<unsigned>(k) * threads;
        if (index >= units) continue;
        if (!is_none<decltype(with.sink)> || !all.live()) {
#pragma unroll
          for (int c = 0; c < columns; ++c) {
            sums[k][c] = finish(sums[k][c], lse<Base>{all.highest});
            if constexpr (!is_none<decltype(with.sink)>) {
              sums[k][c] = apply_sink(sums[k][c], factor);
            }
          }
        }
        row_unit<result_element, Form::bytes> rounded;
        rounded.round(sums[k]);
        store_unit<Vector, result_element, Form::bytes>(rounded, to, out.stride, index,
                                                        with.head_dim());
      }
    }
    if constexpr (!is_none<decltype(with.merged_lse)>) {
      // In place of this rank's own LSE too: then the row is one warp's, which has read it.
      __syncwarp();
      if (thread == 0 && turn.failed == 0) {
        using merged_element = typename decltype(with.merged_lse)::value_type;
        element_of(permute<axis::token, axis::head>(with.merged_lse), at.outer, at.inner) =
            bit_cast<merged_element>(all.template merged<Base>().value);
      }
    }
  }

 private:
  __device__ static unsigned units_of(const Operands& with) noexcept {
    return (with.head_dim() + columns - 1) / columns;
  }
  template <class F>
  __device__ void each_unit(const Operands& with, const channel_ports& ports, unsigned first,
                            unsigned threads, int s0, const F& f) noexcept {
    const unsigned units = units_of(with);
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      const unsigned index = first + static_cast<unsigned>(k) * threads;
#pragma unroll
      for (int i = 0; i < Chunk; ++i) {
        if (s0 + i < ports.ranks && index < units) f(in_[k][i], s0 + i, index);
      }
    }
  }
  __device__ void load_own_units(const Operands& with, const channel_ports& ports,
                                 const pool_turn& turn, unsigned first, unsigned threads,
                                 int s0) noexcept {
    each_unit(with, ports, first, threads, s0, [&](raw& bits, int s, unsigned index) {
      if (s != ports.rank) return;
      unit data;
      load_unit<Vector, element, Form::bytes>(data, own_.data, own_.stride, index, with.head_dim());
      bits = Form::wrap(data, turn);
    });
  }
  template <class From>
  __device__ void load_peer_units(const Operands& with, const channel_ports& ports, unsigned first,
                                  unsigned threads, int s0, const From& from) noexcept {
    each_unit(with, ports, first, threads, s0, [&](raw& bits, int s, unsigned index) {
      if (s != ports.rank) bits = Form::load(from(s) + index_t{index} * 16);
    });
  }
  /// Looks again for all that has not come, all at once.
  template <class From>
  __device__ void wait(const Operands& with, const channel_ports& ports, pool_turn& turn,
                       unsigned first, unsigned threads, int s0, const From& from) noexcept {
    while (turn.failed == 0) {
      int missing = ports.rank;
      each_unit(with, ports, first, threads, s0, [&](const raw& bits, int s, unsigned) {
        if (!Form::ready(bits, turn)) missing = s;
      });
      if (missing == ports.rank || gives_up(ports, turn, missing)) return;
      each_unit(with, ports, first, threads, s0, [&](raw& bits, int s, unsigned index) {
        if (!Form::ready(bits, turn)) bits = Form::load(from(s) + index_t{index} * 16);
      });
    }
  }

  partial_row<element> own_;
  float mine_;
  typename Form::lse_raw theirs_;
  raw in_[static_cast<std::size_t>(in_flight)][static_cast<std::size_t>(Chunk)];
};

/// By a warp that is done. Where its turn has failed, no result stays.
template <class Operands>
__device__ void end_turn(const Operands& with, const channel_ports& ports, pool_turn& turn,
                         std::uint64_t poison) noexcept {
  if (turn.failed == 0) turn.failed = poison;
  if (warp_failed(turn) && poison_channel(ports, turn)) {
    with.poison((threadIdx.y * blockDim.x + threadIdx.x) % 32);
  }
}

/// Items of work of a thread, `batch` at a time, of one row or chunk after the other: what is
/// loaded before the epoch is known is the first of them.
template <class Unit, unsigned Batch>
struct unit_batch {
  Unit unit[Batch];
  float lse;
};

template <log_base Base, int Chunk, bool Vector, class Rules, class Operands>
__global__ void __launch_bounds__(pool_threads, pool_blocks_per_multiprocessor)
    reduce_scatter_lines_kernel(const __grid_constant__ channel_ports ports,
                                const __grid_constant__ Operands with, std::uint32_t signature,
                                row_divider units_of_row) {
  using element = typename Operands::element;
  using form = line_form<element>;
  constexpr unsigned batch = Chunk == 2 ? 2 : 4;
  enter_pool_kernel(ports);
  const turn_words words = load_turn(ports);
  const auto rows = static_cast<std::uint32_t>(with.rows.count);
  const std::uint32_t first_row = blockIdx.x * blockDim.y + threadIdx.y;
  const std::uint32_t row_step = gridDim.x * blockDim.y;
  const index_t pitch = with.rows.lines() * ll_line;
  const auto units = static_cast<unsigned>(with.rows.lines() - 1);
  const auto peers = static_cast<unsigned>(ports.ranks - 1);
  const unsigned items = peers * units;
  const int lse_peer = peer_at(ports, 1 + static_cast<int>(threadIdx.x));

  unit_batch<typename form::unit, batch> moved;
  const auto load = [&](std::uint32_t row, unsigned first) {
    const row_place at = with.heads.place(row);
    if (first == threadIdx.x && first < peers) {
      moved.lse = with.template lse_for<Base>(lse_peer, at).value;
    }
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const unsigned item = first + k * blockDim.x;
      if (item >= items) continue;
      const row_place of = units_of_row.place(item);
      const auto from = with.row_for(peer_at(ports, 1 + static_cast<int>(of.outer)), at);
      load_unit<Vector, element, form::bytes>(moved.unit[k], from.data, from.stride,
                                              static_cast<unsigned>(of.inner), with.head_dim());
    }
  };
  // One that has no payload to send, of rows without columns, may have an LSE.
  std::uint32_t row = threadIdx.x < greater(items, peers) ? first_row : rows;
  unsigned first = threadIdx.x;
  if (row < rows) load(row, first);

  pool_turn turn = begin_turn<Rules>(words, signature, pool_operation::reduce_scatter);
  wipe_next_slot(ports, turn);
  announce(ports, turn);
  // A peer may still read what a channel that has failed held: nothing is sent over it.
  while (row < rows && turn.failed == 0) {
    const auto to = [&](int peer) {
      return ports.slab[peer] + ports.layout.ll_at(turn.slot, ports.rank) + row * pitch;
    };
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const unsigned item = first + k * blockDim.x;
      if (item >= items) continue;
      const row_place of = units_of_row.place(item);
      store_line(to(peer_at(ports, 1 + static_cast<int>(of.outer))) + of.inner * ll_line,
                 form::wrap(moved.unit[k], turn));
    }
    if (first == threadIdx.x && first < peers) {
      store_line(to(lse_peer) + index_t{units} * ll_line,
                 tagged_line::of(float_bits(moved.lse), turn.signature, turn.tag()));
    }
    first += batch * blockDim.x;
    if (first >= items) {
      first = threadIdx.x;
      row += row_step;
    }
    if (row < rows) load(row, first);
  }
  // All of the block know the epoch.
  __syncthreads();
  if (threadIdx.x == blockDim.x - 1 && threadIdx.y == blockDim.y - 1) advance_epoch(ports, turn);
  const std::uint64_t poison = load_poison(ports);

  for (row = first_row; row < rows && !warp_failed(turn); row += row_step) {
    const row_place at = with.heads.place(row);
    const auto from = [&](int source) {
      return ports.own() + ports.layout.ll_at(turn.slot, source) + row * pitch;
    };
    const auto lse_at = [&](int source) { return from(source) + index_t{units} * ll_line; };
    combined_row<Base, Chunk, Vector, form, Operands> combined;
    combined.load_own(with, ports, turn, at, threadIdx.x, blockDim.x);
    combined.load_peers(with, ports, turn, threadIdx.x, blockDim.x, from, lse_at);
    combined.combine(with, ports, turn, at, threadIdx.x, blockDim.x, from);
  }
  end_turn(with, ports, turn, poison);
}

/// Which row of a chunk is for which peer: row by row, peer by peer.
struct sent_row {
  index_t row;
  int peer;
};

template <log_base Base, int Chunk, bool Vector, bool Pull, class Rules, class Operands>
__global__ void __launch_bounds__(pool_threads, pool_blocks_per_multiprocessor)
    reduce_scatter_chunks_kernel(const __grid_constant__ channel_ports ports,
                                 const __grid_constant__ Operands with, std::uint32_t signature,
                                 pool_chunks chunks, row_divider units_of_row,
                                 row_divider peers_of_row) {
  using element = typename Operands::element;
  using form = slot_form<element>;
  constexpr unsigned batch = 8;
  enter_pool_kernel(ports);
  const turn_words words = load_turn(ports);
  const index_t pitch = with.rows.pitch();
  const index_t lses = with.rows.count * pitch;
  const auto units = static_cast<unsigned>(with.rows.units());
  const auto peers = static_cast<unsigned>(ports.ranks - 1);
  const unsigned lane = threadIdx.x % 32;
  const bool sends = threadIdx.x < pool_senders * 32;
  const index_t chunk_step = index_t{gridDim.x} * pool_senders;
  // Rows of a chunk, one for each peer.
  const auto rows_in = [&](index_t chunk) {
    return static_cast<unsigned>(lesser(chunks.rows, with.rows.count - chunk * chunks.rows)) *
           peers;
  };
  const auto sent = [&](index_t chunk, unsigned number) {
    const row_place of = peers_of_row.place(number);
    return sent_row{chunk * chunks.rows + of.outer, peer_at(ports, 1 + static_cast<int>(of.inner))};
  };
  const auto place_of = [&](index_t row) {
    return with.heads.place(static_cast<std::uint32_t>(row));
  };

  // What can be read before the epoch is known.
  unit_batch<typename form::unit, batch> moved;
  const auto load = [&](index_t chunk, unsigned first) {
    const unsigned rows = rows_in(chunk);
    if (first == lane && lane < rows) {
      const sent_row of = sent(chunk, lane);
      moved.lse = with.template lse_for<Base>(of.peer, place_of(of.row)).value;
    }
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const unsigned item = first + k * 32;
      if (item >= rows * units) continue;
      const row_place line = units_of_row.place(item);
      const sent_row of = sent(chunk, static_cast<unsigned>(line.outer));
      const auto from = with.row_for(of.peer, place_of(of.row));
      load_unit<Vector, element, form::bytes>(moved.unit[k], from.data, from.stride,
                                              static_cast<unsigned>(line.inner), with.head_dim());
    }
  };
  index_t chunk = warp_of_chunks();
  unsigned first = lane;
  if (sends && chunk < chunks.count) load(chunk, first);

  pool_turn turn = begin_turn<Rules>(words, signature, pool_operation::reduce_scatter);
  wipe_next_slot(ports, turn);
  announce(ports, turn);
  __syncthreads();
  if (threadIdx.x == pool_threads - 1) advance_epoch(ports, turn);
  // Where what goes from one rank to another lies: at the reader, or at the writer.
  const auto region = [&](int writer, int reader) {
    return ports.slab[Pull ? writer : reader] +
           ports.layout.payload_at(turn.slot, Pull ? reader : writer);
  };
  const auto lse_place = [&](int writer, int reader, index_t of_chunk, index_t row) {
    return region(writer, reader) + lses + of_chunk * chunks.lse_pitch() +
           (row - of_chunk * chunks.rows) * index_t{sizeof(float)};
  };

  if (sends) {
    while (chunk < chunks.count && turn.failed == 0) {
      const index_t done = chunk;
      const unsigned rows = rows_in(chunk);
#pragma unroll
      for (unsigned k = 0; k < batch; ++k) {
        const unsigned item = first + k * 32;
        if (item >= rows * units) continue;
        const row_place line = units_of_row.place(item);
        const sent_row of = sent(chunk, static_cast<unsigned>(line.outer));
        form::store(region(ports.rank, of.peer) + of.row * pitch + line.inner * 16,
                    form::wrap(moved.unit[k], turn));
      }
      if (first == lane) {
        for (unsigned number = lane; number < rows; number += 32) {
          const sent_row of = sent(chunk, number);
          if (number != lane) {
            moved.lse = with.template lse_for<Base>(of.peer, place_of(of.row)).value;
          }
          *reinterpret_cast<float*>(lse_place(ports.rank, of.peer, chunk, of.row)) = moved.lse;
        }
      }
      first += batch * 32;
      if (first - lane >= rows * units) {
        first = lane;
        chunk += chunk_step;
      }
      if (chunk < chunks.count) load(chunk, first);
      if (chunk != done) flag_chunk(ports, turn, done);
    }
    return;
  }

  const std::uint64_t poison = load_poison(ports);
  for (; chunk < chunks.count && !warp_failed(turn); chunk += chunk_step) {
    const auto source = static_cast<int>(lane);
    if (source < ports.ranks && source != ports.rank) wait_for_chunk(ports, turn, source, chunk);
    __syncwarp();
    if (warp_failed(turn)) break;
    const index_t end = lesser((chunk + 1) * chunks.rows, with.rows.count);
    for (index_t row = chunk * chunks.rows; row < end; ++row) {
      const row_place at = place_of(row);
      const auto from = [&](int shard) { return region(shard, ports.rank) + row * pitch; };
      const auto lse_at = [&](int shard) { return lse_place(shard, ports.rank, chunk, row); };
      combined_row<Base, Chunk, Vector, form, Operands> combined;
      combined.load_own(with, ports, turn, at, lane, 32);
      combined.load_peers(with, ports, turn, lane, 32, from, lse_at);
      combined.combine(with, ports, turn, at, lane, 32, from);
    }
  }
  end_turn(with, ports, turn, poison);
}

}  // namespace detail

}  // namespace headwise::inline v0
