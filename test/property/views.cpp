// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Laws of layouts and views, over random values and random types, each against a computation that
// walks over all elements and knows nothing of layouts.

#include <headwise/view/refine.hpp>
#include <headwise/view/slice.hpp>
#include <headwise/view/view.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <type_traits>
#include <utility>

using namespace headwise;

namespace {

std::uint64_t seed() {
  const char* const given = std::getenv("HEADWISE_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
}

// Hundreds of types share the functions marked noinline: inlined, they take minutes to compile.

using random_source = std::mt19937_64;

index_t draw(random_source& random, index_t low, index_t high) {
  return low + static_cast<index_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

/// The elements of all views here; the strides below reach less far.
std::uint16_t buffer[1 << 14];

constexpr std::size_t max_rank = 6;
using indices = std::array<index_t, max_rank>;

/// What is known of a view before there is one, or read out of one: numbers and the first address.
struct table {
  std::size_t rank = 0;
  indices extents{};
  indices strides{};
  const std::uint16_t* data = buffer;
};

/// The next index, the innermost axis running fastest; false after the last one.
[[gnu::noinline]] bool advance(const table& of, indices& at) {
  std::size_t axis = of.rank;
  while (axis > 0 && ++at[axis - 1] == of.extents[axis - 1]) at[--axis] = 0;
  return axis != 0;
}

[[gnu::noinline]] bool any(const table& of) {
  for (std::size_t i = 0; i < of.rank; ++i) {
    if (of.extents[i] == 0) return false;
  }
  return true;
}

/// Step by step, so that nothing is shared with the code under test.
[[gnu::noinline]] const std::uint16_t* naive_address(const table& of, const indices& at) {
  const std::uint16_t* where = of.data;
  for (std::size_t i = 0; i < of.rank; ++i) {
    for (index_t step = 0; step < at[i]; ++step) where += of.strides[i];
  }
  return where;
}

struct walked {
  index_t count = 0;
  index_t span = 0;
  bool contiguous = true;
};

[[gnu::noinline]] walked walk(const table& of) {
  walked seen;
  if (!any(of)) return seen;
  indices at{};
  do {
    const index_t offset = naive_address(of, at) - of.data;
    if (offset != seen.count) seen.contiguous = false;
    if (offset + 1 > seen.span) seen.span = offset + 1;
    ++seen.count;
  } while (advance(of, at));
  return seen;
}

/// Counts what is wrong and keeps the first.
class findings {
 public:
  [[gnu::noinline]] void expect(bool right, const char* what, const table& where) {
    ++checks_;
    if (right) return;
    if (wrong_++ != 0) return;
    first_ = std::string(what) + ':';
    for (std::size_t i = 0; i < where.rank; ++i) {
      first_ += ' ' + std::to_string(where.extents[i]) + ':' + std::to_string(where.strides[i]);
    }
  }
  void report(const char* name, index_t iterations) const {
    std::printf("%s: seed %llu, %lld layouts, %lld checks\n", name,
                static_cast<unsigned long long>(seed()), static_cast<long long>(iterations),
                static_cast<long long>(checks_));
    INFO(first_);
    CHECK(wrong_ == 0);
    CHECK(checks_ > iterations);
  }

 private:
  index_t checks_ = 0;
  index_t wrong_ = 0;
  std::string first_;
};

template <class View>
table table_of(const View& of) {
  table read;
  read.rank = static_cast<std::size_t>(View::rank);
  const auto extents = of.layout().extents();
  const auto strides = of.layout().strides();
  for (int i = 0; i < View::rank; ++i) {
    read.extents[static_cast<std::size_t>(i)] = extents[i];
    read.strides[static_cast<std::size_t>(i)] = strides[i];
  }
  read.data = of.data();
  return read;
}

template <class View>
void check_numbers(findings& found, const View& what, const table& of) {
  const walked seen = walk(of);
  found.expect(what.size() == seen.count, "size", of);
  found.expect(what.empty() == (seen.count == 0), "empty", of);
  found.expect(what.span_size() == seen.span, "span_size", of);
  found.expect(what.is_contiguous() == seen.contiguous, "is_contiguous", of);
  if (seen.count == 0) return;
  constexpr contiguity in_type = View::layout_type::static_contiguity();
  found.expect(in_type != contiguity::always || seen.contiguous, "always contiguous", of);
  found.expect(in_type != contiguity::never || !seen.contiguous, "never contiguous", of);
  indices at{};
  do {
    const std::uint16_t* const element = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return &what(at[I]...);
    }
    (std::make_index_sequence<static_cast<std::size_t>(View::rank)>{});
    found.expect(element == naive_address(of, at), "address", of);
  } while (advance(of, at));
}

/// Where an element of a changed view lies in its parent: which axis was changed, and how.
struct change {
  enum { none, fixed, sliced, split, reversed, rotated } kind = none;
  std::size_t axis = 0;
  index_t number = 0;  ///< the index that was fixed, the first of the slice, the extent of a group
};

indices in_parent(const change& how, const indices& at, std::size_t parent_rank) {
  indices parent{};
  for (std::size_t i = 0; i < parent_rank; ++i) {
    switch (how.kind) {
      case change::none: parent[i] = at[i]; break;
      case change::fixed:
        parent[i] = i == how.axis ? how.number : at[i < how.axis ? i : i - 1];
        break;
      case change::sliced: parent[i] = at[i] + (i == how.axis ? how.number : 0); break;
      case change::split:
        parent[i] = i < how.axis    ? at[i]
                    : i == how.axis ? at[i] * how.number + at[i + 1]
                                    : at[i + 1];
        break;
      case change::reversed: parent[i] = at[parent_rank - 1 - i]; break;
      case change::rotated: parent[i] = at[(i + parent_rank - 1) % parent_rank]; break;
    }
  }
  return parent;
}

/// Every element of the changed view is the one of the parent that the change means, `count` of
/// them.
[[gnu::noinline]] void check_change(findings& found, const char* name, const table& changed,
                                    const table& parent, const change& how, index_t count) {
  index_t seen = 0;
  if (any(changed)) {
    indices at{};
    do {
      const indices there = in_parent(how, at, parent.rank);
      bool inside = true;
      for (std::size_t i = 0; i < parent.rank; ++i) {
        inside = inside && there[i] >= 0 && there[i] < parent.extents[i];
      }
      found.expect(inside, name, parent);
      if (inside) {
        found.expect(naive_address(changed, at) == naive_address(parent, there), name, parent);
      }
      ++seen;
    } while (advance(changed, at));
  }
  found.expect(seen == count, name, parent);
}

struct other_axis {
  static constexpr const char* name = "other";
};
struct group_axis {
  static constexpr const char* name = "group";
};

template <class Axis, class View>
void check_axis(findings& found, random_source& random, const View& what, const table& of,
                std::size_t axis) {
  const index_t extent = of.extents[axis];
  const index_t count = walk(of).count;

  for (index_t i = 0; i < extent; ++i) {
    check_change(found, "fix", table_of(fix<Axis>(what, i)), of, {change::fixed, axis, i},
                 count / extent);
  }

  const index_t first = draw(random, -1, extent + 1);
  const index_t length = draw(random, -1, extent + 1);
  const bool inside = first >= 0 && length >= 0 && first + length <= extent;
  const auto some = slice<Axis>(what, first, length);
  found.expect(some.ok() == inside, "slice is refused", of);
  if (some.ok() && inside) {
    check_change(found, "slice", table_of(some.value()), of, {change::sliced, axis, first},
                 extent == 0 ? 0 : count / extent * length);
  }

  const index_t groups = draw(random, 0, 4);
  const bool divides = groups > 0 && extent % (groups > 0 ? groups : 1) == 0;
  const auto parts = split<Axis, group_axis, Axis>(what, groups);
  found.expect(parts.ok() == divides, "split is refused", of);
  if (parts.ok() && divides) {
    check_change(found, "split", table_of(parts.value()), of,
                 {change::split, axis, extent / groups}, count);
  }

  check_change(found, "rename", table_of(rename<Axis, other_axis>(what)), of, {}, count);
}

template <class Layout>
struct checks;
template <class... Dims>
struct checks<layout<Dims...>> {
  static constexpr std::size_t rank = sizeof...(Dims);
  using own_layout = layout<Dims...>;
  using own_view = view<std::uint16_t, own_layout>;
  using positions = std::make_index_sequence<rank>;

  template <std::size_t I>
  using axis_at = typename own_layout::template dim_at<static_cast<int>(I)>::axis_type;

  template <std::size_t... I>
  static own_view make([[maybe_unused]] const table& of, std::index_sequence<I...>) {
    return {buffer, own_layout(Dims(of.extents[I], of.strides[I])...)};
  }

  static void numbers(findings& found, const table& of) {
    check_numbers(found, make(of, positions{}), of);
  }

  template <std::size_t... I>
  static void changes(findings& found, random_source& random, const table& of,
                      std::index_sequence<I...>) {
    const own_view what = make(of, positions{});
    const index_t count = walk(of).count;
    (check_axis<axis_at<I>>(found, random, what, of, I), ...);
    static_cast<void>(random);
    // Two permutations that generate many: the reversal and the rotation.
    check_change(found, "reversed", table_of(permute<axis_at<rank - 1 - I>...>(what)), of,
                 {change::reversed}, count);
    check_change(found, "rotated", table_of(permute<axis_at<(I + 1) % rank>...>(what)), of,
                 {change::rotated}, count);
    // Forgetting what the type knows, and finding it again.
    const view<const std::uint16_t, layout<dim<typename Dims::axis_type>...>> open = what;
    check_change(found, "widened", table_of(open), of, {}, count);
    const auto again = refine<own_layout>(open);
    found.expect(again.ok(), "refined", of);
    if (again.ok()) check_change(found, "refined", table_of(again.value()), of, {}, count);
  }
};

/// Strides that leave no gap, in this order of the axes or in another; with gaps here and there; or
/// anything at all.
table draw_table(random_source& random, std::size_t rank) {
  table of;
  of.rank = rank;
  std::array<std::size_t, max_rank> order{};
  for (std::size_t i = 0; i < rank; ++i) {
    of.extents[i] = draw(random, 0, 12) == 0 ? 0 : draw(random, 1, 4);
    order[i] = rank - 1 - i;
  }
  const index_t kind = draw(random, 0, 3);
  if (kind != 0) {
    for (std::size_t i = rank; i > 1; --i) {
      std::swap(order[i - 1], order[random() % i]);
    }
  }
  index_t next = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    const index_t extent = of.extents[order[i]];
    if (kind == 2 && draw(random, 0, 2) == 0) next *= 2;
    of.strides[order[i]] = kind == 3 ? draw(random, 0, 30) : next;
    if (extent > 1) next *= extent;
    // The stride of an extent of 1 may be anything.
    if (extent == 1 && draw(random, 0, 1) == 0) of.strides[order[i]] = draw(random, 0, 99);
  }
  return of;
}

template <class... Axes>
void check_open(findings& found, random_source& random, int iterations) {
  using own = checks<layout<dim<Axes>...>>;
  for (int n = 0; n < iterations; ++n) {
    const table of = draw_table(random, sizeof...(Axes));
    own::numbers(found, of);
    own::changes(found, random, of, typename own::positions{});
  }
}

TEST_CASE("property: layouts and views of run-time values, ranks 0 to 5, against a walk") {
  random_source random(seed());
  findings found;
  constexpr int each = 20000;
  check_open<>(found, random, each);
  check_open<axis::token>(found, random, each);
  check_open<axis::token, axis::head>(found, random, each);
  check_open<axis::token, axis::head, axis::head_dim>(found, random, each);
  check_open<axis::page, axis::token, axis::head, axis::head_dim>(found, random, each);
  check_open<axis::page, axis::slot, axis::token, axis::head, axis::head_dim>(found, random, each);
  found.report("views of run-time values", 6 * each);
}

// ---- random types ------------------------------------------------------------------------------

constexpr std::uint64_t scrambled(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Dim I of the random layout type N: an extent of 0 to 4, or open; a stride that is open, or
/// leaves no gap behind it, or is something else.
template <unsigned N>
struct random_dims {
  static constexpr int rank = static_cast<int>(scrambled(7 * N + 1) % 5);

  static constexpr index_t extent(int i) {
    const std::uint64_t bits = scrambled(1000 * N + static_cast<unsigned>(i) + 17);
    if (bits % 20 == 0) return 0;
    return bits % 5 < 2 ? dynamic_extent : static_cast<index_t>(1 + bits / 20 % 4);
  }
  static constexpr index_t stride(int i) {
    const std::uint64_t bits = scrambled(1000 * N + static_cast<unsigned>(i) + 517);
    index_t packed = 1;
    for (int j = i + 1; j < rank; ++j) {
      packed = extent(j) == dynamic_extent || packed == dynamic_stride ? dynamic_stride
                                                                       : packed * extent(j);
    }
    if (bits % 5 < 2) return dynamic_stride;
    return bits % 5 < 4 ? packed : static_cast<index_t>(bits / 5 % 25);
  }

  static table draw_values(random_source& random) {
    table of;
    of.rank = static_cast<std::size_t>(rank);
    index_t packed = 1;
    for (std::size_t k = of.rank; k-- > 0;) {
      const index_t extent_in_type = extent(static_cast<int>(k));
      const index_t stride_in_type = stride(static_cast<int>(k));
      of.extents[k] = extent_in_type == dynamic_extent ? draw(random, 0, 3) : extent_in_type;
      of.strides[k] = stride_in_type != dynamic_stride ? stride_in_type
                      : draw(random, 0, 2) != 0        ? packed
                                                       : draw(random, 0, 30);
      packed *= of.extents[k];
    }
    return of;
  }
};

template <unsigned N, class Positions>
struct random_layout;
template <unsigned N, std::size_t... I>
struct random_layout<N, std::index_sequence<I...>> {
  template <std::size_t Position>
  using axis_at = typename detail::nth_type<static_cast<int>(Position), axis::page, axis::token,
                                            axis::head, axis::head_dim>::type;
  using type = layout<dim<axis_at<I>, random_dims<N>::extent(static_cast<int>(I)),
                          random_dims<N>::stride(static_cast<int>(I))>...>;
};
template <unsigned N>
using random_layout_t = typename random_layout<
    N, std::make_index_sequence<static_cast<std::size_t>(random_dims<N>::rank)>>::type;

struct type_counts {
  int types = 0;
  int always = 0;
  int never = 0;
  int run_time = 0;
  index_t contiguous_of_run_time = 0;
  index_t others_of_run_time = 0;
};

template <unsigned N>
void check_type(findings& found, random_source& random, type_counts& counts, int iterations) {
  using type = random_layout_t<N>;
  constexpr contiguity in_type = type::static_contiguity();
  ++counts.types;
  counts.always += in_type == contiguity::always;
  counts.never += in_type == contiguity::never;
  counts.run_time += in_type == contiguity::run_time;

  std::size_t open = 0;
  for (int i = 0; i < type::rank; ++i) {
    if (random_dims<N>::extent(i) == dynamic_extent) ++open;
    if (random_dims<N>::stride(i) == dynamic_stride) ++open;
  }
  CHECK(sizeof(view<float, type>) == sizeof(void*) + 8 * open);

  for (int n = 0; n < iterations; ++n) {
    const table of = random_dims<N>::draw_values(random);
    checks<type>::numbers(found, of);
    if (in_type == contiguity::run_time && any(of)) {
      ++(walk(of).contiguous ? counts.contiguous_of_run_time : counts.others_of_run_time);
    }
  }
}

TEST_CASE("property: layouts of random types, ranks 0 to 4, against a walk") {
  random_source random(seed());
  findings found;
  type_counts counts;
  constexpr int each = 2000;
  [&]<unsigned... N>(std::integer_sequence<unsigned, N...>) {
    (check_type<N>(found, random, counts, each), ...);
  }
  (std::make_integer_sequence<unsigned, 60>{});
  found.report("layouts of random types", static_cast<index_t>(counts.types) * each);
  std::printf(
      "  %d types: always contiguous %d, never %d, at run time %d (%lld times so, %lld not)\n",
      counts.types, counts.always, counts.never, counts.run_time,
      static_cast<long long>(counts.contiguous_of_run_time),
      static_cast<long long>(counts.others_of_run_time));
  // All three answers must have been put to the test, and the third in both ways.
  CHECK(counts.always >= 10);
  CHECK(counts.never >= 5);
  CHECK(counts.run_time >= 10);
  CHECK(counts.contiguous_of_run_time >= 1000);
  CHECK(counts.others_of_run_time >= 1000);
}

TEST_CASE("property: changes of views of random types, ranks 0 to 4, keep every address") {
  random_source random(seed());
  findings found;
  constexpr int each = 10000;
  constexpr unsigned types = 10;
  [&]<unsigned... N>(std::integer_sequence<unsigned, N...>) {
    const auto check = [&]<unsigned M>(std::integral_constant<unsigned, M>) {
      using own = checks<random_layout_t<1000 + M>>;
      for (int n = 0; n < each; ++n) {
        const table of = random_dims<1000 + M>::draw_values(random);
        own::changes(found, random, of, typename own::positions{});
      }
    };
    (check(std::integral_constant<unsigned, N>{}), ...);
  }
  (std::make_integer_sequence<unsigned, types>{});
  found.report("changes of views of random types", index_t{types} * each);
}

}  // namespace
