#include "serve/query.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace tally::serve {

std::optional<ApiError> read_query(std::string_view query, std::initializer_list<QueryNumber> numbers) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const std::string_view name = pair.substr(0, pair.find('='));
    const auto wanted =
        std::find_if(numbers.begin(), numbers.end(), [&](const auto& n) { return n.name == name; });
    if (wanted == numbers.end()) continue;
    const std::string_view text = pair.substr(std::min(pair.size(), name.size() + 1));
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (wanted->value->has_value() || error != std::errc() || end != text.data() + text.size()) {
      const std::string param(name);
      return ApiError{Code::kInvalidValue, param + " must be given once, as a whole number from 0.", param};
    }
    *wanted->value = number;
  }
  return std::nullopt;
}

}  // namespace tally::serve
