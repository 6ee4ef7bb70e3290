#include "measure/run_steps.h"

#include "measure/store.h"

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr const char* kForwardPhases[] = {"linear", "attention", "head", "other"};

StepKind kind_of(const json& step, const RunStep& figures) {
  const std::string name = text_at(step, "kind");
  for (size_t i = 0; i < kStepKinds; ++i)
    if (name == kStepKindNames[i]) return static_cast<StepKind>(i);
  return step_kind(figures.prefill_tokens > 0, figures.decode_tokens > 0);
}

RunStep step_of(const json& line, const RunClock& clock) {
  const auto figure = [&](const char* key) { return std::max(0., number_at(line, key).value_or(0)); };
  RunStep out;
  out.number = static_cast<uint64_t>(std::min(figure("step"), 0x1p53));
  out.begin_s = (number_at(line, "t_us").value_or(0) - clock.server_us_at_0) / 1e6;
  out.length_s = figure("duration_us") / 1e6, out.predicted_s = figure("predicted_us") / 1e6;
  out.prefill_tokens = figure("prefill_tokens"), out.decode_tokens = figure("decode_tokens");
  out.recompute_tokens = figure("recompute_tokens"), out.sequences = figure("sequences");
  out.running = figure("running"), out.waiting = figure("waiting"), out.flops = figure("flops");
  out.bytes = figure("weight_bytes") + figure("kv_bytes") + figure("activation_bytes");
  const double held = figure("kv_held"), cached = figure("kv_cached");
  if (const double all = held + cached + figure("kv_free"); all > 0)
    out.kv_held_share = held / all, out.kv_cached_share = cached / all;
  out.kind = kind_of(line, out);
  out.phases_us = json::object();
  for (const auto& [name, us] : object_at(line, "phases_us").items())
    if (us.is_number()) out.phases_us[name] = us;
  return out;
}

}  // namespace

std::optional<RunClock> run_clock(const Run& run) {
  if (run.steps.empty()) return std::nullopt;
  const json& tie = object_at(run.head, "clock");
  if (const auto zero = number_at(tie, "server_us_at_0")) {
    const auto error_us = number_at(tie, "error_us");
    return RunClock{*zero, error_us ? std::optional(*error_us / 1e6) : std::nullopt};
  }
  std::optional<double> first_us;
  for (const json& step : run.steps)
    if (const auto t_us = number_at(step, "t_us"); t_us && (!first_us || *t_us < *first_us)) first_us = t_us;
  if (!first_us) return std::nullopt;
  std::optional<double> first_sent_s;
  for (const RequestRecord& r : run.requests)
    if (r.http_status == 200 && (!first_sent_s || r.sent_s < *first_sent_s)) first_sent_s = r.sent_s;
  return RunClock{*first_us - first_sent_s.value_or(0) * 1e6, {}};
}

double RunStep::forward_s() const {
  double us = 0;
  for (const char* phase : kForwardPhases) us += number_at(phases_us, phase).value_or(0);
  return us > 0 ? us / 1e6 : length_s;
}

std::vector<RunStep> run_steps(const Run& run) {
  std::vector<RunStep> out;
  const auto clock = run_clock(run);
  if (!clock) return out;
  out.reserve(run.steps.size());
  for (const json& line : run.steps)
    if (number_at(line, "t_us")) out.push_back(step_of(line, *clock));
  std::stable_sort(out.begin(), out.end(),
                   [](const RunStep& a, const RunStep& b) { return a.begin_s < b.begin_s; });
  return out;
}

}  // namespace tally::measure
