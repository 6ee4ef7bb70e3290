// Limits of a key over the wire: who is refused, what is paid for, and what comes back.

#include "base/sha256.h"
#include "serve/rig_test_support.h"

namespace tally::serve {
namespace {

// A token a second, so that what is left can be told though time goes on.
constexpr uint64_t kRate = 60;

RigOptions with_tokens(uint64_t per_minute) {
  RigOptions options;
  options.settings.keys.tokens_per_minute = per_minute;
  options.settings.api_keys = {{"a", base::hex(base::sha256("ka"))}, {"b", base::hex(base::sha256("kb"))}};
  return options;
}

std::string body(size_t prompt_tokens, const std::string& more) {
  std::string ids = "1";
  for (size_t i = 1; i < prompt_tokens; ++i) ids += ",1";
  return R"({"model":"tiny","prompt":[)" + ids + "]," + more + "}";
}

Reply ask(const Rig& rig, const std::string& text, const std::string& key = "ka") {
  return rig.post("/v1/completions", text, "Authorization: Bearer " + key + "\r\n");
}

// What the key has left, by a request that needs a whole minute's: 429 tells it.
size_t left(const Rig& rig) {
  const Reply reply = ask(rig, body(kRate, R"("max_tokens":1)"));
  EXPECT_EQ(reply.status, 429) << reply.body;
  return leading_number(reply.field("x-ratelimit-remaining-tokens"));
}

void expect_left(const Rig& rig, size_t tokens) {
  const size_t now = left(rig);
  EXPECT_GE(now, tokens);
  EXPECT_LE(now, tokens + 3) << "more came back than time gave";
}

TEST(KeyLimits, PromptAndAnswerArePaidOnce) {
  Rig rig(with_tokens(kRate));
  EXPECT_EQ(ask(rig, body(3, R"("max_tokens":7)")).status, 200);
  expect_left(rig, kRate - 10);
  const Reply refused = ask(rig, body(kRate, R"("max_tokens":1)"));
  EXPECT_NE(refused.body.find("rate_limit_exceeded"), std::string::npos);
  EXPECT_EQ(refused.field("x-ratelimit-limit-tokens"), "60");
  EXPECT_GE(leading_number(refused.field("retry-after")), 1u);
  EXPECT_EQ(refused.field("x-should-retry"), "");
  EXPECT_EQ(ask(rig, body(3, R"("max_tokens":7)"), "kb").status, 200) << "another key has its own";
}

TEST(KeyLimits, ChoicesShareThePrompt) {
  Rig rig(with_tokens(kRate));
  EXPECT_EQ(ask(rig, body(10, R"("max_tokens":4,"n":3)")).status, 200);
  expect_left(rig, kRate - 10 - 12);
}

TEST(KeyLimits, StreamsPayToo) {
  Rig rig(with_tokens(kRate));
  EXPECT_EQ(ask(rig, body(5, R"("max_tokens":6,"stream":true)")).status, 200);
  expect_left(rig, kRate - 11);
}

TEST(KeyLimits, WhatWasNotTakenIsNotPaid) {
  Rig rig(with_tokens(kRate));
  rig.engine.pool_too_small = true;
  EXPECT_EQ(ask(rig, body(20, R"("max_tokens":4)")).status, 400);
  EXPECT_EQ(ask(rig, body(20, R"("max_tokens":4,"n":-1)")).status, 400);
  rig.engine.pool_too_small = false;
  EXPECT_EQ(ask(rig, body(kRate, R"("max_tokens":1)")).status, 200) << "all is there";
}

TEST(KeyLimits, WhoLeavesTheQueueGetsThePromptBack) {
  Rig rig(with_tokens(kRate));
  rig.engine.frozen = true;
  Client client(rig.port());
  client.send(
      Rig::post_bytes("/v1/completions", body(20, R"("max_tokens":4)"), "Authorization: Bearer ka\r\n"));
  ASSERT_TRUE(eventually([&] { return rig.engine.live() == 1; }));
  expect_left(rig, kRate - 20);
  client.close();
  ASSERT_TRUE(eventually([&] { return rig.engine.live() == 0; }));
  rig.engine.frozen = false;
  EXPECT_TRUE(eventually([&] { return ask(rig, body(kRate, R"("max_tokens":1)")).status == 200; }));
}

TEST(KeyLimits, WhoLeavesAStreamPaysForWhatWasComputed) {
  RigOptions options = with_tokens(kRate);
  options.engine.step_us = 5000;
  Rig rig(options);
  Client client(rig.port());
  client.send(Rig::post_bytes("/v1/completions", body(20, R"("max_tokens":400,"stream":true)"),
                              "Authorization: Bearer ka\r\n"));
  ASSERT_TRUE(client.wait_for("data: "));
  client.close();
  ASSERT_TRUE(eventually([&] { return rig.engine.live() == 0 && rig.engine.cancels == 1; }));
  EXPECT_LT(left(rig), kRate - 20 + 3) << "the prompt and a token at least";
}

TEST(KeyLimits, RequestsAtOnceOfOneKey) {
  RigOptions options = with_tokens(0);
  options.settings.keys.requests = 1;
  Rig rig(options);
  rig.engine.frozen = true;
  Client client(rig.port());
  client.send(
      Rig::post_bytes("/v1/completions", body(2, R"("max_tokens":4)"), "Authorization: Bearer ka\r\n"));
  ASSERT_TRUE(eventually([&] { return rig.engine.live() == 1; }));
  const Reply refused = ask(rig, body(2, R"("max_tokens":4)"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.field("retry-after"), "1");
  EXPECT_EQ(refused.field("x-ratelimit-limit-requests"), "1");
  EXPECT_EQ(refused.field("x-ratelimit-remaining-requests"), "0");
  EXPECT_EQ(ask(rig, R"({"prompt":"x"})").status, 400) << "what is no request is told first";
  rig.engine.frozen = false;
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_TRUE(eventually([&] { return ask(rig, body(2, R"("max_tokens":4)")).status == 200; }));
}

TEST(KeyLimits, WithoutKeysEveryoneIsOne) {
  RigOptions options;
  options.settings.keys.requests = 1;
  Rig rig(options);
  rig.engine.frozen = true;
  Client client(rig.port());
  client.send(Rig::post_bytes("/v1/completions", body(2, R"("max_tokens":4)")));
  ASSERT_TRUE(eventually([&] { return rig.engine.live() == 1; }));
  EXPECT_EQ(rig.post("/v1/completions", body(2, R"("max_tokens":4)")).status, 429);
}

}  // namespace
}  // namespace tally::serve
