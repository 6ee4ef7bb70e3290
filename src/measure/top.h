// What a server does now, for a terminal: looks at it, and draws what was seen.
#pragma once

#include "base/result.h"
#include "measure/client.h"
#include "measure/step_kind.h"
#include "measure/watch.h"

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::measure {

// Cumulative counts by upper edge, of a /metrics page.
using Buckets = std::map<double, double>;
Buckets parse_buckets(std::string_view page, std::string_view name);
// The q-quantile of what came between two looks, straight lines within a bucket. Absent: nothing came.
std::optional<double> bucket_quantile(const Buckets& before, const Buckets& now, double q);

struct TopQuantiles {
  std::string name;
  std::optional<double> p50, p90, p99;  // seconds
};
struct TopAccount {
  std::string name;
  double planned_bytes = 0, reserved_bytes = 0, used_bytes = 0;
};
struct TopStep {
  StepKind kind{};
  double wall_s = 0;
};

// All that is drawn. Absent or empty: this server does not tell.
struct TopState {
  std::string url, model, trouble;  // trouble: why the last look failed, "" if it did not
  double watched_s = 0;
  std::optional<double> running, waiting, kv_usage, preemptions;
  std::optional<double> prefill_per_s, decode_per_s;  // tokens
  std::vector<TopQuantiles> quantiles;                // since the watch began
  std::vector<TopAccount> accounts;
  double measured_bytes = 0, cap_bytes = 0;
  std::string blocks;          // a letter a block: . free, # held, s shared, c cached
  std::vector<TopStep> steps;  // the last ones, oldest first
};

struct TopView {
  size_t columns = 80, rows = 24;
  bool has_colour = false;
};
// At most `rows` lines of at most `columns` columns each, each with a line's end; codes only if colours are
// wanted.
std::string draw_top(const TopState& state, const TopView& view);
// The same in one line, without codes.
std::string top_line(const TopState& state);
nlohmann::json top_json(const TopState& state);

// Asks one server.
class TopWatch {
 public:
  // Errors: kUsage for the URL, kUnavailable where its name has no address.
  static base::Result<TopWatch> open(const std::string& url, const std::string& api_key);

  // Asks for the pages. Errors: kUnavailable when it does not answer; the state keeps what was, and says why.
  base::Result<void> look();
  const TopState& state() const { return state_; }

 private:
  struct Sample {
    double at_s, prompt, generated;
  };
  TopWatch() = default;
  void take_metrics(std::string_view page);
  void take_accounts(std::string_view page);
  void take_blocks(std::string_view page);
  void take_steps(std::string_view page);

  std::unique_ptr<Endpoint> endpoint_;  // the caller points at it
  std::unique_ptr<Caller> caller_;
  Instant begin_{};
  uint64_t looks_ = 0;
  std::map<std::string, Buckets> first_;  // of each histogram, when the watch began
  std::deque<Sample> samples_;            // of the last seconds
  TopState state_;
};

}  // namespace tally::measure
