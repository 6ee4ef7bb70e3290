// How a run is written: run.json, and one JSON object a line in the files beside it.
#pragma once

#include "base/result.h"
#include "measure/run.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tally::measure {

// Never reused for another meaning; a reader takes its own and all older ones.
inline constexpr int64_t kSchema = 1;

inline constexpr const char* kHeadFile = "run.json";
inline constexpr const char* kRequestsFile = "requests.jsonl";
inline constexpr const char* kStepsFile = "steps.jsonl";
inline constexpr const char* kMemoryFile = "memory.jsonl";

// A line of requests.jsonl. Figures that follow from the rest (first_s, ttft_s, ...) stand there for other
// readers; the parser leaves them alone.
nlohmann::json request_json(const RequestRecord& request);
// Errors: kBadData with the key, what it has and what is allowed.
base::Result<RequestRecord> parse_request(const nlohmann::json& line);

// A line of memory.jsonl.
nlohmann::json memory_json(const MemorySample& sample);
base::Result<MemorySample> parse_memory(const nlohmann::json& line);

// Parse one JSON object from untrusted bytes. Errors: kBadData for what is no JSON, no object, or nested
// deeper than anything a run holds.
base::Result<nlohmann::json> parse_object(std::string_view bytes);

// The same of a whole file of at most 64 MiB. Errors: kNoInput, kBadData, with the path.
base::Result<nlohmann::json> load_object(const std::string& path);

// Write `bytes` to a temporary name, sync, rename over `path`. Errors: kIo, with the path.
base::Result<void> replace_file(const std::string& path, std::string_view bytes);

// Check what every reader of run.json relies on: the schema and the types of the keys it knows.
base::Result<void> check_head(const nlohmann::json& head);

// One line; bytes that are no UTF-8 are replaced, not thrown at.
std::string line_of(const nlohmann::json& value);

// A string of run.json, "" where there is none: text_at(head, "label").
std::string text_at(const nlohmann::json& head, const char* key);

}  // namespace tally::measure
