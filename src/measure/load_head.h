// run.json of a block of load.
#pragma once

#include "measure/audit.h"
#include "measure/load.h"
#include "measure/load_server.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace tally::measure {

struct HeadQuestion {
  const LoadSpec& spec;
  const KnownServer& server;
  const Workload& workload;
  const LoadBlock& block;  // figures and requests are there
  const Audit& audit;
  std::string started;  // wall clock, ISO 8601
  bool is_stopped = false;
  int64_t start_us = 0;  // second 0 on base::now_us()
  std::optional<ClockTie> tie;
};
nlohmann::json head_of(const HeadQuestion& question);

// "2026-11-30T06:17:36Z"
std::string wall_clock();

const char* arrival_name(Arrival arrival);

}  // namespace tally::measure
