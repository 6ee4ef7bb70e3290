#pragma once
// A bench without a server as a stored run.

#include "base/result.h"
#include "cli.h"

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace tally::apps {

// Stores `page`, prints it with --json, else what print_table() prints, and says where it is stored.
//
// `page` has machine, warnings, a list `results`, which becomes results.rows of run.json, and may have model
// and settings. Nothing is stored with --store off. Requires: `command` is one that has --store and --out.
// Errors: kIo names the path.
base::Result<void> tell_bench(const Invocation& call, std::string_view command, nlohmann::json page,
                              const std::function<void()>& print_table);

}  // namespace tally::apps
