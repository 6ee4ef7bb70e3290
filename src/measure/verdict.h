// From evidence to one word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace tally::measure {

// Decides margin and words: memory is smaller, not faster.
enum class MetricKind : uint8_t { kLatency, kRate, kMemory };

enum class Verdict : uint8_t {
  kSame,
  kFaster,
  kSlower,
  kSmaller,
  kLarger,
  kProbablyFaster,
  kProbablySlower,
  kProbablySmaller,
  kProbablyLarger,
  kUndecided,
  kInvalid,
};
const char* verdict_word(Verdict verdict);
bool is_worse(Verdict verdict);      // SLOWER, LARGER
bool is_undecided(Verdict verdict);  // UNDECIDED and every PROBABLY
// The one that speaks for both: INVALID before worse, undecided, better, SAME; the first of equals.
Verdict graver(Verdict a, Verdict b);
// 0 same or better, 1 worse, 2 undecided, 3 invalid.
int exit_code(Verdict verdict);

// Fewer cannot reach p = .05 whatever they show (2^(1 - 5) = .0625).
inline constexpr size_t kPairsMin = 6;

// Differences below that are nobody's business, as log ratio: 5 % latency, 2 % rates, 1 % memory.
double margin(MetricKind kind);

// Logarithms of the ratio in which better is > 1.
struct Evidence {
  double gain = 0, low = 0, high = 0;  // estimate and 95 % interval
  double p = 1;                        // adjusted for every metric that gets a verdict
  size_t pairs = 0;
  std::optional<double> detectable;  // what this machine can show with so many pairs, if it was calibrated
};

Verdict judge(const Evidence& evidence, MetricKind kind);

// About how many pairs more would decide, if the interval narrows with the root of their number and the
// estimate stays; at least as many as let the p of `tests` tests reach .05. Absent: more than anybody runs,
// because the estimate lies on the margin.
std::optional<size_t> pairs_needed(const Evidence& evidence, MetricKind kind, size_t tests);

}  // namespace tally::measure
