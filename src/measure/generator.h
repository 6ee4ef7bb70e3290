// One thread and one epoll: sends a list of requests to one server and notes what comes back, and when.
#pragma once

#include "measure/client.h"
#include "measure/load.h"
#include "measure/watch.h"
#include "measure/workload.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tally::measure {

struct BlockSpec {
  const Endpoint& endpoint;
  const Workload& workload;
  // The bytes of a request, made before it is due.
  std::function<std::string(const PlannedRequest&)> bytes_of;
  uint32_t users = 0;              // of a closed loop; 0: open
  std::vector<double> arrivals_s;  // of an open loop: of every request that follows none
  uint32_t in_flight_max = 0;      // of an open loop; 0: no limit. Who waits for a place waits on the clock
  double timeout_s = 600;
  bool is_stream = true;
  Windows windows = {};  // through which the server is watched
};

// What came of it, and what measuring cost.
struct BlockTrace {
  std::vector<RequestRecord> requests;  // those that were sent
  std::vector<MemorySample> memory;
  std::vector<std::string> step_pages;  // of /v1/steps
  std::vector<double> kv_utilisations;
  uint64_t kv_peak_bytes = 0;
  std::vector<double> send_lags_s;  // from the instant a request was due to its sending; open loop
  std::vector<double> wake_lags_s;  // how late a timer each 10 ms ran: what an event on a socket waits, too
  double wall_s = 0, cpu_s = 0;
  int64_t start_us = 0;     // second 0 on base::now_us()
  bool is_stopped = false;  // before its end
};

// Requires: users, or an arrival for each request that follows none.
BlockTrace run_block(const BlockSpec& spec, LoadLive& live);

}  // namespace tally::measure
