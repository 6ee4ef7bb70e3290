#include "bench_machine.h"

#include "base/check.h"
#include "base/machine.h"
#include "base/sha256.h"

#include <fmt/format.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using nlohmann::json;

std::string first_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// "always [madvise] never" -> "madvise"; "" where the file is absent.
std::string chosen(const std::string& line) {
  const size_t begin = line.find('['), end = line.find(']');
  return begin == std::string::npos || end == std::string::npos ? ""
                                                                : line.substr(begin + 1, end - begin - 1);
}

size_t numa_nodes() {
  std::error_code ec;
  size_t nodes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", ec)) {
    const std::string name = entry.path().filename();
    nodes += name.starts_with("node") && name.size() > 4 && name[4] >= '0' && name[4] <= '9';
  }
  return std::max<size_t>(1, nodes);
}

}  // namespace

json machine_json(std::string_view isa) {
  const base::CpuAllowance cpu = base::cpu_allowance();
  utsname kernel{};
  ::uname(&kernel);
  json machine = {
      {"cpu_model", cpu.model},
      {"cores_physical", cpu.physical},
      {"cores_logical", cpu.logical},
      {"isa", isa},
      {"ram_bytes", base::memory_total()},
      {"cgroup_cpu_quota", cpu.quota == 0 ? json() : json(cpu.quota)},
      {"governor", first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
      {"thp", chosen(first_line("/sys/kernel/mm/transparent_hugepage/enabled"))},
      {"kernel", kernel.release},
      {"numa_nodes", numa_nodes()},
      {"smt", first_line("/sys/devices/system/cpu/smt/active") == "1"},
      {"last_cache_bytes", last_cache_bytes()},
  };
  machine["fingerprint"] =
      base::hex(base::sha256(machine.dump(-1, ' ', false, json::error_handler_t::replace)));
  return machine;
}

uint64_t last_cache_bytes() {
  constexpr uint64_t kGuess = uint64_t{32} << 20;
  for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE})
    if (const long bytes = ::sysconf(level); bytes > 0) return static_cast<uint64_t>(bytes);
  return kGuess;
}

MachineWatch::MachineWatch() : begin_(read()) { std::ifstream("/proc/loadavg") >> load_; }

MachineWatch::Ticks MachineWatch::read() {
  Ticks t;
  std::ifstream in("/proc/stat");
  std::string cpu;
  uint64_t user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0;
  in >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> t.steal;
  t.busy = user + nice + system + irq + softirq;
  t.all = t.busy + idle + iowait + t.steal;
  tms own{};
  ::times(&own);
  t.own = static_cast<uint64_t>(own.tms_utime + own.tms_stime);
  return t;
}

std::vector<std::string> MachineWatch::warnings() const {
  constexpr double kForeignMost = 0.05, kStealMost = 0.01;  // shares of all CPUs
  const Ticks now = read();
  std::vector<std::string> out;
  const auto all = static_cast<double>(std::max<uint64_t>(1, now.all - begin_.all));
  const uint64_t busy = now.busy - begin_.busy, own = now.own - begin_.own;
  const double foreign = static_cast<double>(busy - std::min(busy, own)) / all;
  const double steal = static_cast<double>(now.steal - begin_.steal) / all;
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
