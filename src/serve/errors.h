#pragma once
// What a client is told when something is wrong: one table of codes, one shape.

#include "serve/http/message.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tally::serve {

enum class Code : uint8_t {
#define TALLY_API_ERROR(name, status, type, code, is_final) name,
#include "serve/errors.inc"
#undef TALLY_API_ERROR
};

struct CodeRow {
  Code code{};
  int status = 0;
  std::string_view type, name;
  bool is_final = false;
};
inline constexpr CodeRow kCodes[] = {
#define TALLY_API_ERROR(name, status, type, code, is_final) {Code::name, status, type, code, is_final},
#include "serve/errors.inc"
#undef TALLY_API_ERROR
};
inline constexpr size_t kCodeCount = std::size(kCodes);

struct ApiError {
  Code code = Code::kInternal;
  std::string message = {};    // a fixed sentence and numbers; text of the client only through escape_for_log
  std::string param = {};      // empty: null
  uint32_t retry_after_s = 0;  // 0: no Retry-After
  int status = 0;              // 0: the table's
  std::vector<http::Field> fields = {};  // more of the answer's head
};

// {"error":{"message","type","param","code"}}
std::string error_json(const ApiError& error);
http::Response error_response(const ApiError& error);
// Inside a stream: the error event and the end of the stream.
std::string error_events(const ApiError& error);

// Of a client's text, for a message: cut at 64 bytes, control characters escaped.
std::string echo(std::string_view text);

}  // namespace tally::serve
