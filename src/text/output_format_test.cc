// Which formats are found in templates and vocabularies, and which shape templates want calls in.

#include "text/chat_test_support.h"
#include "text/detokenizer.h"
#include "text/output.h"
#include "text/test_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

namespace tally::text {
namespace {

Tokenizer tokenizer_with(const std::vector<TestToken>& more) {
  auto loaded = TestModel::bpe("gpt-2", more, {}).load();
  EXPECT_TRUE(loaded) << loaded.error().message;
  return std::move(*loaded);
}

ChatTemplate template_of(const std::string& source) {
  auto parsed = ChatTemplate::parse(source);
  EXPECT_TRUE(parsed) << parsed.error().message;
  return std::move(*parsed);
}

std::string found(const OutputFormat& format) {
  std::string out(tool_format_name(format.tools));
  if (format.names_first) out += " args";
  if (!format.think_begin.empty()) out += " " + format.think_begin;
  return out;
}

// What the templates of many makers say; those of other formats than ours are none, not something near.
TEST(OutputFormats, OfTheGoldenTemplates) {
  const std::map<std::string, std::string> expected = {
      {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "none"},
      {"GLM-4.6", "none <think>"},
      {"HuggingFaceTB-SmolLM3-3B", "none <think>"},
      {"LFM2-8B-A1B", "none"},
      {"Mistral-Small-3.2-24B-Instruct-2506", "mistral args"},
      {"NVIDIA-Nemotron-Nano-v2", "none <think>"},
      {"Qwen-QwQ-32B", "hermes <think>"},
      {"Qwen-Qwen2.5-7B-Instruct", "hermes"},
      {"Qwen-Qwen3-0.6B", "hermes <think>"},
      {"Qwen3-Coder", "none"},
      {"SmolLM2-135M-Instruct", "none"},
      {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "none <think>"},
      {"deepseek-ai-DeepSeek-V3.1", "none <think>"},
      {"gemma3-turns", "none"},
      {"google-gemma-2-2b-it", "none"},
      {"google-gemma-4-31B-it", "none"},
      {"ibm-granite-granite-3.3-2B-Instruct", "none <think>"},
      {"meta-llama-Llama-3.1-8B-Instruct", "llama3"},
      {"meta-llama-Llama-3.2-3B-Instruct", "llama3"},
      {"meta-llama-Llama-3.3-70B-Instruct", "llama3"},
      {"microsoft-Phi-3.5-mini-instruct", "none"},
      {"mistralai-Mistral-Nemo-Instruct-2407", "mistral"},
      {"openai-gpt-oss-120b", "none"},
  };
  const Tokenizer plain = tokenizer_with({});
  size_t seen = 0;
  for (const auto& file : std::filesystem::directory_iterator("tests/golden/templates")) {
    if (file.path().extension() != ".jinja") continue;
    const auto row = expected.find(file.path().stem().string());
    ASSERT_NE(row, expected.end()) << file.path();
    const ChatTemplate chat = template_of(chat_test::read_text(file.path().string()));
    EXPECT_EQ(found(find_output_format(chat, plain, {})), row->second) << file.path();
    ++seen;
  }
  EXPECT_EQ(seen, expected.size());
  EXPECT_EQ(found(find_output_format(*ChatTemplate::builtin("chatml"), plain, {})), "hermes");
  EXPECT_EQ(found(find_output_format(*ChatTemplate::builtin("llama3"), plain, {})), "llama3");
  EXPECT_EQ(found(find_output_format(*ChatTemplate::builtin("gemma"), plain, {})), "none");
}

TEST(OutputFormats, OfTheVocabulary) {
  const ChatTemplate chat = template_of("{{ tools }}{{ messages[0].content }}");
  const auto with = [&](const std::vector<TestToken>& tokens) {
    return found(find_output_format(chat, tokenizer_with(tokens), {}));
  };
  EXPECT_EQ(with({}), "none");
  EXPECT_EQ(with({{"<tool_call>", 4}}), "hermes");
  EXPECT_EQ(with({{"[TOOL_CALLS]", 3}}), "mistral");
  EXPECT_EQ(with({{"<|python_tag|>", 3}}), "llama3");
  EXPECT_EQ(with({{"<think>", 4}}), "none");
  EXPECT_EQ(with({{"<think>", 4}, {"</think>", 4}}), "none <think>");
  EXPECT_EQ(with({{"[THINK]", 3}, {"[/THINK]", 3}}), "none [THINK]");
}

TEST(OutputFormats, WishesComeFirst) {
  const ChatTemplate chat = template_of(chat_test::read_text("tests/golden/templates/Qwen-Qwen3-0.6B.jinja"));
  const Tokenizer plain = tokenizer_with({});
  EXPECT_EQ(found(find_output_format(chat, plain, {ToolFormat::kNone, true})), "none <think>");
  EXPECT_EQ(found(find_output_format(chat, plain, {ToolFormat::kLlama3, false})), "llama3");
  EXPECT_EQ(tool_format_of("mistral"), ToolFormat::kMistral);
  EXPECT_EQ(tool_format_of("none"), ToolFormat::kNone);
  EXPECT_EQ(tool_format_of("auto"), std::nullopt);
}

// A vocabulary whose markers are control tokens, most of them.
const std::vector<TestToken> kHidden = {
    {"[TOOL_CALLS]", 3}, {"[ARGS]", 3}, {"<|end|>", 3}, {"<think>", 4}, {"</think>", 3}};
// What a client sees of all of them.
std::string text_of_hidden(const Tokenizer& tokenizer, const OutputFormat& format) {
  DetokenizerOptions options;
  options.spelled = format.spelled();
  Detokenizer detokenizer(tokenizer, options);
  std::string out;
  for (size_t i = 0; i < kHidden.size(); ++i)
    out += detokenizer.feed(TokenId{256 + static_cast<int32_t>(i)});
  return out + detokenizer.finish();
}

// Markers that are control tokens give no text by themselves; those of the format are spelled out, others
// not.
TEST(OutputFormats, HiddenMarkersAreSpelled) {
  const Tokenizer tokenizer = tokenizer_with(kHidden);
  const ChatTemplate chat = template_of("{{ tools }}[TOOL_CALLS]<think></think>");
  const OutputFormat format = find_output_format(chat, tokenizer, {});
  const auto text = [&](const OutputFormat& with) { return text_of_hidden(tokenizer, with); };
  EXPECT_EQ(text(format), "[TOOL_CALLS][ARGS]<think></think>");
  EXPECT_EQ(text(format.without_calls()), "<think></think>");
  EXPECT_EQ(text({}), "<think>");
  EXPECT_EQ(hidden_markers(tokenizer), (std::vector<TokenId>{TokenId{256}, TokenId{257}, TokenId{260}}));
}

// What is left in the content for clients to read is there with its markers, whatever a template says.
TEST(OutputFormats, MarkersLeftToClientsAreSpelled) {
  const Tokenizer tokenizer = tokenizer_with(kHidden);
  for (const char* source : {"{{ tools }}[TOOL_CALLS]<think></think>", "{{ tools }}"}) {
    const ChatTemplate chat = template_of(source);
    const auto text = [&](const OutputWish& wish) {
      const OutputFormat format = find_output_format(chat, tokenizer, wish);
      return text_of_hidden(tokenizer, format) + " " + text_of_hidden(tokenizer, format.without_calls());
    };
    const std::string all = "[TOOL_CALLS][ARGS]<think></think>";
    EXPECT_EQ(text({ToolFormat::kNone, false}), all + " " + all);
    EXPECT_EQ(text({ToolFormat::kMistral, false}), all + " <think></think>");
    EXPECT_EQ(text({ToolFormat::kHermes, false}), "<think></think> <think></think>");
  }
  const OutputFormat none =
      find_output_format(template_of("<think></think>"), tokenizer, {ToolFormat::kNone, false});
  EXPECT_TRUE(none.is_plain()) << "nothing is taken out of the text";
  // A format that is not known is not the wish to read it: what is hidden stays so.
  const OutputFormat unknown = find_output_format(template_of("{{ tools }}<TOOLCALL>"), tokenizer, {});
  EXPECT_EQ(unknown.tools, ToolFormat::kNone);
  EXPECT_EQ(text_of_hidden(tokenizer, unknown), "<think></think>");
}

TEST(OutputFormats, ThePromptMayOpenTheThoughts) {
  OutputFormat format;
  format.think_begin = "<think>", format.think_end = "</think>";
  EXPECT_TRUE(opens_thoughts({{"hi", false}, {"<|im_end|><think>\n", true}}, format));
  EXPECT_FALSE(opens_thoughts({{"hi", false}, {"<think>\n\n</think>\n\n", true}}, format));
  EXPECT_FALSE(opens_thoughts({{"a", true}, {"<think>\n", false}}, format));
  EXPECT_FALSE(opens_thoughts({{"\n", true}}, format));
  EXPECT_FALSE(opens_thoughts({}, format));
  EXPECT_FALSE(opens_thoughts({{"<think>", true}}, OutputFormat()));
}

// shows tools, arguments as text, null content, short ids
std::string shape_of(const std::string& name) {
  const ChatShape shape =
      template_of(chat_test::read_text("tests/golden/templates/" + name + ".jinja")).shape();
  return std::string(shape.shows_tools ? "tools" : "-") + (shape.text_arguments ? " text" : "") +
         (shape.null_content ? " null" : "") + (shape.short_ids ? " short" : "");
}

TEST(ChatShapes, OfTheGoldenTemplates) {
  EXPECT_EQ(shape_of("Qwen-Qwen3-0.6B"), "tools");
  EXPECT_EQ(shape_of("Qwen-Qwen2.5-7B-Instruct"), "tools");
  EXPECT_EQ(shape_of("meta-llama-Llama-3.1-8B-Instruct"), "tools");
  EXPECT_EQ(shape_of("mistralai-Mistral-Nemo-Instruct-2407"), "tools short");
  EXPECT_EQ(shape_of("Mistral-Small-3.2-24B-Instruct-2506"), "tools short");
  EXPECT_EQ(shape_of("deepseek-ai-DeepSeek-R1-Distill-Llama-8B"), "- text null");
  EXPECT_EQ(shape_of("SmolLM2-135M-Instruct"), "-");
}

TEST(ChatShapes, CallsAreFitted) {
  const auto messages = [] {
    return Value(ValueList{
        ValueObject{
            {"role", "assistant"},
            {"content", ""},
            {"tool_calls",
             ValueList{ValueObject{
                 {"id", "call_0123456789"},
                 {"function", ValueObject{{"name", "f"}, {"arguments", ValueObject{{"a", "\xC3\xA9"}}}}}}}}},
        ValueObject{{"role", "tool"}, {"tool_call_id", "call_0123456789"}, {"content", ""}}});
  };
  const std::string show = "{{ messages | tojson(ensure_ascii=false) }}";
  const auto shown = [&](const ChatShape& shape) {
    ChatInput input;
    input.messages = messages();
    EXPECT_TRUE(fit_calls(shape, input.messages));
    return chat_test::text_of(*template_of(show).render(input));
  };
  EXPECT_EQ(shown({}),
            R"([{"role": "assistant", "content": "", "tool_calls": [{"id": "call_0123456789", "function": )"
            R"({"name": "f", "arguments": {"a": "é"}}}]}, )"
            R"({"role": "tool", "tool_call_id": "call_0123456789", "content": ""}])");
  EXPECT_EQ(shown({.text_arguments = true, .null_content = true, .short_ids = true}),
            R"([{"role": "assistant", "content": null, "tool_calls": [{"id": "123456789", "function": )"
            R"({"name": "f", "arguments": "{\"a\": \"é\"}"}}]}, )"
            R"({"role": "tool", "tool_call_id": "123456789", "content": ""}])");
}

}  // namespace
}  // namespace tally::text
