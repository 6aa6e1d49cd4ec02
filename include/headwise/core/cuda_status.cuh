// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/status.hpp>

#include <cuda_runtime_api.h>

namespace headwise::inline v0 {

namespace detail {

/// What the CUDA runtime said, as a status; the thread's last error is clean afterwards.
inline status cuda_status(cudaError_t said, const char* operand,
                          source_line where = source_line::current()) noexcept {
  if (said == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return failure(errc::cuda_failed, operand, cudaGetErrorString(said), said, cudaSuccess, "",
                 where);
}

/// Errors: cuda_failed.
inline result<bool> is_capturing(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const status asked = cuda_status(cudaStreamIsCapturing(stream, &capture), "stream");
  if (!asked.ok()) return asked;
  return capture != cudaStreamCaptureStatusNone;
}

}  // namespace detail

}  // namespace headwise::inline v0
