// One variable at a time from a baseline: what each change does to speed, memory and quality.
//
// A round runs every arm once, in random order, on the same request list; the next round has another list.
// Any two arms of a round are a pair, so one round serves every contrast there is: each value against the
// base, each step of a ladder against the one before and against the base, and the interaction of two
// changes.
#pragma once

#include "base/result.h"
#include "measure/compare.h"
#include "measure/greedy_answers.h"
#include "measure/run.h"

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tally::measure {

using Flags = std::map<std::string, std::string>;  // "kv-type" -> "int8"

struct Change {
  std::string name;
  Flags set;
};

// What a file asks for. docs/ablate.md is its grammar.
struct AblateFile {
  std::string path;                                               // its own
  std::string label = "ablate", model;                            // model: "" where the file names none
  uint32_t rounds = 0;                                            // 0: as many as the verdicts need
  Flags load, eval;                                               // of bench load and of eval kld
  Flags base;                                                     // of serve, as is all that follows
  std::vector<Change> vary;                                       // each against the base
  std::vector<Change> ladder;                                     // each on top of those before
  std::vector<std::pair<std::string, std::string>> interactions;  // names of two changes
};

// Untrusted bytes. Errors: kNoInput; kBadData and kUsage name the file, the key's path, its value and what is
// allowed.
base::Result<AblateFile> load_ablate_file(const std::string& path);

// A configuration of the server.
struct Arm {
  std::string name;
  Flags flags;     // as they are given
  Flags settings;  // the effective value of every setting
};

struct Contrast {
  size_t from = 0, to = 0;  // arms
};

// Whether two changes together give more or less than the product of each alone.
struct Interaction {
  std::string first_name, second_name;
  size_t first = 0, second = 0, both = 0;  // arms with one of them, and with both, over the base
};

struct AblateDesign {
  std::vector<Arm> arms;  // the first is the base
  std::vector<Contrast> contrasts;
  std::vector<Interaction> interactions;
  std::vector<std::string> notes;  // what was asked for and is no arm
};

// The effective settings of a server that is started with these flags. Errors: kUsage names the flag, the
// value and what is allowed.
using ResolveFlags = std::function<base::Result<Flags>(const Flags& flags)>;

// Errors: kUsage with the path of the key: an unknown flag or value, a name twice, nothing that varies.
base::Result<AblateDesign> ablate_design(const AblateFile& file, const ResolveFlags& resolve);

// Whether Law 1 wants the same bits of both: no setting differs that may change numbers.
bool must_give_equal_bits(const Arm& a, const Arm& b);

// Pairs that a family of `tests` tests needs for p = .05, at least the standard 8.
uint32_t rounds_for(size_t tests);

// Runs one arm once. The seam between what is asked and how a server is made to answer it.
class ArmRunner {
 public:
  // Equal rounds are equal requests. Errors end the ablation.
  virtual base::Result<Run> run(size_t arm, uint32_t round) = 0;
  virtual bool is_stopped() const = 0;        // asked after each run: what was under way counts for nothing
  virtual void on_round(uint32_t round) = 0;  // it is complete

 protected:
  ~ArmRunner() = default;
};

// The arms of a round in the order they run in: each order is as likely as any other.
std::vector<size_t> round_order(size_t arms, uint64_t seed, uint32_t round);

// Appends complete rounds, by arm, to `done`: fewer than `rounds` when the runner was stopped or failed. A
// run that is not valid by its own audit (the machine was busy) is made again, at most twice.
base::Result<void> run_rounds(size_t arms, uint32_t rounds, uint64_t seed, ArmRunner& runner,
                              std::vector<std::vector<Run>>& done);

// What is known of an arm beside its runs.
struct ArmFacts {
  struct Quality {
    double kld = 0, kld_low = 0, kld_high = 0;  // nats a token, of the KV type against f32 KV
    double same_top = 0;                        // share of positions with the same likeliest token
  };
  std::vector<GreedyAnswer> answers;  // of the same requests
  std::optional<uint64_t> kv_bytes_per_token, planned_bytes;
  std::optional<Quality> quality;
};

// A figure of an arm: the median over rounds of what the runs say. Seconds, a second, bytes; by name.
using ArmFigures = std::map<std::string, double>;

struct ContrastResult {
  Contrast arms;
  Comparison comparison;
  bool equal_bits_wanted = false;
  size_t answers = 0, equal_answers = 0, equal_texts = 0;  // answers: of both arms; equal: in every bit
};

// Of one metric: exp of the difference of log ratios, first -> both against base -> second; better is > 1.
struct InteractionMetric {
  std::string name;
  double first = 1, second = 1, both = 1;  // ratios against the base
  double ratio = 1;                        // 1: the effects multiply
  std::optional<double> low, high;         // 95 %
  double p = 1;                            // sign flips, of this alone: no verdict hangs on it
};

struct InteractionResult {
  Interaction arms;
  std::vector<InteractionMetric> metrics;
};

struct Ablation {
  AblateDesign design;
  size_t rounds = 0, tests = 0;  // tests: the family that Holm's adjustment is over
  std::vector<ArmFacts> facts;   // by arm
  std::vector<ArmFigures> figures;
  std::vector<ContrastResult> contrasts;
  std::vector<InteractionResult> interactions;
  std::vector<std::string> warnings;
  Verdict verdict = Verdict::kUndecided;  // the gravest of the contrasts
};

// Requires: at least one round; facts of every arm. Errors: those of compare_runs.
base::Result<Ablation> analyse(const AblateDesign& design, std::span<const std::vector<Run>> rounds,
                               std::vector<ArmFacts> facts, const Noise* noise);

// The object `results` of run.json and of --json.
nlohmann::json ablation_json(const Ablation& ablation);
// The whole as a run to be stored; `first` is one of the base's.
Run ablation_run(const Ablation& ablation, const Run& first);
// The ratios with their intervals and margins as a self-contained SVG, light and dark.
std::string forest_svg(const Ablation& ablation, const std::string& title);

}  // namespace tally::measure
