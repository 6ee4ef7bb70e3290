// The language: what jinja2 makes of some hundred expressions and statements, and what it refuses.

#include "text/chat_test_support.h"

#include <gtest/gtest.h>

namespace tally::text {
namespace {

using chat_test::Json;

TEST(Jinja, DoesWhatJinja2Does) {
  const Json golden = Json::parse(chat_test::read_text("tests/golden/jinja/cases.json"));
  ChatInput input;
  input.messages = chat_test::value_of(golden["messages"]);
  input.bos_token = "<s>";
  input.eos_token = "</s>";
  input.now_s = 1'749'990'896;
  for (const auto& [name, value] : golden["variables"].items())
    input.extra.emplace_back(name, chat_test::value_of(value));
  TemplateLimits limits;
  limits.time_max_ms = 3'600'000;
  size_t errors = 0;
  for (const Json& one : golden["cases"]) {
    const std::string source = one["template"];
    SCOPED_TRACE(source);
    const auto parsed = ChatTemplate::parse(source);
    if (one.contains("error")) {
      ++errors;
      EXPECT_TRUE(!parsed || !parsed->render(input, limits));
      continue;
    }
    ASSERT_TRUE(parsed) << parsed.error().message;
    const auto spans = parsed->render(input, limits);
    ASSERT_TRUE(spans) << spans.error().message;
    EXPECT_EQ(chat_test::text_of(*spans), one["expected"].get<std::string>());
  }
  EXPECT_EQ(golden["cases"].size(), 557u);
  EXPECT_EQ(errors, 67u);
}

std::string parse_error(const std::string& source) {
  const auto parsed = ChatTemplate::parse(source);
  return parsed ? "(no error)" : parsed.error().message;
}

TEST(Jinja, SyntaxErrorsNameLineAndColumn) {
  EXPECT_EQ(parse_error("a\nb\n{% if x %}\n{{ 1 + }}"),
            "chat template line 4 column 8: expected an expression, got '}}'");
  EXPECT_EQ(parse_error("\n{{ x|frobnicate }}"),
            "chat template line 2 column 6: filter 'frobnicate' is not supported");
  EXPECT_EQ(parse_error("{{ x is frobbed }}"),
            "chat template line 1 column 9: test 'frobbed' is not supported");
  EXPECT_EQ(parse_error("{% if x %}\n"),
            "chat template line 1 column 11: expected 'endif', got the end of the template");
  EXPECT_EQ(parse_error("{{ 99999999999999999999 }}"),
            "chat template line 1 column 4: not a number that fits: 99999999999999999999");
  EXPECT_EQ(parse_error("{{ (1] }}"), "chat template line 1 column 6: unexpected ']'");
  EXPECT_EQ(parse_error("{{ \x01 }}"), "chat template line 1 column 4: unexpected character '\\x01'");
}

TEST(Jinja, ColumnsCountCharactersOfTheLine) {
  EXPECT_EQ(parse_error("x\r\nü東京🗼{{ nothing| }}"),
            "chat template line 2 column 17: expected a name, got '}}'");
  EXPECT_EQ(parse_error("x\ry\n  {%- set a.b = 1 -%}\n{% endset %}"),
            "chat template line 4 column 4: 'endset' has no beginning");
  EXPECT_EQ(parse_error("a{# b\n\n c"), "chat template line 1 column 4: a comment has no end");
  EXPECT_EQ(parse_error("{{ 'ab\ncd"), "chat template line 1 column 4: a string has no end");
  EXPECT_EQ(parse_error("{% if 1 %}\n{% for x in y %}\n{{ x }}\n"),
            "chat template line 3 column 8: expected 'endfor', got the end of the template");
}

TEST(Jinja, UnsupportedStatementsAreRefusedByName) {
  for (const std::string word :
       {"include", "import", "extends", "from", "block", "do", "autoescape", "trans", "debug"})
    EXPECT_EQ(parse_error("{% " + word + " 'x' %}"),
              "chat template line 1 column 4: statement '" + word + "' is not supported");
  EXPECT_EQ(parse_error("{% for x in y recursive %}{% endfor %}"),
            "chat template line 1 column 15: a recursive for is not supported");
  EXPECT_EQ(parse_error("{{ f(*x) }}"),
            "chat template line 1 column 6: unpacking of arguments is not supported");
}

TEST(Jinja, RenderErrorsNameTheLine) {
  const auto parsed = ChatTemplate::parse("a\n{% for m in messages %}\n{{ m.content + 1 }}\n{% endfor %}");
  ASSERT_TRUE(parsed);
  ChatInput input;
  input.messages = ValueList{ValueObject{{"content", "x"}}};
  const auto spans = parsed->render(input);
  ASSERT_FALSE(spans);
  EXPECT_EQ(spans.error().message, "chat template line 3: can only concatenate str (not \"int\") to str");
}

std::string now_text(const std::string& format, int64_t now_s) {
  const auto parsed = ChatTemplate::parse("{{ strftime_now('" + format + "') }}");
  ChatInput input;
  input.now_s = now_s;
  return chat_test::text_of(*parsed->render(input));
}

TEST(Jinja, DatesAreRight) {
  EXPECT_EQ(now_text("%Y-%m-%d %H:%M:%S %a", 0), "1970-01-01 00:00:00 Thu");
  EXPECT_EQ(now_text("%F %T %A %j", 951'782'399), "2000-02-28 23:59:59 Monday 059");
  EXPECT_EQ(now_text("%F %j", 951'782'400), "2000-02-29 060");
  EXPECT_EQ(now_text("%F %j", 978'220'800), "2000-12-31 366");
  EXPECT_EQ(now_text("%d %b %Y", 4'107'542'400), "01 Mar 2100");
  EXPECT_EQ(now_text("%F", -1), "1969-12-31");
  EXPECT_EQ(now_text("%F", INT64_MAX), "9999-12-31");
  EXPECT_EQ(now_text("%F", INT64_MIN).substr(0, 1), "-");
  EXPECT_EQ(now_text("%Q%", 0), "%Q%");
}

}  // namespace
}  // namespace tally::text
