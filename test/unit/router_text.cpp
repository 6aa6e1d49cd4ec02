// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/collective/router_text.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace headwise;
using detail::pooled_facts;
using detail::router_facts;

namespace {

template <class Facts>
std::string told(void (*put)(detail::text_sink&, const Facts&) noexcept, const Facts& facts) {
  char text[1024];
  detail::text_sink out{text, sizeof text};
  put(out, facts);
  REQUIRE(out.finish() < sizeof text);
  return text;
}

std::string over(const pool_terms& terms, const pool_call& call, const status& pool = {}) {
  return told(detail::put_router, router_facts{route_pool(terms, call), terms, call.tokens, pool});
}

}  // namespace

TEST_CASE("router text: what a call goes over, and why") {
  const pool_terms terms{2, true, 8};
  CHECK(over(terms, {8, 2}) == "router: over the pool (fits)\n");
  CHECK(over(terms, {9, 2}) ==
        "router: over the transport (more tokens than the cap): 9 tokens, at most 8\n");
  CHECK(over(terms, {1, 8}) ==
        "router: over the transport (element of a size a pool does not move)\n");
  CHECK(over(terms, {8, 2, true, false}) ==
        "router: over the transport (more bytes than a channel holds)\n");
  CHECK(over(terms, {8, 2, false}) ==
        "router: over the transport (a pool has no such operation)\n");
  CHECK(over({2, true, 8, carrier_preference::transport}, {8, 2}) ==
        "router: over the transport (asked for)\n");
  CHECK(over({1, true}, {8, 2}) == "router: over the transport (one rank)\n");
}

TEST_CASE("J05: router text: without a pool the status says why there is none") {
  const pool_terms terms{3, false};
  CHECK(over(terms, {8, 2}) ==
        "router: over the transport (no pool: the ranks agreed to do without)\n");
  CHECK(over(terms, {8, 2}, failure(errc::unsupported, "pool", detail::seen_on[1], 17, 0)) ==
        "router: over the transport (no pool: the ranks agreed to do without)\n"
        "  pool: unsupported: pool: got 17, expected 0: seen on rank 1\n");
  // Which failure it was is of no interest where the pool was not asked for.
  CHECK(over({3, false, 8, carrier_preference::transport}, {8, 2},
             failure(errc::unsupported, "pool", "")) == "router: over the transport (asked for)\n");
}

TEST_CASE("router text: what a pool makes of a call") {
  pooled_facts facts;
  facts.which = protocol::ll;
  facts.first = {44, 1024};
  facts.lses = true;
  facts.blocks = 264;
  facts.channel = "decode";
  facts.kind = memory_kind::peer_access;
  facts.reason = memory_reason::one_process;
  CHECK(told(detail::put_pooled, facts) ==
        "\n  message: 45232 bytes to each peer, by ll (90816 bytes with tags)"
        "\n  channel: decode, 1 kernel of at most 264 blocks"
        "\n  memory: peer access (ranks are threads of one process, and each GPU reaches every "
        "other)"
        "\n  workspace: 0 bytes");
  // Two operands behind one exchange.
  facts.which = protocol::pull;
  facts.second = {44, 128};
  facts.lses = false;
  facts.blocks = 1;
  facts.kind = memory_kind::host;
  facts.reason = memory_reason::no_peer_access;
  CHECK(told(detail::put_pooled, facts) ==
        "\n  message: 50688 bytes to each peer, by pull"
        "\n  channel: decode, 1 kernel of at most 1 block"
        "\n  memory: pinned host memory (a GPU cannot reach another)"
        "\n  workspace: 0 bytes");
  facts.first = facts.second = {0, 1024};
  CHECK(told(detail::put_pooled, facts) ==
        "\n  message: 0 bytes to each peer, by pull"
        "\n  channel: decode, nothing to launch"
        "\n  memory: pinned host memory (a GPU cannot reach another)"
        "\n  workspace: 0 bytes");
}
