// Every golden template against every golden case: what jinja2 rendered, set up as Hugging Face does.

#include "text/chat_test_support.h"

#include <gtest/gtest.h>

#include <map>

namespace tally::text {
namespace {

using chat_test::Json;

constexpr const char* kFolder = "tests/golden/templates/";
constexpr int64_t kNow = 1'749'990'896;  // 2025-06-15T12:34:56 UTC, as the cases say

ChatInput input_of(const Json& cases, const Json& one) {
  const Json& list = cases["message_lists"][one["list"].get<std::string>()];
  ChatInput input;
  input.messages = chat_test::value_of(list["messages"]);
  input.tools = chat_test::value_of(list["tools"]);
  input.add_generation_prompt = one["add_generation_prompt"];
  input.bos_token = one["bos_token"];
  input.eos_token = one["eos_token"];
  for (const auto& [name, value] : list["extra"].items())
    input.extra.emplace_back(name, chat_test::value_of(value));
  input.now_s = kNow;
  return input;
}

TEST(ChatGolden, EveryTemplateRendersEveryCase) {
  const Json cases = Json::parse(chat_test::read_text(std::string(kFolder) + "cases.json"));
  std::map<std::string, ChatTemplate> templates;
  size_t rendered = 0, refused = 0;
  TemplateLimits limits;
  limits.time_max_ms = 3'600'000;  // the clock is not what is tested here
  for (const Json& one : cases["cases"]) {
    const std::string name = one["template"];
    SCOPED_TRACE(name + " " + one["list"].get<std::string>());
    if (!templates.contains(name)) {
      auto parsed = ChatTemplate::parse(chat_test::read_text(kFolder + name));
      ASSERT_TRUE(parsed) << parsed.error().message;
      templates.emplace(name, std::move(*parsed));
    }
    const auto spans = templates.at(name).render(input_of(cases, one), limits);
    if (!one.contains("error")) {
      ASSERT_TRUE(spans) << spans.error().message;
      const std::string text = chat_test::text_of(*spans);
      EXPECT_EQ(text, one["expected"].get<std::string>());
      rendered += text == one["expected"].get<std::string>() ? 1u : 0u;
      continue;
    }
    ASSERT_FALSE(spans) << chat_test::text_of(*spans);
    const bool own_words = one["error_kind"] == "raise_exception";
    const std::string said = spans.error().message;
    if (own_words) {
      EXPECT_EQ(said, one["error"].get<std::string>());
    }
    refused += !own_words || said == one["error"].get<std::string>() ? 1u : 0u;
  }
  RecordProperty("cases_passed", static_cast<int>(rendered + refused));
  RecordProperty("cases", static_cast<int>(cases["cases"].size()));
  EXPECT_EQ(rendered + refused, 759u);
  EXPECT_EQ(templates.size(), 23u);
  EXPECT_EQ(rendered, 666u);
  EXPECT_EQ(refused, 93u);
}

}  // namespace
}  // namespace tally::text
