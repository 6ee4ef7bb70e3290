#include "simulate_page.h"

#include "base/utf8.h"
#include "cli.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using nlohmann::json;
using sched::Refusal;
using sched::simulate::Interval;
using sched::simulate::Percentiles;
using sched::simulate::Report;
using sched::simulate::Scenario;
using sched::simulate::Scheme;
using sched::simulate::SlotSums;

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

bool has_blocks(const Scenario& scenario) {
  return scenario.scheme == Scheme::kPaged || scenario.scheme == Scheme::kReserve;
}

// Slots that sequences can be given, over all steps that count.
uint64_t pool_slots(const Scenario& scenario, const SlotSums& slots) {
  const uint64_t pool = has_blocks(scenario)
                            ? scenario.pool_tokens / scenario.block_tokens * scenario.block_tokens
                            : scenario.pool_tokens;
  return pool * slots.steps;
}

const char* batching_name(const Scenario& scenario) {
  return scenario.batching == sched::Batching::kStatic ? "static" : "continuous";
}

struct RefusalName {
  Refusal refusal;
  const char *key, *text;
};
constexpr RefusalName kRefusals[] = {
    {Refusal::kPromptTooLong, "too_long", "longer than --max-model-len"},
    {Refusal::kPoolTooSmall, "pool_too_small", "larger than the pool"},
    {Refusal::kTooManyChoices, "too_many_choices", "with more choices than --max-seqs"},
};

json percentiles_json(const Percentiles& p) {
  return {{"n", p.n}, {"mean", p.mean}, {"p50", p.p50}, {"p95", p.p95}, {"p99", p.p99}, {"max", p.max}};
}

json intervals_json(const Scenario& scenario, const Report& report) {
  json out = json::array();
  double begin_s = 0;
  for (const Interval& i : report.intervals) {
    const double end_s = static_cast<double>(i.end) * 1e-6;
    out.push_back({{"end_s", end_s},
                   {"utilisation", i.slots.utilisation()},
                   {"pool_allocated", share(i.slots.allocated, pool_slots(scenario, i.slots))},
                   {"running", share(i.slots.running, i.slots.steps)},
                   {"waiting", share(i.slots.waiting, i.slots.steps)},
                   {"tokens_per_second",
                    end_s > begin_s ? static_cast<double>(i.output_tokens) / (end_s - begin_s) : 0}});
    begin_s = end_s;
  }
  return out;
}

json result_json(const SimulatedRun& run) {
  const Report& r = run.report;
  const SlotSums& slots = r.slots;
  json refused = json::object();
  for (const RefusalName& name : kRefusals) refused[name.key] = r.refused[static_cast<size_t>(name.refusal)];
  return {{"allocator", scheme_name(run.scenario.scheme)},
          {"batching", batching_name(run.scenario)},
          {"block_tokens", has_blocks(run.scenario) ? json(run.scenario.block_tokens) : json(nullptr)},
          {"utilisation", slots.utilisation()},
          {"waste",
           {{"internal", share(slots.internal, slots.allocated)},
            {"reserved", share(slots.reserved, slots.allocated)},
            {"external_of_pool", share(slots.external, pool_slots(run.scenario, slots))}}},
          {"pool_allocated", share(slots.allocated, pool_slots(run.scenario, slots))},
          {"logical_over_stored", share(slots.logical, slots.stored)},
          {"requests", {{"finished", r.finished}, {"refused", std::move(refused)}}},
          {"running_mean", share(slots.running, slots.steps)},
          {"running_max", r.running_max},
          {"waiting_mean", share(slots.waiting, slots.steps)},
          {"steps", r.steps},
          {"decode_steps", slots.steps},
          {"completion_s", static_cast<double>(r.completion) * 1e-6},
          {"prompt_tokens", r.prompt_tokens},
          {"prompt_rows", r.prompt_rows},
          {"output_tokens", r.output_tokens},
          {"tokens_per_second", r.output_rate()},
          {"requests_per_second", r.request_rate()},
          {"ttft_s", percentiles_json(r.ttft_s)},
          {"tpot_s", percentiles_json(r.tpot_s)},
          {"normalised_s", percentiles_json(r.normalised_s)},
          {"gap_max_s", r.gap_max_s},
          {"preemptions", r.counts.preemptions},
          {"recomputed_tokens", r.counts.recomputed_tokens},
          {"copies", r.counts.copies},
          {"copied_tokens", r.counts.copied_tokens},
          {"prefix_queries_tokens", r.counts.prefix_queries_tokens},
          {"prefix_hits_tokens", r.counts.prefix_hits_tokens},
          {"intervals", intervals_json(run.scenario, r)}};
}

std::string block_text(const Scenario& scenario) {
  return has_blocks(scenario) ? std::to_string(scenario.block_tokens) : "-";
}

void print_memory(const std::vector<SimulatedRun>& runs) {
  fmt::print("{:<13}{:<11}{:>6}{:>8}{:>10}{:>10}{:>10}{:>8}{:>9}{:>9}{:>9}\n", "allocator", "batching",
             "block", "used %", "internal", "reserved", "external", "pool %", "running", "preempt", "copies");
  for (const SimulatedRun& run : runs) {
    const SlotSums& s = run.report.slots;
    const uint64_t pool = pool_slots(run.scenario, s);
    fmt::print("{:<13}{:<11}{:>6}{:>8.1f}{:>10.1f}{:>10.1f}{:>10.1f}{:>8.1f}{:>9.2f}{:>9}{:>9}\n",
               scheme_name(run.scenario.scheme), batching_name(run.scenario), block_text(run.scenario),
               100 * s.utilisation(), 100 * share(s.internal, s.allocated),
               100 * share(s.reserved, s.allocated), 100 * share(s.external, pool),
               100 * share(s.allocated, pool), share(s.running, s.steps), run.report.counts.preemptions,
               run.report.counts.copies);
  }
  fmt::print(
      "used + internal + reserved = 100 % of the slots given to sequences, summed over steps that decode; "
      "external and pool: of all slots\n\n");
}

void print_speed(const std::vector<SimulatedRun>& runs) {
  fmt::print("{:<13}{:<11}{:>6}{:>9}{:>9}{:>30}{:>30}{:>8}\n", "allocator", "batching", "block", "tokens/s",
             "done s", "TTFT s P50 P95 P99", "TPOT ms P50 P95 P99", "hits %");
  for (const SimulatedRun& run : runs) {
    const Report& r = run.report;
    fmt::print(
        "{:<13}{:<11}{:>6}{:>9.1f}{:>9.0f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.1f}{:>10.1f}{:>10.1f}{:>8.1f}\n",
        scheme_name(run.scenario.scheme), batching_name(run.scenario), block_text(run.scenario),
        r.output_rate(), static_cast<double>(r.completion) * 1e-6, r.ttft_s.p50, r.ttft_s.p95, r.ttft_s.p99,
        1e3 * r.tpot_s.p50, 1e3 * r.tpot_s.p95, 1e3 * r.tpot_s.p99,
        100 * share(r.counts.prefix_hits_tokens, r.prompt_tokens));
  }
}

void print_intervals(const SimulatedRun& run) {
  fmt::print("\n{:>9}{:>8}{:>8}{:>9}{:>9}{:>10}\n", "until s", "used %", "pool %", "running", "waiting",
             "tokens/s");
  double begin_s = 0;
  for (const Interval& i : run.report.intervals) {
    const double end_s = static_cast<double>(i.end) * 1e-6;
    fmt::print("{:>9.0f}{:>8.1f}{:>8.1f}{:>9.2f}{:>9.1f}{:>10.1f}\n", end_s, 100 * i.slots.utilisation(),
               100 * share(i.slots.allocated, pool_slots(run.scenario, i.slots)),
               share(i.slots.running, i.slots.steps), share(i.slots.waiting, i.slots.steps),
               end_s > begin_s ? static_cast<double>(i.output_tokens) / (end_s - begin_s) : 0);
    begin_s = end_s;
  }
}

}  // namespace

const char* scheme_name(Scheme scheme) {
  constexpr const char* kNames[] = {"paged", "reserve", "max-length", "power-of-two"};
  return kNames[static_cast<size_t>(scheme)];
}

void SimulatePage::print_json() const {
  const Scenario& s = runs.front().scenario;
  json results = json::array();
  for (const SimulatedRun& run : runs) results.push_back(result_json(run));
  const json out = {{"trace",
                     {{"name", trace_name},
                      {"requests", trace.requests.size()},
                      {"sequences", trace.sequences()},
                      {"prompt_tokens", trace.prompt_tokens()},
                      {"output_tokens", trace.output_tokens()},
                      {"skipped", trace.skipped},
                      {"rate", rate == 0 ? json(nullptr) : json(rate)},
                      {"seed", seed == nullptr ? json(nullptr) : json(*seed)}}},
                    {"settings",
                     {{"pool_tokens", s.pool_tokens},
                      {"max_seqs", s.seqs_max},
                      {"step_tokens", s.step_tokens},
                      {"max_model_len", s.model_len_max},
                      {"prefix_cache", s.prefix_cache},
                      {"step_latency_ms", static_cast<double>(s.step_latency) * 1e-3},
                      {"cost_us",
                       {{"fixed", s.cost.fixed},
                        {"weights", s.cost.weights},
                        {"row", s.cost.row},
                        {"kv", s.cost.kv_decode},
                        {"kv_prompt", s.cost.kv_prefill}}}}},
                    {"results", std::move(results)}};
  write_json(out);
}

void SimulatePage::print_table() const {
  const Scenario& s = runs.front().scenario;
  fmt::print("{}: {} requests, {} prompt and {} output tokens{}{}\n", base::escape_for_log(trace_name),
             trace.requests.size(), trace.prompt_tokens(), trace.output_tokens(),
             rate == 0 ? "" : fmt::format(", {} a second", rate),
             seed == nullptr ? "" : fmt::format(", seed {}", *seed));
  fmt::print(
      "pool of {} slots, at most {} sequences of {} tokens, {} rows a step, prefix cache {}{}\n",
      s.pool_tokens, s.seqs_max, s.model_len_max, s.step_tokens, s.prefix_cache ? "on" : "off",
      s.step_latency == 0 ? "" : fmt::format(", steps of {} ms", static_cast<double>(s.step_latency) * 1e-3));
  fmt::print(
      "a step takes {} us + the larger of {} and {} a row, + {} for each position a decode row reads and {} "
      "for "
      "a prompt row\n\n",
      s.cost.fixed, s.cost.weights, s.cost.row, s.cost.kv_decode, s.cost.kv_prefill);
  print_memory(runs);
  print_speed(runs);
  for (const SimulatedRun& run : runs) {
    for (const RefusalName& name : kRefusals) {
      const uint64_t n = run.report.refused[static_cast<size_t>(name.refusal)];
      if (n > 0) fmt::print("{}: {} requests refused, {}\n", scheme_name(run.scenario.scheme), n, name.text);
    }
  }
  if (trace.skipped > 0) fmt::print("{} requests of the file had failed: not replayed\n", trace.skipped);
  if (runs.size() == 1) print_intervals(runs.front());
}

}  // namespace tally::apps
