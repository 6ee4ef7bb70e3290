#pragma once
// One metadata entry as a number of the wanted kind, or an error that names the key, its byte offset and what
// is allowed.

#include "base/result.h"
#include "gguf/gguf.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tally::gguf {

// "u32" or "array of u32".
std::string describe_type(const Value& value);
base::Error bad_key(const std::string& path, const Metadata& item, std::string_view message);

base::Result<uint64_t> read_uint(const std::string& path, const Metadata& item, uint64_t min, uint64_t max);

}  // namespace tally::gguf
