// What a server says of itself before anything is measured, and how requests must look for it.
#pragma once

#include "base/result.h"
#include "measure/client.h"
#include "measure/load.h"
#include "measure/watch.h"
#include "measure/workload.h"

#include <optional>
#include <string>
#include <vector>

namespace tally::measure {

struct KnownServer {
  Endpoint endpoint;
  ServerFacts facts;
  std::optional<int> pid;
  bool has_metrics = false, has_accounts = false;
  std::vector<uint32_t> word_ids;  // of common_words(), kNoId where a word is several tokens; empty: unknown
};
inline constexpr uint32_t kNoId = ~uint32_t{0};

// Errors: kUsage for the URL, kUnavailable when it does not answer or lists no model.
base::Result<KnownServer> meet_server(const ServerAddress& address, const LoadSpec& spec);

// Metrics now; empty where there are none.
ServerMetrics metrics_of(const KnownServer& server);

// What may be looked at from now on.
Windows windows_of(const KnownServer& server);
// How far the clock that stamps the server's steps is ahead of base::now_us(), and by how much that may be
// wrong: half of the quickest of a few round trips.
struct ClockTie {
  int64_t ahead_us = 0, error_us = 0;
};
// Absent: the server stamps no steps.
std::optional<ClockTie> tie_clocks(const KnownServer& server);
// What /v1/accounts tells now; null: nothing.
nlohmann::json accounts_of(const KnownServer& server);
// The steps of pages that were fetched meanwhile, and those since.
std::vector<nlohmann::json> steps_of(const KnownServer& server, uint64_t since,
                                     const std::vector<std::string>& pages);

// POST /reset_prefix_cache. False: the server has no such thing, or does not let us.
bool reset_prefix_cache(const KnownServer& server);

// Prompts are made of these: indices into common_words() that are one token for every server which can tell,
// all words where none can.
std::vector<uint32_t> shared_vocabulary(const std::vector<KnownServer>& servers);

// The bytes of one request to `server`.
std::string completion_request(const KnownServer& server, const LoadSpec& spec,
                               const std::vector<uint32_t>& vocabulary, const PlannedRequest& request);

}  // namespace tally::measure
