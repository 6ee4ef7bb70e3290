#include "measure/trace.h"

#include "measure/run_steps.h"
#include "measure/store.h"
#include "measure/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr int kClient = 1, kServer = 2;  // processes
constexpr int kLane = 1;                 // the thread of either
constexpr double kSendingS = 1e-6;       // of a slice that shows the sending of a request, at most

// What is kept together; the later ones are left out first.
enum class Rank : uint8_t { kNames, kRequest, kStep, kCounter };

struct Event {
  double at_s = 0;
  json fields;                      // all but ts and dur
  std::optional<double> to_s = {};  // of a slice
};
struct Unit {
  Rank rank = Rank::kCounter;
  double weight = 0;  // of the same rank the lighter ones are left out first
  std::vector<Event> events;
};

class Tracer {
 public:
  Tracer(const Run& run, const TraceOptions& options)
      : run_(run), options_(options), steps_(run_steps(run)), clock_(run_clock(run)) {
    for (const RequestRecord& r : run.requests) sent_s_.push_back(r.sent_s);
    std::sort(sent_s_.begin(), sent_s_.end());
  }

  Trace draw() {
    add_names();
    for (const RequestRecord& r : run_.requests) add_request(r);
    for (size_t i = 0; i < steps_.size(); ++i) {
      // Slices of a track may not overlap, and clocks are not that exact.
      const double next_s = i + 1 < steps_.size() ? steps_[i + 1].begin_s : steps_[i].end_s();
      add_step(steps_[i], std::min(steps_[i].end_s(), next_s));
    }
    add_samples();
    return written();
  }

 private:
  void add_names();
  void add_request(const RequestRecord& r);
  void add_phases(const RequestRecord& r, std::vector<Event>& events, const json& id) const;
  void add_flow(const RequestRecord& r, std::vector<Event>& events) const;
  void add_step(const RunStep& step, double end_s);
  void add_samples();
  void add_counter(double at_s, const char* name, json values);
  json other_data(const Trace& trace) const;
  Trace written();

  const Run& run_;
  const TraceOptions& options_;
  const std::vector<RunStep> steps_;
  const std::optional<RunClock> clock_;
  std::vector<double> sent_s_;  // of all requests, ascending
  std::vector<Unit> units_;
};

json event(const char* phase, int process, const std::string& name) {
  return {{"ph", phase}, {"pid", process}, {"tid", kLane}, {"name", name}};
}

json async(const char* phase, const std::string& name, const json& id) {
  json out = event(phase, kClient, name);
  out["cat"] = "request", out["id"] = id;
  return out;
}

double nanoseconds(double s) { return std::round(s * 1e9); }

// After tokenizing and queueing, as the receipt says; the first event if it says more than there was time
// for.
double scheduled_s(const RequestRecord& r) {
  double at_s = r.sent_s;
  for (const char* stage : {"tokenize_ms", "queue_ms"})
    at_s += std::max(0., number_at(r.receipt, stage).value_or(0)) / 1e3;
  return std::min(at_s, r.events.empty() ? r.end_s : r.events.front().at_s);
}

void Tracer::add_names() {
  std::vector<Event> events;
  const auto name = [&](const char* what, int process, const std::string& text) {
    json fields = event("M", process, what);
    fields["args"] = {{"name", text}};
    events.push_back({-std::numeric_limits<double>::infinity(), std::move(fields)});
  };
  const json& model = object_at(run_.head, "model");
  name("process_name", kClient, fmt::format("client: tally {}", text_at(run_.head, "command")));
  name("thread_name", kClient, "sending");
  name("process_name", kServer, fmt::format("server: {}", text_at(model, "path_basename")));
  name("thread_name", kServer, "engine steps");
  units_.push_back({Rank::kNames, 0, std::move(events)});
}

// Instants that are known: of sending, of the first and the last event. Tokenizing and queueing follow
// sending.
void Tracer::add_phases(const RequestRecord& r, std::vector<Event>& events, const json& id) const {
  double from_s = r.planned_s;
  const auto phase = [&](const char* name, double to_s) {
    to_s = std::min(to_s, r.end_s);
    if (to_s <= from_s) return;
    events.push_back({from_s, async("b", name, id)});
    events.push_back({to_s, async("e", name, id)});
    from_s = to_s;
  };
  phase("waits in the client", r.sent_s);
  if (r.events.empty()) return phase("answer", r.end_s);
  const double first_s = r.events.front().at_s;
  if (!r.receipt.is_null()) {
    phase("tokenize", std::min(first_s, r.sent_s + number_at(r.receipt, "tokenize_ms").value_or(0) / 1e3));
    phase("queue", scheduled_s(r));
  }
  phase("prefill", first_s);
  phase("decode", r.events.back().at_s);
}

// To the step that began the prompt: the first with rows of prompts that was not over when it was scheduled.
void Tracer::add_flow(const RequestRecord& r, std::vector<Event>& events) const {
  const double from_s = scheduled_s(r);
  const auto first = std::lower_bound(steps_.begin(), steps_.end(), from_s,
                                      [](const RunStep& s, double at_s) { return s.end_s() <= at_s; });
  const auto step = std::find_if(first, steps_.end(),
                                 [](const RunStep& s) { return s.prefill_tokens + s.recompute_tokens > 0; });
  if (step == steps_.end() || step->begin_s > r.end_s) return;
  json begin = event("s", kClient, "request"), end = event("f", kServer, "request");
  begin["cat"] = end["cat"] = "flow", begin["id"] = end["id"] = r.id, end["bp"] = "e";
  events.push_back({r.sent_s, std::move(begin)});
  events.push_back({std::max(step->begin_s, r.sent_s), std::move(end)});
}

void Tracer::add_request(const RequestRecord& r) {
  std::vector<Event> events;
  const std::string name = fmt::format("{}{}{}", r.class_name, r.class_name.empty() ? "request " : " ", r.id);
  const json id = fmt::format("{:#x}", r.id);
  const RequestFigures figures = request_figures(r);
  json args = {{"id", r.id},
               {"http", r.http_status},
               {"prompt_tokens", r.prompt_tokens.value_or(r.prompt_tokens_planned)},
               {"output_tokens", figures.tokens}};
  if (r.cached_tokens) args["cached_tokens"] = *r.cached_tokens;
  if (figures.ttft_s) args["ttft_ms"] = *figures.ttft_s * 1e3;
  if (figures.tpot_s) args["tpot_ms"] = *figures.tpot_s * 1e3;
  if (!r.error.empty()) args["error"] = r.error;
  if (!r.receipt.is_null()) args["receipt"] = r.receipt;
  json begin = async("b", name, id), sending = event("X", kClient, name);
  begin["args"] = args;
  events.push_back({r.planned_s, std::move(begin)});
  add_phases(r, events, id);
  events.push_back({std::max(r.planned_s, r.end_s), async("e", name, id)});
  sending["args"] = {{"id", r.id}};
  const auto next = std::upper_bound(sent_s_.begin(), sent_s_.end(), r.sent_s);
  const double sent_s = r.sent_s + kSendingS;
  events.push_back({r.sent_s, std::move(sending), next == sent_s_.end() ? sent_s : std::min(*next, sent_s)});
  add_flow(r, events);
  units_.push_back({Rank::kRequest, -r.planned_s, std::move(events)});
}

void Tracer::add_step(const RunStep& s, double end_s) {
  json fields = event("X", kServer, std::string(kStepKindNames[static_cast<size_t>(s.kind)]));
  fields["cat"] = "step";
  fields["args"] = {{"step", s.number},
                    {"prefill_tokens", s.prefill_tokens},
                    {"recompute_tokens", s.recompute_tokens},
                    {"decode_tokens", s.decode_tokens},
                    {"sequences", s.sequences},
                    {"phases_us", s.phases_us}};
  if (s.bytes > 0) fields["args"]["gb_per_s"] = s.bytes / 1e9 / s.forward_s();
  if (s.predicted_s > 0) fields["args"]["predicted_us"] = s.predicted_s * 1e6;
  units_.push_back({Rank::kStep, s.length_s, {{s.begin_s, std::move(fields), end_s}}});
  add_counter(s.end_s(), "requests", {{"running", s.running}, {"waiting", s.waiting}});
  if (s.kv_held_share)
    add_counter(s.end_s(), "KV blocks, %",
                {{"held", *s.kv_held_share * 100}, {"cached", s.kv_cached_share.value_or(0) * 100}});
}

void Tracer::add_samples() {
  for (const MemorySample& m : run_.memory) {
    if (m.rss_anon)
      add_counter(m.at_s, "anonymous memory, MiB", {{"rss", static_cast<double>(*m.rss_anon) / 0x1p20}});
    if (!steps_.empty()) continue;  // which know better
    const auto running = number_at(m.load, "running"), held = number_at(m.load, "kv_usage");
    if (running)
      add_counter(m.at_s, "requests",
                  {{"running", *running}, {"waiting", number_at(m.load, "waiting").value_or(0)}});
    if (held) add_counter(m.at_s, "KV blocks, %", {{"held", *held * 100}});
  }
}

void Tracer::add_counter(double at_s, const char* name, json values) {
  json fields = event("C", kServer, name);
  fields["args"] = std::move(values);
  units_.push_back({Rank::kCounter, -at_s, {{at_s, std::move(fields)}}});
}

json Tracer::other_data(const Trace& trace) const {
  json out = {{"run", options_.name},
              {"started", text_at(run_.head, "started")},
              {"dropped_counters", trace.dropped_counters},
              {"dropped_steps", trace.dropped_steps},
              {"dropped_requests", trace.dropped_requests}};
  out["clock"] = !clock_ ? "the run has no steps"
                 : clock_->error_s
                     ? fmt::format("client and server are tied to within {:.3f} ms", *clock_->error_s * 1e3)
                     : "not tied: the first step is taken to begin as the first request was sent";
  return out;
}

Trace Tracer::written() {
  std::stable_sort(units_.begin(), units_.end(), [](const Unit& a, const Unit& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.weight > b.weight;
  });
  // The earliest instant is 0: viewers want none before it.
  double begin_s = 0;
  for (const Unit& unit : units_)
    for (const Event& e : unit.events)
      if (std::isfinite(e.at_s)) begin_s = std::min(begin_s, e.at_s);
  Trace out;
  std::vector<std::pair<double, std::string>> lines;
  constexpr uint64_t kFrame = 2048;  // of the object around the events
  uint64_t bytes = kFrame;
  bool is_full = false;
  for (Unit& unit : units_) {
    std::vector<std::pair<double, std::string>> own;
    for (Event& e : unit.events) {
      if (is_full) break;
      const double ts = std::isfinite(e.at_s) ? nanoseconds(e.at_s - begin_s) / 1e3 : 0;
      e.fields["ts"] = ts;
      // Of rounded ends: what begins where another ends does so in the file too.
      if (e.to_s) e.fields["dur"] = (nanoseconds(*e.to_s - begin_s) - nanoseconds(e.at_s - begin_s)) / 1e3;
      own.emplace_back(std::isfinite(e.at_s) ? ts : -1, line_of(e.fields));
      bytes += own.back().second.size() + 2;
    }
    is_full = is_full || bytes > options_.bytes_max;
    if (!is_full) {
      std::move(own.begin(), own.end(), std::back_inserter(lines));
      continue;
    }
    out.dropped_counters += unit.rank == Rank::kCounter;
    out.dropped_steps += unit.rank == Rank::kStep;
    out.dropped_requests += unit.rank == Rank::kRequest;
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  out.events = lines.size();
  out.json = fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[\n",
                         line_of(other_data(out)));
  for (size_t i = 0; i < lines.size(); ++i)
    (out.json += lines[i].second) += i + 1 < lines.size() ? ",\n" : "\n";
  out.json += "]}\n";
  return out;
}

}  // namespace

Trace trace_of(const Run& run, const TraceOptions& options) { return Tracer(run, options).draw(); }

}  // namespace tally::measure
