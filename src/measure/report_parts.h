// The pictures of a report, each as the data it draws.
#pragma once

#include "measure/report.h"
#include "measure/run_steps.h"

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace tally::measure {

// Six significant digits, or all of a whole number: what no picture shows would only fill the file.
double rounded(double value);
nlohmann::json rounded_array(std::span<const double> values);

inline nlohmann::json why(std::string sentence) { return {{"why", std::move(sentence)}}; }

// Second at which the last request of the run ended, or the last sample or step.
double span_of(const Run& run, const std::vector<RunStep>& steps);

// Columns of requests.jsonl with the figures that follow from it.
nlohmann::json requests_part(const Run& run);
// Empirical distributions {metric: {class: {n, x, share, low, high}}} of TTFT, TPOT, gaps and E2E, in ms.
nlohmann::json distributions_part(std::span<const RequestRecord> requests);
// The requests that took longest, and the median one, by stage.
nlohmann::json slowest_part(const Run& run);

// Running, waiting, KV share, requests under way and arrivals on a grid of time.
nlohmann::json timeline_part(const Run& run, const std::vector<RunStep>& steps);
nlohmann::json memory_part(const Run& run);
// How many gaps between events were how long, when.
nlohmann::json gaps_part(const Run& run);

nlohmann::json steps_part(const Run& run, const std::vector<RunStep>& steps);
nlohmann::json roofline_part(const Run& run, const std::vector<RunStep>& steps);

// The levels of each arm.
nlohmann::json sweep_part(const nlohmann::json& series, std::span<const NamedRun> runs);

}  // namespace tally::measure
