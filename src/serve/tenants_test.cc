// What a tenant may have and use, on a simulated clock.

#include "serve/tenants.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

namespace tally::serve {
namespace {

constexpr int64_t kSecond = 1'000'000, kMinute = 60 * kSecond;

std::string field(const ApiError& error, std::string_view name) {
  for (const http::Field& f : error.fields)
    if (f.name == name) return f.value;
  return "absent";
}

TEST(Tenants, WithoutLimitsEveryoneEnters) {
  Tenants tenants(SIZE_MAX, {});
  for (int i = 0; i < 1000; ++i)
    ASSERT_FALSE(tenants.enter("a", {.sequences = 256, .prompt_tokens = 1'000'000}, 0));
  EXPECT_FALSE(tenants.judge("a", 0));
}

TEST(Tenants, RequestsAtOnce) {
  Tenants tenants(SIZE_MAX, {.requests = 2});
  EXPECT_FALSE(tenants.enter("a", {.sequences = 5}, 0));
  EXPECT_FALSE(tenants.enter("a", {}, 0));
  const auto refused = tenants.enter("a", {}, 0);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kRateLimit);
  EXPECT_EQ(refused->message,
            "This key has 2 requests running and waiting, and may have 2 (--limit-key-requests).");
  EXPECT_EQ(field(*refused, "x-ratelimit-limit-requests"), "2");
  EXPECT_EQ(field(*refused, "x-ratelimit-remaining-requests"), "0");
  EXPECT_EQ(field(*refused, "x-ratelimit-reset-requests"), "1s");
  EXPECT_EQ(refused->retry_after_s, 1u);
  EXPECT_TRUE(tenants.judge("a", 0));
  EXPECT_FALSE(tenants.enter("b", {}, 0)) << "another key";
  tenants.leave("a", 5);
  EXPECT_FALSE(tenants.enter("a", {}, 0));
}

TEST(Tenants, ShareOfSequences) {
  Tenants tenants(4, {});
  const auto never = tenants.enter("a", {.sequences = 5}, 0);
  ASSERT_TRUE(never);
  EXPECT_EQ(never->code, Code::kInvalidValue);
  EXPECT_EQ(never->message, "The request needs 5 sequences, and one key may have 4 as its share.");
  EXPECT_FALSE(tenants.enter("a", {.sequences = 3}, 0));
  const auto refused = tenants.enter("a", {.sequences = 2}, 0);
  ASSERT_TRUE(refused);
  EXPECT_EQ(field(*refused, "x-ratelimit-limit-requests"), "4");
  EXPECT_EQ(field(*refused, "x-ratelimit-remaining-requests"), "1");
  EXPECT_FALSE(tenants.enter("a", {.sequences = 1}, 0));
}

TEST(Tenants, TokensRunOutAndComeBackEvenly) {
  Tenants tenants(SIZE_MAX, {.tokens_per_minute = 600});
  EXPECT_FALSE(tenants.enter("a", {.prompt_tokens = 500}, 0));
  EXPECT_EQ(tenants.tokens_left("a", 0), 100);
  const auto refused = tenants.enter("a", {.prompt_tokens = 150}, 0);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->retry_after_s, 5u);  // 50 tokens at 10 a second
  EXPECT_EQ(field(*refused, "x-ratelimit-limit-tokens"), "600");
  EXPECT_EQ(field(*refused, "x-ratelimit-remaining-tokens"), "100");
  EXPECT_EQ(field(*refused, "x-ratelimit-reset-tokens"), "50s");
  EXPECT_EQ(tenants.tokens_left("a", 0), 100) << "a refusal costs nothing";
  EXPECT_TRUE(tenants.enter("a", {.prompt_tokens = 150}, 5 * kSecond - 1));
  EXPECT_FALSE(tenants.enter("a", {.prompt_tokens = 150}, 5 * kSecond));
  EXPECT_EQ(tenants.tokens_left("a", 5 * kSecond), 0);
  EXPECT_EQ(tenants.tokens_left("a", 10 * kMinute), 600) << "it holds a minute's";
  EXPECT_EQ(tenants.tokens_left("b", 0), 600);
}

// Whichever of them ran out.
TEST(Tenants, ARefusalTellsOfRequestsAndTokens) {
  Tenants tenants(8, {.requests = 3, .tokens_per_minute = 600});
  EXPECT_FALSE(tenants.enter("a", {.prompt_tokens = 500}, 0));
  const auto tokens = tenants.enter("a", {.prompt_tokens = 150}, 0);
  ASSERT_TRUE(tokens);
  EXPECT_EQ(field(*tokens, "x-ratelimit-limit-requests"), "3");
  EXPECT_EQ(field(*tokens, "x-ratelimit-remaining-requests"), "2");
  EXPECT_EQ(field(*tokens, "x-ratelimit-remaining-tokens"), "100");
  EXPECT_EQ(tokens->retry_after_s, 5u);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(tenants.enter("a", {.prompt_tokens = 10}, 0));
  const auto requests = tenants.enter("a", {.prompt_tokens = 10}, 0);
  ASSERT_TRUE(requests);
  EXPECT_EQ(field(*requests, "x-ratelimit-remaining-requests"), "0");
  EXPECT_EQ(field(*requests, "x-ratelimit-limit-tokens"), "600");
  EXPECT_EQ(field(*requests, "x-ratelimit-remaining-tokens"), "80");
  Tenants share(4, {.tokens_per_minute = 60});
  EXPECT_FALSE(share.enter("a", {.sequences = 3, .prompt_tokens = 60}, 0));
  const auto poor = share.enter("a", {}, 0);
  ASSERT_TRUE(poor);
  EXPECT_EQ(field(*poor, "x-ratelimit-limit-requests"), "4");
  EXPECT_EQ(field(*poor, "x-ratelimit-remaining-requests"), "1");
}

TEST(Tenants, AnswersLeaveADebtAndRefundsGoBack) {
  Tenants tenants(SIZE_MAX, {.tokens_per_minute = 60});
  EXPECT_FALSE(tenants.enter("a", {.prompt_tokens = 10}, 0));
  tenants.charge("a", 80, 0);
  EXPECT_EQ(tenants.tokens_left("a", 0), -30);
  ASSERT_TRUE(tenants.judge("a", 0));
  EXPECT_EQ(tenants.judge("a", 0)->retry_after_s, 31u);
  EXPECT_EQ(field(*tenants.judge("a", 0), "x-ratelimit-remaining-tokens"), "0");
  EXPECT_TRUE(tenants.judge("a", 31 * kSecond - 1));
  EXPECT_FALSE(tenants.judge("a", 31 * kSecond));
  tenants.charge("a", -40, 0);
  EXPECT_EQ(tenants.tokens_left("a", 0), 10);
  tenants.charge("a", -1000, 0);
  EXPECT_EQ(tenants.tokens_left("a", 0), 60) << "no more than it holds";
}

TEST(Tenants, APromptOfMoreThanAMinuteWaitsForAFullBucket) {
  Tenants tenants(SIZE_MAX, {.tokens_per_minute = 60});
  EXPECT_FALSE(tenants.enter("a", {.prompt_tokens = 200}, 0));
  EXPECT_EQ(tenants.tokens_left("a", 0), -140);
  EXPECT_TRUE(tenants.enter("a", {.prompt_tokens = 200}, 199 * kSecond));
  EXPECT_FALSE(tenants.enter("a", {.prompt_tokens = 200}, 200 * kSecond));
}

// Whatever comes and whenever: what was let in is at most what the bucket held and got, but for the one debt
// that a request can leave.
RC_GTEST_PROP(Tenants, NeverMoreThanTheRate, ()) {
  const auto rate = *rc::gen::inRange<uint64_t>(1, 5000);
  Tenants tenants(SIZE_MAX, {.tokens_per_minute = rate});
  int64_t now_us = 0;
  uint64_t taken = 0, largest = 0;
  for (int i = 0; i < 200; ++i) {
    now_us += *rc::gen::inRange<int64_t>(0, 3 * kSecond);
    const auto prompt = *rc::gen::inRange<uint64_t>(1, 400);
    if (tenants.enter("a", {.prompt_tokens = prompt}, now_us)) continue;
    taken += prompt, largest = std::max(largest, prompt);
  }
  const double filled = static_cast<double>(rate) * (1 + static_cast<double>(now_us) / kMinute);
  RC_ASSERT(static_cast<double>(taken) <= filled + static_cast<double>(largest));
}

TEST(TenantsDeathTest, LeavingWithoutHavingEntered) {
  Tenants tenants(SIZE_MAX, {});
  EXPECT_DEATH(tenants.leave("a", 1), "has not entered");
}

}  // namespace
}  // namespace tally::serve
