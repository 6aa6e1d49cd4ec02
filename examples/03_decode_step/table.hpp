// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// What is printed of a run: a block to read, or a line of JSON.

#include <cinttypes>
#include <cstdio>

#include "check.hpp"

namespace demo {

inline std::string name_of(const factors& levels, const choice& run) {
  std::string name = levels[by_geometry].levels[static_cast<std::size_t>(run[0])].name;
  for (std::size_t f = by_geometry + 1; f < factor_count; ++f) {
    name += std::string(" ") + levels[f].name + "=" +
            levels[f].levels[static_cast<std::size_t>(run[f])].name;
  }
  return name;
}

// [snippet: print_route]
inline void print_operand(const char* name, const std::string& view, route taken) {
  std::printf("    %-11s %s\n                %s: %s\n", name, view.c_str(), to_string(taken.which),
              to_string(taken.reason));
}
// [/snippet]

inline void print_block(const std::string& name, const setting& how, const outcome& result) {
  const head_split heads = how.heads();
  const gathered_heads last = how.gathered(how.shape.tp / how.shape.dcp - 1);
  const step_facts& facts = result.facts;
  std::printf("%s\n    heads       %d on %d ranks: %d each, %d with %d dummies; a group gathers %d, "
              "its kernel writes %d\n",
              name.c_str(), static_cast<int>(heads.heads), static_cast<int>(heads.ranks),
              static_cast<int>(heads.per_rank), static_cast<int>(heads.padded()),
              static_cast<int>(heads.dummies()), static_cast<int>(last.count()),
              static_cast<int>(last.tiled(how.tile)));
  print_operand("query", facts.query, facts.gather.receive);
  print_operand("partial", facts.partial, facts.scatter.payload);
  print_operand("partial lse", facts.partial_lse, facts.scatter.lse);
  std::printf("    to a peer   %" PRId64 " bytes gathering, %" PRId64 " scattering\n",
              facts.gather_bytes, facts.scatter_bytes);
  std::printf("    error       output %.2e of %.2e allowed (%.2f), lse %.2e of %.2e (%.2f)\n",
              result.output.error, result.output.bound, result.output.ratio, result.merged.error,
              result.merged.bound, result.merged.ratio);
  std::printf("    %s  %.2f s the step, %.2f s the check; bits %016" PRIx64 "\n",
              result.ok() ? "exact     " : "WRONG     ", result.step_seconds, result.check_seconds,
              result.bits.value());
  for (const std::string& fault : result.faults) std::printf("    ! %s\n", fault.c_str());
}

/// Infinity and NaN are no JSON.
inline std::string json_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return std::isfinite(value) ? text : "null";
}

inline void print_json(const std::string& name, const setting& how, const outcome& result) {
  const step_facts& facts = result.facts;
  std::string faults;
  for (const std::string& fault : result.faults) {
    faults += (faults.empty() ? "\"" : ", \"") + fault + "\"";
  }
  const auto way = [](route taken) {
    return std::string("{\"way\": \"") + to_string(taken.which) + "\", \"reason\": \"" +
           to_string(taken.reason) + "\"}";
  };
  std::printf(
      "{\"run\": \"%s\", \"heads\": %d, \"heads_per_rank\": %d, \"dummies\": %d, \"rows\": %d, "
      "\"query\": \"%s\", \"partial\": \"%s\", \"partial_lse\": \"%s\", \"gather\": %s, "
      "\"scatter\": %s, \"scatter_lse\": %s, \"gather_bytes\": %" PRId64
      ", \"scatter_bytes\": %" PRId64
      ", \"error\": %s, \"bound\": %s, \"ratio\": %s, \"lse_error\": %s, \"lse_bound\": %s, "
      "\"lse_ratio\": %s, \"seconds\": %.3f, \"bits\": \"%016" PRIx64
      "\", \"exact\": %s, \"faults\": [%s]}\n",
      name.c_str(), static_cast<int>(how.shape.heads), static_cast<int>(how.heads().per_rank),
      static_cast<int>(how.heads().dummies()), static_cast<int>(how.rows()), facts.query.c_str(),
      facts.partial.c_str(), facts.partial_lse.c_str(), way(facts.gather.receive).c_str(),
      way(facts.scatter.payload).c_str(), way(facts.scatter.lse).c_str(), facts.gather_bytes,
      facts.scatter_bytes, json_number(result.output.error).c_str(),
      json_number(result.output.bound).c_str(), json_number(result.output.ratio).c_str(),
      json_number(result.merged.error).c_str(), json_number(result.merged.bound).c_str(),
      json_number(result.merged.ratio).c_str(), result.step_seconds + result.check_seconds,
      result.bits.value(), result.ok() ? "true" : "false", faults.c_str());
}

}  // namespace demo
