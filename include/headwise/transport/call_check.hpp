// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/transport/transport.hpp>

#include <cstring>

// Whether all ranks are about to do the same, where that has to travel as bytes.

namespace headwise::inline v0::detail {

/// A status has room for two values; which rank they were seen on stands in its message.
inline constexpr const char* seen_on[max_ranks] = {
    "seen on rank 0",  "seen on rank 1",  "seen on rank 2",  "seen on rank 3",
    "seen on rank 4",  "seen on rank 5",  "seen on rank 6",  "seen on rank 7",
    "seen on rank 8",  "seen on rank 9",  "seen on rank 10", "seen on rank 11",
    "seen on rank 12", "seen on rank 13", "seen on rank 14", "seen on rank 15"};

/// The odd one out of `count` is the one that few agree with, not just any that differs from the
/// first. compare(one, other) says how `one` differs from `other`; the status of the first odd one,
/// or ok where all are alike.
template <class Compare>
constexpr status find_odd_one(int count, const Compare& compare) noexcept {
  bool alike = true;
  for (int i = 1; i < count; ++i) alike = alike && compare(i, 0).ok();
  if (alike) return {};
  int reference = 0;
  int most = 0;
  for (int i = 0; i < count; ++i) {
    int votes = 0;
    for (int j = 0; j < count; ++j) votes += compare(j, i).ok() ? 1 : 0;
    if (votes > most) {
      most = votes;
      reference = i;
    }
  }
  status odd;
  for (int i = 0; i < count && odd.ok(); ++i) odd = compare(i, reference);
  return odd;
}

/// A call signature as it travels: names as hashes, since text of another process means nothing.
struct call_record {
  std::uint64_t operation = 0;
  std::uint64_t refused = 0;    ///< 1 + the code, where the rank cannot make the call
  std::uint64_t transport = 0;  ///< what the ranks have chosen for all calls
  std::uint64_t names[call_signature::max_fields] = {};
  index_t values[call_signature::max_fields] = {};
};

/// FNV-1a, 64 bits (Fowler, Noll, Vo).
constexpr std::uint64_t hash_of(const char* text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (; *text != '\0'; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3u;
  return hash;
}

constexpr call_record record_of(const call_signature& call, const status& refusal) noexcept {
  call_record record;
  record.operation = hash_of(call.operation);
  if (!refusal.ok()) record.refused = 1 + static_cast<std::uint64_t>(refusal.code);
  for (int i = 0; i < call_signature::max_fields; ++i) {
    record.names[i] = hash_of(call.fields[i].name);
    record.values[i] = call.fields[i].value;
  }
  return record;
}

/// Whether the records of all ranks are alike. Errors: rank_mismatch, on every rank the same: the
/// operation as this rank (`own`) knows it, what differs as its axis, and the rank in the message.
constexpr status compare_records(const call_record* all, int ranks, int own,
                                 const call_signature& call) noexcept {
  for (int r = 0; r < ranks; ++r) {
    if (all[r].refused == 0 || r == own) continue;
    return failure(errc::rank_mismatch, call.operation, seen_on[r], 0, 0,
                   to_string(static_cast<errc>(all[r].refused - 1)));
  }
  return find_odd_one(ranks, [&](int one, int other) -> status {
    const call_record& a = all[one];
    const call_record& b = all[other];
    const auto differs = [&](const char* what, index_t got, index_t expected) {
      return failure(errc::rank_mismatch, call.operation, seen_on[one], got, expected, what);
    };
    if (a.operation != b.operation) return differs("operation", 0, 0);
    if (a.transport != b.transport) {
      return differs("transport", static_cast<index_t>(a.transport),
                     static_cast<index_t>(b.transport));
    }
    for (int i = 0; i < call_signature::max_fields; ++i) {
      if (a.names[i] == b.names[i] && a.values[i] == b.values[i]) continue;
      const char* const name = call.fields[i].name;
      return differs(*name != '\0' ? name : "number of fields", a.values[i], b.values[i]);
    }
    return {};
  });
}

}  // namespace headwise::inline v0::detail
