// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// The command line: which levels of which factors, or a geometry and lengths of the user's own.

#include "setting.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace demo {

struct options {
  factors levels = default_factors();
  std::vector<geometry> shapes;  ///< what the levels of by_geometry count
  std::vector<index_t> lengths;  ///< empty: mixed_lengths() of each run
  index_t seed = 1;
  device_kind device = device_kind::host;
  bool own = false;  ///< something was chosen: no long run
  bool full = false;
  bool json = false;
  bool list = false;
  bool help = false;
  std::string error;  ///< one line, or nothing
};

inline constexpr const char* usage =
    R"(03_decode_step: one decode step of a DCP group, on threads, checked against unsharded float64

  --geometry NAME    glm-5, kimi-k3 or deepseek-v3 (all)
  --heads N          heads of a model of your own
  --tp N, --dcp N    tensor-parallel ranks, and how many of them share a KV cache
  --no-padding       refuse heads that do not divide over the ranks
  --lengths A,B,...  tokens of each sequence, 0 to 1048576
  --q N              query tokens per sequence, 1 to 4 (1, 3)
  --interleave N     tokens per block, 1 to 4096 (1, 64)
  --page N           tokens per page, a multiple of the interleave (64, odd)
  --tile N           heads per tile of the attention kernel, 1 to 128 (16, 8)
  --attention NAME   dense or sparse
  --cache NAME       bf16 or fp8_ds_mla
  --payload NAME     bf16, fp16 or fp32
  --lse NAME         plane or inline: where LSEs travel
  --peers NAME       outermost or inside-heads: where the peers stand in a message
  --base NAME        e or two: the base of the LSEs
  --seed N           of queries and keys (1)
  --device NAME      host or cuda: where the collectives run (host)
  --full             every combination, not only each pair
  --list             the runs, without running them
  --json             one JSON object a line
  --help

What is not given takes all its values (in brackets) over the runs, so that each pair of values of
two options meets. Exit status: 0 all exact, 1 something is off, 2 wrong arguments, 77 no GPU.
)";

/// Why `text` cannot be; empty where it can. Numbers go to `into`.
inline std::string read_number(std::string_view text, index_t least, index_t most, index_t& into) {
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, into);
  if (problem == std::errc{} && stop == end && into >= least && into <= most) return {};
  return "'" + std::string(text) + "' is no number from " + std::to_string(least) + " to " +
         std::to_string(most);
}

template <class List>
std::string none_of(const List& list, std::string_view text) {
  std::string names;
  for (const auto& one : list) names += (names.empty() ? "" : ", ") + std::string(one.name);
  return "'" + std::string(text) + "' is none of " + names;
}

/// Leaves the factor one level: one of `known`, or a number.
inline std::string read_level(std::string_view text, const factor& known, factor& which) {
  for (const level& one : known.levels) {
    if (one.name == text) return which.levels = {one}, "";
  }
  if (known.least > known.most) return none_of(known.levels, text);
  index_t number = 0;
  const std::string wrong = read_number(text, known.least, known.most, number);
  if (wrong.empty()) which.levels = {{std::string(text), number}};
  return wrong;
}

inline std::string read_lengths(std::string_view text, std::vector<index_t>& lengths) {
  lengths.clear();
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string wrong =
        read_number(text.substr(at, end - at), 0, index_t{1} << 20, lengths.emplace_back());
    if (!wrong.empty()) return wrong;
    at = end + 1;
  }
  return {};
}

/// What was asked of the geometry; 0 stands for nothing.
struct wanted_shape {
  std::string model;
  index_t heads = 0;
  index_t tp = 0;
  index_t dcp = 0;
  bool no_padding = false;
};

inline std::string sentence(const headwise::status& what) {
  char text[256];
  headwise::format_status(what, text, sizeof text);
  return text;
}

/// The geometries to run, or why one cannot be.
inline std::string choose_shapes(const wanted_shape& wanted, options& chosen) {
  std::vector<model> which(std::begin(models), std::end(models));
  if (wanted.heads > 0 && !wanted.model.empty()) return "--heads, --geometry: exclude each other";
  if (wanted.heads > 0) which = {{"own", wanted.heads}};
  if (!wanted.model.empty()) {
    std::erase_if(which, [&](const model& one) { return one.name != wanted.model; });
    if (which.empty()) return "--geometry: " + none_of(models, wanted.model);
  }
  if (wanted.tp == 0 && (wanted.dcp > 0 || wanted.heads > 0)) return "--heads, --dcp: need --tp";
  for (const model& one : which) {
    if (wanted.tp > 0) {
      const index_t dcp = wanted.dcp > 0 ? wanted.dcp : wanted.tp;
      chosen.shapes.push_back({one.name, one.heads, wanted.tp, dcp});
      continue;
    }
    std::copy_if(std::begin(geometries), std::end(geometries), std::back_inserter(chosen.shapes),
                 [&](const geometry& known) { return known.model == one.name; });
  }
  for (const geometry& one : chosen.shapes) {
    auto& levels = chosen.levels[by_geometry].levels;
    levels.push_back({one.name(), static_cast<index_t>(levels.size())});
    const auto group = headwise::dcp_group::make(one.tp, one.dcp, 0);
    if (!group.ok()) return one.name() + ": " + sentence(group.why());
    headwise::head_split_options rules;
    rules.padding = !wanted.no_padding;
    const auto split = headwise::head_split::make(one.heads, one.tp, rules);
    if (!split.ok()) return one.name() + ": " + sentence(split.why());
  }
  return {};
}

/// Blocks must not straddle pages: leaves out values that do not go with the one that was given.
inline std::string match_pages(std::vector<level>& pages, std::vector<level>& blocks) {
  const auto check = [](const level& page, const level& block) {
    const index_t size = page.value == odd_page ? block.value : page.value;
    return headwise::interleaving{1, block.value}.check_page_size(size);
  };
  if (pages.size() > 1) {
    std::erase_if(pages, [&](const level& page) { return !check(page, blocks.back()).ok(); });
  } else if (blocks.size() > 1) {
    std::erase_if(blocks, [&](const level& block) { return !check(pages[0], block).ok(); });
  }
  const headwise::status fits = check(pages[0], blocks[0]);
  return fits.ok() ? "" : "--page, --interleave: " + sentence(fits);
}

inline options parse_arguments(const std::vector<std::string>& words) {
  const factors known = default_factors();
  options chosen;
  wanted_shape wanted;
  const auto number = [](index_t& into, index_t least, index_t most) {
    return [&into, least, most](std::string_view text) {
      return read_number(text, least, most, into);
    };
  };
  using reader = std::function<std::string(std::string_view)>;
  std::map<std::string, reader> valued{
      {"--geometry", [&](std::string_view text) { return wanted.model = text, ""; }},
      {"--heads", number(wanted.heads, 1, 4096)},
      {"--tp", number(wanted.tp, 1, 4096)},
      {"--dcp", number(wanted.dcp, 1, 4096)},
      {"--seed", number(chosen.seed, 0, INT64_MAX)},
      {"--device",
       [&](std::string_view text) {
         chosen.device = text == "cuda" ? device_kind::cuda : device_kind::host;
         const bool known_name = text == "cuda" || text == "host";
         return known_name ? "" : "'" + std::string(text) + "' is none of host, cuda";
       }},
      {"--lengths", [&](std::string_view text) { return read_lengths(text, chosen.lengths); }}};
  for (std::size_t f = by_geometry + 1; f < factor_count; ++f) {
    valued["--" + std::string(known[f].name)] = [&, f](std::string_view text) {
      return read_level(text, known[f], chosen.levels[f]);
    };
  }
  const std::map<std::string, bool*> flags{
      {"--full", &chosen.full}, {"--json", &chosen.json}, {"--list", &chosen.list},
      {"--help", &chosen.help}, {"-h", &chosen.help},     {"--no-padding", &wanted.no_padding}};
  for (std::size_t i = 0; i < words.size() && chosen.error.empty(); ++i) {
    if (const auto flag = flags.find(words[i]); flag != flags.end()) {
      *flag->second = true;
    } else if (const auto option = valued.find(words[i]); option == valued.end()) {
      chosen.error = "there is no option '" + words[i] + "', see --help";
    } else if (i + 1 == words.size()) {
      chosen.error = words[i] + " needs a value";
    } else {
      chosen.own = chosen.own || option->first != "--device";
      const std::string wrong = option->second(words[++i]);
      if (!wrong.empty()) chosen.error = option->first + ": " + wrong;
    }
  }
  if (chosen.error.empty()) chosen.error = choose_shapes(wanted, chosen);
  if (chosen.error.empty()) {
    chosen.error = match_pages(chosen.levels[by_page].levels, chosen.levels[by_interleave].levels);
  }
  return chosen;
}

}  // namespace demo
