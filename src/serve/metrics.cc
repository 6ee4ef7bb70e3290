#include "serve/metrics.h"

#include "base/accounts.h"
#include "base/log.h"
#include "serve/build_info.h"
#include "serve/metrics_compat.h"
#include "serve/metrics_page.h"
#include "serve/process_stats.h"

#include <prometheus/text_serializer.h>

#include <algorithm>

namespace tally::serve {
namespace {

double number(uint64_t v) { return static_cast<double>(v); }
double number(const std::atomic<uint64_t>& v) {
  return static_cast<double>(v.load(std::memory_order_relaxed));
}

constexpr std::string_view kConnectionStates[] = {"idle", "reading", "running", "writing"};

// Builds the families at each scrape, from one snapshot of the engine.
class Scrape final : public prometheus::Collectable {
 public:
  Scrape(const Desk& desk, const Counters& counters, const std::array<uint64_t, 4>& connections)
      : desk_(desk), counters_(counters), connections_(connections), stats_(desk.backend.engine->stats()) {
    // Requests whose constraint is being compiled wait, though not in the engine.
    const uint64_t compiling = counters.compiling.load();
    stats_.waiting += compiling, stats_.waiting_deferred += compiling;
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    MetricsPage page(desk_.settings.model_name);
    add_gauges(page);
    add_tokens(page);
    add_ends(page);
    add_speculation(page);
    add_histograms(page);
    add_infos(page);
    add_memory(page);
    add_blocks(page);
    add_disk(page);
    add_weight_stream(page);
    add_requests(page);
    add_steps(page);
    add_bounds(page);
    add_process(page);
    const auto& sets = desk_.settings.metrics.sets;
    if (std::ranges::find(sets, "vllm-legacy") != sets.end()) add_vllm_legacy(page, stats_);
    if (std::ranges::find(sets, "llamacpp") != sets.end())
      add_llamacpp(page, stats_, desk_.rates, desk_.backend.engine->info());
    return page.take();
  }

 private:
  void add_gauges(MetricsPage& page) const {
    page.gauge("vllm:num_requests_running", number(stats_.running));
    page.gauge("vllm:num_requests_waiting", number(stats_.waiting));
    page.gauge("vllm:num_requests_waiting_by_reason", number(stats_.waiting - stats_.waiting_deferred),
               {{"reason", "capacity"}});
    page.gauge("vllm:num_requests_waiting_by_reason", number(stats_.waiting_deferred),
               {{"reason", "deferred"}});
    page.gauge("vllm:kv_cache_usage_perc", pool_usage(stats_));
    page.gauge("tally_queue_tokens", number(stats_.queue_tokens));
    page.gauge("tally_queue_oldest_seconds", stats_.queue_oldest_s);
    page.gauge("tally_stalled_writers", static_cast<double>(counters_.stalled_writers.load()));
  }

  void add_tokens(MetricsPage& page) const {
    page.counter("vllm:prompt_tokens_total", number(stats_.prompt_tokens));
    page.counter("vllm:prompt_tokens_by_source_total",
                 number(stats_.prompt_tokens - stats_.prompt_tokens_cached), {{"source", "local_compute"}});
    page.counter("vllm:prompt_tokens_by_source_total", number(stats_.prompt_tokens_cached),
                 {{"source", "local_cache_hit"}});
    page.counter("vllm:prompt_tokens_by_source_total", 0, {{"source", "external_kv_transfer"}});
    page.counter("vllm:prompt_tokens_cached_total", number(stats_.prompt_tokens_cached));
    page.counter("vllm:prompt_tokens_recomputed_total", number(stats_.prompt_tokens_recomputed));
    page.counter("vllm:generation_tokens_total", number(stats_.generation_tokens));
    page.counter("vllm:prefix_cache_queries_total", number(stats_.prefix_queries));
    page.counter("vllm:prefix_cache_hits_total", number(stats_.prefix_hits));
    page.counter("vllm:num_preemptions_total", number(stats_.preemptions));
    page.counter("vllm:estimated_flops_per_gpu_total", number(stats_.flops));
    page.counter("vllm:estimated_read_bytes_per_gpu_total",
                 number(stats_.weight_bytes_read + stats_.kv_bytes_read + stats_.activation_bytes_read));
    page.counter("vllm:estimated_write_bytes_per_gpu_total", number(stats_.kv_bytes_written));
    page.counter("tally_forks_total", number(stats_.forks));
    page.counter("tally_preemption_total", number(stats_.preemptions), {{"cause", "growth"}});
    page.counter("tally_preemption_total", 0, {{"cause", "priority"}});
    page.counter("tally_preempted_tokens_total", number(stats_.preempted_tokens));
    page.counter("tally_recomputed_tokens_total", number(stats_.rows_recompute));
  }

  // A sequence we cancel at a stop string has succeeded, though the engine only knows that it was cancelled.
  void add_ends(MetricsPage& page) const {
    const auto by = [this](engine::Finish finish) {
      return number(stats_.finished[static_cast<size_t>(finish)]);
    };
    const auto add = [&page](std::string_view reason, double value) {
      page.counter("vllm:request_success_total", value, {{"finished_reason", reason}});
    };
    add("stop", by(engine::Finish::kStop) + number(counters_.sequences_stopped));
    add("length", by(engine::Finish::kLength));
    add("abort", number(counters_.sequences_aborted));
    add("error", by(engine::Finish::kDeadline) + by(engine::Finish::kNonFinite) +
                     by(engine::Finish::kDeadEnd) + by(engine::Finish::kInternal) +
                     by(engine::Finish::kShutdown));
    add("repetition", 0);
    page.counter("vllm:corrupted_requests_total", by(engine::Finish::kNonFinite));
  }

  // The names exist while there is no speculation: benchmarks read them.
  void add_speculation(MetricsPage& page) const {
    const engine::Speculation& s = stats_.speculation;
    page.counter("vllm:spec_decode_num_drafts_total", number(s.rounds));
    page.counter("vllm:spec_decode_num_draft_tokens_total", number(s.drafted));
    page.counter("vllm:spec_decode_num_accepted_tokens_total", number(s.accepted));
    add_accepted_by_position(page, "vllm:spec_decode_num_accepted_tokens_per_pos_total", s,
                             desk_.backend.engine->info().speculate_max);
    for (size_t i = 0; i < engine::kDraftSources; ++i)
      page.counter("tally_draft_tokens_total", number(s.by[i].drafted),
                   {{"proposer", std::string(engine::kDraftSourceNames[i])}});
    for (size_t i = 0; i < engine::kDraftSources; ++i)
      page.counter("tally_accepted_draft_tokens_total", number(s.by[i].accepted),
                   {{"proposer", std::string(engine::kDraftSourceNames[i])}});
    page.gauge("tally_speculation_ratio", s.ratio);
    page.gauge("tally_speculation_paused_sequences", number(s.paused));
  }

  void add_histograms(MetricsPage& page) const {
    page.histogram("vllm:time_to_first_token_seconds", stats_.ttft);
    page.histogram("vllm:inter_token_latency_seconds", stats_.inter_token);
    page.histogram("vllm:request_time_per_output_token_seconds", stats_.time_per_output_token);
    page.histogram("vllm:e2e_request_latency_seconds", stats_.e2e);
    page.histogram("vllm:request_queue_time_seconds", stats_.queue);
    page.histogram("vllm:request_prefill_time_seconds", stats_.prefill);
    page.histogram("vllm:request_decode_time_seconds", stats_.decode);
    page.histogram("vllm:request_inference_time_seconds", stats_.inference);
    page.histogram("vllm:request_prompt_tokens", stats_.prompt_tokens_per_request);
    page.histogram("vllm:request_generation_tokens", stats_.generation_tokens_per_request);
    page.histogram("vllm:request_prefill_kv_computed_tokens", stats_.prefill_computed);
    page.histogram("vllm:request_max_num_generation_tokens", desk_.longest);
    page.histogram("vllm:request_params_max_tokens", desk_.max_tokens);
    page.histogram("vllm:request_params_n", desk_.choices);
    page.histogram("vllm:iteration_tokens_total", stats_.iteration_tokens);
    page.histogram("vllm:kv_block_lifetime_seconds", stats_.block_lifetime);
    page.histogram("vllm:kv_block_idle_before_evict_seconds", stats_.block_idle);
    page.histogram("vllm:kv_block_reuse_gap_seconds", stats_.block_reuse_gap);
  }

  void add_infos(MetricsPage& page) const {
    const engine::Info& info = desk_.backend.engine->info();
    page.gauge("vllm:cache_config_info", 1,
               {{"engine", "0"},
                {"block_size", std::to_string(info.block_tokens)},
                {"num_gpu_blocks", std::to_string(info.blocks)},
                {"cache_dtype", info.kv_type},
                {"enable_prefix_caching", desk_.backend.prefix_cache ? "True" : "False"}});
    page.gauge("tally_build_info", 1,
               {{"version", kVersion}, {"build", build_id()}, {"isa", info.isa}, {"compiler", compiler()}});
    page.gauge("tally_model_info", 1,
               {{"model", desk_.settings.model_name},
                {"sha256", info.model_fingerprint},
                {"arch", info.architecture},
                {"weight_type", desk_.backend.weight_type},
                {"kv_type", info.kv_type}});
  }

  void add_memory(MetricsPage& page) const {
    const base::Accounts* accounts = desk_.backend.accounts;
    for (size_t i = 0; i < base::kAccountCount; ++i) {
      const auto account = static_cast<base::Account>(i);
      const base::AccountUse use = accounts ? accounts->use(account) : base::AccountUse{};
      const std::pair<std::string_view, uint64_t> states[] = {
          {"planned", use.planned}, {"reserved", use.reserved}, {"used", use.used}, {"peak", use.peak}};
      for (const auto& [state, bytes] : states)
        page.gauge("tally_memory_bytes", number(bytes),
                   {{"account", base::account_name(account)}, {"state", state}});
    }
    const base::ProcessMemory memory = base::process_memory();
    const uint64_t reserved = accounts ? accounts->reserved_bytes() : 0;
    page.gauge("tally_memory_cap_bytes", accounts ? number(accounts->cap_bytes()) : 0);
    page.gauge("tally_memory_rss_anon_bytes", number(memory.rss_anon));
    page.gauge("tally_memory_unaccounted_bytes", number(memory.rss_anon) - number(reserved));
    page.gauge("process_resident_memory_bytes", number(memory.rss));
    page.gauge("process_virtual_memory_bytes", number(memory.virtual_size));
  }

  void add_blocks(MetricsPage& page) const {
    page.gauge("tally_kv_blocks", number(stats_.blocks_free), {{"state", "free"}});
    page.gauge("tally_kv_blocks", number(stats_.blocks_held), {{"state", "held"}});
    page.gauge("tally_kv_blocks", number(stats_.blocks_cached), {{"state", "cached"}});
    const uint32_t block_tokens = desk_.backend.engine->info().block_tokens;
    const double token_bytes = block_tokens > 0 ? number(stats_.block_bytes) / block_tokens : 0;
    page.gauge("tally_kv_block_bytes", number(stats_.block_bytes));
    page.gauge("tally_kv_internal_waste_bytes", number(stats_.waste_tokens) * token_bytes);
    page.gauge("tally_kv_shared_blocks", number(stats_.blocks_shared));
    page.counter("tally_kv_cow_copies_total", number(stats_.copied_blocks));
    page.counter("tally_kv_evictions_total", number(stats_.evictions));
    page.gauge("tally_prefix_cache_entries", number(stats_.blocks_registered));
    page.counter("tally_prefix_cache_hash_mismatch_total", number(stats_.hash_mismatches));
  }

  void add_disk(MetricsPage& page) const {
    const engine::KvDiskStats& d = stats_.kv_disk;
    page.gauge("tally_kv_disk_blocks", number(d.used), {{"state", "used"}});
    page.gauge("tally_kv_disk_blocks", number(d.slots - d.used), {{"state", "free"}});
    const std::pair<const char*, uint64_t> kinds[] = {{"read", d.read_blocks},
                                                      {"written", d.written_blocks},
                                                      {"computed", d.refused_blocks},
                                                      {"dropped", d.dropped_blocks},
                                                      {"damaged", d.damaged_blocks}};
    for (const auto& [what, blocks] : kinds)
      page.counter("tally_kv_disk_blocks_total", number(blocks), {{"what", what}});
    page.counter("tally_kv_disk_bytes_total", number(d.read_bytes), {{"what", "read"}});
    page.counter("tally_kv_disk_bytes_total", number(d.written_bytes), {{"what", "written"}});
    page.gauge("tally_kv_disk_read_bytes_per_second", d.read_bytes_per_s);
    page.gauge("tally_prefill_rows_per_second", d.prefill_rows_per_s);
  }

  void add_weight_stream(MetricsPage& page) const {
    const engine::WeightStreamStats& w = stats_.weight_stream;
    page.gauge("tally_weight_stream_layers", number(w.layers));
    page.gauge("tally_weight_stream_pass_bytes", number(w.pass_bytes));
    page.counter("tally_weight_stream_bytes_total", number(w.read_bytes));
    page.counter("tally_weight_stream_seconds_total", w.read_s, {{"what", "read"}});
    page.counter("tally_weight_stream_seconds_total", w.waited_s, {{"what", "wait"}});
    page.gauge("tally_weight_stream_predicted_bytes_per_second", w.predicted_bytes_per_s);
  }

  void add_requests(MetricsPage& page) const {
    for (size_t i = 0; i < std::size(kReceivedNames); ++i)
      page.counter("tally_requests_received_total", number(counters_.received[i]),
                   {{"route", kReceivedNames[i]}});
    for (size_t i = 0; i < kCodeCount; ++i)
      page.counter("tally_requests_refused_total", number(counters_.refused[i]), {{"code", kCodes[i].name}});
    for (size_t i = 0; i < std::size(kEndedNames); ++i)
      page.counter("tally_requests_ended_total", number(counters_.ended[i]), {{"reason", kEndedNames[i]}});
    for (size_t i = 0; i <= kRouteCount; ++i)
      for (size_t c = 0; c < std::size(kClassNames); ++c)
        page.counter("tally_http_responses_total", number(counters_.responses[i][c]),
                     {{"route", i < kRouteCount ? kRoutes[i].path : "other"}, {"class", kClassNames[c]}});
    for (size_t i = 0; i < std::size(kConnectionStates); ++i)
      page.gauge("tally_http_connections", number(connections_[i]), {{"state", kConnectionStates[i]}});
    for (size_t i = 0; i < kStageCount; ++i)
      page.counter("tally_request_stage_seconds_total", number(counters_.stage_us[i]) * 1e-6,
                   {{"stage", kStageNames[i]}});
  }

  void add_steps(MetricsPage& page) const {
    page.counter("tally_steps_total", number(stats_.steps_prefill), {{"kind", "prefill"}});
    page.counter("tally_steps_total", number(stats_.steps_decode), {{"kind", "decode"}});
    page.counter("tally_steps_total", number(stats_.steps_mixed), {{"kind", "mixed"}});
    page.histogram("tally_step_seconds", stats_.step_prefill, {{"kind", "prefill"}});
    page.histogram("tally_step_seconds", stats_.step_decode, {{"kind", "decode"}});
    page.histogram("tally_step_seconds", stats_.step_mixed, {{"kind", "mixed"}});
    const std::pair<std::string_view, double> phases[] = {
        {"plan", stats_.plan_s},     {"pack", stats_.pack_s},     {"forward", stats_.forward_s},
        {"sample", stats_.sample_s}, {"commit", stats_.commit_s}, {"idle", stats_.idle_s}};
    for (const auto& [phase, seconds] : phases)
      page.counter("tally_step_phase_seconds_total", seconds, {{"phase", phase}});
    page.counter("tally_step_rows_total", number(stats_.rows_prefill), {{"what", "prefill"}});
    page.counter("tally_step_rows_total", number(stats_.rows_decode), {{"what", "decode"}});
    page.counter("tally_step_rows_total", number(stats_.rows_draft), {{"what", "draft"}});
    page.counter("tally_step_rows_total", number(stats_.rows_recompute), {{"what", "recompute"}});
    page.counter("tally_step_bytes_read_total", number(stats_.weight_bytes_read), {{"what", "weights"}});
    page.counter("tally_step_bytes_read_total", number(stats_.kv_bytes_read), {{"what", "kv"}});
    page.counter("tally_step_bytes_read_total", number(stats_.activation_bytes_read),
                 {{"what", "activations"}});
    page.counter("tally_step_flops_total", number(stats_.flops));
    page.histogram("tally_step_model_error_ratio", stats_.step_model_error);
  }

  // Where the roofs are not known, nobody can say what bound a pass.
  void add_bounds(MetricsPage& page) const {
    const std::pair<std::string_view, double> bounds[] = {
        {"bandwidth", stats_.bandwidth_s},
        {"compute", stats_.compute_s},
        {"forward", stats_.unbound_s},
        {"sampling", stats_.sample_s},
        {"scheduling", stats_.plan_s + stats_.pack_s + stats_.commit_s},
        {"idle", stats_.idle_s}};
    for (const auto& [by, seconds] : bounds) page.counter("tally_bound_seconds_total", seconds, {{"by", by}});
    const engine::Info& info = desk_.backend.engine->info();
    const std::string threads = std::to_string(info.threads);
    page.gauge("tally_roof_bytes_per_second", info.roofs.bytes_per_s, {{"threads", threads}});
    page.gauge("tally_roof_flops", info.roofs.ops_per_s, {{"threads", threads}});
  }

  void add_process(MetricsPage& page) const {
    const ProcessStats process = process_stats();
    page.counter("process_cpu_seconds_total", process.cpu_s);
    page.gauge("process_open_fds", number(process.open_fds));
    page.gauge("process_max_fds", number(process.max_fds));
    page.gauge("process_start_time_seconds", process.start_s);
    page.gauge("process_threads", number(process.threads));
    page.counter("tally_log_lines_dropped_total", number(base::log_lines_dropped()));
    page.counter("tally_write_errors_total", number(base::log_write_errors()), {{"sink", "log"}});
    page.counter("tally_major_faults_total", number(process.major_faults));
    page.counter("tally_cpu_steal_seconds_total", process.steal_s);
  }

  const Desk& desk_;
  const Counters& counters_;
  const std::array<uint64_t, 4>& connections_;
  engine::Stats stats_;
};

}  // namespace

std::string metrics_text(const Desk& desk, const Counters& counters,
                         const std::array<uint64_t, 4>& connections) {
  return prometheus::TextSerializer().Serialize(Scrape(desk, counters, connections).Collect());
}

std::string metrics_document() {
  constexpr std::string_view kTypes[] = {"counter", "gauge", "histogram"};
  bool compat_begun = false;
  std::string out =
      "# Metrics\n\nGenerated from src/serve/metrics.inc and metrics_compat.inc; `GET /metrics` shows them "
      "in this order. Rows "
      "`vllm:…` also carry the labels "
      "`model_name` and `engine`\n(`vllm:cache_config_info`: `engine` only).\n\n| name | type | unit | "
      "labels | meaning |\n|---|---|---|---|---|\n";
  for (const MetricRow& row : kMetrics) {
    if (row.set != MetricSet::kOwn && !compat_begun) {
      out +=
          "\n## With --metrics-compat\n\nNames `vllm:…` are of the set `vllm-legacy`, names `llamacpp:…` of "
          "`llamacpp` and without labels of the server.\n\n| name | type | unit | labels | meaning |\n"
          "|---|---|---|---|---|\n";
      compat_begun = true;
    }
    out += "| `" + std::string(row.name) + "` | ";
    out += kTypes[static_cast<size_t>(row.type)];
    out += " | " + std::string(row.unit) + " | " + std::string(row.labels) + " | " + std::string(row.help) +
           " |\n";
  }
  return out;
}

}  // namespace tally::serve
