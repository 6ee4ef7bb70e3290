#pragma once
// Golden scripts: a scheduler case as text. docs/scheduler.md has the grammar. Test support, not in the
// product.

#include "sched/testing/rig.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tally::sched::testing {

// One line, cut into words. "key=value" words are found by key.
struct ScriptLine {
  size_t number = 0;
  std::string text;
  std::vector<std::string> words;
};

struct ScriptCase {
  std::string name;  // file and first line
  std::vector<ScriptLine> lines;
};

// Splits a file into cases: a blank line ends a case; comments are cut, lines of comments only do not count.
std::vector<ScriptCase> split_cases(const std::string& file, const std::string& text);

class ScriptRunner {
 public:
  // Runs one case. Empty: it passed; else the line, what was wanted and got, and the ledger.
  std::string run(const ScriptCase& script);

 private:
  void execute(const ScriptLine& line);
  void configure(const ScriptLine& line);
  void submit(const ScriptLine& line);
  void fault(const ScriptLine& line);
  void step();
  void run_until_idle(uint64_t steps_max);
  void expect(const ScriptLine& line);
  void expect_blocks(const ScriptLine& line);
  std::string plan_text() const;
  std::string state_text(SeqId seq) const;
  std::string counter_text(const std::string& name) const;
  void finish();

  void want(const std::string& wanted, const std::string& got);
  void bad(const std::string& what);
  uint64_t number(const std::string& text);
  SeqId id(const std::string& name);
  std::string name(SeqId seq) const;
  std::string ledger_text() const;

  std::unique_ptr<Rig> rig_;
  std::map<std::string, SeqId> ids_;
  std::map<std::string, Admission> refused_;
  std::vector<std::string> names_;  // of SeqId 1, 2, ...
  StepFaults faults_;
  uint32_t block_tokens_ = 16;
  Tick now_ = 1;
  std::string error_;
};

}  // namespace tally::sched::testing
