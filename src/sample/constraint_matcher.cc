#include "sample/constraint_held.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

// Makes XGrammar forget what only going back by more than `tokens_kept` would need (cmake/xgrammar).
extern "C" void tally_xgrammar_forget(xgrammar::GrammarMatcher* matcher, size_t tokens_kept);

namespace tally::sample {
namespace {

// Beams mostly part from each other a few tokens ago. Who goes back further is followed anew.
constexpr size_t kTokensBack = 16;
// Of those that are followed anew, in the time that there is for one.
constexpr size_t kTokensAStep = 64;

// Known tokens, and drafts behind them.
struct Text {
  std::span<const TokenId> generated, drafts;
  size_t size() const { return generated.size() + drafts.size(); }
  TokenId operator[](size_t i) const {
    return i < generated.size() ? generated[i] : drafts[i - generated.size()];
  }
};

}  // namespace

struct ConstraintMatcher::State {
  std::shared_ptr<const Constraint> constraint;
  std::optional<xgrammar::GrammarMatcher> matcher;
  std::vector<TokenId> followed;
  size_t settled = 0;  // of those, how many cannot be taken back
  std::vector<uint32_t> allowed;
  Meter meter;
  int64_t forget_above = 0;  // bytes of the meter
  bool may_end = false, dead = false;
  int64_t booked = 0;

  void begin();
  void go_back(size_t count);
  bool accept(TokenId id);
  void forget();
  size_t blanks_at_end(size_t most) const;
  void bound_blanks();
  bool catch_up(const Text& text);
  bool stand_behind(const Text& text);
  bool follow(const Text& text);
  int64_t bytes() const {
    return static_cast<int64_t>(sizeof(State) + allowed.capacity() * sizeof(uint32_t) +
                                followed.capacity() * sizeof(TokenId)) +
           std::max<int64_t>(0, meter.live_bytes);
  }
  void book(int64_t now) {
    constraint->state().held->add(HeldBytes::Of::kMatchers, now - booked);
    booked = now;
  }
};

ConstraintMatcher::ConstraintMatcher(std::shared_ptr<const Constraint> constraint)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.constraint = std::move(constraint);
  const Constraint::State& c = s.constraint->state();
  s.allowed.resize(mask_words(c.vocab));
  s.meter.live_bytes_max = static_cast<int64_t>(c.limits.matcher_bytes) - s.bytes();
  s.meter.cpu_us_max = c.limits.step_us;
  try {
    const Meter::Running running(s.meter);
    s.begin();
  } catch (const std::exception&) {
    s.dead = true;
  }
  s.book(s.bytes());
}

ConstraintMatcher::~ConstraintMatcher() { state_->book(0); }

void ConstraintMatcher::State::begin() {
  matcher.reset();
  matcher.emplace(constraint->state().grammar);
  followed.clear();
  settled = 0;
  forget_above = meter.live_bytes + static_cast<int64_t>(constraint->state().limits.forget_bytes);
}

// To where the first `count` tokens were followed.
void ConstraintMatcher::State::go_back(size_t count) {
  if (count < settled) return begin();
  if (count < followed.size()) matcher->Rollback(static_cast<int>(followed.size() - count));
  followed.resize(count);
}

bool ConstraintMatcher::State::accept(TokenId id) {
  if (!matcher->AcceptToken(raw(id))) return false;  // which leaves it where it was
  followed.push_back(id);
  if (meter.live_bytes > forget_above) forget();
  return true;
}

// Long tokens may leave no room to go back.
void ConstraintMatcher::State::forget() {
  for (const size_t kept : {kTokensBack, size_t{0}}) {
    ::tally_xgrammar_forget(&*matcher, kept);
    settled = std::max(settled, followed.size() - std::min(followed.size(), kept));
    if (meter.live_bytes < meter.live_bytes_max / 2) break;
  }
  forget_above = meter.live_bytes + static_cast<int64_t>(constraint->state().limits.forget_bytes);
}

// How many blanks of JSON the text ends with, counted up to `most` or a little more.
size_t ConstraintMatcher::State::blanks_at_end(size_t most) const {
  const Blanks& table = *constraint->state().blanks;
  size_t count = 0;
  for (size_t i = followed.size(); i-- > 0 && count < most;) {
    const auto id = static_cast<size_t>(raw(followed[i]));
    count += table.trailing[id];
    if (((table.only[id / 32] >> (id % 32)) & 1) == 0) break;
  }
  return count;
}

// Between two parts of JSON any number of blanks may stand, and some models write nothing else: where many
// do, something else has to come.
void ConstraintMatcher::State::bound_blanks() {
  constexpr size_t kMost = 32;
  if (!constraint->state().blanks || blanks_at_end(kMost) < kMost) return;
  const std::vector<uint32_t>& only = constraint->state().blanks->only;
  uint32_t others = 0;
  for (size_t w = 0; w < allowed.size(); ++w) others |= allowed[w] & ~only[w];
  if (others == 0) return;
  for (size_t w = 0; w < allowed.size(); ++w) allowed[w] &= ~only[w];
}

// To the last token of the text: that one and what comes next have the time of one step, and so have so many of
// those before it.
bool ConstraintMatcher::State::catch_up(const Text& text) {
  size_t common = 0;
  while (common < followed.size() && common < text.size() && followed[common] == text[common]) ++common;
  if (common < followed.size()) {
    const Meter::Running running(meter);
    go_back(common);
  }
  bool is_allowed = true;
  while (is_allowed && !meter.out_of_time && followed.size() + 1 < text.size()) {
    const Meter::Running running(meter);
    const size_t stop = std::min(followed.size() + kTokensAStep, text.size() - 1);
    while (is_allowed && followed.size() < stop) is_allowed = accept(text[followed.size()]);
  }
  return is_allowed;
}

bool ConstraintMatcher::State::stand_behind(const Text& text) {
  if (!catch_up(text)) return false;
  const Meter::Running running(meter);
  return followed.size() == text.size() || accept(text[followed.size()]);
}

bool ConstraintMatcher::State::follow(const Text& text) {
  bool is_allowed = catch_up(text);
  const Meter::Running running(meter);
  if (is_allowed && followed.size() < text.size()) is_allowed = accept(text[followed.size()]);
  if (!is_allowed) {
    std::fill(allowed.begin(), allowed.end(), 0);
    may_end = false;
    return false;
  }
  fill_mask(*matcher, allowed);
  bound_blanks();
  may_end = matcher->IsCompleted();
  return std::any_of(allowed.begin(), allowed.end(), [](uint32_t word) { return word != 0; });
}

bool ConstraintMatcher::follow(std::span<const TokenId> generated, std::span<const TokenId> stop_ids,
                               std::span<const TokenId> drafts) {
  State& s = *state_;
  if (s.dead) return false;
  bool any = false;
  try {
    any = s.follow({generated, drafts});
  } catch (const std::exception&) {  // the budget; what the matcher is now is not known
    s.dead = true;
  }
  s.dead = s.dead || s.meter.out_of_time;
  for (const TokenId id : stop_ids) {
    const auto i = static_cast<uint32_t>(raw(id));
    if (s.may_end) s.allowed[i / 32] |= 1u << (i % 32);
  }
  constexpr int64_t kWorthBooking = 4096;
  const int64_t now = s.bytes();
  if (std::abs(now - s.booked) >= kWorthBooking) s.book(now);
  return any && !s.dead;
}

size_t ConstraintMatcher::forced(std::span<const TokenId> generated, std::span<TokenId> into) {
  State& s = *state_;
  if (s.dead) return 0;
  size_t count = 0;
  try {
    if (!s.stand_behind({generated, {}})) return 0;
    const int64_t step_us = std::exchange(s.meter.cpu_us_max, s.constraint->state().limits.ahead_us);
    const Meter::Running running(s.meter);
    s.meter.cpu_us_max = step_us;  // of the runs after this one
    for (const int32_t id : s.matcher->FindJumpForwardTokens())
      if (count < into.size()) into[count++] = TokenId{id};
  } catch (const std::exception&) {
    s.dead = true;
  }
  s.dead = s.dead || s.meter.out_of_time;
  return s.dead ? 0 : count;
}

std::span<const uint32_t> ConstraintMatcher::allowed() const { return state_->allowed; }
bool ConstraintMatcher::may_end() const { return state_->may_end; }
bool ConstraintMatcher::is_dead() const { return state_->dead; }
bool ConstraintMatcher::is_full() const { return state_->dead && state_->meter.out_of_bytes; }
size_t ConstraintMatcher::bytes() const { return static_cast<size_t>(state_->bytes()); }

}  // namespace tally::sample
