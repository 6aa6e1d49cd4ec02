// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: permute names every axis of the view once

#include <headwise/view/slice.hpp>

using namespace headwise;

using output = view<bf16, packed_layout_t<extent<axis::token, 4>, extent<axis::head, 22>,
                                          extent<axis::head_dim, 512>>>;

#ifndef PASS
auto turned(const output& all) { return permute<axis::head, axis::token>(all); }
#else
auto turned(const output& all) { return permute<axis::head, axis::token, axis::head_dim>(all); }
#endif
