// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/config.hpp>

#if defined(HEADWISE_NVTX)
#include <nvtx3/nvToolsExt.h>
#endif

namespace headwise::inline v0 {

/// A range in the timeline of a profiler, where HEADWISE_NVTX was defined before the first include
/// (alike in all translation units), and nothing otherwise.
class profiler_range {
 public:
#if defined(HEADWISE_NVTX)
  explicit profiler_range(const char* name) noexcept { nvtxRangePushA(name); }
  ~profiler_range() { nvtxRangePop(); }
#else
  explicit profiler_range(const char*) noexcept {}
#endif
  profiler_range(const profiler_range&) = delete;
  profiler_range& operator=(const profiler_range&) = delete;
};

}  // namespace headwise::inline v0
