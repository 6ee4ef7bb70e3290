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
  for (Group& g : groups_) {  // drafts may be anything: their rows fail nobody
    const auto rows = nonfinite.subspan(g.row_begin, g.rows - g.drafts.size());
    g.failed = std::any_of(rows.begin(), rows.end(), [](uint8_t flag) { return flag != 0; });
  }
  for (const ScoredRow& row : scored_) groups_[row.group].failed |= !row.finite;
  outcomes_.clear();
  for (Draw& d : draws_) {
    const bool failed = groups_[d.group].failed || !picks_[d.pick].finite;
    if (failed) d.tokens = 1;
    if (!d.sequence->beams) d.sequence->dead_end |= d.dead_end;
    if (d.sequence->beams) d.sequence->beams->failed |= failed;
    (d.sequence->beams ? d.sequence->beams->matcher_full : d.sequence->matcher_full) |= d.matcher_full;
    d.outcome = outcomes_.size();
    for (const sample::Pick& pick : std::span(picks_).subspan(d.pick, d.tokens))
      outcomes_.push_back({pick.id, pick.is_end, failed});
    outcomes_[d.outcome].accepted = d.tokens - 1;
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

// What the sampler knows at a row of a group: behind its known tokens, and the drafts before that row.
sample::Context Loop::context_of(const Draw& d, uint32_t row) const {
  const Group& g = groups_[d.group];
  return {g.tokens.first(g.prompt_tokens),
          g.tokens.subspan(g.prompt_tokens),
          parts_.end_ids,
          parts_.suppressed_ids,
          d.sequence->choice,
          d.sequence->matcher ? d.sequence->matcher->allowed() : std::span<const uint32_t>{},
          g.drafts.first(row)};
}

std::span<float> Loop::logits_of(const Draw& d, uint32_t row, size_t worker) {
  const Group& g = groups_[d.group];
  const std::span<float> logits = parts_.scratch.logits(static_cast<size_t>(g.logits) - g.drafts.size() + row);
  if (!d.shares_row) return logits;
  std::copy(logits.begin(), logits.end(), row_copies_[worker].begin());
  return row_copies_[worker];
}

// One sequence's tokens: the next one, and behind each draft that was right the one after it. What a row of a
// draft cannot give, a broken row or the end of a constraint, is found again by the step that has it first.
void Loop::draw(size_t index, size_t worker) {
  Draw& d = draws_[index];
  const std::span<const TokenId> drafts = groups_[d.group].drafts;
  picks_[d.pick] = {};
  if (d.sequence->beams) {
    if (!d.begins) draw_beam(d, logits_of(d, 0, worker), worker);  // they all begin with the one row
    return;
  }
  if (d.dead_end) {
    picks_[d.pick].finite = false;
    return;
  }
  for (uint32_t row = 0;; ++row) {
    const sample::Pick pick = draw_row(d, row, worker);
    if (row == 0) d.dead_end = pick.dead_end;
    if (row > 0 && !pick.finite) return;
    picks_[d.pick + row] = pick;
    d.tokens = row + 1;
    if (!pick.finite || pick.is_end || row == drafts.size() || pick.id != drafts[row]) return;
  }
}

sample::Pick Loop::draw_row(const Draw& d, uint32_t row, size_t worker) {
  const Group& g = groups_[d.group];
  if (row > 0) {
    const size_t at = g.row_begin + g.rows - g.drafts.size() + row - 1;
    if (parts_.scratch.nonfinite()[at] != 0) return {.finite = false};
    std::unique_ptr<sample::ConstraintMatcher>& matcher = d.sequence->matcher;
    const auto generated = g.tokens.subspan(g.prompt_tokens);
    if (matcher && !matcher->follow(generated, d.sequence->params->stop_ids, g.drafts.first(row))) {
      if (matcher->is_dead()) matcher.reset();  // by a guess: the next step follows anew what is known
      return {.finite = false};
    }
  }
  const sample::Params& params = *d.sequence->params;
  if (row < g.drafts.size() && accepts_by_chance(*d.sequence)) {
    const sample::Guess guess{g.drafts[row], parts_.drafter->chances(d.sequence->seat, row)};
    return sample::pick_or_accept(logits_of(d, row, worker), params, context_of(d, row), guess,
                                  sample_scratch_[worker]);
  }
  return sample::pick(logits_of(d, row, worker), params, context_of(d, row), sample_scratch_[worker]);
}

// Of a beam the best tokens of its row.
void Loop::draw_beam(Draw& d, std::span<float> logits, size_t worker) {
  BeamFamily& beams = *d.sequence->beams;
  sample::BeamRow row;  // of a dead end: others may go on
  if (!d.dead_end)
    picks_[d.pick].finite = sample::read_beam_row(logits, *d.sequence->params, context_of(d, 0),
                                                  beams.room(d.seq), sample_scratch_[worker], row);
  beams.set_row(d.seq, row);
}

void Loop::score_row(ScoredRow& row, size_t worker) {
  const Group& g = groups_[row.group];
  PromptScores& scores = *g.sequence->scores;
  const sample::Score score = sample::score(parts_.scratch.logits(row.logits), g.tokens[row.position],
                                            scores.top(), sample_scratch_[worker]);
  row.finite = score.finite;
  if (score.finite) scores.put(row.position, score);
}

// The beams of a request are side by side in the plan.
void Loop::advance_beams() {
  const BeamFamily* previous = nullptr;
  for (size_t i = 0; i < draws_.size(); ++i) {
    BeamFamily* beams = draws_[i].sequence->beams.get();
    if (beams == nullptr) continue;
    if (beams != previous && !beams->failed) beams->advance(draws_[i].shares_row);
    previous = beams;
    outcomes_[draws_[i].outcome] = beams->outcome(draws_[i].seq);
    outcomes_[draws_[i].outcome].failed = beams->failed;
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
    if (g.scores > 0) g.sequence->scores->publish(g.scored_position + g.scores - 1);
    if (g.ends_prompt_only) g.sequence->receipt.first_token_us = now_us;
  }
}

void Loop::take_tokens(int64_t now_us) {
  for (const Draw& d : draws_) {
    Sequence& s = *d.sequence;
    if (outcomes_[d.outcome].failed) continue;
    if (d.begins) begin_choice(d);
    Receipt& r = s.receipt;
    s.mark_us = now_us;
    s.previous_token_us = r.last_us;
    if (r.generated_tokens == 0) r.first_token_us = now_us;
    r.generated_tokens += d.tokens;
    r.last_us = now_us;
    if (s.beams) continue;
    s.stream->append(std::span<const sample::Pick>(picks_).subspan(d.pick, d.tokens), now_us);
    to_notify_.push_back(s.stream);
  }
}

}  // namespace tally::engine
