// How a run is written: run.json, and one JSON object a line in the files beside it.
#pragma once

#include "base/result.h"
#include "measure/run.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
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

// What to say where `path` is no stored run: the run that may have been meant, and the newest ones there.
std::string runs_nearby(const std::string& path);
// kNoInput, with that.
base::Error no_such_run(const std::string& path);

// Check what every reader of run.json relies on: the schema and the types of the keys it knows.
base::Result<void> check_head(const nlohmann::json& head);

// One line; bytes that are no UTF-8 are replaced, not thrown at.
std::string line_of(const nlohmann::json& value);

// `label` as it may stand in a file name everywhere: letters, digits and . _ -; "run" of nothing.
std::string file_word(const std::string& label);

// What untrusted JSON has under a key. Text: "" where there is none.
std::string text_at(const nlohmann::json& object, const char* key);
// A finite number; absent for anything else.
std::optional<double> number_at(const nlohmann::json& object, const char* key);
// A count or a time: 0 where there is none, or less.
double amount_at(const nlohmann::json& object, const char* key);
uint64_t count_at(const nlohmann::json& object, const char* key);
// An object; an empty one where there is none.
const nlohmann::json& object_at(const nlohmann::json& object, const char* key);

}  // namespace tally::measure
