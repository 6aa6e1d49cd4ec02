// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
// expect: headwise: elements are aligned to at most 16 bytes

#include <headwise/headwise.hpp>
#include <headwise/transport/in_process.hpp>

using namespace headwise;

#if defined(PASS)
struct alignas(16) word {
#else
struct alignas(32) word {
#endif
  unsigned char bytes[32];
};

status exchange(in_process& group, view<word, layout<dim<axis::rank>>> send,
                view<word, layout<dim<axis::rank>>> receive) {
  return all_to_all(host_executor{}, group, send, receive, {});
}
