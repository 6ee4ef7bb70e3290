// The memory accounts and the block map of a server at one moment, and what changed between two of them.
#pragma once

#include "base/result.h"

#include <nlohmann/json.hpp>
#include <string>

namespace tally::measure {

// Ask a server: {"schema", "taken", "url", "accounts", "blocks", "settings"}, pages as the server gave them.
// Errors: kUsage for the URL; kUnavailable when it does not answer, or not with these pages.
base::Result<nlohmann::json> take_snapshot(const std::string& url, const std::string& api_key);

// Read a stored one. Untrusted bytes: what diff_snapshots() reads is checked.
// Errors: kNoInput for what cannot be read; kBadData names file and key.
base::Result<nlohmann::json> load_snapshot(const std::string& path);

// Figures of both and the difference: {"totals": {key: [before, after, change]}, "accounts": {account:
// {...}}, "parts": {"account/part": [...]}, "blocks": {state: [...]}, "changed_blocks"}. Requires: both were
// taken or loaded.
nlohmann::json diff_snapshots(const nlohmann::json& before, const nlohmann::json& after);

}  // namespace tally::measure
