// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/all_to_all.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>

#include <support/scatter.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

// Wrong uses of the collectives that only the running program can know: each gets a status that
// says which operand, which axis and both values, its peers hear of it at once, and no byte is
// written. docs/bad_input.md quotes the sentences.

using namespace headwise;
using namespace support;

namespace {

using rows = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
using plane = layout<dim<axis::token>, dim<axis::head>>;
using heads_only = layout<dim<axis::head>>;
using tokens_only = layout<dim<axis::token>>;
using entries = layout<dim<axis::rank>, dim<axis::token>>;

constexpr index_t tokens = 3;
constexpr index_t heads = 4;  // of one of two ranks
constexpr index_t head_dim = 8;

rows rows_of(index_t t, index_t h, index_t d) {
  return {dim<axis::token>(t, h * d), dim<axis::head>(h, d), dim<axis::head_dim>(d, 1)};
}
rows rows_with(index_t t, index_t token_stride, index_t h, index_t head_stride, index_t d) {
  return {dim<axis::token>(t, token_stride), dim<axis::head>(h, head_stride),
          dim<axis::head_dim>(d, 1)};
}
plane plane_of(index_t t, index_t h) { return {dim<axis::token>(t, h), dim<axis::head>(h, 1)}; }
tokens_only counts_of(index_t t) { return tokens_only(dim<axis::token>(t, 1)); }
entries entries_of(index_t ranks, index_t count) {
  return {dim<axis::rank>(ranks, 40), dim<axis::token>(count, 3)};
}
heads_only sinks_of(index_t h) { return heads_only(dim<axis::head>(h, 1)); }

/// Room for all operands of any call below. Results and workspace stay 0xff if nothing is written.
struct memory {
  guarded<bf16> partial_output{4096};
  guarded<float> partial_lse{1024};
  guarded<bf16> output{4096};
  guarded<float> merged{1024};
  guarded<std::int32_t> valid{64};
  guarded<float> sink{64};
  guarded<std::byte> room{8192};

  index_t results_written() { return output.stray_bytes() + merged.stray_bytes(); }
  index_t anything_written() {
    return results_written() + partial_output.stray_bytes() + partial_lse.stray_bytes() +
           valid.stray_bytes() + sink.stray_bytes() + room.stray_bytes();
  }
};

template <class T, class Layout>
void odd_address(view<T, Layout>& what) {
  auto* const bytes =
      reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(what.data()));
  what = {reinterpret_cast<T*>(bytes + 1), what.layout()};
}

/// A call of lse_reduce_scatter that is right until a case spoils it.
struct scatter_call {
  explicit scatter_call(memory& m)
      : partial_output(m.partial_output.data(), rows_of(tokens, 2 * heads, head_dim)),
        partial_lse(m.partial_lse.data(), plane_of(tokens, 2 * heads)),
        output(m.output.data(), rows_of(tokens, heads, head_dim)),
        merged(m.merged.data(), plane_of(tokens, heads)),
        valid(m.valid.data(), counts_of(tokens)),
        sink(m.sink.data(), sinks_of(heads)),
        room(whole(m.room)) {}

  status operator()(in_process& me) const {
    return lse_reduce_scatter<log_base::e>(host_executor{}, me, partial_output, partial_lse, output,
                                           merged, room, options, valid, sink);
  }

  view<const bf16, rows> partial_output;
  view<const float, plane> partial_lse;
  view<bf16, rows> output;
  view<float, plane> merged;
  view<const std::int32_t, tokens_only> valid;
  view<const float, heads_only> sink;
  std::span<std::byte> room;
  reduce_scatter_options options{};
};

struct gather_call {
  explicit gather_call(memory& m)
      : local(m.partial_output.data(), rows_of(tokens, heads, head_dim)),
        gathered(m.output.data(), rows_of(tokens, 2 * heads, head_dim)),
        room(whole(m.room)) {}

  status operator()(in_process& me) const {
    return all_gather_heads(host_executor{}, me, local, gathered, room);
  }

  view<const bf16, rows> local;
  view<bf16, rows> gathered;
  std::span<std::byte> room;
};

struct exchange_call {
  explicit exchange_call(memory& m)
      : send(m.partial_output.data(), entries_of(2, 5)),
        receive(m.output.data(), entries_of(2, 5)),
        room(whole(m.room)) {}

  status operator()(in_process& me) const {
    return all_to_all(host_executor{}, me, send, receive, room);
  }

  view<const bf16, entries> send;
  view<bf16, entries> receive;
  std::span<std::byte> room;
};

template <class Call>
struct wrong_use {
  const char* sentence;
  void (*spoil)(Call&, memory&);
};

/// Rank 1 of two makes the spoiled call, rank 0 the right one; then both make the spoiled one.
template <class Call>
void check(const std::vector<wrong_use<Call>>& uses) {
  in_process_group group(2, std::chrono::seconds(60));
  for (const wrong_use<Call>& use : uses) {
    for (const bool both : {false, true}) {
      std::vector<memory> memories(2);
      const auto came_to = on_ranks(group, 2, [&](in_process& me) {
        memory& mine = memories[static_cast<std::size_t>(me.rank())];
        Call call(mine);
        if (both || me.rank() == 1) use.spoil(call, mine);
        return call(me);
      });
      INFO(std::string(use.sentence));
      CHECK(sentence(came_to[1]) == std::string(use.sentence));
      if (both) {
        CHECK(sentence(came_to[0]) == std::string(use.sentence));
      } else {
        CHECK(came_to[0].code == errc::rank_mismatch);
        CHECK(std::string(came_to[0].message) == "seen on rank 1");
        CHECK(std::string(came_to[0].operand) == came_to[1].operand);
        CHECK(came_to[0].got == came_to[1].got);
        CHECK(came_to[0].expected == came_to[1].expected);
      }
      // A rank that was right may have packed into its workspace before it heard of the other.
      CHECK(memories[0].results_written() == 0);
      if (both) CHECK(memories[0].anything_written() == 0);
      CHECK(memories[1].anything_written() == 0);
    }
  }
  // The right call is right, and the group has survived it all.
  const auto good = on_ranks(group, 2, [&](in_process& me) {
    memory mine;
    return Call(mine)(me);
  });
  for (const status& one : good) {
    INFO(sentence(one));
    CHECK(one.ok());
  }
}

}  // namespace

TEST_CASE("bad input: lse_reduce_scatter says what is wrong, and writes nothing") {
  using call = scatter_call;
  check<call>({
      {"shape_mismatch: partial_output, axis head: got 7, expected 2: its heads are a positive "
       "multiple of the number of ranks (expected)",
       [](call& c, memory&) {
         c.partial_output = {c.partial_output.data(), rows_of(tokens, 7, head_dim)};
         c.partial_lse = {c.partial_lse.data(), plane_of(tokens, 7)};
       }},
      {"shape_mismatch: partial_lse, axis head: got 7, expected 8: must be that of partial_output",
       [](call& c, memory&) {
         c.partial_lse = {c.partial_lse.data(), plane_of(tokens, 7)};
       }},
      {"shape_mismatch: partial_lse, axis token: got 4, expected 3: must be that of partial_output",
       [](call& c, memory&) {
         c.partial_lse = {c.partial_lse.data(), plane_of(4, 2 * heads)};
       }},
      {"shape_mismatch: output, axis head: got 8, expected 4: is one rank's part of partial_output",
       [](call& c, memory&) {
         c.output = {c.output.data(), rows_of(tokens, 8, head_dim)};
         c.merged = {c.merged.data(), plane_of(tokens, 8)};
         c.sink = {c.sink.data(), sinks_of(8)};
       }},
      {"shape_mismatch: output, axis token: got 2, expected 3: is one rank's part of "
       "partial_output",
       [](call& c, memory&) {
         c.output = {c.output.data(), rows_of(2, heads, head_dim)};
         c.merged = {c.merged.data(), plane_of(2, heads)};
       }},
      {"shape_mismatch: output, axis head_dim: got 9, expected 8: is one rank's part of "
       "partial_output",
       [](call& c, memory&) {
         c.output = {c.output.data(), rows_of(tokens, heads, 9)};
       }},
      {"shape_mismatch: merged_lse, axis head: got 8, expected 4: must be that of output",
       [](call& c, memory&) {
         c.merged = {c.merged.data(), plane_of(tokens, 8)};
       }},
      {"shape_mismatch: valid, axis token: got 2, expected 3: one count per token",
       [](call& c, memory&) {
         c.valid = {c.valid.data(), counts_of(2)};
       }},
      {"shape_mismatch: sink, axis head: got 8, expected 4: one per head",
       [](call& c, memory&) {
         c.sink = {c.sink.data(), sinks_of(8)};
       }},
      {"invalid_argument: partial_output, axis token: got -3, expected 0: an extent is not "
       "negative",
       [](call& c, memory&) {
         c.partial_output = {c.partial_output.data(), rows_with(-3, 64, 8, 8, 8)};
       }},
      {"invalid_argument: partial_lse, axis token: got -8, expected 0: a stride is not negative",
       [](call& c, memory&) {
         c.partial_lse = {c.partial_lse.data(),
                          plane{dim<axis::token>(tokens, -8), dim<axis::head>(8, 1)}};
       }},
      {"invalid_argument: partial_output: a view with elements has a null pointer",
       [](call& c, memory&) {
         c.partial_output = {nullptr, c.partial_output.layout()};
       }},
      {"invalid_argument: output: a view with elements has a null pointer",
       [](call& c, memory&) {
         c.output = {nullptr, c.output.layout()};
       }},
      {"misaligned: partial_lse: got 1, expected 0: the pointer is not aligned for its element "
       "type",
       [](call& c, memory&) { odd_address(c.partial_lse); }},
      {"misaligned: output: got 1, expected 0: the pointer is not aligned for its element type",
       [](call& c, memory&) { odd_address(c.output); }},
      {"overlap: output, axis token: got 18, expected 32: elements of a target share memory or "
       "interleave; expected is the least stride",
       [](call& c, memory&) {
         c.output = {c.output.data(), rows_with(tokens, 18, heads, 8, head_dim)};
       }},
      {"overlap: merged_lse, axis token: got 0, expected 1: elements of a target share memory or "
       "interleave; expected is the least stride",
       [](call& c, memory&) {
         c.merged = {c.merged.data(),
                     plane{dim<axis::token>(tokens, 0), dim<axis::head>(heads, 1)}};
       }},
      {"out_of_range: partial_output, axis token: got 3, expected 2: the view leaves the address "
       "space; expected is the largest extent that fits",
       [](call& c, memory&) {
         c.partial_output = {c.partial_output.data(), rows_with(tokens, index_t{1} << 61, 8, 8, 8)};
       }},
      {"capacity_exceeded: workspace: got 960, expected 959: more is needed (got) than available "
       "(expected)",
       [](call& c, memory&) { c.room = c.room.first(959); }},
      {"capacity_exceeded: workspace: got 960, expected 0: more is needed (got) than available "
       "(expected)",
       [](call& c, memory&) { c.room = {}; }},
      {"misaligned: workspace: got 8, expected 0: starts on a multiple of 16 bytes",
       [](call& c, memory&) { c.room = c.room.subspan(8); }},
      {"overlap: partial_output: got 384, expected 0: shares memory with the workspace (bytes in "
       "common)",
       [](call& c, memory& m) {
         c.partial_output = {reinterpret_cast<const bf16*>(m.room.data() + 512),
                             c.partial_output.layout()};
       }},
      {"overlap: output: got 64, expected 0: shares memory with the workspace (bytes in common)",
       [](call& c, memory& m) {
         c.room = {reinterpret_cast<std::byte*>(m.output.data()) + 128, 8192 - 128};
       }},
  });
}

TEST_CASE("bad input: all_gather_heads says what is wrong, and writes nothing") {
  using call = gather_call;
  check<call>({
      {"shape_mismatch: gathered, axis head: got 7, expected 8: holds the heads of all ranks",
       [](call& c, memory&) {
         c.gathered = {c.gathered.data(), rows_of(tokens, 7, head_dim)};
       }},
      {"shape_mismatch: gathered, axis token: got 4, expected 3: holds the heads of all ranks",
       [](call& c, memory&) {
         c.gathered = {c.gathered.data(), rows_of(4, 8, head_dim)};
       }},
      {"shape_mismatch: gathered, axis head_dim: got 9, expected 8: holds the heads of all ranks",
       [](call& c, memory&) {
         c.gathered = {c.gathered.data(), rows_of(tokens, 8, 9)};
       }},
      {"invalid_argument: local: a view with elements has a null pointer",
       [](call& c, memory&) {
         c.local = {nullptr, c.local.layout()};
       }},
      {"overlap: gathered, axis token: got 24, expected 64: elements of a target share memory or "
       "interleave; expected is the least stride",
       [](call& c, memory&) {
         c.gathered = {c.gathered.data(), rows_with(tokens, 24, 8, 8, head_dim)};
       }},
      {"capacity_exceeded: workspace: got 576, expected 575: more is needed (got) than available "
       "(expected)",
       [](call& c, memory&) { c.room = c.room.first(575); }},
      {"misaligned: workspace: got 1, expected 0: starts on a multiple of 16 bytes",
       [](call& c, memory&) { c.room = c.room.subspan(1); }},
      {"overlap: local: got 192, expected 0: shares memory with the workspace (bytes in common)",
       [](call& c, memory& m) {
         c.room = {reinterpret_cast<std::byte*>(m.partial_output.data()), 8192};
       }},
      {"overlap: gathered: got 384, expected 0: shares memory with the workspace (bytes in common)",
       [](call& c, memory& m) {
         c.room = {reinterpret_cast<std::byte*>(m.output.data()), 8192};
       }},
  });
}

TEST_CASE("bad input: all_to_all says what is wrong, and writes nothing") {
  using call = exchange_call;
  check<call>({
      {"shape_mismatch: send, axis rank: got 3, expected 2: one entry per rank",
       [](call& c, memory&) {
         c.send = {c.send.data(), entries_of(3, 5)};
         c.receive = {c.receive.data(), entries_of(3, 5)};
       }},
      {"shape_mismatch: send, axis token: got 4, expected 5: must have the extent of the target",
       [](call& c, memory&) {
         c.send = {c.send.data(), entries_of(2, 4)};
       }},
      {"overlap: receive, axis rank: got 12, expected 13: elements of a target share memory or "
       "interleave; expected is the least stride",
       [](call& c, memory&) {
         c.receive = {c.receive.data(), entries{dim<axis::rank>(2, 12), dim<axis::token>(5, 3)}};
       }},
      {"capacity_exceeded: workspace: got 64, expected 48: more is needed (got) than available "
       "(expected)",
       [](call& c, memory&) { c.room = c.room.first(48); }},
      {"overlap: send: got 106, expected 0: shares memory with the workspace (bytes in common)",
       [](call& c, memory& m) {
         c.room = {reinterpret_cast<std::byte*>(m.partial_output.data()), 8192};
       }},
  });
}
