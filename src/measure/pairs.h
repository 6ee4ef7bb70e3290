// The pair is the unit of evidence: what several pairs of runs say together of one difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tally::measure {

inline constexpr size_t kPairsMax = 40;  // the exact test sums 2^(n / 2) signs on either side

// log(x_B / x_A) of one pair of runs.
struct PairDifference {
  double value = 0;              // the median of `requests`, or of a figure of the whole run
  std::vector<double> requests;  // of each request completed in both, ascending; empty: a figure of the run
};

// Median of (v_i + v_j) / 2 over all i <= j. Requires: not empty.
double hodges_lehmann(std::span<const double> values);

// Two-sided p of the mean being that far from 0 if every sign were a coin's: exact over the 2^n assignments.
// Requires: 1 to kPairsMax values.
double sign_flip_p(std::span<const double> values);

// p of each test, adjusted for all of them: Holm's step-down.
std::vector<double> holm(std::span<const double> p);

// P(a > b) - P(a < b) of values drawn from either: 1 when all of `a` are above all of `b`.
double cliffs_delta(std::vector<double> a, std::vector<double> b);

struct Interval {
  double low = 0, high = 0;
};
struct Resampling {
  uint32_t count = 10'000;
  uint64_t seed = 1;
};
// 95 % percentile interval of hodges_lehmann by the hierarchical bootstrap: pairs are drawn with
// replacement, then requests within each pair. The same seed gives the same interval.
Interval bootstrap_interval(std::span<const PairDifference> pairs, const Resampling& resampling);

// The smallest true difference that `pairs` pairs show at 5 % in 8 of 10 experiments, if differences of
// pairs spread with standard deviation `sd`: (t(.975) + t(.8)) sd / sqrt(pairs). Requires: pairs >= 2.
double detectable_difference(double sd, size_t pairs);

}  // namespace tally::measure
