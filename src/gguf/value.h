#pragma once
// Metadata values: the types of the format, and reading one from the header.

#include "base/result.h"
#include "gguf/gguf.h"
#include "gguf/header_reader.h"

#include <cstdint>
#include <string>

namespace tally::gguf {

// Value type ids of the format.
enum class ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// "u32", or "type 13" for an unknown id.
std::string value_type_name(uint32_t type);

// A value with its type in front. The views of the result point into the bytes of `in`. Errors: kBadData,
// kIo.
base::Result<Value> read_value(HeaderReader& in);

}  // namespace tally::gguf
