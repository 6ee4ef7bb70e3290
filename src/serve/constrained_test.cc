// From the fields of a constraint to the engine, or to a refusal.
#include "sample/constraint.h"
#include "serve/rig_test_support.h"

#include <memory>
#include <set>

namespace tally::serve {
namespace {

using nlohmann::json;

// Before the first of the constraints that take a second is compiled.
#ifdef TALLY_INSTRUMENTED
constexpr int64_t kWhileItCompilesUs = 20'000'000;
#else
constexpr int64_t kWhileItCompilesUs = 900'000;
#endif

sample::ConstraintVocabulary tiny_words() {
  sample::ConstraintVocabulary words;
  const text::Tokenizer& tokenizer = tiny_tokenizer();
  for (size_t i = 0; i < tokenizer.vocab_size(); ++i)
    words.bytes.emplace_back(tokenizer.bytes(TokenId{static_cast<int32_t>(i)}));
  words.end_ids.assign(tokenizer.eog().begin(), tokenizer.eog().end());
  return words;
}

std::string asking(const std::string& fields) {
  return R"({"model":"tiny","prompt":"x","max_tokens":2,)" + fields + "}";
}
constexpr const char* kChoice = R"("structured_outputs":{"choice":["a","b"]})";

json error_of(const Reply& reply) { return json::parse(reply.body)["error"]; }

TEST(Constrained, WithoutACompilerItIsNotSupported) {
  Rig rig;
  const Reply reply = rig.post("/v1/completions", asking(kChoice));
  EXPECT_EQ(reply.status, 501);
  EXPECT_EQ(error_of(reply)["param"], "structured_outputs.choice");
  EXPECT_EQ(reply.field("x-should-retry"), "false");
}

TEST(Constrained, TheEngineGetsWhatWasCompiledOnce) {
  sample::ConstraintCompiler compiler(tiny_words(), {}, {});
  RigOptions options;
  options.constraints = &compiler;
  Rig rig(options);
  ASSERT_EQ(rig.post("/v1/completions", asking(kChoice)).status, 200);
  const auto first = rig.engine.last_request.constraint;
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(compiler.find(sample::choice_of(std::vector<std::string>{"a", "b"})), first);
  ASSERT_EQ(rig.post("/v1/completions", asking(kChoice)).status, 200);
  EXPECT_EQ(rig.engine.last_request.constraint, first);
  ASSERT_EQ(rig.post("/v1/completions", asking(R"("seed":1)")).status, 200);
  EXPECT_EQ(rig.engine.last_request.constraint, nullptr);
}

TEST(Constrained, WhatDoesNotCompileIsToldLateAndWell) {
  sample::ConstraintCompiler compiler(tiny_words(), {}, {});
  RigOptions options;
  options.constraints = &compiler;
  Rig rig(options);
  for (const char* stream : {"", R"("stream":true,)"}) {
    const Reply reply =
        rig.post("/v1/completions", asking(stream + std::string(R"("structured_outputs":{"regex":"(a"})")),
                 "x-request-id: mine\r\n");
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.field("x-request-id"), "mine");
    EXPECT_EQ(error_of(reply)["code"], "invalid_schema");
    EXPECT_EQ(error_of(reply)["param"], "structured_outputs.regex");
  }
  const std::string metrics = rig.get("/metrics").body;
  EXPECT_NE(metrics.find("tally_requests_refused_total{code=\"invalid_schema\"} 2"), std::string::npos);
}

// A constraint that takes as long as it may: references in a long row.
std::string slow_request(int number) {
  std::string schema = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int d = 0; d < 4000; ++d)
    schema += "\"d" + std::to_string(d) + R"(":{"$ref":"#/$defs/d)" + std::to_string(d + 1) + "\"},";
  schema += R"("d4000":{"const":)" + std::to_string(number) + "}}}";
  return Rig::post_bytes(
      "/v1/completions",
      asking(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" + schema +
             "}}"));
}
bool is_deferred(const Rig& rig, const std::string& count) {
  return rig.get("/metrics").body.find("reason=\"deferred\"} " + count) != std::string::npos;
}

TEST(Constrained, TheEndDoesNotWaitForACompilation) {
  sample::ConstraintLimits limits;
  limits.compile_us = 60'000'000, limits.compile_bytes = size_t{1} << 30;
  sample::ConstraintCompiler compiler(tiny_words(), limits, {});
  RigOptions options;
  options.constraints = &compiler;
  Rig rig(options);
  Client client(rig.port());
  client.send(slow_request(1));
  ASSERT_TRUE(eventually([&] { return is_deferred(rig, "1"); }));
  const int64_t begin = base::now_us();
  rig.server->stop();
  rig.server->stop();
  rig.join();
  EXPECT_LT(base::now_us() - begin, 5'000'000);  // of the 0.8 s that last frames have
  EXPECT_FALSE(compiler.compile({sample::ConstraintSpec::Kind::kRegex, "a"}));
}

// Constraints that take a while: probes and other requests do not wait, and the queue for them is bounded.
TEST(Constrained, CompilingKeepsNobodyElseWaiting) {
  sample::ConstraintLimits limits;
  limits.compile_bytes = size_t{1} << 30;
  sample::ConstraintCompiler compiler(tiny_words(), limits, {});
  RigOptions options;
  options.constraints = &compiler;
  options.max_queue = 2;
  options.settings.threads = 1;
  Rig rig(options);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Client>(rig.port()));
    clients.back()->send(slow_request(i));
  }
  const int64_t begin = base::now_us();
  EXPECT_EQ(rig.post("/v1/completions", asking(R"("seed":1)")).status, 200);
  EXPECT_EQ(rig.get("/livez").status, 200);
  EXPECT_TRUE(eventually([&] { return is_deferred(rig, "2"); }));
  EXPECT_LT(base::now_us() - begin, kWhileItCompilesUs);
  std::multiset<int> answers;
  for (const auto& client : clients) answers.insert(client->read_reply().status);
  EXPECT_EQ(answers.count(503), 2u);
  EXPECT_EQ(answers.count(400) + answers.count(200), 2u);
  EXPECT_TRUE(is_deferred(rig, "0"));
}

}  // namespace
}  // namespace tally::serve
