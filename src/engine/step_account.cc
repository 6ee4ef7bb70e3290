#include "engine/step_account.h"

#include <algorithm>
#include <cmath>

namespace tally::engine {
namespace {

// Upper edges, seconds: vLLM's, with finer ones below for small models (supersets keep histogram_quantile
// right).
constexpr double kTtft[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                            1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
constexpr double kInterToken[] = {.0005, .001, .002, .003, .005, .0075, .01, .025, .05, .075, .1, .15, .2,
                                  .3,    .4,   .5,   .75,  1,    2.5,   5,   7.5,  10,  20,   40, 80};
constexpr double kLatency[] = {.0005, .001, .002, .005, .01, .02, .05, .1,  .2,   .3,
                               .5,    .8,   1,    1.5,  2,   2.5, 5,   10,  15,   20,
                               30,    40,   50,   60,   120, 240, 480, 960, 1920, 7680};
constexpr double kIteration[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr double kTokens[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                              2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
constexpr double kStep[] = {.0005, .001, .002, .004,  .008,  .016,  .032,  .064,
                            .128,  .256, .512, 1.024, 2.048, 4.096, 8.192, 16.384};

constexpr double kSecondsPerToken[] = {.001, .002, .005, .01, .02, .05, .1, .2, .5, 1};
constexpr double kRatio[] = {.01, .02, .05, .1, .2, .5, 1};

Histogram histogram_of(const kv::AgeCounts& ages) {
  return {kv::kAgeEdgesSeconds, {ages.counts().begin(), ages.counts().end()}, ages.seconds()};
}

// The last edge is the largest 1-2-5 number within the context.
std::span<const double> token_edges(uint32_t max_model_len) {
  size_t n = 1;
  while (n < std::size(kTokens) && kTokens[n] <= max_model_len) ++n;
  return {kTokens, n};
}

double seconds(int64_t from_us, int64_t to_us) { return static_cast<double>(to_us - from_us) * 1e-6; }

}  // namespace

void Tally::observe(double value, uint64_t times) {
  const auto at = std::lower_bound(edges_.begin(), edges_.end(), value);
  counts_[static_cast<size_t>(at - edges_.begin())] += times;
  sum_ += value * static_cast<double>(times);
}

Histogram Tally::snapshot() const {
  return {edges_, {counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(edges_.size() + 1)}, sum_};
}

StepAccount::StepAccount(uint32_t max_model_len)
    : ttft(kTtft),
      inter_token(kInterToken),
      time_per_output_token(kInterToken),
      e2e(kLatency),
      queue(kLatency),
      prefill(kLatency),
      decode(kLatency),
      inference(kLatency),
      prompt_tokens(token_edges(max_model_len)),
      generation_tokens(token_edges(max_model_len)),
      iteration_tokens(kIteration),
      step_prefill(kStep),
      step_decode(kStep),
      step_mixed(kStep),
      prefill_computed(token_edges(max_model_len)),
      prefill_per_token(kSecondsPerToken),
      step_model_error(kRatio) {}

void StepAccount::prompt(const Receipt& receipt) {
  totals.prompt_tokens += receipt.prompt_tokens;
  totals.prompt_tokens_cached += receipt.cached_tokens;
  prefill_computed.observe(receipt.prompt_tokens - receipt.cached_tokens);
}

void StepAccount::tokens(uint32_t count, const Receipt& receipt, int64_t previous_us, int64_t now_us,
                         bool shares_prompt) {
  totals.generation_tokens += count;
  if (receipt.generated_tokens == count) {
    ttft.observe(seconds(receipt.arrived_us, now_us));
    if (!shares_prompt) prompt(receipt);
  } else {
    inter_token.observe(seconds(previous_us, now_us));
  }
  inter_token.observe(0, count - 1);
}

void StepAccount::drafts(DraftSource source, uint32_t drafted, uint32_t accepted) {
  Speculation& s = totals.speculation;
  DraftCount& by = s.by[static_cast<size_t>(source)];
  by.drafted += drafted, by.accepted += accepted;
  ++s.rounds, s.drafted += drafted, s.accepted += accepted;
  for (uint32_t i = 0; i < accepted; ++i) ++s.accepted_at[i];
}

void StepAccount::finished(Finish finish, const Receipt& r) {
  ++totals.finished[static_cast<size_t>(finish)];
  if (finish != Finish::kStop && finish != Finish::kLength) return;
  queue.observe(seconds(r.queued_us, r.scheduled_us));
  prefill.observe(seconds(r.scheduled_us, r.first_token_us));
  decode.observe(seconds(r.first_token_us, r.last_us));
  inference.observe(seconds(r.scheduled_us, r.last_us));
  e2e.observe(seconds(r.arrived_us, r.last_us));
  prefill_per_token.observe(seconds(r.scheduled_us, r.first_token_us) / r.prompt_tokens);
  totals.sequence_tokens_max =
      std::max(totals.sequence_tokens_max, uint64_t{r.prompt_tokens} + r.generated_tokens);
  prompt_tokens.observe(r.prompt_tokens);
  generation_tokens.observe(r.generated_tokens);
  if (r.generated_tokens > 1) {
    time_per_output_token.observe(seconds(r.first_token_us, r.last_us) / (r.generated_tokens - 1));
  }
}

void StepAccount::step(uint32_t prefill_rows, uint32_t decode_rows, double wall_s) {
  iteration_tokens.observe(prefill_rows + decode_rows);
  if (decode_rows == 0) {
    ++totals.steps_prefill;
    step_prefill.observe(wall_s);
  } else if (prefill_rows == 0) {
    ++totals.steps_decode;
    step_decode.observe(wall_s);
  } else {
    ++totals.steps_mixed;
    step_mixed.observe(wall_s);
  }
}

void StepAccount::work(const StepRecord& r) {
  totals.rows_prefill += r.prefill_rows, totals.rows_decode += r.decode_rows;
  totals.rows_recompute += r.recompute_rows, totals.rows_draft += r.draft_rows;
  totals.weight_bytes_read += r.weight_bytes, totals.kv_bytes_read += r.kv_bytes;
  totals.activation_bytes_read += r.activation_bytes, totals.kv_bytes_written += r.kv_bytes_written;
  totals.flops += r.flops, totals.step_sequences += r.sequences;
}

void StepAccount::time(const StepRecord& r, double forward_s, const StepRoofs& roofs) {
  if (roofs.bytes_per_s > 0 && roofs.ops_per_s > 0) {
    const auto bytes = static_cast<double>(r.weight_bytes + r.kv_bytes + r.activation_bytes);
    const bool is_bandwidth = bytes / roofs.bytes_per_s >= static_cast<double>(r.flops) / roofs.ops_per_s;
    (is_bandwidth ? totals.bandwidth_s : totals.compute_s) += forward_s;
  } else {
    totals.unbound_s += forward_s;
  }
  if (r.predicted_us > 0 && r.duration_us > 0)
    step_model_error.observe(std::abs(static_cast<double>(r.predicted_us - r.duration_us)) /
                             static_cast<double>(r.duration_us));
}

Stats StepAccount::snapshot() const {
  Stats s = totals;
  s.ttft = ttft.snapshot(), s.inter_token = inter_token.snapshot();
  s.time_per_output_token = time_per_output_token.snapshot(), s.e2e = e2e.snapshot(),
  s.queue = queue.snapshot();
  s.prefill = prefill.snapshot(), s.decode = decode.snapshot(), s.inference = inference.snapshot();
  s.prompt_tokens_per_request = prompt_tokens.snapshot();
  s.generation_tokens_per_request = generation_tokens.snapshot();
  s.iteration_tokens = iteration_tokens.snapshot();
  s.step_prefill = step_prefill.snapshot(), s.step_decode = step_decode.snapshot(),
  s.step_mixed = step_mixed.snapshot();
  s.prefill_computed = prefill_computed.snapshot(), s.prefill_per_token = prefill_per_token.snapshot();
  s.step_model_error = step_model_error.snapshot();
  s.block_lifetime = histogram_of(block_ages.lifetime);
  s.block_idle = histogram_of(block_ages.idle_before_evict);
  s.block_reuse_gap = histogram_of(block_ages.reuse_gap);
  return s;
}

}  // namespace tally::engine
