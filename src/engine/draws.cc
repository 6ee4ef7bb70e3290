// The tokens of a step: every sequence that wants one draws it from its row of logits; beams decide together.
// And what its other rows of logits say of the prompt tokens behind them.
#include "engine/loop.h"

#include <algorithm>

namespace tally::engine {

void Loop::pick() {
  const size_t draws = draws_.size();
  parts_.pool->parallel_for(draws + scored_.size(), [&](size_t i, size_t worker) {
    i < draws ? draw(i, worker) : score_row(scored_[i - draws], worker);
  });
  const std::span<const uint8_t> nonfinite = parts_.scratch.nonfinite();
  for (Group& g : groups_) {
    const auto rows = nonfinite.subspan(g.row_begin, g.rows);
    g.failed = std::any_of(rows.begin(), rows.end(), [](uint8_t flag) { return flag != 0; });
  }
  for (const ScoredRow& row : scored_) groups_[row.group].failed |= !row.finite;
  outcomes_.clear();
  for (size_t i = 0; i < draws_.size(); ++i) {
    const Draw& d = draws_[i];
    const bool failed = groups_[d.group].failed || !picks_[i].finite;
    if (!d.sequence->beams) d.sequence->dead_end |= d.dead_end;
    if (d.sequence->beams) d.sequence->beams->failed |= failed;
    (d.sequence->beams ? d.sequence->beams->matcher_full : d.sequence->matcher_full) |= d.matcher_full;
    outcomes_.push_back({picks_[i].id, picks_[i].is_end, failed});
  }
  advance_beams();
}

// Where the sequence is in its constraint, and so which ids may come next. Stop ids of the request end it
// where the model's own may. Only who runs has a place there, so that there are no more than can run.
void Loop::follow_constraint(Draw& d) {
  const Group& g = groups_[d.group];
  std::unique_ptr<sample::ConstraintMatcher>& matcher = d.sequence->matcher;
  if (!matcher) matcher = std::make_unique<sample::ConstraintMatcher>(d.sequence->constraint);
  d.dead_end = !matcher->follow(g.tokens.subspan(g.prompt_tokens), d.sequence->params->stop_ids);
  d.matcher_full = matcher->is_full();
  if (d.matcher_full) matcher.reset();  // another beam may take over the sequence
}

// One sequence's token; of beams, the best tokens of its row.
void Loop::draw(size_t index, size_t worker) {
  Draw& d = draws_[index];
  const Group& g = groups_[d.group];
  picks_[index] = {};
  if (d.sequence->beams && d.begins) return;  // they all begin with the one row
  std::span<float> logits = parts_.scratch.logits(static_cast<size_t>(g.logits));
  if (d.shares_row) {
    std::copy(logits.begin(), logits.end(), row_copies_[worker].begin());
    logits = row_copies_[worker];
  }
  const sample::Context context{
      g.tokens.first(g.prompt_tokens),
      g.tokens.subspan(g.prompt_tokens),
      parts_.end_ids,
      parts_.suppressed_ids,
      d.sequence->choice,
      d.sequence->matcher ? d.sequence->matcher->allowed() : std::span<const uint32_t>{}};
  const sample::Params& params = *d.sequence->params;
  if (!d.sequence->beams) {
    if (d.dead_end) {
      picks_[index].finite = false;
      return;
    }
    picks_[index] = sample::pick(logits, params, context, sample_scratch_[worker]);
    d.dead_end = picks_[index].dead_end;
    return;
  }
  BeamFamily& beams = *d.sequence->beams;
  sample::BeamRow row;  // of a dead end: others may go on
  if (!d.dead_end)
    picks_[index].finite = sample::read_beam_row(logits, params, context, beams.room(d.seq),
                                                 sample_scratch_[worker], row);
  beams.set_row(d.seq, row);
}

void Loop::score_row(ScoredRow& row, size_t worker) {
  const Group& g = groups_[row.group];
  const Scoring& scoring = *g.sequence->scoring;
  const sample::Score score = sample::score(parts_.scratch.logits(row.logits), g.tokens[row.position],
                                            scoring.top, sample_scratch_[worker]);
  row.finite = score.finite;
  if (score.finite) scoring.scores->put(row.position, score);
}

// The beams of a request are side by side in the plan.
void Loop::advance_beams() {
  const BeamFamily* previous = nullptr;
  for (size_t i = 0; i < draws_.size(); ++i) {
    BeamFamily* beams = draws_[i].sequence->beams.get();
    if (beams == nullptr) continue;
    if (beams != previous && !beams->failed) beams->advance(draws_[i].shares_row);
    previous = beams;
    outcomes_[i] = beams->outcome(draws_[i].seq);
    outcomes_[i].failed = beams->failed;
    draws_[i].sequence->dead_end |= beams->dead_end;
    draws_[i].sequence->matcher_full |= beams->matcher_full;
  }
}

// A choice that begins has waited and been computed with the one that had the prompt.
void Loop::begin_choice(const Draw& d) {
  const Receipt& root = groups_[d.group].sequence->receipt;
  Receipt& r = d.sequence->receipt;
  const uint64_t seed = r.seed;
  r = root;
  // The steps so far are told with the one that made them.
  r.seed = seed, r.generated_tokens = 0, r.weight_bytes_read = 0;
  r.steps = r.preemptions = r.recomputed_tokens = 0;
}

// Scores of failed rows stay unpublished. Who generates nothing has its prompt in the place of a first token.
void Loop::take_scores(int64_t now_us) {
  for (const Group& g : groups_) {
    if (g.failed) continue;
    if (g.scores > 0) {
      Scoring& scoring = *g.sequence->scoring;
      scoring.scores->publish(g.scored_position + g.scores - 1);
      book_answer(scoring.booked_bytes, scoring.scores->bytes_in_use());
    }
    if (g.ends_prompt_only) g.sequence->receipt.first_token_us = now_us;
  }
}

void Loop::take_tokens(int64_t now_us) {
  for (size_t i = 0; i < draws_.size(); ++i) {
    Sequence& s = *draws_[i].sequence;
    if (outcomes_[i].failed) continue;
    if (draws_[i].begins) begin_choice(draws_[i]);
    Receipt& r = s.receipt;
    s.mark_us = now_us;
    s.previous_token_us = r.last_us;
    if (++r.generated_tokens == 1) r.first_token_us = now_us;
    r.last_us = now_us;
    if (s.beams) continue;
    s.stream->append(picks_[i], now_us);
    book_answer(s.booked_bytes, s.stream->bytes_in_use());
    to_notify_.push_back(s.stream);
  }
}

}  // namespace tally::engine
