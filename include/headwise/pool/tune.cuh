// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/pool/peer_pool.cuh>
#include <headwise/pool/tuning.hpp>

// What each protocol takes on the machine at hand. For a program of its own, or a start-up: it
// takes a second or so, and its table is printed, kept and read again (table_text.hpp).

namespace headwise::inline v0 {

/// Equal on all ranks.
struct tune_options {
  int operations = 20;  ///< in a graph
  int replays = 15;     ///< of the graph, of which the median counts; 64 at most
  double worth = 0.02;  ///< see best_steps()
};

/// A table, and the times that it was made of.
struct tuned_protocols {
  protocol_table table{};
  int sizes = 0;  ///< none with one rank, where nothing travels
  protocol_times reduce_scatter[most_tuned_sizes] = {};
  protocol_times all_gather[most_tuned_sizes] = {};
};

namespace detail {

/// The operands of the calls that are timed, and a stream. All zero; rows of bf16.
struct tune_operands {
  static constexpr const char* channel_name = "tune";
  static constexpr int most_replays = 64;

  cudaStream_t stream = nullptr;
  cudaEvent_t marks[most_replays + 1] = {};
  bf16* all = nullptr;  ///< the heads of all ranks
  bf16* own = nullptr;
  float* lses = nullptr;

  status open(const pool_capacity& capacity, int ranks, int replays) noexcept {
    const index_t rows = capacity.tokens * capacity.heads;
    const index_t own_bytes = rows * capacity.row_bytes;
    cudaError_t said = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int i = 0; i <= replays && said == cudaSuccess; ++i) said = cudaEventCreate(&marks[i]);
    const auto take = [&](auto*& data, index_t bytes) {
      if (said == cudaSuccess) said = cudaMalloc(&data, static_cast<std::size_t>(bytes));
      if (said == cudaSuccess) said = cudaMemset(data, 0, static_cast<std::size_t>(bytes));
    };
    take(all, own_bytes * ranks);
    take(own, own_bytes);
    take(lses, rows * ranks * index_t{sizeof(float)});
    if (said == cudaSuccess) said = cudaDeviceSynchronize();
    return cuda_status(said, "tune");
  }
  /// Frees what there is. Precondition: nothing of any rank of this GPU waits for a peer.
  void close() noexcept {
    cudaFree(all);
    cudaFree(own);
    cudaFree(lses);
    for (const cudaEvent_t mark : marks) {
      if (mark != nullptr) cudaEventDestroy(mark);
    }
    if (stream != nullptr) cudaStreamDestroy(stream);
    static_cast<void>(cudaGetLastError());
  }

  status call(const pool_channel& channel, pool_operation operation,
              index_t tokens) const noexcept {
    const pool_capacity& capacity = channel.capacity();
    const auto rows_view = [&](bf16* data, index_t heads) {
      return make_view<memory_space::device>(
          data, packed(extent<axis::token>(tokens), extent<axis::head>(heads),
                       extent<axis::head_dim>(capacity.row_bytes / index_t{sizeof(bf16)})));
    };
    const index_t all_heads = capacity.heads * channel.size();
    const pool_launcher launcher{channel, stream};
    if (operation == pool_operation::all_gather) {
      return launcher.all_gather_heads(rows_view(own, capacity.heads), rows_view(all, all_heads));
    }
    const auto lse_view = make_view<memory_space::device>(
        lses, packed(extent<axis::token>(tokens), extent<axis::head>(all_heads)));
    return launcher.lse_reduce_scatter<log_base::e>(rows_view(all, all_heads), lse_view,
                                                    rows_view(own, capacity.heads), none, none,
                                                    none, nan_policy::empty{});
  }

  /// Nanoseconds of a call on the slowest rank. Collective; the same on all ranks.
  result<double> time(bootstrap_ref ranks, const pool_channel& channel, pool_operation operation,
                      index_t tokens, const tune_options& options) const noexcept {
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t graph = nullptr;
    cudaError_t said = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    status came_to = cuda_status(said, "tune");
    if (came_to.ok()) {
      for (int i = 0; i < options.operations && came_to.ok(); ++i) {
        came_to = call(channel, operation, tokens);
      }
      said = cudaStreamEndCapture(stream, &captured);
      if (said == cudaSuccess) said = cudaGraphInstantiate(&graph, captured, 0);
      // What a first launch would still have to bring to the GPU may wait for it.
      if (said == cudaSuccess) said = cudaGraphUpload(graph, stream);
      if (said == cudaSuccess) said = cudaStreamSynchronize(stream);
      if (came_to.ok()) came_to = cuda_status(said, "tune");
    }
    came_to = unanimous(ranks, came_to, "tune");
    double mine = 0.0;
    if (came_to.ok()) {
      // No pause between replays: the ranks keep step by the calls themselves.
      said = cudaGraphLaunch(graph, stream);
      for (int i = 0; i <= options.replays && said == cudaSuccess; ++i) {
        if (i > 0) said = cudaGraphLaunch(graph, stream);
        if (said == cudaSuccess) said = cudaEventRecord(marks[i], stream);
      }
      if (said == cudaSuccess) said = cudaStreamSynchronize(stream);
      came_to = cuda_status(said, "tune");
      if (came_to.ok()) came_to = channel.state();
      if (came_to.ok()) came_to = median(options, mine);
      came_to = unanimous(ranks, came_to, "tune");
    }
    if (graph != nullptr) cudaGraphExecDestroy(graph);
    if (captured != nullptr) cudaGraphDestroy(captured);
    static_cast<void>(cudaGetLastError());
    if (!came_to.ok()) return came_to;
    double each[max_ranks] = {};
    const status gathered = gather_each(ranks, mine, each);
    if (!gathered.ok()) return gathered;
    double slowest = 0.0;
    for (int r = 0; r < ranks.size(); ++r) slowest = greater(slowest, each[r]);
    return slowest;
  }

 private:
  status median(const tune_options& options, double& nanoseconds) const noexcept {
    float sorted[most_replays] = {};
    for (int i = 0; i < options.replays; ++i) {
      float milliseconds = 0.0f;
      const status told =
          cuda_status(cudaEventElapsedTime(&milliseconds, marks[i], marks[i + 1]), "tune");
      if (!told.ok()) return told;
      int at = i;
      for (; at > 0 && sorted[at - 1] > milliseconds; --at) sorted[at] = sorted[at - 1];
      sorted[at] = milliseconds;
    }
    nanoseconds = double{sorted[options.replays / 2]} * 1e6 / options.operations;
    return {};
  }
};

/// Errors: invalid_argument.
constexpr status check_tuning(const tune_options& options, const pool_capacity& capacity) noexcept {
  if (options.operations < 1 || options.operations > 10000) {
    return failure(errc::invalid_argument, "operations", "from 1 to 10000 in a graph",
                   options.operations, 10000);
  }
  if (options.replays < 1 || options.replays > tune_operands::most_replays) {
    return failure(errc::invalid_argument, "replays", "from 1 to 64", options.replays,
                   tune_operands::most_replays);
  }
  if (capacity.row_bytes >= index_t{sizeof(bf16)}) return {};
  return failure(errc::invalid_argument, "pool_capacity", "no row of bf16 has room",
                 capacity.row_bytes, sizeof(bf16), "row_bytes");
}

/// Batches of 1, 2, 4, ... tokens, and the one that fills a channel.
constexpr index_t next_batch(index_t tokens, index_t most) noexcept {
  return tokens < most ? lesser(tokens * 2, most) : most + 1;
}

}  // namespace detail

/// Times both operations of a pool with each protocol, for batches from one token up to what a
/// channel holds, and makes a table of it, the same on all ranks. The pool goes on with the table
/// that it has; use() takes the new one.
///
/// Collective, blocks, and is not for a capture. Takes a channel of its own (named "tune") and
/// gives it back. Nothing else runs on the GPUs meanwhile.
/// Errors: invalid_argument, rank_mismatch (options), those of peer_pool::prepare() and use(),
/// cuda_failed, pool_channel::state().
template <class Memory>
result<tuned_protocols> tune(peer_pool<Memory>& pool, bootstrap_ref ranks,
                             const tune_options& options = {}) noexcept {
  const int before = pool.channel_count();
  const status made = pool.prepare(ranks, {detail::tune_operands::channel_name});
  if (!made.ok()) return made;
  pool_channel channel = pool.channel(detail::tune_operands::channel_name).value();
  const protocol_table kept = channel.table();
  const pool_capacity capacity = channel.capacity();
  detail::tune_operands operands;
  tuned_protocols tuned;
  tuned.table = kept;
  const call_signature call{"tune",
                            {{"operations", options.operations}, {"replays", options.replays}}};
  detail::call_record records[max_ranks];
  status came_to = detail::unanimous(ranks, detail::check_tuning(options, capacity), "options");
  if (came_to.ok()) came_to = detail::gather_each(ranks, detail::record_of(call, {}), records);
  if (came_to.ok()) {
    came_to = detail::compare_records(records, ranks.size(), ranks.rank(), call);
  }
  if (came_to.ok() && ranks.size() > 1) {
    came_to =
        detail::unanimous(ranks, operands.open(capacity, ranks.size(), options.replays), "tune");
    for (index_t tokens = 1; tokens <= capacity.tokens && tuned.sizes < most_tuned_sizes;
         tokens = detail::next_batch(tokens, capacity.tokens)) {
      const index_t bytes = tokens * capacity.heads * capacity.row_bytes;
      tuned.reduce_scatter[tuned.sizes].bytes = bytes;
      tuned.all_gather[tuned.sizes++].bytes = bytes;
    }
    for (const protocol which : {protocol::ll, protocol::push, protocol::pull}) {
      if (came_to.ok()) came_to = pool.use(ranks, protocol_table::only(which));
      if (!came_to.ok()) break;
      channel = pool.channel(detail::tune_operands::channel_name).value();
      index_t tokens = 1;
      for (int i = 0; i < tuned.sizes && came_to.ok();
           ++i, tokens = detail::next_batch(tokens, capacity.tokens)) {
        const detail::pool_rows rows{
            tokens * capacity.heads,
            capacity.row_bytes / index_t{sizeof(bf16)} * index_t{sizeof(bf16)}};
        for (const pool_operation operation :
             {pool_operation::reduce_scatter, pool_operation::all_gather}) {
          // What has no room here goes by another protocol, on all ranks.
          const result<protocol> chosen = channel.choose(operation, rows);
          if (!came_to.ok() || !chosen.ok() || chosen.value() != which) continue;
          const result<double> taken = operands.time(ranks, channel, operation, tokens, options);
          came_to = taken.why();
          if (!came_to.ok()) continue;
          const bool reduces = operation == pool_operation::reduce_scatter;
          protocol_times& times = reduces ? tuned.reduce_scatter[i] : tuned.all_gather[i];
          times.nanoseconds[static_cast<int>(which)] = taken.value();
        }
      }
    }
    operands.close();
  }
  const status back = pool.use(ranks, kept);
  const status freed = pool.roll_back(ranks, before);
  for (const status& one : {came_to, back, freed}) {
    if (!one.ok()) return one;
  }
  if (tuned.sizes == 0) return tuned;
  const auto sizes = static_cast<std::size_t>(tuned.sizes);
  const auto reduces = best_steps({tuned.reduce_scatter, sizes}, options.worth);
  const auto gathers = best_steps({tuned.all_gather, sizes}, options.worth);
  if (!reduces.ok()) return reduces.why();
  if (!gathers.ok()) return gathers.why();
  tuned.table.reduce_scatter = reduces.value();
  tuned.table.all_gather = gathers.value();
  return tuned;
}

}  // namespace headwise::inline v0
