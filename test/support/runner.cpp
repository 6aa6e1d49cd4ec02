// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#define DOCTEST_CONFIG_IMPLEMENT
#include <support/runner.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

struct run_record {
  unsigned cases = 0;
  unsigned failed = 0;
  std::vector<std::string> failing;
};

run_record record;

struct recorder : doctest::IReporter {
  explicit recorder(const doctest::ContextOptions&) {}

  void report_query(const doctest::QueryData& query) override {
    record.cases = query.run_stats->numTestCasesPassingFilters;
  }
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    record.cases = stats.numTestCasesPassingFilters;
    record.failed = stats.numTestCasesFailed;
  }
  void test_case_start(const doctest::TestCaseData& data) override { name_ = data.m_name; }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    if (!stats.testCaseSuccess) record.failing.push_back(name_);
  }
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  std::string name_;
};

}  // namespace

REGISTER_LISTENER("record", 1, recorder);

int run_tests(int argc, char** argv, const char* cannot_run) {
  if (cannot_run != nullptr) {
    const char* const query[] = {argv[0], "--count"};
    doctest::Context(2, query).run();
    std::printf("SKIPPED: %s\n0 passed, 0 failed, %u skipped\n", cannot_run, record.cases);
    return 77;
  }
  doctest::Context context(argc, argv);
  context.setOption("no-path-filenames", true);
  const int failed = context.run();
  if (context.shouldExit()) return failed;  // a query such as --list-test-cases
  for (const std::string& name : record.failing) std::printf("FAILED: %s\n", name.c_str());
  std::printf("%u passed, %u failed\n", record.cases - record.failed, record.failed);
  return failed;
}
