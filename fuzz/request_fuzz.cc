// Any bytes as the body of a request: it is refused with a code, or every field is within its limits.

#include "base/check.h"
#include "base/utf8.h"
#include "serve/openai/json.h"
#include "serve/openai/requests.h"
#include "serve/openai/output_constraint.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace {

namespace openai = tally::serve::openai;
constexpr size_t kVocab = 1000;

void check_options(const openai::Options& options) {
  TALLY_CHECK(options.stop.size() <= openai::kStopMax, "stop strings", options.stop.size());
  for (const std::string& stop : options.stop)
    TALLY_CHECK(!stop.empty() && stop.size() <= openai::kStopBytesMax, "length of a stop string",
                stop.size());
  TALLY_CHECK(options.params.temperature >= 0 && options.params.temperature <= 2, "temperature");
  TALLY_CHECK(options.params.top_p > 0 && options.params.top_p <= 1, "top_p");
  const openai::Choices& choices = options.choices;
  TALLY_CHECK(choices.prompt_logprobs >= -1 && choices.prompt_logprobs <= tally::sample::kLogprobsMax,
              "prompt_logprobs", choices.prompt_logprobs);
  TALLY_CHECK(!choices.prompt_only || (choices.echo && !choices.beams && options.max_tokens == 0),
              "a prompt alone", options.max_tokens);
}

void check_tools(const openai::ToolUse& use) {
  TALLY_CHECK(use.tools.size() <= openai::kToolsMax, "tools", use.tools.size());
  for (const openai::Tool& tool : use.tools) {
    TALLY_CHECK(!tool.name.empty() && tool.name.size() <= openai::kToolNameBytesMax, "name of a tool",
                tool.name.size());
    TALLY_CHECK(tool.parameters.size() <= openai::kSchemaBytesMax, "bytes of a schema",
                tool.parameters.size());
  }
  if (!use.is_forced()) return;
  tally::text::OutputFormat format;
  format.tools = tally::text::ToolFormat::kHermes;
  openai::Json constraint;
  TALLY_CHECK(!openai::parse_json(openai::call_constraint(use, format, false), constraint),
              "a constraint that is not JSON");
}

void check_ids(const std::vector<tally::TokenId>& ids) {
  for (const tally::TokenId id : ids)
    TALLY_CHECK(raw(id) >= 0 && static_cast<size_t>(raw(id)) < kVocab, "id", raw(id));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  openai::ChatRequest chat;
  if (!openai::parse_chat(body, kVocab, chat)) {
    check_options(chat.options);
    check_tools(chat.tool_use);
  }
  openai::CompletionRequest completion;
  if (!openai::parse_completion(body, kVocab, completion)) {
    check_options(completion.options);
    for (const openai::Prompt& prompt : completion.prompts) check_ids(prompt.ids);
  }
  openai::TokenizeRequest tokenize;
  if (!openai::parse_tokenize(body, tokenize))
    TALLY_CHECK(tally::base::utf8_find_invalid(tokenize.prompt) == std::string::npos, "invalid UTF-8 taken");
  openai::DetokenizeRequest detokenize;
  if (!openai::parse_detokenize(body, kVocab, detokenize)) check_ids(detokenize.tokens);
  return 0;
}
