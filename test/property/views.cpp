// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Laws of layouts and views, over random values and random types, each against a computation that
// walks over all elements and knows nothing of layouts.

#include <headwise/view/describe.hpp>
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
#include <utility>

using namespace headwise;

namespace {

std::uint64_t seed() {
  const char* const given = std::getenv("HEADWISE_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
}

using random_source = std::mt19937_64;

index_t draw(random_source& random, index_t low, index_t high) {
  return low + static_cast<index_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

// The strides below reach less far than this.
constexpr index_t buffer_size = 1 << 14;
std::uint16_t buffer[buffer_size];

template <std::size_t Rank>
struct shape {
  std::array<index_t, Rank> extents{};
  std::array<index_t, Rank> strides{};
};

/// Calls f for every index of the shape, outermost first, the innermost running fastest.
template <std::size_t Rank, class F>
void each_index(const std::array<index_t, Rank>& extents, F&& f) {
  for (const index_t e : extents) {
    if (e == 0) return;
  }
  std::array<index_t, Rank> at{};
  while (true) {
    f(at);
    std::size_t axis = Rank;
    while (axis > 0 && ++at[axis - 1] == extents[axis - 1]) at[--axis] = 0;
    if (axis == 0) return;
  }
}

template <std::size_t Rank>
index_t naive_offset(const shape<Rank>& of, const std::array<index_t, Rank>& at) {
  index_t offset = 0;
  for (std::size_t i = 0; i < Rank; ++i) {
    for (index_t step = 0; step < at[i]; ++step) offset += of.strides[i];
  }
  return offset;
}

template <class View, std::size_t Rank>
auto* address(const View& of, const std::array<index_t, Rank>& at) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) { return &of(at[I]...); }
  (std::make_index_sequence<Rank>{});
}

/// Strides that leave no gap in some order of the axes, gaps here and there, or anything at all.
template <std::size_t Rank>
void draw_strides(random_source& random, shape<Rank>& of) {
  std::array<std::size_t, Rank> order{};
  for (std::size_t i = 0; i < Rank; ++i) order[i] = Rank - 1 - i;
  const index_t kind = draw(random, 0, 3);
  if (kind != 0) {
    for (std::size_t i = Rank; i > 1; --i) {
      std::swap(order[i - 1],
                order[static_cast<std::size_t>(draw(random, 0, static_cast<index_t>(i) - 1))]);
    }
  }
  index_t next = 1;
  for (std::size_t i = 0; i < Rank; ++i) {
    if (kind == 2 && draw(random, 0, 2) == 0) next *= 2;
    of.strides[order[i]] = kind == 3 ? draw(random, 0, 30) : next;
    if (of.extents[order[i]] > 1) next *= of.extents[order[i]];
    // The stride of an extent of 1 may be anything.
    if (of.extents[order[i]] == 1 && draw(random, 0, 1) == 0)
      of.strides[order[i]] = draw(random, 0, 99);
  }
}

template <std::size_t Rank>
shape<Rank> draw_shape(random_source& random) {
  shape<Rank> of;
  for (index_t& e : of.extents) e = draw(random, 0, 12) == 0 ? 0 : draw(random, 1, 4);
  draw_strides(random, of);
  return of;
}

/// Counts what is wrong and keeps the first.
class findings {
 public:
  template <class View>
  void expect(bool right, const char* what, const View& where) {
    ++checks_;
    if (right) return;
    if (wrong_++ != 0) return;
    char text[200];
    describe_view(where, text, sizeof(text));
    first_ = std::string(what) + ": " + text;
  }
  void report(const char* name, index_t iterations) const {
    std::printf("%s: seed %llu, %lld layouts, %lld checks\n", name,
                static_cast<unsigned long long>(seed()), static_cast<long long>(iterations),
                static_cast<long long>(checks_));
    INFO(first_);
    CHECK(wrong_ == 0);
    CHECK(checks_ > 0);
  }

 private:
  index_t checks_ = 0;
  index_t wrong_ = 0;
  std::string first_;
};

/// What a walk over all elements tells of a shape.
struct walked {
  index_t count = 0;
  index_t span = 0;
  bool contiguous = true;
};

template <std::size_t Rank>
walked walk(const shape<Rank>& of) {
  walked seen;
  each_index(of.extents, [&](const std::array<index_t, Rank>& at) {
    const index_t offset = naive_offset(of, at);
    if (offset != seen.count) seen.contiguous = false;
    if (offset + 1 > seen.span) seen.span = offset + 1;
    ++seen.count;
  });
  return seen;
}

template <class View, std::size_t Rank>
void check_numbers(findings& found, const View& what, const shape<Rank>& of) {
  const walked seen = walk(of);
  found.expect(what.size() == seen.count, "size", what);
  found.expect(what.empty() == (seen.count == 0), "empty", what);
  found.expect(what.span_size() == seen.span, "span_size", what);
  found.expect(what.is_contiguous() == seen.contiguous, "is_contiguous", what);
  if (seen.count != 0) {
    const contiguity in_type = View::layout_type::static_contiguity();
    found.expect(in_type != contiguity::always || seen.contiguous, "static always", what);
    found.expect(in_type != contiguity::never || !seen.contiguous, "static never", what);
  }
  each_index(of.extents, [&](const std::array<index_t, Rank>& at) {
    found.expect(address(what, at) == buffer + naive_offset(of, at), "address", what);
  });
}

/// Every element of `changed` lies where `parent_of` finds it in the parent.
template <class View, std::size_t Rank, class ParentOf>
void check_addresses(findings& found, const char* name, const View& changed, const shape<Rank>& of,
                     ParentOf parent_of) {
  constexpr auto rank = static_cast<std::size_t>(View::rank);
  std::array<index_t, rank> extents;
  const auto sizes = changed.layout().extents();
  for (std::size_t i = 0; i < rank; ++i) extents[i] = sizes[static_cast<int>(i)];
  index_t count = 0;
  each_index(extents, [&](const std::array<index_t, rank>& at) {
    const std::array<index_t, Rank> in_parent = parent_of(at);
    for (std::size_t i = 0; i < Rank; ++i) {
      found.expect(in_parent[i] >= 0 && in_parent[i] < of.extents[i], name, changed);
    }
    found.expect(address(changed, at) == buffer + naive_offset(of, in_parent), name, changed);
    ++count;
  });
  found.expect(changed.size() == count, name, changed);
}

struct other_axis {
  static constexpr const char* name = "other";
};
struct group_axis {
  static constexpr const char* name = "group";
};

template <class Axis, std::size_t Position, class View, std::size_t Rank>
void check_axis(findings& found, random_source& random, const View& what, const shape<Rank>& of) {
  const std::size_t position = Position;
  const index_t extent = of.extents[position];

  for (index_t i = 0; i < extent; ++i) {
    check_addresses(found, "fix", fix<Axis>(what, i), of, [&](const auto& at) {
      std::array<index_t, Rank> parent{};
      for (std::size_t a = 0; a < Rank; ++a)
        parent[a] = a == position ? i : at[a < position ? a : a - 1];
      return parent;
    });
  }

  const index_t first = draw(random, -1, extent + 1);
  const index_t count = draw(random, -1, extent + 1);
  const bool inside = first >= 0 && count >= 0 && first + count <= extent;
  const auto sliced = slice<Axis>(what, first, count);
  found.expect(sliced.ok() == inside, "slice is refused", what);
  if (sliced.ok()) {
    check_addresses(found, "slice", sliced.value(), of, [&](auto at) {
      at[position] += first;
      return at;
    });
  }

  const index_t groups = draw(random, 0, 4);
  const auto parts = split<Axis, group_axis, Axis>(what, groups);
  found.expect(parts.ok() == (groups > 0 && extent % (groups > 0 ? groups : 1) == 0),
               "split is refused", what);
  if (parts.ok()) {
    check_addresses(found, "split", parts.value(), of, [&](const auto& at) {
      std::array<index_t, Rank> parent{};
      for (std::size_t a = 0; a < Rank; ++a) parent[a] = at[a <= position ? a : a + 1];
      parent[position] = at[position] * (extent / groups) + at[position + 1];
      return parent;
    });
  }

  check_addresses(found, "rename", rename<Axis, other_axis>(what), of,
                  [](const auto& at) { return at; });
}

template <class Layout>
struct check_changes;
template <class... Dims>
struct check_changes<layout<Dims...>> {
  static constexpr std::size_t rank = sizeof...(Dims);
  using own_layout = layout<Dims...>;

  template <std::size_t I>
  using axis_at = typename own_layout::template dim_at<static_cast<int>(I)>::axis_type;

  template <class View>
  static void run(findings& found, random_source& random, const View& what, const shape<rank>& of) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (check_axis<axis_at<I>, I>(found, random, what, of), ...);
      // Two permutations that generate many: the reversal and the rotation.
      check_addresses(
          found, "reversed", permute<axis_at<rank - 1 - I>...>(what), of,
          [](const auto& at) { return std::array<index_t, rank>{at[rank - 1 - I]...}; });
      check_addresses(
          found, "rotated", permute<axis_at<(I + 1) % rank>...>(what), of,
          [](const auto& at) { return std::array<index_t, rank>{at[(I + rank - 1) % rank]...}; });
    }
    (std::make_index_sequence<rank>{});
    // Forgetting what the type knows, and finding it again.
    const view<const std::uint16_t, layout<dim<typename Dims::axis_type>...>> open = what;
    check_addresses(found, "widened", open, of, [](const auto& at) { return at; });
    const auto again = refine<own_layout>(open);
    found.expect(again.ok(), "refined", what);
    if (again.ok())
      check_addresses(found, "refined", again.value(), of, [](const auto& at) { return at; });
  }
};

template <class... Dims, std::size_t... I>
view<std::uint16_t, layout<Dims...>> make(std::type_identity<layout<Dims...>>,
                                          const shape<sizeof...(Dims)>& of,
                                          std::index_sequence<I...>) {
  static_cast<void>(of);
  return {buffer, layout<Dims...>(Dims(of.extents[I], of.strides[I])...)};
}

template <class Layout>
void check_layout(findings& found, random_source& random,
                  const shape<static_cast<std::size_t>(Layout::rank)>& of) {
  const auto what = make(std::type_identity<Layout>{}, of,
                         std::make_index_sequence<static_cast<std::size_t>(Layout::rank)>{});
  check_numbers(found, what, of);
  check_changes<Layout>::run(found, random, what, of);
}

template <class... Axes>
void check_open(findings& found, random_source& random, int iterations) {
  for (int i = 0; i < iterations; ++i) {
    check_layout<layout<dim<Axes>...>>(found, random, draw_shape<sizeof...(Axes)>(random));
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

/// Dim I of the random layout type N: an extent of 0 to 4 or open; a stride that is open, or leaves
/// no gap behind it, or is something else.
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
  constexpr auto rank = static_cast<std::size_t>(random_dims<N>::rank);
  using type = typename random_layout<N, std::make_index_sequence<rank>>::type;
  constexpr contiguity in_type = type::static_contiguity();
  ++counts.types;
  counts.always += in_type == contiguity::always;
  counts.never += in_type == contiguity::never;
  counts.run_time += in_type == contiguity::run_time;

  int open = 0;
  for (int i = 0; i < type::rank; ++i) {
    open += random_dims<N>::extent(i) == dynamic_extent;
    open += random_dims<N>::stride(i) == dynamic_stride;
  }
  CHECK(sizeof(view<float, type>) == sizeof(void*) + 8 * static_cast<std::size_t>(open));

  for (int n = 0; n < iterations; ++n) {
    shape<rank> of;
    index_t packed = 1;
    for (std::size_t k = rank; k-- > 0;) {
      const int i = static_cast<int>(k);
      const index_t extent = random_dims<N>::extent(i);
      const index_t stride = random_dims<N>::stride(i);
      of.extents[k] = extent == dynamic_extent ? draw(random, 0, 3) : extent;
      of.strides[k] = stride != dynamic_stride  ? stride
                      : draw(random, 0, 2) != 0 ? packed
                                                : draw(random, 0, 30);
      packed *= of.extents[k];
    }
    check_layout<type>(found, random, of);
    const walked seen = walk(of);
    if (in_type == contiguity::run_time && seen.count != 0) {
      ++(seen.contiguous ? counts.contiguous_of_run_time : counts.others_of_run_time);
    }
  }
}

TEST_CASE("property: layouts and views of random types, ranks 0 to 4, against a walk") {
  random_source random(seed());
  findings found;
  type_counts counts;
  constexpr int each = 1000;
  [&]<unsigned... N>(std::integer_sequence<unsigned, N...>) {
    (check_type<N>(found, random, counts, each), ...);
  }
  (std::make_integer_sequence<unsigned, 120>{});
  found.report("views of random types", static_cast<index_t>(counts.types) * each);
  std::printf(
      "  %d types: always contiguous %d, never %d, at run time %d (%lld times so, %lld not)\n",
      counts.types, counts.always, counts.never, counts.run_time,
      static_cast<long long>(counts.contiguous_of_run_time),
      static_cast<long long>(counts.others_of_run_time));
  // All three answers must have been put to the test, and the third in both ways.
  CHECK(counts.always >= 10);
  CHECK(counts.never >= 10);
  CHECK(counts.run_time >= 10);
  CHECK(counts.contiguous_of_run_time >= 1000);
  CHECK(counts.others_of_run_time >= 1000);
}

}  // namespace
