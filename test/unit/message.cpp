// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/plan/message.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

using namespace headwise;

namespace {

constexpr message_format plane_outermost{};
constexpr message_format inline_outermost{lse_placement::inline_bits, peer_placement::outermost};
constexpr message_format plane_inside{lse_placement::plane, peer_placement::inside_heads};
constexpr message_format inline_inside{lse_placement::inline_bits, peer_placement::inside_heads};

template <class T>
message_plan made(const message_shape& shape, const message_format& format,
                  wire_order order = wire_order::token_major) {
  const auto plan = message_plan::make<T>(shape, format, order);
  REQUIRE(plan.ok());
  return plan.value();
}

TEST_CASE("an LSE takes two lanes of 16 bits or one of 32") {
  static_assert(lse_lanes<bf16> == 2);
  static_assert(lse_lanes<fp16> == 2);
  static_assert(lse_lanes<float> == 1);
}

TEST_CASE("B06: inline rows are those that other engines exchange, a dense [N, B, H/N, D + P]") {
  struct row {
    index_t head_dim, row_bytes;
  };
  for (const row& r : {row{512, 1028}, row{80, 164}, row{96, 196}, row{33, 70}}) {
    CAPTURE(r.head_dim);
    const message_plan plan = made<bf16>({4, 3, 2, r.head_dim}, inline_outermost);
    CHECK(plan.row_pitch() == r.row_bytes);
    CHECK(plan.bytes_per_peer() == 3 * 2 * r.row_bytes);
    CHECK(plan.peer_pitch == 3 * 2 * r.row_bytes);  // nothing between two messages
    CHECK(plan.total_bytes >= 4 * 3 * 2 * r.row_bytes);
    CHECK(plan.total_bytes < 4 * 3 * 2 * r.row_bytes + 16);
    CHECK(plan.total_bytes % 16 == 0);
    for (index_t n = 0; n < 4; ++n) {
      for (index_t b = 0; b < 3; ++b) {
        for (index_t j = 0; j < 2; ++j) {
          const index_t dense = ((n * 3 + b) * 2 + j) * r.row_bytes;
          CHECK(plan.payload_at(n, b, j) == dense);
          CHECK(plan.lse_at(n, b, j) == dense + 2 * r.head_dim);
        }
      }
    }
  }
  // Known from elsewhere: N = 4, B = 7, h = 2, D = 32 is 952 bytes a peer.
  CHECK(made<bf16>({4, 7, 2, 32}, inline_outermost).bytes_per_peer() == 952);
  CHECK(made<float>({4, 7, 2, 32}, inline_outermost).bytes_per_peer() == 7 * 2 * 33 * 4);
}

TEST_CASE("B06: with the LSE in its own plane, planes and messages start on 16 bytes") {
  for (const index_t head_dim : {512, 80, 96, 33, 1}) {
    CAPTURE(head_dim);
    const message_plan plan = made<bf16>({5, 3, 2, head_dim}, plane_outermost);
    const index_t payload = (3 * 2 * head_dim * 2 + 15) / 16 * 16;
    CHECK(plan.row_pitch() == 2 * head_dim);
    CHECK(plan.lse_offset == payload);
    CHECK(plan.peer_pitch == payload + 32);  // 6 LSEs are 24 bytes
    CHECK(plan.total_bytes == 5 * (payload + 32));
    CHECK(plan.bytes_per_peer() == 6 * (2 * head_dim + 4));  // padding does not travel
    for (index_t n = 0; n < 5; ++n) {
      CHECK(plan.payload_at(n, 0, 0) % 16 == 0);
      CHECK(plan.lse_at(n, 0, 0) % 16 == 0);
      for (index_t b = 0; b < 3; ++b) {
        for (index_t j = 0; j < 2; ++j) {
          const index_t start = n * plan.peer_pitch;
          CHECK(plan.payload_at(n, b, j) == start + (b * 2 + j) * 2 * head_dim);
          CHECK(plan.lse_at(n, b, j) == start + payload + (b * 2 + j) * 4);
        }
      }
    }
  }
}

TEST_CASE("A12: where the peers stand is a matter of strides") {
  // N = 2, B = 1, two heads a rank, D = 8: eight numbers a row.
  const auto order_of_rows = [](const message_plan& plan) {
    std::vector<std::pair<index_t, index_t>> rows;
    for (index_t peer = 0; peer < 2; ++peer) {
      for (index_t head = 0; head < 2; ++head) {
        rows.emplace_back(plan.payload_at(peer, 0, head), peer * 2 + head);
      }
    }
    std::sort(rows.begin(), rows.end());
    std::vector<index_t> heads;
    for (const auto& [at, head] : rows) heads.push_back(head);
    return heads;
  };
  for (const lse_placement lse : {lse_placement::plane, lse_placement::inline_bits}) {
    CHECK(order_of_rows(made<float>({2, 1, 2, 8}, {lse, peer_placement::outermost})) ==
          std::vector<index_t>{0, 1, 2, 3});
    CHECK(order_of_rows(made<float>({2, 1, 2, 8}, {lse, peer_placement::inside_heads})) ==
          std::vector<index_t>{0, 2, 1, 3});
  }
}

TEST_CASE("peers inside of the heads: [token, head, rank, head_dim], and the LSEs likewise") {
  const message_plan inside = made<fp16>({3, 2, 2, 5}, plane_inside);
  CHECK(inside.total_bytes == 128 + 48);  // 2 * 2 * 3 rows of 10 bytes, as many LSEs of 4
  CHECK(inside.bytes_per_peer() == 4 * (10 + 4));
  const message_plan bits = made<fp16>({3, 2, 2, 5}, inline_inside);
  CHECK(bits.total_bytes == 176);  // 12 rows of 14 bytes
  CHECK(bits.bytes_per_peer() == 4 * 14);
  for (index_t b = 0; b < 2; ++b) {
    for (index_t j = 0; j < 2; ++j) {
      for (index_t n = 0; n < 3; ++n) {
        const index_t row = (b * 2 + j) * 3 + n;
        CHECK(inside.payload_at(n, b, j) == row * 10);
        CHECK(inside.lse_at(n, b, j) == 128 + row * 4);
        CHECK(bits.payload_at(n, b, j) == row * 14);
        CHECK(bits.lse_at(n, b, j) == row * 14 + 10);
      }
    }
  }
}

TEST_CASE("head-major messages exchange the places of token and head") {
  const message_plan plan = made<float>({2, 3, 4, 8}, inline_outermost, wire_order::head_major);
  CHECK(plan.head_pitch == 3 * 36);
  CHECK(plan.token_pitch == 36);
  for (index_t n = 0; n < 2; ++n) {
    for (index_t j = 0; j < 4; ++j) {
      for (index_t b = 0; b < 3; ++b) {
        CHECK(plan.payload_at(n, b, j) == ((n * 4 + j) * 3 + b) * 36);
        CHECK(plan.lse_at(n, b, j) == ((n * 4 + j) * 3 + b) * 36 + 32);
      }
    }
  }
}

TEST_CASE("the payload view has the places that the plan says") {
  for (const message_format& format :
       {plane_outermost, inline_outermost, plane_inside, inline_inside}) {
    for (const wire_order order : {wire_order::token_major, wire_order::head_major}) {
      const message_plan plan = made<bf16>({3, 2, 4, 7}, format, order);
      std::vector<bf16> memory(static_cast<std::size_t>(plan.total_bytes / 2));
      const auto rows = payload_view(plan, memory.data());
      static_assert(view_of<decltype(rows), axis::rank, axis::token, axis::head, axis::head_dim>);
      CHECK(rows.extent<axis::rank>() == 3);
      CHECK(rows.extent<axis::token>() == 2);
      CHECK(rows.extent<axis::head>() == 4);
      CHECK(rows.extent<axis::head_dim>() == 7);
      CHECK(rows.span_size() * 2 <= plan.total_bytes);
      for (index_t n = 0; n < 3; ++n) {
        for (index_t b = 0; b < 2; ++b) {
          for (index_t j = 0; j < 4; ++j) {
            CHECK((&rows(n, b, j, 0) - memory.data()) * 2 == plan.payload_at(n, b, j));
            CHECK(&rows(n, b, j, 6) - &rows(n, b, j, 0) == 6);
          }
        }
      }
    }
  }
}

TEST_CASE("B=0, no heads and rows of nothing are messages too") {
  for (const message_format& format :
       {plane_outermost, inline_outermost, plane_inside, inline_inside}) {
    CHECK(made<bf16>({4, 0, 2, 512}, format).total_bytes == 0);
    CHECK(made<bf16>({4, 3, 0, 512}, format).total_bytes == 0);
    CHECK(made<bf16>({4, 0, 2, 512}, format).bytes_per_peer() == 0);
    // The LSE of a row without columns still travels.
    CHECK(made<bf16>({4, 3, 2, 0}, format).bytes_per_peer() == 24);
  }
}

TEST_CASE("F05: pitches and sizes are 64-bit") {
  const message_plan plan = made<bf16>({8, 8193, 8, 512}, plane_outermost);
  CHECK(plan.total_bytes == 8 * (8193 * 8 * 1024 + 262176));
  CHECK(plan.total_bytes / 2 > index_t{1} << 28);
  const message_plan larger = made<float>({16, 262144, 32, 256}, plane_outermost);
  CHECK(larger.payload_at(15, 262143, 31) ==
        15 * (index_t{262144} * 32 * 1024 + index_t{262144} * 32 * 4) +
            (index_t{262143} * 32 + 31) * 1024);
}

TEST_CASE("what cannot be a message is a status with both values") {
  const auto why = [](const message_shape& shape, const message_format& format = {}) {
    const auto plan = message_plan::make<bf16>(shape, format);
    REQUIRE_FALSE(plan.ok());
    return plan.why();
  };
  for (const index_t ranks : {0, -1, 17}) {
    const status refused = why({ranks, 1, 1, 8});
    CHECK(refused.code == errc::unsupported);
    CHECK(refused.got == ranks);
    CHECK(refused.expected == max_ranks);
  }
  const std::pair<message_shape, const char*> negative[] = {
      {{2, -3, 1, 8}, "token"}, {{2, 1, -3, 8}, "head"}, {{2, 1, 1, -3}, "head_dim"}};
  for (const auto& [shape, axis] : negative) {
    const status refused = why(shape);
    CHECK(refused.code == errc::invalid_argument);
    CHECK(std::string(refused.axis) == axis);
    CHECK(refused.got == -3);
  }
  // Beyond 64 bits: a row, all rows of a peer, all peers; a pitch though there is no row.
  const index_t huge = index_t{1} << 62;
  CHECK(why({1, 1, 1, huge}).code == errc::capacity_exceeded);
  CHECK(why({1, 1, 1, INT64_MAX}, inline_outermost).code == errc::capacity_exceeded);
  CHECK(why({1, huge, 2, 8}).code == errc::capacity_exceeded);
  CHECK(why({16, huge / 64, 1, 8}).code == errc::capacity_exceeded);
  CHECK(why({16, 0, huge / 64, 8}, inline_inside).code == errc::capacity_exceeded);
  CHECK(why({16, 1, 0, huge / 16}, plane_inside).code == errc::capacity_exceeded);
  CHECK(made<bf16>({16, 0, 1, huge / 64}, plane_inside).total_bytes == 0);
}

TEST_CASE("names of formats") {
  CHECK(std::string(to_string(lse_placement::plane)) == "plane");
  CHECK(std::string(to_string(lse_placement::inline_bits)) == "inline");
  CHECK(std::string(to_string(peer_placement::outermost)) == "outermost");
  CHECK(std::string(to_string(peer_placement::inside_heads)) == "inside heads");
  CHECK(std::string(to_string(wire_order::token_major)) == "token-major");
  CHECK(std::string(to_string(wire_order::head_major)) == "head-major");
  static_assert(plane_outermost == message_format{} && !(plane_outermost == plane_inside));
}

}  // namespace
