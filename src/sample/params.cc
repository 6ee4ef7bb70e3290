#include "sample/params.h"

#include <fmt/format.h>

#include <cmath>

namespace tally::sample {
namespace {

struct Range {
  std::string_view param;
  float value, min, max;
  bool min_open = false;  // min itself is not allowed
};

std::optional<ParamError> check(const Range& range) {
  const bool above = range.min_open ? range.value > range.min : range.value >= range.min;
  if (std::isfinite(range.value) && above && range.value <= range.max) return std::nullopt;
  return ParamError{std::string(range.param),
                    fmt::format("{} is {}; allowed {}{} to {}", range.param, range.value,
                                range.min_open ? "more than " : "", range.min, range.max)};
}

std::optional<ParamError> check_id(std::string_view param, size_t index, TokenId id, size_t vocab_size) {
  if (raw(id) >= 0 && static_cast<size_t>(raw(id)) < vocab_size) return std::nullopt;
  return ParamError{std::string(param), fmt::format("{}[{}]: token id {} does not exist; allowed 0 to {}",
                                                    param, index, raw(id), vocab_size - 1)};
}

std::optional<ParamError> check_ids(const Params& params, size_t vocab_size) {
  if (params.bias.size() > kLogitBiasMax) {
    return ParamError{"logit_bias", fmt::format("logit_bias has {} entries; allowed 0 to {}",
                                                params.bias.size(), kLogitBiasMax)};
  }
  for (size_t i = 0; i < params.bias.size(); ++i) {
    const LogitBias& bias = params.bias[i];
    if (auto error = check_id("logit_bias", i, bias.id, vocab_size)) return error;
    if (std::isfinite(bias.bias) && bias.bias >= -100 && bias.bias <= 100) continue;
    return ParamError{"logit_bias", fmt::format("logit_bias of token {} is {}; allowed -100 to 100",
                                                raw(bias.id), bias.bias)};
  }
  if (params.stop_ids.size() > kStopIdsMax) {
    return ParamError{"stop_token_ids", fmt::format("stop_token_ids has {} entries; allowed 0 to {}",
                                                    params.stop_ids.size(), kStopIdsMax)};
  }
  for (size_t i = 0; i < params.stop_ids.size(); ++i) {
    if (auto error = check_id("stop_token_ids", i, params.stop_ids[i], vocab_size)) return error;
  }
  return std::nullopt;
}

}  // namespace

std::optional<ParamError> validate(const Params& params, size_t vocab_size) {
  const Range ranges[] = {
      {"temperature", params.temperature, 0, 2},
      {"top_p", params.top_p, 0, 1, true},
      {"min_p", params.min_p, 0, 1},
      {"repetition_penalty", params.penalties.repetition, 0, 10, true},
      {"presence_penalty", params.penalties.presence, -2, 2},
      {"frequency_penalty", params.penalties.frequency, -2, 2},
  };
  for (const Range& range : ranges) {
    if (auto error = check(range)) return error;
  }
  if (params.top_k < -1) {
    return ParamError{"top_k",
                      fmt::format("top_k is {}; allowed -1 and 0 (off), or 1 and more", params.top_k)};
  }
  if (params.seed > uint64_t{INT64_MAX}) {
    return ParamError{"seed", fmt::format("seed is {}; allowed 0 to {}", params.seed, INT64_MAX)};
  }
  if (params.logprobs < -1 || params.logprobs > kLogprobsMax) {
    return ParamError{"logprobs", fmt::format("logprobs is {}; allowed 0 to {}, or -1 (off)", params.logprobs,
                                              kLogprobsMax)};
  }
  return check_ids(params, vocab_size);
}

}  // namespace tally::sample
