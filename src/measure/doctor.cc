#include "measure/doctor.h"

#include "base/utf8.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr double kStealNote = .01, kStealWarn = .05;  // shares of the CPUs
constexpr double kForeignNote = .05, kForeignWarn = .2;
constexpr double kHugeEnough = .9, kCachedEnough = .95;
constexpr double kSlowClock = .7;             // of the highest frequency
constexpr double kSlowRead = 10e9;            // bytes a second; a channel of DDR4-3200 has 25.6e9
constexpr uint64_t kFilesWanted = 4096 + 64;  // --limit-connections, and what else is open
constexpr uint64_t kSwappinessMost = 10;

double gib(uint64_t bytes) { return static_cast<double>(bytes) / 0x1p30; }
double percent(double share) { return 100 * share; }
std::string shown(const std::string& text) { return base::escape_for_log(text, 80); }
const char* plural(uint64_t n) { return n == 1 ? "" : "s"; }

Finding ok(std::string finding, std::string evidence) {
  return {"", Health::kOk, std::move(finding), std::move(evidence), "", ""};
}

Finding threads(const MachineFacts& f, const MachineProbes&) {
  const CpuFacts& c = f.cpu;
  const std::string evidence =
      fmt::format("{} CPUs online, {} allowed, {} core{}", c.online, c.allowed, c.cores, plural(c.cores));
  if (c.online > c.allowed)
    return {"",
            Health::kNote,
            fmt::format("this process may run on {} of {} CPUs", c.allowed, c.online),
            evidence,
            "tally starts threads for these cores only",
            fmt::format("taskset -a -p -c 0-{} $$   # if the limit is not meant", c.online - 1)};
  return ok(fmt::format("{} core{}: serve starts a thread on each", c.cores, plural(c.cores)), evidence);
}

Finding quota(const MachineFacts& f, const MachineProbes&) {
  const CpuFacts& c = f.cpu;
  if (!c.quota || *c.quota >= c.cores)
    return ok("no CPU quota below the cores", c.quota ? fmt::format("{:.2f} CPUs", *c.quota) : "none");
  std::string evidence = fmt::format("{:.2f} CPUs for {} cores", *c.quota, c.cores);
  if (c.periods > 0) evidence += fmt::format(", {} of {} periods throttled", c.throttled_periods, c.periods);
  const double whole = std::floor(*c.quota);
  const bool is_broken = *c.quota > whole;
  return {
      "",
      Health::kWarn,
      fmt::format("the cgroup gives {:.2f} CPUs of {}", *c.quota, c.cores),
      evidence,
      is_broken
          ? "threads beyond whole CPUs are stopped for a part of every 100 ms: every step waits for them"
          : "the other cores cannot be used",
      fmt::format("tally serve --threads {:.0f}   # or raise the limit: docker update --cpus {} CONTAINER",
                  std::max(1., whole), c.cores)};
}

Finding smt(const MachineFacts& f, const MachineProbes&) {
  const CpuFacts& c = f.cpu;
  return ok(c.has_smt ? "SMT is on: one thread a core is started, the second CPU of a core adds no bandwidth"
                      : "no SMT in use",
            fmt::format("{} CPUs, {} core{}", c.allowed, c.cores, plural(c.cores)));
}

Finding huge_pages(const MachineFacts& f, const MachineProbes& p) {
  const std::string& mode = f.memory.huge_pages;
  std::string evidence = mode.empty() ? "no transparent_hugepage here" : "enabled = " + shown(mode);
  if (p.huge_share) evidence += fmt::format(", {:.0f} % of a fresh area got them", percent(*p.huge_share));
  const std::string effect = "on 4 KiB pages decode runs at about a half of its rate";
  if (mode == "never" || mode.empty())
    return {"",       Health::kWarn, "no huge pages",
            evidence, effect,        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"};
  if (p.huge_share && *p.huge_share < kHugeEnough)
    return {"",       Health::kWarn, "memory is too fragmented for huge pages",
            evidence, effect,        "echo 1 | sudo tee /proc/sys/vm/compact_memory"};
  return ok("huge pages are given", evidence);
}

Finding memlock(const MachineFacts& f, const MachineProbes&) {
  const auto& limit = f.limits.locked_bytes;
  return ok("tally locks no memory: the limit does not matter",
            limit ? fmt::format("{:.1f} MiB", static_cast<double>(*limit) / 0x1p20) : "unlimited");
}

Finding swap(const MachineFacts& f, const MachineProbes&) {
  const MemoryFacts& m = f.memory;
  if (m.swap_total == 0) return ok("no swap", "SwapTotal 0");
  const std::string evidence =
      fmt::format("{:.1f} of {:.1f} GiB used, swappiness {}", gib(m.swap_used), gib(m.swap_total),
                  m.swappiness ? std::to_string(*m.swappiness) : "unknown");
  if (m.swappiness && *m.swappiness <= kSwappinessMost) return ok("swap is there, and seldom used", evidence);
  return {"",
          m.swap_used > 0 ? Health::kWarn : Health::kNote,
          "weights and KV cache may be swapped out",
          evidence,
          "the first requests after an idle hour wait for the disk",
          "sudo sysctl vm.swappiness=1"};
}

Finding governor(const MachineFacts& f, const MachineProbes&) {
  const CpuFacts& c = f.cpu;
  if (c.governor.empty())
    return ok("the frequency is not ours to set", "no cpufreq: a virtual machine, or fixed");
  std::string evidence = shown(c.governor) + (c.driver.empty() ? "" : " of " + shown(c.driver));
  if (c.mhz_most > 0) evidence += fmt::format(", {:.0f} of {:.0f} MHz", c.mhz_now, c.mhz_most);
  // The pstate drivers call powersave what follows the load.
  const bool follows =
      c.driver.find("pstate") != std::string::npos || c.driver.find("_cppc") != std::string::npos;
  const bool is_slow = c.governor == "powersave" || c.governor == "conservative";
  const std::string fix = "sudo cpupower frequency-set -g performance";
  if (is_slow && !follows)
    return {"",
            Health::kWarn,
            "the CPU is held at a low frequency",
            evidence,
            "prefill is slower by as much as the frequency is lower",
            fix};
  if (c.governor != "performance" && c.mhz_most > 0 && c.mhz_now < kSlowClock * c.mhz_most)
    return {"",
            Health::kNote,
            "the frequency follows the load",
            evidence,
            "the first steps after a pause are slower",
            fix};
  return ok("frequency", evidence);
}

Finding isa(const MachineFacts& f, const MachineProbes& p) {
  const std::string evidence =
      fmt::format("{}; kernels here: {}", f.cpu.model.empty() ? "CPU unknown" : shown(f.cpu.model),
                  p.isas.empty() ? "unknown" : p.isas);
  const auto has = [&](const char* flag) { return f.cpu.flags.contains(flag); };
  if (!has("avx2") || !has("fma"))
    return {"",
            Health::kWarn,
            "no AVX2 and FMA: the portable kernels are used",
            evidence,
            "prefill and decode are several times slower",
            "qm set VMID --cpu host   # a virtual machine may hide what its CPU has"};
  if (!has("avx512_vnni") && !has("avx_vnni"))
    return ok(fmt::format("{} is used; this CPU has no VNNI", p.isa_best.empty() ? "AVX2" : p.isa_best),
              evidence);
  return ok(fmt::format("{} is used", p.isa_best.empty() ? "VNNI" : p.isa_best), evidence);
}

Finding bandwidth(const MachineFacts& f, const MachineProbes& p) {
  if (!p.roofs || p.roofs->empty()) return ok("not measured", "--roofs off, or too little memory to read");
  const Roofs& r = *p.roofs;
  std::string evidence;
  double best = 0;
  for (const auto& [threads, rate] : r.bytes_per_s) {
    evidence += fmt::format("{}{} thread{} {:.1f}", evidence.empty() ? "" : ", ", threads, plural(threads),
                            rate * 1e-9);
    best = std::max(best, rate);
  }
  evidence += " GB/s";
  if (r.int8_ops_per_s > 0) evidence += fmt::format("; int8 {:.0f} Gop/s", r.int8_ops_per_s * 1e-9);
  if (r.f32_ops_per_s > 0) evidence += fmt::format(", f32 {:.0f}", r.f32_ops_per_s * 1e-9);
  if (r.disturbed) evidence += " (others used the CPUs meanwhile)";
  const uint64_t model = p.model ? p.model->bytes : uint64_t{1} << 30;
  const std::string effect =
      fmt::format("one sequence of {} decodes at {:.1f} tokens/s at most",
                  p.model ? "this model" : "a model of 1 GiB", best / static_cast<double>(model));
  if (best < kSlowRead)
    return {"",
            Health::kNote,
            fmt::format("memory reads {:.1f} GB/s: less than one channel of DDR4 has", best * 1e-9),
            evidence,
            effect,
            f.cpu.numa_nodes > 1 || r.disturbed ? "tally doctor --roofs measure   # on a quiet machine"
                                                : "sudo dmidecode -t memory   # are all channels filled?"};
  Finding out = ok(fmt::format("memory reads {:.1f} GB/s", best * 1e-9), evidence);
  out.effect = effect;
  return out;
}

Finding steal(const MachineFacts&, const MachineProbes& p) {
  if (!p.steal_share) return ok("not measured", "");
  const std::string evidence =
      fmt::format("{:.1f} % of the CPU time while this was measured", percent(*p.steal_share));
  if (*p.steal_share < kStealNote) return ok("the hypervisor takes no time away", evidence);
  return {"",
          *p.steal_share < kStealWarn ? Health::kNote : Health::kWarn,
          "the hypervisor takes CPU time away",
          evidence,
          "a step lasts as long as its slowest thread: tails grow, and comparisons are void",
          "vmstat 1 5   # column st; mended by dedicated CPUs, or another host"};
}

Finding others(const MachineFacts& f, const MachineProbes& p) {
  if (!p.foreign_share) return ok("not measured", fmt::format("load average {:.2f}", f.cpu.load));
  const std::string evidence =
      fmt::format("{:.0f} % of the CPUs while this was measured, load average {:.2f}",
                  percent(std::max(0., *p.foreign_share)), f.cpu.load);
  if (*p.foreign_share < kForeignNote) return ok("nothing else is busy", evidence);
  return {"",
          *p.foreign_share < kForeignWarn ? Health::kNote : Health::kWarn,
          "other programs use the CPUs",
          evidence,
          "every step waits for the thread whose core is shared",
          "ps -eo pcpu,pid,comm --sort=-pcpu | head -5"};
}

Finding page_cache(const MachineFacts& f, const MachineProbes& p) {
  if (!p.model) return ok("no model was named", "tally doctor MODEL.gguf looks at its file");
  const FileCache& m = *p.model;
  const double share = m.bytes > 0 ? static_cast<double>(m.cached_bytes) / static_cast<double>(m.bytes) : 1;
  const std::string evidence = fmt::format("{:.0f} % of {:.2f} GiB cached, {:.1f} GiB available",
                                           percent(share), gib(m.bytes), gib(f.memory.available));
  if (m.bytes > f.memory.available)
    return {"",       Health::kWarn,      "the model is larger than the memory that is free",
            evidence, "it will not load", fmt::format("tally plan {}", shown(m.path))};
  if (share < kCachedEnough)
    return {"",
            Health::kNote,
            "the model is not in the page cache",
            evidence,
            "the next start waits for the disk",
            fmt::format("cat {} >/dev/null", shown(m.path))};
  return ok("the model is in the page cache", evidence);
}

Finding open_files(const MachineFacts& f, const MachineProbes&) {
  const auto& limit = f.limits.open_files;
  if (!limit) return ok("no limit of open files", "unlimited");
  const std::string evidence = fmt::format("hard limit {}, wanted {}", *limit, kFilesWanted);
  if (*limit >= kFilesWanted) return ok("open files suffice for --limit-connections", evidence);
  return {"",
          Health::kNote,
          "fewer open files than connections",
          evidence,
          fmt::format("about {} connections at once", *limit > 64 ? *limit - 64 : 0),
          fmt::format("ulimit -n {}", kFilesWanted)};
}

Finding clock(const MachineFacts& f, const MachineProbes&) {
  const std::string& source = f.cpu.clock_source;
  if (source == "hpet" || source == "acpi_pm" || source == "jiffies")
    return {"",
            Health::kWarn,
            "asking the time is slow",
            shown(source),
            "about a microsecond each time, some thousand times a second; figures of short steps are coarse",
            "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource"};
  return ok("asking the time is quick", source.empty() ? "not told" : shown(source));
}

Finding memory_limit(const MachineFacts& f, const MachineProbes&) {
  const MemoryFacts& m = f.memory;
  const std::string evidence = fmt::format("{:.1f} GiB, {:.1f} available", gib(m.total), gib(m.available));
  if (!m.cgroup_limit || *m.cgroup_limit >= m.total)
    return ok("no memory limit below the machine's memory", evidence);
  const uint64_t left = *m.cgroup_limit - std::min(*m.cgroup_limit, m.cgroup_used.value_or(0));
  return {
      "",
      Health::kNote,
      fmt::format("the cgroup allows {:.2f} of {:.1f} GiB", gib(*m.cgroup_limit), gib(m.total)),
      evidence + fmt::format("; {:.2f} GiB of the cgroup left", gib(left)),
      "tally plans within 90 % of what is left; the page cache of the model counts too",
      fmt::format("tally serve --memory {}MiB   # or raise the limit: docker update --memory SIZE CONTAINER",
                  left / 10 * 9 >> 20)};
}

Finding numa(const MachineFacts& f, const MachineProbes&) {
  const uint32_t nodes = f.cpu.numa_nodes;
  if (nodes <= 1) return ok("one NUMA node", nodes == 0 ? "not told" : "1 node");
  return {"",
          Health::kNote,
          fmt::format("{} NUMA nodes", nodes),
          fmt::format("{} nodes online", nodes),
          "tally knows no nodes: threads read weights of the other one at a lower rate",
          "numactl --interleave=all tally serve MODEL.gguf"};
}

Finding overcommit(const MachineFacts& f, const MachineProbes&) {
  const MemoryFacts& m = f.memory;
  const uint64_t mode = m.overcommit.value_or(0);
  if (mode != 2)
    return ok("memory may be reserved before it is used", fmt::format("overcommit_memory {}", mode));
  const uint64_t left = m.commit_limit - std::min(m.commit_limit, m.committed);
  return {"",
          left < m.available / 2 ? Health::kWarn : Health::kNote,
          "what is reserved counts as used",
          fmt::format("overcommit_memory 2, {:.1f} GiB left of {:.1f}", gib(left), gib(m.commit_limit)),
          "a model may be refused though there is memory",
          "sudo sysctl vm.overcommit_memory=0"};
}

constexpr Check kChecks[] = {
    {"threads", threads},
    {"cpu quota", quota},
    {"smt", smt},
    {"huge pages", huge_pages},
    {"memlock", memlock},
    {"swap", swap},
    {"frequency", governor},
    {"instruction sets", isa},
    {"bandwidth", bandwidth},
    {"steal", steal},
    {"other programs", others},
    {"page cache", page_cache},
    {"open files", open_files},
    {"clock", clock},
    {"memory limit", memory_limit},
    {"numa", numa},
    {"overcommit", overcommit},
};

}  // namespace

std::optional<FileCache> file_cache(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  struct stat info{};
  const bool is_file = ::fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
  const auto bytes = static_cast<size_t>(info.st_size);
  void* at = is_file ? ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  ::close(file);
  if (at == MAP_FAILED) return std::nullopt;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  const bool told = ::mincore(at, bytes, resident.data()) == 0;
  ::munmap(at, bytes);
  if (!told) return std::nullopt;
  const auto pages = static_cast<uint64_t>(
      std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return (r & 1u) != 0; }));
  return FileCache{path, bytes, std::min<uint64_t>(bytes, pages * page)};
}

const char* health_word(Health health) {
  switch (health) {
    case Health::kOk:
      return "OK";
    case Health::kNote:
      return "NOTE";
    case Health::kWarn:
      return "WARN";
  }
  return "";
}

std::span<const Check> doctor_checks() { return kChecks; }

std::vector<Finding> examine(const MachineFacts& facts, const MachineProbes& probes) {
  std::vector<Finding> out;
  for (const Check& check : kChecks) {
    out.push_back(check.run(facts, probes));
    out.back().name = check.name;
  }
  return out;
}

json findings_json(const std::vector<Finding>& findings) {
  json out = json::array();
  for (const Finding& f : findings)
    out.push_back({{"check", f.name},
                   {"health", health_word(f.health)},
                   {"finding", f.finding},
                   {"evidence", f.evidence},
                   {"effect", f.effect.empty() ? json(nullptr) : json(f.effect)},
                   {"fix", f.fix.empty() ? json(nullptr) : json(f.fix)}});
  return out;
}

}  // namespace tally::measure
