#include "measure/doctor_facts.h"

#include "base/machine.h"
#include "base/utf8.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <vector>

namespace tally::measure {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::ErrorCode;
using base::Result;

// A limit that is none is written as a very large number by version 1 of cgroups.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<uint64_t> number(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return base::parse_limit(word);
}

// "Key:   123 kB" lines.
std::map<std::string, std::string> keyed_lines(const fs::path& file) {
  std::map<std::string, std::string> out;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string key = line.substr(0, colon);
    while (!key.empty() && (key.back() == ' ' || key.back() == '\t')) key.pop_back();
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    out.emplace(std::move(key), value == std::string::npos ? "" : line.substr(value));  // the first counts
  }
  return out;
}

// "0-3,8" as a set.
std::set<uint32_t> cpu_list(const std::string& text) {
  constexpr uint32_t kMost = 65536;
  std::set<uint32_t> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    uint32_t from = 0, to = 0;
    const char* end = part.data() + part.size();
    const auto first = std::from_chars(part.data(), end, from);
    if (first.ec != std::errc()) continue;
    to = from;
    if (first.ptr != end && *first.ptr == '-') std::from_chars(first.ptr + 1, end, to);
    for (uint32_t cpu = from; cpu <= std::min(to, kMost); ++cpu) out.insert(cpu);
  }
  return out;
}

// The directories of this process's cgroup and its ancestors in a hierarchy; `controller` "": version 2.
std::vector<fs::path> cgroup_chain(const fs::path& root, std::string_view controller, const fs::path& mount) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string list = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? !list.empty() : list != controller) continue;
    std::vector<fs::path> chain;
    for (fs::path below = fs::path(line.substr(second + 1)).relative_path();; below = below.parent_path()) {
      chain.push_back(mount / below);
      if (below.empty()) return chain;
    }
  }
  return {mount};
}

void lower(std::optional<double>& least, double value) { least = least ? std::min(*least, value) : value; }

void read_quota(const fs::path& root, CpuFacts& out) {
  const fs::path two = root / "sys/fs/cgroup", one = root / "sys/fs/cgroup/cpu";
  for (const fs::path& dir : cgroup_chain(root, "", two)) {
    std::ifstream in(dir / "cpu.max");
    double limit = 0, period = 0;
    if (in >> limit >> period && limit > 0 && period > 0) lower(out.quota, limit / period);  // "max" is no number
  }
  for (const fs::path& dir : cgroup_chain(root, "cpu", one)) {
    const auto limit = number(dir / "cpu.cfs_quota_us"), period = number(dir / "cpu.cfs_period_us");
    if (limit && period && *period > 0)
      lower(out.quota, static_cast<double>(*limit) / static_cast<double>(*period));
  }
  for (const fs::path& dir : {cgroup_chain(root, "", two).front(), cgroup_chain(root, "cpu", one).front()}) {
    std::ifstream in(dir / "cpu.stat");
    uint64_t value = 0;
    for (std::string key; in >> key >> value;) {
      if (key == "nr_periods") out.periods = value;
      if (key == "nr_throttled") out.throttled_periods = value;
    }
  }
}

void read_cpus(const fs::path& root, CpuFacts& out) {
  auto info = keyed_lines(root / "proc/cpuinfo");
  out.model = info["model name"];
  std::istringstream flags(info.contains("flags") ? info["flags"] : info["Features"]);
  for (std::string flag; flags >> flag;) out.flags.insert(flag);
  const fs::path system = root / "sys/devices/system";
  const std::set<uint32_t> online = cpu_list(first_line(system / "cpu/online"));
  const std::set<uint32_t> allowed = cpu_list(keyed_lines(root / "proc/self/status")["Cpus_allowed_list"]);
  out.online = static_cast<uint32_t>(online.size());
  std::set<std::pair<uint64_t, uint64_t>> cores;  // (package, core)
  for (const uint32_t cpu : allowed) {
    if (!online.empty() && !online.contains(cpu)) continue;
    ++out.allowed;
    const fs::path topology = system / "cpu" / ("cpu" + std::to_string(cpu)) / "topology";
    cores.emplace(number(topology / "physical_package_id").value_or(0),
                  number(topology / "core_id").value_or(1'000'000 + cpu));  // unknown: a core of its own
  }
  out.cores = static_cast<uint32_t>(cores.size());
  out.has_smt = out.cores < out.allowed;
  const fs::path frequency = system / "cpu/cpu0/cpufreq";
  out.governor = first_line(frequency / "scaling_governor"),
  out.driver = first_line(frequency / "scaling_driver");
  out.mhz_now = static_cast<double>(number(frequency / "scaling_cur_freq").value_or(0)) / 1e3;
  out.mhz_most = static_cast<double>(number(frequency / "cpuinfo_max_freq").value_or(0)) / 1e3;
  out.clock_source = first_line(system / "clocksource/clocksource0/current_clocksource");
  out.numa_nodes = static_cast<uint32_t>(cpu_list(first_line(system / "node/online")).size());
  std::ifstream(root / "proc/loadavg") >> out.load;
}

// The word in brackets of "always [madvise] never".
std::string chosen(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']', open);
  return close == std::string::npos ? line : line.substr(open + 1, close - open - 1);
}

void read_memory_limit(const std::vector<fs::path>& chain, const char* limit_file, const char* use_file,
                       MemoryFacts& out) {
  for (const fs::path& dir : chain) {
    const auto limit = number(dir / limit_file);
    if (!limit || *limit >= kNoLimit || (out.cgroup_limit && *out.cgroup_limit <= *limit)) continue;
    out.cgroup_limit = limit, out.cgroup_used = number(dir / use_file);
  }
}

void read_memory(const fs::path& root, MemoryFacts& out) {
  auto info = keyed_lines(root / "proc/meminfo");
  const auto bytes = [&](const char* key) {
    std::istringstream in(info[key]);
    uint64_t kib = 0;
    in >> kib;
    return kib * 1024;
  };
  out.total = bytes("MemTotal"), out.available = bytes("MemAvailable");
  out.swap_total = bytes("SwapTotal"),
  out.swap_used = out.swap_total - std::min(out.swap_total, bytes("SwapFree"));
  out.commit_limit = bytes("CommitLimit"), out.committed = bytes("Committed_AS");
  out.huge_pages = chosen(first_line(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  out.swappiness = number(root / "proc/sys/vm/swappiness");
  out.overcommit = number(root / "proc/sys/vm/overcommit_memory");
  const fs::path groups = root / "sys/fs/cgroup";
  read_memory_limit(cgroup_chain(root, "", groups), "memory.max", "memory.current", out);
  read_memory_limit(cgroup_chain(root, "memory", groups / "memory"), "memory.limit_in_bytes",
                    "memory.usage_in_bytes", out);
}

// "Max open files   1024   524288   files": the soft, or the hard limit.
std::optional<uint64_t> limit_of(const fs::path& file, std::string_view name, bool hard) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream words(line.substr(name.size()));
    std::string soft_word, hard_word;
    words >> soft_word >> hard_word;
    return base::parse_limit(hard ? hard_word : soft_word);
  }
  return std::nullopt;
}

}  // namespace

Result<MachineFacts> read_facts(const std::string& root) {
  const fs::path at(root);
  MachineFacts out;
  std::error_code ec;
  if (!fs::exists(at / "proc/meminfo", ec))
    return Error{ErrorCode::kNoInput, base::escape_for_log((at / "proc").string()) + ": no /proc of Linux"};
  read_cpus(at, out.cpu);
  read_quota(at, out.cpu);
  read_memory(at, out.memory);
  const fs::path limits = at / "proc/self/limits";
  out.limits = {limit_of(limits, "Max locked memory", false), limit_of(limits, "Max open files", true)};
  return out;
}

}  // namespace tally::measure
