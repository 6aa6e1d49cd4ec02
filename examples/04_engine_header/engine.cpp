// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// A program of the engine's user: it knows engine.hpp, and nothing of what that is made of.

#include "engine.hpp"

#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr std::int64_t rows = 3;
constexpr std::int64_t heads = 22;  // of both ranks
constexpr std::int64_t tiled = 32;  // as the kernel writes them
constexpr std::int64_t own = 11;

constexpr engine::bfloat unwritten{0x7fff};  // a NaN
constexpr engine::bfloat two{0x4000};
constexpr engine::bfloat four{0x4080};
constexpr engine::bfloat six{0x40c0};

/// Both ranks' LSEs are equal, and so are their weights: 2 and 6 make 4, to the last bit.
bool one_rank(engine::communicator& ranks, int rank) {
  std::vector<engine::bfloat> output_memory(rows * tiled * 512, unwritten);
  std::vector<float> lse_memory(rows * tiled, 1.5f);
  std::vector<engine::bfloat> merged_memory(rows * own * 512, unwritten);
  const engine::tensor<engine::bfloat, 3> kernel_wrote{
      output_memory.data(), {rows, tiled, 512}, {tiled * 512, 512, 1}};
  const engine::tensor<float, 2> kernel_lse{lse_memory.data(), {rows, tiled}, {tiled, 1}};
  const engine::tensor<engine::bfloat, 3> merged{
      merged_memory.data(), {rows, own, 512}, {own * 512, 512, 1}};
  for (std::int64_t i = 0; i < rows * tiled * 512; ++i) {
    const bool live = i / 512 % tiled < heads;
    if (live) output_memory[static_cast<std::size_t>(i)] = rank == 0 ? two : six;
  }

  engine::partial_merger merger(ranks, rank, rows, own);
  merger.merge(kernel_wrote.first(1, heads), kernel_lse.first(1, heads), merged);
  bool right = true;
  for (const engine::bfloat value : merged_memory) right = right && value.raw == four.raw;

  // A mistake comes back as the engine's own exception, on all ranks, with both numbers in it.
  try {
    merger.merge(kernel_wrote.first(1, heads), kernel_lse, merged);
    right = false;
  } catch (const std::runtime_error& problem) {
    std::printf("rank %d: %s\n", rank, problem.what());
  }
  return right;
}

}  // namespace

int main() {
  engine::communicator ranks(2);
  bool right[2] = {};
  std::thread first([&] { right[0] = one_rank(ranks, 0); });
  std::thread second([&] { right[1] = one_rank(ranks, 1); });
  first.join();
  second.join();
  std::printf("%s\n", right[0] && right[1] ? "merged as expected" : "WRONG");
  return right[0] && right[1] ? 0 : 1;
}
