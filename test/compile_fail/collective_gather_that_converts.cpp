// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a gather moves bits and does not convert between element types
// bf16 gathered into fp16: as wide, but of another meaning.

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/executor/host_executor.hpp>

#include "../support/declared_transport.hpp"

using namespace headwise;
using support::declared_transport;

using query =
    view<const bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 11>, extent<axis::head_dim, 576>>>;

#ifndef PASS
using element = fp16;
#else
using element = bf16;
#endif
using gathered =
    view<element,
         packed_layout_t<extent<axis::token>, extent<axis::head>, extent<axis::head_dim, 576>>>;

status gather(declared_transport& group, const query& local, const gathered& all,
              std::span<std::byte> room) {
  return all_gather_heads(host_executor{}, group, local, all, room);
}
