#include "serve/openai/json.h"

#include "base/utf8.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

namespace tally::serve::openai {
namespace {

// Reads the text and leaves behind how far the parser has come: its events carry no place.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** reached;

  const char& operator*() const { return *at; }
  Cursor& operator++() {
    *reached = ++at;
    return *this;
  }
  Cursor operator++(int) {
    Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
};

// Builds the tree. Pointers in the stack stay good: a container grows only while it is the innermost.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(Json& root, const char* begin, const char* const& reached)
      : root_(root), begin_(begin), reached_(reached) {}

  bool null() override { return add({nullptr}); }
  bool boolean(bool v) override { return add({v}); }
  bool number_integer(number_integer_t v) override { return add({int64_t{v}}); }
  bool number_unsigned(number_unsigned_t v) override {
    return v <= static_cast<uint64_t>(INT64_MAX) ? add({static_cast<int64_t>(v)}) : add({uint64_t{v}});
  }
  bool number_float(number_float_t v, const string_t&) override { return add({v}); }
  bool string(string_t& v) override { return add({std::move(v)}); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    objects_.push_back(key_places_.size());
    return open({JsonObject{}});
  }
  bool start_array(std::size_t) override { return open({JsonArray{}}); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    key_places_.push_back(at());
    return true;
  }
  bool end_object() override {
    const auto& object = *stack_.back()->as<JsonObject>();
    std::vector<std::pair<std::string_view, size_t>> names;  // and the order
    names.reserve(object.size());
    for (const auto& member : object) names.emplace_back(member.first, names.size());
    std::sort(names.begin(), names.end());
    const auto first = std::adjacent_find(names.begin(), names.end(),
                                          [](const auto& a, const auto& b) { return a.first == b.first; });
    if (first != names.end())
      return stop("no JSON document with distinct keys: \"" + echo(first->first) +
                  "\" occurs for the second time at byte " +
                  std::to_string(key_places_[objects_.back() + first[1].second]));
    key_places_.resize(objects_.back());
    objects_.pop_back();
    return close();
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop("not a JSON document at byte " + std::to_string(position > 0 ? position - 1 : 0));
  }

  const std::string& why() const { return why_; }

 private:
  bool stop(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    return false;
  }

  bool add(Json value) {
    if (++nodes_ > kNodesMax)
      return stop("more than " + std::to_string(kNodesMax) + " values" + place_text());
    place(std::move(value));
    return true;
  }

  Json* place(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (auto* array = std::get_if<JsonArray>(&stack_.back()->data))
      return &array->emplace_back(std::move(value));
    auto& object = std::get<JsonObject>(stack_.back()->data);
    return &object.emplace_back(std::move(key_), std::move(value)).second;
  }

  bool open(Json value) {
    if (stack_.size() >= kDepthMax)
      return stop("nested deeper than " + std::to_string(kDepthMax) + place_text());
    if (++nodes_ > kNodesMax)
      return stop("more than " + std::to_string(kNodesMax) + " values" + place_text());
    stack_.push_back(place(std::move(value)));
    return true;
  }

  size_t at() const { return static_cast<size_t>(reached_ - begin_ - 1); }
  std::string place_text() const { return " at byte " + std::to_string(at()); }

  bool close() {
    stack_.pop_back();
    return true;
  }

  Json& root_;
  const char* const begin_;
  const char* const& reached_;  // behind the last byte that was read
  std::vector<Json*> stack_;
  std::vector<size_t> objects_, key_places_;  // of open objects: where their keys begin among the places
  std::string key_, why_;
  size_t nodes_ = 0;
};

}  // namespace

std::optional<ApiError> parse_json(std::string_view text, Json& out) {
  const auto wrong = [](const std::string& why) {
    return ApiError{Code::kInvalidJson, "The request body is " + why + "."};
  };
  if (const size_t bad = base::utf8_find_invalid(text); bad != std::string_view::npos)
    return wrong("not UTF-8 at byte " + std::to_string(bad));
  // The library takes a NUL for the end of its input, and forgives a byte order mark.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return wrong("not a JSON document at byte " + std::to_string(nul));
  if (text.substr(0, 3) == "\xEF\xBB\xBF") return wrong("not a JSON document at byte 0");
  const char* reached = text.data();
  Builder builder(out, text.data(), reached);
  const Cursor begin{text.data(), &reached}, end{text.data() + text.size(), &reached};
  if (nlohmann::json::sax_parse(begin, end, &builder)) return std::nullopt;
  return wrong(builder.why());
}

const Json* Fields::find(std::string_view name) const {
  for (const auto& [key, value] : object_)
    if (key == name) return value.is_null() ? nullptr : &value;
  return nullptr;
}

void Fields::fail(Code code, std::string_view param, std::string message) {
  if (!error_) error_ = ApiError{code, std::move(message), path_ + std::string(param)};
}

template <class T>
const T* Fields::get(std::string_view name, const char* wanted) {
  const Json* json = find(name);
  if (!json) return nullptr;
  const T* value = json->as<T>();
  if (!value) invalid(name, path_ + std::string(name) + " must be " + wanted + ".");
  return value;
}

std::optional<bool> Fields::get_bool(std::string_view name) {
  const bool* value = get<bool>(name, "true or false");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<int64_t> Fields::get_int(std::string_view name, int64_t min, int64_t max) {
  const Json* json = find(name);
  if (!json) return std::nullopt;
  const int64_t* value = json->as<int64_t>();
  if (value && *value >= min && *value <= max) return *value;
  const std::string got = value ? ", not " + std::to_string(*value) : "";
  invalid(name, path_ + std::string(name) + " must be an integer from " + std::to_string(min) + " to " +
                    std::to_string(max) + got + ".");
  return std::nullopt;
}

std::optional<double> Fields::get_number(std::string_view name) {
  const Json* json = find(name);
  if (!json) return std::nullopt;
  if (const auto* v = json->as<double>()) return *v;
  if (const auto* v = json->as<int64_t>()) return static_cast<double>(*v);
  if (const auto* v = json->as<uint64_t>()) return static_cast<double>(*v);
  invalid(name, path_ + std::string(name) + " must be a number.");
  return std::nullopt;
}

const std::string* Fields::get_string(std::string_view name) { return get<std::string>(name, "a string"); }
const JsonArray* Fields::get_array(std::string_view name) { return get<JsonArray>(name, "an array"); }
const JsonObject* Fields::get_object(std::string_view name) { return get<JsonObject>(name, "an object"); }

}  // namespace tally::serve::openai
