// What is asked: lists of requests that are the same for a seed, whoever answers.
#pragma once

#include "base/result.h"
#include "measure/load.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::measure {

// Common English words; " word" is one token of most vocabularies.
std::span<const std::string_view> common_words();

inline constexpr uint32_t kSaltWords = 8;  // at the start of what is not shared, and part of its length

// A prompt: words of a vocabulary, or what a file has.
struct PlannedRequest {
  uint32_t id = 0;  // the same id is the same request under any seed's order
  std::string class_name, group;
  std::vector<uint32_t> words;  // indices; a server gets their ids, or their text
  std::vector<uint32_t> ids;    // of a file
  std::string text;             // of a file
  uint32_t output_tokens = 0;
  double temperature = 0;  // of a file; above 0 the seed is the id, so that every server draws alike
  double at_s = 0;         // of a trace
  std::string cache_salt;  // prefixes are shared among equal ones only
  bool follows = false;    // a turn of the conversation that the request before in the list is of

  // 0: only the server can tell.
  uint32_t prompt_tokens() const { return static_cast<uint32_t>(words.empty() ? ids.size() : words.size()); }
};

struct Workload {
  std::string name;
  std::vector<PlannedRequest> requests;  // in the order in which they are sent
  bool has_times = false;                // every request has an instant
  bool shares_prefixes = false;          // cached tokens are to be expected
  nlohmann::json classes;                // {name: {share, prompt_tokens, output_tokens, n}}
  std::string sha256() const;            // of the requests
};

// One repetition of a workload over a vocabulary of `words` words. `file` holds the lines when the name is
// one of a file. Requires: words >= 2.
// Errors: kUsage for lengths that cannot be; kBadData with the line of the file.
base::Result<Workload> build_workload(const WorkloadSpec& spec, uint32_t repetition, uint32_t words,
                                      std::string_view file);
bool is_built_in(const std::string& workload_name);

// Lines {"prompt"|"prompt_ids", "max_tokens", "id", "class", "group", "at_s"}. Errors: kBadData.
base::Result<Workload> parse_workload(std::string_view lines, const std::string& name);

}  // namespace tally::measure
