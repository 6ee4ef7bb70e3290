#include "engine/loop.h"

#include "base/clock.h"
#include "base/log.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <utility>

namespace tally::engine {
namespace {

using sched::EndReason;

double seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

Finish finish_of(EndReason reason) {
  switch (reason) {
    case EndReason::kStop:
      return Finish::kStop;
    case EndReason::kLength:
      return Finish::kLength;
    case EndReason::kCancelled:
      return Finish::kCancelled;
    case EndReason::kDeadline:
      return Finish::kDeadline;
    case EndReason::kFailed:
      return Finish::kNonFinite;
    case EndReason::kShutdown:
      return Finish::kShutdown;
  }
  return Finish::kInternal;
}

}  // namespace

Loop::Loop(Parts parts)
    : parts_(std::move(parts)),
      view_(&parts_.shape, parts_.kv_memory.data()),
      mailbox_(std::make_shared<Mailbox>()),
      room_(std::make_shared<StreamRoom>(*parts_.accounts, parts_.info.answer_bytes_max)),
      ledger_(parts_.ledger),
      scheduler_(parts_.sched, ledger_),
      account_(parts_.info.max_model_len),
      work_(*parts_.model, parts_.shape.layers, parts_.scratch.bytes(), parts_.sched.step_tokens),
      cost_(parts_.cost),
      published_(parts_.info.max_model_len) {
  const size_t seqs = parts_.sched.seqs_max, rows = parts_.sched.step_tokens;
  const size_t table = (parts_.sched.model_len_max + parts_.info.block_tokens - 1) / parts_.info.block_tokens;
  groups_.reserve(seqs);
  draws_.reserve(seqs);
  constrained_.reserve(seqs);
  copies_.reserve(2 * seqs +
                  (parts_.sched.allocator == sched::Allocator::kReserve ? parts_.ledger.blocks : 0));
  tokens_.reserve(rows);
  segments_.reserve(seqs);
  tables_.reserve(seqs * table);
  const size_t with_logits = std::max(seqs, size_t{parts_.sched.logits_rows_max});
  logits_rows_.reserve(with_logits);
  scored_.reserve(with_logits);
  picks_.resize(seqs + with_logits);
  outcomes_.reserve(picks_.size());
  to_notify_.reserve(seqs + parts_.sched.queue_max);
  for (size_t w = 0; w < parts_.pool->threads(); ++w) sample_scratch_.emplace_back(parts_.info.vocab_size);
  row_copies_.resize(parts_.pool->threads(), std::vector<float>(parts_.info.vocab_size));
  scheduler_.set_cost(parts_.cost);
  account_.totals.block_bytes = parts_.shape.block_bytes();
  if (parts_.disk) promoter_ = std::make_unique<Promoter>(std::move(parts_.disk), *parts_.pool);
  publish(base::now_us());
}

Loop::~Loop() {
  end_all(Finish::kInternal);
  room_->close();
}

void Loop::stop(int64_t deadline_us) {
  const std::lock_guard lock(mailbox_->mutex);
  stop_deadline_us_ = stopping_ ? std::min(stop_deadline_us_, deadline_us) : deadline_us;
  stopping_ = true;
  // A pass over a slow disk can take longer than anybody waits for the end.
  if (stop_deadline_us_ <= base::now_us()) parts_.model->give_up_stream();
  mailbox_->attention = true;
  mailbox_->wake.notify_one();
}

uint64_t Loop::reset_prefix_cache() {
  const std::lock_guard lock(mailbox_->mutex);
  const uint64_t freed = ledger_.reset_prefix();
  mailbox_->attention = true;
  mailbox_->wake.notify_one();
  const std::lock_guard stats_lock(stats_mutex_);
  count_blocks(published_.totals);  // the next step may be far away
  return freed;
}

void Loop::count_blocks(Stats& t) const {
  const kv::LedgerStats l = ledger_.stats();
  t.blocks_total = l.total, t.blocks_free = l.free, t.blocks_held = l.held + l.both,
  t.blocks_cached = l.cached;
  t.blocks_shared = l.shared, t.blocks_registered = l.cached + l.both, t.waste_tokens = l.waste_tokens;
  t.evictions = l.evictions, t.hash_mismatches = l.hash_mismatches;
}

Stats Loop::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return published_.snapshot();
}

base::Result<void> Loop::run() {
  kernels::set_float_mode();
  try {
    while (wait_for_work()) {
      if (!step()) nap();
      if (fault_ && is_past_stop()) {
        end_all(Finish::kShutdown);
        return {};
      }
      if (fault_) {
        base::log_error("engine: weights cannot be read any more: {}", fault_->message);
        end_all(Finish::kInternal);
        return *fault_;
      }
    }
    keep_prefixes();
    return {};
  } catch (const std::exception& e) {
    base::log_error("engine: a step failed: {}", e.what());
  }
  end_all(Finish::kInternal);
  return base::Error{base::ErrorCode::kInternal, "the engine failed: a step could not be computed"};
}

bool Loop::is_past_stop() const {
  const std::lock_guard lock(mailbox_->mutex);
  return stopping_ && base::now_us() >= stop_deadline_us_;
}

// Cancels, and the end of a drain. Requires: mailbox_->mutex is held.
void Loop::take_mail() {
  for (const SeqId seq : mailbox_->cancels) scheduler_.cancel(seq, EndReason::kCancelled);
  mailbox_->cancels.clear();
  mailbox_->attention = false;
  if (stopping_ && base::now_us() >= stop_deadline_us_) {
    for (const auto& [seq, sequence] : sequences_) scheduler_.cancel(seq, EndReason::kShutdown);
  }
}

// Sleeps until there is something to do; false: the loop is over.
bool Loop::wait_for_work() {
  std::unique_lock lock(mailbox_->mutex);
  const int64_t begin = base::now_us();
  while (sequences_.empty() && !stopping_) {
    mailbox_->wake.wait(lock, [&] { return mailbox_->attention; });
    mailbox_->attention = false;
    if (!promoter_) continue;
    promoter_->tier().follow(ledger_);  // a reset is for the file too
    lock.unlock();
    promoter_->tier().save(view_);
    lock.lock();
  }
  const bool over = sequences_.empty();
  const int64_t now = base::now_us();
  account_.totals.idle_s += seconds(now - begin);
  if (over) {
    lock.unlock();
    publish(now);
  }
  return !over;
}

// What prompts begin with and a file has comes into the index before they are looked at. A step waits no
// longer for it than for a piece of a prompt; the next one goes on.
void Loop::promote() {
  if (!promoter_) return;
  constexpr int64_t kReadUs = 20'000;
  const int64_t until = base::now_us() + kReadUs;
  for (;;) {
    {
      const std::lock_guard lock(mailbox_->mutex);
      if (!promoter_->begin(scheduler_, ledger_, base::now_us())) break;
    }
    promoter_->read(view_);
    const std::lock_guard lock(mailbox_->mutex);
    const Promoter::Promoted done = promoter_->end(scheduler_, ledger_, base::now_us());
    sequences_.at(done.seq)->receipt.disk_tokens += done.blocks * parts_.info.block_tokens;
    if (base::now_us() >= until) break;
  }
  promoter_->tier().save(view_);
}

// The index goes to the file, for the next process.
void Loop::keep_prefixes() {
  if (!promoter_) return;
  constexpr int64_t kKeepUs = 10'000'000;
  {
    const std::lock_guard lock(mailbox_->mutex);
    promoter_->tier().follow_to_end(ledger_);
  }
  promoter_->tier().save_all(view_, base::now_us() + kKeepUs);
}

// A step without rows means that cancels ended everything; should work be left all the same, it must not
// spin.
void Loop::nap() {
  std::unique_lock lock(mailbox_->mutex);
  if (promoter_ && promoter_->has_newcomers()) return;  // reads go on
  if (!sequences_.empty()) mailbox_->wake.wait_for(lock, std::chrono::milliseconds(1));
}

// The heart: one pass of the journey.
bool Loop::step() {
  promote();
  Marks at;
  at.begin_us = at.drafted_us = base::now_us();
  if (parts_.drafter) {
    draft();
    at.drafted_us = base::now_us();
  }
  {
    const std::lock_guard lock(mailbox_->mutex);
    take_mail();
    const sched::StepPlan& planned = plan(at.begin_us);
    if (planned.rows.empty()) {
      publish(at.begin_us);
      return false;
    }
    at.planned_us = base::now_us();
    pack(planned, at.begin_us);
  }
  copy_blocks();
  at.packed_us = base::now_us();
  forward();
  at.computed_us = base::now_us();
  if ((fault_ = parts_.model->stream_fault())) return true;
  pick();
  at.sampled_us = base::now_us();
  commit(at);
  log_step(at);
  return true;
}

const sched::StepPlan& Loop::plan(int64_t now_us) {
  ledger_.begin_step();
  if (parts_.drafter) offer_drafts();
  const sched::StepPlan& planned = scheduler_.plan(now_us);
  for (const sched::Ended& ended : planned.ended) end(ended.seq, ended.reason, now_us);
  for (const sched::Preempted& p : planned.preempted) {
    const sched::QueueStats q = scheduler_.queue_stats();
    base::log_info("preempt seq={} by={} cause=growth blocks={} tokens={} avail={} running={}", raw(p.seq),
                   raw(p.by), p.blocks, p.tokens, ledger_.stats().free, q.running);
    Sequence& s = *sequences_.at(p.seq);
    s.matcher.reset();  // its place is another's now
    if (parts_.drafter) parts_.drafter->leave_seat(std::exchange(s.seat, Drafter::kNoSeat));
  }
  if (promoter_) promoter_->tier().follow(ledger_);
  for (const auto& stream : to_notify_) stream->notify();
  to_notify_.clear();
  return planned;
}

void Loop::pack(const sched::StepPlan& planned, int64_t now_us) {
  record_ = {.step = record_.step + 1, .predicted_us = static_cast<int64_t>(planned.predicted)};
  if (parts_.drafter) record_.draft_prompt_rows = parts_.drafter->prompt_rows();
  copies_.assign(planned.copies.begin(), planned.copies.end());
  groups_.clear(), draws_.clear(), constrained_.clear(), scored_.clear(), tokens_.clear(), segments_.clear(),
      tables_.clear(), logits_rows_.clear();
  for (const sched::PlannedRows& rows : planned.rows) {
    Group g;
    g.seq = rows.seq;
    g.sequence = sequences_.at(rows.seq).get();
    note_scheduled(*g.sequence, now_us);
    g.tokens = scheduler_.tokens(rows.seq);
    g.prompt_tokens = g.sequence->receipt.prompt_tokens;
    g.rows = rows.rows, g.row_begin = static_cast<uint32_t>(tokens_.size()), g.position = rows.position;
    g.decode = rows.decode;
    g.scores = rows.scores, g.scored_position = rows.scores > 0 ? rows.scored_position() : 0;
    g.ends_prompt_only = g.sequence->prompt_only && rows.position + rows.rows == g.prompt_tokens;
    pack_rows(rows, g);
    if (rows.wants_logits) {
      g.logits = static_cast<int32_t>(logits_rows_.size()) - 1;
      const auto group = static_cast<uint32_t>(groups_.size());
      draws_.push_back({rows.seq, g.sequence, group, false, rows.begins > 0});
      for (uint32_t i = 0; i < rows.begins; ++i) {
        const SeqId seq = planned.begins[rows.begins_at + i];
        draws_.push_back({seq, sequences_.at(seq).get(), group, true, true});
      }
    }
    groups_.push_back(g);
  }
  uint32_t picks = 0;
  for (uint32_t i = 0; i < draws_.size(); ++i) {
    Draw& d = draws_[i];  // beams that begin share the row of the first
    if (d.sequence->constraint && !(d.sequence->beams && d.begins)) constrained_.push_back(i);
    d.pick = picks;
    picks += 1 + static_cast<uint32_t>(groups_[d.group].drafts.size());
  }
  record_.sequences = groups_.size(), record_.logits_rows = logits_rows_.size();
  work_.add_pass(record_);
}

// The rows of a group: known tokens, then what was drafted behind them.
void Loop::pack_rows(const sched::PlannedRows& rows, Group& g) {
  const uint32_t known = rows.rows - rows.drafts;
  const auto first = g.tokens.begin() + rows.position;
  tokens_.insert(tokens_.end(), first, first + known);
  if (rows.drafts > 0) {
    g.drafts = parts_.drafter->drafts(g.sequence->seat).first(rows.drafts);
    tokens_.insert(tokens_.end(), g.drafts.begin(), g.drafts.end());
    record_.drafts[static_cast<size_t>(parts_.drafter->source(g.sequence->seat))].drafted += rows.drafts;
  }
  segments_.push_back({g.row_begin, rows.rows, rows.position, static_cast<uint32_t>(tables_.size())});
  for (const BlockId block : scheduler_.table(rows.seq)) tables_.push_back(raw(block));
  for (uint32_t i = 0; i < rows.logits; ++i) {
    if (i < rows.scores)
      scored_.push_back({static_cast<uint32_t>(groups_.size()), static_cast<uint32_t>(logits_rows_.size()),
                         g.scored_position + i});
    logits_rows_.push_back(g.row_begin + rows.rows - rows.logits + i);
  }
  record_.recompute_rows += rows.recomputed, record_.draft_rows += rows.drafts;
  (rows.decode ? record_.decode_rows : record_.prefill_rows) += known - rows.recomputed;
  work_.add_rows(rows.position, rows.rows, record_);
}

// A sequence's queue time ends with its first row, or with that of the choice it had to take over.
void Loop::note_scheduled(Sequence& s, int64_t now_us) {
  if (s.receipt.scheduled_us != 0) return;
  now_us = std::max(now_us, s.receipt.queued_us);  // it may have come while the step waited for the lock
  s.receipt.scheduled_us = now_us;
  s.receipt.queue_s = seconds(now_us - s.receipt.queued_us);
  s.mark_us = now_us;
}

// In order for each layer: a later copy may need what an earlier one wrote. What leaves for good is saved
// before it is written over.
void Loop::copy_blocks() {
  if (promoter_) promoter_->tier().save(view_);
  if (copies_.empty()) return;
  parts_.pool->parallel_for(parts_.shape.layers.size(), [&](size_t layer, size_t) {
    for (const sched::BlockCopy& c : copies_)
      view_.copy_block(LayerIdx{static_cast<uint32_t>(layer)}, c.from, c.to);
  });
}

// What constraints allow next is found beside the pass, for it depends on tokens alone.
void Loop::forward() {
  const auto follow = [this](size_t i, size_t) { follow_constraint(draws_[constrained_[i]]); };
  const base::ThreadPool::Beside masks(*parts_.pool, constrained_.size(), follow);
  parts_.model->forward({tokens_, segments_, tables_, logits_rows_, parts_.cascade}, view_, parts_.scratch,
                        *parts_.pool);
}

void Loop::commit(const Marks& at) {
  const int64_t now = base::now_us();
  uint32_t prefill_rows = 0, decode_rows = 0;
  for (const Group& g : groups_) {
    (g.decode ? decode_rows : prefill_rows) += g.rows - static_cast<uint32_t>(g.drafts.size());
    account_rows(g, at.begin_us, at.computed_us, now);
  }
  take_scores(now);
  take_tokens(now);
  {
    const std::lock_guard lock(mailbox_->mutex);
    for (const Group& g : groups_) {  // before commit: an ended sequence has no stats any more
      const sched::SequenceStats s = scheduler_.stats(g.seq);
      Receipt& r = g.sequence->receipt;
      r.cached_tokens = s.cached_tokens, r.preemptions = s.preemptions,
      r.recomputed_tokens = s.recomputed_tokens;
      r.disk_tokens = std::min(r.disk_tokens, r.cached_tokens);  // a reset may have come after they were read
      r.kv_blocks = s.blocks_peak;
      // Taken over from the prefix cache, or in the tables of others at this moment.
      r.kv_blocks_shared = std::max(s.blocks_shared, s.cached_tokens / parts_.info.block_tokens);
      r.kv_bytes = uint64_t{s.blocks_peak} * parts_.shape.block_bytes();
    }
    for (const Group& g : groups_) {
      if (g.failed) scheduler_.fail(g.seq);
      if (g.ends_prompt_only && !g.failed) account_.prompt(g.sequence->receipt);
      g.sequence->mark_us = now;
    }
    for (const Draw& d : draws_) {
      Sequence& s = *d.sequence;
      if (outcomes_[d.outcome].failed) continue;
      if (s.beams) {  // their tokens count when it is known which are answers
        if (d.shares_row && !d.begins) account_.prompt(s.receipt);
        continue;
      }
      account_.tokens(d.tokens, s.receipt, s.previous_token_us, now, d.begins);
    }
    if (parts_.drafter) settle_drafts(at, prefill_rows == 0, now);
    for (const sched::Ended& ended : scheduler_.commit(outcomes_, now)) end(ended.seq, ended.reason, now);
    if (parts_.drafter) seat_sequences();
    const double wall = seconds(now - at.begin_us);
    const double rate = static_cast<double>(tokens_.size()) / std::max(wall, 1e-6);
    rows_per_second_ = rows_per_second_ == 0 ? rate : rows_per_second_ + (rate - rows_per_second_) / 16;
    account_.step(prefill_rows, decode_rows, wall);
    account_.work(record_);
    if (parts_.sched.step_latency > 0 && prefill_rows > 0 && decode_rows > 0) {
      cost_.observe(static_cast<double>(record_.predicted_us), static_cast<double>(now - at.begin_us));
      scheduler_.set_cost(cost_.now());
    }
    if (promoter_) {
      promoter_->note_prefill(prefill_rows, wall);
      promoter_->tier().follow(ledger_);
    }
    publish(now);
  }
  if (promoter_) promoter_->tier().save(view_);
  for (const auto& stream : to_notify_) stream->notify();
  to_notify_.clear();
}

// The step's account: its seconds join the totals' phases, and its record the log.
void Loop::log_step(const Marks& at) {
  const int64_t end_us = base::now_us();
  Stats& t = account_.totals;
  StepRecord& r = record_;
  const model::OpTimes& ops = parts_.scratch.times();
  const auto us = [](double s) { return static_cast<int64_t>(s * 1e6); };
  r.begin_us = at.begin_us, r.duration_us = end_us - at.begin_us;
  r.phase(Phase::kPlan) = at.planned_us - at.begin_us, r.phase(Phase::kPack) = at.packed_us - at.planned_us;
  r.phase(Phase::kLinear) = us(ops.linear_s), r.phase(Phase::kAttention) = us(ops.attention_s);
  r.phase(Phase::kHead) = us(ops.head_s);
  r.phase(Phase::kOther) = at.computed_us - at.packed_us - r.phase(Phase::kLinear) -
                           r.phase(Phase::kAttention) - r.phase(Phase::kHead);
  r.phase(Phase::kSample) = at.sampled_us - at.computed_us, r.phase(Phase::kCommit) = end_us - at.sampled_us;
  r.running = t.running, r.waiting = t.waiting;
  r.blocks_free = t.blocks_free, r.blocks_held = t.blocks_held, r.blocks_cached = t.blocks_cached;
  log_.add(r);
  t.plan_s += seconds(at.planned_us - at.begin_us), t.pack_s += seconds(at.packed_us - at.planned_us);
  const double forward_s = seconds(at.computed_us - at.packed_us);
  t.forward_s += forward_s;
  account_.time(r, forward_s, parts_.info.roofs);
  t.sample_s += seconds(at.sampled_us - at.computed_us), t.commit_s += seconds(end_us - at.sampled_us);
}

// The step's wall joins the stages of one sequence: what it waited before, then compute, then sampling and
// commit.
void Loop::account_rows(const Group& g, int64_t begin_us, int64_t computed_us, int64_t end_us) {
  Receipt& r = g.sequence->receipt;
  ++r.steps;
  const int64_t from_us = std::max(begin_us, g.sequence->mark_us);
  r.stalled_s += seconds(from_us - g.sequence->mark_us);
  const double compute = seconds(computed_us - from_us);
  // Rows computed again after a preemption, once there are tokens, are time others took from this sequence.
  (g.decode ? r.decode_s : r.generated_tokens > 0 ? r.stalled_s : r.prefill_s) += compute;
  r.sample_s += seconds(end_us - computed_us);
  r.weight_bytes_read += parts_.model->weight_bytes() * g.rows / tokens_.size();
}

// The one end record of a sequence. Requires: mailbox_->mutex is held.
void Loop::end(SeqId seq, EndReason reason, int64_t now_us) {
  const auto found = sequences_.find(seq);
  TALLY_CHECK(found != sequences_.end(), "end of an unknown sequence", raw(seq));
  Sequence& s = *found->second;
  if (now_us > s.mark_us) {
    (s.receipt.scheduled_us == 0 ? s.receipt.queue_s : s.receipt.stalled_s) += seconds(now_us - s.mark_us);
  }
  s.receipt.last_us = now_us;
  Finish finish = finish_of(reason);
  if (reason == EndReason::kFailed && s.dead_end)
    finish = s.matcher_full ? Finish::kLength : Finish::kDeadEnd;
  if (s.beams) {
    end_beam(*s.beams, finish, s.receipt, now_us);
  } else {
    account_.finished(finish, s.receipt);
    s.stream->end(finish, s.receipt);
    if (to_notify_.empty() || to_notify_.back() != s.stream) to_notify_.push_back(s.stream);
  }
  if (parts_.drafter) parts_.drafter->leave_seat(s.seat);
  sequences_.erase(found);
}

// The first of its beams to end has the receipt of the request; the answers are written with the last.
void Loop::end_beam(BeamFamily& beams, Finish finish, const Receipt& receipt, int64_t now_us) {
  if (!beams.leave(receipt)) return;
  beams.finish(finish, now_us);
  for (const BeamFamily::Answer& answer : beams.answers()) {
    account_.totals.generation_tokens += answer.receipt.generated_tokens;
    account_.finished(answer.finish, answer.receipt);
  }
  to_notify_.insert(to_notify_.end(), beams.streams().begin(), beams.streams().end());
}

void Loop::end_all(Finish why) {
  const std::lock_guard lock(mailbox_->mutex);
  failed_ = true;
  for (const auto& [seq, sequence] : sequences_) {
    sequence->receipt.last_us = base::now_us();
    if (sequence->beams && sequence->beams->leave(sequence->receipt)) {
      sequence->beams->finish(why, base::now_us());
      for (const auto& stream : sequence->beams->streams()) stream->notify();
    } else if (sequence->stream) {
      sequence->stream->end(why, sequence->receipt);
      sequence->stream->notify();
    }
  }
  sequences_.clear();
  account_.totals.failed = why == Finish::kInternal;
  publish(base::now_us());
}

// Requires: mailbox_->mutex is held, or no other thread knows this yet.
void Loop::publish(int64_t now_us) {
  Stats& t = account_.totals;
  const sched::QueueStats q = scheduler_.queue_stats();
  t.running = q.running, t.waiting = q.waiting, t.waiting_deferred = q.deferred,
  t.queue_tokens = q.waiting_tokens;
  t.queue_oldest_s = q.oldest_arrival == 0 ? 0 : seconds(now_us - q.oldest_arrival);
  count_blocks(t);
  account_.block_ages = ledger_.ages();
  t.preemptions = q.preemptions, t.preempted_tokens = q.preempted_tokens,
  t.recomputed_tokens = q.recomputed_tokens, t.prompt_tokens_recomputed = q.cached_recomputed_tokens;
  t.forks = q.forks, t.copied_blocks = q.copied_blocks;
  t.prefix_queries = q.prefix_queries_tokens, t.prefix_hits = q.prefix_hits_tokens;
  if (promoter_) {
    t.kv_disk = promoter_->tier().stats();
    t.kv_disk.prefill_rows_per_s = promoter_->prefill_rows_per_s();
  }
  const model::StreamStats w = parts_.model->stream_stats();
  t.weight_stream = {w.layers, w.pass_bytes, w.read_bytes, w.read_s, w.waited_s, parts_.disk_bytes_per_s};
  t.last_step_us = now_us;
  t.work_runnable = !scheduler_.idle();
  const std::lock_guard lock(stats_mutex_);
  published_ = account_;
}

}  // namespace tally::engine
