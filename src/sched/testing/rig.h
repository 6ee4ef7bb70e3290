#pragma once
// Scheduler, ledger and fake model in one place, with a record and an oracle for each sequence. Every step
// checks what the plan promises; the first broken promise is kept in error(). Test support, not in the
// product.

#include "sched/plan.h"
#include "sched/testing/fake_model.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tally::sched::testing {

inline const char* name_of(EndReason reason) {
  constexpr const char* kNames[] = {"stop", "length", "cancelled", "deadline", "failed", "shutdown"};
  return kNames[static_cast<size_t>(reason)];
}
inline const char* name_of(SeqState state) {
  constexpr const char* kNames[] = {"waiting", "prefilling", "decoding", "preempted", "ended"};
  return kNames[static_cast<size_t>(state)];
}
inline const char* name_of(Refusal refusal) {
  constexpr const char* kNames[] = {"none", "queue_full", "prompt_too_long", "pool_too_small",
                                    "too_many_choices"};
  return kNames[static_cast<size_t>(refusal)];
}

// What is known of a sequence from outside. The oracle is the chain over prompt and emitted tokens: it never
// sees a block.
struct Record {
  Request request;
  FakeSampler sampler;
  Admission admission;
  std::vector<TokenId> emitted;
  uint64_t oracle = 0;     // c over prompt and emitted
  uint32_t positions = 0;  // tokens in it
  uint32_t choice = 0;
  uint32_t scored_next = 0;  // position of the next prompt token to be scored; kept with the first choice
  bool admitted = false, cancelled = false, may_fail = false;
  std::optional<EndReason> end;
  SequenceStats stats;  // at the end

  bool live() const { return admission.refusal == Refusal::kNone && !end; }
};

struct StepFaults {
  std::set<SeqId> rows;  // these sequences' own work fails
  bool all_rows = false;
  bool abandon = false;          // the forward fails
  bool reset_in_flight = false;  // the prefix cache is reset between plan and commit
};

// What is drafted for whoever decodes: up to `most` tokens, of which the first are right.
struct Drafting {
  uint32_t most = 0;
  std::optional<uint32_t> right = {};  // none: by chance, and so is how many there are
  uint64_t seed = 0;
};

class Rig {
 public:
  Rig(const Config& config, const kv::LedgerConfig& ledger_config)
      : config_(config),
        ledger_(ledger_config),
        scheduler_(config, ledger_),
        model_(ledger_config.blocks, ledger_config.block_tokens) {}

  Scheduler& scheduler() { return scheduler_; }
  kv::Ledger& ledger() { return ledger_; }
  const std::vector<Record>& records() const { return records_; }
  const Record& record(SeqId seq) const { return records_[raw(seq) - 1]; }
  const StepPlan& last_plan() const { return plan_; }
  const std::vector<SeqId>& admission_order() const { return admission_order_; }
  const std::string& error() const { return error_; }
  uint64_t log_hash() const { return log_; }
  void set_drafting(const Drafting& drafting) { drafting_ = drafting; }

  // Ids are given in order, from 1, one for each choice. `request.seq` is set here. Returns the first.
  SeqId submit(Request request, const FakeSampler& sampler) {
    Record r;
    request.seq = SeqId{records_.size() + 1};
    r.sampler = sampler;
    r.oracle = chain_start(request.prefix_namespace);
    for (const TokenId id : request.prompt) r.oracle = chain_next(r.oracle, id, r.positions++);
    r.scored_next = request.score_from == 0 ? r.positions : std::min(request.score_from, r.positions);
    r.request = request;
    r.admission = scheduler_.submit(std::move(request));
    log(static_cast<uint64_t>(r.admission.refusal), r.admission.max_tokens);
    const SeqId first = r.request.seq;
    for (r.choice = 0; r.choice < r.request.choices; ++r.choice) {
      if (r.live()) live_.push_back(SeqId{raw(first) + r.choice});
      records_.push_back(r);
    }
    return first;
  }

  void cancel(SeqId seq, EndReason reason = EndReason::kCancelled) {
    for (Record* r : choices_of(seq)) {
      if (r->request.beams || id_of(*r) == seq) r->cancelled = r->cancelled || r->live();
    }
    scheduler_.cancel(seq, reason);
  }

  // One step: plan, forward, commit, with every check but the recount.
  void step(Tick now, const StepFaults& faults = {}) {
    offer_drafts();
    const StepPlan& plan = scheduler_.plan(now);
    plan_ = plan;
    // Between plan and commit too: what was taken and copied for this step already counts.
    if (ledger_.blocks() <= 64 && ++steps_ % 8 == 0) scheduler_.check();
    log(plan.rows.size(), static_cast<uint64_t>(now));
    for (const Ended& e : plan.ended) end(e, now);
    for (const SeqId seq : plan.admitted) admit(seq);
    for (const Preempted& p : plan.preempted) log(raw(p.seq) << 32 | p.blocks, p.tokens);
    for (const SeqId seq : live_) {
      if (record(seq).cancelled) fail("S5: cancelled and still there: " + std::to_string(raw(seq)));
    }
    if (plan.rows.empty()) {
      if (!scheduler_.idle()) fail("S3: something waits or runs and nothing is planned");
      return;
    }
    if (faults.reset_in_flight) ledger_.reset_prefix();
    for (const BlockCopy& c : plan.copies) model_.copy(c.from, c.to);
    if (faults.abandon) {
      for (const PlannedRows& g : plan.rows) may_fail(g.seq);
      for (const Ended& e : scheduler_.abandon(now)) end(e, now);
      return;
    }
    forward(plan, faults);
    for (const Ended& e : scheduler_.commit(outcomes_, now)) end(e, now);
  }

  // Of the request that `seq` is a choice of.
  std::vector<Record*> choices_of(SeqId seq) {
    const size_t at = raw(seq) - 1, first = at - records_[at].choice;
    std::vector<Record*> out;
    for (size_t i = 0; i < records_[at].request.choices; ++i) out.push_back(&records_[first + i]);
    return out;
  }
  static SeqId id_of(const Record& r) { return SeqId{raw(r.request.seq) + r.choice}; }

  // Sequences taken and not ended, in order.
  const std::vector<SeqId>& live() const { return live_; }

  void fail(const std::string& what) {
    if (error_.empty()) error_ = what;
  }

 private:
  void log(uint64_t a, uint64_t b) { log_ = mix(log_ ^ mix(a) ^ (b << 1)); }

  void admit(SeqId seq) {
    Record& r = records_[raw(seq) - 1];
    if (r.admitted) fail("admitted twice: " + std::to_string(raw(seq)));
    r.admitted = true;
    admission_order_.push_back(seq);
    log(raw(seq), 0xAD);
  }

  void end(const Ended& e, Tick now) {
    Record& r = records_[raw(e.seq) - 1];
    log(raw(e.seq), static_cast<uint64_t>(e.reason));
    if (r.end) fail("S6: two end records: " + std::to_string(raw(e.seq)));
    r.end = e.reason;
    std::erase(live_, e.seq);
    r.stats = scheduler_.stats(e.seq);
    const auto tokens = scheduler_.tokens(e.seq);
    const auto generated = tokens.subspan(r.request.prompt.size());
    if (!std::ranges::equal(generated, r.emitted))
      fail("S6: tokens and those emitted differ: " + std::to_string(raw(e.seq)));
    if (r.stats.generated_tokens != r.emitted.size()) fail("S6: usage is not what was emitted");
    check_reason(r, now);
    if (!scheduler_.table(e.seq).empty()) fail("ended with blocks: " + std::to_string(raw(e.seq)));
    if (r.stats.recomputed_tokens > 0 && r.stats.preemptions == 0) fail("recomputed without preemption");
  }

  void check_reason(const Record& r, Tick now) {
    const std::string who = std::to_string(raw(r.request.seq)) + " " + name_of(*r.end);
    switch (*r.end) {
      case EndReason::kStop:
        if (!stopped_) fail("stop without an end token: " + who);
        break;
      case EndReason::kLength:
        if (r.emitted.size() != r.admission.max_tokens) fail("length before the limit: " + who);
        if (record(r.request.seq).scored_next < r.request.prompt.size()) fail("S11: not all scored: " + who);
        break;
      case EndReason::kDeadline:
        if (r.request.deadline == 0 || now < r.request.deadline) fail("deadline that had not passed: " + who);
        break;
      case EndReason::kFailed:
        if (!r.may_fail) fail("S9: failed without a fault: " + who);
        break;
      case EndReason::kCancelled:
      case EndReason::kShutdown:
        if (!r.cancelled) fail("ended without a cancel: " + who);
        break;
    }
  }

  // A sequence's work may fail for those that were to be forked from it too, and for its fellow beams.
  void may_fail(SeqId seq) {
    for (Record* r : choices_of(seq)) {
      if (id_of(*r) == seq || !r->admitted || r->request.beams) r->may_fail = true;
    }
  }

  // S11: every position from the first on is scored once, in order, by the row before it, and before a token
  // is generated; no other row of a prompt has logits.
  void take_scores(const PlannedRows& g) {
    Record& root = records_[raw(record(g.seq).request.seq) - 1];
    const uint32_t end = g.position + g.rows, prompt = static_cast<uint32_t>(root.request.prompt.size());
    uint32_t scores = 0;
    for (uint32_t row = g.position; row < end && root.scored_next < prompt; ++row) {
      if (row + 1 > root.scored_next) fail("S11: not scored: sequence " + std::to_string(raw(g.seq)));
      if (row + 1 != root.scored_next) continue;
      if (scores++ == 0 && g.scored_position() != root.scored_next) fail("S11: scored at another position");
      ++root.scored_next;
    }
    log(scores, root.scored_next);
    if (g.scores != scores) fail("S11: scores of a step: sequence " + std::to_string(raw(g.seq)));
    if (scores == 0 && g.logits != (g.wants_logits ? 1 + g.drafts : 0U)) fail("S11: logits that nobody wants");
    if (g.wants_logits && root.scored_next < prompt) fail("S11: a token before the scores");
  }

  struct Result {
    SeqId seq{};
    uint64_t c = 0;
    bool first = false;  // of a choice that begins, or of the one it is forked from
    std::span<const TokenId> drafts = {};
  };

  // The tokens that will come, and then one that will not.
  void offer_drafts() {
    drafts_.clear();
    if (drafting_.most == 0) return;
    for (const SeqId seq : live_) {
      const uint64_t dice = mix(drafting_.seed ^ mix(raw(seq)) ^ steps_drafted_);
      const Record& r = record(seq);
      const auto count =
          drafting_.right ? drafting_.most : static_cast<uint32_t>(dice % (drafting_.most + 1));
      const auto right = drafting_.right.value_or(static_cast<uint32_t>((dice >> 32) % (count + 1)));
      std::vector<TokenId>& draft = drafts_[seq];
      uint64_t c = r.oracle;
      for (uint32_t i = 0; i < count; ++i) {
        const TokenId token = r.sampler.pick(c, r.choice);
        draft.push_back(i < right ? token : TokenId{(raw(token) + 1) % kVocabulary});
        c = chain_next(c, draft.back(), r.positions + i);
      }
      scheduler_.offer(seq, count);
    }
    ++steps_drafted_;
  }

  // The rows of a group: first those of known tokens, whose last cell is returned, then each draft's.
  std::optional<uint64_t> compute(const PlannedRows& g, const Record& r) {
    const auto known = scheduler_.tokens(g.seq);
    std::vector<TokenId> tokens(known.begin(), known.end());
    const auto table = scheduler_.table(g.seq);
    const kv::Namespace& space = r.request.prefix_namespace;
    const auto c = model_.forward(tokens, table, g.position, g.rows - g.drafts, space);
    for (uint32_t i = 0; i < g.drafts; ++i) {
      tokens.push_back(drafts_.at(g.seq)[i]);
      const auto position = static_cast<uint32_t>(tokens.size()) - 1;
      if (!model_.forward(tokens, table, position, 1, space)) return std::nullopt;
    }
    return c;
  }

  void forward(const StepPlan& plan, const StepFaults& faults) {
    results_.clear();
    uint32_t rows = 0, logits = 0;
    bool prefill = false;
    stopped_ = false;
    for (const PlannedRows& g : plan.rows) {
      Record& r = records_[raw(g.seq) - 1];
      rows += g.rows, logits += g.logits;
      prefill |= !g.decode;
      if (g.decode && prefill) fail("a decode row after a prefill row");
      // A choice that goes on where a cancelled one was.
      r.admitted = r.admitted || std::ranges::any_of(choices_of(g.seq), &Record::admitted);
      if (g.rows == 0 || !r.live() || !r.admitted) fail("a row of no use: " + std::to_string(raw(g.seq)));
      const auto tokens = scheduler_.tokens(g.seq);
      log(raw(g.seq) << 32 | g.position, g.rows << 2 | (g.decode ? 2U : 0U) | (g.wants_logits ? 1U : 0U));
      if (tokens.size() != r.positions) fail("tokens known: " + std::to_string(raw(g.seq)));
      if (g.wants_logits != (g.position + g.rows - g.drafts == tokens.size() && !r.request.prompt_only))
        fail("logits wanted or not");
      if (g.drafts > 0) check_drafts(g, r);
      take_scores(g);
      const auto c = compute(g, r);
      if (!c) fail("sequence " + std::to_string(raw(g.seq)) + ": " + model_.error());
      if (!g.wants_logits) continue;
      if (c.value_or(0) != r.oracle)
        fail("the oracle's stream differs: sequence " + std::to_string(raw(g.seq)));
      const bool first = r.emitted.empty() && r.request.choices > 1;
      results_.push_back({g.seq, r.oracle, first});
      if (g.drafts > 0) results_.back().drafts = std::span(drafts_.at(g.seq)).first(g.drafts);
      for (uint32_t i = 0; i < g.begins; ++i) {
        const SeqId child = plan.begins[g.begins_at + i];
        if (records_[raw(child) - 1].admitted) fail("begun twice: " + std::to_string(raw(child)));
        records_[raw(child) - 1].admitted = true;
        results_.push_back({child, r.oracle, true});
      }
    }
    if (rows > config_.step_tokens) fail("S1: rows of a step");
    if (logits > (config_.logits_rows_max == 0 ? config_.seqs_max : config_.logits_rows_max))
      fail("S1: rows of logits of a step");
    pick_outcomes(faults);
  }

  void pick_outcomes(const StepFaults& faults) {
    outcomes_.assign(results_.size(), Outcome{});
    for (size_t i = 0; i < results_.size(); ++i) {
      Record& r = records_[raw(results_[i].seq) - 1];
      outcomes_[i].failed = faults.all_rows || faults.rows.contains(results_[i].seq);
      if (outcomes_[i].failed) r.may_fail = true;
    }
    for (size_t i = 0; i < results_.size(); ++i) {
      if (records_[raw(results_[i].seq) - 1].request.beams) move_beam(i);
    }
    std::vector<Outcome> first = std::move(outcomes_);
    outcomes_.clear();
    for (size_t i = 0; i < results_.size(); ++i) {
      const size_t at = outcomes_.size();
      outcomes_.push_back(first[i]);
      emit(i, at);
      for (const TokenId draft : results_[i].drafts) {
        const Outcome& last = outcomes_.back();
        if (last.failed || last.stop || last.token != draft) break;
        ++outcomes_[at].accepted;
        outcomes_.emplace_back();
        emit(i, outcomes_.size() - 1);
      }
    }
  }

  void check_drafts(const PlannedRows& g, const Record& r) {
    const std::string who = std::to_string(raw(g.seq));
    if (!g.decode || r.request.beams || g.rows != 1 + g.drafts || g.logits != g.rows)
      fail("rows of drafts: " + who);
    if (g.drafts > drafts_[g.seq].size()) fail("more drafts than were offered: " + who);
    if (r.emitted.size() + g.drafts >= r.admission.max_tokens) fail("drafts beyond the limit: " + who);
  }

  // Beams: one failed is all failed; else those whose cells' hash is even go on alone, and the others from
  // one of these.
  void move_beam(size_t i) {
    const SeqId seq = results_[i].seq;
    Record& r = records_[raw(seq) - 1];
    std::vector<size_t> heads;
    for (size_t k = 0; k < results_.size(); ++k) {
      const Record& other = records_[raw(results_[k].seq) - 1];
      if (other.request.seq != r.request.seq) continue;
      if (outcomes_[k].failed) r.may_fail = true;
      if (mix(results_[k].c + other.choice) % 2 == 0) heads.push_back(k);
    }
    if (results_[i].first || heads.empty() || std::ranges::find(heads, i) != heads.end()) return;
    const size_t head = heads[mix(results_[i].c ^ 0xBEA) % heads.size()];
    outcomes_[i].from = results_[head].seq;
  }

  // The next token of result i, as outcome `at`.
  void emit(size_t i, size_t at) {
    Record& r = records_[raw(results_[i].seq) - 1];
    if (outcomes_[at].failed || (r.request.beams && r.may_fail)) return;
    if (outcomes_[at].from) {
      // The head may have its token already: what it had before is its stream without the last.
      const Record& head = records_[raw(*outcomes_[at].from) - 1];
      const bool later = head.emitted.size() > r.emitted.size();
      r.emitted.assign(head.emitted.begin(), head.emitted.end() - (later ? 1 : 0));
      r.oracle = chain_start(r.request.prefix_namespace);
      r.positions = 0;
      for (const TokenId id : r.request.prompt) r.oracle = chain_next(r.oracle, id, r.positions++);
      for (const TokenId id : r.emitted) r.oracle = chain_next(r.oracle, id, r.positions++);
    }
    const uint64_t c = r.oracle;
    const auto number = static_cast<uint32_t>(r.emitted.size()) + 1;
    outcomes_[at].token = r.sampler.pick(c, r.choice);
    outcomes_[at].stop = r.sampler.stops(c, number, r.choice);
    r.emitted.push_back(outcomes_[at].token);
    r.oracle = chain_next(r.oracle, outcomes_[at].token, r.positions++);
    stopped_ = stopped_ || outcomes_[at].stop;
    log(static_cast<uint64_t>(raw(outcomes_[at].token)), raw(results_[i].seq));
  }

  Config config_;
  kv::Ledger ledger_;
  Scheduler scheduler_;
  FakeModel model_;
  std::vector<Record> records_;
  std::vector<SeqId> live_;
  std::vector<SeqId> admission_order_;
  StepPlan plan_;
  std::vector<Result> results_;
  std::vector<Outcome> outcomes_;
  Drafting drafting_;
  std::map<SeqId, std::vector<TokenId>> drafts_;  // of this step
  bool stopped_ = false;
  uint64_t log_ = 0, steps_ = 0, steps_drafted_ = 0;
  std::string error_;
};

}  // namespace tally::sched::testing
