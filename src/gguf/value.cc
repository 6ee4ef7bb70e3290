#include "gguf/value.h"

#include "base/checked.h"

#include <fmt/format.h>

#include <cstring>
#include <iterator>

namespace tally::gguf {
namespace {

using base::Checked;

constexpr uint64_t kStringBytesMax = uint64_t{1} << 30;

struct ValueTypeInfo {
  std::string_view name;
  uint32_t bytes;  // 0: not of fixed size
};
// By id.
constexpr ValueTypeInfo kValueTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                                         {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                                         {"u64", 8}, {"i64", 8}, {"f64", 8}};

// Decodes an element of fixed size. Requires: a fixed-size type, enough bytes.
template <class T>
T load(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

Scalar load_scalar(ValueType type, const char* p) {
  switch (type) {
    case ValueType::kU8:
      return uint64_t{load<uint8_t>(p)};
    case ValueType::kI8:
      return int64_t{load<int8_t>(p)};
    case ValueType::kU16:
      return uint64_t{load<uint16_t>(p)};
    case ValueType::kI16:
      return int64_t{load<int16_t>(p)};
    case ValueType::kU32:
      return uint64_t{load<uint32_t>(p)};
    case ValueType::kI32:
      return int64_t{load<int32_t>(p)};
    case ValueType::kF32:
      return load<float>(p);
    case ValueType::kBool:
      return *p != 0;
    case ValueType::kU64:
      return load<uint64_t>(p);
    case ValueType::kI64:
      return load<int64_t>(p);
    case ValueType::kF64:
      return load<double>(p);
    case ValueType::kString:
    case ValueType::kArray:
      break;
  }
  TALLY_UNREACHABLE("load_scalar of a type without fixed size");
}

// Walks twice: the first time checks that all the strings are there, so that the views are allocated by a
// number that is true.
base::Result<std::vector<std::string_view>> read_strings(HeaderReader& in, uint64_t count) {
  const HeaderBytes::Mark start = in.mark();
  for (uint64_t i = 0; i < count; ++i) {
    TALLY_TRY_VOID(in.take_string("an array string", {0, kStringBytesMax}));
  }
  std::vector<std::string_view> strings;
  strings.reserve(count);
  HeaderBytes::Replay again = in.replay(start);
  for (uint64_t i = 0; i < count; ++i) {
    const auto length = load<uint64_t>(again.take(sizeof(uint64_t)).data());
    strings.push_back(again.take(length));
  }
  return strings;
}

base::Result<Array> read_array(HeaderReader& in) {
  const uint64_t at = in.offset();
  Array array;
  TALLY_TRY(array.element_type, in.take_number<uint32_t>("the element type"));
  const auto type = static_cast<ValueType>(array.element_type);
  if (type == ValueType::kArray) return in.bad_data(at, "an array of arrays is not supported");
  if (array.element_type >= std::size(kValueTypes)) {
    return in.bad_data(at, fmt::format("element type {} does not exist; allowed 0 to {}", array.element_type,
                                       std::size(kValueTypes) - 1));
  }
  const uint64_t count_at = in.offset();
  TALLY_TRY(array.count, in.take_number<uint64_t>("the array length"));
  // A string takes at least its length field.
  const uint64_t element_bytes = type == ValueType::kString ? 8 : kValueTypes[array.element_type].bytes;
  const std::optional<uint64_t> bytes = (Checked(array.count) * element_bytes).get();
  if (!bytes || *bytes > in.remaining()) {
    return in.past_end(
        count_at,
        fmt::format("an array of {} elements of type {}", array.count, value_type_name(array.element_type)),
        bytes.value_or(UINT64_MAX));
  }
  if (type == ValueType::kString) {
    TALLY_TRY(array.strings, read_strings(in, array.count));
    return array;
  }
  const uint64_t data_at = in.offset();
  TALLY_TRY(array.bytes, in.take(*bytes, "the array"));
  if (type == ValueType::kBool) {
    const size_t wrong = array.bytes.find_first_not_of(std::string_view("\0\1", 2));
    if (wrong != std::string_view::npos) return in.bad_data(data_at + wrong, "a bool is neither 0 nor 1");
  }
  if (type == ValueType::kF32) {
    array.floats.resize(array.count);  // its bytes have been read: the number is true
    if (*bytes > 0) std::memcpy(array.floats.data(), array.bytes.data(), *bytes);
  }
  return array;
}

}  // namespace

base::Result<Value> read_value(HeaderReader& in) {
  const uint64_t at = in.offset();
  Value value;
  TALLY_TRY(value.type, in.take_number<uint32_t>("the value type"));
  if (value.type >= std::size(kValueTypes)) {
    return in.bad_data(at, fmt::format("value type {} does not exist; allowed 0 to {}", value.type,
                                       std::size(kValueTypes) - 1));
  }
  const auto type = static_cast<ValueType>(value.type);
  if (type == ValueType::kArray) {
    TALLY_TRY(value.data, read_array(in));
    return value;
  }
  if (type == ValueType::kString) {
    TALLY_TRY(value.data, in.take_string("a string value", {0, kStringBytesMax}));
    return value;
  }
  const uint64_t value_at = in.offset();
  TALLY_TRY(const std::string_view bytes, in.take(kValueTypes[value.type].bytes, "the value"));
  if (type == ValueType::kBool && static_cast<uint8_t>(bytes[0]) > 1) {
    return in.bad_data(value_at,
                       fmt::format("a bool is {}; allowed 0 and 1", static_cast<uint8_t>(bytes[0])));
  }
  std::visit([&](auto v) { value.data = v; }, load_scalar(type, bytes.data()));
  return value;
}

Scalar Array::at(size_t i) const {
  TALLY_CHECK(i < count, "array index past the end", i, count);
  if (element_type == static_cast<uint32_t>(ValueType::kString)) return strings[i];
  return load_scalar(static_cast<ValueType>(element_type),
                     bytes.data() + i * kValueTypes[element_type].bytes);
}

std::string value_type_name(uint32_t type) {
  if (type < std::size(kValueTypes)) return std::string(kValueTypes[type].name);
  return fmt::format("type {}", type);
}

}  // namespace tally::gguf
