// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Instantiates every member of the view types, and every view function in a kernel; only compiled.

#include "views_in_kernels.cuh"

using namespace views_in_kernels;

// An explicit instantiation instantiates every member.
#define INSTANTIATE(LAYOUT)                                           \
  template class headwise::view<float, LAYOUT>;                       \
  template class headwise::view<const float, LAYOUT>;                 \
  template class headwise::view<float, LAYOUT, memory_space::device>; \
  template class headwise::view<float, LAYOUT, memory_space::pinned>

INSTANTIATE(scalar);
INSTANTIATE(row_static);
INSTANTIATE(row_run_time);
INSTANTIATE(table_mixed);
INSTANTIATE(table_run_time);
INSTANTIATE(rows_static);
INSTANTIATE(rows_mixed);
INSTANTIATE(rows_run_time);
INSTANTIATE(message_static);
INSTANTIATE(message_run_time);

void launch(float* data, index_t tokens, index_t* out);
void launch(float* data, index_t tokens, index_t* out) {
  ask_on_device<><<<1, 1>>>(data, tokens, out);
  ask_by_value<<<1, 1>>>(view<float, rows_static, memory_space::device>(data), out);
}
