// The pair is the unit of evidence: what several pairs of runs say together of one difference.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace tally::measure {

inline constexpr size_t kPairsMax = 40;  // the exact test sums 2^(n / 2) signs on either side

// The values everywhere: log(x_B / x_A), one of each pair of runs.

// Median of the Walsh averages (v_i + v_j) / 2 over all i <= j. Requires: not empty.
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
// The interval of hodges_lehmann that holds the middle of the values' law in at least 95 of 100 experiments,
// if that law is symmetric, however long its tails: from the k-th smallest Walsh average to the k-th largest.
// Absent with fewer than 6 values, of which no interval can say that. Requires: at most kPairsMax.
// Source: inversion of Wilcoxon's signed-rank test (Hollander and Wolfe, Nonparametric Statistical Methods,
// 3.3), by its exact law.
std::optional<Interval> walsh_interval(std::span<const double> values);
// How often it holds it, exactly: .969 of 6, .961 of 8, .952 of 20. 0: there is no such interval.
double walsh_confidence(size_t values);

// The smallest true difference that `pairs` pairs show at 5 % in 8 of 10 experiments, if differences of
// pairs spread with standard deviation `sd`: (t(.975) + t(.8)) sd / sqrt(pairs). Requires: pairs >= 2.
double detectable_difference(double sd, size_t pairs);

}  // namespace tally::measure
