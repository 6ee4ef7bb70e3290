#include "measure/stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tally::measure {
namespace {

std::vector<std::string> split(const std::vector<std::string_view>& pieces) {
  EventSplitter splitter;
  std::vector<std::string> out;
  for (std::string_view piece : pieces)
    while (const std::string* event = splitter.next(piece)) out.push_back(*event);
  return out;
}

TEST(EventSplitter, FollowsTheStandard) {
  const std::vector<std::string> wanted = {"a", "b\nc", "d", " e", "", "f"};
  EXPECT_EQ(
      split(
          {"data: a\n\n: heartbeat\n\nevent: x\nid: 1\ndata:b\ndata: c\r\n\r\ndata: d\r\rdata:  e\n\ndata\n\n"
           "dataset: no\ndata: f\n\ndata: unfinished"}),
      wanted);
}

TEST(EventSplitter, IsTheSameWhereverItIsCut) {
  const std::string stream = "data: {\"a\":1}\r\n\r\n:x\ndata: b\rdata: c\r\rdata: [DONE]\n\n\n";
  const auto whole = split({stream});
  ASSERT_EQ(whole.size(), 3u);
  for (size_t i = 0; i <= stream.size(); ++i)
    for (size_t j = i; j <= stream.size(); ++j) {
      const std::string_view s = stream;
      ASSERT_EQ(split({s.substr(0, i), s.substr(i, j - i), s.substr(j)}), whole) << i << ' ' << j;
    }
}

TEST(EventSplitter, GivesUpOnAnEventWithoutEnd) {
  EventSplitter splitter;
  const std::string megabyte(1 << 20, 'x');
  size_t fed = 0;
  for (; fed < 64 && !splitter.is_too_long(); ++fed) {
    std::string_view piece = megabyte;
    EXPECT_EQ(splitter.next(piece), nullptr);
  }
  EXPECT_LE(fed, 5u);
}

TEST(ScanChunk, SeesTokens) {
  const auto has_token = [](std::string_view json) {
    ChunkFacts facts;
    EXPECT_TRUE(scan_chunk(json, facts)) << json;
    return facts.has_token;
  };
  EXPECT_TRUE(has_token(R"({"choices":[{"text":"x"}]})"));
  EXPECT_TRUE(has_token(R"({"choices":[{"delta":{"content":"x"}}]})"));
  EXPECT_TRUE(has_token(R"({"choices":[{"delta":{"reasoning_content":"x"}}]})"));
  EXPECT_TRUE(
      has_token(R"({"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]})"));
  EXPECT_TRUE(has_token(R"({"choices":[{"text":"","logprobs":{"tokens":["x"]}}]})"));
  EXPECT_TRUE(has_token(R"({"choices":[{"text":"","logprobs":{"content":[{"token":"x"}]}}]})"));
  EXPECT_FALSE(has_token(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})"));
  EXPECT_FALSE(has_token(R"({"choices":[{"text":"","logprobs":null,"finish_reason":"stop"}]})"));
  EXPECT_FALSE(has_token(R"({"choices":[{"text":"","logprobs":{"tokens":[]}}]})"));
  EXPECT_FALSE(has_token(R"({"text":"x","x":{"choices":[{"text":"x"}]},"usage":{"text":"x"}})"));
}

TEST(ScanChunk, SeesTheEnd) {
  ChunkFacts facts;
  ASSERT_TRUE(scan_chunk(
      R"({"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":9,
          "prompt_tokens_details":{"cached_tokens":3}},"receipt":{"prompt_tokens":1},"tally":{"tokens":2,"t_us":5}})",
      facts));
  EXPECT_EQ(facts.finish, "length");
  EXPECT_EQ(facts.prompt_tokens, 7u);
  EXPECT_EQ(facts.output_tokens, 9u);
  EXPECT_EQ(facts.cached_tokens, 3u);
  EXPECT_EQ(facts.tokens, 2u);
  EXPECT_TRUE(facts.has_receipt);
  EXPECT_FALSE(facts.has_error);
}

TEST(ScanChunk, SeesErrors) {
  const auto error = [](std::string_view json) {
    ChunkFacts facts;
    EXPECT_TRUE(scan_chunk(json, facts));
    EXPECT_TRUE(facts.has_error);
    return facts.error;
  };
  EXPECT_EQ(error(R"({"error":{"message":"no","type":"t","code":"c"}})"), "c: no");
  EXPECT_EQ(error(R"({"error":{"code":"c","type":"t","message":"no"}})"), "c: no");
  EXPECT_EQ(error(R"({"error":{"code":500,"message":"no"}})"), "500: no");
  EXPECT_EQ(error(R"({"error":"no"})"), "no");
}

TEST(ScanChunk, RefusesWhatIsNoObject) {
  ChunkFacts facts;
  const std::string deep = "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  for (const std::string_view text : {"", "[]", "1", "{", "{}{}", "{\"a\":\"\xff\"}", deep.c_str()})
    EXPECT_FALSE(scan_chunk(text, facts)) << text.substr(0, 20);
}

// One answer, its bytes cut into pieces of `size`.
RequestRecord read(std::string_view bytes, size_t size, int status = 200,
                   std::string_view type = "text/event-stream; charset=utf-8",
                   std::string_view failure = "") {
  RequestRecord record;
  AnswerReader reader(record, true);
  reader.begin(status, type);
  double at_s = 0;
  while (!bytes.empty() && reader.add(bytes.substr(0, size), at_s += 1))
    bytes.remove_prefix(std::min(size, bytes.size()));
  reader.end(failure, at_s);
  return record;
}

constexpr std::string_view kGood =
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: "
    "{\"choices\":[{\"delta\":{\"content\":\"bc\"},"
    "\"finish_reason\":\"stop\"}],\"tally\":{\"tokens\":2}}\n\n"
    "data: "
    "{\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3},\"receipt\":{\"steps\":3}}\n\n"
    "data: [DONE]\n\n";

TEST(AnswerReader, ReadsTheSameFromEveryCut) {
  for (size_t size = 1; size <= kGood.size(); ++size) {
    const RequestRecord r = read(kGood, size);
    ASSERT_TRUE(r.completed()) << size << r.error;
    ASSERT_EQ(r.events.size(), 2u);
    ASSERT_EQ(r.events[0].tokens, 0u);
    ASSERT_EQ(r.events[1].tokens, 2u);
    ASSERT_LE(r.events[0].at_s, r.events[1].at_s);
    ASSERT_EQ(r.finish, "stop");
    ASSERT_EQ(r.prompt_tokens, 4u);
    ASSERT_EQ(r.output_tokens, 3u);
    ASSERT_EQ(r.receipt["steps"], 3);
  }
}

// Every way to end but the right one is a failure that says what happened.
TEST(AnswerReader, SaysWhatFailed) {
  for (size_t cut = 0; cut + 40 < kGood.size(); ++cut) {
    const RequestRecord r = read(kGood.substr(0, cut), 7, 200, "text/event-stream", "closed early");
    ASSERT_EQ(r.outcome, Outcome::kFailed) << cut;
    ASSERT_EQ(r.error, "closed early");
  }
  EXPECT_EQ(read("data: {\"choices\":[{\"text\":\"a\"}]}\n\n", 9).error, "closed early");
  EXPECT_EQ(read("data: [DONE]\n\n", 9).error, "no token");
  EXPECT_EQ(read("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: "
                 "{\"error\":{\"code\":\"c\",\"message\":\"m\"}}\n\ndata: [DONE]\n\n",
                 9)
                .error,
            "error in the answer: c: m");
  EXPECT_EQ(read("data: nonsense\n\n", 9).error, "bad stream: an event that is no JSON object");
  EXPECT_EQ(read("<html>", 9, 200, "text/html").error, "no event stream: text/html");
  EXPECT_EQ(read(R"({"error":{"code":"bad","message":"m"}})", 9, 400, "application/json").error,
            "HTTP 400 bad: m");
  EXPECT_EQ(read("<html>", 9, 502, "text/html").error, "HTTP 502");
  const RequestRecord full =
      read(R"({"error":{"code":"overloaded","message":"m"}})", 9, 503, "application/json");
  EXPECT_EQ(full.outcome, Outcome::kRefused);
  EXPECT_EQ(full.error, "HTTP 503 overloaded: m");
}

TEST(AnswerReader, TakesAnswersInOnePiece) {
  RequestRecord record;
  AnswerReader reader(record, false);
  reader.begin(200, "application/json");
  EXPECT_TRUE(reader.add(
      R"({"choices":[{"message":{"content":"abc"},"finish_reason":"stop"}],"usage":{"prompt_)", 1));
  EXPECT_TRUE(reader.add(R"(tokens":1,"completion_tokens":3}})", 2));
  reader.end("", 2);
  EXPECT_TRUE(record.completed()) << record.error;
  EXPECT_EQ(record.output_tokens, 3u);
  EXPECT_TRUE(record.events.empty());
  EXPECT_EQ(record.end_s, 2);
}

}  // namespace
}  // namespace tally::measure
