// A load generator for any OpenAI-compatible server: what is sent, when, and what came of it.
#pragma once

#include "base/result.h"
#include "measure/run.h"
#include "measure/summary.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tally::measure {

struct ServerAddress {
  std::string name;  // on pages and in labels; "": host and port
  std::string url;   // http://HOST[:PORT][/PATH], or https
};

enum class Arrival : uint8_t { kPoisson, kGamma, kConstant, kBurst, kTrace };
struct ArrivalSpec {
  Arrival kind = Arrival::kPoisson;
  double burstiness =
      1;               // of kGamma, its shape: the coefficient of variation of a gap is 1 / sqrt(burstiness)
  uint32_t burst = 8;  // of kBurst: requests at one instant
};

// Lengths in tokens. Which fields mean something: docs/bench-load.md.
struct WorkloadSpec {
  std::string name = "mix";  // mix, random, shared-prefix, multi-turn; else a file of JSON lines
  uint32_t requests = 50;    // 0: all of a file
  uint32_t prompt_tokens = 256, output_tokens = 64, prefix_tokens = 512;
  uint32_t groups = 4, turns = 4;
  double spread = .4;  // lengths of prompts are equally spaced over +- this share
  uint64_t seed = 1;
};

// How much at once: users of a closed loop, or requests a second of an open one.
struct Level {
  bool is_open = false;
  double value = 1;

  std::string text() const;  // "8 users", "0.5 requests/s"
};

struct LoadSpec {
  std::vector<ServerAddress> servers;
  WorkloadSpec workload;
  ArrivalSpec arrival;
  std::string model;    // "": the first one the server lists
  std::string api_key;  // "": none
  bool is_chat = false, is_stream = true, keeps_cache = false;
  uint32_t in_flight_max = 0;  // of an open loop; 0: no limit
  double timeout_s = 600;      // of one request
  Slo slo;

  bool has_slo() const { return slo.ttft_s || slo.tpot_s || slo.itl_s || slo.e2e_s; }
};

// Shared with whoever watches from another thread.
struct LoadLive {
  std::atomic<uint32_t> total{0}, ended{0}, failed{0}, running{0};
  std::atomic<uint64_t> events{0};
  std::atomic<bool> stop{false};  // set: what runs is given up, nothing more is sent
};

// A server as it presented itself.
struct ServerFacts {
  std::string name, host, model;
  std::string kind;                           // "tally", or what /v1/models says of the owner
  bool takes_ids = false;                     // prompts go as ids, of exact lengths
  bool is_local = false;                      // its process was found: memory and CPU are known
  nlohmann::json settings;                    // of /v1/settings; null without
  nlohmann::json model_labels, build_labels;  // of /metrics: tally_model_info, tally_build_info; null without
};

// One server under one level, once through the workload.
struct LoadBlock {
  size_t server = 0;
  Level level;
  uint32_t repetition = 0;
  Run run;  // head complete but for label, command and argv
  Figures figures;
  std::map<std::string, Figures> by_class;

  bool is_valid() const { return run.head.value("valid", false); }
};

// Requests of several blocks of one server and level, one after the other in time.
std::vector<RequestRecord> join_blocks(const std::vector<const LoadBlock*>& blocks);

// Which server goes when: A B, B A, A B ... for each repetition.
std::vector<size_t> server_order(size_t servers, uint32_t repetition);

class LoadBench {
 public:
  // Ask every server who it is and what its tokens are; read the workload.
  // Errors: kUsage, kNoInput, kBadData of the spec; kUnavailable for a server that does not answer.
  static base::Result<std::unique_ptr<LoadBench>> open(LoadSpec spec);
  ~LoadBench();

  const std::vector<ServerFacts>& servers() const;
  // What the user should know before numbers come: "words, not ids: ...".
  const std::vector<std::string>& notes() const;

  // A few requests of the same workload under another seed.
  void warm_up(size_t server, LoadLive& live);
  // Clear the server's prefix cache unless it is to be kept, then send the workload. Equal (repetition,
  // level) are equal requests at equal instants on every server.
  LoadBlock run(size_t server, const Level& level, uint32_t repetition, LoadLive& live);

 private:
  struct State;
  explicit LoadBench(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The largest level at which at least 95 % of the requests are good: doubling, then halving the interval.
class CapacitySearch {
 public:
  explicit CapacitySearch(const Level& first);
  std::optional<Level> next() const;  // null: found
  void tell(const Figures& figures);  // of `next()`
  // Null: not even the first level is good enough (or nothing was told).
  std::optional<Level> knee() const;
  bool is_bounded() const { return worst_.has_value(); }  // a level that is too much was met

 private:
  Level level_;  // the next one
  std::optional<double> best_, worst_;
  uint32_t steps_ = 0;
};

}  // namespace tally::measure
