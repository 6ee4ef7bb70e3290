// The figures of requests: what each one saw, and what a list of them comes to.
#pragma once

#include "measure/quantile.h"
#include "measure/run.h"

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tally::measure {

// Limits of one request. It is good when it completed and met all that are set.
struct Slo {
  std::optional<double> ttft_s;  // from the planned instant
  std::optional<double> tpot_s;
  std::optional<double> itl_s;  // the largest gap of the request
  std::optional<double> e2e_s;  // from the planned instant
};

// One request that completed. With o planned, s sent, f / l first / last event, n output tokens:
struct RequestFigures {
  uint32_t tokens = 0;                // n: the server's usage; else what the events say; else their number
  std::optional<double> ttft_s;       // f - o
  std::optional<double> ttft_sent_s;  // f - s
  std::optional<double> ttst_s;       // second event - f
  std::optional<double> tpot_s;       // (l - f) / (n - 1); absent for n = 1
  std::optional<double> itl_max_s;    // largest gap
  std::optional<double> e2e_s;        // l - o; l: the end, of an answer without events
  std::optional<double> e2e_sent_s;   // l - s
  std::optional<double> ntpot_s;      // (l - o) / n
  std::optional<double> speed;        // 1 / tpot: tokens a second that one user sees
  std::optional<double> stall_s;      // sum of max(0, gap - 3 x median gap)
  std::vector<double> chunk_gaps_s;   // between successive events
};

// Ensures: nothing but `tokens` for a request that did not complete; one that brought no event came in one
// piece at its end, and has tokens, e2e and ntpot.
RequestFigures request_figures(const RequestRecord& request);

bool meets(const RequestRecord& request, const Slo& slo);
// Share of requests that have to meet it, for a load to be called borne.
inline constexpr double kGoodShare = .95;

// Share of the request's tokens that arrived before their deadline f + k x itl_s, k = 0 for the first.
// Absent as above. Source: arXiv 2407.07000 (a mean gap hides stalls, this does not).
std::optional<double> fluidity(const RequestRecord& request, double itl_s);

// A part of a run, seconds since its start.
struct Window {
  double from_s = 0, to_s = 0;
  double length_s() const { return to_s - from_s; }
};

// What a list of requests comes to. Latencies and tokens: of those that completed; rates: over duration_s.
struct Figures {
  uint32_t completed = 0, failed = 0, refused = 0, incomplete = 0;
  uint64_t input_tokens = 0, output_tokens = 0;
  double duration_s = 0;  // first planned instant to the last end, or the window's
  double request_throughput = 0, output_throughput = 0, total_token_throughput = 0;  // 0 without a duration
  double max_output_tokens_per_s = 0;                                                // the best second
  uint32_t max_concurrent_requests = 0;
  std::optional<double> goodput, goodput_tokens;  // good requests, and their tokens, a second; with an SLO
  std::optional<double> fluidity;                 // share of all tokens; with an SLO on gaps
  double stall_s = 0;
  // Seconds. `ttft` and `e2e` from sending, `_planned` from the scheduled instant; itl: all gaps, pooled.
  Distribution ttft, ttft_planned, tpot, itl, itl_max, e2e, e2e_planned;

  uint32_t requests() const { return completed + failed + refused + incomplete; }
};

Figures figures_of(std::span<const RequestRecord> requests, const Slo* slo = nullptr);

// Requests of several runs, one run after the other in time.
std::vector<RequestRecord> join_requests(std::span<const std::vector<RequestRecord>* const> runs);

// Of each class; rates over the span of the whole run, so that they add up to its own.
std::map<std::string, Figures> figures_by_class(std::span<const RequestRecord> requests,
                                                const Slo* slo = nullptr);

// From the first instant at which in-flight reaches its median (over time) to the last arrival.
// Absent where that is no stretch of time: a burst, one request.
std::optional<Window> steady_window(std::span<const RequestRecord> requests);

// Of the requests that arrived in the window; tokens and ends are counted where they fall into it.
Figures figures_within(std::span<const RequestRecord> requests, const Window& window,
                       const Slo* slo = nullptr);

// The part of `results` of run.json that requests tell; milliseconds where the key says so. What is absent
// is null. `ci95`: for each percentile [low, high], null where n is too small for a bound; `n`: of each
// distribution.
nlohmann::json results_json(const Figures& figures);

}  // namespace tally::measure
