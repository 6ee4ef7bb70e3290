#include "bench_machine.h"

#include "base/check.h"
#include "base/clock.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tally::apps {

using nlohmann::json;

json machine_json(std::string_view tier) {
  json machine = measure::machine_json();
  machine["tier"] = tier;
  machine["last_cache_bytes"] = last_cache_bytes();
  return machine;
}

uint64_t last_cache_bytes() {
  constexpr uint64_t kGuess = uint64_t{32} << 20;
  for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE})
    if (const long bytes = ::sysconf(level); bytes > 0) return static_cast<uint64_t>(bytes);
  return kGuess;
}

MachineWatch::MachineWatch() { std::ifstream("/proc/loadavg") >> load_; }

std::vector<std::string> MachineWatch::warnings() const {
  constexpr double kForeignMost = 0.05, kStealMost = 0.01;  // shares of all CPUs
  std::vector<std::string> out;
  const double foreign = cpus_.foreign(), steal = cpus_.steal();
  if (foreign > kForeignMost) {
    out.push_back(
        fmt::format("other processes used {:.0f} % of the CPUs while this was measured (at most {:.0f} % "
                    "is sound); load average at the start {:.2f}",
                    100 * foreign, 100 * kForeignMost, load_));
  }
  if (steal > kStealMost) {
    out.push_back(
        fmt::format("the hypervisor took {:.1f} % of the CPU time while this was measured (at most {:.0f} % "
                    "is sound)",
                    100 * steal, 100 * kStealMost));
  }
  return out;
}

Spread spread(std::vector<double> values) {
  TALLY_CHECK(!values.empty(), "a spread of nothing");
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

double seconds_since(int64_t begin_us) { return static_cast<double>(base::now_us() - begin_us) * 1e-6; }

}  // namespace tally::apps
