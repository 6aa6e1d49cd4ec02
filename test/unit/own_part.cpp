// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// What a rank of an LSE reduce-scatter has for itself stays where it is: it is neither packed nor
// exchanged, and combined from there.

#include <support/scatter.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

using namespace headwise;
using namespace support;

namespace {

constexpr index_t tokens = 3, heads = 4, head_dim = 8;
constexpr int ranks = 3;

/// A rank whose peers send the byte 0xfe: finite numbers, of which the LSEs weigh nothing.
struct recording_rank : silent_rank {
  std::vector<send_chunk> sent;
  std::vector<receive_chunk> received;
  call_signature call;

  status exchange(std::span<const send_chunk> send, std::span<const receive_chunk> receive,
                  const call_signature& of) {
    sent.assign(send.begin(), send.end());
    received.assign(receive.begin(), receive.end());
    call = of;
    for (const receive_chunk& chunk : receive) {
      for (index_t i = 0; i < (chunk.bytes() == 0 ? 0 : chunk.runs); ++i) {
        std::memset(static_cast<std::byte*>(chunk.data) + i * chunk.pitch, 0xfe,
                    static_cast<std::size_t>(chunk.run_bytes));
      }
    }
    return {};
  }
};

/// The host's executor, and which peer it was told to leave out.
struct recording_executor {
  std::vector<index_t>* left_out;

  template <class Source, class Target>
  status materialize(const Source&, const Target&) const {
    std::abort();
  }
  template <log_base Base, class Output, class Lse, class Valid>
  status pack(const Output& output, const Lse& lse, const message_plan& plan, std::byte* message,
              const Valid& valid, index_t peer) const {
    left_out->push_back(peer);
    return host_executor{}.pack<Base>(output, lse, plan, message, valid, peer);
  }
  template <log_base Base, class Lse, class Valid>
  status pack_lse(const Lse& lse, const message_plan& plan, std::byte* message, const Valid& valid,
                  index_t peer) const {
    left_out->push_back(peer);
    return host_executor{}.pack_lse<Base>(lse, plan, message, valid, peer);
  }
  template <log_base Base, class Source, class Output, class Merged, class Sink, class Policy>
  status lse_combine(const Source& source, const Output& output, const Merged& merged,
                     const Sink& sink, const Policy& policy) const {
    return host_executor{}.lse_combine<Base>(source, output, merged, sink, policy);
  }
};

/// Bytes of a message buffer that belong to the rows of `peer` and are not 0xff.
index_t written_for(index_t peer, const message_plan& plan, const std::byte* buffer) {
  index_t written = 0;
  const auto count = [&](index_t first, index_t bytes) {
    for (index_t b = first; b < first + bytes; ++b) written += buffer[b] != std::byte{0xff};
  };
  for (index_t token = 0; token < plan.shape.tokens; ++token) {
    for (index_t head = 0; head < plan.shape.heads; ++head) {
      count(plan.payload_at(peer, token, head), plan.shape.head_dim * plan.element_bytes);
      count(plan.lse_at(peer, token, head), index_t{sizeof(float)});
    }
  }
  return written;
}

bool shares_a_byte(const send_chunk& chunk, const void* memory, index_t bytes) {
  const auto* const first = static_cast<const std::byte*>(memory);
  for (index_t i = 0; i < chunk.runs; ++i) {
    const auto* const run = static_cast<const std::byte*>(chunk.data) + i * chunk.pitch;
    if (run < first + bytes && first < run + chunk.run_bytes) return true;
  }
  return false;
}

struct expected_way {
  std::size_t planes;
  bool packed;
};

template <bool HeadMajor, class Lse = float>
void check_own_part_stays(int own, style which, const message_format& format,
                          const expected_way& expected) {
  CAPTURE(own);
  CAPTURE(static_cast<int>(which));
  CAPTURE(to_string(format.lse));
  CAPTURE(to_string(format.peer));
  const scatter_problem<bf16> problem{
      {ranks, tokens, heads, head_dim}, static_cast<std::uint64_t>(own) + 77, sizeof(Lse) == 2};
  scatter_operands<bf16, Lse, HeadMajor> mine(problem.shape, which, which);
  // No row is empty, so that each of this rank's own comes back as it is.
  fill(mine.partial_output.by_token(),
       [&](const auto& at) { return problem.output(own, at[0], at[1], at[2]); });
  fill(mine.partial_lse.by_token(),
       [&](const auto& at) { return from_float<Lse>(static_cast<float>(at[0] - at[1]) / 4.0f); });
  auto workspace = scatter_workspace<bf16>(problem.shape, format);
  recording_rank group{{own, ranks}, {}, {}, {}};
  std::vector<index_t> left_out;
  const status came = lse_reduce_scatter<log_base::e>(
      recording_executor{&left_out}, group, mine.partial_output.input(), mine.partial_lse.input(),
      mine.output.view(), mine.merged.view(), whole(workspace), {format});
  CAPTURE(sentence(came));
  REQUIRE(came.ok());
  CHECK(left_out == std::vector<index_t>(expected.packed ? 1 : 0, own));

  constexpr auto order = HeadMajor ? wire_order::head_major : wire_order::token_major;
  const message_plan plan =
      message_plan::make<bf16>(problem.shape.message(), format, order).value();
  const std::byte* const outgoing = workspace.data();
  const std::byte* const incoming = workspace.data() + workspace.size() / 2;
  CHECK(written_for(own, plan, outgoing) == 0);
  CHECK(written_for(own, plan, incoming) == 0);

  REQUIRE(group.sent.size() == expected.planes * ranks);
  REQUIRE(group.received.size() == expected.planes * ranks);
  CHECK(group.call.side_by_side == !travels_in_parts(plan));
  index_t bytes[ranks] = {};
  for (std::size_t i = 0; i < group.sent.size(); ++i) {
    const auto peer = static_cast<int>(i % ranks);
    CAPTURE(i);
    CHECK(group.sent[i].bytes() == group.received[i].bytes());
    bytes[peer] += group.sent[i].bytes();
    if (peer == own) {
      CHECK(group.sent[i].data == nullptr);
      CHECK(group.received[i].data == nullptr);
      continue;
    }
    CHECK(group.sent[i].bytes() > 0);
    for_each_element(mine.partial_output.by_token(), [&](const auto& at, index_t offset) {
      if (at[1] / heads != own) return;
      REQUIRE_FALSE(shares_a_byte(group.sent[i], mine.partial_output.view().data() + offset, 2));
    });
    for_each_element(mine.partial_lse.by_token(), [&](const auto& at, index_t offset) {
      if (at[1] / heads != own) return;
      REQUIRE_FALSE(shares_a_byte(group.sent[i], mine.partial_lse.view().data() + offset,
                                  index_t{sizeof(Lse)}));
    });
  }
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != own) {
      CHECK(bytes[peer] >= plan.bytes_per_peer());
      CHECK(bytes[peer] < plan.bytes_per_peer() + 32);  // padding
    } else {
      CHECK(bytes[peer] == 0);
    }
  }

  // The weight of a row whose peers weigh nothing is exactly 1.
  const auto partial = mine.partial_output.by_token();
  CHECK(wrong_elements(mine.output.by_token(), [&](const auto& at) {
          return partial(at[0], own * heads + at[1], at[2]);
        }) == 0);
  const auto lses = mine.partial_lse.by_token();
  CHECK(wrong_elements(mine.merged.by_token(), [&](const auto& at) {
          return to_float(lses(at[0], own * heads + at[1]));
        }) == 0);
}

}  // namespace

TEST_CASE("a rank's own part is neither packed nor exchanged: packed into one message") {
  for (int own = 0; own < ranks; ++own) {
    check_own_part_stays<false>(own, style::tiled, {}, {1, true});
    check_own_part_stays<false>(own, style::tiled, {lse_placement::inline_bits}, {1, true});
    check_own_part_stays<true>(own, style::head_major, {lse_placement::inline_bits}, {1, true});
  }
}

TEST_CASE("a rank's own part is neither packed nor exchanged: in two parts") {
  for (int own = 0; own < ranks; ++own) {
    check_own_part_stays<true>(own, style::head_major, {}, {2, false});
    // Only the LSEs are packed, from a 16-bit type.
    check_own_part_stays<true, bf16>(own, style::head_major, {}, {2, true});
    // All is packed, and travels in the parts in which it would go straight elsewhere.
    check_own_part_stays<true>(own, style::head_pitched, {}, {2, true});
  }
}

TEST_CASE("a rank's own part is neither packed nor exchanged: peers inside the heads") {
  for (int own = 0; own < ranks; ++own) {
    for (const auto lse : {lse_placement::plane, lse_placement::inline_bits}) {
      const message_format format{lse, peer_placement::inside_heads};
      const std::size_t planes = lse == lse_placement::plane ? 2 : 1;
      check_own_part_stays<false>(own, style::packed, format, {planes, true});
      check_own_part_stays<true>(own, style::head_major, format, {planes, true});
    }
  }
}
