// Stored runs as one page to look at: a single HTML file that needs nothing beside it, now or in ten years.
//
// What the pictures show is computed here, where the definitions are; the script of the page only draws. Long
// runs are thinned, and the page says how much of them it keeps.
#pragma once

#include "measure/run.h"

#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace tally::measure {

struct NamedRun {
  std::string name;  // of its directory
  Run run;
};

// The data of the page: `runs`, each with its head as stored, its requests by column and a part for each
// picture of one run; `series`, repetitions of one arm and level taken together; `sweep`, the levels of each
// arm. A part that has nothing to show is {"why": sentence}.
// Requires: not empty.
nlohmann::json report_json(std::span<const NamedRun> runs);

// The page. Ensures: no byte of `data` is markup or script, whatever the runs say; the policy of the page
// lets nothing run but its own script, and nothing be loaded.
std::string report_page(const nlohmann::json& data);

}  // namespace tally::measure
