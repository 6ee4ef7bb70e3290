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
constexpr uint64_t kLatentRope = 64;  // rotated part of a head's key, as the models have it
constexpr Key kKeys[] = {{"layers", 32, 1, 1024},        {"heads", 32, 1, 1024},
                         {"kv-heads", 0, 1, 1024},       {"head-dim", 128, 8, 512},
                         {"value-dim", 0, 8, 512},       {"rope-dim", 0, 2, 512},
                         {"window", 0, 1, 1 << 24},      {"window-period", 4, 2, 1024},
                         {"kv-rank", 0, 1, 1 << 16},     {"q-rank", 0, 1, 1 << 16},
                         {"embedding", 0, 32, 1 << 20},  {"ffn", 0, 32, 1 << 22},
                         {"vocab", 32000, 32, 1 << 22},  {"context", 8192, 16, 1 << 24},
                         {"experts", 0, 1, 1024},        {"experts-used", 0, 1, 1024},
                         {"expert-ffn", 0, 32, 1 << 22}, {"shared-experts", 0, 0, 64},
                         {"dense-layers", 0, 0, 1024},   {"tied", 0, 0, 1}};

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

Error refuse(const std::string& what) { return {ErrorCode::kUsage, "--shape: " + what}; }

// What follows from other keys where it is left out.
void fill_in(ModelShape& shape) {
  const auto fill = [&](const char* key, uint64_t value) {
    if (shape.of(key) == 0) shape.values[key] = value;
  };
  const uint64_t head = shape.of("head-dim");
  const bool is_latent = shape.of("kv-rank") > 0;
  fill("kv-heads", shape.of("heads")), fill("embedding", shape.of("heads") * head);
  fill("value-dim", head);
  fill("rope-dim", is_latent ? std::min(kLatentRope, head / 4 * 2) : head);
  fill("ffn", shape.of("embedding") * 8 / 3 / 256 * 256 + 256);
  fill("expert-ffn", shape.of("ffn"));
  if (shape.of("experts") > 0) fill("experts-used", std::min<uint64_t>(2, shape.of("experts")));
}

// What no single key says.
Result<void> check_together(const ModelShape& s) {
  const bool is_latent = s.of("kv-rank") > 0;
  if (is_latent && s.of("window") > 0) return refuse("kv-rank and window exclude each other");
  if (is_latent && s.of("kv-heads") != s.of("heads"))
    return refuse(fmt::format("kv-heads={} is not allowed with kv-rank; allowed: as many as heads, {}",
                              s.of("kv-heads"), s.of("heads")));
  if (s.of("q-rank") > 0 && !is_latent) return refuse("q-rank needs kv-rank");
  const uint64_t rotated_max = s.of("head-dim") - (is_latent ? 2 : 0);
  if (s.of("rope-dim") % 2 != 0 || s.of("rope-dim") > rotated_max)
    return refuse(
        fmt::format("rope-dim={} is not allowed; allowed: even, at most {}", s.of("rope-dim"), rotated_max));
  if (s.of("experts") == 0 && s.of("shared-experts") + s.of("dense-layers") > 0)
    return refuse("shared-experts and dense-layers need experts");
  if (s.of("experts-used") > s.of("experts"))
    return refuse(fmt::format("experts-used={} is not allowed; allowed: at most {}, the experts",
                              s.of("experts-used"), s.of("experts")));
  const uint64_t unit = tensor::dtype_info(s.type).block_elements;
  for (const auto& [key, row] : {std::pair{"embedding", s.of("embedding")},
                                 {"ffn", s.of("ffn")},
                                 {"expert-ffn", s.of("expert-ffn")},
                                 {"q-rank", s.of("q-rank")},
                                 {"kv-rank", s.of("kv-rank")},
                                 {"heads x value-dim", s.of("heads") * s.of("value-dim")}})
    if (row % unit != 0)
      return refuse(fmt::format("{} {} is no multiple of {}, the block of the type", key, row, unit));
  return {};
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
  fill_in(shape);
  TALLY_TRY_VOID(check_together(shape));
  return shape;
}

}  // namespace tally::apps
