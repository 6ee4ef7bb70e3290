// The door: what never fits is refused for good, what finds the queue full is refused for now.

#include "base/check.h"
#include "sched/core.h"

#include <algorithm>

namespace tally::sched {

Core::Core(const Config& config_in, kv::Ledger& ledger_in)
    : config(config_in),
      ledger(ledger_in),
      block_tokens(ledger_in.block_tokens()),
      seats(std::min(config_in.seqs_max, config_in.step_tokens)),
      watermark(std::max(2U, (ledger_in.blocks() + 99) / 100)) {
  TALLY_CHECK(config.seqs_max >= 1 && config.step_tokens >= 1 && config.model_len_max >= 1,
              "sequences, step tokens, model length", config.seqs_max, config.step_tokens,
              config.model_len_max);
  if (config.queue_tokens_max == 0) config.queue_tokens_max = uint64_t{8} * config.model_len_max;
  plan.rows.reserve(seats);
  plan.admitted.reserve(seats);
  plan.preempted.reserve(seats);
  planned.reserve(seats);
  order.reserve(seats);
  ended.reserve(seats);
  running.reserve(seats + size_t{1});
  path.reserve(config.model_len_max / block_tokens + size_t{1});
}

Sequence& Core::find(SeqId seq) const {
  const auto found = sequences.find(seq);
  TALLY_CHECK(found != sequences.end(), "no such sequence", raw(seq));
  return *found->second;
}

namespace {

// Refuses what could not finish even alone, and fixes the limit of what could.
Admission judge_size(const Core& core, const Request& request) {
  Admission out;
  const uint64_t prompt = request.prompt.size();
  const uint64_t pool_tokens = uint64_t{core.ledger.blocks()} * core.block_tokens;
  const uint64_t asked = request.max_tokens == 0 ? 1 : request.max_tokens;
  if (prompt + asked > core.config.model_len_max) {
    out.refusal = Refusal::kPromptTooLong;
    out.needed = prompt + asked;
    out.available = core.config.model_len_max;
  } else if (prompt + asked > pool_tokens) {
    out.refusal = Refusal::kPoolTooSmall;
    out.needed = core.blocks_for(prompt + asked);
    out.available = core.ledger.blocks();
  } else {
    const uint64_t room = std::min<uint64_t>(core.config.model_len_max, pool_tokens) - prompt;
    out.max_tokens = request.max_tokens == 0 ? static_cast<uint32_t>(room) : request.max_tokens;
  }
  return out;
}

// The queue holds queue_max requests beyond those that the next plan can seat: a burst on an idle server is
// not refused. When the last plan left someone waiting, free seats do not count, for then blocks are what is
// missing.
Admission judge_queue(const Core& core, uint64_t prompt) {
  Admission out;
  const uint64_t seats_open =
      core.left_waiting ? 0 : core.seats - std::min<uint64_t>(core.seats, core.running.size());
  const uint64_t requests_max = core.config.queue_max + seats_open;
  if (core.never_scheduled >= requests_max) {
    out.refusal = Refusal::kQueueFull;
    out.needed = core.never_scheduled + uint64_t{1};
    out.available = requests_max;
  } else if (core.never_scheduled > 0 && core.waiting_tokens + prompt > core.config.queue_tokens_max) {
    out.refusal = Refusal::kQueueFull;
    out.needed = core.waiting_tokens + prompt;
    out.available = core.config.queue_tokens_max;
  }
  return out;
}

}  // namespace

Admission admit_to_queue(Core& core, Request request) {
  TALLY_CHECK(!request.prompt.empty(), "a prompt has at least one token", raw(request.seq));
  TALLY_CHECK(!core.sequences.contains(request.seq), "sequence id used twice", raw(request.seq));
  const Admission size = judge_size(core, request);
  if (size.refusal != Refusal::kNone) return size;
  const Admission queue = judge_queue(core, request.prompt.size());
  if (queue.refusal != Refusal::kNone) return queue;

  auto seq = std::make_unique<Sequence>();
  seq->id = request.seq;
  seq->space = request.prefix_namespace;
  seq->arrival = request.arrival;
  seq->deadline = request.deadline;
  seq->tokens = std::move(request.prompt);
  seq->prompt = seq->known();
  seq->tokens_max = seq->prompt + size.max_tokens;
  // Everything this sequence can grow to is reserved now: steps allocate nothing.
  seq->tokens.reserve(seq->tokens_max);
  seq->table.reserve(core.blocks_for(seq->tokens_max));
  seq->chain.reserve(core.blocks_for(seq->tokens_max));
  const size_t live = core.sequences.size() + 1;
  for (auto* list : {&core.waiting, &core.gone}) {
    if (list->capacity() < live) list->reserve(std::max(live, 2 * list->capacity()));
  }
  if (core.plan.ended.capacity() < live) core.plan.ended.reserve(core.gone.capacity());
  if (core.plan.preempted.capacity() < 2 * live) core.plan.preempted.reserve(2 * core.gone.capacity());
  ++core.never_scheduled;
  core.waiting_tokens += seq->prompt;
  insert_ordered(core.waiting, *seq);
  core.sequences.emplace(seq->id, std::move(seq));
  return size;
}

}  // namespace tally::sched
