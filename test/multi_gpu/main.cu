// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <support/gpu_main.hpp>
#include <support/processes.hpp>

int main(int argc, char** argv) {
  const int rank = support::rank_main(argc, argv);
  return rank >= 0 ? rank : support::gpu_main(argc, argv);
}
