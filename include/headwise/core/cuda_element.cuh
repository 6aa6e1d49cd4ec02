// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/core/element.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

// The CUDA Toolkit's storage types bind as elements without a cast.

namespace headwise::inline v0 {

template <>
struct element_traits<__nv_bfloat16> {
  static constexpr element_kind kind = element_kind::bf16;
};
template <>
struct element_traits<__half> {
  static constexpr element_kind kind = element_kind::f16;
};
template <>
struct element_traits<__nv_fp8_e4m3> {
  static constexpr element_kind kind = element_kind::e4m3;
};

}  // namespace headwise::inline v0
