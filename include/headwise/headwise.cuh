// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

// The umbrella for nvcc: the host core, and what needs the CUDA Toolkit.

#include <headwise/core/cuda_element.cuh>
#include <headwise/headwise.hpp>
