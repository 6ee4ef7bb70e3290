// Every golden script of tests/golden/sched, and proof that the runner can fail.

#include "sched/testing/script.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace tally::sched::testing {
namespace {

constexpr const char* kScripts = "tests/golden/sched";

std::vector<std::filesystem::path> script_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kScripts)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(GoldenScript, EveryCasePasses) {
  size_t cases = 0;
  for (const auto& file : script_files()) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    for (const ScriptCase& script : split_cases(file.filename().string(), text.str())) {
      ++cases;
      EXPECT_EQ(ScriptRunner().run(script), "");
    }
  }
  EXPECT_GE(cases, 25U);
}

// The runner itself must be able to fail.
TEST(GoldenScript, WrongExpectationIsReportedWithLineWantedGotAndLedger) {
  const auto cases =
      split_cases("case", "config pool=4\nsubmit a prompt=16 new=2\nstep\nexpect plan a:p15\n");
  ASSERT_EQ(cases.size(), 1U);
  const std::string report = ScriptRunner().run(cases[0]);
  EXPECT_NE(report.find("line 4"), std::string::npos) << report;
  EXPECT_NE(report.find("wanted: a:p15"), std::string::npos) << report;
  EXPECT_NE(report.find("got:    a:p16"), std::string::npos) << report;
  EXPECT_NE(report.find("ledger: 0:both1/16 1:free"), std::string::npos) << report;
}

TEST(GoldenScript, BadLinesAreReported) {
  for (const char* text :
       {"config bloc=16", "submit a promt=3", "leap", "cancel a", "step x", "expect miracles",
        "submit a prompt=4\nexpect blocks green=1", "fault cosmic ray"}) {
    EXPECT_NE(ScriptRunner().run(split_cases("case", text).at(0)), "") << text;
  }
}

}  // namespace
}  // namespace tally::sched::testing
