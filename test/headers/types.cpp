// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Sizes, alignments and member offsets of types that cross between translation units. Built by the
// C++ compiler and, as CUDA, by nvcc, with UNIT naming the function; types_main.cpp compares.

#include <headwise/core/status.hpp>
#include <headwise/lse/log_base.hpp>
#include <headwise/plan/head_split.hpp>
#include <headwise/plan/kv_shard.hpp>
#include <headwise/plan/paged_kv.hpp>
#include <headwise/view/view.hpp>

#include <cstddef>

namespace {

using namespace headwise;
namespace axis = headwise::axis;

using scalar = layout<>;
using all_static =
    layout<dim<axis::token, 4, 64>, dim<axis::head, 6, 8>, dim<axis::head_dim, 8, 1>>;
using one_extent = layout<dim<axis::token, dynamic_extent, 64>, dim<axis::head, 6, 8>>;
using one_stride = layout<dim<axis::token, 4, 64>, dim<axis::head, 6, dynamic_stride>>;
using mixed =
    layout<dim<axis::token>, dim<axis::head, 6, dynamic_stride>, dim<axis::head_dim, 8, 1>>;
using all_run_time = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;

template <class T>
struct size_and_alignment {
  std::size_t size = sizeof(T);
  std::size_t alignment = alignof(T);
};

struct table {
  size_and_alignment<view<float, scalar>> view_scalar;
  size_and_alignment<view<float, all_static>> view_static;
  size_and_alignment<view<bf16, one_extent>> view_one_extent;
  size_and_alignment<view<bf16, one_stride>> view_one_stride;
  size_and_alignment<view<const float, mixed, memory_space::device>> view_mixed;
  size_and_alignment<view<float, all_run_time, memory_space::pinned>> view_run_time;
  size_and_alignment<status> status_type;
  size_and_alignment<result<int>> result_int;
  size_and_alignment<result<view<float, mixed>>> result_view;
  size_and_alignment<lse<log_base::two>> lse_two;
  size_and_alignment<head_split> split;
  size_and_alignment<kv_shard> shard;
  size_and_alignment<interleaving> interleave;
  std::size_t status_offsets[6] = {offsetof(status, code), offsetof(status, operand),
                                   offsetof(status, axis), offsetof(status, message),
                                   offsetof(status, got),  offsetof(status, expected)};
};

}  // namespace

const void* UNIT(std::size_t& size);
const void* UNIT(std::size_t& size) {
  static const table of_this_compiler{};
  size = sizeof(of_this_compiler);
  return &of_this_compiler;
}
