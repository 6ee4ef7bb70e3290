#include "measure/verdict.h"

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

constexpr double kAlpha = .05;
constexpr double kPairsWorthSaying = 1000;

Verdict better_word(MetricKind kind, bool sure) {
  if (kind == MetricKind::kMemory) return sure ? Verdict::kSmaller : Verdict::kProbablySmaller;
  return sure ? Verdict::kFaster : Verdict::kProbablyFaster;
}

Verdict worse_word(MetricKind kind, bool sure) {
  if (kind == MetricKind::kMemory) return sure ? Verdict::kLarger : Verdict::kProbablyLarger;
  return sure ? Verdict::kSlower : Verdict::kProbablySlower;
}

}  // namespace

const char* verdict_word(Verdict verdict) {
  constexpr const char* kWords[] = {"SAME",
                                    "FASTER",
                                    "SLOWER",
                                    "SMALLER",
                                    "LARGER",
                                    "PROBABLY_FASTER",
                                    "PROBABLY_SLOWER",
                                    "PROBABLY_SMALLER",
                                    "PROBABLY_LARGER",
                                    "UNDECIDED",
                                    "INVALID"};
  return kWords[static_cast<size_t>(verdict)];
}

bool is_worse(Verdict verdict) { return verdict == Verdict::kSlower || verdict == Verdict::kLarger; }

bool is_undecided(Verdict verdict) {
  return verdict >= Verdict::kProbablyFaster && verdict <= Verdict::kUndecided;
}

Verdict graver(Verdict a, Verdict b) {
  const auto weight = [](Verdict v) {
    if (v == Verdict::kInvalid) return 4;
    return is_worse(v) ? 3 : is_undecided(v) ? 2 : v == Verdict::kSame ? 0 : 1;
  };
  return weight(b) > weight(a) ? b : a;
}

int exit_code(Verdict verdict) {
  if (verdict == Verdict::kInvalid) return 3;
  return is_worse(verdict) ? 1 : is_undecided(verdict) ? 2 : 0;
}

double margin(MetricKind kind) {
  switch (kind) {
    case MetricKind::kLatency:
      return std::log1p(.05);
    case MetricKind::kRate:
      return std::log1p(.02);
    case MetricKind::kMemory:
      break;
  }
  return std::log1p(.01);
}

Verdict judge(const Evidence& e, MetricKind kind) {
  if (e.pairs < kPairsMin) return Verdict::kUndecided;
  const double delta = margin(kind), noise = e.detectable.value_or(0);
  // Noise as large as the margin could hide a difference that matters.
  if (e.low >= -delta && e.high <= delta) return noise <= delta ? Verdict::kSame : Verdict::kUndecided;
  if (std::abs(e.gain) < noise || (e.low <= 0 && e.high >= 0)) return Verdict::kUndecided;
  const bool sure = e.p <= kAlpha && (e.low > delta || e.high < -delta);
  return e.gain > 0 ? better_word(kind, sure) : worse_word(kind, sure);
}

std::optional<size_t> pairs_needed(const Evidence& e, MetricKind kind, size_t tests) {
  const auto now = static_cast<double>(e.pairs);
  // SAME asks for no p.
  const bool same = e.pairs >= 2 && std::abs(e.gain) < margin(kind);
  const auto family = static_cast<double>(std::max<size_t>(tests, 1));
  double wanted = same ? static_cast<double>(kPairsMin) : std::ceil(1 + std::log2(family / kAlpha));
  if (e.pairs >= kPairsMin) {  // fewer have no interval
    const double width = (e.high - e.low) / 2, room = std::abs(std::abs(e.gain) - margin(kind));
    if (width > room * std::sqrt(kPairsWorthSaying)) return std::nullopt;
    if (room > 0) wanted = std::max(wanted, std::ceil(now * (width / room) * (width / room)));
  }
  return static_cast<size_t>(std::max(1., wanted - now));
}

}  // namespace tally::measure
