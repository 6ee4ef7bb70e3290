#include "sched/testing/simulation.h"

#include "sched/core.h"

#include <gtest/gtest.h>

namespace tally::sched::testing {

void SimulationCounts::add(const SimulationCounts& other) {
  steps += other.steps;
  rows += other.rows;
  hash_cut_runs += other.hash_cut_runs;
  hash_mismatches += other.hash_mismatches;
  for (size_t i = 0; i < events.size(); ++i) events[i] += other.events[i];
  for (size_t i = 0; i < branches.size(); ++i) branches[i] += other.branches[i];
  for (size_t i = 0; i < moves.size(); ++i) moves[i] += other.moves[i];
}

Simulation::Simulation(uint64_t seed) : seed_(seed), dice_(seed) {
  roll_config();
  rig_ = std::make_unique<Rig>(config_, ledger_config_);
  rig_->scheduler().set_cost({.fixed = 50,
                              .weights = static_cast<double>(dice_.between(100, 1500)),
                              .row = static_cast<double>(dice_.between(1, 300)),
                              .kv_decode = 1,
                              .kv_prefill = 0.5,
                              .logits = 5});
  rig_->set_drafting(drafting_);
}

void Simulation::roll_config() {
  // Pools are small, so that blocks are what is missing and a full recount is cheap.
  ledger_config_.block_tokens =
      static_cast<uint32_t>(dice_.percent(75) ? dice_.between(1, 8) : uint64_t{16} << dice_.below(4));
  ledger_config_.blocks =
      static_cast<uint32_t>(dice_.percent(92) ? dice_.skewed(4, 64) : dice_.skewed(65, 4096));
  ledger_config_.prefix_cache = dice_.percent(85);
  ledger_config_.hash_bits = dice_.percent(25) ? 8 : 64;
  config_.step_tokens =
      static_cast<uint32_t>(dice_.percent(30) ? dice_.between(1, 16) : dice_.skewed(1, 512));
  config_.seqs_max = static_cast<uint32_t>(dice_.skewed(1, 64));
  config_.queue_max = static_cast<uint32_t>(dice_.skewed(0, 64));
  const uint64_t pool_tokens = uint64_t{ledger_config_.blocks} * ledger_config_.block_tokens;
  config_.model_len_max =
      static_cast<uint32_t>(dice_.percent(50) ? pool_tokens : dice_.between(2, pool_tokens + 16));
  if (dice_.percent(20)) config_.queue_tokens_max = dice_.between(1, pool_tokens);
  if (dice_.percent(10)) config_.batching = Batching::kStatic;
  if (dice_.percent(8)) config_.allocator = Allocator::kReserve;
  choices_percent_ = dice_.percent(50) ? 0 : dice_.between(5, 60);
  priority_percent_ = dice_.percent(70) ? 0 : 50;

  // Contexts stay short: the fake model reads each of them whole in every step.
  prompt_max_ =
      std::min<uint64_t>(dice_.between(1, std::max<uint64_t>(2, pool_tokens)), dice_.percent(90) ? 96 : 700);
  new_max_ =
      std::min<uint64_t>(dice_.between(1, std::max<uint64_t>(2, pool_tokens)), dice_.percent(90) ? 48 : 300);
  arrivals_percent_ = dice_.between(2, 100);
  burst_ = dice_.percent(70) ? 1 : dice_.between(2, 12);
  overlap_percent_ = dice_.percent(25) ? 0 : dice_.between(0, 100);
  spaces_ = dice_.skewed(1, 5);
  cancel_one_in_ = dice_.percent(30) ? 0 : dice_.between(4, 100);
  fault_one_in_ = dice_.percent(40) ? 0 : dice_.between(10, 300);
  reset_one_in_ = dice_.percent(60) ? 0 : dice_.between(20, 400);
  deadline_percent_ = dice_.percent(50) ? 0 : dice_.between(1, 30);
  eos_period_ = dice_.percent(50) ? 0 : static_cast<uint32_t>(dice_.between(4, 100));
  length_ = dice_.between(50, 600);
  if (dice_.percent(15)) config_.step_latency = static_cast<Tick>(dice_.between(1, 3000));
  if (dice_.percent(60)) {
    starve();
    if (dice_.percent(25)) crawl();
  }
  scored_percent_ = dice_.percent(50) ? 0 : dice_.between(5, 80);
  const uint32_t seats = std::min(config_.seqs_max, config_.step_tokens);
  if (dice_.percent(60)) config_.logits_rows_max = seats + static_cast<uint32_t>(dice_.skewed(0, 64));
  roll_drafting();
}

// With dice of its own: a life is the same with and without, but for what drafts are there to change.
void Simulation::roll_drafting() {
  Dice dice(seed_ ^ 0xD4AF7);
  if (!dice.percent(50)) return;
  drafting_ = {.most = static_cast<uint32_t>(dice.skewed(1, 16)), .seed = dice.next()};
  if (dice.percent(30)) drafting_.right = static_cast<uint32_t>(dice.below(drafting_.most + 1));
  if (dice.percent(70))
    config_.logits_rows_max = config_.seqs_max + static_cast<uint32_t>(dice.skewed(1, 64));
}

// Many sequences that grow through a pool that holds two or three of them, and faults that empty the running
// set: the rarer branches of preemption live here.
void Simulation::starve() {
  ledger_config_.block_tokens = static_cast<uint32_t>(dice_.skewed(1, 4));
  ledger_config_.blocks = static_cast<uint32_t>(dice_.between(8, 40));
  ledger_config_.prefix_cache = dice_.percent(90);
  const uint64_t pool_tokens = uint64_t{ledger_config_.blocks} * ledger_config_.block_tokens;
  config_.seqs_max = static_cast<uint32_t>(dice_.between(3, 24));
  config_.queue_max = 64;
  config_.queue_tokens_max = 0;
  config_.model_len_max = static_cast<uint32_t>(pool_tokens);
  config_.step_tokens =
      static_cast<uint32_t>(dice_.percent(50) ? dice_.between(3, 12) : dice_.between(12, 200));
  prompt_max_ = dice_.between(1, dice_.percent(50) ? pool_tokens : pool_tokens / 2);
  new_max_ = dice_.between(std::max<uint64_t>(1, pool_tokens / 4), pool_tokens);
  arrivals_percent_ = dice_.between(10, 60);
  overlap_percent_ = dice_.between(30, 100);
  spaces_ = dice_.between(1, 2);
  fault_one_in_ = dice_.between(6, 60);
  cancel_one_in_ = dice_.between(3, 20);
  reset_one_in_ = dice_.percent(50) ? 0 : dice_.between(20, 100);
  giant_percent_ = dice_.percent(20) ? 0 : dice_.between(10, 50);
  late_percent_ = dice_.between(20, 100);
  leave_one_in_ = dice_.between(3, 40);
}

// A long prompt computed a few rows at a time beside sequences that take a block with every token.
void Simulation::crawl() {
  ledger_config_.block_tokens = 1;
  config_.step_tokens = static_cast<uint32_t>(dice_.between(2, 6));
  config_.seqs_max = static_cast<uint32_t>(dice_.between(2, 6));
  config_.model_len_max = ledger_config_.blocks;
  prompt_max_ = ledger_config_.blocks / 2;
  new_max_ = ledger_config_.blocks;
  giant_percent_ = dice_.between(5, 40);
  leave_one_in_ = 200;
  fault_one_in_ = 100;
  cancel_one_in_ = 50;
}

SimulationResult Simulation::run() {
  for (uint64_t n = 0; n < length_ && rig_->error().empty(); ++n) {
    if (dice_.percent(arrivals_percent_)) {
      for (uint64_t b = dice_.between(1, burst_); b > 0; --b) submit(dice_.percent(giant_percent_));
    }
    cancel_some();
    if (dice_.one_in(reset_one_in_)) {
      count(Event::kReset);
      rig_->ledger().reset_prefix();
    }
    if (dice_.one_in(300)) {
      count(Event::kTickJump);
      now_ += static_cast<Tick>(dice_.between(1, 10'000'000));
    }
    step();
  }
  // S10: arrivals have stopped, so each that is left ends within the rows it can still need, alone.
  uint64_t bound = 16;
  for (const SeqId seq : rig_->live()) {
    const Record& r = rig_->record(seq);
    bound += 8 * (r.request.prompt.size() + r.admission.max_tokens);
  }
  while (!rig_->scheduler().idle() && rig_->error().empty()) {
    if (bound-- == 0) rig_->fail("S10: not idle in time");
    step();
  }
  check_rest();

  SimulationResult result;
  if (!rig_->error().empty()) result.error = "seed " + std::to_string(seed_) + ": " + rig_->error();
  result.log_hash = rig_->log_hash();
  const auto branches = rig_->scheduler().branches();
  std::copy(branches.begin(), branches.end(), counts_.branches.begin());
  for (size_t i = 0; i < kv::kMoveCount; ++i)
    counts_.moves[i] = rig_->ledger().moves(static_cast<kv::Move>(i));
  counts_.hash_mismatches = rig_->ledger().stats().hash_mismatches;
  counts_.hash_cut_runs = ledger_config_.hash_bits < 64 ? 1 : 0;
  result.counts = counts_;
  return result;
}

void Simulation::step() {
  const StepFaults faults = roll_faults();
  rig_->step(now_, faults);
  recount();
  ++counts_.steps;
  for (const PlannedRows& g : rig_->last_plan().rows) counts_.rows += g.rows;
  for (const Ended& e : rig_->last_plan().ended) {
    if (e.reason != EndReason::kDeadline) continue;
    count(rig_->record(e.seq).admitted ? Event::kDeadlineRunning : Event::kDeadlineInQueue);
  }
  // Time passes with the work, by a factor that the plan must not depend on.
  step_ticks_ = static_cast<Tick>(500 + dice_.below(1000));
  now_ += step_ticks_;
}

void Simulation::recount() {
  if (ledger_config_.blocks <= 64 || counts_.steps % 64 == 0) rig_->scheduler().check();
}

void Simulation::submit(bool giant) {
  Request request;
  FakeSampler sampler;
  request.prefix_namespace[0] = dice_.below(spaces_);
  uint64_t tokens = dice_.between(1, prompt_max_);
  if (giant) tokens = dice_.between(1 + config_.model_len_max / 2, config_.model_len_max - 1);
  request.prompt = roll_prompt(request.prefix_namespace, tokens);
  request.max_tokens = dice_.percent(5) ? 0 : static_cast<uint32_t>(dice_.between(1, new_max_));
  if (giant) {
    // Let in by the door: prompt and answer together fill at most the context.
    const uint64_t room =
        config_.model_len_max - std::min<uint64_t>(request.prompt.size(), config_.model_len_max - 1);
    request.max_tokens = static_cast<uint32_t>(std::min<uint64_t>(std::max(1U, request.max_tokens), room));
  }
  request.arrival =
      now_ - static_cast<Tick>(giant || dice_.percent(late_percent_) ? dice_.below(300'000) : 0);
  if (dice_.percent(deadline_percent_)) request.deadline = now_ + static_cast<Tick>(dice_.below(60'000));
  if (dice_.percent(choices_percent_)) {
    request.choices = static_cast<uint32_t>(dice_.between(2, 6));
    request.beams = dice_.percent(40);
    count(request.beams ? Event::kBeams : Event::kChoices);
  }
  if (dice_.percent(scored_percent_)) roll_scores(request);
  request.tenant = dice_.below(spaces_);
  if (dice_.percent(priority_percent_)) request.priority = static_cast<int32_t>(dice_.below(5)) - 2;
  sampler.seed = dice_.percent(30) ? 7 : dice_.next();
  // Without a limit an end token must come: the fake model reads the whole context in every step.
  sampler.eos_period = request.max_tokens == 0 && !request.prompt_only ? 16 : eos_period_;
  const SeqId seq = rig_->submit(std::move(request), sampler);
  count(Event::kSubmit);
  if (rig_->record(seq).admission.refusal != Refusal::kNone) count(Event::kRefused);
}

// Mostly of the whole prompt, as clients ask for it.
void Simulation::roll_scores(Request& request) {
  request.score_from = static_cast<uint32_t>(dice_.percent(60) ? 1 : dice_.between(1, request.prompt.size()));
  count(Event::kScored);
  if (request.choices > 1 || !dice_.percent(30)) return;
  request.prompt_only = true;
  request.max_tokens = 0;
  count(Event::kPromptOnly);
}

// New ids, or the first ids of another's prompt, or another's prompt and answer with something after it.
std::vector<TokenId> Simulation::roll_prompt(const kv::Namespace& space, uint64_t tokens) {
  std::vector<TokenId> prompt;
  const auto& records = rig_->records();
  if (!records.empty() && dice_.percent(overlap_percent_)) {
    const size_t window = std::min<size_t>(records.size(), 12);
    const Record& other = records[records.size() - 1 - dice_.below(window)];
    const bool continued = dice_.percent(30);
    count(continued ? Event::kContinued : Event::kShared);
    prompt = other.request.prompt;
    if (continued) prompt.insert(prompt.end(), other.emitted.begin(), other.emitted.end());
    const uint64_t kept = dice_.percent(50) ? prompt.size() : dice_.between(1, prompt.size());
    prompt.resize(std::min<uint64_t>({kept, tokens, config_.model_len_max}));
    if (dice_.percent(20)) return prompt;  // all of it is known already
  }
  // Few different ids in some, so that equal blocks arise by chance too.
  const uint64_t alphabet = dice_.percent(20) ? 2 : 50'000;
  while (prompt.size() < tokens)
    prompt.push_back(TokenId{static_cast<int32_t>(dice_.below(alphabet) + space[0])});
  return prompt;
}

void Simulation::cancel_some() {
  // Soon after a preemption more often: then those that wait hold blocks, and nothing runs.
  const bool preempted = !rig_->last_plan().preempted.empty() && leave_one_in_ != 0;
  if (dice_.one_in(preempted ? 3 : leave_one_in_)) {
    count(Event::kAllRunningLeave);
    if (dice_.percent(50)) submit(true);
    for (const SeqId seq : rig_->live()) {
      const SeqState state = rig_->scheduler().state(seq);
      if (state == SeqState::kPrefilling || state == SeqState::kDecoding) rig_->cancel(seq);
    }
  }
  if (!dice_.one_in(cancel_one_in_) || rig_->live().empty()) return;
  const auto& live = rig_->live();
  const SeqId seq = live[dice_.below(live.size())];
  constexpr Event kByState[] = {Event::kCancelWaiting, Event::kCancelPrefilling, Event::kCancelDecoding,
                                Event::kCancelPreempted};
  count(kByState[static_cast<size_t>(rig_->scheduler().state(seq))]);
  rig_->cancel(seq, dice_.percent(90) ? EndReason::kCancelled : EndReason::kShutdown);
  if (dice_.one_in(4)) rig_->scheduler().cancel(SeqId{1'000'000 + dice_.below(1000)}, EndReason::kCancelled);
}

StepFaults Simulation::roll_faults() {
  StepFaults faults;
  if (!dice_.one_in(fault_one_in_) || rig_->live().empty()) return faults;
  const uint64_t kind = dice_.below(10);
  if (kind < 4) {
    faults.rows.insert(rig_->live()[dice_.below(rig_->live().size())]);
    count(Event::kRowFails);
  } else if (kind < 6) {
    faults.all_rows = true;
    count(Event::kAllRowsFail);
  } else if (kind < 8) {
    faults.abandon = true;
    count(Event::kStepFails);
  } else {
    faults.reset_in_flight = true;
    count(Event::kResetInFlight);
  }
  return faults;
}

// L7, S6: nothing is owned, each that was taken has its one end record, and a reset frees everything.
void Simulation::check_rest() {
  if (!rig_->error().empty()) return;
  rig_->scheduler().plan(now_);  // forgets the last ended ones
  rig_->scheduler().check();
  for (const Record& r : rig_->records()) {
    if (r.admission.refusal == Refusal::kNone && !r.end)
      rig_->fail("S6: no end record: " + std::to_string(raw(r.request.seq)));
  }
  rig_->ledger().reset_prefix();
  const kv::LedgerStats s = rig_->ledger().stats();
  if (s.free != s.total) rig_->fail("L7: blocks missing after a reset: " + std::to_string(s.total - s.free));
}

namespace {

// Each branch, event and move fires this often; fewer where a sanitizer slows the steps, but a zero fails
// everywhere.
#if defined(TALLY_INSTRUMENTED)
constexpr uint64_t kSteps = 100'000, kFiresMin = 1;
#else
constexpr uint64_t kSteps = 2'400'000, kFiresMin = 1000;
#endif
constexpr uint64_t kReplayOneIn = 16;

template <size_t n>
std::string all(const std::array<uint64_t, n>& counts) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += std::to_string(i) + ":" + std::to_string(counts[i]) + " ";
  return out;
}

// The lives are others with --gtest_shuffle --gtest_random_seed=N, as `./check --long` asks for.
TEST(Simulation, AMillionStepsKeepEveryPromise) {
  const auto base = static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed()) * 1'000'000;
  SimulationCounts total;
  uint64_t seeds = 0;
  for (uint64_t seed = base + 1; total.steps < kSteps; ++seed, ++seeds) {
    const SimulationResult result = Simulation(seed).run();
    ASSERT_EQ(result.error, "") << "replay with Simulation(" << seed << ")";
    total.add(result.counts);
    if (seed % kReplayOneIn == 0) {
      ASSERT_EQ(Simulation(seed).run().log_hash, result.log_hash) << "seed " << seed << ": a replay differs";
    }
  }
  for (size_t i = 0; i < kBranchCount; ++i)
    EXPECT_GE(total.branches[i], kFiresMin) << "branch " << i << " of " << all(total.branches);
  for (size_t i = 0; i < kEventCount; ++i) EXPECT_GE(total.events[i], kFiresMin) << "event " << i;
  for (size_t i = 0; i < kv::kMoveCount; ++i) EXPECT_GE(total.moves[i], kFiresMin) << "move " << i;
  EXPECT_GE(total.hash_mismatches, kFiresMin);
  RecordProperty("seeds", std::to_string(seeds));
  RecordProperty("rows", std::to_string(total.rows));
}

}  // namespace
}  // namespace tally::sched::testing
