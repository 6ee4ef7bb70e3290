#pragma once
// Where the bytes and the time are: the memory accounts, and the last steps of the engine.

#include "serve/pages.h"

#include <string>

namespace tally::serve {

PageResult page_accounts(const Desk& desk);
// `query` as it came: since=N, the number of the last step the reader has; or last=N, the newest N. Absent:
// from the oldest there is.
PageResult page_steps(const Desk& desk, const std::string& query);

}  // namespace tally::serve
