// Where the time of requests went, by the server's receipts, and who kept whom waiting.
#pragma once

#include "measure/run.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::measure {

// Stages of a receipt, in the order in which a request comes to them. `client`: what the client waited
// beyond.
inline constexpr std::string_view kStageNames[] = {"queue",  "tokenize",   "prefill", "stalled", "decode",
                                                   "sample", "detokenize", "send",    "client"};
inline constexpr size_t kStages = std::size(kStageNames);
using StageTimes = std::array<double, kStages>;  // seconds

struct StageShares {
  uint64_t requests = 0;
  double e2e_s = 0;  // of all of them, from the planned instant
  StageTimes seconds{};
};

// Another request whose prompt was computed while this one waited.
struct Culprit {
  uint32_t id = 0;
  std::string class_name;
  uint32_t prompt_tokens = 0;
  double overlap_s = 0;
};

// What the engine did in a stretch of time.
struct StepsMeanwhile {
  uint64_t steps = 0, prefill_tokens = 0;  // of all sequences, tokens computed again with them
  double wall_s = 0;                       // of the steps, within the stretch
};

// A request with what it waited for.
struct WaitedRequest {
  uint32_t id = 0;
  std::string class_name;
  uint32_t prompt_tokens = 0, output_tokens = 0;
  double planned_s = 0, e2e_s = 0;
  double wait_begin_s = 0, wait_s = 0;  // for the first token, in a gap between tokens, or all of it
  StageTimes stages{};
  uint64_t preemptions = 0;
  std::vector<Culprit> culprits;  // the most overlap first, three at most
  size_t culprits_all = 0;
  std::optional<StepsMeanwhile> engine;  // absent: the clocks are not tied
};

struct RequestsAccount {
  uint64_t completed = 0, with_receipt = 0;
  std::map<std::string, StageShares> by_class;
  StageShares all;
  std::vector<WaitedRequest> worst_ttft, worst_gap, slowest;  // three at most, worst first
};

// Of those that completed; stages of those with a receipt, which is untrusted.
RequestsAccount account_requests(std::span<const RequestRecord> requests);

// Fills what the engine did during each wait. `zero_us`: second 0 of the requests on the clock of the steps'
// t_us.
void add_engine_steps(RequestsAccount& account, std::span<const nlohmann::json> steps, double zero_us);

}  // namespace tally::measure
