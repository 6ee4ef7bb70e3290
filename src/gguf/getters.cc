// The typed getters of File.

#include "base/utf8.h"
#include "gguf/file_state.h"
#include "gguf/gguf.h"
#include "gguf/scalars.h"
#include "gguf/value.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

namespace tally::gguf {
namespace {

// An integer of the file, whatever its stored type.
struct Integer {
  bool negative = false;
  uint64_t bits = 0;  // two's complement if negative

  bool in(uint64_t min, uint64_t max) const { return !negative && bits >= min && bits <= max; }
  std::string text() const {
    return negative ? fmt::to_string(static_cast<int64_t>(bits)) : fmt::to_string(bits);
  }
};

Integer integer_of(uint64_t v) { return {false, v}; }
Integer integer_of(int64_t v) { return {v < 0, static_cast<uint64_t>(v)}; }

template <class Variant>
std::optional<Integer> as_integer(const Variant& value) {
  if (const auto* u = std::get_if<uint64_t>(&value)) return integer_of(*u);
  if (const auto* i = std::get_if<int64_t>(&value)) return integer_of(*i);
  return std::nullopt;
}

template <class Variant>
std::optional<Integer> as_integer_or_bool(const Variant& value) {
  if (const auto* b = std::get_if<bool>(&value)) return integer_of(uint64_t{*b});
  return as_integer(value);
}

base::Error wrong_type(const std::string& path, const Metadata& item, std::string_view wanted) {
  return bad_key(path, item, fmt::format("has type {}; must be {}", describe_type(item.value), wanted));
}

base::Error out_of_range(const std::string& path, const Metadata& item, const Integer& value, uint64_t min,
                         uint64_t max) {
  if (min == max) return bad_key(path, item, fmt::format("is {}; must be {}", value.text(), min));
  return bad_key(path, item, fmt::format("is {}; allowed {} to {}", value.text(), min, max));
}

base::Error missing(const std::string& path, std::string_view key) {
  return {base::ErrorCode::kBadData,
          fmt::format("{}: key '{}' is missing", base::escape_for_log(path), base::escape_for_log(key))};
}

bool is_array_of(const Array* array, ValueType type) {
  return array != nullptr && array->element_type == static_cast<uint32_t>(type);
}

}  // namespace

std::string describe_type(const Value& value) {
  const auto* array = std::get_if<Array>(&value.data);
  return array == nullptr ? value_type_name(value.type) : "array of " + value_type_name(array->element_type);
}

base::Error bad_key(const std::string& path, const Metadata& item, std::string_view message) {
  return {base::ErrorCode::kBadData, fmt::format("{}: byte {}: key '{}': {}", base::escape_for_log(path),
                                                 item.offset, base::escape_for_log(item.key), message)};
}

base::Result<uint64_t> read_uint(const std::string& path, const Metadata& item, uint64_t min, uint64_t max) {
  const std::optional<Integer> value = as_integer(item.value.data);
  if (!value) return wrong_type(path, item, "an integer");
  if (!value->in(min, max)) return out_of_range(path, item, *value, min, max);
  return value->bits;
}

base::Result<std::optional<uint64_t>> File::get_uint(std::string_view key, uint64_t min, uint64_t max) const {
  const Metadata* item = state_->find_metadata(key);
  if (item == nullptr) return std::optional<uint64_t>{};
  TALLY_TRY(const uint64_t value, read_uint(path(), *item, min, max));
  return std::optional<uint64_t>{value};
}

base::Result<std::optional<double>> File::get_float(std::string_view key) const {
  const Metadata* item = state_->find_metadata(key);
  if (item == nullptr) return std::optional<double>{};
  double value = 0;
  if (const auto* single = std::get_if<float>(&item->value.data)) {
    value = *single;
  } else if (const auto* wide = std::get_if<double>(&item->value.data)) {
    value = *wide;
  } else {
    return wrong_type(path(), *item, "f32 or f64");
  }
  if (!std::isfinite(value)) return bad_key(path(), *item, fmt::format("is {}; must be finite", value));
  return std::optional<double>{value};
}

base::Result<std::optional<bool>> File::get_bool(std::string_view key) const {
  const Metadata* item = state_->find_metadata(key);
  if (item == nullptr) return std::optional<bool>{};
  const auto* value = std::get_if<bool>(&item->value.data);
  if (value == nullptr) return wrong_type(path(), *item, "bool");
  return std::optional<bool>{*value};
}

base::Result<std::optional<std::string_view>> File::get_string(std::string_view key) const {
  const Metadata* item = state_->find_metadata(key);
  if (item == nullptr) return std::optional<std::string_view>{};
  const auto* value = std::get_if<std::string_view>(&item->value.data);
  if (value == nullptr) return wrong_type(path(), *item, "string");
  return std::optional<std::string_view>{*value};
}

base::Result<uint64_t> File::require_uint(std::string_view key, uint64_t min, uint64_t max) const {
  TALLY_TRY(const std::optional<uint64_t> value, get_uint(key, min, max));
  if (!value) return missing(path(), key);
  return *value;
}

base::Result<double> File::require_float(std::string_view key) const {
  TALLY_TRY(const std::optional<double> value, get_float(key));
  if (!value) return missing(path(), key);
  return *value;
}

base::Result<std::string_view> File::require_string(std::string_view key) const {
  TALLY_TRY(const std::optional<std::string_view> value, get_string(key));
  if (!value) return missing(path(), key);
  return *value;
}

base::Result<std::vector<uint64_t>> File::get_uints(std::string_view key, size_t count, uint64_t min,
                                                    uint64_t max) const {
  const Metadata* item = state_->find_metadata(key);
  if (item == nullptr) return std::vector<uint64_t>{};
  const auto* array = std::get_if<Array>(&item->value.data);
  if (array == nullptr) {
    const std::optional<Integer> value = as_integer_or_bool(item->value.data);
    if (!value) return wrong_type(path(), *item, "an integer, a bool or an array of them");
    if (!value->in(min, max)) return out_of_range(path(), *item, *value, min, max);
    return std::vector<uint64_t>(count, value->bits);
  }
  if (array->size() != count) {
    return bad_key(path(), *item,
                   fmt::format("has {} elements; must be one value or {}", array->size(), count));
  }
  std::vector<uint64_t> values;
  values.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const std::optional<Integer> value = as_integer_or_bool(array->at(i));
    if (!value) return wrong_type(path(), *item, "an integer, a bool or an array of them");
    if (!value->in(min, max)) return out_of_range(path(), *item, *value, min, max);
    values.push_back(value->bits);
  }
  return values;
}

base::Result<const std::vector<std::string_view>*> File::get_strings(std::string_view key) const {
  const Metadata* item = state_->find_metadata(key);
  if (item == nullptr) return static_cast<const std::vector<std::string_view>*>(nullptr);
  const auto* array = std::get_if<Array>(&item->value.data);
  if (!is_array_of(array, ValueType::kString)) return wrong_type(path(), *item, "array of string");
  return &array->strings;
}

base::Result<const std::vector<float>*> File::get_floats(std::string_view key) const {
  const Metadata* item = state_->find_metadata(key);
  if (item == nullptr) return static_cast<const std::vector<float>*>(nullptr);
  const auto* array = std::get_if<Array>(&item->value.data);
  if (!is_array_of(array, ValueType::kF32)) return wrong_type(path(), *item, "array of f32");
  return &array->floats;
}

base::Result<std::vector<int64_t>> File::get_ints(std::string_view key, int64_t min, int64_t max) const {
  const Metadata* item = state_->find_metadata(key);
  if (item == nullptr) return std::vector<int64_t>{};
  const auto* array = std::get_if<Array>(&item->value.data);
  if (array == nullptr) return wrong_type(path(), *item, "an array of integers");
  std::vector<int64_t> values;
  values.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    const std::optional<Integer> value = as_integer(array->at(i));
    if (!value) return wrong_type(path(), *item, "an array of integers");
    const auto number = static_cast<int64_t>(value->bits);
    const bool fits = value->negative || value->bits <= uint64_t{INT64_MAX};
    if (!fits || number < min || number > max) {
      return bad_key(path(), *item,
                     fmt::format("element {} is {}; allowed {} to {}", i, value->text(), min, max));
    }
    values.push_back(number);
  }
  return values;
}

}  // namespace tally::gguf
