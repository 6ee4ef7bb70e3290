#pragma once
// A request body as a tree, within limits, and typed reading of its fields. JSON ends in this folder.

#include "serve/errors.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tally::serve::openai {

inline constexpr size_t kDepthMax = 64;
inline constexpr size_t kNodesMax = 1'000'000;

struct Json;
using JsonArray = std::vector<Json>;
using JsonObject = std::vector<std::pair<std::string, Json>>;
struct Json {
  // uint64_t only where int64_t is too small.
  std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, JsonArray, JsonObject> data =
      nullptr;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(data); }
  template <class T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
};

// One document: no comments, no duplicate keys, valid UTF-8, finite numbers, bounded depth and nodes; without
// recursion. Errors: kInvalidJson with the byte offset.
std::optional<ApiError> parse_json(std::string_view text, Json& out);

// Reads the fields of an object. The first thing wrong is kept in error(); null means absent everywhere.
class Fields {
 public:
  // `path` goes in front of the names in messages ("stream_options.").
  Fields(const JsonObject& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  const Json* find(std::string_view name) const;  // nullptr: absent or null
  std::optional<bool> get_bool(std::string_view name);
  std::optional<int64_t> get_int(std::string_view name, int64_t min, int64_t max);
  std::optional<double> get_number(std::string_view name);  // range is the caller's
  const std::string* get_string(std::string_view name);
  const JsonArray* get_array(std::string_view name);
  const JsonObject* get_object(std::string_view name);

  void fail(Code code, std::string_view param, std::string message);
  void invalid(std::string_view param, std::string message) {
    fail(Code::kInvalidValue, param, std::move(message));
  }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  template <class T>
  const T* get(std::string_view name, const char* wanted);

  const JsonObject& object_;
  const std::string path_;
  std::optional<ApiError> error_;
};

}  // namespace tally::serve::openai
