#pragma once
// The roofs of this machine for commands that compare with them: kept from an earlier call, or measured now.

#include "base/result.h"
#include "base/settings.h"
#include "kernels/roof.h"
#include "measure/roof.h"

#include <optional>
#include <string>

namespace tally::apps {

measure::RoofProbe roof_probe(const kernels::RoofLoop& loop);

// The directory of --tuning-cache, or the user's; "": there is none.
std::string kept_directory(const base::Settings& settings);

// As --roofs says: `auto` the kept ones, else measured in a second and kept; `measure` always measured; `off`
// none. Errors: kUnavailable, when there is not the memory to read.
base::Result<std::optional<measure::Roofs>> machine_roofs(const base::Settings& settings);

}  // namespace tally::apps
