// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Laws of copy plans and copies, on random layouts, against lists of all elements.

#include <headwise/plan/copy_plan.hpp>
#include <headwise/reference/materialize.hpp>

#include <support/copy_truth.hpp>
#include <support/guarded.hpp>
#include <support/random.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <utility>
#include <vector>

using namespace headwise;
using support::guarded;
using support::random_source;

namespace {

constexpr index_t dyn = dynamic_extent;

struct shape {
  std::array<index_t, 4> extents{};
  std::array<index_t, 4> strides{};
};

/// Strides under which no two elements share memory: the dims in a random order from the innermost
/// one on, each with or without a gap.
void choose_strides(random_source& random, shape& of, int rank, bool target) {
  int order[4] = {0, 1, 2, 3};
  if (random.one_in(2)) {
    random.shuffle(order, rank);
  } else {
    for (int i = 0; i < rank / 2; ++i) std::swap(order[i], order[rank - 1 - i]);  // row-major
  }
  index_t next = random.one_in(3) ? random.in(1, 3) : 1;
  for (int i = 0; i < rank; ++i) {
    const auto which = static_cast<std::size_t>(order[i]);
    of.strides[which] = next;
    if (of.extents[which] == 1 && random.one_in(2)) {
      of.strides[which] = random.in(0, 100);  // is never used
      continue;
    }
    if (!target && random.one_in(12)) {
      of.strides[which] = 0;  // a source may repeat itself
      continue;
    }
    next *= of.extents[which];
    if (random.one_in(3)) next += random.in(1, 5);
  }
}

shape some_extents(random_source& random, int rank) {
  shape of;
  for (int i = 0; i < rank; ++i) {
    of.extents[static_cast<std::size_t>(i)] =
        random.one_in(40) ? 0 : (random.one_in(4) ? 1 : random.in(1, 6));
  }
  return of;
}

std::array<index_t, 4> reordered(const std::array<index_t, 4>& values,
                                 const std::array<std::size_t, 4>& axes) {
  return {values[axes[0]], values[axes[1]], values[axes[2]], values[axes[3]]};
}

template <class T>
using any_view =
    view<T, layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>>;
/// The same axes, named in another order.
template <class T>
using other_view =
    view<T, layout<dim<axis::head>, dim<axis::head_dim>, dim<axis::rank>, dim<axis::token>>>;
constexpr std::array<std::size_t, 4> other_order{2, 3, 0, 1};

template <class View, class T>
View made(T* data, const shape& of, const std::array<std::size_t, 4>& axes) {
  const auto e = reordered(of.extents, axes);
  const auto s = reordered(of.strides, axes);
  using layout_type = typename View::layout_type;
  return {data, layout_type(typename layout_type::template dim_at<0>(e[0], s[0]),
                            typename layout_type::template dim_at<1>(e[1], s[1]),
                            typename layout_type::template dim_at<2>(e[2], s[2]),
                            typename layout_type::template dim_at<3>(e[3], s[3]))};
}

/// Whether a plan is what listing the elements says. `promised` is what the types say already.
bool plan_holds(const copy_steps& steps, const std::vector<support::move_of>& moves,
                index_t element_bytes, const void* source, const void* target, copy_kind promised) {
  if (steps.empty != moves.empty() || support::moves_of(steps) != moves) return false;
  if (moves.empty()) return steps.kind == copy_kind::contiguous;
  const index_t run = support::longest_equal_run(moves);
  return steps.run == run && run * steps.run_count() == static_cast<index_t>(moves.size()) &&
         steps.kind == (std::max)(support::kind_of(moves), promised) &&
         steps.vector_bytes == support::widest_vector(moves, run, element_bytes,
                                                      reinterpret_cast<std::uintptr_t>(source),
                                                      reinterpret_cast<std::uintptr_t>(target));
}

template <class T>
void fill_with_noise(random_source& random, guarded<T>& memory) {
  for (index_t i = 0; i < memory.size(); ++i) {
    memory.data()[i] = support::element_of_bits<T>(random.bits());
  }
}

template <class T>
bool all_moved(const std::vector<support::move_of>& moves, const T* source, const T* target) {
  for (const support::move_of& one : moves) {
    if (!support::same_bits(target[one.target], source[one.source])) return false;
  }
  return true;
}

template <class T, template <class> class SourceOf, template <class> class TargetOf>
bool law_of_dynamic_views(random_source& random, const std::array<std::size_t, 4>& source_order,
                          const std::array<std::size_t, 4>& target_order) {
  shape reads = some_extents(random, 4);
  shape writes = reads;
  choose_strides(random, reads, 4, false);
  if (random.one_in(3)) {
    writes.strides = reads.strides;
    for (const index_t stride : reads.strides) {
      if (stride == 0) choose_strides(random, writes, 4, true);
    }
  } else {
    choose_strides(random, writes, 4, true);
  }
  const auto blind_source =
      made<SourceOf<const T>>(static_cast<const T*>(nullptr), reads, source_order);
  const auto blind_target = made<TargetOf<T>>(static_cast<T*>(nullptr), writes, target_order);
  guarded<T> from(blind_source.span_size(), random.in(0, 8));
  guarded<T> to(blind_target.span_size(), random.in(0, 8));
  const auto source =
      made<SourceOf<const T>>(static_cast<const T*>(from.data()), reads, source_order);
  const auto target = made<TargetOf<T>>(to.data(), writes, target_order);
  if (!check_copy("source", source, "target", target).ok()) return false;
  const std::vector<support::move_of> moves = support::moves_of(source, target);
  if (!plan_holds(plan_copy(source, target), moves, sizeof(T), source.data(), target.data(),
                  copy_kind::strided)) {
    return false;
  }
  fill_with_noise(random, from);
  return reference::materialize(source, target).ok() &&
         all_moved(moves, source.data(), target.data()) && to.stray_bytes(target) == 0;
}

constexpr std::array<std::size_t, 4> named_order{0, 1, 2, 3};

TEST_CASE("coalescing keeps the index map, and plan and copy are what listing elements says") {
  constexpr int iterations = 100000;
  random_source random("copies of random layouts", iterations);
  int wrong = 0;
  for (int i = 0; i < iterations; ++i) {
    bool good = false;
    switch (random.in(0, 4)) {
      case 0:
        good = law_of_dynamic_views<bf16, any_view, any_view>(random, named_order, named_order);
        break;
      case 1:
        good = law_of_dynamic_views<float, any_view, other_view>(random, named_order, other_order);
        break;
      case 2:
        good =
            law_of_dynamic_views<fp8_e4m3, other_view, any_view>(random, other_order, named_order);
        break;
      case 3:
        good =
            law_of_dynamic_views<double, other_view, other_view>(random, other_order, other_order);
        break;
      default:
        good = law_of_dynamic_views<fp16, any_view, other_view>(random, named_order, other_order);
        break;
    }
    if (!good) ++wrong;
  }
  CHECK(wrong == 0);
}

// Types as engines have them, and worse: head is 3 and head_dim is 4 where a type knows them.
template <class... Dims>
using of = layout<Dims...>;
using packed_static = of<dim<axis::token, 5, 12>, dim<axis::head, 3, 4>, dim<axis::head_dim, 4, 1>>;
using packed_batch =
    of<dim<axis::token, dyn, 12>, dim<axis::head, 3, 4>, dim<axis::head_dim, 4, 1>>;
using sliced = of<dim<axis::token, dyn, 32>, dim<axis::head, 3, 4>, dim<axis::head_dim, 4, 1>>;
using some_heads =
    of<dim<axis::token, dyn, 32>, dim<axis::head, dyn, 4>, dim<axis::head_dim, 4, 1>>;
using pitched_rows = of<dim<axis::token>, dim<axis::head>, dim<axis::head_dim, dyn, 1>>;
using known_rows = of<dim<axis::token>, dim<axis::head, 3>, dim<axis::head_dim, 4, 1>>;
using head_major = of<dim<axis::head, 3>, dim<axis::token, dyn, 4>, dim<axis::head_dim, 4, 1>>;
using transposed = of<dim<axis::head_dim, 4>, dim<axis::token, dyn, 3>, dim<axis::head, 3, 1>>;
using columns =
    of<dim<axis::token, dyn, 100>, dim<axis::head, dyn, 20>, dim<axis::head_dim, dyn, 4>>;
using one_head = of<dim<axis::token, dyn, 4>, dim<axis::head>, dim<axis::head_dim, dyn, 1>>;
using all_open = of<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
using odd_names = of<dim<axis::head_dim, 4, 1>, dim<axis::token, dyn, 12>, dim<axis::head, 3, 4>>;

template <class Axis>
constexpr std::size_t place = std::is_same_v<Axis, axis::token>  ? 0
                              : std::is_same_v<Axis, axis::head> ? 1
                                                                 : 2;

/// The layout with these values; what its type knows is among them.
template <class... Dims>
layout<Dims...> valued(std::type_identity<layout<Dims...>>, const shape& of) {
  return layout<Dims...>(Dims(of.extents[place<typename Dims::axis_type>],
                              of.strides[place<typename Dims::axis_type>])...);
}
template <class... Dims>
void put_known_extents(std::type_identity<layout<Dims...>>, shape& of) {
  ((of.extents[place<typename Dims::axis_type>] =
        Dims::static_extent != dyn ? Dims::static_extent
                                   : of.extents[place<typename Dims::axis_type>]),
   ...);
}
/// The strides that the type knows, and for the others those of `others`.
template <class... Dims>
void put_strides(std::type_identity<layout<Dims...>>, shape& of, const shape& others) {
  ((of.strides[place<typename Dims::axis_type>] =
        Dims::static_stride != dyn ? Dims::static_stride
                                   : others.strides[place<typename Dims::axis_type>]),
   ...);
}

constexpr int values_per_pair = 500;

struct tally {
  long tried = 0;
  long promised_all = 0;  // the type knew already what the value is
  long promised_better = 0;
  long wrong = 0;
};

template <class From, class To>
void law_of_types(random_source& random, tally& count) {
  constexpr std::type_identity<From> from_type{};
  constexpr std::type_identity<To> to_type{};
  using source_view = view<const bf16, From>;
  using target_view = view<bf16, To>;
  using plan = copy_plan<source_view, target_view>;
  for (int i = 0; i < values_per_pair; ++i) {
    shape reads;
    for (index_t& extent : reads.extents) extent = random.one_in(3) ? 1 : random.in(1, 5);
    put_known_extents(from_type, reads);
    put_known_extents(to_type, reads);
    shape writes = reads;
    shape open = reads;
    choose_strides(random, open, 3, false);
    put_strides(from_type, reads, open);
    // What the target's type leaves open is often as in the source.
    if (random.one_in(2)) choose_strides(random, open, 3, true);
    put_strides(to_type, writes, random.one_in(2) ? open : reads);

    const From from_layout = valued(from_type, reads);
    const To to_layout = valued(to_type, writes);
    // Aligned to 16 bytes: that is what a promise of vectors is about.
    guarded<bf16> from(from_layout.span_size());
    guarded<bf16> to(to_layout.span_size());
    const source_view source(from.data(), from_layout);
    const target_view target(to.data(), to_layout);
    if (!validate_target("target", target).ok()) continue;
    ++count.tried;
    const copy_steps steps = plan_copy(source, target);
    if (steps.kind < plan::kind || steps.vector_bytes % plan::vector_bytes != 0 ||
        (plan::steps.run != dyn && steps.run % plan::steps.run != 0)) {
      ++count.promised_better;
    }
    const std::vector<support::move_of> moves = support::moves_of(source, target);
    if (plan::kind == copy_kind::contiguous && support::kind_of(moves) != copy_kind::contiguous) {
      ++count.promised_better;
    }
    if (plan::kind == steps.kind) ++count.promised_all;
    fill_with_noise(random, from);
    if (!plan_holds(steps, moves, sizeof(bf16), source.data(), target.data(), plan::kind) ||
        !reference::materialize(source, target).ok() ||
        !all_moved(moves, source.data(), target.data()) || to.stray_bytes(target) != 0) {
      ++count.wrong;
    }
  }
}

template <class... Layouts>
struct type_list {};

template <class To, class... From>
void from_each(random_source& random, tally& count, type_list<From...>) {
  (law_of_types<From, To>(random, count), ...);
}
template <class Sources, class... To>
tally every_pair(random_source& random, Sources sources, type_list<To...>) {
  tally count;
  (from_each<To>(random, count, sources), ...);
  return count;
}

TEST_CASE("what types promise of a copy is never better than what their values do") {
  using sources =
      type_list<packed_batch, sliced, some_heads, known_rows, transposed, one_head, all_open>;
  using targets = type_list<packed_static, packed_batch, pitched_rows, head_major, columns,
                            all_open, odd_names>;
  random_source random("promises of types", 7 * 7 * values_per_pair);
  const tally count = every_pair(random, sources{}, targets{});
  std::printf(
      "          %ld pairs were copies (the other targets overlap); of %ld kinds the types "
      "knew all\n",
      count.tried, count.promised_all);
  CHECK(count.tried > 1000);
  CHECK(count.promised_all > 500);
  CHECK(count.promised_better == 0);
  CHECK(count.wrong == 0);
}

}  // namespace
