// From text to what the client is told of it: content, thoughts, tool calls.

#include "serve/answer_choice.h"
#include "serve/build_info.h"
#include "serve/openai/prompt_part.h"

namespace tally::serve {
namespace {

constexpr size_t kCallIdLetters = 24;

}  // namespace

// In front of the choice's own text: with its first token, when all scores are there, or with its end.
void Answer::tell_prompt(Choice& choice) {
  const openai::Choices& asked = order_.options.choices;
  if (asked.echo) choice.piece.text = order_.prompt_texts[choice.prompt_index];
  const openai::PromptPart::Wanted wanted{.echoed = asked.echo ? order_.options.params.logprobs : -1,
                                          .listed = asked.prompt_logprobs};
  if (wanted.echoed < 0 && wanted.listed < 0) return;
  choice.piece.prompt = std::make_shared<openai::PromptPart>(
      order_.prompts[choice.prompt_index], *desk_->backend.tokenizer, choice.stream, wanted);
}

// `is_last`: what the parser held back comes out; nothing may follow.
void Answer::tell(Choice& choice, const std::string& text, bool is_last) {
  if (!choice.parser) {
    choice.piece.text += text;
    return;
  }
  const auto take = [&](std::vector<text::OutputEvent> events) {
    for (text::OutputEvent& event : events) {
      if (choice.calls_ended) return;
      tell_event(choice, std::move(event));
    }
  };
  take(choice.parser->feed(text));
  if (is_last) take(choice.parser->finish());
}

void Answer::tell_event(Choice& choice, text::OutputEvent event) {
  using Kind = text::OutputEvent::Kind;
  std::vector<openai::CallPiece>& calls = choice.piece.calls;
  switch (event.kind) {
    case Kind::kContent:
      choice.piece.text += event.text;
      break;
    case Kind::kReasoning:
      choice.piece.reasoning += event.text;
      break;
    case Kind::kCallBegin:
      calls.push_back({choice.calls++, "call_" + random_letters(kCallIdLetters), std::move(event.text), {}});
      break;
    case Kind::kArguments:
      if (calls.empty()) calls.push_back({choice.calls - 1, {}, {}, {}});
      calls.back().arguments += event.text;
      break;
    case Kind::kCallEnd:
      if (!order_.reading.one_call) break;
      choice.stop_matched = choice.calls_ended = true;
      choice.stream->cancel();
      break;
  }
}

}  // namespace tally::serve
