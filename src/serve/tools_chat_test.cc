// Tool calls and thoughts in chats, over real sockets: what a client gets, in one piece and in a stream.

#include "serve/rig_test_support.h"

#include <algorithm>

namespace tally::serve {
namespace {

using nlohmann::json;

const char* const kWeather =
    R"({"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}})";
const std::string kCall =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Graz\"}}\n</tool_call>";
// The thoughts are opened where the last message says so.
const char* const kThinking =
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function|tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if enable_thinking %}<think>\n{% endif %}";

RigOptions writing(const std::string& text, const std::string& source = kThinking) {
  RigOptions options;
  options.engine = spelling(text);
  options.chat_template = source;
  return options;
}
std::string chat_body(const std::string& more,
                      const std::string& messages = R"([{"role":"user","content":"Hi"}])") {
  return R"({"model":"tiny","messages":)" + messages + more + "}";
}
const std::string kWithTools = std::string(R"(,"tools":[)") + kWeather + "]";

json choice_of(const Reply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  return reply.status == 200 ? json::parse(reply.body)["choices"][0] : json();
}
std::string told_error(const Reply& reply) {
  const json error = json::parse(reply.body)["error"];
  return std::to_string(reply.status) + " " + error["code"].get<std::string>() + " " +
         (error["param"].is_null() ? "" : error["param"].get<std::string>());
}
std::string prompt_of(const Rig& rig) {
  std::string text;
  for (const TokenId id : rig.engine.last_request.prompt) text += tiny_tokenizer().bytes_with_special(id);
  return text;
}

// A stream as its client puts it together; what is wrong with a frame is a failure.
struct Joined {
  std::string content, reasoning, finish_reason;
  std::vector<json> calls;  // {"id", "name", "arguments"}
  json usage;
};
void add_call(Joined& joined, const json& fragment) {
  const auto index = fragment["index"].get<size_t>();
  if (index == joined.calls.size()) {
    EXPECT_EQ(fragment["type"], "function");
    EXPECT_EQ(fragment["function"]["arguments"], "") << "the name comes alone";
    joined.calls.push_back(
        {{"id", fragment["id"]}, {"name", fragment["function"]["name"]}, {"arguments", ""}});
    return;
  }
  ASSERT_EQ(index + 1, joined.calls.size()) << "arguments are of the call that began last";
  EXPECT_FALSE(fragment.contains("id") || fragment["function"].contains("name"));
  EXPECT_NE(fragment["function"]["arguments"], "");
  joined.calls.back()["arguments"] = joined.calls.back()["arguments"].get<std::string>() +
                                     fragment["function"]["arguments"].get<std::string>();
}
Joined joined(const Reply& reply, size_t index = 0) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  Joined out;
  const auto all = events(reply.body);
  EXPECT_EQ(all.back(), "[DONE]");
  bool is_first = true;
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    if (all[i].contains("usage")) out.usage = all[i]["usage"];
    if (all[i]["choices"].empty() || all[i]["choices"][0]["index"] != index) continue;
    const json& choice = all[i]["choices"][0];
    const json& delta = choice["delta"];
    EXPECT_EQ(delta.contains("role"), is_first);
    is_first = false;
    EXPECT_EQ(out.finish_reason, "") << "something came after the end";
    if (delta.contains("content") && delta["content"].is_string()) out.content += delta["content"];
    if (delta.contains("reasoning_content")) out.reasoning += delta["reasoning_content"];
    if (delta.contains("tool_calls"))
      for (const json& fragment : delta["tool_calls"]) add_call(out, fragment);
    if (!choice["finish_reason"].is_null()) out.finish_reason = choice["finish_reason"];
  }
  return out;
}

bool is_call_id(const std::string& id) {
  return id.starts_with("call_") && id.size() == 29 &&
         std::all_of(id.begin() + 5, id.end(), [](unsigned char c) { return std::isalnum(c); });
}

TEST(ToolsChat, ACallInOnePiece) {
  Rig rig(writing(kCall));
  const json choice = choice_of(rig.post("/v1/chat/completions", chat_body(kWithTools)));
  EXPECT_NE(prompt_of(rig).find("get_weather"), std::string::npos);
  const json& message = choice["message"];
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_FALSE(message.contains("reasoning_content"));
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  const json& call = message["tool_calls"][0];
  EXPECT_TRUE(is_call_id(call["id"])) << call;
  EXPECT_FALSE(call.contains("index"));
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "get_weather");
  EXPECT_EQ(call["function"]["arguments"], R"({"city": "Graz"})");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const json again = choice_of(rig.post("/v1/chat/completions", chat_body(kWithTools)));
  EXPECT_NE(again["message"]["tool_calls"][0]["id"], call["id"]);
}

TEST(ToolsChat, CallsInAStream) {
  Rig rig(writing("Let me see.\n" + kCall + "\n" + kCall + "\n"));
  const Joined all = joined(rig.post("/v1/chat/completions", chat_body(kWithTools + R"(,"stream":true)")));
  EXPECT_EQ(all.content, "Let me see.");
  EXPECT_EQ(all.finish_reason, "tool_calls");
  ASSERT_EQ(all.calls.size(), 2u);
  for (const json& call : all.calls) {
    EXPECT_TRUE(is_call_id(call["id"]));
    EXPECT_EQ(call["name"], "get_weather");
    EXPECT_EQ(call["arguments"], R"({"city": "Graz"})");
  }
  EXPECT_NE(all.calls[0]["id"], all.calls[1]["id"]);
}

TEST(ToolsChat, NoneMeansNoTools) {
  Rig rig(writing(kCall));
  const json choice =
      choice_of(rig.post("/v1/chat/completions", chat_body(kWithTools + R"(,"tool_choice":"none")")));
  EXPECT_EQ(choice["message"]["content"], kCall);
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(prompt_of(rig).find("get_weather"), std::string::npos);
  // Without tools the same.
  EXPECT_EQ(choice_of(rig.post("/v1/chat/completions", chat_body("")))["message"]["content"], kCall);
}

TEST(ToolsChat, WhatIsNoCallIsContent) {
  Rig rig(writing("<tool_call>get_weather(Graz)</tool_call>"));
  const json choice = choice_of(rig.post("/v1/chat/completions", chat_body(kWithTools)));
  EXPECT_EQ(choice["message"]["content"], "<tool_call>get_weather(Graz)</tool_call>");
  EXPECT_EQ(choice["finish_reason"], "stop");
}

// R11: wherever max_tokens cuts, frames are well formed, and both ways of telling agree.
TEST(ToolsChat, R11CutAnywhere) {
  Rig rig(writing(kCall));
  const size_t tokens = tiny_tokenizer().encode(kCall, false, false).value().size();
  for (size_t n = 1; n <= tokens; ++n) {
    const std::string body = kWithTools + R"(,"max_tokens":)" + std::to_string(n);
    const json choice = choice_of(rig.post("/v1/chat/completions", chat_body(body)));
    const Joined all = joined(rig.post("/v1/chat/completions", chat_body(body + R"(,"stream":true)")));
    EXPECT_EQ(choice["finish_reason"], "length") << n;
    EXPECT_EQ(all.finish_reason, "length") << n;
    const json& message = choice["message"];
    const json calls = message.contains("tool_calls") ? message["tool_calls"] : json::array();
    ASSERT_EQ(all.calls.size(), calls.size()) << n;
    EXPECT_EQ(all.content, message["content"].is_null() ? "" : message["content"].get<std::string>()) << n;
    const std::string wanted = R"({"city": "Graz"})";
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(all.calls[i]["arguments"], calls[i]["function"]["arguments"]);
      EXPECT_TRUE(wanted.starts_with(calls[i]["function"]["arguments"].get<std::string>()));
    }
  }
}

TEST(ToolsChat, OneCallEndsTheAnswer) {
  Rig rig(writing(kCall + kCall + " and more"));
  const std::string body = kWithTools + R"(,"parallel_tool_calls":false)";
  const json choice = choice_of(rig.post("/v1/chat/completions", chat_body(body)));
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Joined all = joined(rig.post("/v1/chat/completions", chat_body(body + R"(,"stream":true)")));
  EXPECT_EQ(all.calls.size(), 1u);
  EXPECT_EQ(all.content, "");
  EXPECT_EQ(all.finish_reason, "tool_calls");
  EXPECT_TRUE(eventually([&] { return rig.engine.live() == 0; }));
}

TEST(ToolsChat, StopStringsAreFoundInAllText) {
  Rig rig(writing("<think>One two</think>Three" + kCall));
  const auto stopped = [&](const std::string& stop) {
    const std::string body = kWithTools + R"(,"stop":[")" + stop + "\"]";
    const json choice = choice_of(rig.post("/v1/chat/completions", chat_body(body)));
    const Joined all = joined(rig.post("/v1/chat/completions", chat_body(body + R"(,"stream":true)")));
    EXPECT_EQ(choice["stop_reason"], stop);
    EXPECT_EQ(choice["finish_reason"], all.finish_reason);
    const json& message = choice["message"];
    EXPECT_EQ(message.value("reasoning_content", ""), all.reasoning);
    EXPECT_EQ(message["content"].is_null() ? "" : message["content"].get<std::string>(), all.content);
    return all.reasoning + "|" + all.content + "|" +
           (all.calls.empty() ? "" : all.calls[0]["arguments"].get<std::string>()) + "|" + all.finish_reason;
  };
  EXPECT_EQ(stopped(" two"), "One|||stop");
  EXPECT_EQ(stopped("ree"), "One two|Th||stop");
  EXPECT_EQ(stopped("Graz"), "One two|Three|{\"city\": \"|stop");
  EXPECT_EQ(stopped("</tool_call>"), "One two|Three|{\"city\": \"Graz\"}|tool_calls");
}

TEST(ToolsChat, ThoughtsAreToldApart) {
  Rig rig(writing("<think>\nHe says hi.\n</think>\n\nHello"));
  const json answer = json::parse(rig.post("/v1/chat/completions", chat_body("")).body);
  const json& message = answer["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "He says hi.");
  EXPECT_EQ(message["content"], "Hello");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  // Those after which the thoughts went on: from the one that ends the first marker to the last before the
  // other.
  const auto tokens = [](const std::string& text) {
    return tiny_tokenizer().encode(text, false, false).value().size();
  };
  const size_t before_end = tokens("<think>\nHe says hi.\n</think>") - 1,
               before_begin = tokens("<think>") - 1;
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], before_end - before_begin);
  const Joined all = joined(rig.post("/v1/chat/completions",
                                     chat_body(R"(,"stream":true,"stream_options":{"include_usage":true})")));
  EXPECT_EQ(all.reasoning, "He says hi.");
  EXPECT_EQ(all.content, "Hello");
  EXPECT_EQ(all.usage, answer["usage"]);
}

TEST(ToolsChat, ThePromptOpensTheThoughts) {
  Rig rig(writing("He says hi.\n</think>Hello"));
  const std::string thinking = R"(,"chat_template_kwargs":{"enable_thinking":true})";
  const json message = choice_of(rig.post("/v1/chat/completions", chat_body(thinking)))["message"];
  EXPECT_EQ(message["reasoning_content"], "He says hi.");
  EXPECT_EQ(message["content"], "Hello");
  const json plain = choice_of(rig.post("/v1/chat/completions", chat_body("")))["message"];
  EXPECT_FALSE(plain.contains("reasoning_content"));
  EXPECT_EQ(plain["content"], "He says hi.\n</think>Hello");
  // What a user wrote opens nothing.
  const json user = choice_of(
      rig.post("/v1/chat/completions", chat_body("", R"([{"role":"user","content":"<think>"}])")))["message"];
  EXPECT_FALSE(user.contains("reasoning_content"));
}

TEST(ToolsChat, CutInsideThoughts) {
  Rig rig(writing("<think>One two three four five</think>x"));
  const size_t tokens = tiny_tokenizer().encode("<think>One two", false, false).value().size();
  for (const std::string stream : {"", R"(,"stream":true)"}) {
    const Reply reply =
        rig.post("/v1/chat/completions", chat_body(R"(,"max_tokens":)" + std::to_string(tokens) + stream));
    if (stream.empty()) {
      const json choice = choice_of(reply);
      EXPECT_TRUE(choice["message"]["content"].is_null());
      EXPECT_TRUE(choice["message"]["reasoning_content"].get<std::string>().starts_with("One"));
      EXPECT_EQ(choice["finish_reason"], "length");
    } else {
      const Joined all = joined(reply);
      EXPECT_EQ(all.content, "");
      EXPECT_TRUE(all.reasoning.starts_with("One"));
      EXPECT_EQ(all.finish_reason, "length");
    }
  }
}

TEST(ToolsChat, ReasoningNoneLeavesThemInTheContent) {
  RigOptions options = writing("<think>a</think>b");
  options.settings.output.reasoning = false;
  Rig rig(options);
  const json answer = json::parse(rig.post("/v1/chat/completions", chat_body("")).body);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "<think>a</think>b");
  EXPECT_FALSE(answer["choices"][0]["message"].contains("reasoning_content"));
  EXPECT_FALSE(answer["usage"].contains("completion_tokens_details"));
}

TEST(ToolsChat, ThoughtsThenCallsOfEachChoice) {
  Rig rig(writing("<think>I need the weather.</think>\n" + kCall));
  const std::string body = kWithTools + R"(,"n":2,"logprobs":true,"temperature":0)";
  const json choices = json::parse(rig.post("/v1/chat/completions", chat_body(body)).body)["choices"];
  ASSERT_EQ(choices.size(), 2u);
  const Reply stream = rig.post("/v1/chat/completions", chat_body(body + R"(,"stream":true)"));
  const size_t tokens =
      tiny_tokenizer().encode("<think>I need the weather.</think>\n" + kCall, false, false).value().size() +
      1;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(choices[i]["message"]["reasoning_content"], "I need the weather.");
    EXPECT_TRUE(choices[i]["message"]["content"].is_null());
    EXPECT_EQ(choices[i]["message"]["tool_calls"][0]["function"]["arguments"], R"({"city": "Graz"})");
    EXPECT_EQ(choices[i]["finish_reason"], "tool_calls");
    EXPECT_EQ(choices[i]["logprobs"]["content"].size(), tokens) << "of every token, markers too";
    const Joined all = joined(stream, i);
    EXPECT_EQ(all.reasoning, "I need the weather.");
    EXPECT_EQ(all.calls.at(0)["arguments"], R"({"city": "Graz"})");
  }
  size_t streamed = 0;
  const auto all_events = events(stream.body);
  for (const json& event : all_events)
    if (event.is_object() && !event["choices"].empty())
      streamed += event["choices"][0]["logprobs"]["content"].size();
  EXPECT_EQ(streamed, 2 * tokens);
}

TEST(ToolsChat, EarlierCallsReachTheTemplate) {
  Rig rig(writing("Fine."));
  const std::string messages =
      R"([{"role":"user","content":"Hi"},{"role":"assistant","content":null,"reasoning_content":"Hm.","tool_calls":)"
      R"([{"id":"call_1","type":"function","function":{"name":"get_weather","arguments":"{\"city\":\"Graz\"}"}}]},)"
      R"({"role":"tool","tool_call_id":"call_1","content":"sun"}])";
  choice_of(rig.post("/v1/chat/completions", chat_body("", messages)));
  EXPECT_EQ(
      prompt_of(rig),
      "user:Hiassistant:<think>Hm.</think><tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": "
      "\"Graz\"}}</tool_call>tool:sun");
}

// This rig has nothing that constrains: what a forced call asks for is refused, never left to the model.
TEST(ToolsChat, ForcedCallsAreConstrained) {
  Rig rig(writing(kCall));
  const std::string required = kWithTools + R"(,"tool_choice":"required")";
  EXPECT_EQ(told_error(rig.post("/v1/chat/completions", chat_body(required))),
            "501 not_supported tool_choice");
  EXPECT_EQ(told_error(rig.post("/v1/chat/completions",
                                chat_body(required + R"(,"response_format":{"type":"json_object"})"))),
            "400 invalid_value tool_choice");
  RigOptions options = writing(kCall);
  options.settings.output.tools = text::ToolFormat::kNone;
  Rig none(options);
  EXPECT_EQ(told_error(none.post("/v1/chat/completions", chat_body(required))),
            "400 invalid_value tool_choice");
}

TEST(ToolsChat, ToolsAreNeverDroppedSilently) {
  {
    Rig rig(writing("x", "{{ messages[0].content }}<tool_call>"));
    const Reply reply = rig.post("/v1/chat/completions", chat_body(kWithTools));
    EXPECT_EQ(told_error(reply), "400 invalid_value tools");
    EXPECT_NE(reply.body.find("--chat-template"), std::string::npos);
    EXPECT_EQ(rig.post("/v1/chat/completions", chat_body(kWithTools + R"(,"tool_choice":"none")")).status,
              200);
  }
  const std::string unknown = "{{ tools|tojson }}{{ messages[0].content }}<TOOLCALL>";
  {
    Rig rig(writing(kCall, unknown));
    const Reply reply = rig.post("/v1/chat/completions", chat_body(kWithTools));
    EXPECT_EQ(told_error(reply), "400 invalid_value tools");
    EXPECT_NE(reply.body.find("--tool-format"), std::string::npos);
  }
  for (const auto format : {text::ToolFormat::kNone, text::ToolFormat::kHermes}) {
    RigOptions options = writing(kCall, unknown);
    options.settings.output.tools = format;
    Rig rig(options);
    const json message = choice_of(rig.post("/v1/chat/completions", chat_body(kWithTools)))["message"];
    EXPECT_EQ(message.contains("tool_calls"), format == text::ToolFormat::kHermes);
    EXPECT_EQ(message["content"].is_null(), format == text::ToolFormat::kHermes);
  }
}

}  // namespace
}  // namespace tally::serve
