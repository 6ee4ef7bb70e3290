#include "measure/load_head.h"

#include "base/clock.h"
#include "base/sha256.h"
#include "measure/machine.h"
#include "measure/roof.h"
#include "measure/store.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <limits>

namespace tally::measure {
namespace {

using nlohmann::json;

json client_settings(const HeadQuestion& q) {
  const LoadSpec& spec = q.spec;
  const Level& level = q.block.level;
  json out = {{"api", spec.is_chat ? "chat" : "completions"},
              {"stream", spec.is_stream},
              {"cache", spec.keeps_cache ? "keep" : "reset"},
              {"loop", level.is_open ? "open" : "closed"},
              {"repetition", q.block.repetition},
              {"prompts", q.server.facts.takes_ids && !spec.is_chat ? "ids" : "text"},
              {"timeout_s", spec.timeout_s},
              {"spread", spec.workload.spread},
              {"server", q.server.facts.name},
              {"host", q.server.facts.host}};
  if (level.is_open) {
    out["arrival"] = arrival_name(spec.arrival.kind);
    out["max_inflight"] = spec.in_flight_max;
  }
  json& slo = out["slo"] = json::object();
  const auto put = [&](const char* name, const std::optional<double>& limit_s) {
    if (limit_s) slo[name] = *limit_s * 1e3;
  };
  put("ttft_ms", spec.slo.ttft_s), put("tpot_ms", spec.slo.tpot_s);
  put("itl_ms", spec.slo.itl_s), put("e2e_ms", spec.slo.e2e_s);
  return out;
}

// A label of a metric, null where the server does not say.
json label(const json& labels, const char* key) {
  const std::string text = text_at(labels, key);
  return text.empty() ? json(nullptr) : json(text);
}

// With the roofs, where the server tells them.
json machine_of(const ServerFacts& facts) {
  json out = machine_json();
  const json told = facts.settings.is_object() ? facts.settings.value("roofs", json()) : json();
  if (const Roofs roofs = parse_roofs(told); !roofs.empty()) {
    const json shown = roofs_json(roofs);
    out["roof_bytes_per_s"] = shown["bytes_per_s"], out["roof_ops_per_s"] = shown["ops_per_s"];
    out["roof_kernel_ops_per_s"] = shown["kernel_ops_per_s"];
  }
  return out;
}

json model_json(const ServerFacts& facts) {
  const json& labels = facts.model_labels;
  return {{"path_basename", facts.model},
          {"sha256", label(labels, "sha256")},
          {"arch", nullptr},
          {"weight_type", label(labels, "weight_type")},
          {"kv_type", label(labels, "kv_type")}};
}

// Equal for equal requests, order, instants, sampling and treatment of the cache.
std::string workload_hash(const HeadQuestion& q) {
  const Level& level = q.block.level;
  const json rest = {{"requests", q.workload.sha256()},
                     {"loop", level.is_open ? "open" : "closed"},
                     {"level", level.value},
                     {"arrival", arrival_name(q.spec.arrival.kind)},
                     {"burstiness", q.spec.arrival.burstiness},
                     {"burst", q.spec.arrival.burst},
                     {"seed", q.spec.workload.seed},
                     {"cache", q.spec.keeps_cache ? "keep" : "reset"},
                     {"api", q.spec.is_chat ? "chat" : "completions"},
                     {"stream", q.spec.is_stream},
                     {"temperature", 0}};
  return base::hex(base::sha256(line_of(rest)));
}

json results_of(const HeadQuestion& q) {
  json out = results_json(q.block.figures);
  out.update(q.audit.figures);
  const Level& level = q.block.level;
  out["date"] = q.started;
  out["backend"] = q.server.facts.kind.empty() ? json(nullptr) : json(q.server.facts.kind);
  out["model_id"] = q.server.facts.model;
  const ArrivalSpec& arrival = q.spec.arrival;
  out["request_rate"] = level.is_open ? json(level.value) : json(nullptr);
  const bool is_even = arrival.kind == Arrival::kConstant || !level.is_open;
  out["burstiness"] =
      is_even ? json(nullptr) : json(arrival.kind == Arrival::kGamma ? arrival.burstiness : 1.);
  const double most = level.is_open ? q.spec.in_flight_max : level.value;
  out["max_concurrency"] = most > 0 ? json(static_cast<uint64_t>(most)) : json(nullptr);
  return out;
}

}  // namespace

json head_of(const HeadQuestion& q) {
  const ServerFacts& facts = q.server.facts;
  json head = {{"schema", kSchema},
               {"started", q.started},
               {"status", q.is_stopped ? "incomplete" : "complete"},
               {"valid", q.audit.reasons.empty()},
               {"invalid_reasons", q.audit.reasons},
               {"warnings", q.audit.warnings},
               {"client_settings", client_settings(q)},
               {"machine", machine_of(facts)},
               {"model", model_json(facts)},
               {"workload",
                {{"sha256", workload_hash(q)},
                 {"name", q.workload.name},
                 {"seed", q.spec.workload.seed},
                 {"repetition", q.block.repetition},
                 {"classes", q.workload.classes}}},
               {"results", results_of(q)},
               {"by_class", json::object()},
               {"stats_method", "percentiles: Hyndman-Fan type 7; ci95: order statistics, exact binomial"}};
  head["build_id"] = label(facts.build_labels, "build");
  head["settings"] = facts.settings.is_object() ? facts.settings : json::object();
  for (const auto& [name, figures] : q.block.by_class) head["by_class"][name] = results_json(figures);
  head["by_concurrency"] = json::array({{{"level", q.block.level.value},
                                         {"open", q.block.level.is_open},
                                         {"output_throughput", q.block.figures.output_throughput}}});
  if (q.tie)  // t_us of a step is second (t_us - server_us_at_0) / 1e6 of the run
    head["clock"] = {{"server_us_at_0", q.start_us + q.tie->ahead_us}, {"error_us", q.tie->error_us}};
  const auto window = steady_window(q.block.run.requests);
  head["steady"] = window ? results_json(figures_within(q.block.run.requests, *window,
                                                        q.spec.has_slo() ? &q.spec.slo : nullptr))
                          : json(nullptr);
  return head;
}

std::string wall_clock() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(base::wall_seconds())));
}

const char* arrival_name(Arrival arrival) {
  switch (arrival) {
    case Arrival::kPoisson:
      return "poisson";
    case Arrival::kGamma:
      return "gamma";
    case Arrival::kConstant:
      return "constant";
    case Arrival::kBurst:
      return "burst";
    case Arrival::kTrace:
      return "trace";
  }
  TALLY_UNREACHABLE("arrival");
}

}  // namespace tally::measure
