#include "measure/stream.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr size_t kLineBytesMax = size_t{4} << 20;
constexpr size_t kBodyBytesMax = size_t{64} << 20;   // of an answer in one piece
constexpr size_t kStreamBytesMax = size_t{1} << 30;  // of all events
constexpr size_t kErrorBytesMax = 16 * 1024;         // of an answer that refuses
constexpr size_t kEventDepthMax = 64;
constexpr size_t kShown = 120;  // bytes of a message

// Follows the parser through a chunk and notes what it passes; everything else is stepped over.
class ChunkReader {
 public:
  explicit ChunkReader(ChunkFacts& out) : out_(out) {}

  bool null() { return done(); }
  bool boolean(bool) { return done(); }
  bool number_integer(json::number_integer_t) { return done(); }
  bool number_unsigned(json::number_unsigned_t value) {
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(value, std::numeric_limits<uint32_t>::max()));
    const Place in = place();
    if (in == Place::kUsage && key_ == "prompt_tokens") out_.prompt_tokens = count;
    if (in == Place::kUsage && key_ == "completion_tokens") out_.output_tokens = count;
    if (in == Place::kPromptDetails && key_ == "cached_tokens") out_.cached_tokens = count;
    if (in == Place::kTally && key_ == "tokens") out_.tokens = count;
    if (in == Place::kError && key_ == "code" && out_.error.empty()) out_.error = fmt::format("{}", count);
    return done();
  }
  bool number_float(json::number_float_t, const std::string&) { return done(); }
  bool string(std::string& value) {
    const Place in = place();
    const bool is_text =
        key_ == "text" || key_ == "content" || key_ == "reasoning_content" || key_ == "reasoning";
    if (in == Place::kChoice && key_ == "finish_reason") out_.finish = value.substr(0, kShown);
    if ((in == Place::kChoice || in == Place::kDelta) && is_text && !value.empty()) out_.has_token = true;
    if (in == Place::kError && (key_ == "code" || key_ == "type")) take_code(value);
    if (in == Place::kError && key_ == "message") message_ = value.substr(0, kShown);
    if (in == Place::kRoot && key_ == "error") out_.has_error = true, message_ = value.substr(0, kShown);
    return done();
  }
  bool binary(json::binary_t&) { return done(); }
  bool key(std::string& name) {
    key_ = name;
    return true;
  }
  bool start_object(size_t) { return enter(object_place()); }
  bool start_array(size_t) {
    const Place in = place();
    if (in == Place::kRoot && key_ == "choices") return enter(Place::kChoices);
    // Log-probabilities and ids of an event without text: tokens all the same.
    const bool is_list = key_ == "tool_calls" || key_ == "token_ids";
    if ((in == Place::kChoice || in == Place::kDelta) && is_list) return enter(Place::kTokenList);
    if (in == Place::kLogprobs) return enter(Place::kTokenList);
    return enter(Place::kElsewhere);
  }
  bool end_object() { return leave(); }
  bool end_array() { return leave(); }
  bool parse_error(size_t, const std::string&, const json::exception&) { return false; }

  bool is_object() const { return is_object_; }
  void close() {
    if (!out_.has_error) return;
    out_.error = out_.error.empty() ? message_ : fmt::format("{}: {}", out_.error, message_);
  }

 private:
  enum class Place : uint8_t {
    kNowhere,
    kRoot,
    kChoices,
    kChoice,
    kDelta,
    kLogprobs,
    kTokenList,
    kUsage,
    kPromptDetails,
    kTally,
    kError,
    kElsewhere
  };

  Place place() const { return depth_ == 0 ? Place::kNowhere : places_[depth_ - 1]; }
  bool done() {
    if (place() == Place::kTokenList) out_.has_token = true;
    return true;
  }
  // A code says more than a type, whichever comes first.
  void take_code(const std::string& value) {
    if (key_ == "code" || out_.error.empty()) out_.error = value.substr(0, kShown);
  }
  Place object_place() {
    switch (place()) {
      case Place::kNowhere:
        is_object_ = true;
        return Place::kRoot;
      case Place::kRoot:
        if (key_ == "usage") return Place::kUsage;
        if (key_ == "tally") return Place::kTally;
        if (key_ == "error") return out_.has_error = true, Place::kError;
        if (key_ == "receipt") out_.has_receipt = true;
        return Place::kElsewhere;
      case Place::kChoices:
        return Place::kChoice;
      case Place::kChoice:
        if (key_ == "delta" || key_ == "message") return Place::kDelta;
        return key_ == "logprobs" ? Place::kLogprobs : Place::kElsewhere;
      case Place::kTokenList:
        out_.has_token = true;
        return Place::kElsewhere;
      case Place::kUsage:
        return key_ == "prompt_tokens_details" ? Place::kPromptDetails : Place::kElsewhere;
      default:
        return Place::kElsewhere;
    }
  }
  bool enter(Place place) {
    if (depth_ == kEventDepthMax) return false;
    places_[depth_++] = place;
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  ChunkFacts& out_;
  std::string key_, message_;
  Place places_[kEventDepthMax];
  size_t depth_ = 0;
  bool is_object_ = false;
};

}  // namespace

const std::string* EventSplitter::next(std::string_view& bytes) {
  while (!bytes.empty() && !is_too_long_) {
    if (std::exchange(after_cr_, false) && bytes[0] == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    if (line_.size() + data_.size() > kLineBytesMax) is_too_long_ = true;
    if (end == std::string_view::npos) return bytes = {}, nullptr;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line();
    if (std::exchange(has_event_, false)) return &event_;
  }
  return nullptr;
}

void EventSplitter::end_line() {
  if (line_.empty()) {
    has_event_ = std::exchange(has_data_, false);
    event_.swap(data_);
    data_.clear();
  } else if (line_.starts_with("data")) {
    std::string_view value = line_;
    value.remove_prefix(4);
    if (value.empty() || value[0] == ':') {
      value.remove_prefix(std::min<size_t>(1, value.size()));
      if (value.starts_with(' ')) value.remove_prefix(1);
      if (has_data_) data_ += '\n';
      data_ += value;
      has_data_ = true;
    }
  }
  line_.clear();
}

bool scan_chunk(std::string_view text, ChunkFacts& out) {
  ChunkReader reader(out);
  const bool good = json::sax_parse(text.begin(), text.end(), &reader);
  reader.close();
  return good && reader.is_object();
}

void AnswerReader::begin(int status, std::string_view content_type) {
  record_->http_status = status;
  is_events_ = content_type.starts_with("text/event-stream");
  if (status == 200 && wants_stream_ && !is_events_)
    fail(fmt::format("no event stream: {}", base::escape_for_log(content_type, 40)));
}

bool AnswerReader::add(std::string_view bytes, double at_s) {
  if (has_failed_) return false;
  bytes_ += bytes.size();
  if (record_->http_status != 200 || !is_events_) {
    const size_t most = record_->http_status == 200 ? kBodyBytesMax : kErrorBytesMax;
    if (body_.size() + bytes.size() > most && record_->http_status == 200) fail("an answer without end");
    body_ += bytes.substr(0, most - body_.size());
    return !has_failed_ && body_.size() < most;
  }
  if (bytes_ > kStreamBytesMax) fail("a stream without end");
  while (const std::string* event = splitter_.next(bytes)) {
    take(*event, at_s);
    if (has_failed_) return false;
    if (is_done_) return true;
  }
  if (splitter_.is_too_long()) fail("bad stream: an event without end");
  return !has_failed_;
}

void AnswerReader::take(const std::string& event, double at_s) {
  if (event == "[DONE]") {
    is_done_ = true;
    return;
  }
  ChunkFacts facts;
  if (!scan_chunk(event, facts)) return fail("bad stream: an event that is no JSON object");
  if (facts.has_token) record_->events.push_back({at_s, facts.tokens});
  learn(facts, event);
}

void AnswerReader::learn(const ChunkFacts& facts, std::string_view text) {
  if (facts.prompt_tokens) record_->prompt_tokens = facts.prompt_tokens;
  if (facts.output_tokens) record_->output_tokens = facts.output_tokens;
  if (facts.cached_tokens) record_->cached_tokens = facts.cached_tokens;
  if (!facts.finish.empty()) record_->finish = facts.finish;
  if (facts.has_receipt) record_->receipt = json::parse(text, nullptr, false).value("receipt", json());
  if (facts.has_error)
    fail(fmt::format("error in the answer: {}", base::escape_for_log(facts.error, kShown)));
}

// An answer that is no stream of events: it is there at once or not at all.
void AnswerReader::take_whole() {
  ChunkFacts facts;
  const bool good = scan_chunk(body_, facts);
  if (record_->http_status == 200) {
    if (!good) return fail("bad answer: no JSON object");
    learn(facts, body_);
    if (!has_failed_ && !facts.has_token && record_->output_tokens.value_or(0) == 0) fail("no token");
    return;
  }
  const bool is_full = record_->http_status == 503 || record_->http_status == 429;
  const std::string what = facts.has_error ? ' ' + base::escape_for_log(facts.error, kShown) : "";
  fail(fmt::format("HTTP {}{}", record_->http_status, what));
  if (is_full) record_->outcome = Outcome::kRefused;
}

void AnswerReader::end(std::string_view failure, double at_s) {
  record_->end_s = at_s;
  if (!failure.empty() && !is_done_) {
    fail(std::string(failure));
  } else if (!has_failed_ && is_events_ && record_->http_status == 200) {
    if (!is_done_ && record_->finish.empty()) fail("closed early");
    if (!has_failed_ && record_->events.empty()) fail("no token");
  } else if (!has_failed_) {
    take_whole();
  }
  if (!has_failed_) record_->outcome = Outcome::kCompleted;
}

void AnswerReader::fail(std::string what) {
  if (has_failed_) return;
  has_failed_ = true;
  record_->outcome = Outcome::kFailed;
  record_->error = std::move(what);
}

}  // namespace tally::measure
