#include "serve/http/head.h"

#include "base/check.h"

#include <fmt/format.h>

#include <iterator>

namespace tally::serve::http {
namespace {

void append_field(std::string& out, std::string_view name, std::string_view value) {
  for (std::string_view text : {name, value})
    for (char c : text)
      TALLY_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F,
                  "a control character in a response header");
  out += name;
  out += ": ";
  out += value;
  out += "\r\n";
}

}  // namespace

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

void append_head(std::string& out, const Response& response, const HeadStyle& style) {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", response.status,
                 reason_phrase(response.status));
  if (response.status != 204) {
    if (!response.content_type.empty()) append_field(out, "Content-Type", response.content_type);
    append_field(out, "Content-Length", std::to_string(response.body.size()));
  }
  for (const Field& field : response.fields) append_field(out, field.name, field.value);
  if (style.close) append_field(out, "Connection", "close");
  if (style.keep_alive_1_0) append_field(out, "Connection", "keep-alive");
  out += "\r\n";
}

void append_stream_head(std::string& out, const std::vector<Field>& fields, const HeadStyle& style) {
  out += "HTTP/1.1 200 OK\r\n";
  append_field(out, "Content-Type", "text/event-stream; charset=utf-8");
  append_field(out, "Cache-Control", "no-cache");
  append_field(out, "X-Accel-Buffering", "no");
  for (const Field& field : fields) append_field(out, field.name, field.value);
  if (style.chunked) append_field(out, "Transfer-Encoding", "chunked");
  if (style.close) append_field(out, "Connection", "close");
  out += "\r\n";
}

void append_chunk(std::string& out, std::string_view data) {
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", data.size());
  out += data;
  out += "\r\n";
}

}  // namespace tally::serve::http
