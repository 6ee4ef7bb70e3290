#pragma once
// One row of logits: its largest value, its best few, its softmax weights. Order is total: logit descending,
// then id ascending, with -0 equal to 0.
//
// Values are compared as integers: `order_key` maps f32 to i32 so that order is kept, which makes every pass
// a loop of integer max that any compiler turns into vectors, and independent of the denormal mode of the
// thread. The row is cut into blocks of 64; the maxima of the blocks bound which of them can hold one of the
// best m.

#include "base/ids.h"
#include "sample/sampler.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tally::sample {

inline constexpr size_t kBlock = 64;

inline int32_t order_key(float value) {
  int32_t bits = std::bit_cast<int32_t>(value);
  bits = bits == INT32_MIN ? 0 : bits;        // -0 is 0
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);  // negative numbers: larger magnitude, smaller key
}
inline float value_of_key(int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7FFFFFFF)); }

// A candidate as one integer: ascending order is logit descending, then id ascending.
inline uint64_t candidate(int32_t key, size_t id) {
  const uint32_t descending = ~(static_cast<uint32_t>(key) ^ 0x80000000u);
  return uint64_t{descending} << 32 | id;
}
inline int32_t candidate_key(uint64_t c) {
  return static_cast<int32_t>(~static_cast<uint32_t>(c >> 32) ^ 0x80000000u);
}
inline size_t candidate_id(uint64_t c) { return static_cast<size_t>(c & 0xFFFFFFFFu); }

struct Scratch::State {
  explicit State(size_t vocab_size);

  size_t vocab = 0;
  std::vector<float> raw;      // [vocab] the row before anything was done to it, when logprobs are wanted
  std::vector<float> weights;  // [vocab]
  std::vector<uint32_t> seen;  // [vocab] zero between picks
  std::vector<uint64_t> candidates;   // [vocab]
  std::vector<int32_t> block_keys;    // [blocks] largest key of each block
  std::vector<int32_t> block_order;   // [blocks]
  std::vector<double> block_weights;  // [blocks]
};

struct Scan {
  int32_t key_max = INT32_MIN;
  size_t best = 0;              // the lowest id of those with key_max
  size_t not_finite_count = 0;  // NaN, infinity and -infinity
};
// One pass. Fills block_keys.
Scan scan(std::span<const float> row, Scratch::State& scratch);

// The best min(m, number of values above -infinity) of the row, in no order. Requires: `scan` of the same
// row.
std::span<uint64_t> best_candidates(std::span<const float> row, size_t m, Scratch::State& scratch);

// How many values are before that of `id` in order. Requires: `scan` of the same row.
size_t count_before(std::span<const float> row, size_t id, const Scratch::State& scratch);

// weights[i] = exp((row[i] - max) / temperature), 0 where below `weight_min`; block_weights their sums.
// Returns the sum of all.
struct Softmax {
  float max = 0;
  float temperature = 1;
  float weight_min = 0;
};
double fill_weights(std::span<const float> row, const Softmax& softmax, Scratch::State& scratch);
float weight(float value, const Softmax& softmax);

// The first of the weights, in order of id, at which the running sum passes `target`. Without one, by
// rounding: the last that has any weight.
size_t draw_by_weight(size_t vocab, double target, const Scratch::State& scratch);

// Log of the sum of exp over the row. Requires: `scanned` is of it.
double log_sum_of(std::span<const float> row, const Scan& scanned, Scratch::State& scratch);
// Writes the best of the row, best first, and returns how many; at most out.size(). Requires: as
// best_candidates.
size_t best_logprobs(std::span<const float> row, double log_sum, std::span<TokenLogprob> out,
                     Scratch::State& scratch);

}  // namespace tally::sample
