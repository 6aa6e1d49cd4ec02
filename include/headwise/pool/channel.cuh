// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/pool/all_gather_heads.cuh>
#include <headwise/pool/lse_reduce_scatter.cuh>

#include <cstring>

namespace headwise::inline v0 {

namespace detail {

/// A kernel of a pool that this program may launch. All of them are loaded before one waits: what
/// CUDA loads lazily it loads when nothing runs, and then waits for the kernel that waits for it.
/// The list is complete when the program (or the library with the kernels) has been loaded.
struct pool_kernel_entry {
  const void* kernel;
  const pool_kernel_entry* next;

  explicit pool_kernel_entry(const void* which) noexcept : kernel(which), next(first()) {
    first() = this;
  }
  static const pool_kernel_entry*& first() noexcept {
    static const pool_kernel_entry* head = nullptr;
    return head;
  }
};

/// Loads a kernel on the current device: its attributes cannot be told before, and cuFuncLoad (of a
/// driver and a toolkit since CUDA 12.4) leaves nothing to be done at its first launch. Errors:
/// cuda_failed.
inline status load_kernel(const void* kernel) noexcept {
  cudaFuncAttributes code{};
  const status known = cuda_status(cudaFuncGetAttributes(&code, kernel), "kernel");
  if (!known.ok()) return known;
#if CUDART_VERSION >= 12040
  cudaFunction_t function = nullptr;
  const status found = cuda_status(cudaGetFuncBySymbol(&function, kernel), "kernel");
  if (!found.ok()) return found;
  void* load = nullptr;
  cudaDriverEntryPointQueryResult has{};
#if CUDART_VERSION >= 12050
  const cudaError_t asked =
      cudaGetDriverEntryPointByVersion("cuFuncLoad", &load, 12040, cudaEnableDefault, &has);
#else
  const cudaError_t asked = cudaGetDriverEntryPoint("cuFuncLoad", &load, cudaEnableDefault, &has);
#endif
  if (asked != cudaSuccess || has != cudaDriverEntryPointSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  const int said = reinterpret_cast<int (*)(cudaFunction_t)>(load)(function);
  if (said != 0) {
    return failure(errc::cuda_failed, "kernel", "cuFuncLoad: a CUresult (got)", said, 0);
  }
#endif
  return {};
}

/// Errors: cuda_failed.
inline status load_pool_kernels() noexcept {
  for (const pool_kernel_entry* each = pool_kernel_entry::first(); each != nullptr;
       each = each->next) {
    const status loaded = load_kernel(each->kernel);
    if (!loaded.ok()) return loaded;
  }
  return {};
}

/// A kernel by the types that make it, so that using it puts it on the list.
template <class Kernel>
inline const pool_kernel_entry listed_kernel{reinterpret_cast<const void*>(Kernel::pointer())};

template <log_base Base, int Chunk, bool Vector, class Rules, class Operands>
struct reduce_scatter_lines {
  static auto pointer() noexcept {
    return &reduce_scatter_lines_kernel<Base, Chunk, Vector, Rules, Operands>;
  }
};
template <log_base Base, int Chunk, bool Vector, bool Pull, class Rules, class Operands>
struct reduce_scatter_chunks {
  static auto pointer() noexcept {
    return &reduce_scatter_chunks_kernel<Base, Chunk, Vector, Pull, Rules, Operands>;
  }
};
template <bool Vector, class Rules, class First, class Second>
struct all_gather_lines {
  static auto pointer() noexcept { return &all_gather_lines_kernel<Vector, Rules, First, Second>; }
};
template <bool Vector, bool Pull, class Rules, class First, class Second>
struct all_gather_chunks {
  static auto pointer() noexcept {
    return &all_gather_chunks_kernel<Vector, Pull, Rules, First, Second>;
  }
};

/// launch(), of a kernel that is on the list.
template <class Kernel, class... Arguments>
status launch_listed(const char* name, const launch_shape& shape, const on_stream& where,
                     const Arguments&... arguments) noexcept {
  static_cast<void>(&listed_kernel<Kernel>);
  return launch(name, Kernel::pointer(), shape, where, arguments...);
}

/// The grid of an `ll` kernel: as many threads a row as leave the rows resident, and blocks as
/// small as the budget has room for, so that few rows are spread over many multiprocessors.
constexpr launch_shape lines_launch(index_t rows, index_t units, index_t budget,
                                    bool warp_a_row) noexcept {
  launch_shape shape;
  shape.rows_in_y = true;
  shape.vector_bytes = ll_data;
  shape.lanes = 128;
  const index_t room = budget * pool_threads;
  while (shape.lanes > 32 &&
         (warp_a_row || shape.lanes / 2 >= units || rows * shape.lanes > room)) {
    shape.lanes /= 2;
  }
  shape.threads = pool_threads;
  while (shape.threads > shape.lanes &&
         ceil_div(rows * shape.lanes * 2, index_t{shape.threads}) <= budget) {
    shape.threads /= 2;
  }
  shape.blocks =
      static_cast<unsigned>(lesser(ceil_div(rows, index_t{shape.threads / shape.lanes}), budget));
  return shape;
}

/// The grid of a `push` or `pull` kernel.
constexpr launch_shape chunks_launch(index_t chunks, index_t budget) noexcept {
  launch_shape shape;
  shape.threads = pool_threads;
  shape.blocks = static_cast<unsigned>(lesser(ceil_div(chunks, index_t{pool_senders}), budget));
  return shape;
}

/// A number for all that has to be equal on all ranks; 32 bits of it travel with the data.
class signature_of {
 public:
  constexpr signature_of& add(std::uint64_t value) noexcept {
    // The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    state_ = (state_ ^ value) + 0x9e3779b97f4a7c15u;
    state_ = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9u;
    state_ = (state_ ^ (state_ >> 27)) * 0x94d049bb133111ebu;
    state_ ^= state_ >> 31;
    return *this;
  }
  constexpr std::uint32_t bits() const noexcept { return static_cast<std::uint32_t>(state_ >> 32); }

 private:
  std::uint64_t state_ = 0;
};

inline constexpr std::size_t most_channel_name = 48;

}  // namespace detail

/// Room in a peer pool for one operation at a time: of one stream, or of graphs that are replayed
/// on one. It is a handle into its pool, which outlives it; get it from peer_pool::channel().
///
/// The operations of a channel are ordered by the stream, and made in the same order on all ranks:
/// eager ones, captured ones, and replays of several graphs may follow each other as they like,
/// since the kernels themselves count. Two streams, or graphs that may run at the same time, take
/// two channels.
class pool_channel {
 public:
  pool_channel() = default;

  int rank() const noexcept { return ports_.rank; }
  int size() const noexcept { return ports_.ranks; }
  const char* name() const noexcept { return name_; }
  const pool_capacity& capacity() const noexcept { return capacity_; }
  const protocol_table& table() const noexcept { return table_; }
  /// Blocks that a kernel of the channel has at most.
  index_t blocks() const noexcept { return blocks_; }

  /// What has failed, as far as the GPU has got. timed_out: got is the rank that did not come;
  /// rank_mismatch: got is a rank that did something else; expected is the rank that saw it. ok
  /// where nothing has. A channel that has failed fails every call until peer_pool::reset().
  status state() const noexcept {
    if (ports_.report == nullptr) {
      return failure(errc::invalid_argument, "channel", "is not of a pool");
    }
    const std::uint64_t word = *static_cast<const volatile std::uint64_t*>(ports_.report);
    if (word == 0) return {};
    const detail::pool_failure what = detail::pool_failure::from(word);
    const char* const operation = to_string(static_cast<pool_operation>(what.operation));
    if (what.why == detail::pool_failure::mismatch) {
      return failure(errc::rank_mismatch, operation,
                     "a rank (got) makes another call or has another shape; seen by another "
                     "(expected)",
                     what.missing, what.reporter);
    }
    return failure(errc::timed_out, operation,
                   "a rank (got) did not come in time; seen by another (expected)", what.missing,
                   what.reporter);
  }

  /// Which protocol a call of this size takes; nothing where none has room. Equal on all ranks.
  result<protocol> choose(pool_operation operation, const detail::pool_rows& first,
                          const detail::pool_rows& second = {}) const noexcept {
    protocol picked = table_.pick(operation, first.bytes() + second.bytes());
    // What is too much for `ll` need not be for the others.
    if (picked == protocol::ll && !ports_.layout.fits(picked, operation, first, second)) {
      picked = protocol::push;
    }
    const status room =
        require_capacity("channel", detail::slab_layout::needs(picked, operation, first, second),
                         ports_.layout.room(picked));
    if (!room.ok()) return room;
    return picked;
  }

 private:
  template <class Memory>
  friend class peer_pool;
  friend struct pool_launcher;

  detail::channel_ports ports_{};
  protocol_table table_{};
  pool_capacity capacity_{};
  index_t blocks_ = 0;
  index_t chunks_ = 0;  // most that a call is cut into
  char name_[detail::most_channel_name] = {};
};

/// Puts the kernels of a channel on a stream, operands already checked. For the verbs, and for
/// tests that hand in Rules.
struct pool_launcher {
  const pool_channel& channel;
  on_stream stream;

  /// Errors: capacity_exceeded, cuda_failed, the channel's state().
  template <log_base Base, class Rules = detail::pool_rules, class Partial, class Lse, class Result,
            class Merged, class Valid, class Sink, class Policy>
  status lse_reduce_scatter(const Partial& partial_output, const Lse& partial_lse,
                            const Result& output, const Merged& merged_lse, const Valid& valid,
                            const Sink& sink, const Policy& policy) const noexcept {
    using element = typename Partial::value_type;
    using operands = detail::reduce_operands<Partial, Lse, Valid, Result, Merged, Sink, Policy>;
    const detail::channel_ports& ports = channel.ports_;
    const index_t tokens = output.template extent<axis::token>();
    const index_t heads = output.template extent<axis::head>();
    const index_t head_dim = output.template extent<axis::head_dim>();
    const detail::pool_rows rows{tokens * heads, head_dim * index_t{sizeof(element)}};
    const status state = channel.state();
    if (!state.ok() || rows.count == 0) return state;
    const result<protocol> chosen = channel.choose(pool_operation::reduce_scatter, rows);
    if (!chosen.ok()) return chosen.why();
    const protocol how = chosen.value();
    const operands with{partial_output, partial_lse, valid,
                        output,         merged_lse,  sink,
                        policy,         rows,        detail::row_divider(heads)};
    const std::uint32_t signature =
        detail::signature_of()
            .add(static_cast<std::uint64_t>(pool_operation::reduce_scatter))
            .add(static_cast<std::uint64_t>(how))
            .add(static_cast<std::uint64_t>(tokens))
            .add(static_cast<std::uint64_t>(heads))
            .add(static_cast<std::uint64_t>(head_dim))
            .add(static_cast<std::uint64_t>(element_kind_of<element>))
            .add(static_cast<std::uint64_t>(Base))
            .bits();
    const index_t unit = how == protocol::ll ? detail::ll_data : 16;
    const std::uint64_t alignment = detail::row_alignment(partial_output) |
                                    detail::row_alignment(output) |
                                    static_cast<std::uint64_t>(rows.row_bytes);
    const bool vector = alignment % static_cast<std::uint64_t>(unit) == 0;
    const index_t units = detail::ceil_div(rows.row_bytes, unit);
    const auto with_chunk = [&](auto&& launch_form) -> status {
      if (ports.ranks == 2) return launch_form(std::integral_constant<int, 2>{});
      return launch_form(std::integral_constant<int, 8>{});
    };
    if (how == protocol::ll) {
      bool in_place = false;
      if constexpr (!detail::is_none<Merged>) {
        in_place = detail::bytes_in_common(detail::memory_of(partial_lse),
                                           detail::memory_of(merged_lse)) > 0;
      }
      const launch_shape shape = detail::lines_launch(rows.count, units, channel.blocks_, in_place);
      return with_chunk([&](auto chunk) -> status {
        const auto launch_form = [&](auto is_vector) -> status {
          return detail::launch_listed<
              detail::reduce_scatter_lines<Base, chunk.value, is_vector.value, Rules, operands>>(
              "lse_reduce_scatter", shape, stream, ports, with, signature,
              detail::row_divider(units));
        };
        return vector ? launch_form(std::true_type{}) : launch_form(std::false_type{});
      });
    }
    const auto chunks = detail::pool_chunks::cut(rows.count, channel.chunks_);
    return with_chunk([&](auto chunk) -> status {
      return with_form(vector, chunks.count, how,
                       [&](const launch_shape& shape, auto is_vector, auto pull) -> status {
                         return detail::launch_listed<detail::reduce_scatter_chunks<
                             Base, chunk.value, is_vector.value, pull.value, Rules, operands>>(
                             "lse_reduce_scatter", shape, stream, ports, with, signature, chunks,
                             detail::row_divider(units), detail::row_divider(ports.ranks - 1));
                       });
    });
  }

  /// One operand, or two behind one exchange. Errors: as lse_reduce_scatter().
  template <class Rules = detail::pool_rules, class Local, class Gathered, class... Second>
  status all_gather_heads(const Local& local, const Gathered& gathered,
                          const Second&... second) const noexcept {
    static_assert(sizeof...(Second) == 0 || sizeof...(Second) == 2);
    const detail::channel_ports& ports = channel.ports_;
    auto first = part_of(local, gathered);
    auto other = second_part(second...);
    using first_type = decltype(first);
    using other_type = decltype(other);
    const status state = channel.state();
    if (!state.ok() || first.rows.count + other.rows.count == 0) return state;
    const result<protocol> chosen =
        channel.choose(pool_operation::all_gather, first.rows, other.rows);
    if (!chosen.ok()) return chosen.why();
    const protocol how = chosen.value();
    const index_t unit = how == protocol::ll ? detail::ll_data : 16;
    bool vector = aligned(first, unit);
    first.units_of_row = detail::row_divider(detail::ceil_div(first.rows.row_bytes, unit));
    constexpr index_t shares = detail::has_second<other_type> ? 2 : 1;
    first.chunks = detail::pool_chunks::cut(first.rows.count, channel.chunks_ / shares);
    detail::signature_of signature;
    signature.add(static_cast<std::uint64_t>(pool_operation::all_gather))
        .add(static_cast<std::uint64_t>(how));
    add_part(signature, first);
    if constexpr (detail::has_second<other_type>) {
      vector = vector && aligned(other, unit);
      other.units_of_row = detail::row_divider(detail::ceil_div(other.rows.row_bytes, unit));
      other.chunks = detail::pool_chunks::cut(other.rows.count, channel.chunks_ / shares);
      other.first_row = static_cast<std::uint32_t>(first.rows.count);
      other.first_chunk = first.chunks.count;
      other.offset = first.rows.count * (how == protocol::ll ? first.rows.lines() * detail::ll_line
                                                             : first.rows.pitch());
      add_part(signature, other);
    }
    const auto with_vector = [&](auto&& launch_form) -> status {
      return vector ? launch_form(std::true_type{}) : launch_form(std::false_type{});
    };
    if (how == protocol::ll) {
      const index_t units = detail::greater(first.rows.lines(), other.rows.lines()) - 1;
      const launch_shape shape =
          detail::lines_launch(first.rows.count + other.rows.count, units, channel.blocks_, false);
      return with_vector([&](auto is_vector) -> status {
        return detail::launch_listed<
            detail::all_gather_lines<is_vector.value, Rules, first_type, other_type>>(
            "all_gather_heads", shape, stream, ports, first, other, signature.bits());
      });
    }
    return with_form(
        vector, first.chunks.count + other.chunks.count, how,
        [&](const launch_shape& shape, auto is_vector, auto pull) -> status {
          return detail::launch_listed<detail::all_gather_chunks<is_vector.value, pull.value, Rules,
                                                                 first_type, other_type>>(
              "all_gather_heads", shape, stream, ports, first, other, signature.bits());
        });
  }

 private:
  /// Calls f(shape, whether rows are whole units, whether to pull), the last two as constants.
  template <class F>
  status with_form(bool vector, index_t chunks, protocol how, const F& f) const noexcept {
    const launch_shape shape = detail::chunks_launch(chunks, channel.blocks_);
    const auto with_pull = [&](auto is_vector) -> status {
      if (how == protocol::pull) return f(shape, is_vector, std::true_type{});
      return f(shape, is_vector, std::false_type{});
    };
    return vector ? with_pull(std::true_type{}) : with_pull(std::false_type{});
  }

  template <class Local, class Gathered>
  auto part_of(const Local& local, const Gathered& gathered) const noexcept {
    const index_t heads = local.template extent<axis::head>();
    const detail::pool_rows rows{
        local.template extent<axis::token>() * heads,
        local.template extent<axis::head_dim>() * index_t{sizeof(typename Local::value_type)}};
    detail::gather_part<Local, Gathered> part{
        local, gathered, rows, detail::row_divider(heads), detail::row_divider(1), {}};
    // What begins there stands there: check_gather() takes nothing else that shares its memory.
    const auto own = gathered.data() +
                     index_t{channel.ports_.rank} * heads * gathered.template stride<axis::head>();
    part.in_place = static_cast<const void*>(own) == static_cast<const void*>(local.data());
    return part;
  }
  static detail::no_gather_part second_part() noexcept { return {}; }
  template <class Local, class Gathered>
  auto second_part(const Local& local, const Gathered& gathered) const noexcept {
    return part_of(local, gathered);
  }
  template <class Part>
  static bool aligned(const Part& part, index_t unit) noexcept {
    const std::uint64_t bits = detail::row_alignment(part.local) |
                               detail::row_alignment(part.gathered) |
                               static_cast<std::uint64_t>(part.rows.row_bytes);
    return bits % static_cast<std::uint64_t>(unit) == 0;
  }
  template <class Part>
  static void add_part(detail::signature_of& signature, const Part& part) noexcept {
    signature.add(static_cast<std::uint64_t>(part.local.template extent<axis::token>()))
        .add(static_cast<std::uint64_t>(part.local.template extent<axis::head>()))
        .add(static_cast<std::uint64_t>(part.local.template extent<axis::head_dim>()))
        .add(static_cast<std::uint64_t>(element_kind_of<typename Part::element>))
        .add(sizeof(typename Part::element));
  }
};

}  // namespace headwise::inline v0
