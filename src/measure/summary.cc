#include "measure/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tally::measure {
namespace {

using nlohmann::json;
using Requests = std::vector<const RequestRecord*>;

constexpr double kStallGaps = 3;  // a gap stalls by what it exceeds that many median gaps

uint32_t output_tokens(const RequestRecord& request) {
  if (request.output_tokens) return *request.output_tokens;
  uint32_t said = 0;
  for (const TokenEvent& event : request.events) said += event.tokens;
  return std::max(said, static_cast<uint32_t>(request.events.size()));
}

uint32_t prompt_tokens(const RequestRecord& request) {
  return request.prompt_tokens.value_or(request.prompt_tokens_planned);
}

// Tokens of each event. Where the events do not say, or say another number than n, each has its share.
std::vector<double> event_tokens(const RequestRecord& request) {
  const auto n = static_cast<double>(output_tokens(request));
  std::vector<double> out;
  double said = 0;
  bool all = true;
  for (const TokenEvent& event : request.events) {
    out.push_back(event.tokens);
    said += event.tokens;
    all &= event.tokens > 0;
  }
  for (double& tokens : out) tokens = all ? tokens * n / said : n / static_cast<double>(out.size());
  return out;
}

struct Change {
  double at_s;
  int by;
};

// Arrivals and ends in order of time; at one instant ends come first.
std::vector<Change> in_flight_changes(const Requests& requests) {
  std::vector<Change> out;
  for (const RequestRecord* r : requests) {
    out.push_back({r->planned_s, 1});
    out.push_back({std::max(r->end_s, r->planned_s), -1});
  }
  std::sort(out.begin(), out.end(), [](const Change& a, const Change& b) {
    return std::pair(a.at_s, a.by) < std::pair(b.at_s, b.by);
  });
  return out;
}

Requests all_of(std::span<const RequestRecord> requests) {
  Requests out;
  for (const RequestRecord& r : requests) out.push_back(&r);
  return out;
}

Window span_of(const Requests& requests) {
  if (requests.empty()) return {};
  Window out{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const RequestRecord* r : requests) {
    out.from_s = std::min(out.from_s, r->planned_s);
    out.to_s = std::max({out.to_s, r->end_s, r->planned_s});
  }
  return out;
}

uint32_t most_in_flight(const Requests& requests) {
  int now = 0, most = 0;
  for (const Change& change : in_flight_changes(requests)) most = std::max(most, now += change.by);
  return static_cast<uint32_t>(most);
}

// Adds up what a list of requests comes to, one after the other.
class Sums {
 public:
  Sums(const Window& window, const Slo* slo) : window_(window), slo_(slo) {
    seconds_.resize(static_cast<size_t>(std::clamp(window.length_s(), 0., kSecondsMax)) + 1);
  }

  void count_outcome(const RequestRecord& r) {
    switch (r.outcome) {
      case Outcome::kCompleted:
        ++out_.completed;
        break;
      case Outcome::kFailed:
        ++out_.failed;
        break;
      case Outcome::kRefused:
        ++out_.refused;
        break;
      case Outcome::kIncomplete:
        ++out_.incomplete;
        break;
    }
  }

  void add_latencies(const RequestRecord& r) {
    const RequestFigures f = request_figures(r);
    const auto keep = [](std::vector<double>& to, const std::optional<double>& value) {
      if (value) to.push_back(*value);
    };
    keep(ttft_, f.ttft_sent_s), keep(ttft_planned_, f.ttft_s), keep(tpot_, f.tpot_s);
    keep(e2e_, f.e2e_sent_s), keep(e2e_planned_, f.e2e_s), keep(itl_max_, f.itl_max_s);
    gaps_.insert(gaps_.end(), f.chunk_gaps_s.begin(), f.chunk_gaps_s.end());
    out_.stall_s += f.stall_s.value_or(0);
    if (slo_ == nullptr || !slo_->itl_s) return;
    if (const auto share = measure::fluidity(r, *slo_->itl_s)) {
      fluid_tokens_ += *share * f.tokens;
      judged_tokens_ += f.tokens;
    }
  }

  // What falls into the window of the tokens and the end of a request that completed.
  void add_work(const RequestRecord& r) {
    if (!r.completed()) return;
    if (inside(r.end_s)) {
      ++ends_;
      if (slo_ != nullptr && meets(r, *slo_)) ++good_, good_tokens_ += output_tokens(r);
    }
    if (inside(r.events.empty() ? r.end_s : r.events.front().at_s)) out_.input_tokens += prompt_tokens(r);
    const std::vector<double> tokens = event_tokens(r);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!inside(r.events[i].at_s)) continue;
      tokens_ += tokens[i];
      const double second = std::clamp(r.events[i].at_s - window_.from_s, 0., kSecondsMax);
      seconds_[std::min(seconds_.size() - 1, static_cast<size_t>(second))] += tokens[i];
    }
    if (tokens.empty() && inside(r.end_s)) tokens_ += output_tokens(r);
  }

  Figures figures() {
    Figures& f = out_;
    f.output_tokens = static_cast<uint64_t>(std::llround(tokens_));
    f.duration_s = window_.length_s();
    f.max_output_tokens_per_s = *std::max_element(seconds_.begin(), seconds_.end());
    const auto rate = [&](double sum) { return f.duration_s > 0 ? sum / f.duration_s : 0; };
    f.request_throughput = rate(ends_);
    f.output_throughput = rate(tokens_);
    f.total_token_throughput = rate(tokens_ + static_cast<double>(f.input_tokens));
    if (slo_ != nullptr) f.goodput = rate(good_), f.goodput_tokens = rate(good_tokens_);
    if (judged_tokens_ > 0) f.fluidity = fluid_tokens_ / judged_tokens_;
    f.ttft = distribution_of(std::move(ttft_)), f.ttft_planned = distribution_of(std::move(ttft_planned_));
    f.e2e = distribution_of(std::move(e2e_)), f.e2e_planned = distribution_of(std::move(e2e_planned_));
    f.tpot = distribution_of(std::move(tpot_)), f.itl = distribution_of(std::move(gaps_));
    f.itl_max = distribution_of(std::move(itl_max_));
    return std::move(out_);
  }

 private:
  static constexpr double kSecondsMax = 1e6;  // a longer run keeps no second by second count of its rest

  bool inside(double at_s) const { return at_s >= window_.from_s && at_s <= window_.to_s; }

  Window window_;
  const Slo* slo_;
  Figures out_;
  double tokens_ = 0, ends_ = 0, good_ = 0, good_tokens_ = 0, fluid_tokens_ = 0, judged_tokens_ = 0;
  std::vector<double> seconds_, ttft_, ttft_planned_, tpot_, gaps_, itl_max_, e2e_, e2e_planned_;
};

Figures figures_over(const Requests& requests, const Window& window, const Slo* slo) {
  Sums sums(window, slo);
  for (const RequestRecord* r : requests) {
    sums.count_outcome(*r);
    if (r->completed()) sums.add_latencies(*r);
    sums.add_work(*r);
  }
  Figures out = sums.figures();
  out.max_concurrent_requests = most_in_flight(requests);
  return out;
}

json bound(const std::optional<double>& value, double scale) {
  return value ? json(*value * scale) : json(nullptr);
}

// {mean,median,max,std,p50,...}_<name>_ms beside the bounds of the percentiles.
void put_distribution(json& out, const char* name, const Distribution& d) {
  constexpr double kMs = 1e3;
  const auto value = [&](double seconds) { return d.n > 0 ? json(seconds * kMs) : json(nullptr); };
  out[fmt::format("mean_{}_ms", name)] = value(d.mean);
  out[fmt::format("median_{}_ms", name)] = value(d.median);
  out[fmt::format("max_{}_ms", name)] = value(d.max);
  out[fmt::format("std_{}_ms", name)] = d.n > 1 ? value(d.std) : json(nullptr);
  for (const Percentile* p : {&d.p50, &d.p90, &d.p95, &d.p99}) {
    const std::string key = fmt::format("p{}_{}_ms", std::lround(p->q * 100), name);
    if (d.n == 0) continue;
    out[key] = p->value * kMs;
    out["ci95"][key] = {bound(p->low, kMs), bound(p->high, kMs)};
  }
  out["n"][name] = d.n;
}

}  // namespace

RequestFigures request_figures(const RequestRecord& r) {
  RequestFigures out;
  out.tokens = output_tokens(r);
  if (!r.completed()) return out;
  if (r.events.empty()) {  // an answer in one piece
    out.e2e_s = r.end_s - r.planned_s;
    out.e2e_sent_s = r.end_s - r.sent_s;
    if (out.tokens > 0) out.ntpot_s = *out.e2e_s / out.tokens;
    return out;
  }
  const double first = r.events.front().at_s, last = r.events.back().at_s;
  out.ttft_s = first - r.planned_s;
  out.ttft_sent_s = first - r.sent_s;
  out.e2e_s = last - r.planned_s;
  out.e2e_sent_s = last - r.sent_s;
  if (out.tokens > 0) out.ntpot_s = *out.e2e_s / out.tokens;
  if (out.tokens > 1) out.tpot_s = (last - first) / (out.tokens - 1);
  if (out.tpot_s && *out.tpot_s > 0) out.speed = 1 / *out.tpot_s;
  for (size_t i = 1; i < r.events.size(); ++i)
    out.chunk_gaps_s.push_back(r.events[i].at_s - r.events[i - 1].at_s);
  if (out.chunk_gaps_s.empty()) return out;
  out.ttst_s = out.chunk_gaps_s.front();
  out.itl_max_s = *std::max_element(out.chunk_gaps_s.begin(), out.chunk_gaps_s.end());
  const double usual = kStallGaps * median_of(out.chunk_gaps_s);
  out.stall_s = 0;
  for (const double gap : out.chunk_gaps_s) *out.stall_s += std::max(0., gap - usual);
  return out;
}

bool meets(const RequestRecord& request, const Slo& slo) {
  if (!request.completed()) return false;
  const RequestFigures f = request_figures(request);
  const auto within = [](const std::optional<double>& value, const std::optional<double>& limit) {
    return !limit || !value || *value <= *limit;
  };
  // Completed without an event (an answer in one piece): only its end can be judged.
  const std::optional<double> e2e = f.e2e_s ? f.e2e_s : std::optional(request.end_s - request.planned_s);
  return within(f.ttft_s, slo.ttft_s) && within(f.tpot_s, slo.tpot_s) && within(f.itl_max_s, slo.itl_s) &&
         within(e2e, slo.e2e_s);
}

std::optional<double> fluidity(const RequestRecord& request, double itl_s) {
  if (!request.completed() || request.events.empty() || itl_s <= 0) return std::nullopt;
  const double first = request.events.front().at_s;
  const std::vector<double> tokens = event_tokens(request);
  double before = 0, in_time = 0;  // tokens before this event; tokens within their deadline
  for (size_t i = 0; i < tokens.size(); ++i) {
    // Token k is in time when k >= late: of those that arrive together the later ones have more time.
    const double late = (request.events[i].at_s - first) / itl_s;
    // 1e-9: the deadline itself is in time, whatever the division rounds to.
    const double missed = std::clamp(std::ceil(late - before - 1e-9), 0., tokens[i]);
    in_time += tokens[i] - missed;
    before += tokens[i];
  }
  return before > 0 ? std::optional(in_time / before) : std::nullopt;
}

Figures figures_of(std::span<const RequestRecord> requests, const Slo* slo) {
  const Requests all = all_of(requests);
  return figures_over(all, span_of(all), slo);
}

std::vector<RequestRecord> join_requests(std::span<const std::vector<RequestRecord>* const> runs) {
  std::vector<RequestRecord> out;
  double offset_s = 0;
  for (const std::vector<RequestRecord>* run : runs) {
    double end_s = 0;
    for (RequestRecord r : *run) {
      end_s = std::max(end_s, r.end_s);
      r.planned_s += offset_s, r.sent_s += offset_s, r.end_s += offset_s;
      for (TokenEvent& event : r.events) event.at_s += offset_s;
      out.push_back(std::move(r));
    }
    offset_s += end_s;
  }
  return out;
}

std::map<std::string, Figures> figures_by_class(std::span<const RequestRecord> requests, const Slo* slo) {
  std::map<std::string, Requests> classes;
  for (const RequestRecord& r : requests) classes[r.class_name].push_back(&r);
  const Window run = span_of(all_of(requests));
  std::map<std::string, Figures> out;
  for (const auto& [name, members] : classes) out.emplace(name, figures_over(members, run, slo));
  return out;
}

std::optional<Window> steady_window(std::span<const RequestRecord> requests) {
  const std::vector<Change> changes = in_flight_changes(all_of(requests));
  if (changes.empty()) return std::nullopt;
  std::map<int, double> seconds_at;  // in-flight -> how long
  int now = 0;
  double total_s = 0;
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    now += changes[i].by;
    const double length = changes[i + 1].at_s - changes[i].at_s;
    seconds_at[now] += length;
    total_s += length;
  }
  int median = 0;
  double below_s = 0;
  for (const auto& [in_flight, seconds] : seconds_at) {
    median = in_flight;
    if ((below_s += seconds) * 2 >= total_s) break;
  }
  now = 0;
  std::optional<double> from_s;
  double last_arrival_s = 0;
  for (const Change& change : changes) {
    now += change.by;
    if (change.by > 0) last_arrival_s = change.at_s;
    if (!from_s && now >= median && change.by > 0) from_s = change.at_s;
  }
  if (!from_s || last_arrival_s <= *from_s) return std::nullopt;
  return Window{*from_s, last_arrival_s};
}

Figures figures_within(std::span<const RequestRecord> requests, const Window& window, const Slo* slo) {
  Sums sums(window, slo);
  Requests arrived;
  for (const RequestRecord& r : requests) {
    sums.add_work(r);
    if (r.planned_s < window.from_s || r.planned_s > window.to_s) continue;
    arrived.push_back(&r);
    sums.count_outcome(r);
    if (r.completed()) sums.add_latencies(r);
  }
  Figures out = sums.figures();
  out.max_concurrent_requests = most_in_flight(arrived);
  return out;
}

json results_json(const Figures& f) {
  json out = {{"num_prompts", f.requests()},
              {"completed", f.completed},
              {"failed", f.failed},
              {"refused", f.refused},
              {"incomplete", f.incomplete},
              {"duration", f.duration_s},
              {"total_input_tokens", f.input_tokens},
              {"total_output_tokens", f.output_tokens},
              {"request_throughput", f.request_throughput},
              {"request_goodput", bound(f.goodput, 1)},
              {"goodput_tokens_per_s", bound(f.goodput_tokens, 1)},
              {"output_throughput", f.output_throughput},
              {"total_token_throughput", f.total_token_throughput},
              {"max_output_tokens_per_s", f.max_output_tokens_per_s},
              {"max_concurrent_requests", f.max_concurrent_requests},
              {"fluidity", bound(f.fluidity, 1)},
              {"stall_s", f.stall_s},
              {"ci95", json::object()},
              {"n", json::object()}};
  put_distribution(out, "ttft", f.ttft);
  put_distribution(out, "tpot", f.tpot);
  put_distribution(out, "itl", f.itl);
  put_distribution(out, "itl_max", f.itl_max);
  put_distribution(out, "e2el", f.e2e);
  put_distribution(out, "ttft_planned", f.ttft_planned);
  put_distribution(out, "e2e_planned", f.e2e_planned);
  return out;
}

}  // namespace tally::measure
