// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Views from and to a real mdspan: cuda::std::mdspan, which comes with the CUDA Toolkit. All
// of it happens in static assertions; only compiled.

#include <headwise/view/mdspan.hpp>

#include <cuda/std/array>
#include <cuda/std/mdspan>

#include <cstdint>
#include <type_traits>

namespace {

namespace md = cuda::std;
using namespace headwise;

template <class... Dims>
using floats = view<float, layout<Dims...>>;

template <class Mdspan, class... Axes>
using converted = decltype(from_mdspan<Axes...>(std::declval<const Mdspan&>()));

using right = md::mdspan<float, md::extents<int, md::dynamic_extent, 32, 512>>;
static_assert(std::is_same_v<converted<right, axis::token, axis::head, axis::head_dim>,
                             floats<dim<axis::token, dynamic_extent, 16384>,
                                    dim<axis::head, 32, 512>, dim<axis::head_dim, 512, 1>>>);

using left = md::mdspan<float, md::extents<std::int64_t, 4, md::dynamic_extent>, md::layout_left>;
static_assert(std::is_same_v<converted<left, axis::token, axis::head>,
                             floats<dim<axis::token, 4, 1>, dim<axis::head, dynamic_extent, 4>>>);

using strided = md::mdspan<float, md::extents<unsigned, md::dynamic_extent, 22>, md::layout_stride>;
static_assert(std::is_same_v<converted<strided, axis::token, axis::head>,
                             floats<dim<axis::token>, dim<axis::head, 22>>>);

using scalar = md::mdspan<float, md::extents<int>>;
static_assert(std::is_same_v<converted<scalar>, floats<>>);

using fixed = md::mdspan<const float, md::extents<int, 4, 22>, md::layout_stride>;
static_assert(!std::is_default_constructible_v<fixed>);

constexpr bool all_converted(float* memory) {
  const strided given(
      memory, strided::mapping_type(strided::extents_type(4), md::array<unsigned, 2>{32, 1}));
  const auto lse = from_mdspan<axis::token, axis::head>(given);
  const auto back = to_mdspan<strided>(lse);
  const auto static_back = to_mdspan<fixed>(lse);
  const auto packed_rows = from_mdspan<axis::token, axis::head, axis::head_dim>(right(memory, 4));
  const auto rows_back = to_mdspan<right>(packed_rows);
  const auto not_packed = to_mdspan<md::mdspan<float, md::dextents<int, 2>>>(lse);
  const auto column_major = to_mdspan<left>(from_mdspan<axis::token, axis::head>(left(memory, 8)));
  return back.ok() && back.value().stride(0) == 32 && static_back.ok() &&
         static_back.value().stride(0) == 32 && rows_back.ok() &&
         rows_back.value().stride(0) == 16384 && column_major.ok() && !not_packed.ok() &&
         not_packed.why().got == 32 && not_packed.why().expected == 22 &&
         to_mdspan<scalar>(from_mdspan(scalar(memory))).ok();
}

float buffer[4 * 32 * 512];
static_assert(all_converted(buffer));

}  // namespace
