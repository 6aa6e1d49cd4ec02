// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// Where a rank has its operands while a collective runs: in memory of the host, as everything else
// here. place_cuda.cuh puts them on a GPU.

#include <headwise/executor/host_executor.hpp>
#include <headwise/transport/in_process.hpp>

#include "data.hpp"

namespace demo {

struct host_place {
  using group_type = in_process_group;

  host_executor executor{};

  /// On the thread of the rank, before all else.
  template <class Memory>
  status open(index_t, Memory&) {
    return {};
  }
  in_process join(in_process_group& group, index_t rank) const {
    return group.rank(static_cast<int>(rank)).value();
  }
  /// A view or a workspace of the rank's memory, in this place.
  template <class Operand>
  Operand operator()(const Operand& operand) const {
    return operand;
  }
  /// All of the rank's memory goes to this place, and comes back.
  status send() { return {}; }
  status fetch() { return {}; }
};

}  // namespace demo
