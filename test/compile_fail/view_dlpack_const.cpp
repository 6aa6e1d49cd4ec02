// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a DLTensor cannot say that it is read-only

#include <headwise/view/dlpack.hpp>

using namespace headwise;

// DLTensor's members.
struct tensor_struct {
  void* data;
  struct {
    int device_type;
    std::int32_t device_id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

#ifndef PASS
using element = const float;
#else
using element = float;
#endif

tensor_struct handed_out(const view<element, layout<dim<axis::token>>>& row, std::int64_t* shape,
                         std::int64_t* strides) {
  return to_dlpack<tensor_struct>(row, shape, strides);
}
