// An evaluation as JSON, and as a run to be stored.
#include "base/sha256.h"
#include "measure/eval.h"
#include "measure/load_head.h"
#include "measure/machine.h"
#include "measure/quantile.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

namespace tally::measure {
namespace {

using nlohmann::json;

json estimate_json(const Estimate& e) {
  return {{"value", e.value}, {"low", e.interval.low}, {"high", e.interval.high}};
}

json text_json(const CodecFigures& codec, bool compares) {
  const TextFigures& f = codec.text;
  json out = {{"positions", f.positions}, {"ppl", estimate_json(f.ppl)}, {"nll", estimate_json(f.nll)}};
  if (!compares) return out;
  out["kld_mean"] = estimate_json(f.kld);
  out["kld_p50"] = f.kld_p50, out["kld_p99"] = f.kld_p99, out["kld_max"] = f.kld_max;
  json& depths = out["kld_by_depth"] = json::array();
  for (const double mean : f.kld_by_depth) depths.push_back(std::isnan(mean) ? json(nullptr) : json(mean));
  out["ppl_ratio"] = estimate_json(f.ppl_ratio);
  out["same_top"] = estimate_json(f.same_top);
  out["probability_change_rms"] = f.probability_rms;
  return out;
}

json probe_json(const ProbeFigures& f) {
  json out = {{"name", f.name},
              {"items", f.items},
              {"right", f.right},
              {"same_as_f32", f.same},
              {"right_in_f32_only", f.only_reference},
              {"right_here_only", f.only_this},
              {"mcnemar_p", f.p},
              {"cells", json::array()}};
  for (const ProbeFigures::Cell& cell : f.cells)
    out["cells"].push_back({{"name", cell.name}, {"items", cell.items}, {"right", cell.right}});
  return out;
}

json codec_json(const CodecFigures& codec, const EvalReport& report) {
  json out = {{"kv_type", codec.kv_type},
              {"kv_types_by_layer", codec.kv_types},
              {"bytes_per_token", codec.bytes_per_token},
              {"text", codec.text.positions > 0 ? text_json(codec, report.has_reference()) : json(nullptr)},
              {"attention_reads",
               {{"positions", codec.reads.positions},
                {"from_earlier_passes", codec.reads.earlier_positions},
                {"bytes", codec.reads.bytes}}}};
  if (!codec.layer_damage.empty()) {
    out["damage_by_layer"] = codec.layer_damage;
    out["damaged_layers"] = damaged_layers(codec.layer_damage);
  }
  if (report.options.kind != EvalKind::kKv) return out;
  const DivergenceFigures& d = codec.divergence;
  if (!d.first.empty()) {
    out["divergence"] = {
        {"first", d.first}, {"tokens", d.tokens}, {"median", d.median}, {"never_share", d.never_share}};
  }
  for (const ProbeFigures& probe : codec.probes) out["probes"].push_back(probe_json(probe));
  if (!codec.decode_rates.empty()) {
    out["decode"] = {{"depth", codec.decode_depth},
                     {"tokens_per_second", median_of(codec.decode_rates)},
                     {"rounds", codec.decode_rates}};
  }
  return out;
}

}  // namespace

std::string eval_command(EvalKind kind) {
  return kind == EvalKind::kPpl ? "eval ppl" : kind == EvalKind::kKld ? "eval kld" : "eval kv";
}

json eval_json(const EvalReport& report) {
  const SelfTest& test = report.self_test;
  json out = {{"context", report.options.context},
              {"text", report.text_name},
              {"text_sha256", report.text_sha256},
              {"text_tokens", report.text_tokens},
              {"reference", report.has_reference() ? json("f32") : json(nullptr)},
              {"duration", report.seconds},
              {"codecs", json::array()}};
  out["self_test"] = {{"not_read_back", test.not_read_back}};
  if (report.has_reference()) {
    out["self_test"]["noise_kld"] = estimate_json(test.noise_kld);
    out["self_test"]["noise_limit"] = test.noise_limit;
  }
  for (const CodecFigures& codec : report.codecs) out["codecs"].push_back(codec_json(codec, report));
  return out;
}

Run eval_run(const EvalReport& report, const engine::Scorer& scorer, const std::string& model_path,
             const std::string& mode) {
  std::string kv_types;
  for (const CodecFigures& codec : report.codecs) kv_types += (kv_types.empty() ? "" : ",") + codec.kv_type;
  json machine = machine_json();
  machine["tier"] = scorer.isa();
  // The same text, cut and asked about alike.
  const EvalOptions& o = report.options;
  const std::string workload =
      fmt::format("{} {} {} {} {} {} {} {}", eval_command(o.kind), report.text_sha256, o.context, o.tokens,
                  o.prompts, o.new_tokens, o.questions, o.seed);
  const std::string& fingerprint = scorer.model_fingerprint();
  Run run;
  run.head = {
      {"schema", kSchema},
      {"started", wall_clock()},
      {"status", report.is_complete ? "complete" : "incomplete"},
      {"valid", report.invalid_reasons.empty()},
      {"invalid_reasons", report.invalid_reasons},
      {"warnings", report.warnings},
      {"client_settings", {{"mode", mode}}},
      {"settings", json::object()},
      {"machine", std::move(machine)},
      {"model",
       {{"path_basename", std::filesystem::path(model_path).filename().string()},
        {"sha256", fingerprint.substr(0, 64)},
        {"kv_type", kv_types}}},
      {"workload",
       {{"sha256", base::hex(base::sha256(workload))}, {"name", report.text_name}, {"seed", o.seed}}},
      {"results", eval_json(report)},
      {"stats_method",
       "means: bootstrap over blocks of 512 tokens, 2,000 draws; percentiles: Hyndman-Fan type 7; right "
       "answers: exact McNemar"}};
  return run;
}

}  // namespace tally::measure
