// Which of two is better, and how sure is that: pairs of runs, differences first, one word at the end.
#pragma once

#include "base/result.h"
#include "measure/run.h"
#include "measure/verdict.h"

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tally::measure {

// A and B on the same requests, one right after the other.
struct RunPair {
  const Run* a = nullptr;
  const Run* b = nullptr;
};

// How much pairs of one configuration against itself differ on a machine.
struct Noise {
  std::string machine, workload;  // fingerprint and name it was measured with
  size_t pairs = 0;
  std::map<std::string, double> sd;  // of the log ratio of a pair, by metric
};

// One line of the table. Ratios: better is > 1, B against A.
struct ComparedMetric {
  std::string name;        // ttft tpot e2e output_throughput request_goodput peak_memory ttft_p95 ...
  std::string class_name;  // "": all
  std::string unit;        // of `a` and `b`, where the kind does not say it
  MetricKind kind = MetricKind::kLatency;
  bool judged = false;  // has a verdict; the others are there to be looked at
  size_t pairs = 0;     // that have it
  double a = 0, b = 0;  // median over pairs of what the runs say: seconds, a second, bytes
  double ratio = 1;
  std::optional<double> low, high;     // 95 %; absent with fewer pairs than bound anything
  double p = 1, p_holm = 1;            // sign flips; Holm over the judged
  std::optional<double> cliffs_delta;  // of all requests, > 0: B better
  std::optional<double> detectable;    // smallest ratio > 1 that this machine shows with so many pairs
  Verdict verdict = Verdict::kUndecided;
  std::optional<size_t> pairs_needed;  // when undecided; absent: out of reach
  std::vector<double> pair_ratios;
};

// A condition without which numbers say nothing.
struct Gate {
  std::string what, value, limit;
  bool passed = true;
};

struct ChangedSetting {
  std::string name, a, b;
};

struct Comparison {
  size_t pairs = 0, requests = 0;  // requests: completed in both, all pairs
  std::vector<ComparedMetric> metrics;
  std::vector<Gate> gates;
  std::vector<ChangedSetting> changes;  // of the servers' settings, and the build
  std::vector<std::string> warnings;
  Verdict verdict = Verdict::kUndecided;  // of all metrics together
};

// `noise`: of this machine; null: it was not calibrated. Requires: 1 to 40 pairs.
// Errors: kUsage for too many; kBadData where the runs of a pair have no completed request in common, or an
// id twice.
base::Result<Comparison> compare_runs(std::span<const RunPair> pairs, const Noise* noise);

// The same of runs of one bench without a server (bench engine, kernel, attention), row by row. Of one pair
// of runs the repetitions are the evidence, of several the runs. Requires: 1 to 40 pairs. Errors: kUsage for
// runs of different commands; kBadData for a row that is none, or without one in common.
base::Result<Comparison> compare_benches(std::span<const RunPair> pairs);
// Whether a run is one of those.
bool is_bench(const Run& run);

// Judge the metrics of several comparisons anew as one family of tests: Holm over all of them. Gates and what
// is detectable are taken as they stand.
void judge_together(std::span<Comparison* const> comparisons);

// Most anonymous memory of the server, bytes: as the run says, else as it was sampled.
std::optional<double> peak_memory(const Run& run);

// That of its verdict.
int exit_code(const Comparison& comparison);

nlohmann::json comparison_json(const Comparison& comparison);

// What a comparison of one configuration with itself says of the machine. Requires: >= 2 pairs.
Noise noise_of(const Comparison& comparison, const Run& run);
nlohmann::json noise_json(const Noise& noise);
// Its file, unless another is named: beside the stored run, one for each machine.
std::string noise_path(const Run& run, const std::string& run_directory);
// Errors: kIo names the path.
base::Result<void> store_noise(const Noise& noise, const std::string& path);
// Errors: kNoInput for what cannot be read; kBadData names the key.
base::Result<Noise> load_noise(const std::string& path);

// Directories of the runs that face each other.
struct PairPaths {
  std::vector<std::pair<std::string, std::string>> pairs;
  bool same = false;  // A/A: both arms are one configuration
};

// `arguments`: A B, or A1 B1 A2 B2 ..., stored runs; or two directories of runs, matched by label where the
// labels are the same and by order of time where not; or the same directory of runs twice: each run against
// the next.
// Errors: kUsage, kNoInput say what does not fit.
base::Result<PairPaths> pair_paths(std::span<const std::string> arguments);

}  // namespace tally::measure
