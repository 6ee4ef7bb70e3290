#pragma once
// What a request says about choosing tokens. Ranges are checked by `validate`, in one place for every route.

#include "base/ids.h"
#include "base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tally::sample {

inline constexpr int kLogprobsMax = 20;
inline constexpr size_t kLogitBiasMax = 1024;
inline constexpr size_t kStopIdsMax = 64;

struct LogitBias {
  TokenId id{};
  float bias = 0;  // -100..100
};

struct Penalties {
  float repetition = 1;  // (0, 10]; 1 = off; over prompt and generated ids
  float presence = 0;    // -2..2; over generated ids
  float frequency = 0;   // -2..2; over generated ids
  bool active() const { return repetition != 1 || presence != 0 || frequency != 0; }
};

struct Params {
  float temperature = 1;  // 0..2; 0 = greedy
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1]
  int32_t top_k = 0;      // 0 and -1: off
  Penalties penalties;
  uint64_t seed = 0;
  bool is_seed_drawn = false;  // nobody gave the seed, and nobody expects the same tokens of it again
  uint32_t min_tokens = 0;  // end ids are masked until so many tokens were generated
  bool ignore_eos = false;  // end ids of the model are masked always
  int32_t logprobs = -1;    // -1 off; k: the chosen token's and the k best
  std::vector<LogitBias> bias;
  std::vector<TokenId> stop_ids;  // the request's own; they end the sequence and are masked during min_tokens
};

// One message naming the parameter (OpenAI's name), the value and what is allowed.
struct ParamError {
  std::string param, message;
};
// Checks every range, finiteness first. `vocab_size` bounds ids.
std::optional<ParamError> validate(const Params& params, size_t vocab_size);

}  // namespace tally::sample
