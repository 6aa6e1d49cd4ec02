// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/collective/describe.hpp>
#include <headwise/pool/layout.hpp>
#include <headwise/pool/memory.hpp>

// What a call over a router would do, in words: what it goes over and why, and what a pool makes of
// it. Text only; router.cuh has the facts.

namespace headwise::inline v0 {

namespace detail {

/// What is known of a call before it is made.
struct router_facts {
  pool_route way;
  pool_terms terms;
  index_t tokens = 0;
  /// Why there is no pool; ok where there is one, or none was asked for.
  status pool_status;
};

/// "router: over the transport (more tokens than the cap): 9 tokens, at most 8", and why there is
/// no pool.
inline void put_router(text_sink& out, const router_facts& facts) noexcept {
  out.put("router: over the ");
  out.put(to_string(facts.way.which));
  out.put(" (");
  out.put(to_string(facts.way.reason));
  out.put(")");
  if (facts.way.reason == pool_reason::many_tokens) {
    out.put(": ");
    put_count(out, facts.tokens, "token");
    out.put(", at most ");
    out.put(facts.terms.token_cap);
  }
  if (facts.way.reason == pool_reason::no_pool && !facts.pool_status.ok()) {
    char text[256] = {};
    format_status(facts.pool_status, text, sizeof text);
    out.put("\n  pool: ");
    out.put(text);
  }
  out.put('\n');
}

/// What a pool makes of a call.
struct pooled_facts {
  protocol which = protocol::push;
  pool_rows first;
  pool_rows second;
  bool lses = false;   ///< one travels with each row
  index_t blocks = 0;  ///< of a kernel, at most
  const char* channel = "";
  memory_kind kind = memory_kind::caller;
  memory_reason reason = memory_reason::undecided;
};

inline void put_pooled(text_sink& out, const pooled_facts& facts) noexcept {
  const index_t rows = facts.first.count + facts.second.count;
  const index_t bytes =
      facts.first.bytes() + facts.second.bytes() + (facts.lses ? rows * index_t{sizeof(float)} : 0);
  out.put("\n  message: ");
  put_count(out, bytes, "byte");
  out.put(" to each peer, by ");
  out.put(to_string(facts.which));
  if (facts.which == protocol::ll) {
    out.put(" (");
    put_count(
        out,
        (facts.first.count * facts.first.lines() + facts.second.count * facts.second.lines()) *
            ll_line,
        "byte");
    out.put(" with tags)");
  }
  out.put("\n  channel: ");
  out.put(facts.channel);
  if (rows == 0) {
    out.put(", nothing to launch");
  } else {
    out.put(", 1 kernel of at most ");
    put_count(out, facts.blocks, "block");
  }
  out.put("\n  memory: ");
  out.put(to_string(facts.kind));
  out.put(" (");
  out.put(to_string(facts.reason));
  out.put(")\n  workspace: 0 bytes");
}

/// A group of which only the size is told.
struct unnamed_group {};

}  // namespace detail

}  // namespace headwise::inline v0
