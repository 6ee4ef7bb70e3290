#pragma once
// The cache seen from outside: its blocks, and what became findable or was lost.

#include "serve/pages.h"

#include <string>

namespace tally::serve {

PageResult page_blocks(const Desk& desk);
// `query` as it came: since=N, the number of the last event the reader has; absent: from the oldest there is.
PageResult page_kv_events(const Desk& desk, const std::string& query);

}  // namespace tally::serve
