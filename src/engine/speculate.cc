// Drafts in the loop: what is offered before a plan, what became of it, and who may have some.
#include "engine/loop.h"

#include <array>

namespace tally::engine {

// Rejection sampling gives other tokens than a run without drafts: not where someone gave the seed, and has
// no use where nothing is drawn.
bool Loop::accepts_by_chance(const Sequence& s) const {
  return parts_.rejection_sampling && s.params->is_seed_drawn && !sample::is_greedy(*s.params);
}

// Before the step, as a model that drafts takes its time: the lock is held to ask, and not to draft. What the
// sequences know stays where it is, for only commits change it.
void Loop::draft() {
  Drafter& drafter = *parts_.drafter;
  drafter.begin_step();
  uint32_t running = 0;
  {
    const std::lock_guard lock(mailbox_->mutex);
    for (const auto& [seat, seq] : drafter.taken()) {
      if (scheduler_.state(seq) != sched::SeqState::kDecoding) continue;
      Sequence& s = *sequences_.at(seq);
      const std::span<const TokenId> known = scheduler_.tokens(seq);
      std::array<TokenId, kDraftsMax> forced{};
      size_t count = 0;
      if (s.matcher && s.looks_ahead) {
        count = s.matcher->forced(known.subspan(s.receipt.prompt_tokens), forced);
        s.looks_ahead = !s.matcher->is_dead();
        if (!s.looks_ahead) s.matcher.reset();  // the step follows anew what is known
      }
      const Chooser chooser{accepts_by_chance(s) ? s.params.get() : nullptr, s.choice,
                            s.receipt.prompt_tokens, parts_.end_ids, parts_.suppressed_ids};
      drafter.propose(seat, known, std::span(forced).first(count), chooser);
    }
    running = scheduler_.queue_stats().running;  // each has a row, or more if it has a prompt
  }
  drafter.choose(running);
}

// Requires: mailbox_->mutex is held.
void Loop::offer_drafts() {
  for (const auto& [seat, seq] : parts_.drafter->taken())
    scheduler_.offer(seq, static_cast<uint32_t>(parts_.drafter->drafts(seat).size()));
}

// Requires: mailbox_->mutex is held, and the step is not committed.
void Loop::settle_drafts(const Marks& at, bool decodes_only, int64_t now_us) {
  Drafter& drafter = *parts_.drafter;
  uint32_t tokens = 0;
  for (const Draw& d : draws_) {
    tokens += d.tokens;
    const auto drafted = static_cast<uint32_t>(groups_[d.group].drafts.size());
    if (drafted == 0 || outcomes_[d.outcome].failed) continue;
    const uint32_t accepted = d.tokens - 1;
    // Where the text ends with a draft, or a row behind one could not be had, that one was right all the
    // same, and those behind it were not tested.
    const bool ends_right =
        accepted < drafted && picks_[d.pick + accepted].id == groups_[d.group].drafts[accepted];
    drafter.verified(d.sequence->seat, ends_right ? accepted + 1 : drafted, accepted + (ends_right ? 1 : 0));
    const DraftSource source = drafter.source(d.sequence->seat);
    account_.drafts(source, drafted, accepted);
    record_.accepted_drafts += accepted;
    record_.drafts[static_cast<size_t>(source)].accepted += accepted;
    d.sequence->receipt.draft_tokens += drafted, d.sequence->receipt.accepted_tokens += accepted;
  }
  if (!decodes_only) return;
  drafter.observe({.sequences = static_cast<uint32_t>(groups_.size()),
                   .rows = static_cast<uint32_t>(tokens_.size()),
                   .tokens = tokens,
                   .taken_us = static_cast<double>(now_us - at.drafted_us),
                   .drafting_us = static_cast<double>(at.drafted_us - at.begin_us)});
  account_.totals.speculation.ratio = drafter.ratio();
  account_.totals.speculation.paused = drafter.paused();
}

// Whoever generates has a seat while there are some. Requires: mailbox_->mutex is held, the step is committed.
void Loop::seat_sequences() {
  for (const Draw& d : draws_) {
    const auto found = sequences_.find(d.seq);
    if (found == sequences_.end() || found->second->beams) continue;  // it has ended
    Sequence& s = *found->second;
    if (s.seat == Drafter::kNoSeat) {
      s.seat = parts_.drafter->take_seat(d.seq, scheduler_.tokens(d.seq));
    } else {
      parts_.drafter->committed(s.seat, scheduler_.tokens(d.seq));
    }
  }
}

}  // namespace tally::engine
