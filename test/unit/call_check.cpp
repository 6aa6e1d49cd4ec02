// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/transport/call_check.hpp>

#include <support/sentence.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

using namespace headwise;
using detail::call_record;
using detail::compare_records;
using detail::find_odd_one;
using detail::hash_of;
using detail::record_of;
using support::sentence;

namespace {

constexpr call_signature gather_of(index_t tokens, index_t heads = 11) {
  return {"all_gather_heads", {{"token", tokens}, {"head", heads}}};
}
constexpr status refusal = failure(errc::capacity_exceeded, "workspace", "too small", 9, 8);

/// What each rank makes of the calls of all; it must be the same, or this says so.
std::string verdict(const std::vector<call_signature>& calls) {
  std::vector<call_record> records;
  for (const call_signature& call : calls) records.push_back(record_of(call, {}));
  const int ranks = static_cast<int>(calls.size());
  const std::string first = sentence(compare_records(records.data(), ranks, 0, calls[0]));
  for (int own = 1; own < ranks; ++own) {
    const status other =
        compare_records(records.data(), ranks, own, calls[static_cast<std::size_t>(own)]);
    if (sentence(other) != first) return first + " | " + sentence(other);
  }
  return first;
}

}  // namespace

TEST_CASE("call_check: names travel as FNV-1a hashes") {
  // The values that the authors of the hash publish.
  static_assert(hash_of("") == 0xcbf29ce484222325u);
  static_assert(hash_of("a") == 0xaf63dc4c8601ec8cu);
  static_assert(hash_of("foobar") == 0x85944171f73967e8u);
  // Bytes beyond 127 count as positive, as on every machine.
  static_assert(hash_of("\xff") == (0xcbf29ce484222325u ^ 0xffu) * 0x100000001b3u);
  const std::string_view names[] = {"",           "operation",     "token",          "head",
                                    "head_dim",   "element_kind",  "element_bytes",  "log_base",
                                    "wire_order", "lse_placement", "peer_placement", "rank"};
  for (const std::string_view one : names) {
    for (const std::string_view other : names) {
      CHECK((hash_of(one.data()) == hash_of(other.data())) == (one == other));
    }
  }
}

TEST_CASE("call_check: a record holds all of a call, and whether its rank can make it") {
  constexpr call_record record = record_of(gather_of(4), {});
  static_assert(record.operation == hash_of("all_gather_heads"));
  static_assert(record.refused == 0);
  static_assert(record.names[0] == hash_of("token") && record.values[0] == 4);
  static_assert(record.names[1] == hash_of("head") && record.values[1] == 11);
  for (int i = 2; i < call_signature::max_fields; ++i) {
    CHECK(record.names[i] == hash_of(""));
    CHECK(record.values[i] == 0);
  }
  static_assert(record_of(gather_of(4), refusal).refused ==
                1 + static_cast<std::uint64_t>(errc::capacity_exceeded));
  // It travels as bytes: none of them is left to chance.
  static_assert(std::has_unique_object_representations_v<call_record>);
  static_assert(std::is_trivially_copyable_v<call_record>);
}

TEST_CASE("call_check: calls that are alike pass, in groups of every size") {
  for (std::size_t ranks = 1; ranks <= max_ranks; ++ranks) {
    CHECK(verdict(std::vector<call_signature>(ranks, gather_of(4))) == "ok");
  }
  constexpr call_record three[] = {record_of(gather_of(4), {}), record_of(gather_of(4), {}),
                                   record_of(gather_of(4), {})};
  static_assert(compare_records(three, 3, 1, gather_of(4)).ok());
}

TEST_CASE("call_check: the odd one out is named, with its value and that of the others") {
  for (std::size_t odd = 0; odd < 3; ++odd) {
    std::vector<call_signature> calls(3, gather_of(4));
    calls[odd] = gather_of(7);
    CHECK(verdict(calls) ==
          "rank_mismatch: all_gather_heads, axis token: got 7, expected 4: seen "
          "on rank " +
              std::to_string(odd));
  }
  for (const int ranks : {5, max_ranks}) {
    for (int odd = 0; odd < ranks; ++odd) {
      std::vector<call_signature> calls(static_cast<std::size_t>(ranks), gather_of(4));
      calls[static_cast<std::size_t>(odd)] = gather_of(4, 12);
      CHECK(verdict(calls) ==
            "rank_mismatch: all_gather_heads, axis head: got 12, expected 11: "
            "seen on rank " +
                std::to_string(odd));
    }
  }
  // Two of five agree with each other, three with each other.
  CHECK(verdict({gather_of(1), gather_of(4), gather_of(1), gather_of(4), gather_of(4)}) ==
        "rank_mismatch: all_gather_heads, axis token: got 1, expected 4: seen on rank 0");
  // Two of five agree, and each of the others is alone.
  CHECK(verdict({gather_of(1), gather_of(2), gather_of(4), gather_of(3), gather_of(4)}) ==
        "rank_mismatch: all_gather_heads, axis token: got 1, expected 4: seen on rank 0");
  constexpr call_record three[] = {record_of(gather_of(4), {}), record_of(gather_of(4), {}),
                                   record_of(gather_of(7), {})};
  static_assert(compare_records(three, 3, 0, gather_of(4)).got == 7);
  static_assert(compare_records(three, 3, 0, gather_of(4)).expected == 4);
}

TEST_CASE("call_check: of two that differ, the second is the odd one") {
  CHECK(verdict({gather_of(4), gather_of(7)}) ==
        "rank_mismatch: all_gather_heads, axis token: got 7, expected 4: seen on rank 1");
  CHECK(verdict({gather_of(1), gather_of(1), gather_of(2), gather_of(2)}) ==
        "rank_mismatch: all_gather_heads, axis token: got 2, expected 1: seen on rank 2");
}

TEST_CASE("call_check: the first field that differs, in the order of the call, is named") {
  CHECK(verdict({gather_of(4, 11), gather_of(4, 11), gather_of(5, 12)}) ==
        "rank_mismatch: all_gather_heads, axis token: got 5, expected 4: seen on rank 2");
  // The last field counts as well.
  call_signature full{"exchange", {}};
  for (int i = 0; i < call_signature::max_fields; ++i) full.fields[i] = {"bytes", i};
  call_signature other = full;
  other.fields[call_signature::max_fields - 1].value = -1;
  CHECK(verdict({full, other, full}) ==
        "rank_mismatch: exchange, axis bytes: got -1, expected 9: seen on rank 1");
}

TEST_CASE("call_check: another operation is told as each rank knows its own") {
  const call_signature calls[] = {gather_of(4), {"barrier", {}}, gather_of(4)};
  call_record records[3];
  for (int r = 0; r < 3; ++r) records[r] = record_of(calls[r], {});
  CHECK(sentence(compare_records(records, 3, 0, calls[0])) ==
        "rank_mismatch: all_gather_heads, axis operation: seen on rank 1");
  CHECK(sentence(compare_records(records, 3, 1, calls[1])) ==
        "rank_mismatch: barrier, axis operation: seen on rank 1");
}

TEST_CASE("call_check: a field of another name differs, whatever its value") {
  const call_signature other{"all_gather_heads", {{"token", 4}, {"heads", 11}}};
  const call_record records[] = {record_of(gather_of(4), {}), record_of(gather_of(4), {}),
                                 record_of(other, {})};
  const status came = compare_records(records, 3, 0, gather_of(4));
  CHECK(came.code == errc::rank_mismatch);
  CHECK(std::string(came.axis) == "head");
  CHECK(std::string(came.message) == "seen on rank 2");
}

TEST_CASE("call_check: peers of a rank that refuses hear its reason, before anything else") {
  const call_record records[] = {record_of(gather_of(4), {}), record_of(gather_of(9), {}),
                                 record_of(gather_of(4), refusal)};
  for (const int own : {0, 1}) {
    CHECK(sentence(compare_records(records, 3, own, gather_of(4))) ==
          "rank_mismatch: all_gather_heads, axis capacity_exceeded: seen on rank 2");
  }
  // Of two that refuse, the first; each of them has a reason of its own.
  const call_record both[] = {
      record_of(gather_of(4), {}), record_of(gather_of(4), refusal),
      record_of(gather_of(4), failure(errc::misaligned, "workspace", "is not aligned"))};
  CHECK(sentence(compare_records(both, 3, 0, gather_of(4))) ==
        "rank_mismatch: all_gather_heads, axis capacity_exceeded: seen on rank 1");
  CHECK(sentence(compare_records(both, 3, 1, gather_of(4))) ==
        "rank_mismatch: all_gather_heads, axis misaligned: seen on rank 2");
  // A rank does not hear of its own refusal.
  const call_record alone[] = {record_of(gather_of(4), {}), record_of(gather_of(4), refusal)};
  CHECK(compare_records(alone, 2, 1, gather_of(4)).ok());
}

TEST_CASE("call_check: every rank of the largest group has a name in a message") {
  for (int r = 0; r < max_ranks; ++r) {
    CHECK(std::string(detail::seen_on[r]) == "seen on rank " + std::to_string(r));
  }
}

TEST_CASE("find_odd_one compares a rank with itself as alike, and none with nobody") {
  const auto never = [](int one, int other) {
    return one == other ? status{} : failure(errc::rank_mismatch, "", "", one, other);
  };
  CHECK(find_odd_one(0, never).ok());
  CHECK(find_odd_one(1, never).ok());
  // All different: the first is what the others are measured by.
  CHECK(find_odd_one(3, never).got == 1);
  CHECK(find_odd_one(3, never).expected == 0);
}
