#include "plan_shape.h"

#include "base/settings.h"
#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

struct Key {
  const char* name;
  uint64_t fallback, min, max;  // fallback 0: follows from others, or none
};
constexpr Key kKeys[] = {{"layers", 32, 1, 1024},
                         {"heads", 32, 1, 1024},
                         {"kv-heads", 0, 1, 1024},
                         {"head-dim", 128, 8, 512},
                         {"embedding", 0, 32, 1 << 20},
                         {"ffn", 0, 32, 1 << 22},
                         {"vocab", 32000, 32, 1 << 22},
                         {"context", 8192, 16, 1 << 24},
                         {"experts", 0, 1, 1024},
                         {"experts-used", 0, 1, 1024},
                         {"tied", 0, 0, 1}};

Result<tensor::DType> parse_type(const std::string& text) {
  std::string known;
  for (const tensor::DTypeInfo& info : tensor::dtypes()) {
    std::string name(info.name);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (name == text) return info.type;
    known += (known.empty() ? "" : ", ") + name;
  }
  return Error{ErrorCode::kUsage, fmt::format("--shape: type={} is not allowed; allowed: {}",
                                              base::escape_for_log(text, 32), known)};
}

Result<void> set_value(ModelShape& shape, const std::string& name, const std::string& text) {
  if (name == "type") {
    TALLY_TRY(shape.type, parse_type(text));
    return {};
  }
  std::string known = "type";
  for (const Key& key : kKeys) {
    known += fmt::format(", {}", key.name);
    if (name != key.name) continue;
    const auto value = base::parse_uint(text);
    if (!value || *value < key.min || *value > key.max)
      return Error{ErrorCode::kUsage, fmt::format("--shape: {}={} is not allowed; allowed: {}..{}", key.name,
                                                  base::escape_for_log(text, 32), key.min, key.max)};
    shape.values[name] = *value;
    return {};
  }
  return Error{ErrorCode::kUsage,
               fmt::format("--shape: {} is no key; allowed: {}", base::escape_for_log(name, 32), known)};
}

}  // namespace

Result<ModelShape> parse_model_shape(const std::string& text) {
  ModelShape shape;
  for (const Key& key : kKeys) shape.values[key.name] = key.fallback;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string pair = text.substr(at, end - at);
    const size_t equals = pair.find('=');
    if (equals == std::string::npos)
      return Error{ErrorCode::kUsage,
                   fmt::format("--shape: '{}' is no key=value", base::escape_for_log(pair, 32))};
    TALLY_TRY_VOID(set_value(shape, pair.substr(0, equals), pair.substr(equals + 1)));
    at = end + 1;
  }
  const auto fill = [&](const char* key, uint64_t value) {
    if (shape.of(key) == 0) shape.values[key] = value;
  };
  fill("kv-heads", shape.of("heads")), fill("embedding", shape.of("heads") * shape.of("head-dim"));
  fill("ffn", shape.of("embedding") * 8 / 3 / 256 * 256 + 256);
  if (shape.of("experts") > 0) fill("experts-used", std::min<uint64_t>(2, shape.of("experts")));
  const uint64_t unit = tensor::dtype_info(shape.type).block_elements;
  for (const auto& [key, row] : {std::pair{"embedding", shape.of("embedding")},
                                 {"ffn", shape.of("ffn")},
                                 {"heads x head-dim", shape.of("heads") * shape.of("head-dim")}})
    if (row % unit != 0)
      return Error{ErrorCode::kUsage,
                   fmt::format("--shape: {} {} is no multiple of {}, the block of the type", key, row, unit)};
  return shape;
}

}  // namespace tally::apps
