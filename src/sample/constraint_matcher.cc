#include "sample/constraint_held.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace tally::sample {

struct ConstraintMatcher::State {
  std::shared_ptr<const Constraint> constraint;
  std::optional<xgrammar::GrammarMatcher> matcher;
  std::vector<TokenId> followed;
  std::vector<uint32_t> blanks;  // at the end of the text, after each of them
  std::vector<uint32_t> allowed;
  Meter meter;
  bool may_end = false, dead = false;
  int64_t booked = 0;

  bool follow(std::span<const TokenId> generated, std::span<const TokenId> drafts);
  bool go_to(std::span<const TokenId> generated, std::span<const TokenId> drafts);
  bool accept_all(std::span<const TokenId> ids);
  void accept(TokenId id);
  void bound_blanks();
  int64_t bytes() const {
    return static_cast<int64_t>(sizeof(State) + allowed.capacity() * sizeof(uint32_t) +
                                followed.capacity() * sizeof(TokenId) +
                                blanks.capacity() * sizeof(uint32_t)) +
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
  s.meter.live_bytes_max = static_cast<int64_t>(c.limits.matcher_bytes);
  s.meter.cpu_us_max = c.limits.step_us;
  s.allowed.resize(mask_words(c.vocab));
  try {
    const Meter::Running running(s.meter);
    s.matcher.emplace(c.grammar);
  } catch (const std::exception&) {
    s.dead = true;
  }
  s.book(s.bytes());
}

ConstraintMatcher::~ConstraintMatcher() { state_->book(0); }

void ConstraintMatcher::State::accept(TokenId id) {
  followed.push_back(id);
  const Blanks* table = constraint->state().blanks.get();
  if (table == nullptr) return;
  const auto i = static_cast<uint32_t>(raw(id));
  const bool only = (table->only[i / 32] >> (i % 32)) & 1;
  blanks.push_back(table->trailing[i] + (only && !blanks.empty() ? blanks.back() : 0));
}

// Between two parts of JSON any number of blanks may stand, and some models write nothing else: where many
// do, something else has to come.
void ConstraintMatcher::State::bound_blanks() {
  constexpr uint32_t kMost = 32;
  if (blanks.empty() || blanks.back() < kMost) return;
  const std::vector<uint32_t>& only = constraint->state().blanks->only;
  uint32_t others = 0;
  for (size_t w = 0; w < allowed.size(); ++w) others |= allowed[w] & ~only[w];
  if (others == 0) return;
  for (size_t w = 0; w < allowed.size(); ++w) allowed[w] &= ~only[w];
}

bool ConstraintMatcher::State::accept_all(std::span<const TokenId> ids) {
  for (const TokenId id : ids) {
    if (!matcher->AcceptToken(raw(id))) return false;  // which leaves it where it was
    accept(id);
  }
  return true;
}

bool ConstraintMatcher::State::go_to(std::span<const TokenId> generated, std::span<const TokenId> drafts) {
  const auto equal = [&](size_t from, std::span<const TokenId> with) {
    const auto old = std::span(followed).subspan(from);
    return static_cast<size_t>(std::ranges::mismatch(old, with).in1 - old.begin());
  };
  const size_t before = equal(0, generated);
  const size_t behind = before < generated.size() ? 0 : equal(before, drafts);
  const size_t common = before + behind;
  if (common < followed.size()) matcher->Rollback(static_cast<int>(followed.size() - common));
  followed.resize(common);
  blanks.resize(std::min(blanks.size(), common));
  return accept_all(generated.subspan(before)) && accept_all(drafts.subspan(behind));
}

bool ConstraintMatcher::State::follow(std::span<const TokenId> generated, std::span<const TokenId> drafts) {
  if (!go_to(generated, drafts)) {
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
    const Meter::Running running(s.meter);
    any = s.follow(generated, drafts);
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
    const Meter::Running running(s.meter);
    if (!s.go_to(generated, {})) return 0;
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
size_t ConstraintMatcher::bytes() const { return static_cast<size_t>(state_->bytes()); }

}  // namespace tally::sample
