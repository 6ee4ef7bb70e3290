// From the fields of a constraint to the engine, or to a refusal.
#include "base/sha256.h"
#include "sample/constraint.h"
#include "serve/rig_test_support.h"

#include <memory>

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

// Of two keys, where a rig has any.
constexpr const char* kA = "Authorization: Bearer ka\r\n";
constexpr const char* kB = "Authorization: Bearer kb\r\n";

// A constraint that takes as long as it may: references in a long row.
constexpr int kManyReferences = 4000;
std::string slow_request(int number, const std::string& fields = "", int references = kManyReferences) {
  std::string schema = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int d = 0; d < references; ++d)
    schema += "\"d" + std::to_string(d) + R"(":{"$ref":"#/$defs/d)" + std::to_string(d + 1) + "\"},";
  schema += "\"d" + std::to_string(references) + R"(":{"const":)" + std::to_string(number) + "}}}";
  return Rig::post_bytes(
      "/v1/completions",
      asking(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" + schema +
             "}}"),
      fields);
}
bool is_deferred(const Rig& rig, const std::string& count) {
  return rig.get("/metrics", kA).body.find("reason=\"deferred\"} " + count) != std::string::npos;
}

// With these it is a minute.
sample::ConstraintLimits unhurried() {
  sample::ConstraintLimits limits;
  limits.compile_us = 60'000'000, limits.compile_bytes = limits.matcher_bytes = size_t{1} << 30;
  return limits;
}

TEST(Constrained, TheEndDoesNotWaitForACompilation) {
  sample::ConstraintCompiler compiler(tiny_words(), unhurried(), {});
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

// Constraints that take a while: probes and other requests do not wait, and the queue for them is the queue.
TEST(Constrained, CompilingKeepsNobodyElseWaiting) {
  sample::ConstraintLimits limits;
  limits.compile_bytes = size_t{1} << 30;
  sample::ConstraintCompiler compiler(tiny_words(), limits, {});
  RigOptions options;
  options.constraints = &compiler;
  options.max_queue = 3;
  options.settings.threads = 1;
  Rig rig(options);
  std::vector<std::unique_ptr<Client>> clients;
  const auto send = [&](int number) {
    clients.push_back(std::make_unique<Client>(rig.port()));
    clients.back()->send(slow_request(number));
  };
  const int64_t begin = base::now_us();
  send(0), send(1);
  ASSERT_TRUE(eventually([&] { return is_deferred(rig, "2"); }));
  EXPECT_EQ(rig.post("/v1/completions", asking(R"("seed":1)")).status, 200);
  EXPECT_EQ(rig.get("/livez").status, 200);
  rig.engine.waiting = 1;  // in the engine: with the two there are three
  send(2);
  EXPECT_EQ(clients.back()->read_reply().status, 503);
  EXPECT_EQ(rig.post("/v1/completions", asking(R"("seed":1)")).status, 503);
  EXPECT_LT(base::now_us() - begin, kWhileItCompilesUs);
  for (int i = 0; i < 2; ++i) {
    const int status = clients[static_cast<size_t>(i)]->read_reply().status;
    EXPECT_TRUE(status == 200 || status == 400) << status;
  }
  EXPECT_TRUE(eventually([&] { return is_deferred(rig, "0"); }));
}

// A compiler that is busy for as long as the test takes, and a server that asks it.
struct BusyRig {
  explicit BusyRig(RigOptions options = {}) : compiler(tiny_words(), unhurried(), {}), rig(with(options)) {
    busy = std::make_unique<Client>(rig.port());
    busy->send(slow_request(0, kA));
    EXPECT_TRUE(eventually([&] { return is_deferred(rig, "1"); }));
  }
  RigOptions with(RigOptions options) {
    options.constraints = &compiler;
    options.settings.api_keys = {{"a", base::hex(base::sha256("ka"))}, {"b", base::hex(base::sha256("kb"))}};
    return options;
  }
  std::string metrics() const { return rig.get("/metrics", kA).body; }

  sample::ConstraintCompiler compiler;
  Rig rig;
  std::unique_ptr<Client> busy;
};

TEST(Constrained, WhoWaitsForACompilationHasASeat) {
  RigOptions options;
  options.settings.keys.requests = 1;
  BusyRig busy(options);
  const Reply refused = busy.rig.post("/v1/completions", asking(kChoice), kA);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.field("x-ratelimit-limit-requests"), "1");
  Client other(busy.rig.port());
  other.send(Rig::post_bytes("/v1/completions", asking(kChoice), kB));
  EXPECT_TRUE(eventually([&] { return is_deferred(busy.rig, "2"); })) << "another key has its own";
  EXPECT_EQ(busy.rig.post("/v1/completions", asking(R"("seed":1)"), kB).status, 429);
  other.close();
  EXPECT_TRUE(eventually([&] { return is_deferred(busy.rig, "1"); }));
  EXPECT_TRUE(eventually([&] {
    return busy.rig.post("/v1/completions", asking(R"("seed":1)"), kB).status == 200;
  })) << "who leaves gives it back";
}

TEST(Constrained, WhoEndsInTheCompileQueueGetsThePromptBack) {
  RigOptions options;
  options.settings.keys.tokens_per_minute = 60;
  BusyRig busy(options);
  std::string ids = "1";
  for (int i = 1; i < 50; ++i) ids += ",1";
  const std::string waits = R"({"model":"tiny","max_tokens":1,"prompt":[)" + ids + "]," + kChoice + "}";
  EXPECT_EQ(busy.rig.post("/v1/completions", waits, kB + std::string("x-request-timeout: 0.05\r\n")).status,
            504);
  const std::string plain = R"({"model":"tiny","max_tokens":1,"prompt":[)" + ids + "]}";
  EXPECT_EQ(busy.rig.post("/v1/completions", plain, kB).status, 200);
  EXPECT_EQ(busy.rig.post("/v1/completions", plain, kB).status, 429);
}

TEST(Constrained, DeadlinesHoldBehindACompilation) {
  BusyRig busy;
  for (const char* stream : {"", R"("stream":true,)"}) {
    const Reply late = busy.rig.post("/v1/completions", asking(stream + std::string(kChoice)),
                                     kB + std::string("x-request-timeout: 0.05\r\nx-request-id: mine\r\n"));
    EXPECT_EQ(late.status, 504);
    EXPECT_EQ(error_of(late)["code"], "deadline_exceeded");
    EXPECT_EQ(late.field("x-should-retry"), "false");
    EXPECT_EQ(late.field("x-request-id"), "mine");
  }
  EXPECT_NE(busy.metrics().find("tally_requests_ended_total{reason=\"deadline\"} 2"), std::string::npos);
}

TEST(Constrained, WhatIsWrongAnywayIsToldBeforeACompilation) {
  BusyRig busy;
  const Reply header =
      busy.rig.post("/v1/completions", asking(kChoice), kB + std::string("x-request-timeout: soon\r\n"));
  EXPECT_EQ(header.status, 400);
  EXPECT_EQ(error_of(header)["param"], "x-request-timeout");
  const Reply length =
      busy.rig.post("/v1/completions",
                    R"({"model":"tiny","prompt":"x","max_tokens":4096,)" + std::string(kChoice) + "}", kB);
  EXPECT_EQ(error_of(length)["code"], "context_length_exceeded");
  const Reply choices = busy.rig.post("/v1/completions", asking(R"("n":100,)" + std::string(kChoice)), kB);
  EXPECT_EQ(error_of(choices)["param"], "n");
}

TEST(Constrained, TheDrainDeadlineIsToldToWhoWaitsForACompilation) {
  RigOptions options;
  options.settings.drain_timeout_ms = 100;
  BusyRig busy(options);
  Client behind(busy.rig.port());
  behind.send(Rig::post_bytes("/v1/completions", asking(R"("stream":true,)" + std::string(kChoice)), kB));
  ASSERT_TRUE(eventually([&] { return is_deferred(busy.rig, "2"); }));
  busy.rig.server->stop();
  for (Client* client : {busy.busy.get(), &behind}) {
    const Reply reply = client->read_reply();
    ASSERT_EQ(reply.status, 503);
    EXPECT_EQ(error_of(reply)["code"], "shutting_down");
  }
  EXPECT_EQ(busy.rig.join(), 0);
}

// Until then they go on, as all who wait do: the engine takes them in though the server drains.
TEST(Constrained, DrainWaitsForCompilations) {
  constexpr int kSomeReferences = 1000;
  sample::ConstraintCompiler compiler(tiny_words(), unhurried(), {});
  RigOptions options;
  options.constraints = &compiler;
  Rig rig(options);
  Client first(rig.port()), second(rig.port());
  first.send(slow_request(0, "", kSomeReferences));
  second.send(slow_request(1, "", kSomeReferences));
  ASSERT_TRUE(eventually([&] { return is_deferred(rig, "2"); }));
  rig.server->stop();
  EXPECT_EQ(rig.post("/v1/completions", asking(kChoice)).status, 503);
  EXPECT_EQ(first.read_reply().status, 200);
  EXPECT_EQ(second.read_reply().status, 200);
  EXPECT_EQ(rig.join(), 0);
}

}  // namespace
}  // namespace tally::serve
