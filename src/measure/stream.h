// From the bytes of an answer to what it tells of tokens: server-sent events, and the few keys of a chunk.
#pragma once

#include "measure/run.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tally::measure {

// Cuts a stream into events, wherever its pieces begin and end (HTML standard, 9.2.6: lines end with LF, CR
// or CRLF; data lines of an event are joined; other fields and comments are skipped).
class EventSplitter {
 public:
  // The data of the next event in `bytes`, whose read part is removed; null: more bytes are needed. The data
  // lives until the next call.
  const std::string* next(std::string_view& bytes);
  bool is_too_long() const { return is_too_long_; }  // no more events come then

 private:
  void end_line();

  std::string line_, data_, event_;
  bool has_data_ = false, has_event_ = false, after_cr_ = false, is_too_long_ = false;
};

// What one chunk of a stream, or one answer in one piece, says.
struct ChunkFacts {
  bool has_token = false;  // text, a piece of a tool call, or log-probabilities; a role alone is none
  uint32_t tokens = 0;     // 0: it does not say
  std::string finish;
  std::optional<uint32_t> prompt_tokens, output_tokens, cached_tokens;
  bool has_receipt = false, has_error = false;
  std::string error;  // its code, else its type, and its message
};
// False: no JSON, no object, or nested deeper than any answer is.
bool scan_chunk(std::string_view json, ChunkFacts& out);

// Fills the record of a request from its answer.
class AnswerReader {
 public:
  // `is_stream`: what was asked for. Owns: nothing; `record` must outlive the answer.
  AnswerReader(RequestRecord& record, bool is_stream) : record_(&record), wants_stream_(is_stream) {}

  void begin(int status, std::string_view content_type);
  bool add(std::string_view bytes, double at_s);  // false: nothing more is wanted
  bool is_done() const { return is_done_; }       // [DONE] was read
  // `failure` of the connection, "" if the answer came to its end. Ensures: the record has an outcome.
  void end(std::string_view failure, double at_s);

 private:
  void take(const std::string& event, double at_s);
  void take_whole();
  void learn(const ChunkFacts& facts, std::string_view json);
  void fail(std::string what);

  RequestRecord* record_;
  bool wants_stream_, is_events_ = false, is_done_ = false, has_failed_ = false;
  size_t bytes_ = 0;
  EventSplitter splitter_;
  std::string body_;  // of an answer that is no stream
};

}  // namespace tally::measure
