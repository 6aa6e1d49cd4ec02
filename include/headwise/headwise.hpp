// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// The host core: everything that needs neither CUDA nor threads. Transports
// (transport/in_process.hpp), conversions (view/mdspan.hpp, view/dlpack.hpp) and reference
// attention are included by name.

#include <headwise/collective/agree.hpp>
#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/all_to_all.hpp>
#include <headwise/collective/describe.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/host_executor.hpp>
#include <headwise/lse/partial.hpp>
#include <headwise/plan/copy_plan.hpp>
#include <headwise/plan/head_split.hpp>
#include <headwise/plan/kv_shard.hpp>
#include <headwise/plan/route.hpp>
#include <headwise/version.hpp>
#include <headwise/view/describe.hpp>
#include <headwise/view/refine.hpp>
#include <headwise/view/slice.hpp>
