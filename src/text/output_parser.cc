// A state a kind of text. Each step consumes from the front of what is held, or asks for more; what may begin
// a marker, and a call until it surely is one, waits there.

#include "base/ascii.h"
#include "text/call_scanner.h"
#include "text/output.h"

#include <algorithm>
#include <utility>

namespace tally::text {
namespace {

using Kind = OutputEvent::Kind;

// Of a call whose name, or whose arguments, have not come: longer is no call. Bounds what waits, and how
// often a byte is looked at.
constexpr size_t kCallHeadBytesMax = 8192;
constexpr size_t kNameBytesMax = 128;
constexpr std::string_view kHermesEnd = "</tool_call>", kMistralId = "[CALL_ID]",
                           kMistralArguments = "[ARGS]";

bool is_name_byte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' ||
         c == '.' || c == ':' || c == '/';
}
size_t name_bytes(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && is_name_byte(text[n])) ++n;
  return n;
}

// How `text` stands to a marker.
enum class Match : uint8_t { kNo, kMaybe, kYes };
Match match(std::string_view text, std::string_view marker) {
  if (text.starts_with(marker)) return Match::kYes;
  return marker.starts_with(text) ? Match::kMaybe : Match::kNo;
}

// `name[ARGS]`, `name[CALL_ID]id[ARGS]` or `name`, before the arguments.
struct NamedCall {
  Match match = Match::kNo;
  size_t name_bytes = 0, bytes = 0;
};
NamedCall match_named_call(std::string_view text) {
  const size_t name = name_bytes(text);
  if (name > kNameBytesMax) return {};
  if (name == text.size()) return {Match::kMaybe};
  if (name == 0) return {};
  size_t at = name;
  const Match id = match(text.substr(at), kMistralId);
  if (id == Match::kMaybe) return {Match::kMaybe};
  if (id == Match::kYes) {
    at += kMistralId.size();
    const size_t bytes = name_bytes(text.substr(at));
    if (bytes > kNameBytesMax) return {};
    at += bytes;
    if (at == text.size()) return {Match::kMaybe};
  }
  if (text[at] == '{') return {Match::kYes, name, at};
  return {match(text.substr(at), kMistralArguments), name, at + kMistralArguments.size()};
}

}  // namespace

struct OutputParser::State {
  State(const OutputFormat& f, bool in_thoughts)
      : format(f), at(in_thoughts ? Place::kThoughts : Place::kText), trims(in_thoughts), scanner(false) {}

  enum class Place : uint8_t {
    kThoughts,
    kText,
    kMistral,  // after [TOOL_CALLS]
    kCall,
    kTail,  // after a call's object
  };

  std::vector<OutputEvent> run(bool is_last);
  bool step();
  bool step_text();
  bool step_marker(std::string_view rest, bool& waits);
  bool step_mistral();
  bool step_call();
  bool step_tail();
  bool step_separator(char separator);
  Match take_call_end();
  void begin_call(size_t marker_bytes, CallScanner fresh);
  bool refuse_call();
  bool end_call();
  void say(std::string_view bytes);
  void push(Kind kind, std::string_view text);
  std::string_view rest() const { return std::string_view(held).substr(begin); }

  const OutputFormat format;
  Place at;
  std::string held;         // not consumed yet
  size_t begin = 0;         // of what is not consumed, in held
  size_t scanned = 0;       // in held: a call has been read up to here
  size_t marker_bytes = 0;  // of held, in front of the call being read
  std::string space;        // white space that goes out with what follows, unless that is a marker
  bool trims;               // a marker was last: white space is dropped
  bool said = false;        // content or a call: there are no thoughts any more
  bool bare = true;         // of llama3: an object here is a call
  bool is_list = false;     // of mistral: calls inside [ ]
  bool called = false;      // the call being read has begun
  bool owes_end = false;    // of hermes: the end marker of the last call has not come
  bool is_last = false;     // nothing follows what is held
  CallScanner scanner;
  std::vector<OutputEvent> events;
};

void OutputParser::State::push(Kind kind, std::string_view text) {
  if (text.empty() && kind != Kind::kCallEnd) return;
  const bool joins =
      !events.empty() && events.back().kind == kind && kind != Kind::kCallBegin && kind != Kind::kCallEnd;
  if (!joins) events.push_back({kind, {}});
  events.back().text += text;
}

void OutputParser::State::say(std::string_view bytes) {
  const bool thinks = at == Place::kThoughts;
  if (!std::exchange(trims, false)) push(thinks ? Kind::kReasoning : Kind::kContent, space);
  space.clear();
  push(thinks ? Kind::kReasoning : Kind::kContent, bytes);
  if (!thinks) said = true, bare = false;
}

void OutputParser::State::begin_call(size_t bytes, CallScanner fresh) {
  at = Place::kCall;
  marker_bytes = bytes;
  scanned = begin + bytes;
  called = false;
  scanner = std::move(fresh);
}

// What looked like a call is content; behind its marker the search goes on.
bool OutputParser::State::refuse_call() {
  at = Place::kText;
  say(rest().substr(0, marker_bytes));
  begin += marker_bytes;
  return true;
}

bool OutputParser::State::end_call() {
  push(Kind::kCallEnd, {});
  called = false;
  owes_end = format.tools == ToolFormat::kHermes;
  at = Place::kTail;
  return true;
}

bool OutputParser::State::step_call() {
  while (scanned < held.size()) {
    const CallScanner::Step step = scanner.feed(held[scanned]);
    if (step == CallScanner::Step::kBad) return called ? end_call() : refuse_call();
    ++scanned;
    if (scanner.begun() && !std::exchange(called, true)) {
      space.clear();
      trims = said = true;
      push(Kind::kCallBegin, scanner.name());
    }
    if (called) {
      begin = scanned;
      push(Kind::kArguments, scanner.take_arguments());
    } else if (scanned - begin > kCallHeadBytesMax) {
      return refuse_call();
    }
    if (step == CallScanner::Step::kDone) return end_call();
  }
  return is_last && !called ? refuse_call() : false;
}

bool OutputParser::State::step_mistral() {
  while (scanned < held.size() && base::is_json_space(held[scanned])) ++scanned;
  if (scanned - begin > kCallHeadBytesMax) return refuse_call();
  const std::string_view call = std::string_view(held).substr(scanned);
  if (call.starts_with('[')) {
    is_list = true;
    begin_call(scanned + 1 - begin, CallScanner(false));
    return true;
  }
  const NamedCall named = match_named_call(call);
  if (named.match == Match::kMaybe && !is_last) return false;
  if (named.match != Match::kYes) return refuse_call();
  is_list = false;
  const size_t bytes = marker_bytes;
  begin_call(scanned + named.bytes - begin,
             CallScanner::of_arguments(std::string(call.substr(0, named.name_bytes))));
  marker_bytes = bytes;
  return true;
}

// A separator and then an object is the next call; anything else is content.
bool OutputParser::State::step_separator(char separator) {
  size_t object = 1;
  while (object < rest().size() && base::is_json_space(rest()[object])) ++object;
  if (object > kCallHeadBytesMax) return at = Place::kText, true;
  if (object == rest().size() && !is_last) return false;
  at = Place::kText;
  if (rest().substr(object).starts_with('{')) begin_call(object, CallScanner(separator == ';'));
  return true;
}

// The end marker that a call still owes. Cut by the end of the text it is still a marker.
Match OutputParser::State::take_call_end() {
  const Match end = owes_end ? match(rest(), kHermesEnd) : Match::kNo;
  if (end == Match::kNo || (end == Match::kMaybe && !is_last)) return end;
  begin += std::min(kHermesEnd.size(), rest().size());
  owes_end = false;
  return Match::kYes;
}

bool OutputParser::State::step_tail() {
  if (rest().empty()) return false;
  const char next = rest().front();
  if (base::is_json_space(next)) return ++begin, true;
  if (take_call_end() == Match::kMaybe) return false;
  if (format.tools == ToolFormat::kLlama3 && next == ';') {
    return step_separator(next);
  } else if (is_list && next == ',') {
    return step_separator(next);
  } else if (is_list && next == ']') {
    ++begin;
  }
  at = Place::kText;
  return true;
}

// A marker that is allowed here; waits: there may be one.
bool OutputParser::State::step_marker(std::string_view rest_now, bool& waits) {
  const auto found = [&](std::string_view marker) {
    const Match m = marker.empty() ? Match::kNo : match(rest_now, marker);
    waits = waits || m == Match::kMaybe;
    return m == Match::kYes;
  };
  const auto drop_space = [&] {
    space.clear();
    return trims = true;
  };
  const auto turn = [&](Place place, std::string_view marker) {
    at = place;
    begin += marker.size();
    return drop_space();
  };
  if (at == Place::kThoughts) return found(format.think_end) && turn(Place::kText, format.think_end);
  if (!said && found(format.think_begin)) return turn(Place::kThoughts, format.think_begin);
  // Something stands between the last call and its end: a brace too many, mostly.
  const Match call_end = take_call_end();
  if (call_end == Match::kYes) return drop_space();
  waits = waits || call_end == Match::kMaybe;
  const std::string_view marker = call_marker(format.tools);
  if (found(marker)) {
    owes_end = false;
    begin_call(marker.size(), CallScanner(false));
    if (format.tools == ToolFormat::kMistral) at = Place::kMistral;
    return true;
  }
  if (format.tools == ToolFormat::kLlama3 && bare && rest_now.front() == '{') {
    begin_call(0, CallScanner(true));
    return true;
  }
  return false;
}

bool OutputParser::State::step_text() {
  const std::string_view text = rest();
  if (text.empty()) return false;
  if (base::is_json_space(text.front())) {
    space += text.front();
    return ++begin, true;
  }
  bool waits = false;
  if (step_marker(text, waits)) return true;
  if (waits && !is_last) return false;
  say(text.substr(0, 1));
  return ++begin, true;
}

bool OutputParser::State::step() {
  switch (at) {
    case Place::kThoughts:
    case Place::kText:
      return step_text();
    case Place::kMistral:
      return step_mistral();
    case Place::kCall:
      return step_call();
    case Place::kTail:
      return step_tail();
  }
  return false;
}

std::vector<OutputEvent> OutputParser::State::run(bool last) {
  is_last = last;
  while (step()) {
  }
  if (is_last && !trims && !space.empty()) say({});
  held.erase(0, begin);
  scanned -= std::min(scanned, begin);
  begin = 0;
  return std::exchange(events, {});
}

OutputParser::OutputParser(const OutputFormat& format, bool in_thoughts)
    : state_(std::make_unique<State>(format, in_thoughts)) {}
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

std::vector<OutputEvent> OutputParser::feed(std::string_view text) {
  state_->held += text;
  return state_->run(false);
}

std::vector<OutputEvent> OutputParser::finish() { return state_->run(true); }
bool OutputParser::in_thoughts() const { return state_->at == State::Place::kThoughts; }
bool OutputParser::in_call() const { return state_->called; }

}  // namespace tally::text
