// What an answer tells at its end: which choices, and where its time went.

#include "base/clock.h"
#include "serve/answer_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace tally::serve {

// How often a prompt alone, of which there is one sequence, is told.
size_t Answer::copies() const { return order_.options.choices.prompt_only ? order_.options.choices.n : 1; }

// All choices; with best_of, of each prompt's the n with the highest mean log-probability a token, best
// first, equal ones in order.
std::vector<openai::Piece> Answer::take_pieces() {
  const auto mean = [](const Choice* c) {
    return c->tokens > 0 ? c->logprob_sum / static_cast<double>(c->tokens) : -INFINITY;
  };
  std::vector<openai::Piece> pieces;
  for (auto begin = choices_.begin(); begin != choices_.end();) {
    std::vector<Choice*> group;
    for (const size_t prompt = (*begin)->prompt_index;
         begin != choices_.end() && (*begin)->prompt_index == prompt; ++begin)
      group.push_back(begin->get());
    if (group.size() > order_.options.choices.n) {
      std::ranges::stable_sort(group, std::greater<>(), mean);
      group.resize(order_.options.choices.n);
    }
    for (Choice* choice : group) {
      pieces.insert(pieces.end(), copies() - 1, choice->piece);
      pieces.push_back(std::move(choice->piece));
    }
  }
  return pieces;
}

// What the tenant pays for: each prompt once, unless all of its sequences ended before their first step, and
// the tokens that were generated, read or not.
uint64_t Answer::computed_tokens() const {
  uint64_t total = 0;
  size_t prompts_counted = 0;  // those before it are, or will not be
  for (const auto& choice : choices_) {
    const bool over = choice->stream->ended();
    total += over ? choice->stream->receipt().generated_tokens : choice->tokens;
    const bool begun = !over || choice->stream->receipt().scheduled_us != 0;
    if (!begun || choice->prompt_index < prompts_counted) continue;
    prompts_counted = choice->prompt_index + 1;
    total += choice->prompt_tokens;
  }
  return total;
}

// While it lives a prompt is taken to be computed sooner or later, as it was when it was let in.
void Answer::pay() {
  if (!desk_->counts_tokens()) return;
  seat_->pay(computed_tokens());
}

// The stages up to the last token are the engine's, of the sequence that ended last; what remains until now
// is ours: the work of this turn, and the way here (threads, a slow reader).
openai::Closing Answer::close_account() {
  openai::Account account;
  openai::Usage usage;
  const Choice* last = choices_.front().get();
  size_t prompts = 0;
  uint32_t disk_tokens = 0;
  for (const auto& choice : choices_) {
    if (choice->prompt_index == prompts) {  // its first: the prompt was read once for all of them
      ++prompts;
      usage.prompt_tokens += choice->prompt_tokens;
      usage.cached_tokens += choice->stream->receipt().cached_tokens;
      disk_tokens += choice->stream->receipt().disk_tokens;
    }
    usage.completion_tokens += choice->tokens;
    if (!order_.reading.format.think_begin.empty())
      usage.reasoning_tokens = usage.reasoning_tokens.value_or(0) + choice->reasoning_tokens;
    if (choice->stream->receipt().last_us > last->stream->receipt().last_us) last = choice.get();
  }
  engine::Receipt& sum = account.receipt = last->stream->receipt();
  sum.prompt_tokens = static_cast<uint32_t>(usage.prompt_tokens);
  sum.cached_tokens = static_cast<uint32_t>(usage.cached_tokens);
  sum.disk_tokens = disk_tokens;
  for (const auto& choice : choices_) {
    if (choice.get() == last) continue;
    const engine::Receipt& r = choice->stream->receipt();
    sum.steps += r.steps;
    sum.preemptions += r.preemptions;
    sum.draft_tokens += r.draft_tokens, sum.accepted_tokens += r.accepted_tokens;
    sum.recomputed_tokens += r.recomputed_tokens;
    sum.kv_blocks += r.kv_blocks;
    sum.kv_blocks_shared += r.kv_blocks_shared;
    sum.kv_bytes += r.kv_bytes;
    sum.weight_bytes_read += r.weight_bytes_read;
  }
  account.completion_tokens = usage.completion_tokens;
  const int64_t now_us = base::now_us(), arrived_us = exchange_->request().arrived_us;
  const auto ms = [](int64_t us) { return static_cast<double>(us) / 1000; };
  const int64_t after_us = std::max<int64_t>(now_us - sum.last_us, 0);
  const int64_t detokenize_us = std::min(now_us - turn_us_, after_us);
  account.tokenize_ms = ms(sum.queued_us - arrived_us);
  account.detokenize_ms = ms(detokenize_us);
  account.send_ms = ms(after_us - detokenize_us);
  account.total_ms = ms(now_us - arrived_us);

  const std::pair<Stage, double> stages[] = {
      {Stage::kQueue, sum.queue_s * 1e3},          {Stage::kTokenize, account.tokenize_ms},
      {Stage::kPrefill, sum.prefill_s * 1e3},      {Stage::kStalled, sum.stalled_s * 1e3},
      {Stage::kDecode, sum.decode_s * 1e3},        {Stage::kSample, sum.sample_s * 1e3},
      {Stage::kDetokenize, account.detokenize_ms}, {Stage::kSend, account.send_ms}};
  for (const auto& [stage, stage_ms] : stages)
    counters_.stage_us[static_cast<size_t>(stage)].fetch_add(
        static_cast<uint64_t>(std::max(stage_ms, 0.0) * 1000));

  openai::Closing closing;
  if (!order_.options.stream || order_.options.include_usage) closing.usage = usage;
  if (desk_->settings.receipts) {
    closing.timings = openai::timings_json(account);
    closing.receipt = openai::receipt_json(account);
  }
  return closing;
}

}  // namespace tally::serve
