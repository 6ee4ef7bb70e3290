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
      EXPECT_EQ(chat_test::text_of(*spans), one["expected"].get<std::string>());
      ++rendered;
      continue;
    }
    ASSERT_FALSE(spans) << chat_test::text_of(*spans);
    if (one["error_kind"] == "raise_exception") {
      EXPECT_EQ(spans.error().message, one["error"].get<std::string>());
    }
    ++refused;
  }
  EXPECT_EQ(templates.size(), 23u);
  EXPECT_EQ(rendered, 666u);
  EXPECT_EQ(refused, 93u);
}

}  // namespace
}  // namespace tally::text
