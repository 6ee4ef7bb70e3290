// One run of a bench: what was asked, what each request saw, and the figures drawn from it.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::measure {

enum class Outcome : uint8_t { kCompleted, kFailed, kRefused, kIncomplete };

// An event of a stream that carried at least one token; role-only chunks are none.
struct TokenEvent {
  double at_s = 0;
  uint32_t tokens = 0;  // 0: the server did not say how many
};

// What the client saw of one request. Seconds since the start of the run, one monotonic clock.
struct RequestRecord {
  uint32_t id = 0;  // the same id is the same prompt in every run of a workload
  std::string class_name, group;
  Outcome outcome = Outcome::kIncomplete;
  int http_status = 0;
  std::string error;     // empty when completed
  double planned_s = 0;  // scheduled instant; closed loop: the instant of sending
  double sent_s = 0;     // first byte of the request written
  double end_s = 0;      // stream ended, or the failure was seen
  std::vector<TokenEvent> events;
  uint32_t prompt_tokens_planned = 0, output_tokens_planned = 0;
  std::optional<uint32_t> prompt_tokens, output_tokens, cached_tokens;  // as the server's usage says
  std::string finish;
  nlohmann::json receipt;  // null when the server sends none

  bool completed() const { return outcome == Outcome::kCompleted; }
};

// A point of the memory curve. Bytes; absent what this server does not tell.
struct MemorySample {
  double at_s = 0;
  std::optional<uint64_t> rss_anon, rss_file, swap;
  nlohmann::json accounts;  // of /v1/accounts, null without
  nlohmann::json load;      // kv_held, kv_cached, kv_free, running, waiting
};

// What a run leaves on disk: run.json holds `head`, the rest are JSON lines beside it.
struct Run {
  nlohmann::json head;  // run.json
  std::vector<RequestRecord> requests;
  std::vector<nlohmann::json> steps;  // of /v1/steps
  std::vector<MemorySample> memory;
};

// Where runs are looked for unless told otherwise.
inline constexpr std::string_view kRunsDirectory = "runs";

// Write `run` as a directory of its own under `parent`: temporary name, synced, renamed.
// Ensures: the path returned is complete, or nothing of that name exists.
// Errors: kIo names the path and what failed.
base::Result<std::string> store_run(const Run& run, const std::string& parent);

// Read a stored run of this schema or an older one. Untrusted bytes: every line is checked.
// Errors: kNoInput for what cannot be read, with the stored runs that may have been meant; kBadData names
// file, line and key.
base::Result<Run> load_run(const std::string& directory);

// The same for run.json alone.
base::Result<nlohmann::json> load_head(const std::string& directory);

// Write `bytes` to a temporary name, sync, rename over `path`. Errors: kIo, with the path.
base::Result<void> replace_file(const std::string& path, std::string_view bytes);

// Paths of the stored runs directly under `directory`, oldest first; empty when there is no such directory.
std::vector<std::string> list_runs(const std::string& directory);

}  // namespace tally::measure
