#include "serve/http/parser.h"

#include <algorithm>
#include <array>

namespace tally::serve::http {
namespace {

constexpr size_t kChunkExtensionBytes = 256;
constexpr size_t kChunkSizeDigits = 16;

bool is_token(char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// A path that a decoder further down could read as another path.
bool is_ambiguous(std::string_view path) {
  const std::string p = lowered(path);
  for (std::string_view bad : {"%00", "%2f", "%5c", "%2e%2e", "//", "\\"})
    if (p.find(bad) != std::string::npos) return true;
  return false;
}

}  // namespace

void RequestParser::restart() {
  state_ = State::kHead;
  part_ = Part::kLine;
  line_.clear();
  cr_ = skipped_blank_ = false;
  header_bytes_ = trailer_fields_ = overhead_bytes_ = 0;
  left_ = 0;
  request_ = {};
  error_ = {};
}

void RequestParser::fail(int status, std::string message) {
  state_ = State::kError;
  error_ = {status, std::move(message)};
}

size_t RequestParser::body_limit() const {
  return request_.ignores_body() ? limits_.ignored_body_bytes : limits_.body_bytes;
}

size_t RequestParser::feed(std::string_view bytes) {
  size_t used = 0;
  const State entry = state_;
  while (used < bytes.size() && state_ == entry && (state_ == State::kHead || state_ == State::kBody)) {
    const std::string_view rest = bytes.substr(used);
    if (part_ == Part::kLength)
      used += feed_length(rest);
    else if (part_ == Part::kChunkData)
      used += feed_chunk_data(rest);
    else
      used += feed_line(rest);
  }
  return used;
}

size_t RequestParser::feed_line(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (part_ == Part::kChunkSize || part_ == Part::kChunkEnd || part_ == Part::kTrailer) {
      if (++overhead_bytes_ > body_limit())
        return fail(413, "The chunk framing is larger than the body limit."), i + 1;
    }
    if (take_byte(bytes[i])) end_line();
    if (state_ == State::kError || line_.empty())
      return i + 1;  // a line has ended, perhaps another part begins
  }
  return bytes.size();
}

// Adds a byte to the line; true at its end. Every byte is judged when it comes, so that a TLS hello is
// refused at its first.
bool RequestParser::take_byte(char c) {
  if (cr_) {
    cr_ = false;
    if (c == '\n') return true;
    return fail(400, "A carriage return stands alone in the request head."), false;
  }
  const auto u = static_cast<unsigned char>(c);
  if (c == '\r') {
    cr_ = true;
    return false;
  }
  const bool text = part_ == Part::kLine ? u >= 0x20 && u < 0x7F : (u >= 0x20 && u != 0x7F) || c == '\t';
  if (!text) return fail(400, "A byte is not allowed in the request head."), false;
  line_ += c;
  if (part_ == Part::kLine) {
    if (line_.size() > limits_.request_line_bytes)
      fail(414, "The request line is longer than " + std::to_string(limits_.request_line_bytes) + " bytes.");
  } else if (part_ == Part::kFields || part_ == Part::kTrailer) {
    if (++header_bytes_ > limits_.header_bytes)
      fail(431, "The header fields are larger than " + std::to_string(limits_.header_bytes) + " bytes.");
  } else if (line_.size() > kChunkSizeDigits + kChunkExtensionBytes) {
    fail(400, "A chunk's size line is too long.");
  }
  return false;
}

void RequestParser::end_line() {
  const std::string line = std::move(line_);
  line_.clear();
  switch (part_) {
    case Part::kLine:
      if (line.empty() && !skipped_blank_) {
        skipped_blank_ = true;  // RFC 9112 §2.2: one blank line before a request is forgiven
        return;
      }
      line_ = line;
      parse_request_line();
      line_.clear();
      return;
    case Part::kFields:
    case Part::kTrailer: {
      if (line.empty()) {
        if (part_ == Part::kFields) return end_head();
        state_ = State::kDone;
        return;
      }
      Field field;
      if (!parse_field(line, field)) return;
      if (part_ == Part::kTrailer) {
        if (++trailer_fields_ + request_.fields.size() > limits_.header_fields)
          fail(431, "There are too many header fields.");
        return;  // trailers are checked and dropped
      }
      if (request_.fields.size() >= limits_.header_fields)
        return fail(431, "There are more than " + std::to_string(limits_.header_fields) + " header fields.");
      request_.fields.push_back(std::move(field));
      return;
    }
    case Part::kChunkSize:
      line_ = line;
      parse_chunk_size();
      line_.clear();
      return;
    case Part::kChunkEnd:
      if (!line.empty()) return fail(400, "A chunk is longer than its size says.");
      part_ = Part::kChunkSize;
      return;
    case Part::kLength:
    case Part::kChunkData:
      return;  // not made of lines
  }
}

void RequestParser::parse_request_line() {
  const size_t first = line_.find(' '), last = line_.rfind(' ');
  if (first == std::string::npos || first == 0 || first == last || line_.find(' ', first + 1) != last)
    return fail(400, "The request line is not METHOD TARGET VERSION.");
  const std::string_view method(line_.data(), first), version = std::string_view(line_).substr(last + 1);
  const std::string_view target = std::string_view(line_).substr(first + 1, last - first - 1);
  for (char c : method)
    if (c < 'A' || c > 'Z') return fail(400, "The method is not in upper case letters.");
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    return fail(400, "Only HTTP/1.1 and HTTP/1.0 are spoken here.");
  if (target.empty() || target[0] != '/')
    return fail(400, "The request target is not in origin form (/path).");
  if (target.find('#') != std::string_view::npos) return fail(400, "The request target has a fragment.");
  const size_t question = target.find('?');
  const std::string_view path = target.substr(0, question);
  if (is_ambiguous(path)) return fail(400, "The path holds an encoded or doubled separator.");
  request_.method = method;
  request_.path = path;
  if (question != std::string_view::npos) request_.query = target.substr(question + 1);
  request_.minor_version = version.back() - '0';
  part_ = Part::kFields;
}

bool RequestParser::parse_field(std::string_view line, Field& field) {
  const size_t colon = line.find(':');
  if (line[0] == ' ' || line[0] == '\t') return fail(400, "A header field is folded over two lines."), false;
  if (colon == std::string_view::npos) return fail(400, "A header field has no colon."), false;
  const std::string_view name = line.substr(0, colon);
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_token))
    return fail(400, "A header field's name is not a token."), false;
  field.name = lowered(name);
  field.value = trimmed(line.substr(colon + 1));
  return true;
}

void RequestParser::parse_chunk_size() {
  const size_t end = std::min(line_.find(';'), line_.size());
  const std::string_view digits = trimmed(std::string_view(line_).substr(0, end));
  if (digits.empty() || digits.size() > kChunkSizeDigits || line_[0] == ' ' || line_[0] == '\t')
    return fail(400, "A chunk size is not 1 to 16 hex digits.");
  if (line_.size() - end > kChunkExtensionBytes)
    return fail(400, "A chunk extension is longer than 256 bytes.");
  uint64_t size = 0;
  for (char c : digits) {
    const int digit = hex_digit(c);
    if (digit < 0) return fail(400, "A chunk size is not 1 to 16 hex digits.");
    size = size << 4 | static_cast<uint64_t>(digit);
  }
  if (size == 0) {
    part_ = Part::kTrailer;
    return;
  }
  if (size > body_limit() - request_.body.size())
    return fail(413, "The body is larger than " + std::to_string(body_limit()) + " bytes.");
  left_ = size;
  part_ = Part::kChunkData;
}

size_t RequestParser::feed_length(std::string_view bytes) {
  const size_t n = std::min<uint64_t>(bytes.size(), left_);
  request_.body.append(bytes.substr(0, n));
  left_ -= n;
  if (left_ == 0) state_ = State::kDone;
  return n;
}

size_t RequestParser::feed_chunk_data(std::string_view bytes) {
  const size_t n = std::min<uint64_t>(bytes.size(), left_);
  request_.body.append(bytes.substr(0, n));
  left_ -= n;
  if (left_ == 0) part_ = Part::kChunkEnd;
  return n;
}

void RequestParser::end_head() {
  if (request_.count("host") != 1 || request_.find("host")->empty())
    return fail(400, "There must be exactly one Host header field.");
  if (!read_framing()) return;
  read_connection();
  if (request_.chunked) {
    state_ = State::kBody;
    part_ = Part::kChunkSize;
  } else if (left_ > 0) {
    state_ = State::kBody;
    part_ = Part::kLength;
  } else {
    state_ = State::kDone;
  }
}

bool RequestParser::read_framing() {
  const size_t lengths = request_.count("content-length"), encodings = request_.count("transfer-encoding");
  if (lengths + encodings > 1) return fail(400, "The body's length is given more than once."), false;
  if (encodings == 1) {
    if (request_.minor_version != 1 || lowered(*request_.find("transfer-encoding")) != "chunked")
      return fail(400, "The only transfer encoding is chunked, on HTTP/1.1."), false;
    request_.chunked = true;
  }
  if (lengths == 1) {
    const std::string& text = *request_.find("content-length");
    uint64_t value = 0;
    bool ok = !text.empty() && text.size() <= 19;
    for (char c : text) {
      ok = ok && c >= '0' && c <= '9';
      value = value * 10 + static_cast<uint64_t>(c - '0');
    }
    if (!ok || value > static_cast<uint64_t>(INT64_MAX))
      return fail(400, "Content-Length is not a number of bytes."), false;
    if (value > limits_.body_bytes && !request_.ignores_body())
      return fail(413, "The body is larger than " + std::to_string(limits_.body_bytes) + " bytes."), false;
    request_.content_length = left_ = value;
  }
  const std::string* expect = request_.find("expect");
  request_.expect_continue = expect && request_.minor_version == 1 && lowered(*expect) == "100-continue";
  return true;
}

void RequestParser::read_connection() {
  request_.keep_alive = request_.minor_version == 1;
  for (const Field& field : request_.fields) {
    if (field.name != "connection") continue;
    std::string_view rest = field.value;
    while (!rest.empty()) {
      const size_t comma = std::min(rest.find(','), rest.size());
      const std::string option = lowered(trimmed(rest.substr(0, comma)));
      if (option == "close") request_.keep_alive = false;
      if (option == "keep-alive" && request_.minor_version == 0) request_.keep_alive = true;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  // A body that will not be read would be taken for the next request.
  if (request_.ignores_body() && request_.content_length.value_or(0) > limits_.ignored_body_bytes)
    request_.keep_alive = false;
}

}  // namespace tally::serve::http
