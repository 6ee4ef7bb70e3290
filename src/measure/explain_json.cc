// An explanation for machines.
#include "measure/explain.h"

namespace tally::measure {
namespace {

using nlohmann::json;

json bounds_json(const BoundTimes& times, double wall_s) {
  json out = json::object();
  for (size_t i = 0; i < kBounds; ++i)
    out[std::string(kBoundNames[i])] = wall_s > 0 ? times[static_cast<Bound>(i)] / wall_s : 0;
  return out;
}

json drafts_json(const StepGroup& g) {
  json out = json::object();
  for (const auto& [proposer, of] : g.drafts)
    out[proposer] = {{"draft_tokens", of.draft_tokens}, {"accepted_tokens", of.accepted_tokens}};
  return out;
}

json group_json(const StepGroup& g) {
  return {{"steps", g.steps},
          {"prefill_tokens", g.prefill_tokens},
          {"decode_tokens", g.decode_tokens},
          {"draft_tokens", g.draft_tokens},
          {"accepted_tokens", g.accepted_tokens},
          {"drafts", drafts_json(g)},
          {"recompute_tokens", g.recompute_tokens},
          {"wall_s", g.wall_s},
          {"forward_s", g.forward_s},
          {"median_s", g.median_s},
          {"predicted_s", g.predicted_steps > 0 ? json(g.predicted_s) : json(nullptr)},
          {"predicted_wall_s", g.predicted_steps > 0 ? json(g.predicted_wall_s) : json(nullptr)},
          {"tokens_per_s", g.wall_s > 0 ? static_cast<double>(g.tokens()) / g.wall_s : 0},
          {"weight_bytes", g.weight_bytes},
          {"kv_bytes", g.kv_bytes},
          {"activation_bytes", g.activation_bytes},
          {"flops", g.flops},
          {"t_bw_s", g.bandwidth_s},
          {"t_op_s", g.operations_s},
          {"efficiency", g.efficiency()},
          {"bound", g.is_bandwidth_bound() ? "bandwidth" : "compute"},
          {"shares", bounds_json(g.by_bound, g.wall_s)},
          {"phases_s", g.phases_s}};
}

json stages_json(const StageTimes& stages) {
  json out = json::object();
  for (size_t i = 0; i < kStages; ++i) out[std::string(kStageNames[i])] = stages[i];
  return out;
}

json shares_json(const StageShares& s) {
  StageTimes shares = s.seconds;
  for (double& share : shares) share = s.e2e_s > 0 ? share / s.e2e_s : 0;
  return {{"requests", s.requests}, {"e2e_s", s.e2e_s}, {"shares", stages_json(shares)}};
}

json waited_json(const std::vector<WaitedRequest>& list) {
  json out = json::array();
  for (const WaitedRequest& w : list) {
    json culprits = json::array();
    for (const Culprit& c : w.culprits)
      culprits.push_back({{"id", c.id},
                          {"class", c.class_name},
                          {"prompt_tokens", c.prompt_tokens},
                          {"overlap_s", c.overlap_s}});
    out.push_back({{"id", w.id},
                   {"class", w.class_name},
                   {"prompt_tokens", w.prompt_tokens},
                   {"output_tokens", w.output_tokens},
                   {"planned_s", w.planned_s},
                   {"e2e_s", w.e2e_s},
                   {"wait_begin_s", w.wait_begin_s},
                   {"wait_s", w.wait_s},
                   {"preemptions", w.preemptions},
                   {"stages_s", stages_json(w.stages)},
                   {"prefilled_meanwhile", std::move(culprits)},
                   {"prefilled_meanwhile_count", w.culprits_all}});
    json& engine = out.back()["engine"];
    if (w.engine)
      engine = {{"steps", w.engine->steps},
                {"prefill_tokens", w.engine->prefill_tokens},
                {"wall_s", w.engine->wall_s}};
  }
  return out;
}

json requests_json(const RequestsAccount& r) {
  json by_class = json::object();
  for (const auto& [name, shares] : r.by_class) by_class[name] = shares_json(shares);
  return {{"completed", r.completed},
          {"with_receipt", r.with_receipt},
          {"all", shares_json(r.all)},
          {"by_class", std::move(by_class)},
          {"worst_ttft", waited_json(r.worst_ttft)},
          {"worst_gap", waited_json(r.worst_gap)},
          {"slowest", waited_json(r.slowest)}};
}

json steps_json(const std::vector<StepTime>& steps) {
  json out = json::array();
  for (const StepTime& s : steps)
    out.push_back({{"step", s.step},
                   {"kind", kStepKindNames[static_cast<size_t>(s.kind)]},
                   {"wall_s", s.wall_s},
                   {"t_bw_s", s.bandwidth_s},
                   {"t_op_s", s.operations_s},
                   {"efficiency", s.efficiency()},
                   {"bound", kBoundNames[static_cast<size_t>(s.by_bound.largest())]}});
  return out;
}

json optional(const std::optional<double>& value) { return value ? json(*value) : json(nullptr); }

}  // namespace

json explanation_json(const Explanation& e, bool with_steps) {
  json kinds = json::object(), batches = json::array(), sentences = json::array();
  for (size_t i = 0; i < kStepKinds; ++i)
    kinds[std::string(kStepKindNames[i])] = group_json(e.steps.groups[i]);
  for (const auto& [rows, batch] : e.steps.decode_batches)
    batches.push_back({{"rows", rows}, {"steps", batch.steps}, {"wall_s", batch.wall_s}});
  for (const Sentence& s : e.sentences)
    sentences.push_back({{"text", s.text},
                         {"predicted", s.is_predicted},
                         {"flag", s.flag.empty() ? json(nullptr) : json(s.flag)},
                         {"evidence", s.evidence}});
  json out = {
      {"subject", e.subject},
      {"model", e.server.model},
      {"threads", e.server.threads},
      {"roofs", e.roofs.empty() ? json(nullptr) : roofs_json(e.roofs)},
      {"roofs_source", e.roofs_source},
      {"wall_s", e.steps.wall_s},
      {"shares", bounds_json(e.steps.by_bound, e.steps.wall_s)},
      {"overhead_s", {{"bandwidth", e.steps.bandwidth_overhead_s}, {"compute", e.steps.compute_overhead_s}}},
      {"steps", e.steps.steps.size()},
      {"steps_missing", e.steps.missing},
      {"kinds", std::move(kinds)},
      {"decode_batches", std::move(batches)},
      {"cap",
       {{"preemptions", optional(e.cap.preemptions)},
        {"recomputed_tokens", optional(e.cap.recomputed_tokens)},
        {"refused", optional(e.cap.refused)},
        {"kv_held_max", e.steps.kv_held_max}}},
      {"sentences", std::move(sentences)},
      {"doubts", e.doubts}};
  out["requests"] = e.requests ? requests_json(*e.requests) : json(nullptr);
  if (with_steps) out["step_times"] = steps_json(e.steps.steps);
  return out;
}

}  // namespace tally::measure
