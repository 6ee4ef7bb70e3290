#pragma once
// The page at `/` and what it is made of. Everything it shows it asks of the public routes, as anyone can.

#include "serve/http/message.h"

#include <optional>
#include <string_view>

namespace tally::serve {

// The file at `path`, from a table that is built in: nothing is read from a disk. Nothing: there is none.
std::optional<http::Response> dashboard_file(std::string_view path);

}  // namespace tally::serve
