// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include "harness.cuh"

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

// Times operations that several ranks do together, a thread for each. A graph of every rank holds
// 40 of them; all ranks start theirs at the same time, and an operation takes as long as on the
// slowest of them. The variants of a shape take turns, and each figure is a median over all turns.

namespace bench {

/// `Rank` has `device` and `stream`.
template <class Rank>
struct rank_variant {
  std::string name;
  std::function<void(const Rank&)> operation;
};

namespace detail {

/// Until the host has opened the gate, or ten seconds are over: a rank that stops leaves no kernel
/// behind that never ends.
template <int>
__global__ void gate_kernel(const volatile unsigned* opened, unsigned number) {
  std::uint64_t start = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*opened < number && now - start < 10000000000u);
}

}  // namespace detail

/// Holds the streams of all ranks until all of them have enqueued what is timed.
class start_gate {
 public:
  start_gate() {
    void* word = nullptr;
    check(cudaHostAlloc(&word, sizeof *opened_, cudaHostAllocPortable | cudaHostAllocMapped));
    opened_ = static_cast<volatile unsigned*>(word);
    *opened_ = 0;
  }
  start_gate(const start_gate&) = delete;
  start_gate& operator=(const start_gate&) = delete;
  ~start_gate() { cudaFreeHost(const_cast<unsigned*>(opened_)); }

  /// Numbers rise.
  void wait(cudaStream_t stream, unsigned number) const {
    detail::gate_kernel<0><<<1, 1, 0, stream>>>(opened_, number);
    check(cudaGetLastError());
  }
  void open(unsigned number) { *opened_ = number; }

 private:
  volatile unsigned* opened_ = nullptr;
};

/// All ranks of all variants: graphs, and what a turn took.
///
/// Ranks may share a GPU, and kernels may wait for those of other ranks: what may wait for the
/// device is done on all ranks before one of them launches anything.
template <class Rank>
class rank_comparison {
 public:
  static constexpr int operations = 40;  ///< of a graph

  rank_comparison(const std::vector<Rank>& ranks, const std::vector<rank_variant<Rank>>& variants)
      : times_(variants.size()), launches_(variants.size()) {
    start_gate gate;
    const auto count = static_cast<std::ptrdiff_t>(ranks.size());
    std::barrier together(count);
    std::vector<std::vector<float>> last(ranks.size(), std::vector<float>(variants.size()));
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      threads.emplace_back([&, r] {
        const Rank& me = ranks[r];
        check(cudaSetDevice(me.device));
        cudaEvent_t start = nullptr;
        cudaEvent_t end = nullptr;
        check(cudaEventCreate(&start));
        check(cudaEventCreate(&end));
        together.arrive_and_wait();
        std::vector<cudaGraphExec_t> graphs;
        for (std::size_t v = 0; v < variants.size(); ++v) {
          variants[v].operation(me);  // connects peers and loads kernels
          check(cudaStreamSynchronize(me.stream));
          together.arrive_and_wait();
          cudaGraph_t captured = nullptr;
          check(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeThreadLocal));
          for (int i = 0; i < operations; ++i) variants[v].operation(me);
          check(cudaStreamEndCapture(me.stream, &captured));
          if (r == 0) launches_[v] = kernels_of(captured) / operations;
          graphs.emplace_back();
          check(cudaGraphInstantiate(&graphs.back(), captured, 0));
          check(cudaGraphDestroy(captured));
          check(cudaGraphUpload(graphs.back(), me.stream));
          check(cudaStreamSynchronize(me.stream));
          together.arrive_and_wait();
        }
        unsigned number = 0;
        for (int turn = -warm; turn < turns; ++turn) {
          for (std::size_t v = 0; v < graphs.size(); ++v) {
            ++number;
            gate.wait(me.stream, number);
            check(cudaEventRecord(start, me.stream));
            check(cudaGraphLaunch(graphs[v], me.stream));
            check(cudaEventRecord(end, me.stream));
            together.arrive_and_wait();
            if (r == 0) gate.open(number);
            check(cudaEventSynchronize(end));
            check(cudaEventElapsedTime(&last[r][v], start, end));
            together.arrive_and_wait();
          }
          if (r == 0 && turn >= 0) {
            for (std::size_t v = 0; v < graphs.size(); ++v) {
              float slowest = 0;
              for (const auto& of_rank : last) slowest = (std::max)(slowest, of_rank[v]);
              times_[v].push_back(double{slowest} * 1000.0 / operations);
            }
          }
          together.arrive_and_wait();
        }
        check(cudaEventDestroy(start));
        check(cudaEventDestroy(end));
        for (const cudaGraphExec_t graph : graphs) check(cudaGraphExecDestroy(graph));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  double time(std::size_t v) const { return median_of(times_[v]); }
  double noise_percent(std::size_t v) const {
    return 100.0 * deviation_of(times_[v], time(v)) / time(v);
  }
  /// Median of the ratios of each turn.
  double ratio(std::size_t v, std::size_t to) const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < times_[v].size(); ++i) {
      ratios.push_back(times_[v][i] / times_[to][i]);
    }
    return median_of(ratios);
  }
  /// Kernels of one operation.
  double launches(std::size_t v) const { return launches_[v]; }

 private:
  static constexpr int warm = 2;
  static constexpr int turns = 31;

  static double kernels_of(cudaGraph_t graph) {
    std::size_t count = 0;
    check(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    if (count > 0) check(cudaGraphGetNodes(graph, nodes.data(), &count));
    double kernels = 0;
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      check(cudaGraphNodeGetType(node, &type));
      kernels += type == cudaGraphNodeTypeKernel ? 1 : 0;
    }
    return kernels;
  }

  std::vector<std::vector<double>> times_;
  std::vector<double> launches_;
};

/// Of each variant a line; ratios are to the first. `bytes`: to a peer.
template <class Rank>
void write(std::FILE* csv, const char* bench, const std::string& shape,
           const std::vector<rank_variant<Rank>>& variants, const rank_comparison<Rank>& measured,
           index_t bytes) {
  if (csv == nullptr) return;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    std::fprintf(csv, "%s,%s,\"%s\",warm,%.3f,%.3f,,,%.4f,%lld,,\n", bench, shape.c_str(),
                 variants[v].name.c_str(), measured.time(v), measured.noise_percent(v),
                 measured.ratio(v, 0), static_cast<long long>(bytes));
  }
  std::fflush(csv);
}

inline std::string shape_of(index_t tokens, index_t heads) {
  return std::to_string(tokens) + "x" + std::to_string(heads);
}

}  // namespace bench
