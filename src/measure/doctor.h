// Is this machine set up well: what was found, what shows it, what it costs, and one command that mends it.
#pragma once

#include "measure/doctor_facts.h"
#include "measure/roof.h"

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::measure {

// How much of a file lies in the page cache. Absent: it cannot be looked at.
struct FileCache {
  std::string path;
  uint64_t bytes = 0, cached_bytes = 0;
};
std::optional<FileCache> file_cache(const std::string& path);

// What was measured. Absent: it was not.
struct MachineProbes {
  std::string isa_best, isas;  // tiers of the kernels: the one in use, all that this CPU has
  std::optional<Roofs> roofs;
  std::optional<double> huge_share;                  // of a fresh area that asked for huge pages
  std::optional<double> steal_share, foreign_share;  // of the CPUs, while it was measured
  std::optional<FileCache> model;
};

enum class Health : uint8_t { kOk, kNote, kWarn };
const char* health_word(Health health);

struct Finding {
  std::string name;  // of the check
  Health health = Health::kOk;
  std::string finding, evidence, effect, fix;  // `fix`: one command, "" where there is nothing to mend
};

// One check: a function of what was read and measured, and of nothing else.
using CheckFn = Finding (*)(const MachineFacts&, const MachineProbes&);
struct Check {
  std::string_view name;
  CheckFn run;
};
std::span<const Check> doctor_checks();
// All of them, in their order.
std::vector<Finding> examine(const MachineFacts& facts, const MachineProbes& probes);

nlohmann::json findings_json(const std::vector<Finding>& findings);

}  // namespace tally::measure
