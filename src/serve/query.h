#pragma once
// The whole numbers of a query string: a=1&b=2.

#include "serve/errors.h"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace tally::serve {

struct QueryNumber {
  std::string_view name;
  std::optional<uint64_t>* value;
};
// Fills what is given; other names are ignored. Errors: no whole number, a name twice.
std::optional<ApiError> read_query(std::string_view query, std::initializer_list<QueryNumber> numbers);

}  // namespace tally::serve
