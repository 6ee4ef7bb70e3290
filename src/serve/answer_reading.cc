// From text to what the client is told of it: content, thoughts, tool calls.

#include "serve/answer_choice.h"
#include "serve/build_info.h"

namespace tally::serve {
namespace {

constexpr size_t kCallIdLetters = 24;

}  // namespace

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
