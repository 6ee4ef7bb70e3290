// What a model writes, cut anywhere, is taken apart the same way. The first byte chooses the format, the
// second how the text is cut; calls are well formed, and in text without a marker every byte is content.

#include "base/check.h"
#include "text/output.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace text = tally::text;
using Kind = text::OutputEvent::Kind;

bool stands_alone(Kind kind) { return kind == Kind::kCallBegin || kind == Kind::kCallEnd; }

// Fed in pieces of `piece` bytes, neighbours of a kind joined.
std::vector<text::OutputEvent> parse(const text::OutputFormat& format, bool in_thoughts,
                                     std::string_view bytes, size_t piece) {
  text::OutputParser parser(format, in_thoughts);
  std::vector<text::OutputEvent> out;
  const auto add = [&out](const std::vector<text::OutputEvent>& events) {
    for (const text::OutputEvent& event : events) {
      if (!out.empty() && out.back().kind == event.kind && !stands_alone(event.kind))
        out.back().text += event.text;
      else
        out.push_back(event);
    }
  };
  for (size_t at = 0; at < bytes.size(); at += piece) add(parser.feed(bytes.substr(at, piece)));
  const bool open = parser.in_call();
  add(parser.finish());
  TALLY_CHECK(!open || parser.in_call(), "the end of the text ended a call");
  return out;
}

void check_order(const std::vector<text::OutputEvent>& events, size_t bytes) {
  bool open = false;
  size_t said = 0;
  for (const text::OutputEvent& event : events) {
    const bool inside = event.kind == Kind::kArguments || event.kind == Kind::kCallEnd;
    TALLY_CHECK(inside == open, "an event of a call outside, or another inside",
                static_cast<int>(event.kind));
    TALLY_CHECK(event.kind == Kind::kCallEnd || !event.text.empty(), "an event that says nothing");
    open = event.kind == Kind::kCallBegin || event.kind == Kind::kArguments;
    if (event.kind == Kind::kContent || event.kind == Kind::kReasoning) said += event.text.size();
  }
  TALLY_CHECK(said <= bytes, "more was said than came", said, bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  constexpr text::ToolFormat kFormats[] = {text::ToolFormat::kNone, text::ToolFormat::kHermes,
                                           text::ToolFormat::kLlama3, text::ToolFormat::kMistral};
  text::OutputFormat format;
  format.tools = kFormats[data[0] % 4];
  if (data[0] & 4) format.think_begin = "<think>", format.think_end = "</think>";
  const bool in_thoughts = (data[0] & 12) == 12;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);

  const auto whole = parse(format, in_thoughts, bytes, bytes.size() + 1);
  check_order(whole, bytes.size());
  for (const size_t piece : {size_t{1}, size_t{1} + data[1] % 32})
    TALLY_CHECK(parse(format, in_thoughts, bytes, piece) == whole, "cut otherwise, told otherwise", piece);
  if (!in_thoughts && bytes.find_first_of("<[{") == std::string_view::npos) {
    TALLY_CHECK(whole.size() == (bytes.empty() ? 0u : 1u), "events", whole.size());
    TALLY_CHECK(whole.empty() || whole[0] == (text::OutputEvent{Kind::kContent, std::string(bytes)}),
                "plain text was changed");
  }
  return 0;
}
