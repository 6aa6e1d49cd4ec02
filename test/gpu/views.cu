// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <support/device.hpp>

#include <doctest/doctest.h>

#include <headers/views_in_kernels.cuh>
#include <vector>

using namespace views_in_kernels;
using support::device_array;

TEST_CASE("N06: every view function says on the device what it says on the host") {
  constexpr index_t tokens = 4;
  const device_array<float> data(std::vector<float>(4 * 64));
  const device_array<index_t> out(1);
  ask_on_device<><<<1, 1>>>(data.data(), tokens, out.data());
  REQUIRE(cudaGetLastError() == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  float host[4 * 64] = {};
  CHECK(out.fetch()[0] == ask_all<memory_space::host>(host, tokens));
  CHECK(data.fetch()[3 * 64 + 5 * 8 + 7] == 1.0f);  // written through the view
}

TEST_CASE("a view passed to a kernel by value arrives with its run-time values") {
  const device_array<float> data(std::vector<float>(4 * 64));
  const device_array<index_t> out(1);
  const rows_run_time shape(dim<axis::token>(4, 64), dim<axis::head>(6, 8),
                            dim<axis::head_dim>(8, 1));
  ask_by_value<<<1, 1>>>(view<float, rows_run_time, memory_space::device>(data.data(), shape),
                         out.data());
  REQUIRE(cudaGetLastError() == cudaSuccess);
  CHECK(out.fetch()[0] == ask_rows(view<float, rows_run_time>(nullptr, shape)));
}
