// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/pool/rows.cuh>

// All-gather of heads over peer memory, in one launch: every rank writes its rows into a slot of
// each peer, through the strides of the caller's view, and copies what the peers wrote into the
// gathered view. Of one operand, or of two behind one exchange.
//
// template  Vector, whether rows are whole aligned units; the types of the views; Rules, for tests
//           that break an invariant
// grid      a pure function of the shape and the block budget of the channel: all of it is resident
// block     ll: x: the 32 to 128 threads of a row; y: rows. push, pull: 4 warps that send chunks
//           of rows, 4 that copy what arrives
// in, out   as detail::check_gather() takes them; row i is head i % h of token i / h
// numerics  moves bits

namespace headwise::inline v0 {

namespace detail {

/// One operand of a call, by value.
template <class Local, class Gathered>
struct gather_part {
  using element = typename Gathered::value_type;

  Local local;
  Gathered gathered;
  pool_rows rows;  ///< of one rank
  row_divider heads;
  row_divider units_of_row;
  pool_chunks chunks;
  index_t offset = 0;           ///< of its first row in a region
  std::uint32_t first_row = 0;  ///< its number among the rows, and its first chunk's among the
  index_t first_chunk = 0;      ///< chunks, of both operands
  bool in_place = false;        ///< this rank's rows stand in the gathered view already

  __device__ unsigned head_dim() const noexcept {
    return static_cast<unsigned>(local.template extent<axis::head_dim>());
  }
  __device__ auto row_from(index_t row) const noexcept {
    const row_place at = heads.place(static_cast<std::uint32_t>(row));
    return row_of(local, at.outer, at.inner);
  }
  /// Where row `row` of `rank` goes.
  __device__ partial_row<element> row_to(int rank, index_t row) const noexcept {
    const row_place at = heads.place(static_cast<std::uint32_t>(row));
    return row_of(gathered, at.outer, rank * local.template extent<axis::head>() + at.inner);
  }
  /// All bits set, a NaN in every format, -1 in an integer, but where the caller's rows stand.
  __device__ void poison(const channel_ports& ports, unsigned lane) const noexcept {
    for (int rank = 0; rank < ports.ranks; ++rank) {
      if (in_place && rank == ports.rank) continue;
      for (index_t row = 0; row < rows.count; ++row) {
        const partial_row<element> out = row_to(rank, row);
        row_unit<element, 16> ones;
        ones.held[0] = uint4{~0u, ~0u, ~0u, ~0u};
        constexpr unsigned columns = 16 / sizeof(element);
        for (unsigned index = lane; index * columns < head_dim(); index += 32) {
          store_unit<false, element, 16>(ones, const_cast<element*>(out.data), out.stride, index,
                                         head_dim());
        }
      }
    }
  }
};

/// Where there is no second operand.
struct no_gather_part {
  pool_rows rows{};
  pool_chunks chunks{0, 0};
  __device__ void poison(const channel_ports&, unsigned) const noexcept {}
};

template <class Second>
inline constexpr bool has_second = !std::is_same_v<Second, no_gather_part>;

/// Calls f(part, number in the part) for a number among the rows of both.
template <class First, class Second, class F>
__device__ void with_row(const First& first, const Second& second, std::uint32_t row,
                         const F& f) noexcept {
  if constexpr (has_second<Second>) {
    if (row >= second.first_row) return f(second, row - second.first_row);
  }
  f(first, row);
}

/// The same for a chunk.
template <class First, class Second, class F>
__device__ void with_chunk(const First& first, const Second& second, index_t chunk,
                           const F& f) noexcept {
  if constexpr (has_second<Second>) {
    if (chunk >= second.first_chunk) return f(second, chunk - second.first_chunk);
  }
  f(first, chunk);
}

/// Takes row `row` of a part from all peers.
template <bool Vector, class Part>
__device__ void receive_row(const Part& part, const channel_ports& ports, pool_turn& turn,
                            index_t row) noexcept {
  using element = typename Part::element;
  using form = line_form<element>;
  constexpr unsigned batch = 2;
  const auto units = static_cast<unsigned>(part.rows.lines() - 1);
  const index_t at = part.offset + row * part.rows.lines() * ll_line;
  const unsigned items = units * static_cast<unsigned>(ports.ranks - 1);
  const auto lines_of = [&](int peer) {
    return ports.own() + ports.layout.ll_at(turn.slot, peer) + at;
  };
  // A warp waits for the lines that are sent last first: to look for all again and again would keep
  // them from coming. Lane s has that of peer s steps on.
  const unsigned lane = threadIdx.x % 32;
  if (lane < static_cast<unsigned>(ports.ranks - 1)) {
    const int source = peer_at(ports, 1 + static_cast<int>(lane));
    const std::byte* const place = lines_of(source) + index_t{units} * ll_line;
    tagged_line line = load_line(place);
    while (!line.carries(turn.tag())) {
      if (gives_up(ports, turn, source)) break;
      line = load_line(place);
    }
    if (turn.failed == 0) check_signature(ports, turn, source, line.second());
  }
  if (warp_failed(turn)) return;
  for (unsigned first = threadIdx.x; first < items; first += batch * blockDim.x) {
    tagged_line lines[batch];
    const std::byte* places[batch];
    unsigned index[batch];
    int peer[batch];
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const unsigned item = first + k * blockDim.x;
      if (item >= items) continue;
      const row_place of = part.units_of_row.place(item);
      index[k] = static_cast<unsigned>(of.inner);
      peer[k] = peer_at(ports, 1 + static_cast<int>(of.outer));
      places[k] = lines_of(peer[k]) + of.inner * ll_line;
      lines[k] = load_line(places[k]);
    }
    while (turn.failed == 0) {
      int missing = ports.rank;
#pragma unroll
      for (unsigned k = 0; k < batch; ++k) {
        if (first + k * blockDim.x < items && !lines[k].carries(turn.tag())) missing = peer[k];
      }
      if (missing == ports.rank || gives_up(ports, turn, missing)) break;
#pragma unroll
      for (unsigned k = 0; k < batch; ++k) {
        if (first + k * blockDim.x < items && !lines[k].carries(turn.tag())) {
          lines[k] = load_line(places[k]);
        }
      }
    }
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      if (first + k * blockDim.x >= items) continue;
      if (turn.failed != 0) continue;
      const partial_row<element> to = part.row_to(peer[k], row);
      store_unit<Vector, element, form::bytes>(form::unwrap(lines[k]),
                                               const_cast<element*>(to.data), to.stride, index[k],
                                               part.head_dim());
    }
  }
}

/// By a warp that is done. Where its turn has failed, no result stays.
template <class First, class Second>
__device__ void end_gather(const First& first, const Second& second, const channel_ports& ports,
                           pool_turn& turn, std::uint64_t poison) noexcept {
  if (turn.failed == 0) turn.failed = poison;
  if (!warp_failed(turn) || !poison_channel(ports, turn)) return;
  const unsigned lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32;
  first.poison(ports, lane);
  second.poison(ports, lane);
}

template <bool Vector, class Rules, class First, class Second>
__global__ void __launch_bounds__(pool_threads, pool_blocks_per_multiprocessor)
    all_gather_lines_kernel(const __grid_constant__ channel_ports ports,
                            const __grid_constant__ First first_part,
                            const __grid_constant__ Second second_part, std::uint32_t signature) {
  constexpr unsigned batch = 2;
  enter_pool_kernel(ports);
  const turn_words words = load_turn(ports);
  const auto rows = static_cast<std::uint32_t>(first_part.rows.count + second_part.rows.count);
  const std::uint32_t first_row = blockIdx.x * blockDim.y + threadIdx.y;
  const std::uint32_t row_step = gridDim.x * blockDim.y;
  const auto each_unit = [&](const auto& part, unsigned first, const auto& f) {
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const unsigned index = first + k * blockDim.x;
      if (index < static_cast<unsigned>(part.rows.lines() - 1)) f(k, index);
    }
  };
  uint2 moved[batch];
  const auto load = [&](std::uint32_t row, unsigned first) {
    with_row(first_part, second_part, row, [&](const auto& part, index_t number) {
      using element = typename std::remove_cvref_t<decltype(part)>::element;
      const auto from = part.row_from(number);
      each_unit(part, first, [&](unsigned k, unsigned index) {
        row_unit<element, ll_data> unit;
        load_unit<Vector, element, ll_data>(unit, from.data, from.stride, index, part.head_dim());
        moved[k] = unit.held[0];
      });
    });
  };
  std::uint32_t row = first_row;
  unsigned first = threadIdx.x;
  if (row < rows) load(row, first);

  pool_turn turn = begin_turn<Rules>(words, signature, pool_operation::all_gather);
  wipe_next_slot(ports, turn);
  announce(ports, turn);
  // A peer may still read what a channel that has failed held: nothing is sent over it.
  while (row < rows && turn.failed == 0) {
    with_row(first_part, second_part, row, [&](const auto& part, index_t number) {
      using element = typename std::remove_cvref_t<decltype(part)>::element;
      const auto units = static_cast<unsigned>(part.rows.lines() - 1);
      const index_t at = ports.layout.ll_at(turn.slot, ports.rank) + part.offset +
                         number * part.rows.lines() * ll_line;
      for (int step = 1; step < ports.ranks; ++step) {
        std::byte* const to = ports.slab[peer_at(ports, step)] + at;
        each_unit(part, first, [&](unsigned k, unsigned index) {
          store_line(to + index_t{index} * ll_line,
                     tagged_line::of(moved[k].x, moved[k].y, turn.tag()));
        });
      }
      if (first == threadIdx.x && first < static_cast<unsigned>(ports.ranks - 1)) {
        store_line(
            ports.slab[peer_at(ports, 1 + static_cast<int>(first))] + at + index_t{units} * ll_line,
            tagged_line::of(0, turn.signature, turn.tag()));
      }
      if (!part.in_place) {
        const partial_row<element> own = part.row_to(ports.rank, number);
        each_unit(part, first, [&](unsigned k, unsigned index) {
          row_unit<element, ll_data> unit;
          unit.held[0] = moved[k];
          store_unit<Vector, element, ll_data>(unit, const_cast<element*>(own.data), own.stride,
                                               index, part.head_dim());
        });
      }
      first += batch * blockDim.x;
      if (first >= units) {
        first = threadIdx.x;
        row += row_step;
      }
    });
    if (row < rows) load(row, first);
  }
  // All of the block know the epoch.
  __syncthreads();
  if (threadIdx.x == blockDim.x - 1 && threadIdx.y == blockDim.y - 1) advance_epoch(ports, turn);
  const std::uint64_t poison = load_poison(ports);
  for (row = first_row; row < rows && !warp_failed(turn); row += row_step) {
    with_row(first_part, second_part, row, [&](const auto& part, index_t number) {
      receive_row<Vector>(part, ports, turn, number);
    });
  }
  end_gather(first_part, second_part, ports, turn, poison);
}

/// Where the rows that go from one rank to another lie. What a rank stages for its peers to pull is
/// the same for all: it lies where its own rows would.
template <bool Pull>
__device__ std::byte* gather_region(const channel_ports& ports, const pool_turn& turn, int writer,
                                    int reader) noexcept {
  return ports.slab[Pull ? writer : reader] + ports.layout.payload_at(turn.slot, writer);
}

/// Copies a peer's chunk into its place, by a warp.
template <bool Vector, bool Pull, class Part>
__device__ void receive_chunk_of(const Part& part, const channel_ports& ports,
                                 const pool_turn& turn, index_t chunk, unsigned lane) noexcept {
  using element = typename Part::element;
  using form = slot_form<element>;
  constexpr unsigned batch = 4;
  const index_t pitch = part.rows.pitch();
  const index_t first_row = chunk * part.chunks.rows;
  const auto rows = static_cast<unsigned>(lesser(part.chunks.rows, part.rows.count - first_row));
  const unsigned items = rows * static_cast<unsigned>(pitch / 16);
  for (int step = 1; step < ports.ranks; ++step) {
    const int peer = peer_at(ports, step);
    const std::byte* const from =
        gather_region<Pull>(ports, turn, peer, ports.rank) + part.offset + first_row * pitch;
    for (unsigned first = lane; first < items; first += batch * 32) {
      typename form::raw bits[batch];
#pragma unroll
      for (unsigned k = 0; k < batch; ++k) {
        // Rows lie one behind the other: a slot is read straight through.
        if (first + k * 32 < items) bits[k] = form::load(from + index_t{first + k * 32} * 16);
      }
#pragma unroll
      for (unsigned k = 0; k < batch; ++k) {
        const unsigned item = first + k * 32;
        if (item >= items) continue;
        const row_place of = part.units_of_row.place(item);
        const partial_row<element> to = part.row_to(peer, first_row + of.outer);
        store_unit<Vector, element, form::bytes>(form::unwrap(bits[k]),
                                                 const_cast<element*>(to.data), to.stride,
                                                 static_cast<unsigned>(of.inner), part.head_dim());
      }
    }
  }
}

template <bool Vector, bool Pull, class Rules, class First, class Second>
__global__ void __launch_bounds__(pool_threads, pool_blocks_per_multiprocessor)
    all_gather_chunks_kernel(const __grid_constant__ channel_ports ports,
                             const __grid_constant__ First first_part,
                             const __grid_constant__ Second second_part, std::uint32_t signature) {
  constexpr unsigned batch = 8;
  enter_pool_kernel(ports);
  const turn_words words = load_turn(ports);
  const index_t chunks = first_part.chunks.count + second_part.chunks.count;
  const unsigned lane = threadIdx.x % 32;
  const bool sends = threadIdx.x < pool_senders * 32;
  const index_t chunk_step = index_t{gridDim.x} * pool_senders;
  const auto items_in = [&](const auto& part, index_t number) {
    return static_cast<unsigned>(
        lesser(part.chunks.rows, part.rows.count - number * part.chunks.rows) * part.rows.units());
  };
  // f(item of the batch, row of the part, unit of the row)
  const auto each_unit = [&](const auto& part, index_t number, unsigned first, const auto& f) {
    const unsigned items = items_in(part, number);
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const unsigned item = first + k * 32;
      if (item >= items) continue;
      const row_place of = part.units_of_row.place(item);
      f(k, number * part.chunks.rows + of.outer, static_cast<unsigned>(of.inner));
    }
  };

  // What can be read before the epoch is known.
  uint4 moved[batch];
  const auto load = [&](index_t chunk, unsigned first) {
    with_chunk(first_part, second_part, chunk, [&](const auto& part, index_t number) {
      using element = typename std::remove_cvref_t<decltype(part)>::element;
      each_unit(part, number, first, [&](unsigned k, index_t row, unsigned index) {
        const auto from = part.row_from(row);
        row_unit<element, 16> unit;
        load_unit<Vector, element, 16>(unit, from.data, from.stride, index, part.head_dim());
        moved[k] = unit.held[0];
      });
    });
  };
  index_t chunk = warp_of_chunks();
  unsigned first = lane;
  if (sends && chunk < chunks) load(chunk, first);

  pool_turn turn = begin_turn<Rules>(words, signature, pool_operation::all_gather);
  wipe_next_slot(ports, turn);
  announce(ports, turn);
  __syncthreads();
  if (threadIdx.x == pool_threads - 1) advance_epoch(ports, turn);

  if (sends) {
    while (chunk < chunks && turn.failed == 0) {
      const index_t done = chunk;
      with_chunk(first_part, second_part, chunk, [&](const auto& part, index_t number) {
        using element = typename std::remove_cvref_t<decltype(part)>::element;
        const index_t pitch = part.rows.pitch();
        const auto store_to = [&](int reader) {
          std::byte* const to = gather_region<Pull>(ports, turn, ports.rank, reader) + part.offset;
          each_unit(part, number, first, [&](unsigned k, index_t row, unsigned index) {
            *reinterpret_cast<uint4*>(to + row * pitch + index_t{index} * 16) = moved[k];
          });
        };
        if constexpr (Pull) {
          store_to(ports.rank);
        } else {
          for (int step = 1; step < ports.ranks; ++step) {
            store_to(peer_at(ports, step));
          }
        }
        if (!part.in_place) {
          each_unit(part, number, first, [&](unsigned k, index_t row, unsigned index) {
            const partial_row<element> own = part.row_to(ports.rank, row);
            row_unit<element, 16> unit;
            unit.held[0] = moved[k];
            store_unit<Vector, element, 16>(unit, const_cast<element*>(own.data), own.stride, index,
                                            part.head_dim());
          });
        }
        first += batch * 32;
        if (first - lane >= items_in(part, number)) {
          first = lane;
          chunk += chunk_step;
        }
      });
      if (chunk < chunks) load(chunk, first);
      if (chunk != done) flag_chunk(ports, turn, done);
    }
    return;
  }

  const std::uint64_t poison = load_poison(ports);
  for (; chunk < chunks && !warp_failed(turn); chunk += chunk_step) {
    const auto source = static_cast<int>(lane);
    if (source < ports.ranks && source != ports.rank) wait_for_chunk(ports, turn, source, chunk);
    __syncwarp();
    if (warp_failed(turn)) break;
    with_chunk(first_part, second_part, chunk, [&](const auto& part, index_t number) {
      receive_chunk_of<Vector, Pull>(part, ports, turn, number, lane);
    });
  }
  end_gather(first_part, second_part, ports, turn, poison);
}

}  // namespace detail

}  // namespace headwise::inline v0
