// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/plan/head_split.hpp>
#include <headwise/plan/route.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <type_traits>

using namespace headwise;

namespace {

constexpr route alone{way::local, route_reason::one_rank};
constexpr route straight{way::straight, route_reason::contiguous_chunks};
constexpr route gaps{way::packed, route_reason::chunks_have_gaps};

constexpr bool operator==(const reduce_scatter_route& a, const reduce_scatter_route& b) {
  return a.payload == b.payload && a.lse == b.lse;
}
constexpr bool operator==(const gather_route& a, const gather_route& b) {
  return a.send == b.send && a.receive == b.receive;
}

// Routes look at no memory, so views of none do.
template <class T = bf16>
constexpr auto token_major(index_t tokens, index_t heads, index_t kernel_heads, index_t head_dim) {
  return view<T, layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim, dynamic_extent, 1>>>(
      nullptr, {dim<axis::token>(tokens, kernel_heads * head_dim), dim<axis::head>(heads, head_dim),
                dim<axis::head_dim, dynamic_extent, 1>(head_dim)});
}
template <class T = bf16>
constexpr auto head_major(index_t tokens, index_t heads, index_t capacity, index_t head_dim) {
  return view<T, layout<dim<axis::head>, dim<axis::token>, dim<axis::head_dim, dynamic_extent, 1>>>(
      nullptr, {dim<axis::head>(heads, capacity * head_dim), dim<axis::token>(tokens, head_dim),
                dim<axis::head_dim, dynamic_extent, 1>(head_dim)});
}
template <class T = float>
constexpr auto lse_plane(index_t tokens, index_t heads, index_t token_stride, index_t head_stride) {
  return view<T, layout<dim<axis::token>, dim<axis::head>>>(
      nullptr, {dim<axis::token>(tokens, token_stride), dim<axis::head>(heads, head_stride)});
}

constexpr reduce_scatter_route automatic(const auto& output, const auto& lse, index_t ranks,
                                         const message_format& format = {}, bool masked = false) {
  return route_reduce_scatter(output, lse, ranks, format, masked, route_preference::automatic);
}

}  // namespace

TEST_CASE("parity 01: the default preference is automatic") {
  static_assert(reduce_scatter_options{}.preference == route_preference::automatic);
  static_assert(all_gather_options{}.preference == route_preference::automatic);
  static_assert(reduce_scatter_options{}.format ==
                message_format{lse_placement::plane, peer_placement::outermost});
  CHECK(route_preference{} == route_preference::automatic);
}

TEST_CASE("parity 02: a preference is ignored without context parallelism") {
  for (const auto preference : {route_preference::automatic, route_preference::packed}) {
    for (const auto lse_at : {lse_placement::plane, lse_placement::inline_bits}) {
      const auto ways =
          route_reduce_scatter(token_major(4, 22, 32, 512), lse_plane(4, 22, 32, 1), 1,
                               {lse_at, peer_placement::outermost}, true, preference);
      CHECK(ways == reduce_scatter_route{alone, alone});
    }
    CHECK(route_all_gather(token_major(4, 11, 11, 576), token_major(4, 11, 16, 576), 1,
                           preference) == gather_route{alone, alone});
  }
}

TEST_CASE("parity 03: a preference is valid with four tensor-parallel ranks in one group") {
  constexpr auto group = dcp_group::make(4, 4, 1);
  static_assert(group.ok() && group.value().groups() == 1);
  constexpr auto ways =
      route_reduce_scatter(head_major(4, 64, 4, 512), lse_plane(4, 64, 1, 4),
                           group.value().dcp_ranks, {}, false, route_preference::packed);
  static_assert(ways.payload == route{way::packed, route_reason::asked_for});
  CHECK(ways.lse == route{way::packed, route_reason::asked_for});
  CHECK(automatic(head_major(4, 64, 4, 512), lse_plane(4, 64, 1, 4), group.value().dcp_ranks) ==
        reduce_scatter_route{straight, straight});
}

TEST_CASE("parity 04: the name of a preference that is none is refused") {
  for (const char* const name : {"", "a2a", "Automatic", "automatic ", "pack", "packed2"}) {
    const auto parsed = parse_route_preference(name);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.why().code == errc::invalid_argument);
    CHECK(std::string(parsed.why().operand) == "route_preference");
    CHECK(std::string(parsed.why().message) == "is 'automatic' or 'packed'");
  }
  CHECK(parse_route_preference(nullptr).why().code == errc::invalid_argument);
  static_assert(parse_route_preference("automatic").value() == route_preference::automatic);
  static_assert(parse_route_preference("packed").value() == route_preference::packed);
}

TEST_CASE("parity 05: the automatic preference is valid without context parallelism") {
  constexpr auto group = dcp_group::make(8, 1, 3);
  static_assert(group.ok() && group.value().groups() == 8);
  CHECK(automatic(token_major(4, 8, 8, 512), lse_plane(4, 8, 8, 1), group.value().dcp_ranks) ==
        reduce_scatter_route{alone, alone});
}

TEST_CASE("E11: warm-up and dispatch ask the same functions, for every size of group") {
  for (const index_t ranks : {1, 2, 3, 5, 6, 7, 8, 9, 12, 16}) {
    REQUIRE(supported_ranks(ranks));
    CHECK(require_supported_ranks(ranks).ok());
    // The sizes and the ways of a warm-up with one row, and of the call that follows.
    const message_shape warm{ranks, 1, 11, 512};
    const message_shape call{ranks, 64, 11, 512};
    CHECK(message_plan::make<bf16>(warm).ok());
    CHECK(message_plan::make<bf16>(call).ok());
    CHECK(lse_reduce_scatter_bytes<bf16>(call).ok());
    CHECK(all_gather_heads_bytes<bf16>(call).ok());
    const auto first =
        automatic(token_major(64, 11 * ranks, 256, 512), lse_plane(64, 11 * ranks, 256, 1), ranks);
    const auto again =
        automatic(token_major(64, 11 * ranks, 256, 512), lse_plane(64, 11 * ranks, 256, 1), ranks);
    CHECK(first == again);
    CHECK(first.payload.which == (ranks == 1 ? way::local : way::packed));
  }
  for (const index_t ranks : {-1, 0, 17, 32}) {
    CHECK_FALSE(supported_ranks(ranks));
    CHECK(require_supported_ranks(ranks).code == errc::unsupported);
    const message_shape shape{ranks, 1, 11, 512};
    CHECK(message_plan::make<bf16>(shape).why().code == errc::unsupported);
    CHECK(lse_reduce_scatter_bytes<bf16>(shape).why().code == errc::unsupported);
    CHECK(all_gather_heads_bytes<bf16>(shape).why().code == errc::unsupported);
  }
}

TEST_CASE("route: head-sliced results are packed but for a single token") {
  // 22 of 32 heads on two ranks.
  static_assert(automatic(token_major(4, 22, 32, 512), lse_plane(4, 22, 32, 1), 2) ==
                reduce_scatter_route{gaps, {way::packed, route_reason::with_the_payload}});
  static_assert(automatic(token_major(1, 22, 32, 512), lse_plane(1, 22, 32, 1), 2) ==
                reduce_scatter_route{straight, straight});
  // Even without padding a peer's heads of several tokens have the other peers' between them.
  static_assert(automatic(token_major(4, 22, 22, 512), lse_plane(4, 22, 22, 1), 2).payload == gaps);
  // The types alone decide where they can.
  using sliced =
      layout<dim<axis::token, 4, 16384>, dim<axis::head, 22, 512>, dim<axis::head_dim, 512, 1>>;
  static_assert(automatic(view<bf16, sliced>(nullptr), lse_plane(4, 22, 32, 1), 2).payload == gaps);
  CHECK(gaps.reason == route_reason::chunks_have_gaps);
}

TEST_CASE("route: head-major results go straight unless the heads lie apart") {
  CHECK(automatic(head_major(4, 66, 4, 512), lse_plane(4, 66, 1, 4), 6) ==
        reduce_scatter_route{straight, straight});
  // With room for 8 tokens between the heads, of which 4 are live.
  CHECK(automatic(head_major(4, 66, 8, 512), lse_plane(4, 66, 1, 4), 6).payload == gaps);
  // One head per rank: a pitch between heads is none within a peer's part.
  CHECK(automatic(head_major(4, 6, 8, 512), lse_plane(4, 6, 1, 8), 6) ==
        reduce_scatter_route{straight, straight});
  // The axes of the type say the order of the wire: head-major strides under token-major axes are
  // packed, as the wire is token-major then.
  CHECK(automatic(permute<axis::token, axis::head, axis::head_dim>(head_major(4, 66, 4, 512)),
                  lse_plane(4, 66, 1, 4), 6)
            .payload == gaps);
}

TEST_CASE("route: the LSE has a way of its own where the payload goes straight") {
  const auto output = head_major(4, 66, 4, 512);
  CHECK(automatic(output, lse_plane(4, 66, 66, 1), 6) == reduce_scatter_route{straight, gaps});
  CHECK(automatic(output, lse_plane<bf16>(4, 66, 1, 4), 6) ==
        reduce_scatter_route{straight, {way::packed, route_reason::not_fp32}});
  CHECK(automatic(output, lse_plane<lse<log_base::two>>(4, 66, 1, 4), 6) ==
        reduce_scatter_route{straight, straight});
  CHECK(automatic(output, lse_plane(4, 66, 1, 4), 6, {}, true) ==
        reduce_scatter_route{straight, {way::packed, route_reason::masked}});
}

TEST_CASE("route: a format that mixes what a peer gets with something else is packed") {
  const auto output = head_major(4, 66, 4, 512);
  const auto lses = lse_plane(4, 66, 1, 4);
  const auto both = [](route_reason reason) {
    return reduce_scatter_route{{way::packed, reason}, {way::packed, reason}};
  };
  CHECK(automatic(output, lses, 6, {lse_placement::inline_bits, peer_placement::outermost}) ==
        both(route_reason::inline_lse));
  CHECK(automatic(output, lses, 6, {lse_placement::plane, peer_placement::inside_heads}) ==
        both(route_reason::peers_inside_heads));
  CHECK(automatic(output, lses, 6, {lse_placement::inline_bits, peer_placement::inside_heads}) ==
        both(route_reason::inline_lse));
}

TEST_CASE("route: the two ends of a gather are decided apart") {
  const auto ways = [](const auto& local, const auto& gathered) {
    return route_all_gather(local, gathered, 9, route_preference::automatic);
  };
  CHECK(ways(token_major(4, 11, 11, 576), token_major(4, 99, 104, 576)) ==
        gather_route{straight, gaps});
  CHECK(ways(token_major(1, 11, 16, 576), token_major(1, 99, 104, 576)) ==
        gather_route{straight, straight});
  CHECK(ways(token_major(4, 11, 16, 576), token_major(4, 99, 99, 576)) == gather_route{gaps, gaps});
  CHECK(ways(head_major(4, 11, 4, 576), head_major(4, 99, 4, 576)) ==
        gather_route{straight, straight});
  // The wire has the order of the local operand.
  CHECK(ways(token_major(4, 11, 11, 576), head_major(4, 99, 4, 576)) ==
        gather_route{straight, gaps});
  CHECK(
      route_all_gather(head_major(4, 11, 4, 576), head_major(4, 99, 4, 576), 9,
                       route_preference::packed) ==
      gather_route{{way::packed, route_reason::asked_for}, {way::packed, route_reason::asked_for}});
}

TEST_CASE("route: heads that do not divide are left to the call to refuse") {
  // A route is asked for before anything is checked, and must not fall over.
  CHECK(automatic(token_major(4, 22, 32, 512), lse_plane(4, 22, 32, 1), 3).payload == gaps);
  CHECK(automatic(token_major(4, 22, 32, 512), lse_plane(4, 22, 32, 1), 0).payload == gaps);
  CHECK(automatic(token_major(4, 0, 32, 512), lse_plane(4, 0, 32, 1), 2).payload == gaps);
}

TEST_CASE("travels_in_parts: asks only what is the same on all ranks, and whether it can pay") {
  const auto parts = [](index_t tokens, wire_order order, const message_format& format = {},
                        index_t straight_from = 0) {
    return travels_in_parts(message_plan::make<bf16>({2, tokens, 11, 512}, format, order).value(),
                            straight_from);
  };
  constexpr auto token_first = wire_order::token_major;
  constexpr auto head_first = wire_order::head_major;
  // Several tokens, outermost: every rank packs, and packs into one message.
  CHECK_FALSE(parts(2, token_first));
  CHECK_FALSE(parts(4096, token_first));
  CHECK(parts(1, token_first));
  CHECK(parts(0, token_first));
  CHECK(parts(1, head_first));
  CHECK(parts(4096, head_first));
  for (const wire_order order : {token_first, head_first}) {
    for (const index_t tokens : {0, 1, 4}) {
      // With the LSEs inside the rows there is one part; of a format whose peers are no runs, the
      // message cannot be one.
      CHECK_FALSE(parts(tokens, order, {lse_placement::inline_bits}));
      CHECK(parts(tokens, order, {lse_placement::plane, peer_placement::inside_heads}));
      CHECK(parts(tokens, order, {lse_placement::inline_bits, peer_placement::inside_heads}));
    }
  }
  // 4 tokens of 11 heads are 45232 bytes to each peer.
  CHECK(parts(4, head_first, {}, 45232));
  CHECK_FALSE(parts(4, head_first, {}, 45233));
  CHECK(parts(4, head_first, {lse_placement::plane, peer_placement::inside_heads}, 1 << 20));
}

TEST_CASE("travels_in_parts: whatever goes straight travels in parts") {
  const auto check = [](const auto& output, const auto& lse, const message_format& format) {
    const message_shape shape{2, output.template extent<axis::token>(),
                              output.template extent<axis::head>() / 2,
                              output.template extent<axis::head_dim>()};
    const message_plan plan =
        message_plan::make<bf16>(shape, format,
                                 wire_order_of<std::remove_cvref_t<decltype(output)>>())
            .value();
    int straight_ones = 0;
    for (const index_t from : {index_t{0}, plan.bytes_per_peer(), plan.bytes_per_peer() + 1}) {
      for (const bool masked : {false, true}) {
        const auto ways =
            route_reduce_scatter(output, lse, 2, format, masked, route_preference::automatic, from);
        const bool straight_one = ways.payload.which == way::straight;
        CHECK((!straight_one || travels_in_parts(plan, from)));
        CHECK((ways.lse.which != way::straight || straight_one));
        if (ways.payload.reason == route_reason::one_transfer) {
          CHECK(from > plan.bytes_per_peer());
          CHECK_FALSE(travels_in_parts(plan, from));
        }
        straight_ones += straight_one ? 1 : 0;
      }
    }
    return straight_ones;
  };
  int straight_ones = 0;
  for (const auto lse : {lse_placement::plane, lse_placement::inline_bits}) {
    for (const auto peer : {peer_placement::outermost, peer_placement::inside_heads}) {
      for (const index_t tokens : {0, 1, 2, 5}) {
        const auto lses = lse_plane(tokens, 22, 32, 1);
        const auto by_head = lse_plane(tokens, 22, 1, tokens);
        straight_ones += check(token_major(tokens, 22, 22, 512), lses, {lse, peer});
        straight_ones += check(token_major(tokens, 22, 32, 512), lses, {lse, peer});
        straight_ones += check(head_major(tokens, 22, tokens, 512), by_head, {lse, peer});
        straight_ones += check(head_major(tokens, 22, tokens + 1, 512), by_head, {lse, peer});
      }
    }
  }
  CHECK(straight_ones > 0);
}

TEST_CASE("route: every way, reason and preference has a name of its own") {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(route_reason::asked_for); ++i) {
    names.insert(to_string(static_cast<route_reason>(i)));
  }
  CHECK(names.size() == static_cast<std::size_t>(route_reason::asked_for) + 1);
  CHECK(names.count("unknown") == 0);
  CHECK(std::string(to_string(way::local)) == "local");
  CHECK(std::string(to_string(way::straight)) == "straight");
  CHECK(std::string(to_string(way::packed)) == "packed");
  CHECK(std::string(to_string(route_reason::chunks_have_gaps)) == "a peer's part has gaps");
  CHECK(std::string(to_string(route_preference::automatic)) == "automatic");
  CHECK(std::string(to_string(route_preference::packed)) == "packed");
}

TEST_CASE("J06: with a cap of 8, a batch of 8 goes over the pool and one of 9 over the transport") {
  constexpr pool_terms terms{2, true, 8};
  static_assert(route_pool(terms, {8, 2}) == pool_route{carrier::pool, pool_reason::fits});
  static_assert(route_pool(terms, {9, 2}) ==
                pool_route{carrier::transport, pool_reason::many_tokens});
  // Ranks with 3 and 9 live rows of a padded batch of 9 ask about the batch.
  for (const index_t padded : {0, 1, 7, 8, 9, 64}) {
    CHECK(supports(terms, {padded, 2}) == (padded <= 8));
    CHECK(route_pool(terms, {padded, 2}) == route_pool(terms, {padded, 2}));
  }
  CHECK(supports({2, true}, {INT64_MAX, 2}));
}

TEST_CASE("J05: a pool that could not be opened on one rank is used by none") {
  for (const int failing : {-1, 0, 1, 2}) {
    // What the ranks have voted is the same number on all of them.
    const pool_terms terms{3, failing == -1};
    for (const index_t tokens : {0, 1, 8}) {
      CHECK(route_pool(terms, {tokens, 2}) ==
            (failing == -1 ? pool_route{carrier::pool, pool_reason::fits}
                           : pool_route{carrier::transport, pool_reason::no_pool}));
    }
  }
  CHECK(pool_route{} == pool_route{carrier::transport, pool_reason::no_pool});
  CHECK_FALSE(pool_terms{}.open);
}

TEST_CASE("route: whatever keeps a call from the pool has its reason, the cheapest first") {
  const auto reason = [](const pool_terms& terms, const pool_call& call) {
    const pool_route chosen = route_pool(terms, call);
    CHECK(supports(terms, call) == (chosen.which == carrier::pool));
    CHECK((chosen.which == carrier::pool) == (chosen.reason == pool_reason::fits));
    return chosen.reason;
  };
  // Everything is against it; one obstacle after the other is taken away.
  pool_terms terms{1, false, 8, carrier_preference::transport};
  pool_call call{9, 8, false, false};
  CHECK(reason(terms, call) == pool_reason::one_rank);
  terms.ranks = 2;
  CHECK(reason(terms, call) == pool_reason::asked_for);
  terms.preference = carrier_preference::automatic;
  CHECK(reason(terms, call) == pool_reason::no_pool);
  terms.open = true;
  CHECK(reason(terms, call) == pool_reason::no_operation);
  call.has_operation = true;
  CHECK(reason(terms, call) == pool_reason::element_size);
  call.element_bytes = 2;
  CHECK(reason(terms, call) == pool_reason::many_tokens);
  call.tokens = 8;
  CHECK(reason(terms, call) == pool_reason::many_bytes);
  call.has_room = true;
  CHECK(reason(terms, call) == pool_reason::fits);
  for (const index_t bytes : {0, 3, 8, 16}) {
    call.element_bytes = bytes;
    CHECK(reason(terms, call) == pool_reason::element_size);
  }
  for (const index_t bytes : {1, 2, 4}) {
    call.element_bytes = bytes;
    CHECK(reason(terms, call) == pool_reason::fits);
  }
}

TEST_CASE("route: every carrier, its preference and its reason has a name of its own") {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(pool_reason::many_bytes); ++i) {
    names.insert(to_string(static_cast<pool_reason>(i)));
  }
  CHECK(names.size() == static_cast<std::size_t>(pool_reason::many_bytes) + 1);
  CHECK(names.count("unknown") == 0);
  CHECK(std::string(to_string(static_cast<pool_reason>(200))) == "unknown");
  CHECK(std::string(to_string(pool_reason::many_tokens)) == "more tokens than the cap");
  CHECK(std::string(to_string(carrier::pool)) == "pool");
  CHECK(std::string(to_string(carrier::transport)) == "transport");
  CHECK(std::string(to_string(carrier_preference::automatic)) == "automatic");
  CHECK(std::string(to_string(carrier_preference::transport)) == "transport");
}
