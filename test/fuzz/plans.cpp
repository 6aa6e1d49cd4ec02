// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Layouts, views of views, plans and geometries from arbitrary numbers. Whatever they are, the
// answer is a status or something that holds; what is small enough is carried out and compared with
// a list of all elements. Stops the program where that is not so.

#include <headwise/plan/capacity.hpp>
#include <headwise/plan/copy_plan.hpp>
#include <headwise/plan/head_split.hpp>
#include <headwise/plan/kv_shard.hpp>
#include <headwise/plan/message.hpp>
#include <headwise/reference/materialize.hpp>
#include <headwise/reference/pack.hpp>
#include <headwise/view/describe.hpp>
#include <headwise/view/refine.hpp>
#include <headwise/view/slice.hpp>

#include <support/copy_truth.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

using namespace headwise;

namespace {

#define REQUIRE_THAT(condition) require_that(condition, #condition, __LINE__)
void require_that(bool holds, const char* condition, int line) {
  if (holds) return;
  std::fprintf(stderr, "plans.cpp:%d: does not hold: %s\n", line, condition);
  std::abort();
}

/// The input as a stream of numbers; zeros when it is used up.
class input {
 public:
  input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  std::uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  index_t below(index_t count) { return byte() % count; }
  /// Any 64 bits.
  index_t word() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return static_cast<index_t>(value);
  }
  /// Mostly small, sometimes next to a power of two, sometimes anything.
  index_t number() {
    const std::uint8_t tag = byte();
    if (tag < 200) return tag % 25;
    if (tag < 225) return byte();
    if (tag < 250) return (index_t{1} << (byte() % 63)) + byte() % 3 - 1;
    return word();
  }
  index_t small() { return below(7); }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

constexpr index_t small_enough = 200;

template <class T>
using flat_view = view<T, layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>>;

/// True where all elements can be listed and stored.
template <class View>
bool is_small(const View& what) {
  if (what.empty()) return true;
  checked_size count = 1;
  const auto extents = what.layout().extents();
  for (int i = 0; i < what.rank; ++i) count = count * extents[i];
  return count.value() <= small_enough && what.span_size() <= 4 * small_enough;
}

/// A layout of any numbers, at an address that is not to be read.
flat_view<std::uint16_t> any_view(input& in, bool always_small) {
  const auto extent = [&] { return always_small ? in.small() : in.number(); };
  const auto stride = [&] { return always_small ? in.below(50) : in.number(); };
  const index_t e[3] = {extent(), extent(), extent()};
  index_t s[3] = {stride(), stride(), stride()};
  if (in.below(3) != 0) {  // as strides mostly are: what lies further in, and perhaps a gap
    s[2] = 1;
    s[1] = static_cast<index_t>(static_cast<std::uint64_t>(e[2]) + in.byte() % 3u);
    s[0] = static_cast<index_t>(
        static_cast<std::uint64_t>(e[1]) * static_cast<std::uint64_t>(s[1]) + in.byte() % 3u);
    if (in.below(2) != 0) std::swap(s[0], s[1]);
  }
  return {
      reinterpret_cast<std::uint16_t*>(std::uintptr_t{64}),
      {dim<axis::token>(e[0], s[0]), dim<axis::head>(e[1], s[1]), dim<axis::head_dim>(e[2], s[2])}};
}

using support::offsets_of;

void check_layout(input& in) {
  const auto what = any_view(in, false);
  char text[160];
  REQUIRE_THAT(describe_view(what, text, sizeof text) > 0);
  const status valid = validate("view", what);
  const status target = validate_target("view", what);
  REQUIRE_THAT(!target.ok() || valid.ok());
  if (!valid.ok()) {
    REQUIRE_THAT(format_status(valid, text, sizeof text) > 0);
    return;
  }
  const index_t span = what.span_size();
  REQUIRE_THAT(span >= 0);
  if (what.empty()) {
    REQUIRE_THAT(span == 0 && what.is_contiguous() && target.ok());
    return;
  }
  const auto& dims = what.layout();
  REQUIRE_THAT(dims.offset(dims.extent<axis::token>() - 1, dims.extent<axis::head>() - 1,
                           dims.extent<axis::head_dim>() - 1) == span - 1);
  if (!is_small(what)) return;
  std::vector<index_t> offsets = offsets_of(what);
  bool in_order = true;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    in_order = in_order && offsets[i] == static_cast<index_t>(i);
  }
  REQUIRE_THAT(what.is_contiguous() == in_order);
  std::sort(offsets.begin(), offsets.end());
  const bool shares = std::adjacent_find(offsets.begin(), offsets.end()) != offsets.end();
  REQUIRE_THAT(!(shares && target.ok()));
  REQUIRE_THAT(!(in_order && !target.ok()));
}

template <class View>
View at(const View& where, typename View::element_type* data) {
  return {data, where.layout()};
}

void check_copy_of_any(input& in) {
  const bool always_small = in.below(4) != 0;
  auto source = any_view(in, always_small);
  auto target = any_view(in, always_small);
  if (in.below(4) != 0) {  // or hardly any two would agree
    target = {
        target.data(),
        {dim<axis::token>(source.extent<axis::token>(), target.stride<axis::token>()),
         dim<axis::head>(source.extent<axis::head>(), target.stride<axis::head>()),
         dim<axis::head_dim>(source.extent<axis::head_dim>(), target.stride<axis::head_dim>())}};
  }
  const status can = check_copy("source", source, "target", target);
  if (!can.ok()) {
    char text[160];
    REQUIRE_THAT(format_status(can, text, sizeof text) > 0);
    REQUIRE_THAT(reference::materialize(source, target).code == can.code);
    return;
  }
  const copy_steps steps = plan_copy(source, target);
  REQUIRE_THAT(steps.empty == target.empty());
  REQUIRE_THAT(steps.outer >= 0 && steps.outer <= 3);
  REQUIRE_THAT((steps.kind == copy_kind::contiguous) == (steps.outer == 0 && steps.run >= 1));
  REQUIRE_THAT(steps.run_count() * steps.run == (target.empty() ? 0 : target.size()));
  if (!is_small(source) || !is_small(target)) return;

  const std::vector<support::move_of> moves = support::moves_of(source, target);
  REQUIRE_THAT(support::moves_of(steps) == moves);
  REQUIRE_THAT(moves.empty() || steps.run == support::longest_equal_run(moves));
  REQUIRE_THAT(steps.kind == support::kind_of(moves));

  // Of the exact size, so that a step beyond it is seen.
  const auto from_span = static_cast<std::size_t>(source.span_size());
  const auto to_span = static_cast<std::size_t>(target.span_size());
  const auto from = std::make_unique<std::uint16_t[]>(from_span);
  const auto to = std::make_unique<std::uint16_t[]>(to_span);
  for (std::size_t i = 0; i < from_span; ++i) from[i] = static_cast<std::uint16_t>(i + 1);
  REQUIRE_THAT(reference::materialize(at(source, from.get()), at(target, to.get())).ok());
  std::vector<std::uint16_t> expected(to_span);
  for (const support::move_of& one : moves) {
    expected[static_cast<std::size_t>(one.target)] = from[static_cast<std::size_t>(one.source)];
  }
  for (std::size_t i = 0; i < to_span; ++i) REQUIRE_THAT(to[i] == expected[i]);
}

using layout_a =
    layout<dim<axis::token, dynamic_extent, 32>, dim<axis::head, 3, 8>, dim<axis::head_dim, 4, 1>>;
using layout_b =
    layout<dim<axis::token>, dim<axis::head, 3>, dim<axis::head_dim, dynamic_extent, 1>>;
using layout_c = layout<dim<axis::token, 2, 12>, dim<axis::head, 3, 4>, dim<axis::head_dim, 4, 1>>;

template <class Layout, class View>
bool fits(const View& what) {
  const auto& dims = what.layout();
  const auto one = [&]<class Axis>(std::type_identity<Axis>) {
    using wanted = detail::dim_type<Layout, Axis>;
    const index_t extent = dims.template extent<Axis>();
    if (wanted::static_extent != dynamic_extent && wanted::static_extent != extent) return false;
    return wanted::static_stride == dynamic_stride || extent == 1 || what.empty() ||
           wanted::static_stride == dims.template stride<Axis>();
  };
  return one(std::type_identity<axis::token>{}) && one(std::type_identity<axis::head>{}) &&
         one(std::type_identity<axis::head_dim>{});
}

template <class Layout, class View>
void check_refinement(const View& what) {
  const auto refined = refine<Layout>(what);
  REQUIRE_THAT(refined.ok() == fits<Layout>(what));
  if (!refined.ok()) return;
  REQUIRE_THAT(refined.value().data() == what.data());
  if (!is_small(what)) return;
  REQUIRE_THAT(offsets_of(refined.value()) == offsets_of(what));
  const flat_view<std::uint16_t> back = refined.value();
  REQUIRE_THAT(offsets_of(back) == offsets_of(what));
}

void check_refine(input& in) {
  auto what = any_view(in, false);
  const index_t tag = in.below(4);
  if (tag == 0) {
    what = {what.data(), layout_a({dim<axis::token, dynamic_extent, 32>(in.small())}, {}, {})};
  } else if (tag == 1) {
    what = {what.data(), layout_b(dim<axis::token>(in.small(), in.below(50)),
                                  dim<axis::head, 3>(3, in.below(50)),
                                  dim<axis::head_dim, dynamic_extent, 1>(in.small()))};
  } else if (tag == 2) {
    what = {what.data(), layout_c()};
  }
  if (!validate("view", what).ok()) return;
  check_refinement<layout_a>(what);
  check_refinement<layout_b>(what);
  check_refinement<layout_c>(what);
  const int which = dispatch(what, layouts<layout_c, layout_a, layout_b>{}, [](const auto& found) {
    using found_layout = typename std::remove_cvref_t<decltype(found)>::layout_type;
    return std::is_same_v<found_layout, layout_c>   ? 1
           : std::is_same_v<found_layout, layout_a> ? 2
           : std::is_same_v<found_layout, layout_b> ? 3
                                                    : 4;
  });
  REQUIRE_THAT(which == (fits<layout_c>(what)   ? 1
                         : fits<layout_a>(what) ? 2
                         : fits<layout_b>(what) ? 3
                                                : 4));
}

void check_slice_and_split(input& in) {
  const auto what = any_view(in, in.below(2) != 0);
  if (!validate("view", what).ok()) return;
  const index_t first = in.number();
  const index_t count = in.number();
  const index_t heads = what.extent<axis::head>();
  const auto sliced = slice<axis::head>(what, first, count);
  REQUIRE_THAT(sliced.ok() ==
               (first >= 0 && count >= 0 && first <= heads && count <= heads - first));
  if (sliced.ok() && is_small(what)) {
    const auto& part = sliced.value();
    REQUIRE_THAT(part.extent<axis::head>() == count);
    REQUIRE_THAT(part.data() ==
                 what.data() + (part.empty() ? 0 : first * what.stride<axis::head>()));
    std::vector<index_t> expected;
    support::for_each_element(what, [&](const auto& index, index_t offset) {
      if (index[1] >= first && index[1] - first < count) {
        expected.push_back(offset - first * what.stride<axis::head>());
      }
    });
    REQUIRE_THAT(offsets_of(part) == expected);
    if (!part.empty()) REQUIRE_THAT(part.span_size() <= what.span_size());
  }
  const index_t groups = in.number();
  const auto parts = split<axis::head, axis::rank, axis::head>(what, groups);
  REQUIRE_THAT(parts.ok() == (groups > 0 && heads % groups == 0));
  if (parts.ok() && is_small(what)) {
    REQUIRE_THAT(parts.value().extent<axis::rank>() == groups);
    REQUIRE_THAT(parts.value().extent<axis::head>() == heads / groups);
    // In the same place of the axes, so in the same order.
    REQUIRE_THAT(offsets_of(parts.value()) == offsets_of(what));
    const auto outermost =
        permute<axis::rank, axis::token, axis::head, axis::head_dim>(parts.value());
    std::vector<index_t> of_all;
    for (index_t r = 0; r < (what.empty() ? 0 : groups); ++r) {
      const auto one = fix<axis::rank>(outermost, r);
      const index_t ahead = one.data() - what.data();
      for (const index_t offset : offsets_of(one)) of_all.push_back(ahead + offset);
    }
    REQUIRE_THAT(of_all == offsets_of(outermost));
  }
}

void check_head_split(input& in) {
  const index_t heads = in.number();
  const index_t ranks = in.number();
  const head_split_options options{in.below(2) ? in.number() : 1, in.below(2) ? in.number() : 1,
                                   in.below(2) ? in.number() : 1, in.below(4) != 0};
  const auto made = head_split::make(heads, ranks, options);
  if (!made.ok()) {
    REQUIRE_THAT(made.why().code == errc::invalid_argument ||
                 made.why().code == errc::out_of_range);
    return;
  }
  const head_split& split = made.value();
  REQUIRE_THAT(split.padded() >= heads && split.dummies() == split.padded() - heads);
  REQUIRE_THAT(split.per_rank % options.alignment == 0);
  REQUIRE_THAT(split.per_rank * options.head_dim % options.block == 0);
  REQUIRE_THAT(options.padding || split.dummies() == 0);
  // Nothing less does.
  for (index_t less = detail::greater(split.per_rank - 40, index_t{1}); less < split.per_rank;
       ++less) {
    REQUIRE_THAT(!(less * ranks >= heads && less % options.alignment == 0 &&
                   less * options.head_dim % options.block == 0));
  }
  if (ranks > 64) return;
  index_t real = 0;
  for (index_t r = 0; r < ranks; ++r) {
    REQUIRE_THAT(split.real(r) + split.dummies(r) == split.per_rank);
    REQUIRE_THAT(split.owner(split.first(r)) == r);
    real += split.real(r);
  }
  REQUIRE_THAT(real == heads);
  const index_t tp_rank = in.number();
  const index_t dcp = in.number();
  const auto group = dcp_group::make(ranks, dcp, tp_rank);
  REQUIRE_THAT(group.ok() == (dcp >= 1 && dcp <= max_ranks && ranks % dcp == 0 && tp_rank >= 0 &&
                              tp_rank < ranks));
  if (group.ok()) {
    REQUIRE_THAT(group.value().member(group.value().rank()) == tp_rank);
    REQUIRE_THAT(group.value().group() < group.value().groups());
  }
}

void check_kv_shard(input& in) {
  const index_t ranks = in.number();
  const index_t interleave = in.number();
  const index_t rank = in.number();
  const auto made = kv_shard::make({ranks, interleave}, rank);
  if (!made.ok()) return;
  REQUIRE_THAT(ranks >= 1 && ranks <= max_ranks && interleave >= 1 && rank >= 0 && rank < ranks);
  const kv_shard& shard = made.value();
  const index_t length = in.number();
  const shard_lengths all = shard.split.local_length(length);
  index_t sum = 0;
  for (const index_t one : all) {
    REQUIRE_THAT(one >= 0);
    sum += one;
  }
  REQUIRE_THAT(sum == (length < 0 ? 0 : length));
  REQUIRE_THAT(all[rank] == shard.local_length(length));
  const index_t token = in.number();
  if (token >= 0 && token < length) {
    const index_t owner = shard.split.owner(token);
    const index_t local = shard.split.local(token);
    REQUIRE_THAT(owner >= 0 && owner < ranks);
    REQUIRE_THAT(local >= 0 && local < all[owner]);
    REQUIRE_THAT(shard.split.global(owner, local) == token);
    REQUIRE_THAT(shard.owns(token) == (owner == rank));
    const index_t page_size = in.number();
    if (page_size >= 1) {
      const page_position place = locate(local, page_size);
      REQUIRE_THAT(place.page * page_size + place.slot == local && place.slot < page_size);
      REQUIRE_THAT(shard.split.check_page_size(page_size).ok() == (page_size % interleave == 0));
    }
  }
  const index_t query = 1 + in.below(8);
  index_t before = -1;
  for (index_t j = 0; j < query && length >= 0; ++j) {
    const index_t bound = shard.causal_bound(length, query, j);
    REQUIRE_THAT(bound >= 0 && bound <= all[rank] && bound >= before);
    before = bound;
    if (j == query - 1) REQUIRE_THAT(bound == all[rank]);
  }
}

template <class T>
void check_message_of(input& in) {
  const bool always_small = in.below(2) != 0;
  const auto number = [&] { return always_small ? in.small() : in.number(); };
  const message_shape shape{always_small ? 1 + in.below(16) : in.number(), number(), number(),
                            number()};
  const message_format format{
      in.below(2) ? lse_placement::plane : lse_placement::inline_bits,
      in.below(2) ? peer_placement::outermost : peer_placement::inside_heads};
  const wire_order order = in.below(2) ? wire_order::token_major : wire_order::head_major;
  const auto made = message_plan::make<T>(shape, format, order);
  if (!made.ok()) {
    char text[160];
    REQUIRE_THAT(format_status(made.why(), text, sizeof text) > 0);
    return;
  }
  const message_plan& plan = made.value();
  REQUIRE_THAT(plan.total_bytes >= 0 && plan.total_bytes % 16 == 0);
  REQUIRE_THAT(validate("rows", payload_view(plan, reinterpret_cast<T*>(std::uintptr_t{64}))).ok());
  if (shape.tokens == 0 || shape.heads == 0) {
    REQUIRE_THAT(plan.total_bytes == 0 && plan.bytes_per_peer() == 0);
  } else {
    // The last row of the last peer is the last of its kind in the buffer.
    const index_t peer = shape.ranks - 1, token = shape.tokens - 1, head = shape.heads - 1;
    const index_t row = shape.head_dim * index_t{sizeof(T)};
    REQUIRE_THAT(plan.payload_at(peer, token, head) + row <= plan.total_bytes);
    REQUIRE_THAT(plan.lse_at(peer, token, head) + 4 <= plan.total_bytes);
    REQUIRE_THAT(plan.bytes_per_peer() <= plan.total_bytes / shape.ranks);
  }
  const checked_size count = checked_size(shape.ranks) * shape.tokens * shape.heads *
                             detail::greater(shape.head_dim, index_t{1});
  if (count.value() > small_enough || shape.tokens > small_enough || shape.heads > small_enough ||
      shape.head_dim > small_enough) {
    return;
  }
  const index_t rows = shape.ranks * shape.tokens * shape.heads;
  std::vector<T> output(static_cast<std::size_t>(rows * shape.head_dim));
  std::vector<float> lses(static_cast<std::size_t>(rows));
  std::vector<T> output_back = output;
  std::vector<float> lses_back = lses;
  for (std::size_t i = 0; i < output.size(); ++i) {
    output[i] = support::element_of_bits<T>(static_cast<std::uint64_t>(i) * 40503u + 1);
  }
  for (std::size_t i = 0; i < lses.size(); ++i) lses[i] = static_cast<float>(i) + 0.5f;
  const auto bytes = static_cast<std::size_t>(plan.total_bytes);
  const std::unique_ptr<std::byte, decltype(&std::free)> message(
      static_cast<std::byte*>(std::aligned_alloc(16, bytes == 0 ? 16 : bytes)), &std::free);
  const index_t tokens = shape.tokens, heads = shape.heads, d = shape.head_dim;
  const auto outputs_over = [&](T* data) {
    return view(data, packed(extent<axis::rank>(shape.ranks), extent<axis::token>(tokens),
                             extent<axis::head>(heads), extent<axis::head_dim>(d)));
  };
  const auto lses_over = [&](float* data) {
    return view(data, packed(extent<axis::rank>(shape.ranks), extent<axis::token>(tokens),
                             extent<axis::head>(heads)));
  };
  // The same numbers as a rank has them: all heads of a token beside each other.
  std::vector<T> by_token = output;
  std::vector<float> lse_by_token = lses;
  const auto whole = view(
      by_token.data(), packed(extent<axis::token>(tokens), extent<axis::head>(shape.ranks * heads),
                              extent<axis::head_dim>(d)));
  const auto whole_lse = view(lse_by_token.data(), packed(extent<axis::token>(tokens),
                                                          extent<axis::head>(shape.ranks * heads)));
  const auto from = outputs_over(output.data());
  const auto from_lse = lses_over(lses.data());
  support::for_each_element(from, [&](const auto& i, index_t offset) {
    whole(i[1], i[0] * heads + i[2], i[3]) = output[static_cast<std::size_t>(offset)];
  });
  support::for_each_element(from_lse, [&](const auto& i, index_t offset) {
    whole_lse(i[1], i[0] * heads + i[2]) = lses[static_cast<std::size_t>(offset)];
  });
  REQUIRE_THAT(reference::pack<log_base::e>(whole, whole_lse, plan, message.get()).ok());
  REQUIRE_THAT(reference::unpack<log_base::e>(message.get(), plan, outputs_over(output_back.data()),
                                              lses_over(lses_back.data()))
                   .ok());
  for (std::size_t i = 0; i < output.size(); ++i) {
    REQUIRE_THAT(support::same_bits(output[i], output_back[i]));
  }
  for (std::size_t i = 0; i < lses.size(); ++i) {
    REQUIRE_THAT(support::same_bits(lses[i], lses_back[i]));
  }
}

void check_message(input& in) {
  switch (in.below(3)) {
    case 0: check_message_of<bf16>(in); break;
    case 1: check_message_of<fp16>(in); break;
    default: check_message_of<float>(in); break;
  }
}

void check_capacity(input& in) {
  const index_t a = in.number();
  const index_t b = in.number();
  const index_t to = 1 + in.byte();
  __extension__ using wide = __int128;
  const auto exact = [](wide value) { return value >= 0 && value <= INT64_MAX; };
  const wide wide_a = a, wide_b = b;
  const bool both = a >= 0 && b >= 0;
  const checked_size product = checked_size(a) * checked_size(b);
  REQUIRE_THAT(product.valid() == (both && exact(wide_a * wide_b)));
  if (product.valid()) REQUIRE_THAT(product.value() == static_cast<index_t>(wide_a * wide_b));
  const checked_size sum = checked_size(a) + checked_size(b);
  REQUIRE_THAT(sum.valid() == (both && exact(wide_a + wide_b)));
  if (sum.valid()) REQUIRE_THAT(sum.value() == static_cast<index_t>(wide_a + wide_b));
  const checked_size rounded = checked_size(a).rounded_up(to);
  const wide up = (wide_a + to - 1) / to * to;
  REQUIRE_THAT(rounded.valid() == (a >= 0 && exact(up)));
  if (rounded.valid()) REQUIRE_THAT(rounded.value() == static_cast<index_t>(up));
  const auto stages = staging::make(a, b, index_t{1} << (to % 12));
  if (stages.ok()) {
    REQUIRE_THAT(stages.value().bytes() >= a);
    REQUIRE_THAT(stages.value().offset(b - 1) % (index_t{1} << (to % 12)) == 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  input in(data, size);
  switch (in.below(8)) {
    case 0: check_layout(in); break;
    case 1: check_copy_of_any(in); break;
    case 2: check_refine(in); break;
    case 3: check_slice_and_split(in); break;
    case 4: check_head_split(in); break;
    case 5: check_kv_shard(in); break;
    case 6: check_message(in); break;
    default: check_capacity(in); break;
  }
  return 0;
}
