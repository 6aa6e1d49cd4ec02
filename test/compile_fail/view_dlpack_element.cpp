// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: DLPack has no name for this element type

#include <headwise/view/dlpack.hpp>

using namespace headwise;

struct record {
  unsigned char bytes[656];
};
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
using element = record;
#else
using element = std::uint8_t;
#endif

bool taken(const tensor_struct& pages) {
  return from_dlpack<element, memory_space::host, axis::page>(pages).ok();
}
