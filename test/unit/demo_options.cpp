// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The demo's command line. test/demo/check.py has the complaints, one by one.

#include "../../examples/03_decode_step/options.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace {

demo::options parsed(const std::string& line) {
  std::istringstream words(line);
  return demo::parse_arguments(
      {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()});
}

std::vector<std::string> names(const demo::options& chosen, demo::factor_id which) {
  std::vector<std::string> all;
  for (const demo::level& one : chosen.levels[which].levels) all.push_back(one.name);
  return all;
}

using texts = std::vector<std::string>;

}  // namespace

TEST_CASE("demo: without arguments, every value of every factor, and the long run") {
  const demo::options chosen = parsed("");
  CHECK(chosen.error.empty());
  CHECK(!chosen.own);
  CHECK(chosen.shapes.size() == 7);
  CHECK(names(chosen, demo::by_geometry).size() == 7);
  CHECK(names(chosen, demo::by_payload) == texts{"bf16", "fp16", "fp32"});
  CHECK(names(chosen, demo::by_page) == texts{"64", "odd"});
  CHECK(names(chosen, demo::by_interleave) == texts{"1", "64"});
}

TEST_CASE("demo: an option leaves its factor one value") {
  const demo::options chosen = parsed("--geometry glm-5 --payload fp16 --q 2 --base two --seed 7");
  REQUIRE(chosen.error.empty());
  CHECK(chosen.own);
  CHECK(chosen.seed == 7);
  CHECK(chosen.shapes.size() == 5);
  CHECK(std::all_of(chosen.shapes.begin(), chosen.shapes.end(),
                    [](const demo::geometry& one) { return one.model == "glm-5"; }));
  CHECK(names(chosen, demo::by_payload) == texts{"fp16"});
  CHECK(names(chosen, demo::by_query_tokens) == texts{"2"});
  CHECK(chosen.levels[demo::by_query_tokens].levels[0].value == 2);
  CHECK(chosen.levels[demo::by_base].levels[0].value == 1);
  CHECK(names(chosen, demo::by_tile) == texts{"16", "8"});
  CHECK(names(parsed("--base two --base e --tile 3 --tile 8"), demo::by_base) == texts{"e"});
}

TEST_CASE("demo: a geometry of the user's own") {
  const demo::options of_model = parsed("--geometry kimi-k3 --tp 12 --dcp 4");
  REQUIRE(of_model.error.empty());
  CHECK(names(of_model, demo::by_geometry) == texts{"kimi-k3 TP12/DCP4"});
  CHECK(of_model.shapes[0].heads == 96);
  const demo::options of_heads = parsed("--heads 10 --tp 5");
  REQUIRE(of_heads.error.empty());
  CHECK(names(of_heads, demo::by_geometry) == texts{"own TP5/DCP5"});
  CHECK(of_heads.shapes[0].heads == 10);
  CHECK(names(parsed("--tp 4"), demo::by_geometry) ==
        texts{"glm-5 TP4/DCP4", "kimi-k3 TP4/DCP4", "deepseek-v3 TP4/DCP4"});
  CHECK(parsed("--heads 64 --tp 8 --no-padding").error.empty());
  CHECK(!parsed("--heads 64 --tp 6 --no-padding").error.empty());
}

TEST_CASE("demo: lengths are a list") {
  CHECK(parsed("--lengths 0,1,4096").lengths == std::vector<headwise::index_t>{0, 1, 4096});
  CHECK(parsed("--lengths 9").lengths == std::vector<headwise::index_t>{9});
  CHECK(parsed("--lengths 9 --lengths 8").lengths == std::vector<headwise::index_t>{8});
  for (const char* bad : {"--lengths ,", "--lengths 1,", "--lengths ,1", "--lengths 1;2"}) {
    CAPTURE(bad);
    CHECK(!parsed(bad).error.empty());
  }
}

TEST_CASE("demo: pages hold whole blocks") {
  CHECK(names(parsed("--interleave 48"), demo::by_page) == texts{"odd"});
  CHECK(names(parsed("--interleave 16"), demo::by_page) == texts{"64", "odd"});
  CHECK(names(parsed("--page 48"), demo::by_interleave) == texts{"1"});
  CHECK(names(parsed("--page 128"), demo::by_interleave) == texts{"1", "64"});
  CHECK(parsed("--page 96 --interleave 48").error.empty());
  CHECK(!parsed("--page 100 --interleave 48").error.empty());
}

TEST_CASE("demo: a setting has the values of its choice") {
  const demo::options chosen = parsed("--geometry kimi-k3 --interleave 64 --cache fp8_ds_mla");
  REQUIRE(chosen.error.empty());
  demo::choice run{};
  run[demo::by_page] = 1;
  run[demo::by_query_tokens] = 1;
  run[demo::by_lse] = 1;
  const demo::setting how = demo::make_setting(chosen.levels, run, chosen.shapes);
  CHECK(how.page == 192);
  CHECK(how.query_tokens == 3);
  CHECK(how.cache == demo::cache_kind::fp8_ds_mla);
  CHECK(how.attention == demo::attention_kind::dense);
  CHECK(how.format.lse == headwise::lse_placement::inline_bits);
  CHECK(how.gathered(0).count() == 99);
  CHECK(how.gathered(0).dummies() == 3);
  CHECK(how.split().round() == 9 * 64);
  CHECK(how.rows() == 3 * static_cast<headwise::index_t>(how.lengths.size()));
  const std::vector<headwise::index_t> wanted{0, 1, 8, 191, 192, 193, 4096};
  for (const headwise::index_t length : wanted) {
    CHECK(std::count(how.lengths.begin(), how.lengths.end(), length) == 1);
  }
}
