// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/collective/describe.hpp>
#include <headwise/executor/host_executor.hpp>

#include <support/packed.hpp>
#include <support/ranks.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>

using namespace headwise;
using support::packed_lse;
using support::packed_output;

namespace {

/// Nor may anybody have it refuse.
struct silent_rank : support::silent_rank {
  status refuse(const status&) { std::abort(); }
};

/// One that has a name, as a transport with choices has.
struct named_rank : silent_rank {
  std::size_t describe(char* buffer, std::size_t capacity) const {
    detail::text_sink out{buffer, capacity};
    out.put("by pigeon");
    return out.finish();
  }
};

/// An executor that runs nothing, and one that can also tell what it would launch.
struct silent_executor {
  template <class... Operands>
  status materialize(const Operands&...) const {
    std::abort();
  }
  template <log_base, class... Operands>
  status pack(const Operands&...) const {
    std::abort();
  }
  template <log_base, class... Operands>
  status pack_lse(const Operands&...) const {
    std::abort();
  }
  template <log_base, class... Operands>
  status lse_combine(const Operands&...) const {
    std::abort();
  }
};

struct launch_of_its_own {
  unsigned blocks = 0;
  unsigned peers = 1;
  unsigned threads = 0;
  int vector_bytes = 16;
};
struct telling_executor : silent_executor {
  template <class Output>
  launch_of_its_own pack_shape(const Output&, const message_plan& plan, index_t left_out) const {
    return {7, static_cast<unsigned>(plan.shape.ranks - 1), 32u + static_cast<unsigned>(left_out),
            16};
  }
  launch_of_its_own pack_lse_shape(const message_plan&, index_t left_out) const {
    return {1, 1, 64u + static_cast<unsigned>(left_out), 4};
  }
  template <class Source, class Output>
  launch_of_its_own lse_combine_shape(const Source& source, const Output& output) const {
    if (output.empty()) return {};
    return {22u, 1, 128, source.alignment() % 16 == 0 ? 16 : 4};
  }
};

/// Memory for operands and for results, of which only the addresses are asked.
alignas(16) std::byte anywhere[2][4 * 32 * 512 * 4];
template <class T>
T* at() {
  return reinterpret_cast<T*>(anywhere[std::is_const_v<T> ? 0 : 1]);
}

/// Heads 0 to 21 of 32.
auto sliced_rows(index_t tokens) {
  return slice<axis::head>(
      view(at<const bf16>(), packed(extent<axis::token>(tokens), extent<axis::head, 32>(),
                                    extent<axis::head_dim, 512>())),
      constant<0>, constant<22>);
}
auto sliced_lses(index_t tokens) {
  return slice<axis::head>(
      view(at<const float>(), packed(extent<axis::token>(tokens), extent<axis::head, 32>())),
      constant<0>, constant<22>);
}
auto head_major_rows(index_t tokens) {
  return view(at<const bf16>(), packed(extent<axis::head, 22>(), extent<axis::token>(tokens),
                                       extent<axis::head_dim, 512>()));
}
auto head_major_lses(index_t tokens) {
  return view(at<const float>(), packed(extent<axis::head, 22>(), extent<axis::token>(tokens)));
}

/// The whole text, which must not depend on the room for it.
template <class Write>
std::string whole(const Write& write) {
  char text[1024];
  const std::size_t length = write(text, sizeof text);
  REQUIRE(length < sizeof text);
  CHECK(std::string(text).size() == length);
  return text;
}

template <log_base Base = log_base::e, class Group, class Output, class Lse,
          class Executor = silent_executor, class Valid = none_t>
std::string told(Group group, const Output& output, const Lse& lse, const auto& result,
                 const reduce_scatter_options& options = {}, const Executor& executor = {},
                 const Valid& valid = {}) {
  return whole([&](char* text, std::size_t capacity) {
    return describe_lse_reduce_scatter<Base>(executor, group, output, lse, result, none, options,
                                             text, capacity, valid);
  });
}
template <class Group, class Local, class Gathered>
std::string told_gather(Group group, const Local& local, const Gathered& gathered,
                        const all_gather_options& options = {}) {
  return whole([&](char* text, std::size_t capacity) {
    return describe_all_gather_heads(silent_executor{}, group, local, gathered, options, text,
                                     capacity);
  });
}

auto result_rows(index_t tokens, index_t heads = 11) {
  return packed_output(at<bf16>(), tokens, heads, 512);
}

}  // namespace

TEST_CASE("describe: head-sliced heads are packed into one message") {
  CHECK(told(silent_rank{0, 2}, sliced_rows(4), sliced_lses(4), result_rows(4)) ==
        "lse_reduce_scatter: 2 ranks; 4 tokens, 11 heads a rank, head_dim 512, bf16, base e\n"
        "  partial_output: packed (a peer's part has gaps)\n"
        "  partial_lse: packed (it shares the payload's message)\n"
        "  message: 45232 bytes to each peer, in 1 transfer; LSE plane, peers outermost, "
        "token-major\n"
        "  workspace: 180928 bytes");
}

TEST_CASE("describe: one token, or heads outermost, go straight") {
  CHECK(told(silent_rank{0, 2}, sliced_rows(1), sliced_lses(1), result_rows(1)) ==
        "lse_reduce_scatter: 2 ranks; 1 token, 11 heads a rank, head_dim 512, bf16, base e\n"
        "  partial_output: straight (each peer's part is one run)\n"
        "  partial_lse: straight (each peer's part is one run)\n"
        "  message: 11308 bytes to each peer, in 2 transfers; LSE plane, peers outermost, "
        "token-major\n"
        "  workspace: 45248 bytes");
  CHECK(told<log_base::two>(silent_rank{1, 2}, head_major_rows(4), head_major_lses(4),
                            result_rows(4)) ==
        "lse_reduce_scatter: 2 ranks; 4 tokens, 11 heads a rank, head_dim 512, bf16, base two\n"
        "  partial_output: straight (each peer's part is one run)\n"
        "  partial_lse: straight (each peer's part is one run)\n"
        "  message: 45232 bytes to each peer, in 2 transfers; LSE plane, peers outermost, "
        "head-major\n"
        "  workspace: 180928 bytes");
}

TEST_CASE("describe: a format that mixes, and an LSE of 16 bits, are told as the reason") {
  CHECK(told(silent_rank{0, 2}, sliced_rows(4), sliced_lses(4), result_rows(4),
             {{lse_placement::inline_bits}}) ==
        "lse_reduce_scatter: 2 ranks; 4 tokens, 11 heads a rank, head_dim 512, bf16, base e\n"
        "  partial_output: packed (the LSE travels inside the rows)\n"
        "  partial_lse: packed (the LSE travels inside the rows)\n"
        "  message: 45232 bytes to each peer, in 1 transfer; LSE inline, peers outermost, "
        "token-major\n"
        "  workspace: 180928 bytes");
  CHECK(told(silent_rank{0, 2}, head_major_rows(4), packed_lse(at<const bf16>(), 4, 22),
             result_rows(4)) ==
        "lse_reduce_scatter: 2 ranks; 4 tokens, 11 heads a rank, head_dim 512, bf16, base e\n"
        "  partial_output: straight (each peer's part is one run)\n"
        "  partial_lse: packed (a 16-bit LSE is widened)\n"
        "  message: 45232 bytes to each peer, in 2 transfers; LSE plane, peers outermost, "
        "head-major\n"
        "  workspace: 180928 bytes");
  CHECK(told(silent_rank{0, 2}, sliced_rows(1), sliced_lses(1), result_rows(1),
             {{lse_placement::plane, peer_placement::inside_heads}}) ==
        "lse_reduce_scatter: 2 ranks; 1 token, 11 heads a rank, head_dim 512, bf16, base e\n"
        "  partial_output: packed (peers stand inside the heads)\n"
        "  partial_lse: packed (peers stand inside the heads)\n"
        "  message: 11308 bytes to each peer, in 2 transfers; LSE plane, peers inside heads, "
        "token-major\n"
        "  workspace: 45248 bytes");
}

TEST_CASE("describe: an executor that can tell what it would launch is asked") {
  const telling_executor telling;
  CHECK(told(named_rank{{1, 2}}, sliced_rows(4), sliced_lses(4), result_rows(4), {}, telling) ==
        "lse_reduce_scatter: 2 ranks, by pigeon; 4 tokens, 11 heads a rank, head_dim 512, bf16, "
        "base e\n"
        "  partial_output: packed (a peer's part has gaps)\n"
        "  partial_lse: packed (it shares the payload's message)\n"
        "  message: 45232 bytes to each peer, in 1 transfer; LSE plane, peers outermost, "
        "token-major\n"
        "  workspace: 180928 bytes\n"
        "  pack: grid 7 x 1, block 33, 16 bytes a load\n"
        "  lse_combine: grid 22 x 1, block 128, 16 bytes a load");
  // Rows of 1028 bytes arrive, which are no multiple of 16, whatever this rank's own rows are.
  CHECK(told(silent_rank{0, 2}, sliced_rows(4), sliced_lses(4), result_rows(4),
             {{lse_placement::inline_bits}}, telling)
            .ends_with("\n  pack: grid 7 x 1, block 32, 16 bytes a load\n"
                       "  lse_combine: grid 22 x 1, block 128, 4 bytes a load"));
  // Only the LSEs are packed, as empty rows are masked; and nothing at all.
  const std::int32_t counts[4] = {1, 0, 2, 3};
  CHECK(told(silent_rank{1, 2}, head_major_rows(4), head_major_lses(4), result_rows(4), {}, telling,
             view(counts, packed(extent<axis::token>(4)))) ==
        "lse_reduce_scatter: 2 ranks; 4 tokens, 11 heads a rank, head_dim 512, bf16, base e\n"
        "  partial_output: straight (each peer's part is one run)\n"
        "  partial_lse: packed (empty rows are masked)\n"
        "  message: 45232 bytes to each peer, in 2 transfers; LSE plane, peers outermost, "
        "head-major\n"
        "  workspace: 180928 bytes\n"
        "  pack_lse: grid 1 x 1, block 65, 4 bytes a load\n"
        "  lse_combine: grid 22 x 1, block 128, 16 bytes a load");
  CHECK(told(silent_rank{0, 2}, head_major_rows(0), head_major_lses(0), result_rows(0), {}, telling)
            .ends_with("  message: 0 bytes to each peer, in 2 transfers; LSE plane, peers "
                       "outermost, head-major\n"
                       "  workspace: 0 bytes\n"
                       "  lse_combine: nothing to launch"));
}

TEST_CASE("describe: with one rank nothing travels") {
  CHECK(told(silent_rank{0, 1}, sliced_rows(4), sliced_lses(4), result_rows(4, 22), {},
             telling_executor{}) ==
        "lse_reduce_scatter: 1 rank; 4 tokens, 22 heads a rank, head_dim 512, bf16, base e\n"
        "  partial_output: local (one rank)\n"
        "  partial_lse: local (one rank)\n"
        "  lse_combine: grid 22 x 1, block 128, 16 bytes a load");
}

TEST_CASE("describe: what the call refuses is said in its words") {
  CHECK(told(silent_rank{0, 3}, sliced_rows(4), sliced_lses(4), result_rows(4), {},
             telling_executor{}) ==
        "lse_reduce_scatter: 3 ranks; 4 tokens, 11 heads a rank, head_dim 512, bf16, base e\n"
        "  refused: shape_mismatch: partial_output, axis head: got 22, expected 3: its heads are a "
        "positive multiple of the number of ranks (expected)");
  CHECK(told(silent_rank{0, 17}, sliced_rows(4), sliced_lses(4), result_rows(4))
            .ends_with("  refused: unsupported: ranks: got 17, expected 16: a group has from 1 to "
                       "16 ranks"));
  // Rank 0 would write where rank 1's heads are.
  bf16 rows[2 * 4] = {};
  const float lses[2] = {};
  const auto partial = packed_output(rows, 1, 2, 4);
  CHECK(told(silent_rank{0, 2}, partial, packed_lse(lses, 1, 2), packed_output(rows + 4, 1, 1, 4))
            .ends_with("  refused: overlap: partial_output: got 8, expected 0: shares memory with "
                       "its result, out of its place (bytes in common)"));
  CHECK(told(silent_rank{1, 2}, partial, packed_lse(lses, 1, 2), packed_output(rows + 4, 1, 1, 4))
            .find("refused") == std::string::npos);
  CHECK(told_gather(silent_rank{0, 2}, packed_output(at<const bf16>(), 4, 11, 576),
                    packed_output(at<bf16>(), 4, 23, 576)) ==
        "all_gather_heads: 2 ranks; 4 tokens, 11 heads a rank, head_dim 576, 2 bytes an element\n"
        "  refused: shape_mismatch: gathered, axis head: got 23, expected 22: holds the heads of "
        "all ranks");
  CHECK(told_gather(silent_rank{1, 2}, packed_output(rows, 1, 1, 4), partial)
            .ends_with("  refused: overlap: local: got 8, expected 0: shares memory with gathered, "
                       "out of its place (bytes in common)"));
}

TEST_CASE("describe: a gather into a padded buffer arrives in the workspace") {
  static std::uint8_t heads[4 * 11 * 576], tile[4 * 104 * 576];
  const auto local = packed_output(heads, 4, 11, 576);
  const auto gathered = slice<axis::head>(packed_output(tile, 4, 104, 576), 0, 99).value();
  CHECK(told_gather(named_rank{{0, 9}}, local, gathered) ==
        "all_gather_heads: 9 ranks, by pigeon; 4 tokens, 11 heads a rank, head_dim 576, 1 byte an "
        "element\n"
        "  local: straight (each peer's part is one run)\n"
        "  gathered: packed (a peer's part has gaps)\n"
        "  message: 25344 bytes to each peer\n"
        "  workspace: 253440 bytes");
  CHECK(told_gather(silent_rank{0, 9}, local, gathered, {route_preference::packed}) ==
        "all_gather_heads: 9 ranks; 4 tokens, 11 heads a rank, head_dim 576, 1 byte an element\n"
        "  local: packed (asked for)\n"
        "  gathered: packed (asked for)\n"
        "  message: 25344 bytes to each peer\n"
        "  workspace: 253440 bytes");
  CHECK(told_gather(silent_rank{0, 1}, local, packed_output(tile, 4, 11, 576)) ==
        "all_gather_heads: 1 rank; 4 tokens, 11 heads a rank, head_dim 576, 1 byte an element\n"
        "  local: local (one rank)\n"
        "  gathered: local (one rank)");
}

TEST_CASE("describe: too small a buffer gets the beginning, and the whole length is returned") {
  silent_rank group{0, 2};
  const std::string all = told(group, sliced_rows(4), sliced_lses(4), result_rows(4));
  for (const std::size_t room : {std::size_t{1}, std::size_t{2}, std::size_t{20}, all.size() - 1,
                                 all.size(), all.size() + 1}) {
    CAPTURE(room);
    std::string text(all.size() + 2, '#');
    const std::size_t length = describe_lse_reduce_scatter<log_base::e>(
        silent_executor{}, group, sliced_rows(4), sliced_lses(4), result_rows(4), none, {},
        text.data(), room);
    CHECK(length == all.size());
    CHECK(std::string(text.data()) == all.substr(0, room - 1));
    CHECK(text.find_first_not_of('#', room) == std::string::npos);
  }
  CHECK(describe_lse_reduce_scatter<log_base::e>(silent_executor{}, group, sliced_rows(4),
                                                 sliced_lses(4), result_rows(4), none, {}, nullptr,
                                                 0) == all.size());
  char text[8];
  CHECK(
      describe_all_gather_heads(silent_executor{}, group, packed_output(at<const bf16>(), 4, 11, 8),
                                packed_output(at<bf16>(), 4, 22, 8), {}, text, sizeof text) > 100);
  CHECK(std::string(text) == "all_gat");
}

TEST_CASE("describe: a rank in a group of threads may ask alone") {
  in_process_group threads(2);
  in_process me = threads.rank(1).value();
  CHECK(told(me, sliced_rows(4), sliced_lses(4), result_rows(4), {}, host_executor{}) ==
        told(silent_rank{1, 2}, sliced_rows(4), sliced_lses(4), result_rows(4)));
}
