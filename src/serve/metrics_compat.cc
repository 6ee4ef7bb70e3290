#include "serve/metrics_compat.h"

#include "base/clock.h"

#include <algorithm>
#include <string>

namespace tally::serve {
namespace {

double as_double(uint64_t v) { return static_cast<double>(v); }
double over(double a, double b) { return b > 0 ? a / b : 0; }

}  // namespace

double pool_usage(const engine::Stats& stats) {
  return over(as_double(stats.blocks_held), as_double(stats.blocks_total));
}

uint64_t computed_prompt_tokens(const engine::Stats& stats) {
  return stats.prompt_tokens - stats.prompt_tokens_cached;
}

void add_vllm_legacy(MetricsPage& page, const engine::Stats& s) {
  page.gauge("vllm:gpu_cache_usage_perc", pool_usage(s));
  page.counter("vllm:gpu_prefix_cache_queries_total", as_double(s.prefix_queries));
  page.counter("vllm:gpu_prefix_cache_hits_total", as_double(s.prefix_hits));
  page.gauge("vllm:gpu_prefix_cache_hit_rate", over(as_double(s.prefix_hits), as_double(s.prefix_queries)));
  page.histogram("vllm:time_per_output_token_seconds", s.inter_token);
  page.gauge("vllm:cpu_cache_usage_perc", 0);
  page.gauge("vllm:num_requests_swapped", 0);
  page.histogram("vllm:time_per_prefill_token_request_seconds", s.prefill_per_token);
}

void add_accepted_by_position(MetricsPage& page, std::string_view name, const engine::Speculation& speculation,
                              uint32_t drafts_max) {
  for (size_t i = 0; i < std::max<size_t>(1, drafts_max); ++i)
    page.counter(name, as_double(speculation.accepted_at[i]), {{"position", std::to_string(i)}});
}

void add_llamacpp(MetricsPage& page, const engine::Stats& s, const RateWindow& window,
                  const engine::Info& info) {
  const double steps = as_double(s.steps_prefill + s.steps_decode + s.steps_mixed);
  page.counter("llamacpp:prompt_tokens_total", as_double(computed_prompt_tokens(s)));
  page.counter("llamacpp:prompt_tokens_cached_total", as_double(s.prompt_tokens_cached));
  page.counter("llamacpp:prompt_seconds_total", s.prefill.sum);
  page.counter("llamacpp:tokens_predicted_total", as_double(s.generation_tokens));
  page.counter("llamacpp:tokens_predicted_seconds_total", s.decode.sum);
  page.counter("llamacpp:n_decode_total", steps);
  page.counter("llamacpp:n_tokens_max", as_double(s.sequence_tokens_max));
  page.counter("llamacpp:spec_decode_num_drafts_total", as_double(s.speculation.rounds));
  page.counter("llamacpp:spec_decode_num_draft_tokens_total", as_double(s.speculation.drafted));
  page.counter("llamacpp:spec_decode_num_accepted_tokens_total", as_double(s.speculation.accepted));
  add_accepted_by_position(page, "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", s.speculation,
                           info.speculate_max);
  const RateWindow::Rates rates =
      window.rates(base::now_us(), computed_prompt_tokens(s), s.generation_tokens);
  page.gauge("llamacpp:prompt_tokens_seconds", rates.prompt);
  page.gauge("llamacpp:predicted_tokens_seconds", rates.generated);
  page.gauge("llamacpp:requests_processing", as_double(s.running));
  page.gauge("llamacpp:requests_deferred", as_double(s.waiting));
  page.gauge("llamacpp:n_busy_slots_per_decode", over(as_double(s.step_sequences), steps));
  page.gauge("llamacpp:kv_cache_usage_ratio", pool_usage(s));
  page.gauge("llamacpp:kv_cache_tokens",
             as_double(s.blocks_held) * as_double(info.block_tokens) - as_double(s.waste_tokens));
}

}  // namespace tally::serve
