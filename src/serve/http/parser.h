#pragma once
// Bytes to requests, strictly: what a lenient parser would guess at is an error here, because a proxy in
// front may guess otherwise. Incremental and pure: any split of the same bytes gives the same requests and
// the same errors. Threads: one at a time. Source: RFC 9112.

#include "serve/http/message.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tally::serve::http {

struct ParseLimits {
  size_t request_line_bytes = 8192, header_bytes = 16384, header_fields = 100, body_bytes = 8u << 20;
  size_t ignored_body_bytes = 64u << 10;  // of GET, HEAD, OPTIONS
};

struct ParseError {
  int status = 400;  // 400, 413, 414 or 431; the connection closes after any
  std::string message;
};

class RequestParser {
 public:
  enum class State : uint8_t { kHead, kBody, kDone, kError };

  explicit RequestParser(const ParseLimits& limits) : limits_(limits) {}

  // Takes bytes up to the next border and returns how many: it stops when the head is complete (kBody, or
  // kDone without a body), so that the caller can refuse before the body is read; then when the body is
  // complete, and at an error.
  size_t feed(std::string_view bytes);
  State state() const { return state_; }
  // No byte of a request has come yet.
  bool fresh() const {
    return state_ == State::kHead && part_ == Part::kLine && line_.empty() && !skipped_blank_;
  }
  Request& request() { return request_; }
  const Request& request() const { return request_; }
  const ParseError& error() const { return error_; }
  // Makes ready for the next request of the connection.
  void restart();

 private:
  enum class Part : uint8_t { kLine, kFields, kLength, kChunkSize, kChunkData, kChunkEnd, kTrailer };

  size_t feed_line(std::string_view bytes);
  size_t feed_length(std::string_view bytes);
  size_t feed_chunk_data(std::string_view bytes);
  bool take_byte(char c);
  void end_line();
  void parse_request_line();
  bool parse_field(std::string_view line, Field& field);
  void parse_chunk_size();
  void end_head();
  bool read_framing();
  void read_connection();
  void fail(int status, std::string message);
  size_t body_limit() const;

  const ParseLimits limits_;
  State state_ = State::kHead;
  Part part_ = Part::kLine;
  std::string line_;
  bool cr_ = false, skipped_blank_ = false;
  size_t header_bytes_ = 0, trailer_fields_ = 0, overhead_bytes_ = 0;
  uint64_t left_ = 0;  // of the body, or of the chunk
  Request request_;
  ParseError error_;
};

}  // namespace tally::serve::http
