// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// One decode step of a DCP group, on in-process ranks (threads, on the host or on GPUs), for the
// shapes of real models; each rank's result is compared with the same attention computed unsharded
// in float64.
//
// The step itself is step.hpp. Read that first; everything else here feeds it or checks it.

#include "options.hpp"
#include "run.hpp"
#include "table.hpp"

#include <chrono>
#include <cstdio>
#include <map>
#include <unistd.h>

namespace {

using namespace demo;

struct named_run {
  std::string name;
  setting how;
};

std::vector<named_run> plan_runs(const options& chosen, pair_coverage& coverage) {
  std::vector<choice> choices = cover_pairs<choice>(coverage.counts());
  std::sort(choices.begin(), choices.end());
  for (const choice& one : choices) coverage.add(one);
  if (chosen.full) {
    for (const choice& one : cross_product<choice>(coverage.counts())) {
      if (std::find(choices.begin(), choices.end(), one) == choices.end()) choices.push_back(one);
    }
  }
  std::vector<named_run> runs;
  for (const choice& one : choices) {
    runs.push_back({name_of(chosen.levels, one), make_setting(chosen.levels, one, chosen.shapes)});
    if (!chosen.lengths.empty()) runs.back().how.lengths = chosen.lengths;
    runs.back().how.seed = static_cast<std::uint64_t>(chosen.seed);
  }
  if (!chosen.own) {
    setting one_long;
    one_long.shape = {"glm-5", 64, 8, 8};
    one_long.lengths = {65536};
    runs.push_back({one_long.shape.name() + ", one sequence of 65536 tokens", one_long});
  }
  return runs;
}

/// What all runs of one geometry came to.
struct summary {
  setting how;
  int runs = 0;
  double ratio = 0;
  double lse_ratio = 0;
  double seconds = 0;
};

void print_summary(const std::vector<geometry>& shapes,
                   const std::map<std::string, summary>& summaries) {
  std::printf("%-26s %-7s %-8s %-8s %-9s %-5s %-12s %-10s %s\n", "geometry", "a rank", "dummies",
              "gathered", "written", "runs", "error/bound", "lse", "time");
  for (const geometry& shape : shapes) {
    const auto found = summaries.find(shape.name());
    if (found == summaries.end()) continue;
    const summary& all = found->second;
    const gathered_heads group = all.how.gathered(0);
    const std::string written =
        std::to_string(group.tiled(16)) + " or " + std::to_string(group.tiled(8));
    std::printf("%-26s %-7s %-8s %-8s %-9s %-5d %-12.2f %-10.2f %.1f s\n", shape.name().c_str(),
                std::to_string(group.split.per_rank).c_str(),
                std::to_string(group.split.dummies()).c_str(),
                std::to_string(group.count()).c_str(), written.c_str(), all.runs, all.ratio,
                all.lse_ratio, all.seconds);
  }
}

}  // namespace

int main(int count, char** words) {
  const options chosen = parse_arguments({words + 1, words + count});
  if (chosen.help) {
    std::fputs(usage, stdout);
    return 0;
  }
  if (!chosen.error.empty()) {
    std::fprintf(stderr, "03_decode_step: %s\n", chosen.error.c_str());
    return 2;
  }
  if (const std::string missing = why_not_on(chosen.device); !missing.empty()) {
    std::fprintf(stderr, "03_decode_step: %s\n", missing.c_str());
    return 77;
  }
  std::vector<int> counts;
  for (const factor& one : chosen.levels) counts.push_back(static_cast<int>(one.levels.size()));
  pair_coverage coverage(counts);
  const std::vector<named_run> runs = plan_runs(chosen, coverage);

  if (!chosen.json && !chosen.list) std::fputs(legend, stdout);
  const auto start = std::chrono::steady_clock::now();
  const bool terminal = isatty(STDERR_FILENO) == 1;
  std::map<std::string, summary> summaries;
  digest all_bits;
  int wrong = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& [name, how] = runs[i];
    const std::string progress =
        "[" + std::to_string(i + 1) + "/" + std::to_string(runs.size()) + "]";
    if (chosen.list) {
      std::printf("%s %s\n", progress.c_str(), name.c_str());
      continue;
    }
    std::fprintf(stderr, terminal ? "\r%s %s ..." : "%s %s\n", progress.c_str(), name.c_str());
    const outcome result = run(how);
    if (terminal) std::fputs("\r\033[K", stderr);
    if (chosen.json) {
      print_json(name, how, result);
    } else {
      std::printf("%s %s\n", progress.c_str(), name.c_str());
      print_block(how, result);
    }
    std::fflush(stdout);
    wrong += result.ok() ? 0 : 1;
    const std::uint64_t bits = result.bits.value();
    all_bits.add(&bits, 1);
    summary& all = summaries.try_emplace(how.shape.name(), summary{how}).first->second;
    ++all.runs;
    all.ratio = std::max(all.ratio, result.output.ratio);
    all.lse_ratio = std::max(all.lse_ratio, result.merged.ratio);
    all.seconds += result.step_seconds + result.check_seconds;
  }
  if (chosen.list) return 0;

  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (chosen.json) {
    json_line line;
    line.add("runs", static_cast<index_t>(runs.size()));
    line.add("wrong", static_cast<index_t>(wrong));
    line.add("pairs", static_cast<index_t>(coverage.covered()));
    line.add("pairs_possible", static_cast<index_t>(coverage.total()));
    line.add("seconds", seconds);
    line.add("bits", hex(all_bits));
    line.print();
  } else {
    print_summary(chosen.shapes, summaries);
    std::printf("\npairs of values that met in a run: %zu/%zu\n", coverage.covered(),
                coverage.total());
    std::printf("%zu runs, %d of them wrong, %.1f s; bits of all %s\n", runs.size(), wrong, seconds,
                hex(all_bits).c_str());
  }
  return wrong == 0 && coverage.covered() == coverage.total() ? 0 : 1;
}
