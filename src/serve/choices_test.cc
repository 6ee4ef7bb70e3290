// Several answers to one prompt over real sockets: n, best_of, beams.

#include "base/sha256.h"
#include "serve/rig_test_support.h"

#include <set>

namespace tally::serve {
namespace {

using nlohmann::json;

std::string completion(const std::string& more) {
  return R"({"model":"tiny","prompt":"Once","max_tokens":6,)" + more + "}";
}
json completed(const Rig& rig, const std::string& more) {
  const Reply reply = rig.post("/v1/completions", completion(more));
  EXPECT_EQ(reply.status, 200) << reply.body;
  return json::parse(reply.body);
}
std::vector<std::string> texts(const json& answer) {
  std::vector<std::string> out;
  for (const json& choice : answer["choices"]) {
    EXPECT_EQ(choice["index"], out.size());
    out.push_back(choice["text"]);
  }
  return out;
}
std::string refused(const Rig& rig, const std::string& body) {
  const Reply reply = rig.post("/v1/completions", body);
  const json error = json::parse(reply.body)["error"];
  return std::to_string(reply.status) + " " + error["code"].get<std::string>() + " " +
         (error["param"].is_null() ? "" : error["param"].get<std::string>());
}

TEST(Choices, EachHasItsIndexAndThePromptCountsOnce) {
  RigOptions options;
  options.engine.cached_tokens = 1;
  Rig rig(options);
  const json one = completed(rig, R"("n":1)"), four = completed(rig, R"("n":4)");
  EXPECT_EQ(rig.engine.last_request.choices, 4u);
  EXPECT_EQ(rig.engine.last_request.params.logprobs, -1);
  const auto all = texts(four);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0], texts(one)[0]);
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 4u);
  for (const json& choice : four["choices"]) EXPECT_EQ(choice["finish_reason"], "length");
  const size_t prompt = rig.engine.last_request.prompt.size();
  EXPECT_EQ(four["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(four["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
  EXPECT_EQ(four["usage"]["completion_tokens"], 24);
  EXPECT_EQ(four["timings"]["prompt_n"], prompt - 1);
  EXPECT_EQ(four["timings"]["predicted_n"], 24);
}

TEST(Choices, OfManyPromptsGoPromptByPrompt) {
  Rig rig;
  const std::string body = R"({"model":"tiny","prompt":[[300],[301,302]],"max_tokens":4,)";
  const json answer = json::parse(rig.post("/v1/completions", body + R"("n":3})").body);
  const auto all = texts(answer);
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 24);
  const auto single = texts(json::parse(rig.post("/v1/completions", body + R"("n":1})").body));
  EXPECT_EQ(all[0], single[0]);
  EXPECT_EQ(all[3], single[1]);
}

TEST(Choices, AStreamCarriesThemAllEachWithItsEnd) {
  Rig rig;
  const auto whole = texts(completed(rig, R"("n":3)"));
  for (const bool usage : {false, true}) {
    const auto all = events(
        rig.post("/v1/completions", completion(std::string(R"("n":3,"stream":true)") +
                                               (usage ? R"(,"stream_options":{"include_usage":true})" : "")))
            .body);
    EXPECT_EQ(all.back(), "[DONE]");
    std::vector<std::string> joined(3);
    std::vector<int> ends(3);
    for (const json& event : all) {
      if (event == "[DONE]") continue;
      for (const json& choice : event["choices"]) {
        const size_t index = choice["index"];
        EXPECT_EQ(ends.at(index), 0) << "an event after the end of its choice";
        joined[index] += choice["text"].get<std::string>();
        ends[index] += !choice["finish_reason"].is_null();
      }
    }
    EXPECT_EQ(joined, whole);
    EXPECT_EQ(ends, std::vector<int>(3, 1));
    const json& last = all[all.size() - 2];
    EXPECT_TRUE(last.contains("receipt"));
    EXPECT_EQ(last.contains("usage"), usage);
    if (usage) {
      EXPECT_EQ(last["usage"]["completion_tokens"], 18);
    }
  }
}

TEST(Choices, OfAChatStreamEachBeginsWithItsRole) {
  Rig rig;
  const auto all = events(
      rig.post(
             "/v1/chat/completions",
             R"({"model":"tiny","messages":[{"role":"user","content":"Hi"}],"n":2,"stream":true,"max_tokens":4})")
          .body);
  std::vector<size_t> seen(2), roles(2);
  for (const json& event : all) {
    if (event == "[DONE]") continue;
    const json& choice = event["choices"][0];
    const size_t index = choice["index"];
    EXPECT_EQ(choice["delta"].contains("role"), seen.at(index) == 0);
    ++seen[index];
    roles[index] += choice["delta"].contains("role");
  }
  EXPECT_EQ(roles, std::vector<size_t>(2, 1));
}

TEST(Choices, AStopStringEndsItsOwnOnly) {
  RigOptions options;
  Rig rig(options);
  const auto whole = texts(completed(rig, R"("n":2)"));
  const std::string stop = whole[1].substr(whole[1].size() / 2);
  ASSERT_EQ(whole[0].find(stop), std::string::npos);
  const json answer = completed(rig, R"("n":2,"stop":[)" + json(stop).dump() + "]");
  EXPECT_EQ(texts(answer)[0], whole[0]);
  EXPECT_EQ(texts(answer)[1] + stop, whole[1]);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][1]["stop_reason"], stop);
}

TEST(Choices, BestOfTellsTheLikeliestAndCountsAll) {
  RigOptions options;
  const float means[] = {-2, -0.5f, -0.25f, -0.5f};
  options.engine.logprob = [&](uint32_t choice, size_t i) {
    return means[choice] + (i % 2 ? 0.125f : -0.125f);
  };
  Rig rig(options);
  const auto all = texts(completed(rig, R"("n":4)"));
  const json best = completed(rig, R"("n":2,"best_of":4)");
  EXPECT_EQ(rig.engine.last_request.choices, 4u);
  EXPECT_EQ(rig.engine.last_request.params.logprobs, 0);
  EXPECT_EQ(texts(best), (std::vector<std::string>{all[2], all[1]}));  // of equal ones the first
  EXPECT_TRUE(best["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(best["usage"]["completion_tokens"], 24);
  const json shown = completed(rig, R"("n":1,"best_of":4,"logprobs":2)");
  EXPECT_EQ(texts(shown), (std::vector<std::string>{all[2]}));
  EXPECT_EQ(shown["choices"][0]["logprobs"]["token_logprobs"][1], -0.125);
  EXPECT_EQ(texts(completed(rig, R"("n":4,"best_of":4)")), all);
}

TEST(Choices, BeamsAreTheEnginesOrder) {
  Rig rig;
  const json answer = completed(
      rig,
      R"("n":2,"best_of":5,"use_beam_search":true,"length_penalty":0.5,"early_stopping":"never","temperature":0)");
  EXPECT_EQ(texts(answer).size(), 2u);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
  const engine::Request& request = rig.engine.last_request;
  EXPECT_EQ(request.choices, 2u);
  ASSERT_TRUE(request.beams);
  EXPECT_EQ(request.beams->width, 5u);
  EXPECT_EQ(request.beams->length_penalty, 0.5f);
  EXPECT_EQ(request.beams->early_stopping, sample::EarlyStop::kLongest);
  EXPECT_EQ(request.params.logprobs, -1);
}

TEST(Choices, MoreThanCanRunAtOnceAreRefusedByName) {
  RigOptions options;
  options.engine.max_seqs = 4;
  options.engine.at_once = 3;
  Rig rig(options);
  EXPECT_EQ(refused(rig, completion(R"("n":5)")), "400 invalid_value n");
  EXPECT_EQ(refused(rig, completion(R"("n":2,"best_of":5)")), "400 invalid_value best_of");
  EXPECT_EQ(refused(rig, completion(R"("n":5,"use_beam_search":true)")), "400 invalid_value n");
  const Reply reply = rig.post("/v1/completions", completion(R"("n":4)"));  // the engine's word
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("needs 4 sequences of one prompt to run at once, this server runs 3"),
            std::string::npos)
      << reply.body;
  EXPECT_EQ(texts(completed(rig, R"("n":3)")).size(), 3u);
  EXPECT_TRUE(eventually([&] { return rig.engine.live() == 0; }));
}

TEST(Choices, CountAgainstTheShareOfAKey) {
  RigOptions options;
  options.settings.api_keys = {{"ann", base::hex(base::sha256("a"))}, {"bob", base::hex(base::sha256("b"))}};
  options.engine.max_seqs = 8;
  options.max_queue = 8;  // half of both: 8 sequences a key
  Rig rig(options);
  rig.engine.frozen = true;
  const std::string ann = "Authorization: Bearer a\r\n", bob = "Authorization: Bearer b\r\n";
  Client first(rig.port());
  first.send(Rig::post_bytes("/v1/completions", completion(R"("n":3,"best_of":5)"), ann));
  ASSERT_TRUE(eventually([&] { return rig.engine.live() == 5; }));
  EXPECT_EQ(rig.post("/v1/completions", completion(R"("n":4)"), ann).status, 429);
  Client other(rig.port());
  other.send(Rig::post_bytes("/v1/completions", completion(R"("n":8)"), bob));
  ASSERT_TRUE(eventually([&] { return rig.engine.live() == 13; }));
  rig.engine.frozen = false;
  EXPECT_EQ(first.read_reply().status, 200);
  EXPECT_EQ(other.read_reply().status, 200);
}

TEST(Choices, PriorityAndSaltGoToTheEngine) {
  Rig rig;
  completed(rig, R"("priority":-7,"cache_salt":"pepper")");
  EXPECT_EQ(rig.engine.last_request.priority, -7);
  EXPECT_EQ(rig.engine.last_request.salt, "pepper");
}

TEST(Choices, AClientThatLeavesCancelsThemAll) {
  Rig rig;
  rig.engine.frozen = true;
  Client client(rig.port());
  client.send(Rig::post_bytes("/v1/completions", completion(R"("n":7)")));
  ASSERT_TRUE(eventually([&] { return rig.engine.live() == 7; }));
  client.reset();
  EXPECT_TRUE(eventually([&] { return rig.engine.live() == 0; }));
  EXPECT_EQ(rig.engine.cancels.load(), 7u);
}

}  // namespace
}  // namespace tally::serve
