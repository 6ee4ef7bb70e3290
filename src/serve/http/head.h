#pragma once
// Writes response heads and chunks. Names and values are validated: nothing we were given can break out of
// its line.

#include "serve/http/message.h"

#include <string>
#include <string_view>

namespace tally::serve::http {

struct HeadStyle {
  bool close = false;
  bool keep_alive_1_0 = false;  // HTTP/1.0 must be told
  bool chunked = false;
};

std::string_view reason_phrase(int status);
void append_head(std::string& out, const Response& response, const HeadStyle& style);
void append_stream_head(std::string& out, const std::vector<Field>& fields, const HeadStyle& style);
void append_chunk(std::string& out, std::string_view data);

}  // namespace tally::serve::http
