#include "measure/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

using nlohmann::json;

// Limits of docs/bench-load.md.
constexpr double kLagS = .005, kLagShare = .01;  // the larger one: of the median TTFT
constexpr double kOwnCpu = .1;                   // of a core; of a machine of two cores
constexpr double kTokensWarn = .01, kTokensVoid = .05;
constexpr double kFailed = .001, kSteal = .01, kForeign = .05;
constexpr double kClockStepS = .1;
constexpr double kLengthMin = 10;  // median end-to-end times

double p99(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return quantile(values, .99);
}

json delta(const std::optional<double>& before, const std::optional<double>& after) {
  return before && after ? json(*after - *before) : json(nullptr);
}

class Auditor {
 public:
  explicit Auditor(const AuditQuestion& question) : q_(question) { out_.figures = json::object(); }

  Audit run() {
    check_generator();
    check_requests();
    check_tokens();
    check_machine();
    tell_server();
    return std::move(out_);
  }

 private:
  void require(bool good, std::string reason) {
    if (!good) out_.reasons.push_back(std::move(reason));
  }
  void warn(bool bad, std::string warning) {
    if (bad) out_.warnings.push_back(std::move(warning));
  }

  void check_generator() {
    const double lag_s = std::max(p99(q_.trace.send_lags_s), p99(q_.trace.wake_lags_s));
    const double most_s = std::max(kLagS, kLagShare * q_.figures.ttft_planned.median);
    out_.figures["client_lag_p99_ms"] = lag_s * 1e3;
    require(lag_s <= most_s, fmt::format("the generator was late: P99 {:.1f} ms, at most {:.1f} ms",
                                         lag_s * 1e3, most_s * 1e3));
    const double cores = q_.cpus <= 2 ? q_.cpus : 1;
    const double share = q_.trace.wall_s > 0 ? q_.trace.cpu_s / q_.trace.wall_s / cores : 0;
    out_.figures["client_cpu_s"] = q_.trace.cpu_s;
    out_.figures["client_cpu_share"] = share;
    require(share <= kOwnCpu, fmt::format("the generator took {:.1f} % of {}, at most {:.0f} %", share * 100,
                                          cores > 1 ? "the machine" : "a core", kOwnCpu * 100));
  }

  void check_requests() {
    const Figures& f = q_.figures;
    const double failed = f.requests() > 0 ? static_cast<double>(f.failed) / f.requests() : 0;
    require(f.completed > 0, "no request completed");
    require(failed <= kFailed,
            fmt::format("{} of {} requests failed, at most {:.1f} %", f.failed, f.requests(), kFailed * 100));
    require(!q_.trace.is_stopped, "interrupted");
    warn(f.refused > 0,
         fmt::format("{} of {} requests were refused: latencies are of the others", f.refused, f.requests()));
    const double lengths = f.e2e_planned.median > 0 ? f.duration_s / f.e2e_planned.median : kLengthMin;
    warn(
        lengths < kLengthMin,
        fmt::format("the run is {:.1f} x as long as a request; below {:.0f} x, beginning and end weigh: more "
                    "--requests",
                    lengths, kLengthMin));
  }

  void check_tokens() {
    uint64_t planned = 0, off = 0, wanted = 0, missing = 0, cached = 0, asked = 0, uncounted = 0;
    const auto distance = [](uint32_t a, uint32_t b) { return a > b ? a - b : b - a; };
    for (const RequestRecord& r : q_.trace.requests) {
      if (!r.completed()) continue;
      if (r.prompt_tokens)
        planned += r.prompt_tokens_planned, off += distance(*r.prompt_tokens, r.prompt_tokens_planned);
      if (r.output_tokens)
        wanted += r.output_tokens_planned, missing += distance(*r.output_tokens, r.output_tokens_planned);
      uncounted += !r.output_tokens;
      cached += r.cached_tokens.value_or(0), asked += r.prompt_tokens.value_or(r.prompt_tokens_planned);
    }
    const auto share = [](uint64_t part, uint64_t all) {
      return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0;
    };
    const double prompts = share(off, planned), outputs = share(missing, wanted);
    const auto judge = [&](double value, const char* what) {
      const std::string text = fmt::format("{} are {:.1f} % off what was asked for", what, value * 100);
      if (value > kTokensVoid)
        require(false, fmt::format("{}, at most {:.0f} %", text, kTokensVoid * 100));
      else
        warn(value > kTokensWarn, text);
    };
    if (q_.has_exact_lengths) judge(prompts, "prompt lengths, as the server counts,");
    judge(outputs, "output lengths");
    warn(uncounted > 0,
         fmt::format("{} answers came without usage: their tokens are counted by events", uncounted));
    out_.figures["prompt_tokens_off_ratio"] = prompts;
    out_.figures["output_tokens_off_ratio"] = outputs;
    out_.figures["cached_tokens"] = cached;
    out_.figures["prefix_hit_ratio"] = share(cached, asked);
    require(cached == 0 || q_.shares_prefixes,
            fmt::format("{} prompt tokens came from the server's prefix cache, none was planned", cached));
  }

  void check_machine() {
    const double wall_s = std::max(q_.trace.wall_s, 1e-9), all_s = wall_s * q_.cpus;
    const double steal = (q_.after.machine.steal_s - q_.before.machine.steal_s) / all_s;
    out_.figures["steal_ratio"] = steal;
    require(steal <= kSteal, fmt::format("the hypervisor took {:.1f} % of the machine, at most {:.0f} %",
                                         steal * 100, kSteal * 100));
    const uint64_t swapped = q_.after.machine.swapped_in - q_.before.machine.swapped_in;
    require(swapped == 0, fmt::format("{} pages were swapped in, at most 0", swapped));
    const double step_s = std::abs(q_.after.clock_offset_s - q_.before.clock_offset_s);
    require(step_s <= kClockStepS, fmt::format("the clock was set by {:.1f} s meanwhile", step_s));
    out_.figures["freq_drop_ratio"] = nullptr;
    out_.figures["server_cpu_s"] = nullptr, out_.figures["majflt"] = nullptr;
    out_.figures["foreign_cpu_ratio"] = nullptr;
    warn(!q_.is_local,
         "the server's process is not on this machine, or may not be looked at: memory, its CPU time "
         "and what else ran are not known");
    if (!q_.before.server || !q_.after.server) return;
    const double server_s = q_.after.server->cpu_s - q_.before.server->cpu_s;
    const double busy_s = q_.after.machine.busy_s - q_.before.machine.busy_s;
    const double foreign = std::max(0., busy_s - server_s - q_.trace.cpu_s) / all_s;
    const uint64_t faults = q_.after.server->major_faults - q_.before.server->major_faults;
    out_.figures["server_cpu_s"] = server_s, out_.figures["majflt"] = faults;
    out_.figures["foreign_cpu_ratio"] = foreign;
    require(foreign <= kForeign, fmt::format("other programs took {:.1f} % of the machine, at most {:.0f} %",
                                             foreign * 100, kForeign * 100));
    require(faults == 0,
            fmt::format("the server read memory back from disk {} times (major faults), at most 0", faults));
  }

  void tell_server() {
    const ServerMetrics &before = q_.before.metrics, &after = q_.after.metrics;
    json& out = out_.figures;
    out["preemptions"] = delta(before.preemptions, after.preemptions);
    out["recomputed_tokens"] = delta(before.recomputed_tokens, after.recomputed_tokens);
    out["draft_tokens"] = delta(before.draft_tokens, after.draft_tokens);
    out["accepted_tokens"] = delta(before.accepted_tokens, after.accepted_tokens);
    out["server_prompt_tokens"] = delta(before.prompt_tokens, after.prompt_tokens);
    out["server_prefix_hits"] = delta(before.prefix_hits, after.prefix_hits);
    uint64_t peak = 0;
    for (const MemorySample& m : q_.trace.memory) peak = std::max(peak, m.rss_anon.value_or(0));
    out["peak_rss_anon_bytes"] = peak > 0 ? json(peak) : json(nullptr);
    out["kv_peak_bytes"] = q_.trace.kv_peak_bytes > 0 ? json(q_.trace.kv_peak_bytes) : json(nullptr);
    double sum = 0;
    for (const double share : q_.trace.kv_utilisations) sum += share;
    const size_t n = q_.trace.kv_utilisations.size();
    out["kv_utilisation_mean"] = n > 0 ? json(sum / static_cast<double>(n)) : json(nullptr);
    tell_plan(peak);
  }

  // The plan against what was in use at the peak; unaccounted: the most that was seen.
  void tell_plan(uint64_t peak_bytes) {
    std::optional<int64_t> planned, unaccounted;
    for (const MemorySample& m : q_.trace.memory) {
      if (!m.accounts.is_object()) continue;
      if (m.accounts.contains("planned_bytes")) planned = m.accounts["planned_bytes"].get<int64_t>();
      if (m.accounts.contains("unaccounted_bytes"))
        unaccounted =
            std::max(unaccounted.value_or(INT64_MIN), m.accounts["unaccounted_bytes"].get<int64_t>());
      if (m.accounts.contains("measured_rss_anon_bytes") && !m.rss_anon)
        peak_bytes = std::max(peak_bytes, m.accounts["measured_rss_anon_bytes"].get<uint64_t>());
    }
    json& out = out_.figures;
    const bool is_known = planned && *planned > 0 && peak_bytes > 0;
    out["plan_bytes"] = planned ? json(*planned) : json(nullptr);
    out["plan_error_ratio"] =
        is_known ? json(static_cast<double>(peak_bytes) / static_cast<double>(*planned) - 1) : json(nullptr);
    out["unaccounted_bytes"] = unaccounted ? json(*unaccounted) : json(nullptr);
  }

  const AuditQuestion& q_;
  Audit out_;
};

}  // namespace

Audit audit(const AuditQuestion& question) { return Auditor(question).run(); }

}  // namespace tally::measure
