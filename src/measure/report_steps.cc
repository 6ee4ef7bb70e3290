// What the engine did in each step, and how far from the roofs of the machine it was.
#include "measure/report_parts.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr size_t kPieces = 600;  // of time, the longest step of each kind is kept in each
constexpr size_t kDots = 250;    // of a kind, on the roofline

// Indices of the steps that are drawn, in order of time.
std::vector<size_t> kept_steps(const std::vector<RunStep>& steps) {
  std::vector<size_t> out;
  const double begin_s = steps.front().begin_s, span_s = std::max(1e-9, steps.back().end_s() - begin_s);
  std::map<std::pair<size_t, StepKind>, size_t> longest;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double share = std::clamp((steps[i].begin_s - begin_s) / span_s, 0., 1.);
    const auto piece = static_cast<size_t>(share * kPieces);
    const auto [at, is_new] = longest.try_emplace({piece, steps[i].kind}, i);
    if (!is_new && steps[i].length_s > steps[at->second].length_s) at->second = i;
  }
  if (steps.size() <= longest.size() + kPieces) {  // nothing to gain
    for (size_t i = 0; i < steps.size(); ++i) out.push_back(i);
    return out;
  }
  for (const auto& [piece, i] : longest) out.push_back(i);
  std::sort(out.begin(), out.end());
  return out;
}

// All steps of a kind together.
struct KindSum {
  size_t steps = 0;
  double length_s = 0, prefill_tokens = 0, decode_tokens = 0;
  std::map<std::string, double> phases_s;
};

json kinds_json(const std::vector<RunStep>& steps) {
  std::array<KindSum, kStepKinds> sums;
  for (const RunStep& s : steps) {
    KindSum& sum = sums[static_cast<size_t>(s.kind)];
    ++sum.steps, sum.length_s += s.length_s;
    sum.prefill_tokens += s.prefill_tokens + s.recompute_tokens, sum.decode_tokens += s.decode_tokens;
    for (const auto& [name, us] : s.phases_us.items()) sum.phases_s[name] += us.get<double>() / 1e6;
  }
  json out = json::array();
  for (size_t i = 0; i < kStepKinds; ++i) {
    if (sums[i].steps == 0) continue;
    json phases = json::object();
    for (const auto& [name, s] : sums[i].phases_s) phases[name] = rounded(s);
    out.push_back({{"kind", kStepKindNames[i]},
                   {"steps", sums[i].steps},
                   {"seconds", rounded(sums[i].length_s)},
                   {"prefill_tokens", sums[i].prefill_tokens},
                   {"decode_tokens", sums[i].decode_tokens},
                   {"phases_s", std::move(phases)}});
  }
  return out;
}

// Numbers of what may be one number or an object of them: {"1": 9.8e9, "2": 1.9e10}.
json roofs_of(const json& machine, const char* key) {
  json out = json::array();
  if (const auto one = number_at(machine, key)) out.push_back({{"name", ""}, {"rate", *one}});
  for (const auto& [name, rate] : object_at(machine, key).items())
    if (rate.is_number() && rate.get<double>() > 0) out.push_back({{"name", name}, {"rate", rate}});
  return out;
}

}  // namespace

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double digits = 5 - std::floor(std::log10(std::abs(value)));
  if (digits <= 0) return std::round(value);
  const double unit = std::pow(10, std::min(digits, 300.));
  return std::round(value * unit) / unit;
}

json rounded_array(std::span<const double> values) {
  json out = json::array();
  for (const double value : values) out.push_back(rounded(value));
  return out;
}

json steps_part(const Run& run, const std::vector<RunStep>& steps) {
  if (steps.empty())
    return why(
        "The run has no steps.jsonl: this server does not tell its steps, or an older version wrote the "
        "run.");
  const auto clock = run_clock(run);
  json out = {{"of", steps.size()}, {"kinds", kinds_json(steps)}};
  out["clock_error_s"] = clock && clock->error_s ? json(rounded(*clock->error_s)) : json(nullptr);
  const std::vector<size_t> kept = kept_steps(steps);
  const auto column = [&](const char* name, const auto& value) {
    json& values = out[name] = json::array();
    for (const size_t i : kept) values.push_back(value(steps[i]));
  };
  column("step", [](const RunStep& s) { return json(s.number); });
  column("t", [](const RunStep& s) { return json(rounded(s.begin_s)); });
  column("d", [](const RunStep& s) { return json(rounded(s.length_s)); });
  column("kind", [](const RunStep& s) { return json(static_cast<int>(s.kind)); });
  column("prefill", [](const RunStep& s) { return json(s.prefill_tokens + s.recompute_tokens); });
  column("decode", [](const RunStep& s) { return json(s.decode_tokens); });
  column("sequences", [](const RunStep& s) { return json(s.sequences); });
  return out;
}

json roofline_part(const Run& run, const std::vector<RunStep>& steps) {
  std::array<std::vector<const RunStep*>, kStepKinds> known;
  for (const RunStep& s : steps)
    if (s.bytes > 0 && s.flops > 0 && s.forward_s() > 0) known[static_cast<size_t>(s.kind)].push_back(&s);
  const json& machine = object_at(run.head, "machine");
  json out = {{"bandwidth", roofs_of(machine, "roof_bytes_per_s")},
              {"operations", roofs_of(machine, "roof_ops_per_s")},
              {"kinds", json::array()}};
  for (size_t kind = 0; kind < kStepKinds; ++kind) {
    const auto& all = known[kind];
    if (all.empty()) continue;
    double bytes = 0, flops = 0, seconds = 0;
    for (const RunStep* s : all) bytes += s->bytes, flops += s->flops, seconds += s->forward_s();
    json dots = json::array();
    const size_t count = std::min(kDots, all.size());
    for (size_t i = 0; i < count; ++i) {
      const RunStep& s = *all[i * all.size() / count];
      dots.push_back({rounded(s.flops / s.bytes), rounded(s.flops / s.forward_s())});
    }
    out["kinds"].push_back({{"kind", kind},
                            {"steps", all.size()},
                            {"bytes_per_s", rounded(bytes / seconds)},
                            {"flops_per_s", rounded(flops / seconds)},
                            {"intensity", rounded(flops / bytes)},
                            {"dots", std::move(dots)}});
  }
  if (out["kinds"].empty()) return why("No step of this run tells its bytes and operations.");
  return out;
}

}  // namespace tally::measure
