#pragma once
// Chat templates that come with tally, for model files that carry none.

#include <span>
#include <string_view>

namespace tally::text {

struct BuiltinTemplate {
  std::string_view name;
  std::string_view source;
};

std::span<const BuiltinTemplate> builtin_templates();

}  // namespace tally::text
