// A template's source, then a zero byte, then the text of one message: nothing crashes, every budget holds,
// and what came from the message stays untrusted.

#include "text/chat.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace text = tally::text;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t border = bytes.find('\0');
  const auto parsed = text::ChatTemplate::parse(bytes.substr(0, border));
  if (!parsed) return 0;

  text::ChatInput input;
  const std::string content(border == std::string_view::npos ? "" : bytes.substr(border + 1));
  input.messages = text::ValueList{text::ValueObject{{"role", "user"}, {"content", content}},
                                   text::ValueObject{{"role", "assistant"}, {"content", nullptr}, {"n", 5}}};
  input.bos_token = "<s>";
  text::TemplateLimits limits;
  limits.steps_max = 50'000;
  limits.live_bytes_max = 4u << 20;
  limits.output_bytes_max = 1u << 20;
  const auto spans = parsed->render(input, limits);
  if (!spans) return 0;

  size_t total = 0;
  for (size_t i = 0; i < spans->size(); ++i) {
    const text::TextSpan& span = (*spans)[i];
    total += span.text.size();
    if (span.text.empty() || (i > 0 && span.trusted == (*spans)[i - 1].trusted)) __builtin_trap();
  }
  if (total > limits.output_bytes_max) __builtin_trap();
  return 0;
}
