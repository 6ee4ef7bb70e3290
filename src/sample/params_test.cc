#include "sample/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace tally::sample {
namespace {

constexpr size_t kVocab = 1000;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  const char* param;  // nullptr: allowed
  std::function<void(Params&)> change;
};

TEST(Validate, ChecksEveryRange) {
  const Case cases[] = {
      {nullptr, [](Params&) {}},
      {nullptr, [](Params& p) { p.temperature = 0; }},
      {nullptr, [](Params& p) { p.temperature = 2; }},
      {"temperature", [](Params& p) { p.temperature = -1; }},
      {"temperature", [](Params& p) { p.temperature = 2.01f; }},
      {"temperature", [](Params& p) { p.temperature = 1e30f; }},
      {"temperature", [](Params& p) { p.temperature = kNan; }},
      {"temperature", [](Params& p) { p.temperature = kInf; }},
      {nullptr, [](Params& p) { p.top_p = 1e-6f; }},
      {"top_p", [](Params& p) { p.top_p = 0; }},
      {"top_p", [](Params& p) { p.top_p = 1.1f; }},
      {"top_p", [](Params& p) { p.top_p = kNan; }},
      {nullptr, [](Params& p) { p.min_p = 1; }},
      {"min_p", [](Params& p) { p.min_p = 2; }},
      {"min_p", [](Params& p) { p.min_p = -0.1f; }},
      {"min_p", [](Params& p) { p.min_p = kNan; }},
      {nullptr, [](Params& p) { p.top_k = -1; }},
      {nullptr, [](Params& p) { p.top_k = INT32_MAX; }},
      {"top_k", [](Params& p) { p.top_k = -2; }},
      {nullptr, [](Params& p) { p.penalties.repetition = 10; }},
      {"repetition_penalty", [](Params& p) { p.penalties.repetition = 0; }},
      {"repetition_penalty", [](Params& p) { p.penalties.repetition = 1e9f; }},
      {"repetition_penalty", [](Params& p) { p.penalties.repetition = kNan; }},
      {nullptr, [](Params& p) { p.penalties.presence = -2; }},
      {"presence_penalty", [](Params& p) { p.penalties.presence = -1e9f; }},
      {"presence_penalty", [](Params& p) { p.penalties.presence = 2.5f; }},
      {nullptr, [](Params& p) { p.penalties.frequency = 2; }},
      {"frequency_penalty", [](Params& p) { p.penalties.frequency = 1e9f; }},
      {"frequency_penalty", [](Params& p) { p.penalties.frequency = -kInf; }},
      {nullptr, [](Params& p) { p.seed = INT64_MAX; }},
      {"seed", [](Params& p) { p.seed = uint64_t{1} << 63; }},
      {nullptr, [](Params& p) { p.logprobs = kLogprobsMax; }},
      {"logprobs", [](Params& p) { p.logprobs = kLogprobsMax + 1; }},
      {"logprobs", [](Params& p) { p.logprobs = 1000000; }},
      {"logprobs", [](Params& p) { p.logprobs = -2; }},
      {nullptr, [](Params& p) { p.bias = {{TokenId{0}, 100}, {TokenId{999}, -100}}; }},
      {nullptr, [](Params& p) { p.bias.assign(kLogitBiasMax, {TokenId{1}, 1}); }},
      {"logit_bias", [](Params& p) { p.bias.assign(kLogitBiasMax + 1, {TokenId{1}, 1}); }},
      {"logit_bias", [](Params& p) { p.bias = {{TokenId{1000}, 1}}; }},
      {"logit_bias", [](Params& p) { p.bias = {{TokenId{-1}, 1}}; }},
      {"logit_bias", [](Params& p) { p.bias = {{TokenId{1}, 1e9f}}; }},
      {"logit_bias", [](Params& p) { p.bias = {{TokenId{1}, kNan}}; }},
      {nullptr, [](Params& p) { p.stop_ids.assign(kStopIdsMax, TokenId{999}); }},
      {"stop_token_ids", [](Params& p) { p.stop_ids.assign(kStopIdsMax + 1, TokenId{1}); }},
      {"stop_token_ids", [](Params& p) { p.stop_ids = {TokenId{1}, TokenId{1000}}; }},
      {"stop_token_ids", [](Params& p) { p.stop_ids = {TokenId{-5}}; }},
  };
  for (const Case& c : cases) {
    Params params;
    c.change(params);
    const std::optional<ParamError> error = validate(params, kVocab);
    const auto line = &c - cases;
    ASSERT_EQ(error.has_value(), c.param != nullptr) << "case " << line << (error ? error->message : "");
    if (!error) continue;
    EXPECT_EQ(error->param, c.param) << "case " << line;
    EXPECT_THAT(error->message, testing::StartsWith(c.param));
    EXPECT_THAT(error->message, testing::HasSubstr("allowed"));
  }
}

TEST(Validate, NamesTheValueAndTheIndex) {
  Params params;
  params.temperature = 2.5f;
  EXPECT_EQ(validate(params, kVocab)->message, "temperature is 2.5; allowed 0 to 2");
  params = {};
  params.top_p = 0;
  EXPECT_EQ(validate(params, kVocab)->message, "top_p is 0; allowed more than 0 to 1");
  params = {};
  params.stop_ids = {TokenId{3}, TokenId{1000}};
  EXPECT_EQ(validate(params, kVocab)->message,
            "stop_token_ids[1]: token id 1000 does not exist; allowed 0 to 999");
}

}  // namespace
}  // namespace tally::sample
