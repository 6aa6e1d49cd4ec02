// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// What is printed of a run: a block to read, or a line of JSON.

#include "check.hpp"

#include <cstdio>

namespace demo {

inline std::string name_of(const factors& levels, const choice& run) {
  std::string name;
  for (std::size_t f = 0; f < factor_count; ++f) {
    if (f != by_geometry) name += std::string(", ") + levels[f].name + " ";
    name += levels[f].levels[static_cast<std::size_t>(run[f])].name;
  }
  return name;
}

template <class... Numbers>
std::string formatted(const char* format, Numbers... numbers) {
  char text[256];
  std::snprintf(text, sizeof text, format, numbers...);
  return text;
}

inline std::string hex(const digest& bits) {
  return formatted("%016llx", static_cast<unsigned long long>(bits.value()));
}

// [snippet: route]
inline std::string explained(route taken) {
  return std::string(to_string(taken.which)) + " (" + to_string(taken.reason) + ")";
}
// [/snippet]

inline constexpr const char* legend =
    "Views are [axis=extent:stride, ...] in elements; '?' stands before what only the run knows, "
    "the\n"
    "rest is in the type. Behind each view: which way it goes, and why.\n\n";

inline void print_block(const setting& how, const outcome& result) {
  const head_split heads = how.heads();
  const gathered_heads group = how.gathered(0);
  const step_facts& facts = result.facts;
  const auto bytes = [](index_t count) { return std::to_string(count) + " bytes of "; };
  const std::pair<const char*, std::string> lines[] = {
      {"heads", std::to_string(heads.heads) + " on " + std::to_string(heads.ranks) +
                    " ranks: " + std::to_string(heads.per_rank) + " each, the last " +
                    std::to_string(heads.dummies()) + " are dummies; a group gathers " +
                    std::to_string(group.count()) + ", its kernel writes " +
                    std::to_string(group.tiled(how.tile))},
      {"query", facts.query},
      {"",
       "sent " + explained(facts.gather.send) + ", received " + explained(facts.gather.receive)},
      {"output", facts.partial + " " + explained(facts.scatter.payload)},
      {"lse", facts.partial_lse + " " + explained(facts.scatter.lse)},
      {"to a peer",
       bytes(facts.gather_bytes) + "query, " + bytes(facts.scatter_bytes) + "partial results"},
      {"error", formatted("output %.2e, bound %.2e (%.2f of it); lse %.2e, bound %.2e (%.2f)",
                          result.output.error, result.output.bound, result.output.ratio,
                          result.merged.error, result.merged.bound, result.merged.ratio)},
      {result.ok() ? "ok" : "WRONG", formatted("%.2f s the step, %.2f s the check; bits ",
                                               result.step_seconds, result.check_seconds) +
                                         hex(result.bits)}};
  for (const auto& [name, text] : lines) std::printf("  %-10s %s\n", name, text.c_str());
  for (const std::string& fault : result.faults) std::printf("  ! %s\n", fault.c_str());
  std::printf("\n");
}

/// One JSON object, on one line. Texts hold nothing that JSON would escape.
class json_line {
 public:
  void add(const char* key, const std::string& text) { raw(key, "\"" + text + "\""); }
  void add(const char* key, const char* text) { add(key, std::string(text)); }
  void add(const char* key, bool value) { raw(key, value ? "true" : "false"); }
  void add(const char* key, index_t value) { raw(key, std::to_string(value)); }
  void add(const char* key, double value) {
    raw(key, std::isfinite(value) ? formatted("%.6g", value) : "null");
  }
  void print() const { std::printf("%s}\n", text_.c_str()); }

 private:
  void raw(const char* key, const std::string& value) {
    text_ += (text_.empty() ? "{\"" : ", \"") + std::string(key) + "\": " + value;
  }
  std::string text_;
};

inline void print_json(const std::string& name, const setting& how, const outcome& result) {
  const step_facts& facts = result.facts;
  json_line line;
  line.add("run", name);
  line.add("tp", how.shape.tp);
  line.add("dcp", how.shape.dcp);
  line.add("heads", how.shape.heads);
  line.add("heads_per_rank", how.heads().per_rank);
  line.add("dummies", how.heads().dummies());
  line.add("rows", how.rows());
  line.add("query", facts.query);
  line.add("query_sent", explained(facts.gather.send));
  line.add("query_received", explained(facts.gather.receive));
  line.add("output", facts.partial);
  line.add("output_sent", explained(facts.scatter.payload));
  line.add("lse", facts.partial_lse);
  line.add("lse_sent", explained(facts.scatter.lse));
  line.add("query_bytes_per_peer", facts.gather_bytes);
  line.add("partial_bytes_per_peer", facts.scatter_bytes);
  line.add("error", result.output.error);
  line.add("bound", result.output.bound);
  line.add("error_over_bound", result.output.ratio);
  line.add("lse_error", result.merged.error);
  line.add("lse_bound", result.merged.bound);
  line.add("lse_error_over_bound", result.merged.ratio);
  line.add("seconds", result.step_seconds + result.check_seconds);
  line.add("bits", hex(result.bits));
  line.add("ok", result.ok());
  if (!result.ok()) line.add("fault", result.faults[0]);
  line.print();
}

}  // namespace demo
