// Which way of writing calls and thoughts a model has: tables of the markers that tell.

#include "text/output.h"

#include <algorithm>
#include <array>

namespace tally::text {
namespace {

struct FormatName {
  std::string_view name;
  ToolFormat format;
  std::string_view marker;
};
constexpr FormatName kFormats[] = {{"none", ToolFormat::kNone, ""},
                                   {"hermes", ToolFormat::kHermes, "<tool_call>"},
                                   {"llama3", ToolFormat::kLlama3, "<|python_tag|>"},
                                   {"mistral", ToolFormat::kMistral, "[TOOL_CALLS]"}};

const FormatName& row_of(ToolFormat format) {
  return *std::find_if(std::begin(kFormats), std::end(kFormats),
                       [format](const FormatName& row) { return row.format == format; });
}

// The first row whose words stand in the template. Ways of writing that are not read come first: some share a
// marker with one that is.
struct TemplateRule {
  ToolFormat format;
  std::string_view word, and_word;
};
constexpr TemplateRule kTemplateRules[] = {
    {ToolFormat::kNone, "<function=", ""},        // Qwen3-Coder: arguments as XML
    {ToolFormat::kNone, "<arg_key>", ""},         // GLM
    {ToolFormat::kNone, "<\uFF5Ctool", ""},       // DeepSeek
    {ToolFormat::kNone, "<|tool_call", ""},       // Granite, Gemma 4, LFM2
    {ToolFormat::kNone, "<TOOLCALL>", ""},        // Nemotron
    {ToolFormat::kNone, "<|channel|>", ""},       // gpt-oss
    {ToolFormat::kNone, "<|START_ACTION|>", ""},  // Command R
    {ToolFormat::kMistral, "[TOOL_CALLS]", ""},
    {ToolFormat::kHermes, "<tool_call>", ""},
    {ToolFormat::kLlama3, "<|python_tag|>", ""},
    {ToolFormat::kLlama3, "<|start_header_id|>", "\"parameters\""},
};

constexpr ToolFormat kVocabularyRules[] = {ToolFormat::kMistral, ToolFormat::kHermes, ToolFormat::kLlama3};

struct ThinkMarkers {
  std::string_view begin, end;
};
constexpr ThinkMarkers kThinkMarkers[] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}};

// All the markers around calls; some vocabularies have them as control tokens.
struct CallMarker {
  ToolFormat format;
  std::string_view text;
};
constexpr CallMarker kCallMarkers[] = {
    {ToolFormat::kHermes, "<tool_call>"},    {ToolFormat::kHermes, "</tool_call>"},
    {ToolFormat::kLlama3, "<|python_tag|>"}, {ToolFormat::kMistral, "[TOOL_CALLS]"},
    {ToolFormat::kMistral, "[CALL_ID]"},     {ToolFormat::kMistral, "[ARGS]"}};

void add_hidden(const Tokenizer& tokenizer, std::string_view marker, std::vector<MarkerToken>& out) {
  const auto id = tokenizer.special_token(marker);
  if (id && tokenizer.bytes(*id).empty()) out.push_back({std::string(marker), *id});
}

bool has(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

ToolFormat find_tools(std::string_view source, const Tokenizer& tokenizer) {
  for (const TemplateRule& rule : kTemplateRules)
    if (has(source, rule.word) && has(source, rule.and_word)) return rule.format;
  for (const ToolFormat format : kVocabularyRules)
    if (tokenizer.special_token(row_of(format).marker)) return format;
  return ToolFormat::kNone;
}

void add_hidden(const Tokenizer& tokenizer, const ThinkMarkers& markers, std::vector<MarkerToken>& out) {
  add_hidden(tokenizer, markers.begin, out);
  add_hidden(tokenizer, markers.end, out);
}

void find_thoughts(std::string_view source, const Tokenizer& tokenizer, OutputFormat& out) {
  for (const ThinkMarkers& markers : kThinkMarkers) {
    const bool in_vocabulary = tokenizer.special_token(markers.begin) && tokenizer.special_token(markers.end);
    if (!has(source, markers.end) && !in_vocabulary) continue;
    out.think_begin = markers.begin, out.think_end = markers.end;
    return add_hidden(tokenizer, markers, out.think_tokens);
  }
}

}  // namespace

std::optional<ToolFormat> tool_format_of(std::string_view name) {
  for (const FormatName& row : kFormats)
    if (row.name == name) return row.format;
  return std::nullopt;
}

std::string_view tool_format_name(ToolFormat format) { return row_of(format).name; }
std::string_view call_marker(ToolFormat format) { return row_of(format).marker; }

std::vector<TokenId> OutputFormat::spelled() const {
  std::vector<TokenId> ids;
  for (const auto* list : {&call_tokens, &think_tokens})
    for (const MarkerToken& marker : *list) ids.push_back(marker.id);
  return ids;
}

OutputFormat find_output_format(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                const OutputWish& wish) {
  OutputFormat out;
  out.tools = wish.tools ? *wish.tools : find_tools(chat_template.source(), tokenizer);
  out.names_first = out.tools == ToolFormat::kMistral && has(chat_template.source(), "[ARGS]");
  const bool clients_read_calls = wish.tools == ToolFormat::kNone;
  for (const CallMarker& marker : kCallMarkers)
    if (clients_read_calls || marker.format == out.tools)
      add_hidden(tokenizer, marker.text, out.call_tokens);
  if (wish.reasoning)
    find_thoughts(chat_template.source(), tokenizer, out);
  else
    for (const ThinkMarkers& markers : kThinkMarkers) add_hidden(tokenizer, markers, out.think_tokens);
  return out;
}

std::vector<TokenId> hidden_markers(const Tokenizer& tokenizer) {
  std::vector<MarkerToken> markers;
  for (const CallMarker& marker : kCallMarkers) add_hidden(tokenizer, marker.text, markers);
  for (const ThinkMarkers& pair : kThinkMarkers) add_hidden(tokenizer, pair, markers);
  std::vector<TokenId> ids;
  for (const MarkerToken& marker : markers) ids.push_back(marker.id);
  return ids;
}

bool opens_thoughts(const std::vector<TextSpan>& prompt, const OutputFormat& format) {
  if (format.think_begin.empty() || prompt.empty() || !prompt.back().trusted) return false;
  std::string_view tail = prompt.back().text;
  tail = tail.substr(0, tail.find_last_not_of(" \t\r\n") + 1);
  return tail.ends_with(format.think_begin);
}

}  // namespace tally::text
