// Tools in a request: what is taken, what is refused and in which words; and what constrained answers may be.

#include "serve/openai/tools.h"

#include "sample/constraint.h"
#include "serve/openai/output_constraint.h"
#include "serve/openai/requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace tally::serve::openai {
namespace {

using nlohmann::ordered_json;

constexpr size_t kVocabulary = 1024;

std::optional<ApiError> chat_of(const std::string& fields, ChatRequest& out,
                                const std::string& messages = R"([{"role":"user","content":"x"}])") {
  return parse_chat(R"({"model":"m","messages":)" + messages + (fields.empty() ? "" : ",") + fields + "}",
                    kVocabulary, out);
}

// "ok", or code and param.
std::string judged(const std::optional<ApiError>& error) {
  if (!error) return "ok";
  for (const CodeRow& row : kCodes)
    if (row.code == error->code) return std::string(row.name) + " " + error->param;
  return "?";
}
std::string judged_tools(const std::string& fields) {
  ChatRequest request;
  return judged(chat_of(fields, request));
}
std::string judged_messages(const std::string& list) {
  ChatRequest request;
  return judged(chat_of("", request, list));
}
std::string judged_words(const std::string& fields) {
  ChatRequest request;
  const auto error = chat_of(fields, request);
  return error ? error->message : "";
}

std::string tool_of(const std::string& name, const std::string& parameters = R"({"type":"object"})") {
  return R"({"type":"function","function":{"name":")" + name + R"(","parameters":)" + parameters + "}}";
}
std::string nested(size_t levels) {
  std::string schema = R"({"type":"string"})";
  for (size_t i = 1; i < levels; ++i) schema = R"({"a":)" + schema + "}";
  return schema;
}

TEST(Tools, A19WhatIsRefused) {
  std::string many;
  for (int i = 0; i < 10'000; ++i) many += (i > 0 ? "," : "") + tool_of("f" + std::to_string(i));
  EXPECT_EQ(judged_tools(R"("tools":[)" + many + "]"), "invalid_value tools");
  EXPECT_EQ(judged_words(R"("tools":[)" + many + "]"), "tools holds 10000 entries, at most 128 are allowed.");
  EXPECT_EQ(judged_tools(R"("tools":[)" + tool_of("f") + "," + tool_of("g") + "," + tool_of("f") + "]"),
            "invalid_value tools[2].function.name");
  const std::pair<const char*, const char*> cases[] = {
      {R"("tools":5)", "invalid_value tools"},
      {R"("tools":[5])", "invalid_value tools[0]"},
      {R"("tools":[{}])", "missing_required_parameter tools[0].function"},
      {R"("tools":[{"type":"retrieval","function":{"name":"f"}}])", "invalid_value tools[0].type"},
      {R"("tools":[{"type":"function","function":[]}])", "invalid_value tools[0].function"},
      {R"("tools":[{"type":"function","function":{}}])", "missing_required_parameter tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":""}}])", "invalid_value tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":"a b"}}])", "invalid_value tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":5}}])", "invalid_value tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])",
       "invalid_value tools[0].function.parameters"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":"{}"}}])",
       "invalid_value tools[0].function.parameters"},
      {R"("tools":[{"type":"function","function":{"name":"f","description":5}}])",
       "invalid_value tools[0].function.description"},
      {R"("tools":[{"type":"function","function":{"name":"f","strict":"yes"}}])",
       "invalid_value tools[0].function.strict"},
      {R"("tool_choice":"required")", "invalid_value tool_choice"},
      {R"("tool_choice":"any")", "invalid_value tool_choice"},
      {R"("tool_choice":5)", "invalid_value tool_choice"},
      {R"("parallel_tool_calls":"no")", "invalid_value parallel_tool_calls"},
      {R"("functions":[])", "not_supported functions"},
      {R"("function_call":"auto")", "not_supported function_call"},
  };
  for (const auto& [fields, expected] : cases) EXPECT_EQ(judged_tools(fields), expected) << fields;
  const std::string one = R"("tools":[)" + tool_of("f") + R"(],"tool_choice":)";
  EXPECT_EQ(judged_tools(one + R"({"type":"function","function":{"name":"g"}})"),
            "invalid_value tool_choice");
  EXPECT_EQ(judged_words(one + R"({"type":"function","function":{"name":"g\n"}})"),
            "tool_choice names \"g\\x0a\", which is none of tools.");
  EXPECT_EQ(judged_tools(one + R"({"type":"function"})"), "missing_required_parameter tool_choice.function");
  EXPECT_EQ(judged_tools(one + R"({"type":"function","function":{}})"), "invalid_value tool_choice");
  EXPECT_EQ(judged_tools(one + R"("some")"), "invalid_value tool_choice");
}

TEST(Tools, LimitsOfSchemasAreTold) {
  EXPECT_EQ(judged_tools(R"("tools":[)" + tool_of("f", nested(32)) + "]"), "ok");
  EXPECT_EQ(judged_words(R"("tools":[)" + tool_of("f", nested(33)) + "]"),
            "tools[0].function.parameters is 33 levels deep, at most 32 are allowed.");
  EXPECT_EQ(judged_tools(R"("tools":[)" + tool_of("f", nested(100)) + "]"), "invalid_json ");
  const std::string long_one = R"({"type":"object","description":")" + std::string(65'536, 'x') + "\"}";
  EXPECT_EQ(judged_tools(R"("tools":[)" + tool_of("f", long_one) + "]"),
            "invalid_value tools[0].function.parameters");
}

// Only where the answer has to follow it does a schema have to be one that can be followed.
TEST(Tools, SchemasOfForcedCallsAreJudged) {
  const std::string two = R"("tools":[)" + tool_of("f", R"({"type":"thing"})") + "," + tool_of("g") + "]";
  const std::string named = R"(,"tool_choice":{"type":"function","function":{"name":")";
  EXPECT_EQ(judged_tools(two), "ok");
  EXPECT_EQ(judged_tools(two + R"(,"tool_choice":"required")"),
            "invalid_schema tools[0].function.parameters");
  EXPECT_EQ(judged_tools(two + named + "f\"}}"), "invalid_schema tools[0].function.parameters");
  EXPECT_EQ(judged_tools(two + named + "g\"}}"), "ok");
}

TEST(Tools, A20EmptySchemasAreUsable) {
  ChatRequest request;
  ASSERT_FALSE(chat_of(R"("tools":[)" + tool_of("f", "{}") + "," +
                           tool_of("g", R"({"properties":{"a":{}}})") + "," +
                           tool_of("h", R"({"$ref":"#/x"})") +
                           R"(,{"type":"function","function":{"name":"i.j-k","parameters":null}}])",
                       request));
  const ToolUse& use = request.tool_use;
  ASSERT_EQ(use.tools.size(), 4u);
  EXPECT_EQ(use.tools[0].parameters, R"({"type":"object"})");
  EXPECT_EQ(use.tools[1].parameters, R"({"type":"object","properties":{"a":{}}})");
  EXPECT_EQ(use.tools[2].parameters, R"({"$ref":"#/x"})");
  EXPECT_EQ(use.tools[3].name, "i.j-k");
  EXPECT_EQ(use.tools[3].parameters, R"({"type":"object"})");
  EXPECT_TRUE(use.is_active());
  EXPECT_FALSE(use.is_forced());
  EXPECT_TRUE(use.parallel);
}

TEST(Tools, Choices) {
  const auto use = [](const std::string& fields) {
    ChatRequest request;
    EXPECT_EQ(judged(chat_of(fields, request)), "ok") << fields;
    return request.tool_use;
  };
  const std::string one = R"("tools":[)" + tool_of("f") + "," + tool_of("g") + "]";
  EXPECT_FALSE(use("").is_active());
  EXPECT_FALSE(use(R"("tools":[],"tool_choice":"auto")").is_active());
  EXPECT_FALSE(use(R"("tools":null,"tool_choice":"none","parallel_tool_calls":null)").is_active());
  EXPECT_FALSE(use(one + R"(,"tool_choice":"none")").is_active());
  EXPECT_TRUE(use(one + R"(,"tool_choice":null)").is_active());
  EXPECT_TRUE(use(one + R"(,"tool_choice":"required")").is_forced());
  const ToolUse named =
      use(one + R"(,"tool_choice":{"type":"function","function":{"name":"g"}},"parallel_tool_calls":false)");
  EXPECT_TRUE(named.is_forced());
  EXPECT_EQ(named.named, "g");
  EXPECT_FALSE(named.parallel);
}

TEST(Tools, CompletionsDoNotKnowThem) {
  CompletionRequest request;
  EXPECT_EQ(judged(parse_completion(R"({"model":"m","prompt":"x","tools":5,"tool_choice":"required"})",
                                    kVocabulary, request)),
            "ok");
}

TEST(Tools, CallsOfEarlierTurns) {
  const auto call = [](const std::string& function, const std::string& id = R"("call_1")") {
    return R"([{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":)" + id +
           R"(,"type":"function","function":)" + function + "}]}]";
  };
  const std::string place = "messages[1].tool_calls[0]";
  EXPECT_EQ(judged_messages(call(R"({"name":"f","arguments":"{\"a\":1}"})")), "ok");
  EXPECT_EQ(judged_messages(call(R"({"name":"f","arguments":{"a":1}})")), "ok");
  EXPECT_EQ(judged_messages(call(R"({"name":"f","arguments":""})")), "ok");
  EXPECT_EQ(judged_messages(call(R"({"name":"f","arguments":"{\"a\":"})")),
            "invalid_value " + place + ".function.arguments");
  EXPECT_EQ(judged_messages(call(R"({"name":"f","arguments":"[1]"})")),
            "invalid_value " + place + ".function.arguments");
  EXPECT_EQ(judged_messages(call(R"({"name":"f","arguments":5})")),
            "invalid_value " + place + ".function.arguments");
  EXPECT_EQ(judged_messages(call(R"({"arguments":"{}"})")),
            "missing_required_parameter " + place + ".function.name");
  EXPECT_EQ(judged_messages(call(R"({"name":"f"})", "5")), "invalid_value " + place + ".id");
  EXPECT_EQ(judged_messages(R"([{"role":"assistant","tool_calls":[]}])"),
            "invalid_value messages[0].tool_calls");
  EXPECT_EQ(judged_messages(R"([{"role":"assistant","tool_calls":{}}])"),
            "invalid_value messages[0].tool_calls");
  EXPECT_EQ(judged_messages(R"([{"role":"tool","content":"x"}])"),
            "missing_required_parameter messages[0].tool_call_id");
  EXPECT_EQ(judged_messages(R"([{"role":"tool","tool_call_id":null,"content":"x"}])"),
            "missing_required_parameter messages[0].tool_call_id");
  EXPECT_EQ(judged_messages(R"([{"role":"tool","tool_call_id":5,"content":"x"}])"),
            "invalid_value messages[0].tool_call_id");
  EXPECT_EQ(judged_messages(R"([{"content":"x"}])"), "missing_required_parameter messages[0].role");
  EXPECT_EQ(judged_messages(R"([{"role":5,"content":"x"}])"), "invalid_value messages[0].role");
  EXPECT_EQ(judged_messages(R"([{"role":"tool","tool_call_id":"a","content":null}])"),
            "missing_required_parameter messages[0].content");
  EXPECT_EQ(judged_messages(R"([{"role":"tool","tool_call_id":"a","content":"x"}])"), "ok");
  EXPECT_EQ(judged_messages(R"([{"role":"assistant","content":"a","reasoning_content":5}])"),
            "invalid_value messages[0].reasoning_content");
  EXPECT_EQ(judged_messages(R"([{"role":"narrator","content":"x"}])"), "invalid_value messages[0].role");
  ChatRequest request;
  EXPECT_EQ(chat_of("", request, R"([{"role":"narrator","content":"x"}])")->message,
            "messages[0].role is \"narrator\", and must be one of system, developer, user, assistant, tool, "
            "function.");
}

ToolUse forced(ToolUse::Choice choice) {
  ToolUse use;
  use.tools = {{"f", R"({"type":"object"})"}, {"g", R"({"type":"object","properties":{}})"}};
  use.choice = choice;
  use.named = "g";
  return use;
}
text::OutputFormat format_of(text::ToolFormat tools) {
  text::OutputFormat format;
  format.tools = tools;
  return format;
}
ordered_json constraint(const ToolUse& use, const text::OutputFormat& format, bool in_thoughts = false) {
  return ordered_json::parse(call_constraint(use, format, in_thoughts));
}

// The texts a constraint allows, as a pattern: (a|b) a choice, ? and [separator]* repetition, <id> a token,
// schemas as they are.
std::string pattern(const ordered_json& format) {
  const std::string type = format["type"];
  if (type == "structural_tag") return pattern(format["format"]);
  if (type == "const_string") return format["value"];
  if (type == "json_schema") return format["json_schema"].dump();
  if (type == "token") return "<" + format["token"].dump() + ">";
  if (type == "any_text") return ".*";
  if (type == "any_tokens") return "<.*>";
  if (type == "regex") return format["pattern"];
  if (type == "optional") return "(" + pattern(format["content"]) + ")?";
  std::string out;
  if (type == "tags_with_separator") {
    EXPECT_EQ(format["at_least_one"], true);
    for (ordered_json tag : format["tags"]) out += (out.empty() ? "(" : "|") + pattern(tag);
    return out + ")" +
           (format["stop_after_first"].get<bool>() ? ""
                                                   : "[" + format["separator"].get<std::string>() + "]*");
  }
  const auto edge = [](const ordered_json& end) {
    return end.is_string() ? end.get<std::string>() : pattern(end);
  };
  if (type == "tag") return edge(format["begin"]) + pattern(format["content"]) + edge(format["end"]);
  EXPECT_EQ(type, "sequence");
  for (const ordered_json& element : format["elements"]) out += pattern(element);
  return out;
}

TEST(CallConstraint, OfEachFormat) {
  const ToolUse required = forced(ToolUse::Choice::kRequired), named = forced(ToolUse::Choice::kNamed);
  ToolUse single = required;
  single.parallel = false;
  const std::string f = R"({"type":"object"})", g = R"({"type":"object","properties":{}})";
  const std::string hermes_f = "<tool_call>\n{\"name\": \"f\", \"arguments\": " + f + "}\n</tool_call>";
  const std::string hermes_g = "<tool_call>\n{\"name\": \"g\", \"arguments\": " + g + "}\n</tool_call>";
  const text::OutputFormat hermes = format_of(text::ToolFormat::kHermes);
  EXPECT_EQ(pattern(constraint(required, hermes)), "(" + hermes_f + "|" + hermes_g + ")[\n]*");
  EXPECT_EQ(pattern(constraint(single, hermes)), "(" + hermes_f + "|" + hermes_g + ")");
  EXPECT_EQ(pattern(constraint(named, hermes)), "(" + hermes_g + ")");

  const text::OutputFormat llama3 = format_of(text::ToolFormat::kLlama3);
  EXPECT_EQ(pattern(constraint(named, llama3)), R"(({"name": "g", "parameters": )" + g + "})");
  EXPECT_EQ(pattern(constraint(required, llama3)),
            R"(({"name": "f", "parameters": )" + f + R"(}|{"name": "g", "parameters": )" + g + "})[; ]*");

  text::OutputFormat mistral = format_of(text::ToolFormat::kMistral);
  EXPECT_EQ(pattern(constraint(named, mistral)), R"([TOOL_CALLS][({"name": "g", "arguments": )" + g + "})]");
  mistral.call_tokens = {{"[TOOL_CALLS]", TokenId{9}}, {"[ARGS]", TokenId{32}}};
  EXPECT_EQ(pattern(constraint(named, mistral)), R"(<9>[({"name": "g", "arguments": )" + g + "})]");
  mistral.names_first = true;
  EXPECT_EQ(pattern(constraint(required, mistral)), "(<9>f<32>" + f + "|<9>g<32>" + g + ")[]*");
}

TEST(CallConstraint, LeavesRoomForThoughts) {
  const ToolUse named = forced(ToolUse::Choice::kNamed);
  text::OutputFormat format = format_of(text::ToolFormat::kLlama3);
  format.think_begin = "<think>", format.think_end = "</think>";
  const std::string call = R"(({"name": "g", "parameters": {"type":"object","properties":{}}}))";
  EXPECT_EQ(pattern(constraint(named, format, true)), ".*</think>\\n*" + call);
  EXPECT_EQ(pattern(constraint(named, format, false)), "(<think>.*</think>\\n*)?" + call);
  format.think_tokens = {{"<think>", TokenId{7}}, {"</think>", TokenId{8}}};
  EXPECT_EQ(pattern(constraint(named, format, true)), "<.*><8>\\n*" + call);
  EXPECT_EQ(pattern(constraint(named, format, false)), "(<7><.*><8>\\n*)?" + call);
}

// One id a byte, then markers as control tokens, then the end.
constexpr TokenId kCalls{256}, kArgs{257}, kThink{258}, kThinkEnd{259}, kEnd{260};
sample::ConstraintVocabulary byte_vocabulary() {
  sample::ConstraintVocabulary v;
  for (int byte = 0; byte < 256; ++byte) v.bytes.emplace_back(1, static_cast<char>(byte));
  v.bytes.resize(260, "\xFF");
  v.bytes.emplace_back();
  v.end_ids = {kEnd};
  return v;
}

// Whether the constraint lets exactly this be written.
bool allows(const std::shared_ptr<const sample::Constraint>& constraint, const std::vector<TokenId>& ids) {
  sample::ConstraintMatcher matcher(constraint);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!matcher.follow(std::span(ids).first(i))) return false;
    const auto id = static_cast<size_t>(raw(ids[i]));
    if ((matcher.allowed()[id / 32] >> (id % 32) & 1) == 0) return false;
  }
  return matcher.follow(ids) && matcher.may_end();
}

// by_token: markers as the control tokens they are.
std::vector<TokenId> ids_of(std::string_view text, bool by_token) {
  constexpr std::pair<std::string_view, TokenId> kMarks[] = {
      {"[TOOL_CALLS]", kCalls}, {"[ARGS]", kArgs}, {"<think>", kThink}, {"</think>", kThinkEnd}};
  std::vector<TokenId> ids;
  while (!text.empty()) {
    const auto mark = std::find_if(std::begin(kMarks), std::end(kMarks),
                                   [&](const auto& m) { return by_token && text.starts_with(m.first); });
    ids.push_back(mark == std::end(kMarks) ? TokenId{static_cast<uint8_t>(text.front())} : mark->second);
    text.remove_prefix(mark == std::end(kMarks) ? 1 : mark->first.size());
  }
  return ids;
}

TEST(CallConstraint, IsEnforced) {
  sample::ConstraintCompiler compiler(byte_vocabulary(), {}, [](int64_t) {});
  ToolUse use = forced(ToolUse::Choice::kRequired);
  use.tools[0].parameters = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
  struct Case {
    text::ToolFormat tools;
    bool names_first;
    std::string one, two, wrong;
  };
  const Case cases[] = {
      {text::ToolFormat::kHermes, false, "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 5}}\n</tool_call>\n<tool_call>\n{\"name\": "
       "\"g\", "
       "\"arguments\": {}}\n</tool_call>",
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"},
      {text::ToolFormat::kLlama3, false, R"({"name": "g", "parameters": {}})",
       R"({"name": "f", "parameters": {"a": 5}}; {"name": "g", "parameters": {}})",
       R"({"name": "f", "parameters": {"a": "5"}})"},
      {text::ToolFormat::kMistral, false, R"([TOOL_CALLS][{"name": "g", "arguments": {}}])",
       R"([TOOL_CALLS][{"name": "f", "arguments": {"a": 5}}, {"name": "g", "arguments": {}}])",
       R"([TOOL_CALLS][{"name": "h", "arguments": {}}])"},
      {text::ToolFormat::kMistral, true, "[TOOL_CALLS]g[ARGS]{}",
       R"([TOOL_CALLS]f[ARGS]{"a": 5}[TOOL_CALLS]g[ARGS]{})", "[TOOL_CALLS]f[ARGS]{}"},
  };
  for (const Case& one : cases)
    for (const bool by_token : {false, true})
      for (const std::string thoughts : {"", "<think>So <b>.</think>\n\n", "So.</think>"}) {
        text::OutputFormat format = format_of(one.tools);
        format.names_first = one.names_first;
        if (!thoughts.empty()) format.think_begin = "<think>", format.think_end = "</think>";
        if (by_token) {
          format.call_tokens = {{"[TOOL_CALLS]", kCalls}, {"[ARGS]", kArgs}};
          format.think_tokens = {{"<think>", kThink}, {"</think>", kThinkEnd}};
        }
        const std::string text = call_constraint(use, format, thoughts.starts_with("So"));
        SCOPED_TRACE(text);
        const auto compiled = compiler.compile({sample::ConstraintSpec::Kind::kStructuralTag, text});
        ASSERT_TRUE(compiled) << compiled.error().message;
        EXPECT_TRUE(allows(*compiled, ids_of(thoughts + one.one, by_token)));
        EXPECT_TRUE(allows(*compiled, ids_of(thoughts + one.two, by_token)));
        EXPECT_FALSE(allows(*compiled, ids_of(thoughts + one.wrong, by_token)));
        EXPECT_FALSE(allows(*compiled, ids_of(thoughts, by_token)));
        EXPECT_FALSE(allows(*compiled, ids_of(thoughts + "I" + one.one, by_token)));
      }
}

// Every form of structured output, behind thoughts that are free.
TEST(CallConstraint, FormsComeAfterThoughts) {
  using Kind = sample::ConstraintSpec::Kind;
  sample::ConstraintCompiler compiler(byte_vocabulary(), {}, [](int64_t) {});
  struct Case {
    sample::ConstraintSpec spec;
    std::string good, bad;
  };
  const Case cases[] = {
      {{Kind::kJsonObject, ""}, R"({"a": 1})", "[1]"},
      {{Kind::kJsonSchema, R"({"type":"object","properties":{"a":{"type":"integer"}}})"},
       R"({"a": 1})",
       R"({"b": 1})"},
      {{Kind::kRegex, "[a-c]+"}, "abc", "abd"},
      {{Kind::kGrammar, "root ::= \"yes\" | \"no\""}, "no", "maybe"},
      {{Kind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"const_string","value":"x"}})"},
       "x",
       "y"},
  };
  text::OutputFormat format;
  for (const Case& one : cases) EXPECT_EQ(after_thoughts(one.spec, format, false), one.spec);
  format.think_begin = "<think>", format.think_end = "</think>";
  for (const Case& one : cases)
    for (const std::string thoughts : {"", "<think>{So}</think>\n", "{So}</think>\n\n"}) {
      const bool in_thoughts = thoughts.starts_with("{");
      const auto compiled = compiler.compile(after_thoughts(one.spec, format, in_thoughts));
      ASSERT_TRUE(compiled) << one.good << compiled.error().message;
      EXPECT_TRUE(allows(*compiled, ids_of(thoughts + one.good, false))) << thoughts + one.good;
      EXPECT_FALSE(allows(*compiled, ids_of(thoughts + one.bad, false))) << thoughts + one.bad;
      EXPECT_NE(allows(*compiled, ids_of(one.good, false)), in_thoughts) << one.good;
    }
  const sample::ConstraintSpec broken{Kind::kStructuralTag, "{"};
  EXPECT_EQ(after_thoughts(broken, format, true), broken);
}

}  // namespace
}  // namespace tally::serve::openai
