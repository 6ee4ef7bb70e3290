// Where the time of a run or of a server went, what bounds it, and what would help: each sentence with its
// evidence.
#pragma once

#include "base/result.h"
#include "measure/explain_requests.h"
#include "measure/explain_steps.h"
#include "measure/roof.h"

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tally::measure {

// What the memory cap cost; absent what is not told.
struct CapAccount {
  std::optional<double> preemptions, recomputed_tokens, refused;
};

// Layers that the server reads from a file in every pass (--weights stream); zeros: none, or not told.
struct StreamedWeights {
  uint64_t layers = 0, pass_bytes = 0;
  double bytes_per_s = 0;  // that it foresaw of the disk
};

// What is known of the server beside its steps.
struct ServerView {
  std::map<std::string, std::string> settings;
  std::string model, kv_type, weight_type;
  std::vector<double> row_cost;  // of the weights' type: [rows - 1] the time of so many rows over that of one
  uint32_t threads = 0;          // 0: not known
  StreamedWeights streamed;

  bool has(const std::string& setting, const std::string& value) const;
  uint32_t number(const std::string& setting) const;  // 0 where there is none
};

struct Sentence {
  std::string text;
  bool is_predicted = false;
  std::string flag;         // to try; "": none
  nlohmann::json evidence;  // the figures behind it
};

struct Explanation {
  std::string subject;  // path or URL
  ServerView server;
  Roofs roofs;               // of the machine; empty: not known
  std::string roofs_source;  // in words
  RoofsInUse in_use;
  StepsAccount steps;
  std::optional<RequestsAccount> requests;  // of a run
  CapAccount cap;
  std::vector<Sentence> sentences;
  std::vector<std::string> doubts;  // what the subject does not tell, and what may make figures wrong
};

// Asked for the roofs of this machine where the subject does not tell its own, and ran here.
using RoofsHere = std::function<std::optional<Roofs>()>;

// Explain a stored run. Errors: those of load_run().
base::Result<Explanation> explain_run(const std::string& directory, const RoofsHere& roofs_here);

// Explain a server, watched for `seconds`; 0: by the steps that its log holds. `go_on` is asked now and then;
// false ends the watch early. Errors: kUsage for the URL, kUnavailable when it does not answer.
struct WatchRequest {
  std::string url, api_key;
  double seconds = 0;
  std::function<bool()> go_on;
};
base::Result<Explanation> explain_server(const WatchRequest& request, const RoofsHere& roofs_here);

// What the rest says, in order of weight.
std::vector<Sentence> sentences_of(const Explanation& explanation);

// `with_steps`: one object for each step with what the roofs ask for it and what bounds it.
nlohmann::json explanation_json(const Explanation& explanation, bool with_steps);

}  // namespace tally::measure
