// The parser of answers: what each text becomes, and that it does not matter where the text is cut.

#include "text/output.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace tally::text {
namespace {

using Kind = OutputEvent::Kind;

OutputFormat format_of(ToolFormat tools, bool thinks = false) {
  OutputFormat format;
  format.tools = tools;
  if (thinks) format.think_begin = "<think>", format.think_end = "</think>";
  return format;
}

// Neighbours of one kind joined, as a client joins them.
void join(std::vector<OutputEvent>& into, const std::vector<OutputEvent>& more) {
  for (const OutputEvent& event : more) {
    const bool joins = !into.empty() && into.back().kind == event.kind && event.kind != Kind::kCallBegin &&
                       event.kind != Kind::kCallEnd;
    if (joins)
      into.back().text += event.text;
    else
      into.push_back(event);
  }
}

// "content|~thoughts|@name(arguments)": a call without its end has no ")".
std::string shown(const std::vector<OutputEvent>& events) {
  std::string out;
  for (const OutputEvent& event : events) {
    const bool inside = event.kind == Kind::kArguments || event.kind == Kind::kCallEnd;
    if (!out.empty() && !inside) out += '|';
    if (event.kind == Kind::kReasoning) out += '~';
    out += event.kind == Kind::kCallBegin ? "@" + event.text + "("
           : event.kind == Kind::kCallEnd ? ")"
                                          : event.text;
  }
  return out;
}

std::vector<OutputEvent> parsed(const OutputFormat& format, const std::vector<std::string>& pieces,
                                bool in_thoughts = false) {
  OutputParser parser(format, in_thoughts);
  std::vector<OutputEvent> events;
  for (const std::string& piece : pieces) join(events, parser.feed(piece));
  join(events, parser.finish());
  return events;
}

struct Case {
  const char* text;
  const char* expected;
};

void check(const OutputFormat& format, const std::vector<Case>& cases, bool in_thoughts = false) {
  for (const Case& one : cases) {
    EXPECT_EQ(shown(parsed(format, {one.text}, in_thoughts)), one.expected) << one.text;
    std::vector<std::string> bytes;
    for (const char* c = one.text; *c != '\0'; ++c) bytes.emplace_back(1, *c);
    EXPECT_EQ(shown(parsed(format, bytes, in_thoughts)), one.expected) << "byte by byte: " << one.text;
  }
}

TEST(OutputParser, Hermes) {
  check(format_of(ToolFormat::kHermes),
        {
            {"", ""},
            {"Hello <b> there\n", "Hello <b> there\n"},
            {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\\\"\"]}}\n</tool_call>",
             "@f({\"a\": [1, \"}\\\"\"]})"},
            {"Let me look.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nDone.",
             "Let me look.|@f({})|Done."},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n"
             "<tool_call>{\"arguments\":{\"x\":1},\"name\":\"g\"}</tool_call>",
             "@f({})|@g({\"x\":1})"},
            // Arguments as a string, none at all, members nobody asked for, escapes in the name.
            {"<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":\\\"\\u00e9\\uD83D\\uDE00\\\"}\"}</"
             "tool_call>",
             "@f({\"a\":\"\xC3\xA9\xF0\x9F\x98\x80\"})"},
            {"<tool_call>{\"name\":\"f\"}</tool_call>", "@f({})"},
            {"<tool_call>{\"id\":12,\"x\":[null,{}],\"name\":\"a\\u0062\",\"parameters\":{}}</tool_call>",
             "@ab({})"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{},\"id\":-1.5e3 }</tool_call>", "@f({})"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{},\"arguments\":{\"a\":1},\"name\":5}</tool_call>x",
             "@f({})|x"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":\"{}\",\"parameters\":[1]}</tool_call>x",
             "@f({})|x"},
            // No end marker; the end marker where the object should have ended.
            {"<tool_call>{\"name\":\"f\",\"arguments\":{}} and so on", "@f({})|and so on"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1</tool_call>x", "@f({\"a\":1)|x"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\"}}</tool_call>",
             "@f({\"a\":\"</tool_call>\"})"},
            // The end marker after something else: it belongs to the call, once.
            {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}}\n</tool_call>\nx", "@f({\"a\":1})|}x"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{}}}\n</tool_call>\n"
             "<tool_call>{\"name\":\"g\",\"arguments\":{}}}</tool_call>",
             "@f({})|}|@g({})|}"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{}}}</tool_call></tool_call>",
             "@f({})|}</tool_call>"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{}}} </tool_x </tool_", "@f({})|} </tool_x"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{}}} <tool_call>no</tool_call>",
             "@f({})|} <tool_call>no</tool_call>"},
            // Cut: before it is a call, inside, at the end.
            {"<tool_call>{\"name\":\"ge", "<tool_call>{\"name\":\"ge"},
            {"<tool_c", "<tool_c"},
            {"a \n<tool_call>\n", "a \n<tool_call>\n"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":", "@f({\"a\":"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{}", "@f({}"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{}}", "@f({})"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{}}\n</tool_", "@f({})"},
            // Calls that are none come out as they are, and what follows is looked at again.
            {"<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>"},
            {"<tool_call>{\"arguments\":{}}</tool_call>", "<tool_call>{\"arguments\":{}}</tool_call>"},
            {"<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
             "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>"},
            {"<tool_call>{\"name\":5}</tool_call>", "<tool_call>{\"name\":5}</tool_call>"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
             "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>"},
            {"<tool_call>{\"name\":\"f\",\"name\":\"g\",\"arguments\":{}}",
             "<tool_call>{\"name\":\"f\",\"name\":\"g\",\"arguments\":{}}"},
            {"<tool_call>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "<tool_call>|@f({})"},
            {"<tool_call>{\"name\" \"f\"} <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
             "<tool_call>{\"name\" \"f\"}|@f({})"},
            // Markers of others.
            {"<think>no</think>[TOOL_CALLS][{}]", "<think>no</think>[TOOL_CALLS][{}]"},
        });
}

TEST(OutputParser, Llama3) {
  check(format_of(ToolFormat::kLlama3),
        {
            {"{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "@f({\"a\": 1})"},
            {" {\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}\n", "@f({})"},
            {"<|python_tag|>{\"name\": \"f\", \"arguments\": {}}", "@f({})"},
            {"{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"parameters\":{}}", "@f({})|@g({})"},
            {"{\"name\":\"f\",\"parameters\":{}}\n{\"name\":\"g\",\"parameters\":{}}", "@f({})|@g({})"},
            {"{\"name\":\"f\",\"parameters\":{}}; then", "@f({})|; then"},
            {"{\"name\":\"f\",\"parameters\":{}};", "@f({})|;"},
            // What a call has besides is passed over once it is one.
            {"{\"name\":\"f\",\"parameters\":{},\"note\":\"hi\"}", "@f({})"},
            {"{\"parameters\":{\"a\":1},\"name\":\"f\",\"name\":\"g\",\"arguments\":{}}; then",
             "@f({\"a\":1})|; then"},
            {"<|python_tag|>{\"name\":\"f\",\"parameters\":{},\"parameters\":{\"b\":2}}", "@f({})"},
            // Objects that are no calls, and calls that are no objects.
            {"{\"title\": \"x\", \"name\": \"f\", \"parameters\": {}}",
             "{\"title\": \"x\", \"name\": \"f\", \"parameters\": {}}"},
            {"{\"name\": \"Ann\", \"type\": \"person\"}", "{\"name\": \"Ann\", \"type\": \"person\"}"},
            {"Use {\"name\":\"f\",\"parameters\":{}}", "Use {\"name\":\"f\",\"parameters\":{}}"},
            {"<|python_tag|>print(1)", "<|python_tag|>print(1)"},
            {"{", "{"},
            {"  {}", "  {}"},
            {"Text <|python_tag|>{\"name\":\"f\",\"parameters\":{}}", "Text|@f({})"},
        });
}

TEST(OutputParser, Mistral) {
  check(format_of(ToolFormat::kMistral),
        {
            {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "@f({\"a\": 1})"},
            {"[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{}, \"id\":\"abcdefghi\"}, "
             "{\"name\":\"g\",\"arguments\":{\"b\":[]}}]",
             "@f({})|@g({\"b\":[]})"},
            {"[TOOL_CALLS]f[ARGS]{\"a\": {}}", "@f({\"a\": {}})"},
            {"[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}[TOOL_CALLS]g.h{\"b\":1}", "@f({})|@g.h({\"b\":1})"},
            {"I see. [TOOL_CALLS]f[ARGS]{}", "I see.|@f({})"},
            {"[1, 2] [TOOL", "[1, 2] [TOOL"},
            {"[TOOL_CALLS]", "[TOOL_CALLS]"},
            {"[TOOL_CALLS] f", "[TOOL_CALLS] f"},
            {"[TOOL_CALLS]f[ARG", "[TOOL_CALLS]f[ARG"},
            {"[TOOL_CALLS]f[ARGS]x", "[TOOL_CALLS]f[ARGS]x"},
            {"[TOOL_CALLS]f(1)", "[TOOL_CALLS]f(1)"},
            {"[TOOL_CALLS][]", "[TOOL_CALLS][]"},
            {"[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, no]", "@f({})|, no]"},
            {"[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}", "@f({})"},
        });
}

TEST(OutputParser, Thoughts) {
  check(format_of(ToolFormat::kNone, true),
        {
            {"<think>\nOne.\n\nTwo.\n</think>\n\nHello.\n", "~One.\n\nTwo.|Hello.\n"},
            {"  <think>a</think>b", "~a|b"},
            {"<think>\n\n</think>\n\nHello", "Hello"},
            {"<think>cut ", "~cut "},
            {"<think>cut </thi", "~cut </thi"},
            {"<thin", "<thin"},
            {"<think>", ""},
            {"Hello <think>no</think>", "Hello <think>no</think>"},
            {"<think>a</think> <think>b</think>c", "~ab|c"},
            {"a</think>b", "a</think>b"},
        });
  check(format_of(ToolFormat::kNone, true),
        {
            {"One.\n</think>\nHello", "~One.|Hello"},
            {"\n<think>One.</think>Hello", "~<think>One.|Hello"},
            {"</think>Hello", "Hello"},
            {"One.", "~One."},
        },
        true);
}

TEST(OutputParser, ThoughtsThenCalls) {
  check(format_of(ToolFormat::kHermes, true),
        {
            {"<think>Use <tool_call>.</think>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
             "~Use <tool_call>.|@f({})"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><think>x</think>",
             "@f({})|<think>x</think>"},
        });
  check(format_of(ToolFormat::kLlama3, true),
        {{"<think>x</think>{\"name\":\"f\",\"parameters\":{}}", "~x|@f({})"}});
}

TEST(OutputParser, TellsWhereItIs) {
  OutputParser parser(format_of(ToolFormat::kHermes, true), true);
  EXPECT_TRUE(parser.in_thoughts());
  parser.feed("x</think><tool_call>{\"name\":\"f\",\"arguments\":");
  EXPECT_FALSE(parser.in_thoughts());
  EXPECT_FALSE(parser.in_call());
  EXPECT_EQ(shown(parser.feed("{\"a\"")), "@f({\"a\"");
  EXPECT_TRUE(parser.in_call());
  EXPECT_EQ(shown(parser.feed(":1}")), ":1}");
  EXPECT_EQ(shown(parser.feed("}")), ")");
  EXPECT_FALSE(parser.in_call());
}

TEST(OutputParser, ContentIsNotHeldBackWithoutReason) {
  OutputParser parser(format_of(ToolFormat::kHermes, true), false);
  EXPECT_EQ(shown(parser.feed("Hel")), "Hel");
  EXPECT_EQ(shown(parser.feed("lo, <")), "lo,");
  EXPECT_EQ(shown(parser.feed("b>")), " <b>");
}

TEST(OutputParser, WhatNeverBecomesACallIsLetGo) {
  OutputParser parser(format_of(ToolFormat::kHermes), false);
  std::string long_one = "<tool_call>{\"arguments\":{\"a\":\"";
  long_one += std::string(9000, 'x');
  EXPECT_EQ(shown(parser.feed(long_one)), long_one);
  // A call may be as long as it likes.
  OutputParser other(format_of(ToolFormat::kHermes), false);
  const std::string begin = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"";
  EXPECT_EQ(shown(other.feed(begin + std::string(100'000, 'x'))), "@f({\"a\":\"" + std::string(100'000, 'x'));
}

// Pieces of what markers and calls are made of.
std::string scramble(const std::vector<uint8_t>& picks) {
  constexpr std::string_view kPieces[] = {"<think>",
                                          "</think>",
                                          "<tool_call>",
                                          "</tool_call>",
                                          "{\"name\": \"f\", \"arguments\": ",
                                          "{\"a\": 1}",
                                          "}",
                                          "[TOOL_CALLS]",
                                          "[",
                                          "]",
                                          "[ARGS]",
                                          "f",
                                          "<|python_tag|>",
                                          "{",
                                          "\"",
                                          "name",
                                          "\":",
                                          ", ",
                                          ";",
                                          " ",
                                          "\n",
                                          "<",
                                          "\\",
                                          "\xC3\xA9",
                                          "[CALL_ID]",
                                          "parameters",
                                          "/",
                                          "t"};
  std::string text;
  for (const uint8_t pick : picks) text += kPieces[pick % std::size(kPieces)];
  return text;
}

RC_GTEST_PROP(OutputParserProperty, EveryCutGivesTheSameEvents, ()) {
  const std::string text = scramble(*rc::gen::arbitrary<std::vector<uint8_t>>());
  const auto tools =
      *rc::gen::element(ToolFormat::kNone, ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral);
  const OutputFormat format = format_of(tools, *rc::gen::arbitrary<bool>());
  const bool in_thoughts = !format.think_begin.empty() && *rc::gen::arbitrary<bool>();
  const auto whole = parsed(format, {text}, in_thoughts);
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t n = *rc::gen::inRange<size_t>(1, 9);
    pieces.push_back(text.substr(at, n));
    at += n;
  }
  RC_ASSERT(shown(parsed(format, pieces, in_thoughts)) == shown(whole));
  // Calls are well formed, and only the last may be open.
  bool open = false;
  for (const OutputEvent& event : whole) {
    RC_ASSERT(event.kind == Kind::kCallEnd || !event.text.empty());
    RC_ASSERT((event.kind == Kind::kArguments || event.kind == Kind::kCallEnd) == open);
    open = event.kind == Kind::kCallBegin || (open && event.kind != Kind::kCallEnd);
  }
}

// Text in which no format has a part is told as it is.
RC_GTEST_PROP(OutputParserProperty, PlainTextIsNotTouched, ()) {
  const auto text =
      *rc::gen::container<std::string>(rc::gen::element('a', ' ', '\n', '<', '[', '}', '"', '|'));
  for (const ToolFormat tools : {ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral}) {
    const auto events = parsed(format_of(tools, true), {text});
    RC_ASSERT(events.size() == (text.empty() ? 0u : 1u));
    if (!text.empty()) RC_ASSERT(events[0] == (OutputEvent{Kind::kContent, text}));
  }
}

}  // namespace
}  // namespace tally::text
