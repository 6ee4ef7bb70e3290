#include "sample/row.h"

#include "sample/exp_log.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace tally::sample {
namespace {

size_t block_count(size_t n) { return (n + kBlock - 1) / kBlock; }

std::span<const float> block_of(std::span<const float> row, size_t block) {
  return row.subspan(block * kBlock, std::min(kBlock, row.size() - block * kBlock));
}

struct BlockScan {
  int32_t key_max = INT32_MIN;
  int32_t not_finite = 0;
};
// Lanes side by side, so that the loop becomes vectors whatever the instruction set.
BlockScan scan_block(const float* values, size_t n) {
  constexpr int32_t kInfinity = 0x7F800000;
  constexpr size_t kLanes = 8;
  int32_t key_max[kLanes], not_finite[kLanes] = {};
  std::fill_n(key_max, kLanes, INT32_MIN);
  const auto look = [&](size_t lane, float value) {
    const int32_t key = order_key(value);
    key_max[lane] = key > key_max[lane] ? key : key_max[lane];
    not_finite[lane] += (std::bit_cast<int32_t>(value) & 0x7FFFFFFF) >= kInfinity ? 1 : 0;
  };
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) look(lane, values[i + lane]);
  }
  for (; i < n; ++i) look(0, values[i]);
  BlockScan result;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    result.key_max = std::max(result.key_max, key_max[lane]);
    result.not_finite += not_finite[lane];
  }
  return result;
}

}  // namespace

Scratch::State::State(size_t vocab_size)
    : vocab(vocab_size),
      raw(vocab_size),
      weights(vocab_size),
      seen(vocab_size),
      candidates(vocab_size),
      block_keys(block_count(vocab_size)),
      block_order(block_count(vocab_size)),
      block_weights(block_count(vocab_size)) {}

Scratch::Scratch(size_t vocab_size) : state_(std::make_unique<State>(vocab_size)) {}
Scratch::Scratch(Scratch&&) noexcept = default;
Scratch& Scratch::operator=(Scratch&&) noexcept = default;
Scratch::~Scratch() = default;

size_t Scratch::bytes(size_t vocab_size) {
  constexpr size_t kPerToken = 2 * sizeof(float) + sizeof(uint32_t) + sizeof(uint64_t);
  constexpr size_t kPerBlock = 2 * sizeof(int32_t) + sizeof(double);
  return sizeof(State) + vocab_size * kPerToken + block_count(vocab_size) * kPerBlock;
}

Scan scan(std::span<const float> row, Scratch::State& scratch) {
  Scan result;
  size_t best_block = 0;
  for (size_t b = 0; b < block_count(row.size()); ++b) {
    const std::span<const float> block = block_of(row, b);
    // The constant length lets the compiler unroll.
    const BlockScan part =
        block.size() == kBlock ? scan_block(block.data(), kBlock) : scan_block(block.data(), block.size());
    scratch.block_keys[b] = part.key_max;
    result.not_finite_count += static_cast<size_t>(part.not_finite);
    if (part.key_max > result.key_max) result.key_max = part.key_max, best_block = b;
  }
  const std::span<const float> block = block_of(row, best_block);
  const auto it =
      std::find_if(block.begin(), block.end(), [&](float v) { return order_key(v) == result.key_max; });
  result.best = best_block * kBlock + static_cast<size_t>(it - block.begin());
  return result;
}

std::span<uint64_t> best_candidates(std::span<const float> row, size_t m, Scratch::State& scratch) {
  const size_t blocks = block_count(row.size());
  // At least m values are as large as the m-th largest of the block maxima.
  int32_t floor_key = INT32_MIN;
  if (m < blocks) {
    const auto order = scratch.block_order.begin();
    std::copy(scratch.block_keys.begin(), scratch.block_keys.end(), order);
    const auto nth = order + static_cast<ptrdiff_t>(m) - 1;
    std::nth_element(order, nth, scratch.block_order.end(), std::greater<>());
    floor_key = *nth;
  }
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  floor_key = std::max(floor_key, order_key(kMasked) + 1);

  size_t count = 0;
  for (size_t b = 0; b < blocks; ++b) {
    if (scratch.block_keys[b] < floor_key) continue;
    const std::span<const float> block = block_of(row, b);
    for (size_t i = 0; i < block.size(); ++i) {
      const int32_t key = order_key(block[i]);
      // Written always and kept by the count: no branch to mispredict.
      scratch.candidates[count] = candidate(key, b * kBlock + i);
      count += key >= floor_key ? 1 : 0;
    }
  }
  if (count > m) {
    const auto begin = scratch.candidates.begin();
    std::nth_element(begin, begin + static_cast<ptrdiff_t>(m) - 1, begin + static_cast<ptrdiff_t>(count));
    count = m;
  }
  return std::span(scratch.candidates).first(count);
}

size_t count_before(std::span<const float> row, size_t id, const Scratch::State& scratch) {
  const int32_t own = order_key(row[id]);
  const size_t own_block = id / kBlock;
  const auto count = [](std::span<const float> values, int32_t floor_key) {
    size_t n = 0;
    for (const float value : values) n += order_key(value) >= floor_key ? 1 : 0;
    return n;
  };
  size_t before = 0;
  for (size_t b = 0; b < block_count(row.size()); ++b) {
    // Of equal ones those with a lower id are before it. Most blocks hold nothing as large.
    const int32_t floor_key = b < own_block ? own : own + 1;
    if (b != own_block && scratch.block_keys[b] >= floor_key) before += count(block_of(row, b), floor_key);
  }
  const std::span<const float> block = block_of(row, own_block);
  const size_t at = id - own_block * kBlock;
  return before + count(block.first(at), own) + count(block.subspan(at + 1), own + 1);
}

float weight(float value, const Softmax& softmax) {
  const float w = exp_negative((softmax.max - value) / softmax.temperature);
  // As in exp_negative: below the least weight, a mask of zeros.
  const auto bits = std::bit_cast<int32_t>(w);
  return std::bit_cast<float>(bits & ~((bits - std::bit_cast<int32_t>(softmax.weight_min)) >> 31));
}

double fill_weights(std::span<const float> row, const Softmax& softmax, Scratch::State& scratch) {
  const Softmax fixed = softmax;  // a local copy: nothing written below can change it
  double total = 0;
  for (size_t b = 0; b < block_count(row.size()); ++b) {
    const std::span<const float> block = block_of(row, b);
    float* const out = scratch.weights.data() + b * kBlock;
    for (size_t i = 0; i < block.size(); ++i) out[i] = weight(block[i], fixed);
    constexpr size_t kLanes = 8;
    double partial[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= block.size(); i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) partial[lane] += static_cast<double>(out[i + lane]);
    }
    for (size_t lane = 0; i < block.size(); ++i, ++lane) partial[lane] += static_cast<double>(out[i]);
    const double sum = ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
                       ((partial[1] + partial[5]) + (partial[3] + partial[7]));
    scratch.block_weights[b] = sum;
    total += sum;
  }
  return total;
}

size_t draw_by_weight(size_t vocab, double target, const Scratch::State& scratch) {
  double sum = 0;
  size_t last = 0;
  for (size_t b = 0; b * kBlock < vocab; ++b) {
    const double after = sum + scratch.block_weights[b];
    const bool here = after > target;
    const size_t end = std::min(vocab, (b + 1) * kBlock);
    for (size_t i = b * kBlock; here && i < end; ++i) {
      if (scratch.weights[i] == 0) continue;
      sum += static_cast<double>(scratch.weights[i]);
      last = i;
      if (sum > target) return i;
    }
    if (here) return last;
    sum = after;
  }
  for (size_t i = vocab; i-- > 0;) {
    if (scratch.weights[i] != 0) return i;
  }
  return last;
}

double log_sum_of(std::span<const float> row, const Scan& scanned, Scratch::State& scratch) {
  const Softmax softmax{.max = value_of_key(scanned.key_max)};
  return static_cast<double>(softmax.max) + log_positive(fill_weights(row, softmax, scratch));
}

size_t best_logprobs(std::span<const float> row, double log_sum, std::span<TokenLogprob> out,
                     Scratch::State& scratch) {
  if (out.empty()) return 0;
  const std::span<uint64_t> best = best_candidates(row, out.size(), scratch);
  std::sort(best.begin(), best.end());
  for (size_t n = 0; n < best.size(); ++n) {
    const size_t i = candidate_id(best[n]);
    out[n] = {TokenId{static_cast<int32_t>(i)}, static_cast<float>(static_cast<double>(row[i]) - log_sum)};
  }
  return best.size();
}

}  // namespace tally::sample
