// Parameters: a table of what is refused, with which code and which param.

#include "serve/openai/requests.h"

#include "serve/openai/constraints.h"
#include "serve/openai/json.h"

#include <gtest/gtest.h>

namespace tally::serve::openai {
namespace {

constexpr size_t kVocab = 1024;

// "code param" of the first thing wrong, or "ok".
std::string verdict(const std::optional<ApiError>& error) {
  if (!error) return "ok";
  return std::string(kCodes[static_cast<size_t>(error->code)].name) +
         (error->param.empty() ? "" : " " + error->param);
}
std::string completion(const std::string& more) {
  CompletionRequest request;
  return verdict(parse_completion(R"({"model":"m","prompt":"p")" + (more.empty() ? "" : "," + more) + "}",
                                  kVocab, request));
}
std::string chat(const std::string& more) {
  ChatRequest request;
  return verdict(parse_chat(
      R"({"model":"m","messages":[{"role":"user","content":"x"}])" + (more.empty() ? "" : "," + more) + "}",
      kVocab, request));
}
std::string body(const std::string& text) {
  CompletionRequest request;
  return verdict(parse_completion(text, kVocab, request));
}
std::string repeat(const std::string& text, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += text;
  return out;
}

TEST(Requests, A1Documents) {
  for (const char* text : {"", "null", "[]", "\"x\"", "{\"model\":\"m\"", "{\"a\":1,}", "{} {}", "{'a':1}",
                           "{\"a\":1}//", "\xEF\xBB\xBF{}"})
    EXPECT_EQ(body(text), "invalid_json") << text;
  EXPECT_EQ(body(std::string("{}\0", 3)), "invalid_json");
  CompletionRequest request;
  EXPECT_NE(parse_completion("{\"a\":x}", kVocab, request)->message.find("byte 5"), std::string::npos);
}

TEST(Requests, A2DepthAndA3KeysAndNodes) {
  Json json;
  EXPECT_EQ(verdict(parse_json(repeat("[", 100'000), json)), "invalid_json");
  EXPECT_EQ(verdict(parse_json(repeat("{\"a\":", 100'000), json)), "invalid_json");
  EXPECT_FALSE(parse_json(repeat("[", 64) + repeat("]", 64), json));
  EXPECT_TRUE(parse_json(repeat("[", 65) + repeat("]", 65), json));
  EXPECT_EQ(body(R"({"model":"m","prompt":"p","model":"n"})"), "invalid_json");
  EXPECT_EQ(completion(R"("x":{"a":1,"a":2})"), "invalid_json");
  EXPECT_TRUE(parse_json("[" + repeat("1,", 1'000'000) + "1]", json));
}

TEST(Requests, A4Numbers) {
  for (const char* v : {"NaN", "Infinity", "1e999", "0x10", "01", "+1", ".5"})
    EXPECT_EQ(completion(R"("temperature":)" + std::string(v)), "invalid_json") << v;
}

TEST(Requests, A5To12Ranges) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature":-1)", "temperature"},
      {R"("temperature":2.01)", "temperature"},
      {R"("temperature":"0.5")", "temperature"},
      {R"("temperature":1e30)", "temperature"},
      {R"("temperature":1e300)", "temperature"},
      {R"("temperature":true)", "temperature"},
      {R"("top_p":0)", "top_p"},
      {R"("top_p":1.1)", "top_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":1.5)", "top_k"},
      {R"("min_p":2)", "min_p"},
      {R"("presence_penalty":1e9)", "presence_penalty"},
      {R"("frequency_penalty":-1e9)", "frequency_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("repetition_penalty":1e9)", "repetition_penalty"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":2147483648)", "max_tokens"},
      {R"("max_tokens":9223372036854775808)", "max_tokens"},
      {R"("max_tokens":1.5)", "max_tokens"},
      {R"("n":0)", "n"},
      {R"("n":-1)", "n"},
      {R"("n":1000000)", "n"},
      {R"("n":3,"best_of":2)", "best_of"},
      {R"("logprobs":21)", "logprobs"},
      {R"("logprobs":-1)", "logprobs"},
      {R"("logprobs":true)", "logprobs"},
      {R"("stop":"")", "stop"},
      {R"("stop":["a",null])", "stop"},
      {R"("stop":5)", "stop"},
      {R"("stop_token_ids":[1024])", "stop_token_ids[0]"},
      {R"("stop_token_ids":[1,-1])", "stop_token_ids[1]"},
      {R"("logit_bias":{"abc":1})", "logit_bias"},
      {R"("logit_bias":{"1024":1})", "logit_bias"},
      {R"("logit_bias":{"5":1e9})", "logit_bias"},
      {R"("logit_bias":{"5":"x"})", "logit_bias"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("seed":-1)", "seed"},
      {R"("seed":18446744073709551616)", "seed"},
      {R"("seed":9223372036854775808)", "seed"},
      {R"("seed":1.5)", "seed"},
      {R"("min_tokens":5,"max_tokens":4)", "min_tokens"},
      {R"("stream":"yes")", "stream"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("cache_salt":"")", "cache_salt"},
      {R"("cache_salt":"a b")", "cache_salt"},
      {R"("priority":101)", "priority"},
      {R"("typical_p":2)", "typical_p"},
      {R"("ignore_eos":1)", "ignore_eos"},
  };
  for (const auto& [field, param] : cases)
    EXPECT_EQ(completion(field), std::string("invalid_value ") + param) << field;
  EXPECT_EQ(completion(R"("stop":[)" + repeat("\"a\",", 16) + "\"a\"]"), "invalid_value stop");
  EXPECT_EQ(completion(R"("stop":")" + std::string(1 << 20, 'a') + "\""), "invalid_value stop");
  EXPECT_EQ(completion(R"("user":")" + std::string(257, 'a') + "\""), "invalid_value user");
  EXPECT_EQ(
      completion(
          R"("seed":9223372036854775807,"stop":["a","b"],"logprobs":0,"top_k":-1,"temperature":0,"user":"u")"),
      "ok");
  EXPECT_EQ(chat(R"("top_logprobs":1)"), "invalid_value top_logprobs");
  EXPECT_EQ(chat(R"("logprobs":true,"top_logprobs":1000000)"), "invalid_value top_logprobs");
  EXPECT_EQ(chat(R"("logprobs":true,"top_logprobs":20)"), "ok");
}

TEST(Requests, NullMeansAbsent) {
  EXPECT_EQ(
      completion(
          R"("logprobs":null,"stop":null,"stream_options":null,"n":null,"cache_salt":null,"tools":null,"seed":null,"max_tokens":null)"),
      "ok");
}

TEST(Requests, A13Prompts) {
  const auto prompt = [](const std::string& value) {
    return body(R"({"model":"m","prompt":)" + value + "}");
  };
  EXPECT_EQ(prompt("[]"), "invalid_value prompt");
  EXPECT_EQ(prompt("[[]]"), "invalid_value prompt[0]");
  EXPECT_EQ(prompt(R"(["a",1])"), "invalid_value prompt[1]");
  EXPECT_EQ(prompt(R"([[1],2])"), "invalid_value prompt[1]");
  EXPECT_EQ(prompt(R"([1,"a"])"), "invalid_value prompt[1]");
  EXPECT_EQ(prompt("5"), "invalid_value prompt");
  EXPECT_EQ(prompt("[" + repeat("\"a\",", 99'999) + "\"a\"]"), "invalid_value prompt");
  for (const char* id : {"-1", "1024", "2147483648", "1.5", "\"5\"", "null", "true"})
    EXPECT_EQ(prompt("[1,2," + std::string(id) + "]"), "invalid_value prompt[2]") << id;
  EXPECT_EQ(prompt("[[1],[2],[3,4,5,6,7,99999]]"), "invalid_value prompt[2][5]");
  EXPECT_EQ(prompt("[[1],[2]]"), "ok");
  EXPECT_EQ(body(R"({"model":"m"})"), "missing_required_parameter prompt");
  EXPECT_EQ(body(R"({"prompt":"x"})"), "missing_required_parameter model");
}

TEST(Requests, A22UnknownFieldsAreIgnored) {
  std::string fields;
  for (int i = 0; i < 10'000; ++i) fields += (i ? "," : "") + ("\"f" + std::to_string(i) + "\":1");
  EXPECT_EQ(completion(fields), "ok");
}

TEST(Requests, A25Surrogates) {
  EXPECT_EQ(body(R"({"model":"m","prompt":"\ud800"})"), "invalid_json");
  EXPECT_EQ(body("{\"model\":\"m\",\"prompt\":\"\xED\xA0\x80\"}"), "invalid_json");
  CompletionRequest request;
  ASSERT_FALSE(parse_completion(R"({"model":"m","prompt":"a\u0000b"})", kVocab, request));
  EXPECT_EQ(request.prompts[0].text, std::string("a\0b", 3));
}

TEST(Requests, NotBuiltYet) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("guided_json":{})", "guided_json"},
      {R"("typical_p":0.5)", "typical_p"},
  };
  for (const auto& [field, param] : cases)
    EXPECT_EQ(completion(field), std::string("not_supported ") + param) << field;
  EXPECT_EQ(
      completion(R"("n":1,"best_of":1,"use_beam_search":false,"echo":false,"typical_p":1,"priority":0)"),
      "ok");
  EXPECT_EQ(completion(R"("response_format":{"type":"text"})"), "ok");
}

TEST(Requests, PromptsTold) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("echo":1)", "echo"},
      {R"("echo":"true")", "echo"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":0,"echo":false)", "max_tokens"},
      {R"("max_tokens":-1,"echo":true)", "max_tokens"},
      {R"("max_tokens":0,"echo":true,"min_tokens":1)", "min_tokens"},
      {R"("max_tokens":0,"echo":true,"use_beam_search":true,"n":2)", "max_tokens"},
      {R"("prompt_logprobs":21)", "prompt_logprobs"},
      {R"("prompt_logprobs":-1)", "prompt_logprobs"},
      {R"("prompt_logprobs":true)", "prompt_logprobs"},
      {R"("prompt_logprobs":0,"stream":true)", "prompt_logprobs"},
  };
  for (const auto& [field, param] : cases)
    EXPECT_EQ(completion(field), std::string("invalid_value ") + param) << field;
  EXPECT_EQ(chat(R"("echo":true)"), "invalid_value echo");
  EXPECT_EQ(chat(R"("max_tokens":0)"), "invalid_value max_tokens");
  EXPECT_EQ(chat(R"("prompt_logprobs":1,"stream":true)"), "invalid_value prompt_logprobs");
  for (const char* field : {R"("echo":true)", R"("echo":false,"prompt_logprobs":null)",
                            R"("prompt_logprobs":20)", R"("echo":true,"max_tokens":0,"stream":true,"n":2)",
                            R"("echo":true,"logprobs":5,"use_beam_search":true)",
                            R"("echo":true,"prompt_logprobs":3,"logprobs":20,"best_of":3)"})
    EXPECT_EQ(completion(field), "ok") << field;
  EXPECT_EQ(chat(R"("prompt_logprobs":0,"echo":false)"), "ok");
  CompletionRequest request;
  ASSERT_FALSE(parse_completion(
      R"({"model":"m","prompt":"p","max_tokens":0,"echo":true,"prompt_logprobs":2})", kVocab, request));
  EXPECT_TRUE(request.options.choices.echo);
  EXPECT_TRUE(request.options.choices.prompt_only);
  EXPECT_EQ(request.options.choices.prompt_logprobs, 2);
}

TEST(Requests, Constraints) {
  const auto spec = [](const std::string& fields) {
    CompletionRequest request;
    const auto error = parse_completion(R"({"model":"m","prompt":"p",)" + fields + "}", kVocab, request);
    EXPECT_FALSE(error) << fields << ": " << (error ? error->message : "");
    return request.options.constraint.value_or(Constrained{});
  };
  using Kind = sample::ConstraintSpec::Kind;
  EXPECT_EQ(spec(R"("response_format":{"type":"json_object"})").spec.kind, Kind::kJsonObject);
  const Constrained schema = spec(
      R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":false,"schema":{"b":1.5,"a":["\u00e9\n",null,true,-3]}}})");
  EXPECT_EQ(schema.spec.kind, Kind::kJsonSchema);
  EXPECT_EQ(schema.spec.text, "{\"b\":1.5,\"a\":[\"\xC3\xA9\\n\",null,true,-3]}");
  EXPECT_EQ(schema.param, "response_format.json_schema.schema");
  EXPECT_EQ(spec(R"("structured_outputs":{"json":"{\"type\":\"null\"}"})").spec.text, R"({"type":"null"})");
  EXPECT_EQ(spec(R"("structured_outputs":{"regex":"a+","json":null})").spec.text, "a+");
  EXPECT_EQ(spec(R"("structured_outputs":{"choice":["a\"","b"]})").spec,
            sample::choice_of(std::vector<std::string>{"a\"", "b"}));
  const std::pair<const char*, const char*> wrong[] = {
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":5}}})",
       "invalid_schema response_format.json_schema.schema"},
      {R"("structured_outputs":{"json":"{"})", "invalid_schema structured_outputs.json"},
      {R"("structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"})",
       "invalid_value structured_outputs.regex"},
      {R"("structured_outputs":{"regex":"a","whitespace_pattern":" "})",
       "not_supported structured_outputs.whitespace_pattern"},
      {R"("response_format":{"type":"yaml"})", "invalid_value response_format.type"},
  };
  for (const auto& [field, answer] : wrong) EXPECT_EQ(completion(field), answer) << field;
}

TEST(Requests, SchemasAreJudgedWithTheirPath) {
  const auto judge = [](const char* text) {
    Json json;
    EXPECT_FALSE(parse_json(text, json)) << text;
    return judge_schema(json, "s");
  };
  for (const char* good :
       {"true", "{}", R"({"type":["null","string"]})", R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{}}})",
        R"({"$ref":"#"})", R"({"$ref":"#/anyOf/1","anyOf":[{},true]})",
        R"({"properties":{"not":{"type":"object"}}})", R"({"const":{"type":5}})", R"({"uniqueItems":false})"})
    EXPECT_EQ(judge(good), "") << good;
  const std::pair<const char*, const char*> bad[] = {
      {"5", "s must be a schema"},
      {R"({"properties":{"a":{"items":{"type":"strin"}}}})", "s.properties.a.items.type is \"strin\""},
      {R"({"type":[]})", "s.type"},
      {R"({"anyOf":[true,{"$ref":"http://x/y"}]})", "s.anyOf[1].$ref is"},
      {R"({"$ref":"#/$defs/b","$defs":{}})", "not there"},
      {R"({"$ref":"#/anyOf/2","anyOf":[{},true]})", "not there"},
      {R"({"additionalProperties":{"not":{}}})", "s.additionalProperties.not is not supported"},
      {R"({"uniqueItems":true})", "s.uniqueItems"},
      {R"({"anyOf":[]})", "s.anyOf"},
      {R"({"properties":[]})", "s.properties"},
      {R"({"enum":[]})", "s.enum"},
      {R"({"items":[{}]})", "prefixItems"},
  };
  for (const auto& [text, says] : bad)
    EXPECT_NE(judge(text).find(says), std::string::npos) << text << ": " << judge(text);
}

TEST(Requests, Queueing) {
  CompletionRequest request;
  ASSERT_FALSE(parse_completion(R"({"model":"m","prompt":"p","priority":-100,"cache_salt":"aZ_-9"})", kVocab,
                                request));
  EXPECT_EQ(request.options.priority, -100);
  EXPECT_EQ(request.options.cache_salt, "aZ_-9");
  EXPECT_EQ(completion(R"("priority":-101)"), "invalid_value priority");
  EXPECT_EQ(completion(R"("priority":1.5)"), "invalid_value priority");
  EXPECT_EQ(completion(R"("cache_salt":")" + repeat("a", 65) + "\""), "invalid_value cache_salt");
}

TEST(Requests, Choices) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("n":17)", "n"},
      {R"("n":"2")", "n"},
      {R"("n":1.5)", "n"},
      {R"("best_of":17)", "best_of"},
      {R"("best_of":0)", "best_of"},
      {R"("n":2,"best_of":1)", "best_of"},
      {R"("best_of":3,"stream":true)", "best_of"},
      {R"("n":2,"best_of":3,"stream":true)", "best_of"},
  };
  for (const auto& [field, param] : cases) {
    EXPECT_EQ(completion(field), std::string("invalid_value ") + param) << field;
    EXPECT_EQ(chat(field), std::string("invalid_value ") + param) << field;
  }
  for (const char* field : {R"("n":16)", R"("n":2,"best_of":2,"stream":true)", R"("n":3,"best_of":16)"}) {
    EXPECT_EQ(completion(field), "ok") << field;
    EXPECT_EQ(chat(field), "ok") << field;
  }
  const std::string prompts = R"({"model":"m","prompt":[)" + repeat("\"a\",", 31) + R"("a"])";
  EXPECT_EQ(body(prompts + R"(,"n":8})"), "ok");
  EXPECT_EQ(body(prompts + R"(,"n":9})"), "invalid_value n");
  EXPECT_EQ(body(prompts + R"(,"n":8,"best_of":9})"), "invalid_value best_of");
}

TEST(Requests, Beams) {
  const std::string beams = R"("use_beam_search":true,"n":4,)";
  const std::pair<const char*, const char*> cases[] = {
      {R"("use_beam_search":1)", "use_beam_search"},
      {R"("length_penalty":"1")", "length_penalty"},
      {R"("length_penalty":5.5)", "length_penalty"},
      {R"("length_penalty":-1e300)", "length_penalty"},
      {R"("early_stopping":"always")", "early_stopping"},
      {R"("early_stopping":1)", "early_stopping"},
      {R"("stream":true)", "stream"},
      {R"("stop":"x")", "stop"},
      {R"("logit_bias":{"5":1})", "logit_bias"},
      {R"("repetition_penalty":1.1)", "repetition_penalty"},
      {R"("presence_penalty":0.5)", "presence_penalty"},
      {R"("frequency_penalty":0.5)", "frequency_penalty"},
      {R"("temperature":3)", "temperature"},
  };
  for (const auto& [field, param] : cases) {
    const std::string all = (std::string_view(field).starts_with("\"use") ? "" : beams) + field;
    EXPECT_EQ(completion(all), std::string("invalid_value ") + param) << all;
    EXPECT_EQ(chat(all), std::string("invalid_value ") + param) << all;
  }
  EXPECT_EQ(completion(R"("length_penalty":2)"), "invalid_value length_penalty");
  EXPECT_EQ(completion(R"("early_stopping":true)"), "invalid_value early_stopping");
  EXPECT_EQ(completion(R"("length_penalty":1.0,"early_stopping":false,"use_beam_search":false)"), "ok");
  for (const char* field : {R"("temperature":0)", R"("temperature":0.7,"top_p":0.5,"seed":1)",
                            R"("stop_token_ids":[5],"min_tokens":2,"ignore_eos":true)"})
    EXPECT_EQ(completion(beams + field), "ok") << field;
  CompletionRequest request;
  ASSERT_FALSE(parse_completion(R"({"model":"m","prompt":"p","stop_token_ids":[7,5,7]})", kVocab, request));
  EXPECT_EQ(request.options.params.stop_ids, (std::vector<TokenId>{TokenId{5}, TokenId{7}}));
  request = {};
  ASSERT_FALSE(parse_completion(R"({"model":"m","prompt":"p","use_beam_search":true,"n":2,"best_of":5,)"
                                R"("length_penalty":-0.5,"early_stopping":true})",
                                kVocab, request));
  EXPECT_EQ(request.options.choices.n, 2u);
  EXPECT_EQ(request.options.choices.best_of, 5u);
  ASSERT_TRUE(request.options.choices.beams);
  EXPECT_EQ(request.options.choices.beams->width, 5u);
  EXPECT_EQ(request.options.choices.beams->length_penalty, -0.5f);
  EXPECT_EQ(request.options.choices.beams->early_stopping, sample::EarlyStop::kWidth);
}

TEST(Requests, Messages) {
  const auto messages = [](const std::string& value) {
    ChatRequest request;
    return verdict(parse_chat(R"({"model":"m","messages":)" + value + "}", kVocab, request));
  };
  EXPECT_EQ(messages("[]"), "invalid_value messages");
  EXPECT_EQ(messages("\"x\""), "invalid_value messages");
  EXPECT_EQ(messages("[5]"), "invalid_value messages[0]");
  EXPECT_EQ(messages(R"([{"content":"x"}])"), "missing_required_parameter messages[0].role");
  EXPECT_EQ(messages(R"([{"role":"king","content":"x"}])"), "invalid_value messages[0].role");
  EXPECT_EQ(messages(R"([{"role":"user","content":5}])"), "invalid_value messages[0].content");
  EXPECT_EQ(messages(R"([{"role":"user"}])"), "missing_required_parameter messages[0].content");
  EXPECT_EQ(
      messages(
          R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}])"),
      "not_supported messages[0].content[0].type");
  EXPECT_EQ(messages(R"([{"role":"user","content":[)" + repeat(R"({"type":"text","text":"a"},)", 300) +
                     R"({"type":"text","text":"a"}]}])"),
            "invalid_value messages[0].content");
  EXPECT_EQ(messages(R"([{"role":"user","content":"x"},{"role":"assistant","content":null}])"), "ok");
  ChatRequest request;
  ASSERT_FALSE(parse_chat(
      R"({"model":"m","messages":[{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})",
      kVocab, request));
  const auto& message = std::get<text::ValueObject>(std::get<text::ValueList>(request.messages.data)[0].data);
  EXPECT_EQ(std::get<std::string>(message[0].second.data), "system");
  EXPECT_EQ(std::get<std::string>(message[1].second.data), "a\nb");
}

TEST(Requests, J7Templates) {
  EXPECT_EQ(chat(R"("chat_template":"x")"), "invalid_value chat_template");
  for (const char* name : {"messages", "tools", "add_generation_prompt"})
    EXPECT_EQ(chat(R"("chat_template_kwargs":{")" + std::string(name) + "\":1}"),
              "invalid_value chat_template_kwargs");
  EXPECT_EQ(chat(R"("chat_template_kwargs":{"a":[1]})"), "invalid_value chat_template_kwargs");
  EXPECT_EQ(chat(R"("chat_template_kwargs":{"a":")" + std::string(300, 'x') + "\"}"),
            "invalid_value chat_template_kwargs");
  EXPECT_EQ(chat(R"("chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":false)"), "ok");
}

TEST(Requests, MaxTokensOfChat) {
  ChatRequest request;
  ASSERT_FALSE(parse_chat(
      R"({"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":5,"max_completion_tokens":7})",
      kVocab, request));
  EXPECT_EQ(request.options.max_tokens, 7u);
}

}  // namespace
}  // namespace tally::serve::openai
