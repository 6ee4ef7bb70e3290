#include "serve/errors.h"

#include "base/utf8.h"
#include "serve/openai/writer.h"

#include <algorithm>

namespace tally::serve {

std::string error_json(const ApiError& error) {
  const CodeRow& row = kCodes[static_cast<size_t>(error.code)];
  openai::Writer w;
  w.begin_object().key("error").begin_object();
  w.key("message").value(error.message).key("type").value(row.type);
  w.key("param");
  error.param.empty() ? w.null() : w.value(error.param);
  w.key("code").value(row.name).end_object().end_object();
  return w.take();
}

http::Response error_response(const ApiError& error) {
  const CodeRow& row = kCodes[static_cast<size_t>(error.code)];
  http::Response response;
  response.status = error.status != 0 ? error.status : row.status;
  response.body = error_json(error);
  if (error.retry_after_s > 0)
    response.fields.push_back({"Retry-After", std::to_string(std::clamp(error.retry_after_s, 1u, 60u))});
  response.fields.insert(response.fields.end(), error.fields.begin(), error.fields.end());
  if (row.is_final) response.fields.push_back({"x-should-retry", "false"});
  if (error.code == Code::kInvalidApiKey) response.fields.push_back({"WWW-Authenticate", "Bearer"});
  if (error.code == Code::kShuttingDown || error.code == Code::kRequestTimeout ||
      error.code == Code::kTooLarge)
    response.close = true;
  return response;
}

std::string error_events(const ApiError& error) {
  return "data: " + error_json(error) + "\n\ndata: [DONE]\n\n";
}

std::string echo(std::string_view text) { return base::escape_for_log(text, 64); }

}  // namespace tally::serve
