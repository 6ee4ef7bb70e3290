#include "measure/machine.h"

#include "base/machine.h"
#include "base/sha256.h"
#include "measure/store.h"

#include <sys/times.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

namespace tally::measure {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// A limit that is none is written as a very large number by version 1 of cgroups.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

json first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  return std::getline(in, line) ? json(line) : json(nullptr);
}

// The word in brackets of "always [madvise] never".
json chosen_of(const fs::path& file) {
  const json line = first_line(file);
  if (!line.is_string()) return nullptr;
  const auto& text = line.get_ref<const std::string&>();
  const size_t open = text.find('['), close = text.find(']', open);
  return close == std::string::npos ? line : json(text.substr(open + 1, close - open - 1));
}

// The instruction sets that matter to the kernels, as Linux names them.
json instruction_sets() {
  constexpr std::array<std::string_view, 13> kKnown{
      "neon",     "asimd",   "sse4_2",   "avx",         "avx2",        "fma",     "f16c",
      "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8"};
  json out = json::array();
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (std::find(kKnown.begin(), kKnown.end(), word) != kKnown.end()) out.push_back(word);
    }
    break;
  }
  return out;
}

// The own cgroup's and, where that is another one, the root's that a container sees. Version 2, then 1.
json cgroup_memory_max() {
  std::string own;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::")) own = line.substr(4);
  }
  const fs::path root = "/sys/fs/cgroup";
  json least = nullptr;
  for (const fs::path& file : {root / fs::path(own).relative_path() / "memory.max", root / "memory.max",
                               root / "memory" / "memory.limit_in_bytes"}) {
    const json line = first_line(file);
    if (!line.is_string()) continue;
    const auto limit = base::parse_limit(line.get_ref<const std::string&>());
    if (limit && *limit < kNoLimit && (least.is_null() || *limit < least.get<uint64_t>())) least = *limit;
  }
  return least;
}

json numa_nodes() {
  std::error_code ec;
  size_t nodes = 0;
  for (fs::directory_iterator at("/sys/devices/system/node", ec), end; !ec && at != end; at.increment(ec)) {
    const std::string name = at->path().filename().string();
    nodes += name.starts_with("node") && name.size() > 4 && name[4] >= '0' && name[4] <= '9';
  }
  return nodes > 0 ? json(nodes) : json(nullptr);
}

double own_cpu_s() {
  tms own{};
  ::times(&own);
  return static_cast<double>(own.tms_utime + own.tms_stime) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

json machine_json() {
  const base::CpuAllowance cpu = base::cpu_allowance();
  const json smt = first_line("/sys/devices/system/cpu/smt/active");
  utsname system{};
  json out = {{"cpu_model", cpu.model},
              {"cores_physical", cpu.physical},
              {"cores_logical", cpu.logical},
              {"isa", instruction_sets()},
              {"ram_bytes", base::memory_total()},
              {"cgroup_cpu_quota", cpu.quota > 0 ? json(cpu.quota) : json(nullptr)},
              {"cgroup_memory_max", cgroup_memory_max()},
              {"governor", first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
              {"thp", chosen_of("/sys/kernel/mm/transparent_hugepage/enabled")},
              {"kernel", ::uname(&system) == 0 ? json(std::string(system.release)) : json(nullptr)},
              {"numa_nodes", numa_nodes()},
              {"smt", smt.is_string() ? json(smt == "1") : json(nullptr)}};
  out["fingerprint"] = base::hex(base::sha256(line_of(out)));
  return out;
}

MachineTimes machine_times() {
  MachineTimes out;
  std::ifstream stat("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0;
  stat >> name >> user >> nice >> system >> idle >> wait >> irq >> softirq >> steal;
  const double tick_s = 1 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  out.busy_s = tick_s * (user + nice + system + irq + softirq);
  out.steal_s = tick_s * steal;
  out.all_s = out.busy_s + out.steal_s + tick_s * (idle + wait);
  std::ifstream memory("/proc/vmstat");
  for (uint64_t value = 0; memory >> name >> value;)
    if (name == "pswpin") out.swapped_in = value;
  return out;
}

CpuWatch::CpuWatch() : begin_(machine_times()), own_s_(own_cpu_s()) {}

double CpuWatch::foreign() const {
  const MachineTimes now = machine_times();
  return (now.busy_s - begin_.busy_s - (own_cpu_s() - own_s_)) / std::max(.01, now.all_s - begin_.all_s);
}

double CpuWatch::steal() const {
  const MachineTimes now = machine_times();
  return (now.steal_s - begin_.steal_s) / std::max(.01, now.all_s - begin_.all_s);
}

uint32_t machine_cpus() { return std::max(1u, std::thread::hardware_concurrency()); }

}  // namespace tally::measure
