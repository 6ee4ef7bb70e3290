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
  if (config.logits_rows_max == 0) config.logits_rows_max = config.seqs_max;
  TALLY_CHECK(config.logits_rows_max >= seats, "every running sequence has a row of logits",
              config.logits_rows_max, seats);
  if (config.queue_tokens_max == 0) config.queue_tokens_max = uint64_t{8} * config.model_len_max;
  plan.rows.reserve(seats);
  plan.admitted.reserve(seats);
  plan.preempted.reserve(seats);
  planned.reserve(seats);
  order.reserve(seats);
  ended.reserve(seats);
  results.reserve(seats);
  outcome_at.reserve(seats);
  plan.begins.reserve(seats);
  plan.copies.reserve(2 * size_t{seats} + (reserves() ? ledger_in.blocks() : 0));
  copies_due.reserve(reserves() ? ledger_in.blocks() : 0);
  running.reserve(seats + size_t{1});
  path.reserve(config.model_len_max / block_tokens + size_t{1});
}

Sequence& Core::find(SeqId seq) const {
  const auto found = sequences.find(seq);
  TALLY_CHECK(found != sequences.end(), "no such sequence", raw(seq));
  return *found->second;
}

namespace {

// Blocks of a request at its longest: the prompt's full ones once, the rest for each choice.
uint64_t blocks_at_most(const Core& core, uint64_t prompt, uint64_t generated, uint64_t choices) {
  if (core.reserves()) return choices * reservation_blocks(core);
  const uint64_t full = prompt / core.block_tokens;
  return full + choices * core.blocks_for(prompt + generated - full * core.block_tokens);
}

// Beams have their blocks set aside while they run: not more than half of the pool, so that others run too.
uint64_t aside_most(const Core& core) { return core.ledger.blocks() / 2; }

uint64_t blocks_aside(const Core& core, uint64_t prompt, uint64_t generated, const Request& request) {
  if (!request.beams || core.reserves()) return 0;
  return uint64_t{request.choices} * core.blocks_for(prompt % core.block_tokens + generated);
}

// The tokens that each choice can generate with all blocks it may have. Requires: it can generate one.
uint64_t generated_at_most(const Core& core, uint64_t prompt, const Request& request) {
  const uint64_t context = core.config.model_len_max - prompt;
  if (core.reserves()) return context;
  const uint64_t full = prompt / core.block_tokens;
  const uint64_t left = core.ledger.blocks() - full;
  const uint64_t each = (request.beams ? std::min(left, aside_most(core)) : left) / request.choices;
  return std::min(context, (full + each) * core.block_tokens - prompt);
}

// Refuses what could not finish even alone, and fixes the limit of what could.
Admission judge_size(const Core& core, const Request& request) {
  Admission out;
  const uint64_t prompt = request.prompt.size();
  const uint64_t asked = request.prompt_only ? 0 : std::max(request.max_tokens, 1U);
  if (request.choices > core.seats) {
    out.refusal = Refusal::kTooManyChoices;
    out.needed = request.choices;
    out.available = core.seats;
  } else if (prompt + asked > core.config.model_len_max) {
    out.refusal = Refusal::kPromptTooLong;
    out.needed = prompt + asked;
    out.available = core.config.model_len_max;
  } else if (const uint64_t blocks = blocks_at_most(core, prompt, asked, request.choices);
             blocks > core.ledger.blocks()) {
    out.refusal = Refusal::kPoolTooSmall;
    out.needed = blocks;
    out.available = core.ledger.blocks();
  } else if (const uint64_t aside = blocks_aside(core, prompt, asked, request); aside > aside_most(core)) {
    out.refusal = Refusal::kPoolTooSmall;
    out.needed = aside;
    out.available = aside_most(core);
  } else {
    const uint64_t room = generated_at_most(core, prompt, request);
    const bool open = request.max_tokens == 0 && !request.prompt_only;
    out.max_tokens = open ? static_cast<uint32_t>(room) : request.max_tokens;
  }
  return out;
}

// The queue holds queue_max sequences beyond those that the next plan can seat: a burst on an idle server is
// not refused. When the last plan left someone waiting, free seats do not count, for then blocks are what is
// missing.
Admission judge_queue(const Core& core, uint64_t prompt, uint64_t choices) {
  Admission out;
  const uint64_t seats_open =
      core.left_waiting ? 0 : core.seats - std::min<uint64_t>(core.seats, core.seats_taken());
  const uint64_t requests_max = core.config.queue_max + seats_open;
  if (core.never_scheduled + choices > requests_max) {
    out.refusal = Refusal::kQueueFull;
    out.needed = core.never_scheduled + choices;
    out.available = requests_max;
  } else if (core.never_scheduled > 0 && core.waiting_tokens + prompt > core.config.queue_tokens_max) {
    out.refusal = Refusal::kQueueFull;
    out.needed = core.waiting_tokens + prompt;
    out.available = core.config.queue_tokens_max;
  }
  return out;
}

}  // namespace

Tenant* join_tenant(Core& core, uint64_t id) {
  auto at = std::lower_bound(core.tenants.begin(), core.tenants.end(), id,
                             [](const auto& tenant, uint64_t wanted) { return tenant->id < wanted; });
  if (at == core.tenants.end() || (*at)->id != id) {
    uint64_t least = core.tenants.empty() ? 0 : UINT64_MAX;
    for (const auto& tenant : core.tenants) least = std::min(least, tenant->served);
    at = core.tenants.insert(at, std::make_unique<Tenant>(Tenant{id, least, 0}));
  }
  ++(*at)->live;
  return at->get();
}

void leave_tenant(Core& core, Tenant* tenant) {
  if (--tenant->live > 0) return;
  std::erase_if(core.tenants, [&](const auto& one) { return one.get() == tenant; });
}

namespace {

// Everything the sequence can grow to is reserved now: steps allocate nothing.
std::unique_ptr<Sequence> make_sequence(const Core& core, const Request& request, uint32_t choice,
                                        std::vector<TokenId> prompt, uint32_t max_tokens) {
  auto seq = std::make_unique<Sequence>();
  seq->id = SeqId{raw(request.seq) + choice};
  seq->space = request.prefix_namespace;
  seq->arrival = request.arrival;
  seq->rank = request.arrival + Tick{request.priority} * kAgeTicks;
  seq->deadline = request.deadline;
  seq->held = request.held && choice == 0;
  seq->tokens = std::move(prompt);
  seq->prompt = seq->known();
  seq->tokens_max = seq->prompt + max_tokens;
  seq->score_next = request.score_from == 0 ? seq->prompt : std::min(request.score_from, seq->prompt);
  seq->prompt_only = request.prompt_only;
  seq->tokens.reserve(seq->tokens_max);
  const uint32_t blocks = core.reserves() ? reservation_blocks(core) : core.blocks_for(seq->tokens_max);
  seq->table.reserve(blocks);
  seq->chain.reserve(blocks);
  return seq;
}

void reserve_lists(Core& core, size_t live) {
  for (auto* list : {&core.waiting, &core.gone, &core.line}) {
    if (list->capacity() < live) list->reserve(std::max(live, 2 * list->capacity()));
  }
  if (core.plan.ended.capacity() < live) core.plan.ended.reserve(core.gone.capacity());
  if (core.plan.preempted.capacity() < 2 * live) core.plan.preempted.reserve(2 * core.gone.capacity());
}

}  // namespace

Admission admit_to_queue(Core& core, Request request) {
  TALLY_CHECK(!request.prompt.empty(), "a prompt has at least one token", raw(request.seq));
  TALLY_CHECK(request.choices >= 1 && (request.choices > 1 || !request.beams), "choices of a request",
              raw(request.seq), request.choices);
  TALLY_CHECK(!request.prompt_only || (request.choices == 1 && request.max_tokens == 0),
              "a prompt alone has one choice and no tokens", raw(request.seq), request.choices,
              request.max_tokens);
  const Admission size = judge_size(core, request);
  if (size.refusal != Refusal::kNone) return size;
  const Admission queue = judge_queue(core, request.prompt.size(), request.choices);
  if (queue.refusal != Refusal::kNone) return queue;

  const auto family = request.choices > 1 ? std::make_shared<Family>() : nullptr;
  if (family) family->beams = request.beams;
  Sequence* root = nullptr;
  for (uint32_t choice = request.choices; choice-- > 0;) {
    std::vector<TokenId> prompt = choice == 0 ? std::move(request.prompt) : request.prompt;
    auto seq = make_sequence(core, request, choice, std::move(prompt), size.max_tokens);
    TALLY_CHECK(!core.sequences.contains(seq->id), "sequence id used twice", raw(seq->id));
    seq->family = family;
    seq->tenant = join_tenant(core, request.tenant);
    if (family) family->members.insert(family->members.begin(), seq.get());
    root = seq.get();
    core.sequences.emplace(seq->id, std::move(seq));
  }
  for (size_t choice = 1; family && choice < family->members.size(); ++choice)
    root->unborn.push_back(family->members[choice]);
  reserve_lists(core, core.sequences.size());
  core.never_scheduled += request.choices;
  core.waiting_tokens += root->prompt;
  insert_ordered(core.waiting, *root);
  return size;
}

}  // namespace tally::sched
