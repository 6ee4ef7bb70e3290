#include "sample/sampler.h"

#include "base/check.h"
#include "sample/exp_log.h"
#include "sample/masks.h"
#include "sample/philox.h"
#include "sample/row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace tally::sample {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
// Below it a temperature is 0: nothing but equal logits could still share the probability.
constexpr float kGreedyBelow = 1e-30f;

size_t index_of(TokenId id, size_t vocab) {
  const auto i = static_cast<size_t>(static_cast<uint32_t>(raw(id)));
  TALLY_CHECK(i < vocab, "token id outside the vocabulary", i, vocab);
  return i;
}

TokenId id_of(size_t i) { return TokenId{static_cast<int32_t>(i)}; }

// Keeps the logit finite: a legal parameter must not make a good row look broken.
float clamp_to_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

// Sets the logits of `ids` to -infinity and counts them. A value that is not finite stays, so that the scan
// finds it.
size_t mask(std::span<float> logits, std::span<const TokenId> ids) {
  size_t count = 0;
  for (const TokenId id : ids) {
    float& value = logits[index_of(id, logits.size())];
    if (!std::isfinite(value)) continue;  // masked before, or broken
    value = kMasked;
    ++count;
  }
  return count;
}

constexpr size_t kMaskWord = 32;
constexpr std::array<uint32_t, kMaskWord> kMaskBits = [] {
  std::array<uint32_t, kMaskWord> bits{};
  for (size_t i = 0; i < kMaskWord; ++i) bits[i] = 1u << i;
  return bits;
}();

// One word of a constraint's mask, in integers and without branches, which compilers make vectors of.
size_t mask_word(std::span<float> part, uint32_t allowed) {
  constexpr uint32_t kExponent = 0x7F800000, kMinusInfinity = 0xFF800000;
  uint32_t count = 0;
  for (size_t i = 0; i < part.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(part[i]);
    const uint32_t off = uint32_t{(allowed & kMaskBits[i]) == 0} & uint32_t{(bits & kExponent) != kExponent};
    part[i] = std::bit_cast<float>(off != 0 ? kMinusInfinity : bits);
    count += off;
  }
  return count;
}

// The same of the ids that a constraint does not allow.
size_t mask_forbidden(std::span<float> logits, std::span<const uint32_t> allowed) {
  size_t count = 0;
  for (size_t w = 0; w < allowed.size(); ++w) {
    const std::span<float> rest = logits.subspan(w * kMaskWord);
    if (allowed[w] == UINT32_MAX) continue;
    count += rest.size() >= kMaskWord ? mask_word(rest.first<kMaskWord>(), allowed[w])
                                      : mask_word(rest, allowed[w]);
  }
  return count;
}

// Where a constraint has come to its end there is nothing to go on with, whatever min_tokens and ignore_eos
// say.
bool only_ends_are_left(const Params& params, const Context& context, bool too_early) {
  const auto is_open = [&](TokenId id) {
    const auto i = static_cast<uint32_t>(raw(id));
    return ((context.allowed[i / 32] >> (i % 32)) & 1) != 0 && !contains(context.suppressed_ids, id);
  };
  size_t open = 0, ends = 0;
  for (const uint32_t word : context.allowed) open += static_cast<size_t>(std::popcount(word));
  for (const TokenId id : context.suppressed_ids) {
    const auto i = static_cast<uint32_t>(raw(id));
    open -= (context.allowed[i / 32] >> (i % 32)) & 1;
  }
  for (const TokenId id : context.end_ids) ends += is_open(id);
  for (const TokenId id : params.stop_ids) ends += too_early && is_open(id) && !contains(context.end_ids, id);
  return open == ends;
}

void apply_bias(std::span<float> logits, std::span<const LogitBias> bias) {
  for (const LogitBias& entry : bias) {
    float& value = logits[index_of(entry.id, logits.size())];
    if (std::isfinite(value))
      value = clamp_to_float(static_cast<double>(value) + static_cast<double>(entry.bias));
  }
}

float penalize(float value, const Penalties& penalties, uint32_t generated_count) {
  double x = value;
  // Not denormal, which a thread may read as 0.
  const double repetition = std::max(penalties.repetition, std::numeric_limits<float>::min());
  x = x < 0 ? x * repetition : x / repetition;
  if (generated_count > 0) {
    x -= static_cast<double>(penalties.frequency) * generated_count + static_cast<double>(penalties.presence);
  }
  return clamp_to_float(x);
}

void apply_penalties(std::span<float> logits, const Penalties& penalties, const Context& context,
                     std::span<uint32_t> seen) {
  constexpr uint32_t kInPrompt = uint32_t{1} << 31;  // the other bits count generated ones
  const std::span<const TokenId> prompt =
      penalties.repetition == 1 ? std::span<const TokenId>{} : context.prompt;
  for (const TokenId id : prompt) seen[index_of(id, logits.size())] = kInPrompt;
  for (const auto part : {context.generated, context.drafts})
    for (const TokenId id : part) ++seen[index_of(id, logits.size())];
  const auto apply = [&](TokenId id) {
    const size_t i = index_of(id, logits.size());
    const uint32_t count = std::exchange(seen[i], 0);  // the second time: nothing left to do
    if (count != 0 && std::isfinite(logits[i]))
      logits[i] = penalize(logits[i], penalties, count & ~kInPrompt);
  };
  for (const auto part : {prompt, context.generated, context.drafts})
    for (const TokenId id : part) apply(id);
}

double sum_weights(std::span<const uint64_t> candidates, const Softmax& softmax) {
  double sum = 0;
  for (const uint64_t c : candidates)
    sum += static_cast<double>(weight(value_of_key(candidate_key(c)), softmax));
  return sum;
}

// How many of the candidates top_p keeps: the shortest prefix, in sorted order, that holds `wanted` weight;
// all if none does. Brings that prefix to the front. Halves the part in which the prefix ends, so that
// nothing is sorted but a few.
struct Prefix {
  size_t count = 0;
  bool reached = false;
};
Prefix nucleus(std::span<uint64_t> candidates, const Softmax& softmax, double wanted) {
  constexpr size_t kSortBelow = 64;
  std::span<uint64_t> part = candidates;
  size_t before = 0;
  double sum = 0;
  while (part.size() > kSortBelow) {
    const size_t half = part.size() / 2;
    std::nth_element(part.begin(), part.begin() + static_cast<ptrdiff_t>(half), part.end());
    const double with_half = sum + sum_weights(part.first(half), softmax);
    if (with_half >= wanted) {
      part = part.first(half);
    } else {
      sum = with_half;
      before += half;
      part = part.subspan(half);
    }
  }
  std::sort(part.begin(), part.end());
  for (size_t i = 0; i < part.size(); ++i) {
    sum += sum_weights(part.subspan(i, 1), softmax);
    if (sum >= wanted) return {before + i + 1, true};
  }
  // The end of the list; or, by rounding, the end of a half that did hold the weight when it was added up
  // otherwise.
  const size_t count = before + part.size();
  return {count, count < candidates.size()};
}

bool cuts_by_rank(const Params& params, size_t vocab) {
  return params.top_k > 0 && static_cast<size_t>(params.top_k) < vocab;
}

// What top_k and top_p keep, in no order.
std::span<uint64_t> keep_best(std::span<const float> row, const Params& params, const Softmax& softmax,
                              Scratch::State& scratch) {
  const auto top_p = static_cast<double>(params.top_p);
  if (cuts_by_rank(params, row.size())) {
    const std::span<uint64_t> kept = best_candidates(row, static_cast<size_t>(params.top_k), scratch);
    if (top_p >= 1) return kept;
    return kept.first(nucleus(kept, softmax, top_p * sum_weights(kept, softmax)).count);
  }
  // Looks at as few as are enough: mostly some hundred tokens hold nearly all the weight.
  const double wanted = top_p * fill_weights(row, softmax, scratch);
  constexpr size_t kFirst = 256, kGrowth = 8;
  const size_t blocks = scratch.block_keys.size();
  for (size_t m = std::min(kFirst, row.size());; m = m * kGrowth < blocks ? m * kGrowth : row.size()) {
    const std::span<uint64_t> best = best_candidates(row, m, scratch);
    const Prefix prefix = nucleus(best, softmax, wanted);
    if (prefix.reached || m == row.size()) return best.first(prefix.count);
  }
}

// Draws from few candidates, in order of id.
size_t draw_from(std::span<uint64_t> kept, const Softmax& softmax, double random) {
  std::sort(kept.begin(), kept.end(),
            [](uint64_t a, uint64_t b) { return candidate_id(a) < candidate_id(b); });
  const double target = random * sum_weights(kept, softmax);
  double sum = 0;
  size_t last = 0;
  for (const uint64_t c : kept) {
    const float w = weight(value_of_key(candidate_key(c)), softmax);
    if (w == 0) continue;
    sum += static_cast<double>(w);
    last = candidate_id(c);
    if (sum > target) break;
  }
  return last;
}

// Masks what is not kept, given that `kept` is the best of the row.
void mask_others(std::span<float> row, std::span<const uint64_t> kept) {
  const uint64_t last = *std::max_element(kept.begin(), kept.end());
  for (size_t i = 0; i < row.size(); ++i) {
    if (candidate(order_key(row[i]), i) > last) row[i] = kMasked;
  }
}

// Sets scratch's weights to those of what the chain keeps, 0 elsewhere, and returns their sum.
double weigh(std::span<float> row, float max, const Params& params, Scratch::State& scratch) {
  const Softmax softmax{.max = max, .temperature = params.temperature};
  if (params.top_p < 1 || cuts_by_rank(params, row.size()))
    mask_others(row, keep_best(row, params, softmax, scratch));
  Softmax final = softmax;
  final.weight_min = params.min_p;
  return fill_weights(row, final, scratch);
}

size_t draw(std::span<float> row, float max, const Params& params, double random, Scratch::State& scratch) {
  constexpr size_t kFew = 4096;
  const Softmax softmax{.max = max, .temperature = params.temperature};
  Softmax final = softmax;
  final.weight_min = params.min_p > 0 ? params.min_p : 0.0f;  // the largest weight is 1
  if (params.top_p < 1 || cuts_by_rank(params, row.size())) {
    const std::span<uint64_t> kept = keep_best(row, params, softmax, scratch);
    if (kept.size() <= kFew) return draw_from(kept, final, random);
    mask_others(row, kept);
  }
  const double total = fill_weights(row, final, scratch);
  return draw_by_weight(row.size(), random * total, scratch);
}

}  // namespace

size_t apply_masks(std::span<float> logits, const Params& params, const Context& context) {
  TALLY_CHECK(context.allowed.empty() || context.allowed.size() == (logits.size() + 31) / 32,
              "a mask of another vocabulary", context.allowed.size(), logits.size());
  const bool too_early = context.position() < params.min_tokens;
  size_t count = mask_forbidden(logits, context.allowed) + mask(logits, context.suppressed_ids);
  if (!context.allowed.empty() && only_ends_are_left(params, context, too_early)) return count;
  if (too_early || params.ignore_eos) count += mask(logits, context.end_ids);
  if (too_early) count += mask(logits, params.stop_ids);
  return count;
}

namespace {

// The chain up to the draw, which `drawn` makes: from the row as it is then, with its largest value.
template <class Drawn>
Pick pick_by(std::span<float> logits, const Params& params, const Context& context, int32_t logprobs,
             Scratch::State& state, const Drawn& drawn) {
  TALLY_CHECK(!logits.empty() && logits.size() == state.vocab, "scratch of another vocabulary", logits.size(),
              state.vocab);
  TALLY_CHECK(params.logprobs <= kLogprobsMax, "parameters were not validated", params.logprobs);
  Pick result;
  double log_sum = 0;
  if (logprobs >= 0) {
    const Scan raw_scan = scan(logits, state);
    if (raw_scan.not_finite_count != 0) return Pick{.finite = false};
    log_sum = log_sum_of(logits, raw_scan, state);
    const auto top = std::span(result.top).first(static_cast<size_t>(logprobs));
    result.top_count = static_cast<uint8_t>(best_logprobs(logits, log_sum, top, state));
    std::copy(logits.begin(), logits.end(), state.raw.begin());
  }

  const size_t masked_count = apply_masks(logits, params, context);
  apply_bias(logits, params.bias);
  if (params.penalties.active()) apply_penalties(logits, params.penalties, context, state.seen);

  const Scan scanned = scan(logits, state);
  if (scanned.not_finite_count != masked_count) return Pick{.finite = false};
  if (masked_count == logits.size()) return Pick{.finite = false, .dead_end = !context.allowed.empty()};
  size_t chosen = scanned.best;
  if (!is_greedy(params)) chosen = drawn(value_of_key(scanned.key_max));

  result.id = id_of(chosen);
  result.is_end = contains(context.end_ids, result.id) || contains(params.stop_ids, result.id);
  if (logprobs >= 0) result.logprob = static_cast<float>(static_cast<double>(state.raw[chosen]) - log_sum);
  return result;
}

// Takes a guess's chances from those of the weights, down to 0. Returns what is left.
double subtract(const Guess& guess, double total, Scratch::State& state) {
  const size_t id = index_of(guess.id, state.vocab);
  double sum = 0;
  for (size_t b = 0; b * kBlock < state.vocab; ++b) {
    double block = 0;
    for (size_t i = b * kBlock; i < std::min(state.vocab, (b + 1) * kBlock); ++i) {
      const double q = !guess.chances.empty() ? static_cast<double>(guess.chances[i]) : i == id ? 1. : 0.;
      const double left = static_cast<double>(state.weights[i]) / total - q;
      state.weights[i] = static_cast<float>(std::max(0., left));
      block += static_cast<double>(state.weights[i]);
    }
    state.block_weights[b] = block;
    sum += block;
  }
  return sum;
}

}  // namespace

bool is_greedy(const Params& params) { return params.temperature < kGreedyBelow; }

Pick pick(std::span<float> logits, const Params& params, const Context& context, Scratch& scratch) {
  Scratch::State& state = scratch.state();
  return pick_by(logits, params, context, params.logprobs, state, [&](float max) {
    const double random = uniform(params.seed, context.choice, context.position());
    return draw(logits, max, params, random, state);
  });
}

Pick pick_or_accept(std::span<float> logits, const Params& params, const Context& context, const Guess& guess,
                    Scratch& scratch) {
  Scratch::State& state = scratch.state();
  return pick_by(logits, params, context, params.logprobs, state, [&](float max) {
    const auto random = [&](Stream stream) {
      return uniform(params.seed, context.choice, context.position(), stream);
    };
    const double total = weigh(logits, max, params, state);
    const size_t id = index_of(guess.id, logits.size());
    const double p = static_cast<double>(state.weights[id]) / total;
    const double q = guess.chances.empty() ? 1 : static_cast<double>(guess.chances[id]);
    if (random(Stream::kAccept) * q < p) return id;
    const double left = subtract(guess, total, state);
    if (left > 0) return draw_by_weight(logits.size(), random(Stream::kInstead) * left, state);
    // p is q, but for rounding.
    return draw_by_weight(logits.size(), random(Stream::kInstead) * weigh(logits, max, params, state), state);
  });
}

Pick draw_guess(std::span<float> logits, const Params& params, const Context& context,
                std::span<float> chances, Scratch& scratch) {
  TALLY_CHECK(!is_greedy(params) && chances.size() == logits.size(), "a guess that is drawn",
              params.temperature, chances.size());
  Scratch::State& state = scratch.state();
  return pick_by(logits, params, context, -1, state, [&](float max) {
    const double total = weigh(logits, max, params, state);
    for (size_t i = 0; i < chances.size(); ++i)
      chances[i] = static_cast<float>(static_cast<double>(state.weights[i]) / total);
    const double random = uniform(params.seed, context.choice, context.position(), Stream::kGuess);
    return draw_by_weight(logits.size(), random * total, state);
  });
}

Score score(std::span<const float> logits, TokenId id, size_t top, Scratch& scratch) {
  Scratch::State& state = scratch.state();
  TALLY_CHECK(logits.size() == state.vocab && top <= kLogprobsMax,
              "a row of another vocabulary, or too many best", logits.size(), state.vocab, top);
  const size_t i = index_of(id, logits.size());
  const Scan scanned = scan(logits, state);
  if (scanned.not_finite_count != 0) return Score{.finite = false};
  Score result;
  const double log_sum = log_sum_of(logits, scanned, state);
  result.top_count =
      static_cast<uint8_t>(best_logprobs(logits, log_sum, std::span(result.top).first(top), state));
  result.logprob = static_cast<float>(static_cast<double>(logits[i]) - log_sum);
  result.rank = static_cast<uint32_t>(1 + count_before(logits, i, state));
  return result;
}

}  // namespace tally::sample
