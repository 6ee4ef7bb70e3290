// Chat and text completions over real sockets: shapes, streams, stops, logprobs, receipts.

#include "serve/rig_test_support.h"

namespace tally::serve {
namespace {

using nlohmann::json;

const char* const kChat = R"({"model":"tiny","messages":[{"role":"user","content":"Hi"}],"max_tokens":8%s})";
std::string chat(const std::string& more) {
  std::string body = kChat;
  return body.replace(body.find("%s"), 2, more);
}

void expect_stages_add_up(const json& receipt) {
  double sum = 0;
  for (const char* stage : {"queue_ms", "tokenize_ms", "prefill_ms", "stalled_ms", "decode_ms", "sample_ms",
                            "detokenize_ms", "send_ms"})
    sum += receipt.at(stage).get<double>();
  const double total = receipt.at("total_ms");
  EXPECT_NEAR(sum, total, std::max(1.0, 0.01 * total));
}

TEST(Completions, ChatNotStreamed) {
  Rig rig({.settings = {}, .engine = spelling("Hello there"), .loaded = true});
  const Reply reply = rig.post("/v1/chat/completions", chat(""));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json answer = json::parse(reply.body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["id"].get<std::string>().substr(0, 9), "chatcmpl-");
  EXPECT_EQ(answer["id"].get<std::string>().size(), 9u + 32u);
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_EQ(answer["system_fingerprint"].get<std::string>().size(), 6u + 12u);
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "Hello there");
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  const size_t tokens = tiny_tokenizer().encode("Hello there", false, false).value().size();
  EXPECT_EQ(answer["usage"]["completion_tokens"], tokens + 1);  // the end token counts
  EXPECT_EQ(answer["usage"]["prompt_tokens"], rig.engine.last_request.prompt.size());
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(answer["timings"]["predicted_n"], tokens + 1);
  EXPECT_EQ(answer["receipt"]["seed"], rig.engine.last_request.params.seed);
  expect_stages_add_up(answer["receipt"]);
  EXPECT_EQ(reply.field("x-request-id").size(), 32u);
}

TEST(Completions, ControlTokensOfUsersStayText) {
  Rig rig;
  rig.post("/v1/chat/completions",
           R"({"model":"tiny","messages":[{"role":"user","content":"<|im_end|>"}],"max_tokens":1})");
  const auto& prompt = rig.engine.last_request.prompt;
  const TokenId end = tiny_tokenizer().encode("<|im_end|>", false, true).value().at(0);
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), end), 1);  // the template's own, not the user's
}

TEST(Completions, StreamShape) {
  Rig rig({.settings = {}, .engine = spelling("Hello there"), .loaded = true});
  const Reply reply = rig.post("/v1/chat/completions", chat(R"(,"stream":true)"));
  ASSERT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.field("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.field("cache-control"), "no-cache");
  EXPECT_EQ(reply.field("x-accel-buffering"), "no");
  EXPECT_FALSE(reply.field("x-request-id").empty());
  const auto all = events(reply.body);
  ASSERT_GE(all.size(), 3u);
  EXPECT_EQ(all.back(), "[DONE]");
  std::string text;
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    const json& event = all[i];
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], all[0]["id"]);
    EXPECT_FALSE(event.contains("usage"));
    const json& choice = event["choices"][0];
    EXPECT_EQ(choice["delta"].contains("role"), i == 0);
    text += choice["delta"].value("content", "");
    EXPECT_EQ(choice["finish_reason"].is_null(), i + 2 < all.size());
    EXPECT_EQ(event.contains("receipt"), i + 2 == all.size());
    EXPECT_EQ(event.contains("timings"), i + 2 == all.size());
  }
  EXPECT_EQ(text, "Hello there");
  expect_stages_add_up(all[all.size() - 2]["receipt"]);
}

TEST(Completions, TheLastTextCarriesTheFinishReason) {
  Rig rig({.settings = {}, .engine = spelling("Hello there and so on"), .loaded = true});
  const auto all = events(
      rig.post("/v1/completions", R"({"model":"tiny","prompt":"a","max_tokens":2,"stream":true})").body);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_TRUE(all[0]["choices"][0]["finish_reason"].is_null());
  EXPECT_FALSE(all[1]["choices"][0]["text"].get<std::string>().empty());
  EXPECT_EQ(all[1]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(all[1]["object"], "text_completion");
}

TEST(Completions, UsageComesLastAndTallyCoversEveryToken) {
  Rig rig({.settings = {}, .engine = spelling("Hello there"), .loaded = true});
  const auto all = events(
      rig.post(
             "/v1/chat/completions",
             chat(
                 R"(,"stream":true,"stream_options":{"include_usage":true,"include_tally":true,"continuous_usage_stats":true})"))
          .body);
  ASSERT_GE(all.size(), 4u);
  const json& usage = all[all.size() - 2];
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_TRUE(usage.contains("receipt"));
  size_t tokens = 0;
  for (size_t i = 0; i + 2 < all.size(); ++i) {
    EXPECT_FALSE(all[i].contains("receipt"));
    tokens += all[i]["tally"]["tokens"].get<size_t>();
    EXPECT_GT(all[i]["tally"]["t_us"].get<int64_t>(), 0);
  }
  EXPECT_EQ(usage["usage"]["completion_tokens"], tokens);
}

TEST(Completions, StreamedTextEqualsWholeText) {
  Rig rig;
  for (int tokens : {1, 2, 17, 200}) {
    const std::string body = R"({"model":"tiny","prompt":"Once","max_tokens":)" + std::to_string(tokens);
    const std::string whole = json::parse(rig.post("/v1/completions", body + "}").body)["choices"][0]["text"];
    std::string joined;
    for (const json& event : events(rig.post("/v1/completions", body + R"(,"stream":true})").body))
      if (event != "[DONE]") joined += event["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(joined, whole);
  }
}

TEST(Completions, StopStringIsCutAndCancels) {
  Rig rig({.settings = {}, .engine = spelling("one two three four five six seven eight"), .loaded = true});
  const std::string body = R"({"model":"tiny","prompt":"x","max_tokens":300,"stop":["zzz"," three"])";
  const json whole = json::parse(rig.post("/v1/completions", body + "}").body);
  EXPECT_EQ(whole["choices"][0]["text"], "one two");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(whole["choices"][0]["stop_reason"], " three");
  const size_t through = tiny_tokenizer().encode("one two three", false, false).value().size();
  EXPECT_EQ(whole["usage"]["completion_tokens"], through);
  const std::string streamed = rig.post("/v1/completions", body + R"(,"stream":true,"logprobs":0})").body;
  EXPECT_EQ(streamed.find("three\",\"logprobs"), std::string::npos);
  std::string text;
  size_t logprobs = 0;
  for (const json& event : events(streamed)) {
    if (event == "[DONE]") continue;
    text += event["choices"][0]["text"].get<std::string>();
    logprobs += event["choices"][0]["logprobs"]["tokens"].size();
    for (const json& token : event["choices"][0]["logprobs"]["tokens"])
      EXPECT_EQ(token.get<std::string>().find("three"), std::string::npos);
  }
  EXPECT_EQ(text, "one two");
  EXPECT_EQ(logprobs, tiny_tokenizer().encode("one two", false, false).value().size());
  EXPECT_TRUE(eventually([&] { return rig.engine.live() == 0; }));
}

TEST(Completions, StopTokenIsTheReason) {
  Rig rig({.settings = {}, .engine = spelling("one two three"), .loaded = true});
  const TokenId two = tiny_tokenizer().encode("one two", false, false).value().back();
  const json answer =
      json::parse(rig.post("/v1/completions", R"({"model":"tiny","prompt":"x","stop_token_ids":[)" +
                                                  std::to_string(raw(two)) + "]}")
                      .body);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["stop_reason"], raw(two));
}

TEST(Completions, ChatLogprobs) {
  Rig rig({.settings = {}, .engine = spelling("Hello there"), .loaded = true});
  const json answer =
      json::parse(rig.post("/v1/chat/completions", chat(R"(,"logprobs":true,"top_logprobs":2)")).body);
  const json& content = answer["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content.size(), answer["usage"]["completion_tokens"]);
  EXPECT_EQ(content[0]["logprob"], -0.125);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  std::string bytes;
  for (const json& b : content[0]["bytes"]) bytes += static_cast<char>(b.get<int>());
  EXPECT_EQ(bytes, content[0]["token"].get<std::string>());
  EXPECT_TRUE(answer["choices"][0]["logprobs"]["refusal"].is_null());
}

TEST(Completions, TextLogprobs) {
  Rig rig({.settings = {}, .engine = spelling("h\xC3\xA9 world"), .loaded = true});
  const json answer = json::parse(
      rig.post("/v1/completions", R"({"model":"tiny","prompt":"x","max_tokens":50,"logprobs":20})").body);
  const json& logprobs = answer["choices"][0]["logprobs"];
  const size_t n = answer["usage"]["completion_tokens"];
  for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(logprobs[name].size(), n) << name;
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["text_offset"][n - 1], 8);  // code points of "hé world", before the end token
  bool least = false;
  for (const auto& [token, value] : logprobs["top_logprobs"][0].items()) least = least || value == -9999.0;
  EXPECT_TRUE(least);
  EXPECT_LE(logprobs["top_logprobs"][0].size(), 21u);
}

TEST(Completions, ManyPromptsKeepTheirIndex) {
  Rig rig;
  const std::string prompts = R"([[300,301],[302],[303,304,305]])";
  const json whole = json::parse(
      rig.post("/v1/completions", R"({"model":"tiny","max_tokens":5,"prompt":)" + prompts + "}").body);
  ASSERT_EQ(whole["choices"].size(), 3u);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 15);
  std::vector<std::string> texts(3);
  std::vector<int> ends(3);
  const auto all = events(
      rig.post("/v1/completions", R"({"model":"tiny","max_tokens":5,"stream":true,"prompt":)" + prompts + "}")
          .body);
  for (const json& event : all) {
    if (event == "[DONE]") continue;
    const json& choice = event["choices"][0];
    texts[choice["index"]] += choice["text"].get<std::string>();
    ends[choice["index"]] += !choice["finish_reason"].is_null();
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(whole["choices"][i]["index"], i);
    EXPECT_EQ(whole["choices"][i]["text"], texts[i]);
    EXPECT_EQ(ends[i], 1);
  }
  EXPECT_TRUE(all[all.size() - 2].contains("receipt"));
}

TEST(Completions, ModelOutputDoesNotBreakFraming) {
  Rig rig({.settings = {}, .engine = spelling("\n\ndata: [DONE]\n\n\"x"), .loaded = true});
  std::string text;
  const auto all = events(rig.post("/v1/completions", R"({"model":"tiny","prompt":"x","stream":true})").body);
  for (size_t i = 0; i + 1 < all.size(); ++i) text += all[i]["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(text, "\n\ndata: [DONE]\n\n\"x");
}

TEST(Completions, FailureBeforeTheFirstByteIsAStatus) {
  const std::pair<engine::Finish, int> cases[] = {{engine::Finish::kNonFinite, 500},
                                                  {engine::Finish::kDeadEnd, 500},
                                                  {engine::Finish::kInternal, 500},
                                                  {engine::Finish::kDeadline, 504},
                                                  {engine::Finish::kShutdown, 503}};
  for (const auto& [finish, status] : cases) {
    RigOptions options;
    options.engine.fail_with = finish;
    Rig rig(options);
    const Reply reply = rig.post("/v1/chat/completions", chat(R"(,"stream":true)"));
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(reply.field("x-should-retry"), status == 503 ? "" : "false");
    EXPECT_FALSE(json::parse(reply.body)["error"]["code"].get<std::string>().empty());
  }
}

TEST(Completions, FailureInAStreamIsAnErrorEvent) {
  RigOptions options;
  options.engine.fail_with = engine::Finish::kNonFinite;
  options.engine.fail_at = 10;
  options.engine.step_us = 3000;
  Rig rig(options);
  Client client(rig.port());
  client.send(Rig::post_bytes("/v1/completions", R"({"model":"tiny","prompt":"x","stream":true})"));
  const Reply reply = client.read_reply();
  EXPECT_TRUE(reply.complete);
  const auto all = events(reply.body);
  ASSERT_GE(all.size(), 3u);
  EXPECT_EQ(all[all.size() - 2]["error"]["code"], "non_finite_logits");
  EXPECT_EQ(all.back(), "[DONE]");
  EXPECT_EQ(reply.body.find("\"stop\""), std::string::npos);
  EXPECT_TRUE(client.at_end());
}

TEST(Completions, WithoutReceipts) {
  RigOptions options;
  options.settings.receipts = false;
  Rig rig(options);
  const json answer = json::parse(rig.post("/v1/chat/completions", chat("")).body);
  EXPECT_FALSE(answer.contains("receipt"));
  EXPECT_FALSE(answer.contains("timings"));
}

TEST(Completions, Refusals) {
  RigOptions options;
  options.engine.max_queue = 1;
  Rig rig(options);
  const Reply too_long = rig.post("/v1/completions", R"({"model":"tiny","prompt":[1,2,3],"max_tokens":600})");
  EXPECT_EQ(too_long.status, 400);
  const json error = json::parse(too_long.body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["message"],
            "This model's maximum context length is 512 tokens. However, you requested 603 tokens (3 in the "
            "prompt, 600 in the "
            "completion). Please reduce the length of the prompt or of the completion.");
  std::string ids = "300";
  for (int i = 1; i < 512; ++i) ids += ",300";
  EXPECT_EQ(rig.post("/v1/completions", R"({"model":"tiny","prompt":[)" + ids + "]}").status, 400);
  EXPECT_EQ(rig.post("/v1/completions", R"({"model":"tiny","prompt":[)" + ids.substr(4) + "]}").status, 200);

  rig.engine.pool_too_small = true;
  const Reply pool = rig.post("/v1/completions", R"({"model":"tiny","prompt":"x"})");
  EXPECT_EQ(pool.status, 400);
  EXPECT_NE(pool.body.find("needs 143 KV blocks, the pool has 120"), std::string::npos);
  rig.engine.pool_too_small = false;

  rig.engine.frozen = true;
  Client first(rig.port());
  first.send(Rig::post_bytes("/v1/completions", R"({"model":"tiny","prompt":"x"})"));
  ASSERT_TRUE(eventually([&] { return rig.engine.live() == 1; }));
  const Reply full = rig.post("/v1/completions", R"({"model":"tiny","prompt":"x"})");
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.field("retry-after"), "7");
  EXPECT_EQ(json::parse(full.body)["error"]["code"], "overloaded");
  rig.engine.frozen = false;
  EXPECT_EQ(first.read_reply().status, 200);
}

// A fake answer is a byte a token, and nothing is given back.
TEST(Completions, AnswersThatDoNotFit) {
  Rig rig;
  rig.engine.answer_room = 100;
  const Reply full = rig.post("/v1/completions", R"({"model":"tiny","prompt":"x","max_tokens":101})");
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.field("retry-after"), "7");
  EXPECT_EQ(json::parse(full.body)["error"]["code"], "overloaded");
  EXPECT_NE(full.body.find("101 bytes are needed, 100 are left"), std::string::npos) << full.body;
  EXPECT_EQ(rig.post("/v1/completions", R"({"model":"tiny","prompt":"x","max_tokens":5})").status, 200);

  // One prompt alone would fit; the list can never, however empty the server is.
  rig.engine.answer_room = kAnswerBytesMax;
  std::string prompts = R"("x")";
  const size_t count = kAnswerBytesMax / (16 * 500) + 1;
  for (size_t i = 1; i < count; ++i) prompts += R"(,"x")";
  const Reply never =
      rig.post("/v1/completions", R"({"model":"tiny","n":16,"max_tokens":500,"prompt":[)" + prompts + "]}");
  EXPECT_EQ(never.status, 400) << never.body;
  const json error = json::parse(never.body)["error"];
  EXPECT_EQ(error["code"], "invalid_value");
  EXPECT_EQ(error["param"], "max_tokens");
  const std::string sum = std::to_string(count * 16 * 500) + " bytes";
  EXPECT_NE(never.body.find(sum), std::string::npos) << never.body;
  EXPECT_TRUE(eventually([&] { return rig.engine.live() == 0; }));
}

TEST(Completions, TokenizerRoutesAndModels) {
  Rig rig;
  const json tokens = json::parse(rig.post("/tokenize", R"({"prompt":"Hello there"})").body);
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], 512);
  const json text = json::parse(
      rig.post("/detokenize", R"({"model":"tiny","tokens":)" + tokens["tokens"].dump() + "}").body);
  EXPECT_EQ(text["prompt"], "Hello there");
  EXPECT_EQ(rig.post("/detokenize", R"({"tokens":[99999]})").status, 400);
  const json models = json::parse(rig.get("/v1/models").body);
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["root"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 512);
  EXPECT_EQ(json::parse(rig.get("/v1/models/tiny").body)["id"], "tiny");
  EXPECT_EQ(rig.get("/v1/models/other").status, 404);
  EXPECT_EQ(json::parse(rig.post("/reset_prefix_cache", "").body)["freed_blocks"], 3);
  EXPECT_EQ(json::parse(rig.get("/version").body)["version"], "0.1.0");
}

TEST(Completions, TokenizerInfoAndTheIdsOfItsTokens) {
  Rig rig;
  const auto info = nlohmann::json::parse(rig.get("/tokenizer_info").body);
  EXPECT_EQ(info["chat_template"], kTinyTemplate);
  EXPECT_EQ(info["vocab_size"], tiny_tokenizer().vocab_size());
  EXPECT_EQ(info["model_max_length"], 512);
  EXPECT_EQ(info["add_bos_token"], tiny_tokenizer().adds_bos());
  EXPECT_EQ(info["pad_token"], nullptr);
  ASSERT_TRUE(tiny_tokenizer().eos());
  EXPECT_EQ(info["eos_token"], tiny_tokenizer().piece(*tiny_tokenizer().eos()));
  const auto ids = [&](const std::string& prompt, bool special) {
    const nlohmann::json body = {{"prompt", prompt}, {"add_special_tokens", special}};
    return nlohmann::json::parse(rig.post("/tokenize", body.dump()).body)["tokens"];
  };
  const std::string eos = info["eos_token"];
  EXPECT_EQ(ids(eos, false), nlohmann::json({raw(*tiny_tokenizer().eos())}));
  const auto text = ids("x" + eos, false);
  EXPECT_GT(text.size(), 2u) << "inside a text it is text";
  EXPECT_EQ(std::count(text.begin(), text.end(), raw(*tiny_tokenizer().eos())), 0);
  EXPECT_GT(ids(eos, true).size(), 1u) << "as a prompt it is text";
}

}  // namespace
}  // namespace tally::serve
