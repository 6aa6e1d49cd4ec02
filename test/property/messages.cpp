// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Laws of messages: unpacking gives back what was packed, for random geometries, layouts, element
// types and formats; and no two things in a message share a byte.

#include <headwise/reference/pack.hpp>

#include <support/guarded.hpp>
#include <support/random.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

using namespace headwise;
using support::guarded;
using support::random_source;

namespace {

constexpr auto e = log_base::e;
constexpr index_t dyn = dynamic_extent;

/// A view over Axes of these extents in memory of its own: axes in a random order of addresses,
/// with random gaps.
template <class T, class... Axes>
struct somewhere {
  using view_type = view<T, layout<dim<Axes>...>>;
  static constexpr std::size_t rank = sizeof...(Axes);

  somewhere(random_source& random, const std::array<index_t, rank>& extents)
      : layout_(chosen(random, extents)), memory(layout_.span_size(), random.in(0, 4)) {}

  view_type at() { return {memory.data(), layout_}; }
  index_t stray() { return memory.stray_bytes(at()); }

 private:
  static layout<dim<Axes>...> chosen(random_source& random,
                                     const std::array<index_t, rank>& extents) {
    std::array<int, rank> order{};
    for (std::size_t i = 0; i < rank; ++i) order[i] = static_cast<int>(rank - 1 - i);
    if (random.one_in(2)) random.shuffle(order.data(), static_cast<int>(rank));
    std::array<index_t, rank> strides{};
    index_t next = random.one_in(4) ? random.in(1, 3) : 1;
    for (const int which : order) {
      const auto i = static_cast<std::size_t>(which);
      strides[i] = next;
      next *= (std::max)(extents[i], index_t{1});
      if (random.one_in(3)) next += random.in(1, 7);
    }
    std::size_t i = 0;
    const auto one = [&](auto dim_type) {
      const decltype(dim_type) made(extents[i], strides[i]);
      ++i;
      return made;
    };
    return layout<dim<Axes>...>{one(dim<Axes>{})...};  // braces: in this order
  }

  layout<dim<Axes>...> layout_;

 public:
  guarded<T> memory;
};

using axis::head;
using axis::head_dim;
using axis::rank;
using axis::token;

struct geometry {
  index_t ranks, tokens, heads, head_dim;
  message_format format;
  wire_order order;
};

geometry some_geometry(random_source& random) {
  geometry of{};
  of.ranks = random.in(1, 16);
  of.tokens = random.one_in(20) ? 0 : random.in(1, 5);
  of.heads = random.in(1, 4);
  of.head_dim = random.one_in(20) ? 0 : random.one_in(6) ? random.in(1, 130) : random.in(1, 20);
  of.format.lse = random.one_in(2) ? lse_placement::plane : lse_placement::inline_bits;
  of.format.peer = random.one_in(2) ? peer_placement::outermost : peer_placement::inside_heads;
  of.order = random.one_in(2) ? wire_order::token_major : wire_order::head_major;
  return of;
}

/// What is at (token, head, d) of the partial output, over all heads: known without the views.
template <class T>
using contents = std::map<std::array<index_t, 3>, T>;

template <class Lse>
float as_sent(const Lse& stored) {
  return load_lse<e>(stored).value;
}

/// Packs and unpacks once. Output and LSE are named in the order of the template arguments.
template <class T, class Lse, class Output, class OutputLse, class Back, class BackLse>
bool law_of_round_trip(random_source& random, Output& output, OutputLse& lse, Back& back,
                       BackLse& lse_back, const geometry& of, bool masked) {
  const auto plan =
      message_plan::make<T>({of.ranks, of.tokens, of.heads, of.head_dim}, of.format, of.order);
  if (!plan.ok()) return false;
  contents<T> rows;
  std::map<std::array<index_t, 2>, float> lses;
  const auto by_axis = permute<token, head, head_dim>(output.at());
  const auto lse_by_axis = permute<token, head>(lse.at());
  guarded<int> counts(of.tokens);
  for (index_t b = 0; b < of.tokens; ++b) {
    counts.data()[b] = static_cast<int>(random.in(0, 2));
    for (index_t h = 0; h < of.ranks * of.heads; ++h) {
      const Lse stored = support::element_of_bits<Lse>(random.bits());
      lse_by_axis(b, h) = stored;
      const bool empty = masked && counts.data()[b] == 0;
      lses[{b, h}] = empty ? -detail::infinity() : as_sent(stored);
      for (index_t d = 0; d < of.head_dim; ++d) {
        rows[{b, h, d}] = by_axis(b, h, d) = support::element_of_bits<T>(random.bits());
      }
    }
  }
  const view<const int, layout<dim<token, dyn, 1>>> valid(counts.data(),
                                                          layout(dim<token, dyn, 1>(of.tokens)));
  guarded<std::byte> message(plan.value().total_bytes);
  const status packed =
      masked ? reference::pack<e>(output.at(), lse.at(), plan.value(), message.data(), valid)
             : reference::pack<e>(output.at(), lse.at(), plan.value(), message.data());
  if (!packed.ok()) return false;
  const view<std::byte, layout<dim<axis::slot, dyn, 1>>> all_bytes(
      message.data(), layout(dim<axis::slot, dyn, 1>(plan.value().total_bytes)));
  if (message.stray_bytes(all_bytes) != 0) return false;
  if (!reference::unpack<e>(message.data(), plan.value(), back.at(), lse_back.at()).ok()) {
    return false;
  }
  const auto back_by_axis = permute<rank, token, head, head_dim>(back.at());
  const auto lse_back_by_axis = permute<rank, token, head>(lse_back.at());
  for (const auto& [at, bits] : rows) {
    const T got = back_by_axis(at[1] / of.heads, at[0], at[1] % of.heads, at[2]);
    if (!support::same_bits(got, bits)) return false;
  }
  for (const auto& [at, value] : lses) {
    const float got = to_float(lse_back_by_axis(at[1] / of.heads, at[0], at[1] % of.heads));
    // A NaN of 16 bits is still a NaN of 32; an fp32 LSE keeps every bit.
    if (!support::same_bits(got, value)) return false;
  }
  return back.stray() == 0 && lse_back.stray() == 0 && output.stray() == 0 && lse.stray() == 0;
}

template <class T, class Lse>
bool round_trip(random_source& random) {
  const geometry of = some_geometry(random);
  const index_t all_heads = of.ranks * of.heads;
  const bool masked = random.one_in(3);
  somewhere<float, rank, token, head> lse_back(random, {of.ranks, of.tokens, of.heads});
  if (random.one_in(2)) {
    somewhere<T, token, head, head_dim> output(random, {of.tokens, all_heads, of.head_dim});
    somewhere<Lse, token, head> lse(random, {of.tokens, all_heads});
    somewhere<T, rank, token, head, head_dim> back(random,
                                                   {of.ranks, of.tokens, of.heads, of.head_dim});
    return law_of_round_trip<T, Lse>(random, output, lse, back, lse_back, of, masked);
  }
  somewhere<T, head, token, head_dim> output(random, {all_heads, of.tokens, of.head_dim});
  somewhere<Lse, head, token> lse(random, {all_heads, of.tokens});
  somewhere<T, head, head_dim, token, rank> back(random,
                                                 {of.heads, of.head_dim, of.tokens, of.ranks});
  return law_of_round_trip<T, Lse>(random, output, lse, back, lse_back, of, masked);
}

TEST_CASE("unpack after pack is the identity") {
  constexpr int iterations = 6000;
  random_source random("unpack after pack", iterations);
  int wrong = 0;
  for (int i = 0; i < iterations; ++i) {
    bool good = false;
    switch (i % 6) {
      case 0: good = round_trip<bf16, float>(random); break;
      case 1: good = round_trip<fp16, lse<e>>(random); break;
      case 2: good = round_trip<float, float>(random); break;
      case 3: good = round_trip<bf16, bf16>(random); break;
      case 4: good = round_trip<float, fp16>(random); break;
      default: good = round_trip<fp16, float>(random); break;
    }
    if (!good) ++wrong;
  }
  CHECK(wrong == 0);
}

/// Where things are, as the formats are described in words.
template <class T>
bool law_of_places(random_source& random) {
  const geometry of = some_geometry(random);
  const auto made =
      message_plan::make<T>({of.ranks, of.tokens, of.heads, of.head_dim}, of.format, of.order);
  if (!made.ok()) return false;
  const message_plan& plan = made.value();
  const bool plane = of.format.lse == lse_placement::plane;
  const bool outermost = of.format.peer == peer_placement::outermost;
  const index_t row = (of.head_dim + (plane ? 0 : index_t{4 / sizeof(T)})) * index_t{sizeof(T)};
  const auto padded = [](index_t bytes) { return (bytes + 15) / 16 * 16; };
  const index_t rows = of.tokens * of.heads;
  const index_t together = rows * (outermost ? 1 : of.ranks);
  const index_t payload = plane ? padded(together * row) : together * row;
  const index_t message = payload + (plane ? padded(together * 4) : 0);
  std::vector<int> owner(static_cast<std::size_t>(plan.total_bytes));
  const auto take = [&owner](index_t at, index_t bytes) {
    for (index_t i = at; i < at + bytes; ++i) {
      if (i < 0 || i >= static_cast<index_t>(owner.size())) return false;
      if (owner[static_cast<std::size_t>(i)]++ != 0) return false;
    }
    return true;
  };
  for (index_t n = 0; n < of.ranks; ++n) {
    for (index_t b = 0; b < of.tokens; ++b) {
      for (index_t j = 0; j < of.heads; ++j) {
        const index_t inner =
            of.order == wire_order::token_major ? b * of.heads + j : j * of.tokens + b;
        const index_t place = outermost ? inner : inner * of.ranks + n;
        const index_t start = outermost ? n * message : 0;
        if (plan.payload_at(n, b, j) != start + place * row) return false;
        const index_t lse = plane ? start + payload + place * 4
                                  : start + place * row + of.head_dim * index_t{sizeof(T)};
        if (plan.lse_at(n, b, j) != lse) return false;
        if (!take(plan.payload_at(n, b, j), of.head_dim * index_t{sizeof(T)})) return false;
        if (!take(plan.lse_at(n, b, j), 4)) return false;
      }
    }
  }
  const index_t total = padded(outermost ? of.ranks * message : message);
  return plan.total_bytes == total && plan.bytes_per_peer() == rows * (row + (plane ? 4 : 0));
}

TEST_CASE("everything in a message has bytes of its own, where the format says") {
  constexpr int iterations = 20000;
  random_source random("places in messages", iterations);
  int wrong = 0;
  for (int i = 0; i < iterations; ++i) {
    const bool good = i % 3 == 0   ? law_of_places<bf16>(random)
                      : i % 3 == 1 ? law_of_places<fp16>(random)
                                   : law_of_places<float>(random);
    if (!good) ++wrong;
  }
  CHECK(wrong == 0);
}

}  // namespace
