// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: strict entry: an operand of this type always has gaps; materialize it, or take entry::strided
// The first 512 of 576 columns, as the type says, handed to an entry that takes no gaps.

#include <headwise/collective/entry.hpp>

using namespace headwise;

#ifndef PASS
constexpr index_t pitch = 576;
#else
constexpr index_t pitch = 512;
#endif

using rows = view<const bf16, layout<dim<axis::token, dynamic_extent, 16 * pitch>,
                                     dim<axis::head, 16, pitch>, dim<axis::head_dim, 512, 1>>>;

status enter(const rows& latent) { return detail::check_entry<entry::strict>("local", latent); }
