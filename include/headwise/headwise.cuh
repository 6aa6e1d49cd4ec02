// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

// The umbrella for nvcc: the host core, and what needs the CUDA Toolkit. Transports
// (transport/nccl.cuh, transport/in_process_cuda.cuh) are included by name, and so are the peer
// pool (collective/pooled.cuh) and the router over both (collective/router.cuh), whose kernels are
// many, and kernel/localize_topk.cuh, which brings CUB and with it eight seconds of the compiler.

#include <headwise/core/cuda_element.cuh>
#include <headwise/executor/cuda_executor.cuh>
#include <headwise/headwise.hpp>
