#include "engine/loop.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/sha256.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>

namespace tally::engine {
namespace {

using sched::EndReason;

double seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

// Lengths are framed: ("ab", "c") and ("a", "bc") are two namespaces.
kv::Namespace prefix_namespace(const std::string& tenant, const std::string& salt) {
  std::string framed;
  for (const std::string_view part :
       {std::string_view("ns1"), std::string_view(tenant), std::string_view(salt)}) {
    const auto n = static_cast<uint32_t>(part.size());
    for (int i = 0; i < 4; ++i) framed.push_back(static_cast<char>(n >> (8 * i)));
    framed += part;
  }
  const base::Digest digest = base::sha256(framed);
  kv::Namespace ns{};
  for (size_t i = 0; i < digest.size(); ++i) ns[i / 8] |= uint64_t{digest[i]} << (8 * (i % 8));
  return ns;
}

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

Refusal refusal_of(sched::Refusal why) {
  switch (why) {
    case sched::Refusal::kPromptTooLong:
      return Refusal::kContextLength;
    case sched::Refusal::kPoolTooSmall:
      return Refusal::kPoolTooSmall;
    case sched::Refusal::kQueueFull:
    case sched::Refusal::kNone:
      break;
  }
  return Refusal::kQueueFull;
}

}  // namespace

Loop::Loop(Parts parts)
    : parts_(std::move(parts)),
      view_(&parts_.shape, parts_.kv_memory.data()),
      mailbox_(std::make_shared<Mailbox>()),
      ledger_(parts_.ledger),
      scheduler_(parts_.sched, ledger_),
      account_(parts_.info.max_model_len),
      published_(parts_.info.max_model_len) {
  const size_t seqs = parts_.sched.seqs_max, rows = parts_.sched.step_tokens;
  const size_t table = (parts_.sched.model_len_max + parts_.info.block_tokens - 1) / parts_.info.block_tokens;
  groups_.reserve(seqs);
  tokens_.reserve(rows);
  segments_.reserve(seqs);
  tables_.reserve(seqs * table);
  logits_rows_.reserve(seqs);
  picks_.resize(seqs);
  outcomes_.reserve(seqs);
  to_notify_.reserve(seqs + parts_.sched.queue_max);
  for (size_t w = 0; w < parts_.pool->threads(); ++w) sample_scratch_.emplace_back(parts_.info.vocab_size);
  kv_row_bytes_ = parts_.shape.block_bytes() / parts_.info.block_tokens;
  account_.totals.block_bytes = parts_.shape.block_bytes();
  publish(base::now_us());
}

Loop::~Loop() { fail_all(); }

Submitted Loop::submit(Request request) {
  const int64_t now = base::now_us();
  const auto top = static_cast<uint8_t>(std::max(0, request.params.logprobs));
  const std::lock_guard lock(mailbox_->mutex);
  if (stopping_ || failed_) return {nullptr, {Refusal::kStopping, 0, 0, 1}};
  sched::Request wanted;
  wanted.seq = SeqId{next_seq_++};
  wanted.max_tokens = request.max_tokens;
  wanted.prefix_namespace = prefix_namespace(request.tenant, request.salt);
  wanted.arrival = now;
  wanted.deadline = request.deadline_us;
  wanted.prompt = std::move(request.prompt);
  const auto prompt_tokens = static_cast<uint32_t>(wanted.prompt.size());
  const SeqId seq = wanted.seq;
  const sched::Admission admission = scheduler_.submit(std::move(wanted));
  if (admission.refusal != sched::Refusal::kNone) {
    const double ahead = static_cast<double>(scheduler_.queue_stats().waiting_tokens);
    const double wait_s = rows_per_second_ > 0 ? std::ceil(ahead / rows_per_second_) : 1;
    return {nullptr,
            {refusal_of(admission.refusal), admission.needed, admission.available,
             static_cast<uint32_t>(std::clamp(wait_s, 1.0, 60.0))}};
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->params = std::move(request.params);
  sequence->receipt.arrived_us = request.arrived_us == 0 ? now : request.arrived_us;
  sequence->receipt.queued_us = now;
  sequence->receipt.prompt_tokens = prompt_tokens;
  sequence->receipt.seed = sequence->params.seed;
  sequence->mark_us = now;
  sequence->booked_bytes = TokenStream::bytes(admission.max_tokens, top);
  parts_.accounts->book(base::Account::kRuntime, "token streams",
                        static_cast<int64_t>(sequence->booked_bytes));
  sequence->stream =
      std::make_shared<TokenStream>(seq, admission.max_tokens, top, mailbox_, std::move(request.notify));
  Submitted result{sequence->stream, {}};
  sequences_.emplace(seq, std::move(sequence));
  mailbox_->attention = true;
  mailbox_->wake.notify_one();
  return result;
}

void Loop::stop(int64_t deadline_us) {
  const std::lock_guard lock(mailbox_->mutex);
  stop_deadline_us_ = stopping_ ? std::min(stop_deadline_us_, deadline_us) : deadline_us;
  stopping_ = true;
  mailbox_->attention = true;
  mailbox_->wake.notify_one();
}

uint64_t Loop::reset_prefix_cache() {
  const std::lock_guard lock(mailbox_->mutex);
  const uint64_t freed = ledger_.reset_prefix();
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
    }
    return {};
  } catch (const std::exception& e) {
    base::log_error("engine: a step failed: {}", e.what());
  }
  fail_all();
  return base::Error{base::ErrorCode::kInternal, "the engine failed: a step could not be computed"};
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

// A step without rows means that cancels ended everything; should work be left all the same, it must not
// spin.
void Loop::nap() {
  std::unique_lock lock(mailbox_->mutex);
  if (!sequences_.empty()) mailbox_->wake.wait_for(lock, std::chrono::milliseconds(1));
}

// The heart: one pass of the journey.
bool Loop::step() {
  const int64_t begin = base::now_us();
  {
    const std::lock_guard lock(mailbox_->mutex);
    take_mail();
    const sched::StepPlan& planned = plan(begin);
    if (planned.rows.empty()) {
      publish(begin);
      return false;
    }
    pack(planned);
  }
  const int64_t packed = base::now_us();
  forward();
  const int64_t computed = base::now_us();
  pick();
  const int64_t sampled = base::now_us();
  account_.totals.pack_s += seconds(packed - begin);
  account_.totals.forward_s += seconds(computed - packed);
  account_.totals.sample_s += seconds(sampled - computed);
  commit(begin, computed, sampled);
  return true;
}

const sched::StepPlan& Loop::plan(int64_t now_us) {
  const sched::StepPlan& planned = scheduler_.plan(now_us);
  for (const sched::Ended& ended : planned.ended) end(ended.seq, ended.reason, now_us);
  for (const sched::Preempted& p : planned.preempted) {
    const sched::QueueStats q = scheduler_.queue_stats();
    base::log_info("preempt seq={} by={} cause=growth blocks={} tokens={} avail={} running={}", raw(p.seq),
                   raw(p.by), p.blocks, p.tokens, ledger_.stats().free, q.running);
  }
  for (const SeqId seq : planned.admitted) {
    Sequence& s = *sequences_.at(seq);
    if (s.receipt.scheduled_us != 0) continue;
    s.receipt.scheduled_us = now_us;
    s.receipt.queue_s = seconds(now_us - s.receipt.queued_us);
    s.mark_us = now_us;
  }
  for (const auto& stream : to_notify_) stream->notify();
  to_notify_.clear();
  return planned;
}

void Loop::pack(const sched::StepPlan& planned) {
  groups_.clear(), tokens_.clear(), segments_.clear(), tables_.clear(), logits_rows_.clear();
  for (const sched::PlannedRows& rows : planned.rows) {
    Group g;
    g.seq = rows.seq;
    g.sequence = sequences_.at(rows.seq).get();
    g.tokens = scheduler_.tokens(rows.seq);
    g.prompt_tokens = g.sequence->receipt.prompt_tokens;
    g.rows = rows.rows, g.row_begin = static_cast<uint32_t>(tokens_.size()), g.position = rows.position;
    g.decode = rows.decode;
    const auto first = g.tokens.begin() + rows.position;
    tokens_.insert(tokens_.end(), first, first + rows.rows);
    segments_.push_back({g.row_begin, rows.rows, rows.position, static_cast<uint32_t>(tables_.size())});
    for (const BlockId block : scheduler_.table(rows.seq)) tables_.push_back(raw(block));
    if (rows.wants_logits) {
      g.logits = static_cast<int32_t>(logits_rows_.size());
      logits_rows_.push_back(g.row_begin + rows.rows - 1);
    }
    account_.totals.rows_recompute += rows.recomputed;
    (rows.decode ? account_.totals.rows_decode : account_.totals.rows_prefill) += rows.rows - rows.recomputed;
    groups_.push_back(g);
  }
}

void Loop::forward() {
  parts_.model->forward({tokens_, segments_, tables_, logits_rows_}, view_, parts_.scratch, *parts_.pool);
  account_.totals.weight_bytes_read += parts_.model->weight_bytes();
  for (const Group& g : groups_)
    account_.totals.kv_bytes_read += uint64_t{g.position + g.rows} * kv_row_bytes_;
}

void Loop::pick() {
  const auto sample_group = [&](size_t i, size_t worker) {
    const Group& g = groups_[i];
    if (g.logits < 0) return;
    const sample::Context context{g.tokens.first(g.prompt_tokens), g.tokens.subspan(g.prompt_tokens),
                                  parts_.end_ids, parts_.suppressed_ids, 0};
    picks_[i] = sample::pick(parts_.scratch.logits(static_cast<size_t>(g.logits)), g.sequence->params,
                             context, sample_scratch_[worker]);
  };
  parts_.pool->parallel_for(groups_.size(), sample_group);
  outcomes_.clear();
  const std::span<const uint8_t> nonfinite = parts_.scratch.nonfinite();
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& g = groups_[i];
    const auto rows = nonfinite.subspan(g.row_begin, g.rows);
    g.failed = std::any_of(rows.begin(), rows.end(), [](uint8_t flag) { return flag != 0; }) ||
               (g.logits >= 0 && !picks_[i].finite);
    if (g.logits >= 0) outcomes_.push_back({picks_[i].id, picks_[i].is_end, g.failed});
  }
}

void Loop::commit(int64_t begin_us, int64_t forward_us, int64_t sampled_us) {
  const int64_t now = base::now_us();
  uint32_t prefill_rows = 0, decode_rows = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& g = groups_[i];
    (g.decode ? decode_rows : prefill_rows) += g.rows;
    account_rows(g, begin_us, forward_us, now);
    if (g.logits < 0 || g.failed) continue;
    Receipt& r = g.sequence->receipt;
    g.sequence->previous_token_us = r.last_us;
    ++r.generated_tokens;
    if (r.generated_tokens == 1) r.first_token_us = now;
    r.last_us = now;
    g.sequence->stream->append(picks_[i], now);
    to_notify_.push_back(g.sequence->stream);
  }
  {
    const std::lock_guard lock(mailbox_->mutex);
    for (const Group& g : groups_) {  // before commit: an ended sequence has no stats any more
      const sched::SequenceStats s = scheduler_.stats(g.seq);
      Receipt& r = g.sequence->receipt;
      r.cached_tokens = s.cached_tokens, r.preemptions = s.preemptions,
      r.recomputed_tokens = s.recomputed_tokens;
      r.kv_blocks = s.blocks_peak;
      // Taken over from the prefix cache, or in the tables of others at this moment.
      r.kv_blocks_shared = std::max(s.blocks_shared, s.cached_tokens / parts_.info.block_tokens);
      r.kv_bytes = uint64_t{s.blocks_peak} * parts_.shape.block_bytes();
    }
    for (const Group& g : groups_) {
      if (g.failed) scheduler_.fail(g.seq);
      if (g.logits >= 0 && !g.failed) account_.token(g.sequence->receipt, g.sequence->previous_token_us, now);
      g.sequence->mark_us = now;
    }
    for (const sched::Ended& ended : scheduler_.commit(outcomes_, now)) end(ended.seq, ended.reason, now);
    const double wall = seconds(now - begin_us);
    const double rate = static_cast<double>(tokens_.size()) / std::max(wall, 1e-6);
    rows_per_second_ = rows_per_second_ == 0 ? rate : rows_per_second_ + (rate - rows_per_second_) / 16;
    account_.step(prefill_rows, decode_rows, wall);
    publish(now);
  }
  account_.totals.commit_s += seconds(base::now_us() - sampled_us);
  for (const auto& stream : to_notify_) stream->notify();
  to_notify_.clear();
}

// The step's wall joins the stages of one sequence: what it waited before, then compute, then sampling and
// commit.
void Loop::account_rows(const Group& g, int64_t begin_us, int64_t computed_us, int64_t end_us) {
  Receipt& r = g.sequence->receipt;
  ++r.steps;
  r.stalled_s += seconds(begin_us - g.sequence->mark_us);
  const double compute = seconds(computed_us - begin_us);
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
  account_.finished(finish_of(reason), s.receipt);
  s.stream->end(finish_of(reason), s.receipt);
  if (to_notify_.empty() || to_notify_.back() != s.stream) to_notify_.push_back(s.stream);
  parts_.accounts->book(base::Account::kRuntime, "token streams", -static_cast<int64_t>(s.booked_bytes));
  sequences_.erase(found);
}

void Loop::fail_all() {
  const std::lock_guard lock(mailbox_->mutex);
  failed_ = true;
  for (const auto& [seq, sequence] : sequences_) {
    sequence->receipt.last_us = base::now_us();
    sequence->stream->end(Finish::kInternal, sequence->receipt);
    sequence->stream->notify();
    parts_.accounts->book(base::Account::kRuntime, "token streams",
                          -static_cast<int64_t>(sequence->booked_bytes));
  }
  sequences_.clear();
  account_.totals.failed = true;
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
  t.preemptions = q.preemptions, t.preempted_tokens = q.preempted_tokens,
  t.recomputed_tokens = q.recomputed_tokens, t.prompt_tokens_recomputed = q.cached_recomputed_tokens;
  t.prefix_queries = q.prefix_queries_tokens, t.prefix_hits = q.prefix_hits_tokens;
  t.last_step_us = now_us;
  t.work_runnable = !scheduler_.idle();
  const std::lock_guard lock(stats_mutex_);
  published_ = account_;
}

}  // namespace tally::engine
