// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

// Every view function that kernels may use, called on views of static, run-time and mixed layouts.
// It must not reach a host-only constexpr function: --expt-relaxed-constexpr is never given.

#include <headwise/view/axis.hpp>
#include <headwise/view/layout.hpp>
#include <headwise/view/slice.hpp>
#include <headwise/view/view.hpp>

#include <type_traits>

namespace views_in_kernels {

namespace axis = headwise::axis;
using headwise::constant;
using headwise::dim;
using headwise::dynamic_extent;
using headwise::dynamic_stride;
using headwise::index_t;
using headwise::layout;
using headwise::memory_space;
using headwise::view;

using scalar = layout<>;
using row_static = layout<dim<axis::head_dim, 8, 1>>;
using row_run_time = layout<dim<axis::head_dim>>;
using table_mixed = layout<dim<axis::token, dynamic_extent, 32>, dim<axis::head, 6, 1>>;
using table_run_time = layout<dim<axis::token>, dim<axis::head>>;
using rows_static =
    layout<dim<axis::token, 4, 64>, dim<axis::head, 6, 8>, dim<axis::head_dim, 8, 1>>;
using rows_mixed = layout<dim<axis::token, dynamic_extent, 64>, dim<axis::head, 6, dynamic_stride>,
                          dim<axis::head_dim, 8, 1>>;
using rows_run_time = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
using message_static = layout<dim<axis::rank, 2, 128>, dim<axis::token, 2, 64>,
                              dim<axis::head, 6, 8>, dim<axis::head_dim, 8, 1>>;
using message_run_time =
    layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;

/// What the layout and the view say of themselves, folded so that nothing is optimised away.
template <class... Axes, class View>
HEADWISE_HD constexpr index_t ask(const View& v) {
  using shape = typename View::layout_type;
  index_t sum = v.size() + v.span_size() + v.is_contiguous() + v.empty() + v.layout().size() +
                v.layout().empty() + v.layout().span_size() + v.layout().is_contiguous() +
                View::rank + static_cast<index_t>(shape::static_contiguity());
  ((sum += v.template extent<Axes>() + v.template stride<Axes>() +
           v.layout().template get<Axes>().extent() + v.layout().template extent<Axes>() +
           v.layout().template stride<Axes>()),
   ...);
  const auto extents = v.layout().extents();
  const auto strides = v.layout().strides();
  for (int i = 0; i < View::rank; ++i) sum += extents[i] + strides[i];
  const View copy = v;
  const view<const typename View::value_type, shape, View::space> read_only = copy;
  const view<const typename View::value_type, layout<dim<Axes>...>, View::space> widened = copy;
  return sum + (read_only.data() == v.data()) + widened.span_size();
}

template <class View>
HEADWISE_HD constexpr index_t ask_rows(const View& v) {
  using namespace axis;
  index_t sum = ask<token, head, head_dim>(v) + v.layout().offset(1, 2, 3);
  sum += ask<head, head_dim>(headwise::fix<token>(v, 1));
  sum += ask<token, head_dim>(headwise::fix<head>(v, index_t{2}));
  sum += ask<token, head>(headwise::fix<head_dim>(v, constant<3>));
  sum += ask<head, token, head_dim>(headwise::permute<head, token, head_dim>(v));
  sum += ask<sequence, head, head_dim>(headwise::rename<token, sequence>(v));
  return sum;
}

template <class View>
HEADWISE_HD constexpr index_t ask_rows_of_static_heads(const View& v) {
  using namespace axis;
  return ask_rows(v) +
         ask<token, head, head_dim>(headwise::slice<head>(v, constant<1>, constant<3>)) +
         ask<token, rank, head, head_dim>(headwise::split<head, rank, head>(v, constant<2>));
}

template <memory_space Space, class T>
HEADWISE_HD constexpr index_t ask_all(T* data, index_t tokens) {
  using namespace axis;
  const view<T, rows_static, Space> fixed(data);
  const view<T, rows_mixed, Space> mixed(
      data, rows_mixed(dim<token, dynamic_extent, 64>(tokens), dim<head, 6, dynamic_stride>(6, 8),
                       dim<head_dim, 8, 1>()));
  const view<T, rows_run_time, Space> run_time(
      data, rows_run_time(dim<token>(tokens, 64), dim<head>(6, 8), dim<head_dim>(8, 1)));
  const view<T, scalar, Space> one(data, scalar{});
  const view<T, row_static, Space> row(data);
  const view<T, table_mixed, Space> table(
      data, table_mixed(dim<token, dynamic_extent, 32>(tokens), dim<head, 6, 1>()));
  const view<T, message_static, Space> message(data);
  const auto packed = headwise::packed(headwise::extent<token>(tokens), headwise::extent<head, 6>(),
                                       headwise::extent<head_dim, 8>());
  const auto dense = headwise::make_view<Space>(data, packed);
  return ask_rows_of_static_heads(fixed) + ask_rows_of_static_heads(mixed) + ask_rows(run_time) +
         ask_rows_of_static_heads(dense) + ask(one) + ask<head_dim>(row) + ask<token, head>(table) +
         ask<rank, token, head, head_dim>(message);
}

template <class Dummy = void>
__global__ void ask_on_device(float* data, index_t tokens, index_t* out) {
  *out = ask_all<memory_space::device>(data, tokens);
  const view<float, rows_static, memory_space::device> rows(data);
  rows(3, 5, 7) = rows(0, 0, 0) + 1.0f;
}

/// Views go to kernels by value.
template <class View>
__global__ void ask_by_value(View v, index_t* out) {
  *out = ask_rows(v);
}

}  // namespace views_in_kernels
