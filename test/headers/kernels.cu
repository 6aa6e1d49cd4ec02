// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// One call of each kernel in each of its forms; compiled and never run. What ptxas says of them is
// what check_kernels.py reads.

#include <headwise/executor/cuda_executor.cuh>
#include <headwise/kernel/localize_topk.cuh>
#include <headwise/kernel/mla_decode.cuh>

using namespace headwise;

namespace every_kernel {

constexpr auto e = log_base::e;
constexpr auto two = log_base::two;

template <class T, class Layout>
using on_device = view<T, Layout, memory_space::device>;

// Strides in the type: 22 heads in a tile of 32, the 11 of one of two ranks there, and
// its result.
using tile_rows = layout<dim<axis::token, dynamic_extent, 32 * 512>, dim<axis::head, 22, 512>,
                         dim<axis::head_dim, 512, 1>>;
using tile_lses = layout<dim<axis::token, dynamic_extent, 32>, dim<axis::head, 22, 1>>;
using own_rows = layout<dim<axis::token, dynamic_extent, 32 * 512>, dim<axis::head, 11, 512>,
                        dim<axis::head_dim, 512, 1>>;
using own_lses = layout<dim<axis::token, dynamic_extent, 32>, dim<axis::head, 11, 1>>;
using rank_rows =
    packed_layout_t<extent<axis::token>, extent<axis::head, 11>, extent<axis::head_dim, 512>>;
using rank_lses = packed_layout_t<extent<axis::token>, extent<axis::head, 11>>;
// Strides at run time.
using any_rows = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
using head_major_rows = layout<dim<axis::head>, dim<axis::token>, dim<axis::head_dim>>;
using any_lses = layout<dim<axis::token>, dim<axis::head>>;
template <class Axis>
using along = layout<dim<Axis>>;

template <class T>
using counts = on_device<const T, along<axis::token>>;
template <class T>
using keys = keys_by_sequence<on_device<const T, along<axis::sequence>>,
                              on_device<const T, along<axis::sequence>>>;
template <class T>
using sinks = on_device<const T, along<axis::head>>;

/// A value that nobody has: only its type is of interest.
template <class T>
const T& some() noexcept;

template <class Output, class Lse, log_base Base, class Valid>
status packed() {
  return kernel::pack<Base>(some<Output>(), some<Lse>(), message_plan{}, nullptr, nullptr,
                            some<Valid>());
}

template <class Lse, log_base Base, class Valid>
status lse_packed() {
  return kernel::pack_lse<Base>(some<Lse>(), message_plan{}, nullptr, nullptr, some<Valid>());
}

template <class Source, class Output, log_base Base, class Merged, class Sink, class Policy>
status combined() {
  return kernel::lse_combine<Base>(some<Source>(), some<Output>(), nullptr, some<Merged>(),
                                   some<Sink>(), some<Policy>());
}

template <class Position, class Slot>
status localized() {
  using table = layout<dim<axis::token>, dim<axis::key>>;
  using pages = layout<dim<axis::sequence>, dim<axis::page>>;
  return kernel::localize_topk(
      some<on_device<const Position, table>>(), some<on_device<const std::int32_t, pages>>(),
      some<on_device<const Position, along<axis::sequence>>>(), {}, some<on_device<Slot, table>>(),
      some<on_device<std::int32_t, along<axis::token>>>(), nullptr);
}

// A decode step has a kernel for each number of rows. By a table into a head-major view, and by a
// list out of fp8 into a tile.
template <class Output, class Lse>
status decoded_by_table() {
  using record = kv_bf16<512, 64>;
  return kernel::mla_decode(
      some<on_device<const bf16, any_rows>>(), some<paged_kv<record, memory_space::device>>(),
      some<on_device<const std::int32_t, layout<dim<axis::sequence>, dim<axis::page>>>>(),
      some<on_device<const std::int32_t, along<axis::sequence>>>(), {}, some<Output>(), some<Lse>(),
      {}, nullptr);
}
template <class Output, class Lse>
status decoded_by_list() {
  using record = kv_fp8_ds_mla<512, 64>;
  return kernel::mla_decode_sparse(
      some<on_device<const bf16, any_rows>>(), some<paged_kv<record, memory_space::device>>(),
      some<on_device<const std::int32_t, layout<dim<axis::token>, dim<axis::key>>>>(), 1.0,
      some<Output>(), some<Lse>(), {}, nullptr);
}

// Where the shards of a combine can be.
template <class T, class Lse, class Valid>
using own_of = shard<on_device<const T, any_rows>, on_device<const Lse, any_lses>, Valid>;
template <class T, class Rows, class Lse, class Lses, class Valid>
using exchanged =
    exchanged_shards<received_shards<T>,
                     shard<on_device<const T, Rows>, on_device<const Lse, Lses>, Valid>>;
template <class T>
using gathered = gathered_shards<
    on_device<const T,
              layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>>,
    on_device<const float, layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>>>>;

using call = status (*)();
extern const call calls[];
const call calls[] = {
    [] {
      return kernel::materialize(some<on_device<const bf16, any_rows>>(),
                                 some<on_device<bf16, head_major_rows>>(), nullptr);
    },

    packed<on_device<const bf16, tile_rows>, on_device<const float, tile_lses>, e, none_t>,
    packed<on_device<const fp16, head_major_rows>, on_device<const fp16, any_lses>, two,
           counts<std::int32_t>>,
    packed<on_device<const float, any_rows>, on_device<const lse<e>, any_lses>, e,
           keys<std::int64_t>>,

    lse_packed<on_device<const float, tile_lses>, e, none_t>,
    lse_packed<on_device<const bf16, any_lses>, two, keys<std::int32_t>>,

    combined<exchanged<bf16, own_rows, float, own_lses, none_t>, on_device<bf16, rank_rows>, e,
             on_device<float, rank_lses>, none_t, nan_policy::empty>,
    combined<exchanged<fp16, head_major_rows, fp16, any_lses, counts<std::int32_t>>,
             on_device<fp16, head_major_rows>, two, on_device<lse<two>, any_lses>, sinks<bf16>,
             nan_policy::empty>,
    combined<exchanged<float, any_rows, float, any_lses, keys<std::int64_t>>,
             on_device<float, any_rows>, e, none_t, sinks<float>, nan_policy::propagate>,
    combined<received_shards<bf16>, on_device<float, any_rows>, two, none_t, none_t,
             nan_policy::empty>,
    combined<gathered<float>, on_device<bf16, any_rows>, e, on_device<float, any_lses>, none_t,
             nan_policy::empty>,
    combined<own_of<bf16, bf16, none_t>, on_device<bf16, any_rows>, e, none_t, none_t,
             nan_policy::empty>,
    combined<separate_shards<own_of<fp16, float, none_t>, own_of<fp16, lse<e>, keys<std::int32_t>>>,
             on_device<fp16, any_rows>, e, on_device<float, any_lses>, none_t, nan_policy::empty>,

    localized<std::int32_t, std::int32_t>,
    localized<std::int64_t, std::int64_t>,

    decoded_by_table<on_device<bf16, head_major_rows>, on_device<lse<e>, any_lses>>,
    decoded_by_list<on_device<bf16, tile_rows>, on_device<lse<two>, tile_lses>>,
};

}  // namespace every_kernel
