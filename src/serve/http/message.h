#pragma once
// What crosses the border between the wire and the routes: plain values, no sockets.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::serve::http {

struct Field {
  std::string name, value;
};

struct Request {
  std::string method, path, query;
  int minor_version = 1;      // HTTP/1.x
  std::vector<Field> fields;  // names in lower case, values trimmed, in order
  std::string body;           // decoded
  std::optional<uint64_t> content_length;
  bool chunked = false, keep_alive = true, expect_continue = false;
  std::string id;  // x-request-id, taken or made
  int route = -1;  // the site's own: what judge_head found, and whose key it was
  std::string tenant;
  int64_t arrived_us = 0;  // base::now_us() when head and body were read

  // The first field of that (lower case) name, or nullptr.
  const std::string* find(std::string_view name) const {
    for (const Field& field : fields)
      if (field.name == name) return &field.value;
    return nullptr;
  }
  size_t count(std::string_view name) const {
    size_t n = 0;
    for (const Field& field : fields) n += field.name == name;
    return n;
  }
  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
  // Bodies of these mean nothing and are thrown away.
  bool ignores_body() const { return method == "GET" || method == "HEAD" || method == "OPTIONS"; }
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Field> fields;
  std::string body;
  bool close = false;
};

}  // namespace tally::serve::http
