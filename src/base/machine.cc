#include "base/machine.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

namespace tally::base {
namespace {

std::optional<uint64_t> read_number(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return parse_limit(word);
}

// Paths of this process's cgroup and its ancestors under a hierarchy; empty if there is none.
std::vector<std::filesystem::path> cgroup_chain(std::string_view controller,
                                                const std::filesystem::path& mount) {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string list = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? !list.empty() : list.find(controller) == std::string::npos) continue;
    std::vector<std::filesystem::path> chain;
    std::filesystem::path relative = line.substr(second + 1);
    for (;;) {
      chain.push_back(mount / relative.relative_path());
      if (!relative.has_relative_path()) return chain;
      relative = relative.parent_path();
    }
  }
  return {mount};
}

uint64_t meminfo(std::string_view wanted) {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    uint64_t kib = 0;
    if (words >> key >> kib && key == wanted) return kib * 1024;
  }
  return 0;
}

double cpu_quota() {
  double quota = 0;
  const auto lower = [&](double cpus) { quota = quota == 0 ? cpus : std::min(quota, cpus); };
  for (const auto& dir : cgroup_chain("", "/sys/fs/cgroup")) {
    std::ifstream in(dir / "cpu.max");
    double limit = 0, period = 0;
    if (in >> limit >> period && period > 0) lower(limit / period);  // "max" is no number: no limit here
  }
  for (const auto& dir : cgroup_chain("cpu", "/sys/fs/cgroup/cpu")) {
    const auto limit = read_number(dir / "cpu.cfs_quota_us"), period = read_number(dir / "cpu.cfs_period_us");
    if (limit && period && *period > 0) lower(static_cast<double>(*limit) / static_cast<double>(*period));
  }
  return quota;
}

}  // namespace

std::optional<uint64_t> parse_limit(std::string_view text) {
  uint64_t n = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), n);
  if (end.ec != std::errc{} || end.ptr != text.data() + text.size()) return std::nullopt;
  return n;
}

CpuAllowance cpu_allowance() {
  CpuAllowance cpu;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0)
    cpu.logical = static_cast<uint32_t>(std::max(1, CPU_COUNT(&mask)));
  std::set<std::pair<uint64_t, uint64_t>> cores;  // (package, core)
  for (uint32_t id = 0; id < CPU_SETSIZE; ++id) {
    if (!CPU_ISSET(id, &mask)) continue;
    const std::filesystem::path topology = "/sys/devices/system/cpu/cpu" + std::to_string(id) + "/topology";
    const auto package = read_number(topology / "physical_package_id"),
               core = read_number(topology / "core_id");
    cores.emplace(package.value_or(0), core.value_or(1'000'000 + id));  // unknown topology: each its own core
  }
  cpu.physical = static_cast<uint32_t>(std::max<size_t>(1, cores.size()));
  cpu.quota = cpu_quota();
  cpu.usable = cpu.physical;
  if (cpu.quota > 0 && cpu.quota < cpu.usable) cpu.usable = static_cast<uint32_t>(std::ceil(cpu.quota));
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) {
      cpu.model = line.substr(std::min(line.size(), line.find(':') + 2));
      break;
    }
  }
  return cpu;
}

uint64_t memory_allowance() {
  uint64_t room = meminfo("MemAvailable:");
  const auto limit_by = [&](std::optional<uint64_t> limit, std::optional<uint64_t> use) {
    if (limit) room = std::min(room, *limit - std::min(*limit, use.value_or(0)));
  };
  for (const auto& dir : cgroup_chain("", "/sys/fs/cgroup")) {
    limit_by(read_number(dir / "memory.max"), read_number(dir / "memory.current"));
  }
  for (const auto& dir : cgroup_chain("memory", "/sys/fs/cgroup/memory")) {
    limit_by(read_number(dir / "memory.limit_in_bytes"), read_number(dir / "memory.usage_in_bytes"));
  }
  return room;
}

uint64_t memory_total() { return meminfo("MemTotal:"); }

}  // namespace tally::base
