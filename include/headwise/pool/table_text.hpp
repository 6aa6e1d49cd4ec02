// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/pool/layout.hpp>

#include <initializer_list>

// A protocol table as text, to be printed, kept in a file and read again:
//
//     lse_reduce_scatter: ll up to 1048576, push
//     all_gather_heads: ll up to 65536, pull up to 524288, push
//
// The numbers are payload bytes per peer; the last protocol of a line takes whatever is more.

namespace headwise::inline v0 {

namespace detail {

/// Calls each(step, last) for the steps as pick() takes them: those that nothing reaches left out,
/// and neighbours of one protocol together.
template <class Each>
constexpr void for_each_step(const protocol_table::steps& steps, const Each& each) noexcept {
  constexpr int most = protocol_table::max_steps;
  protocol_table::step held{-1, protocol::push};
  for (int i = 0; i < most; ++i) {
    const protocol_table::step step{i == most - 1 ? INT64_MAX : steps.at[i].up_to,
                                    steps.at[i].which};
    if (step.up_to <= held.up_to) continue;
    if (held.up_to >= 0 && held.which != step.which) each(held, false);
    held = step;
  }
  each(held, true);
}

/// Reads words, numbers and marks, one after the other. A line may end as those of DOS do.
struct table_reader {
  const char* text;
  const char* at;

  explicit constexpr table_reader(const char* from) noexcept : text(from), at(from) {}

  constexpr void skip(bool lines) noexcept {
    while (*at == ' ' || *at == '\t' || *at == '\r' || (lines && *at == '\n')) ++at;
  }
  constexpr bool take(const char* word) noexcept {
    skip(false);
    const char* end = at;
    for (; *word != '\0'; ++word, ++end) {
      if (*end != *word) return false;
    }
    const bool in_word = is_letter(*(word - 1)) && is_letter(*end);
    if (!in_word) at = end;
    return !in_word;
  }
  /// -1 where there is no number, or one that leaves 63 bits.
  constexpr index_t number() noexcept {
    skip(false);
    index_t value = -1;
    for (; *at >= '0' && *at <= '9'; ++at) {
      const index_t digit = *at - '0';
      if (value > (INT64_MAX - digit) / 10) return -1;
      value = greater(value, index_t{0}) * 10 + digit;
    }
    return value;
  }
  constexpr status wrong(const char* what) const noexcept {
    index_t line = 1;
    for (const char* c = text; c != at; ++c) line += *c == '\n' ? 1 : 0;
    return failure(errc::invalid_argument, "protocol_table", what, line, 0, "line");
  }

 private:
  static constexpr bool is_letter(char c) noexcept {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
};

constexpr status read_steps(table_reader& from, const char* operation,
                            protocol_table::steps& steps) noexcept {
  from.skip(true);
  if (!from.take(operation) || !from.take(":")) {
    return from.wrong(
        "a line for lse_reduce_scatter, then one for all_gather_heads, each with ':'");
  }
  index_t above = -1;
  for (int i = 0;; ++i) {
    if (i == protocol_table::max_steps) return from.wrong("has more than 4 steps");
    protocol_table::step& step = steps.at[i];
    bool known = false;
    for (const protocol which : {protocol::ll, protocol::push, protocol::pull}) {
      if (known || !from.take(to_string(which))) continue;
      step.which = which;
      known = true;
    }
    if (!known) return from.wrong("a protocol is 'll', 'push' or 'pull'");
    if (!from.take("up")) {
      // The last one; pick() goes on asking the others.
      for (int rest = i; rest < protocol_table::max_steps; ++rest) {
        steps.at[rest] = {INT64_MAX, step.which};
      }
      break;
    }
    step.up_to = from.take("to") ? from.number() : -1;
    if (step.up_to < 0) return from.wrong("'up to' is followed by a number of bytes");
    if (step.up_to <= above) return from.wrong("the steps do not ascend");
    above = step.up_to;
    if (!from.take(",")) return from.wrong("the last step has no 'up to'");
  }
  from.skip(false);
  return *from.at == '\n' || *from.at == '\0' ? status{} : from.wrong("text behind a step");
}

}  // namespace detail

/// Writes the table as two lines, each with its end; always terminated; returns the length of the
/// whole text, as snprintf does.
constexpr std::size_t format_protocol_table(const protocol_table& table, char* buffer,
                                            std::size_t capacity) noexcept {
  detail::text_sink out{buffer, capacity};
  for (const pool_operation operation :
       {pool_operation::reduce_scatter, pool_operation::all_gather}) {
    out.put(to_string(operation));
    out.put(": ");
    const bool reduces = operation == pool_operation::reduce_scatter;
    detail::for_each_step(reduces ? table.reduce_scatter : table.all_gather,
                          [&](const protocol_table::step& step, bool last) {
                            out.put(to_string(step.which));
                            if (last) return;
                            out.put(" up to ");
                            out.put(step.up_to);
                            out.put(", ");
                          });
    out.put('\n');
  }
  return out.finish();
}

/// The table of such a text; it picks what the one that was written picks. All ranks of a pool are
/// handed the same text (peer_pool::use() compares).
/// Errors: invalid_argument, with the line (got) and what is wrong in it.
constexpr result<protocol_table> parse_protocol_table(const char* text) noexcept {
  if (text == nullptr) {
    return failure(errc::invalid_argument, "protocol_table", "is a null pointer");
  }
  protocol_table table;
  detail::table_reader from(text);
  const status reduces =
      detail::read_steps(from, to_string(pool_operation::reduce_scatter), table.reduce_scatter);
  if (!reduces.ok()) return reduces;
  const status gathers =
      detail::read_steps(from, to_string(pool_operation::all_gather), table.all_gather);
  if (!gathers.ok()) return gathers;
  from.skip(true);
  if (*from.at != '\0') return from.wrong("text behind the table");
  return table;
}

}  // namespace headwise::inline v0
