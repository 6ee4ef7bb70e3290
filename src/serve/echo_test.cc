// Prompts told in front of answers, and their scores: echo, echo with logprobs, prompt_logprobs.

#include "serve/refusal.h"
#include "serve/rig_test_support.h"

namespace tally::serve {
namespace {

using nlohmann::json;

const std::string kPrompt = "h\xC3\xA9 world again";

std::vector<TokenId> prompt_ids() { return tiny_tokenizer().encode(kPrompt, true, false).value(); }

json answer_to(const Rig& rig, const std::string& more, const std::string& prompt = json(kPrompt).dump()) {
  const Reply reply = rig.post("/v1/completions", R"({"model":"tiny","prompt":)" + prompt + more + "}");
  EXPECT_EQ(reply.status, 200) << more << ": " << reply.body;
  return json::parse(reply.body);
}

std::string shown(TokenId id) {
  const json text = std::string(tiny_tokenizer().bytes_with_special(id));
  return json::parse(text.dump(-1, ' ', false, json::error_handler_t::replace));
}

// What the fake engine says of every prompt token, at the front of the lists.
void expect_prompt_entries(const json& logprobs, const std::vector<TokenId>& ids, size_t k) {
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(logprobs["tokens"][i], shown(ids[i]));
    if (i == 0) continue;
    EXPECT_EQ(logprobs["token_logprobs"][i], -0.25 * static_cast<double>(i));
    const json& top = logprobs["top_logprobs"][i];
    EXPECT_LE(top.size(), k + 1);
    // Bytes of a character look alike, and then the likeliest of them is told.
    EXPECT_GE(top[shown(ids[i])], -0.25 * static_cast<double>(i));
    EXPECT_LE(top[shown(ids[i])], -0.25 * static_cast<double>(i) + 0.125 * static_cast<double>(k));
  }
}

TEST(Echo, ThePromptGoesInFront) {
  Rig rig({.settings = {}, .engine = spelling("Hello there"), .loaded = true});
  const json plain = answer_to(rig, R"(,"max_tokens":2)");
  const json answer = answer_to(rig, R"(,"max_tokens":2,"echo":true)");
  EXPECT_EQ(rig.engine.last_request.prompt_logprobs, -1) << "nothing is scored that is not told";
  EXPECT_EQ(answer["choices"][0]["text"], kPrompt + plain["choices"][0]["text"].get<std::string>());
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(answer["usage"], plain["usage"]);
  // Ids say the same as their text.
  EXPECT_EQ(answer_to(rig, R"(,"max_tokens":2,"echo":true)", json(prompt_ids()).dump())["choices"],
            answer["choices"]);
}

TEST(Echo, LogprobsCoverPromptAndAnswer) {
  Rig rig({.settings = {}, .engine = spelling("Hello there"), .loaded = true});
  const std::vector<TokenId> ids = prompt_ids();
  const json answer = answer_to(rig, R"(,"max_tokens":2,"echo":true,"logprobs":3)");
  EXPECT_EQ(rig.engine.last_request.prompt_logprobs, 3);
  const json& choice = answer["choices"][0];
  const json& logprobs = choice["logprobs"];
  for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(logprobs[name].size(), ids.size() + 2) << name;
  expect_prompt_entries(logprobs, ids, 3);
  EXPECT_EQ(logprobs["token_logprobs"][ids.size()], -0.125) << "the first generated one";
  EXPECT_FALSE(choice.contains("prompt_logprobs"));
  // Offsets are code points of the whole text: the tokens' texts stand there.
  const std::u32string text = [&] {
    std::u32string points;
    for (const char c : choice["text"].get<std::string>())
      if ((c & 0xC0) != 0x80) points += static_cast<unsigned char>(c);
    return points;
  }();
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["text_offset"][ids.size()], 14) << "code points of the prompt";
  for (size_t i = 1; i < ids.size() + 2; ++i) {
    EXPECT_LE(logprobs["text_offset"][i - 1], logprobs["text_offset"][i]);
    EXPECT_LE(logprobs["text_offset"][i].get<size_t>(), text.size());
  }
}

TEST(Echo, WhatLmEvalSends) {
  Rig rig({.settings = {}, .engine = spelling("Hello there"), .loaded = true});
  const json answer =
      answer_to(rig, R"(,"max_tokens":1,"logprobs":1,"echo":true,"temperature":0,"seed":1234)",
                "[[300,301,302],[303,304]]");
  ASSERT_EQ(answer["choices"].size(), 2u);
  for (size_t c = 0; c < 2; ++c) {
    const json& logprobs = answer["choices"][c]["logprobs"];
    EXPECT_EQ(answer["choices"][c]["index"], c);
    EXPECT_EQ(logprobs["token_logprobs"].size(), 3 - c + 1) << "one generated entry follows, nothing else";
    EXPECT_EQ(logprobs["top_logprobs"].size(), 3 - c + 1);
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 2);
}

TEST(Echo, APromptAlone) {
  Rig rig;
  const json answer = answer_to(rig, R"(,"max_tokens":0,"echo":true,"logprobs":0,"n":2)");
  EXPECT_TRUE(rig.engine.last_request.prompt_only);
  EXPECT_EQ(rig.engine.last_request.choices, 1u) << "it is computed once";
  ASSERT_EQ(answer["choices"].size(), 2u);
  for (size_t c = 0; c < 2; ++c) {
    const json& choice = answer["choices"][c];
    EXPECT_EQ(choice["index"], c);
    EXPECT_EQ(choice["text"], kPrompt);
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), prompt_ids().size());
    expect_prompt_entries(choice["logprobs"], prompt_ids(), 0);
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
  EXPECT_EQ(answer["timings"]["predicted_n"], 0);
  // It may fill the context, to which a token would have to be added otherwise.
  std::string full = "[1";
  for (uint32_t i = 1; i < rig.engine.info().max_model_len; ++i) full += ",300";
  answer_to(rig, R"(,"max_tokens":0,"echo":true)", full + "]");
  for (const char* more : {R"(,"max_tokens":1,"echo":true)", R"(,"echo":true)"}) {
    const Reply refused =
        rig.post("/v1/completions", R"({"model":"tiny","prompt":)" + full + "]" + more + "}");
    EXPECT_EQ(refused.status, 400);
    EXPECT_NE(refused.body.find("(512 in the prompt, 1 in the completion)"), std::string::npos)
        << refused.body;
  }
  const Reply refused = rig.post(
      "/v1/completions", R"({"model":"tiny","prompt":)" + full + R"(,2],"max_tokens":0,"echo":true})");
  EXPECT_NE(refused.body.find("(513 in the prompt, 0 in the completion)"), std::string::npos) << refused.body;
}

TEST(Echo, AStreamBeginsWithThePrompt) {
  Rig rig({.settings = {}, .engine = spelling("Hello there"), .loaded = true});
  for (const char* more :
       {R"(,"max_tokens":3,"echo":true,"logprobs":2,"n":2)", R"(,"max_tokens":3,"echo":true)",
        R"(,"max_tokens":0,"echo":true,"logprobs":2,"n":2)"}) {
    const json whole = answer_to(rig, more);
    const Reply reply = rig.post("/v1/completions", R"({"model":"tiny","prompt":)" + json(kPrompt).dump() +
                                                        more + R"(,"stream":true})");
    std::vector<json> choices(whole["choices"].size(), {{"text", ""}});
    std::vector<bool> begun(choices.size());
    const std::vector<json> all = events(reply.body);
    EXPECT_EQ(all.back(), "[DONE]");
    for (const json& event : all) {
      if (event == "[DONE]") continue;
      const json& choice = event["choices"][0];
      json& sum = choices[choice["index"].get<size_t>()];
      if (!begun[choice["index"].get<size_t>()]) {
        EXPECT_EQ(choice["text"].get<std::string>().substr(0, kPrompt.size()), kPrompt)
            << "with the first event";
      }
      begun[choice["index"].get<size_t>()] = true;
      sum["text"] = sum["text"].get<std::string>() + choice["text"].get<std::string>();
      sum["finish_reason"] = choice["finish_reason"];
      if (choice["logprobs"].is_null()) continue;
      for (const auto& [name, list] : choice["logprobs"].items())
        for (const json& item : list) sum["logprobs"][name].push_back(item);
    }
    EXPECT_TRUE(all[all.size() - 2].contains("receipt"));
    for (size_t c = 0; c < choices.size(); ++c) {
      const json& wanted = whole["choices"][c];
      EXPECT_EQ(choices[c]["text"], wanted["text"]) << more;
      EXPECT_EQ(choices[c]["finish_reason"], wanted["finish_reason"]) << more;
      if (!wanted["logprobs"].is_null()) {
        EXPECT_EQ(choices[c]["logprobs"], wanted["logprobs"]) << more;
      }
    }
  }
}

// vLLM's list: the token itself and the best, each once.
void expect_list(const json& list, const std::vector<TokenId>& ids, size_t k) {
  ASSERT_EQ(list.size(), ids.size());
  EXPECT_TRUE(list[0].is_null());
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(list[i].size(), std::max<size_t>(k, 1)) << "the last of the best is the token itself";
    const json& own = list[i][std::to_string(raw(ids[i]))];
    EXPECT_EQ(own["logprob"], -0.25 * static_cast<double>(i));
    EXPECT_EQ(own["rank"], i);
    EXPECT_EQ(own["decoded_token"], shown(ids[i]));
    for (size_t t = 0; t + 1 < k; ++t) {
      const auto away = static_cast<int32_t>(k - 1 - t);
      EXPECT_EQ(list[i][std::to_string((raw(ids[i]) + away) % 1024)]["rank"], t + 1);
    }
  }
}

TEST(PromptLogprobs, OfCompletionsAndChats) {
  Rig rig;
  for (const size_t k : {0ul, 1ul, 20ul}) {
    const std::string more = R"(,"max_tokens":1,"n":2,"prompt_logprobs":)" + std::to_string(k);
    const json answer = answer_to(rig, more);
    for (const json& choice : answer["choices"]) {
      expect_list(choice["prompt_logprobs"], prompt_ids(), k);
      EXPECT_EQ(choice["text"].get<std::string>().find(kPrompt), std::string::npos);
      EXPECT_TRUE(choice["logprobs"].is_null());
    }
    const Reply reply =
        rig.post("/v1/chat/completions",
                 R"({"model":"tiny","messages":[{"role":"user","content":"Hi"}])" + more + "}");
    const json chat = json::parse(reply.body);
    expect_list(chat["prompt_logprobs"], rig.engine.last_request.prompt, k);
    EXPECT_FALSE(chat["choices"][0].contains("prompt_logprobs"));
  }
  // Both ways to tell, each with as many as it asked for.
  const json both = answer_to(rig, R"(,"max_tokens":1,"echo":true,"logprobs":1,"prompt_logprobs":5)");
  EXPECT_EQ(rig.engine.last_request.prompt_logprobs, 5);
  EXPECT_EQ(both["choices"][0]["prompt_logprobs"][1].size(), 5u);
  const size_t last = prompt_ids().size() - 1;
  EXPECT_EQ(both["choices"][0]["logprobs"]["top_logprobs"][last].size(), 2u) << "the best and itself";
  EXPECT_FALSE(answer_to(rig, R"(,"max_tokens":1)")["choices"][0].contains("prompt_logprobs"));
}

// An answer is held as a whole: what it may tell is bounded, and each factor counts.
TEST(PromptLogprobs, HowManyMayBeTold) {
  const auto judge = [](int listed, int echoed, uint32_t n, uint64_t tokens, bool is_chat = false) {
    openai::Options options;
    options.choices.n = n, options.choices.echo = echoed >= 0, options.choices.prompt_logprobs = listed;
    options.params.logprobs = echoed;
    const auto error = judge_scores(options, is_chat, tokens);
    return error ? error->param : std::string();
  };
  EXPECT_EQ(judge(15, -1, 16, 4096), "");
  EXPECT_EQ(judge(15, -1, 16, 4097), "prompt_logprobs");
  EXPECT_EQ(judge(-1, 15, 16, 4096), "");
  EXPECT_EQ(judge(-1, 16, 16, 4096), "logprobs");
  EXPECT_EQ(judge(0, 15, 16, 4096), "prompt_logprobs");
  EXPECT_EQ(judge(-1, -1, 16, UINT32_MAX), "");
  EXPECT_EQ(judge(15, -1, 16, 4097, true), "") << "a chat's is told once";
  FakeOptions engine;
  engine.max_model_len = 8192;
  Rig rig({.settings = {}, .engine = engine, .loaded = true});
  std::string ids = "[300";
  for (int i = 1; i < 4096; ++i) ids += ",300";
  const Reply reply =
      rig.post("/v1/completions", R"({"model":"tiny","n":16,"prompt_logprobs":16,"prompt":)" + ids + "]}");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(
      reply.body.find("tell 1114112 log-probabilities of prompt tokens (4096 tokens, 16 times, 17 each)"),
      std::string::npos)
      << reply.body;
}

// An echo is bounded before anything is made of it.
TEST(Echo, HowMuchMayBeRepeated) {
  Rig rig({.settings = {}, .engine = {}, .loaded = true});
  std::string ids = "[300";
  for (int i = 1; i < 1000; ++i) ids += ",300";
  const Reply longer = rig.post("/v1/completions", R"({"model":"tiny","echo":true,"prompt":)" + ids + "]}");
  EXPECT_EQ(longer.status, 400);
  EXPECT_NE(longer.body.find("context_length_exceeded"), std::string::npos) << longer.body;
  const std::string text(1'100'000, 'a');
  const Reply often = rig.post("/v1/completions", R"({"model":"tiny","echo":true,"n":16,"prompt":")" + text + "\"}");
  EXPECT_EQ(often.status, 400);
  EXPECT_NE(often.body.find("repeat more than 16777216 bytes"), std::string::npos) << often.body.substr(0, 300);
}

// A failure while the prompt is scored is an error, whatever was scored before.
TEST(PromptLogprobs, AFailedPromptTellsNothing) {
  FakeOptions options;
  options.fail_with = engine::Finish::kNonFinite;
  Rig rig({.settings = {}, .engine = options, .loaded = true});
  for (const char* more :
       {R"(,"echo":true,"logprobs":1)", R"(,"prompt_logprobs":1)", R"(,"echo":true,"stream":true)"}) {
    const Reply reply =
        rig.post("/v1/completions", R"({"model":"tiny","prompt":"x y z")" + std::string(more) + "}");
    EXPECT_EQ(reply.status, 500) << reply.body;
    EXPECT_EQ(json::parse(reply.body)["error"]["code"], "non_finite_logits");
  }
}

}  // namespace
}  // namespace tally::serve
