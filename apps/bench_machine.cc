#include "bench_machine.h"

#include "base/check.h"

#include <fmt/format.h>
#include <sys/times.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using nlohmann::json;

double own_cpu_s() {
  tms own{};
  ::times(&own);
  return static_cast<double>(own.tms_utime + own.tms_stime) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

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

MachineWatch::MachineWatch() : begin_(measure::machine_times()), own_s_(own_cpu_s()) {
  std::ifstream("/proc/loadavg") >> load_;
}

std::vector<std::string> MachineWatch::warnings() const {
  constexpr double kForeignMost = 0.05, kStealMost = 0.01;  // shares of all CPUs
  const measure::MachineTimes now = measure::machine_times();
  std::vector<std::string> out;
  const double all_s = std::max(.01, now.all_s - begin_.all_s);
  const double foreign = (now.busy_s - begin_.busy_s - (own_cpu_s() - own_s_)) / all_s;
  const double steal = (now.steal_s - begin_.steal_s) / all_s;
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

}  // namespace tally::apps
