#include "engine/drafts/drafter.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace tally::engine {

Drafter::Drafter(const DraftLimits& limits, std::vector<std::unique_ptr<Proposer>> proposers,
                 const RowPrices& prices)
    : seats_(limits.seats), limits_(limits), proposers_(std::move(proposers)), prices_(prices) {
  TALLY_CHECK(limits.drafts_max <= kDraftsMax, "drafts of a sequence", limits.drafts_max);
  TALLY_CHECK(limits.chances.empty() || limits.chances.size() == RowPrices::kRowsMax * limits.vocab,
              "chances of a step's drafts", limits.chances.size(), limits.vocab);
  for (const auto& p : proposers_) grades_ += p->grades();
  for (Seat& s : seats_) s.acceptance.resize(grades_ + 1);
  taken_.reserve(limits.seats), candidates_.reserve(limits.seats), candidate_seats_.reserve(limits.seats);
}

int32_t Drafter::take_seat(SeqId seq, std::span<const TokenId> known) {
  const auto free = std::ranges::find(seats_, false, &Seat::is_taken);
  if (free == seats_.end()) return kNoSeat;
  const auto seat = static_cast<int32_t>(free - seats_.begin());
  free->is_taken = true, free->count = 0, free->known = static_cast<uint32_t>(known.size());
  std::ranges::fill(free->acceptance, Acceptance{});
  taken_.push_back({seat, seq});
  for (const auto& p : proposers_) p->observe(static_cast<uint32_t>(seat), known, true);
  return seat;
}

void Drafter::leave_seat(int32_t seat) {
  if (seat == kNoSeat) return;
  seats_[static_cast<size_t>(seat)].is_taken = false;
  std::erase_if(taken_, [&](const Taken& t) { return t.seat == seat; });
  for (const auto& p : proposers_) p->observe(static_cast<uint32_t>(seat), {}, true);
}

void Drafter::committed(int32_t seat, std::span<const TokenId> known) {
  if (seat == kNoSeat) return;
  seats_[static_cast<size_t>(seat)].known = static_cast<uint32_t>(known.size());
  for (const auto& p : proposers_) p->observe(static_cast<uint32_t>(seat), known, false);
}

void Drafter::begin_step() {
  candidates_.clear(), candidate_seats_.clear();
  for (const auto& p : proposers_) p->begin_step();
  for (const Taken& t : taken_) seats_[static_cast<size_t>(t.seat)].count = 0;
}

// How many of a draft are tokens at all.
uint32_t Drafter::tokens_of(std::span<const TokenId> draft) const {
  const auto is_token = [&](TokenId id) {
    return raw(id) >= 0 && static_cast<uint64_t>(raw(id)) < limits_.vocab;
  };
  return static_cast<uint32_t>(std::ranges::find_if_not(draft, is_token) - draft.begin());
}

// Sets the seat's count, grade and tokens; or who is to be asked for them when it is known how many.
void Drafter::find_draft(Seat& s, uint32_t index, std::span<const TokenId> forced) {
  const auto room = std::span(s.tokens).first(limits_.drafts_max);
  if (!forced.empty()) {
    s.count = static_cast<uint32_t>(std::min(forced.size(), room.size())), s.grade = grades_;
    s.source = DraftSource::kConstraint;
    std::copy_n(forced.begin(), s.count, room.begin());
    return;
  }
  uint32_t first_grade = 0;
  for (const auto& p : proposers_) {
    s.source = p->source();
    if (p->us_per_draft() > 0) {
      s.asked_late = p.get(), s.grade = first_grade, s.count = limits_.drafts_max;
      return;
    }
    const Proposal proposal = p->propose({.seat = index, .known = s.text, .into = room});
    s.count = tokens_of(room.first(proposal.count)), s.grade = first_grade + proposal.grade;
    if (s.count > 0 && !s.acceptance[s.grade].pauses(s.known)) return;
    first_grade += p->grades();
  }
}

void Drafter::propose(int32_t seat, std::span<const TokenId> known, std::span<const TokenId> forced,
                      const Chooser& chooser) {
  Seat& s = seats_[static_cast<size_t>(seat)];
  s.text = known, s.asked_late = nullptr, s.chooser = chooser, s.chances = {};
  find_draft(s, static_cast<uint32_t>(seat), forced);
  const uint32_t count = std::exchange(s.count, 0);
  const double chance = count == 0 ? 0 : s.acceptance[s.grade].chance(s.known);
  if (chance == 0) return;
  candidates_.push_back({chance, count, s.asked_late ? s.asked_late->us_per_draft() : 0});
  candidate_seats_.push_back(seat);
}

void Drafter::choose(uint32_t decoding) {
  if (candidates_.empty()) return;
  choose_drafts(candidates_, decoding, prices_);  // no more than kRowsMax in all
  std::span<float> left = limits_.chances;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const auto seat = static_cast<uint32_t>(candidate_seats_[i]);
    Seat& s = seats_[seat];
    s.count = candidates_[i].drafts;
    if (s.asked_late == nullptr || s.count == 0) continue;
    Ask ask{.seat = seat, .known = s.text, .into = std::span(s.tokens).first(s.count), .chooser = s.chooser};
    if (s.chooser.params != nullptr && !left.empty()) {
      ask.chances = left.first(s.count * limits_.vocab);
      left = left.subspan(ask.chances.size());
    }
    const Proposal proposal = s.asked_late->propose(ask);
    s.count = tokens_of(ask.into.first(proposal.count));
    if (proposal.is_drawn) s.chances = ask.chances;
  }
}

uint32_t Drafter::prompt_rows() const {
  uint32_t rows = 0;
  for (const auto& p : proposers_) rows += p->prompt_rows();
  return rows;
}

double Drafter::us_per_draft() const {
  double us = 0;
  for (const auto& p : proposers_) us = std::max(us, p->us_per_draft());
  return us;
}

std::span<const TokenId> Drafter::drafts(int32_t seat) const {
  if (seat == kNoSeat) return {};
  const Seat& s = seats_[static_cast<size_t>(seat)];
  return std::span(s.tokens).first(s.count);
}

std::span<const float> Drafter::chances(int32_t seat, uint32_t draft) const {
  const Seat& s = seats_[static_cast<size_t>(seat)];
  return s.chances.empty() ? s.chances : s.chances.subspan(draft * limits_.vocab, limits_.vocab);
}

void Drafter::verified(int32_t seat, uint32_t proposed, uint32_t accepted) {
  Seat& s = seats_[static_cast<size_t>(seat)];
  s.acceptance[s.grade].observe(proposed, accepted, s.known);
}

void Drafter::observe(const Step& step) {
  if (step.rows == 0 || step.rows > RowPrices::kRowsMax) return;
  prices_.observe(step.rows, step.taken_us);
  constexpr double kFade = 1 - 1.0 / 256;
  const bool is_plain = step.rows == step.sequences;
  const double plain = is_plain ? step.taken_us : prices_.us(step.sequences) * step.tokens / step.sequences;
  plain_us_ = kFade * plain_us_ + plain;
  taken_us_ = kFade * taken_us_ + step.taken_us + step.drafting_us;
}

uint32_t Drafter::paused() const {
  uint32_t count = 0;
  for (const Taken& t : taken_) {
    const Seat& s = seats_[static_cast<size_t>(t.seat)];
    const auto grades = std::span(s.acceptance).first(grades_);
    count += std::ranges::all_of(grades, [&](const Acceptance& a) { return a.pauses(s.known); }) ? 1 : 0;
  }
  return count;
}

}  // namespace tally::engine
