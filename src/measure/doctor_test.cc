// The doctor over machines made of files: what it finds follows from what they say.
#include "measure/doctor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace tally::measure {
namespace {

namespace fs = std::filesystem;

using Files = std::map<std::string, std::string>;

// A quiet machine of four cores, well set up.
Files good_machine() {
  Files files = {
      {"proc/meminfo",
       "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
       "CommitLimit: 8388608 kB\nCommitted_AS: 1048576 kB\n"},
      {"proc/cpuinfo",
       "processor\t: 0\nmodel name\t: Good CPU\nflags\t\t: fpu sse4_2 avx2 fma avx512_vnni\n"
       "processor\t: 1\nmodel name\t: Other CPU\n"},
      {"proc/self/status", "Name:\ttally\nCpus_allowed_list:\t0-3\n"},
      {"proc/self/cgroup", "0::/user.slice/shell.scope\n"},
      {"proc/self/limits",
       "Limit   Soft Limit  Hard Limit  Units\nMax locked memory   8388608   8388608   bytes\n"
       "Max open files   1024   524288   files\n"},
      {"proc/loadavg", "0.25 0.30 0.20 1/200 1234\n"},
      {"proc/sys/vm/swappiness", "60\n"},
      {"proc/sys/vm/overcommit_memory", "0\n"},
      {"sys/devices/system/cpu/online", "0-3\n"},
      {"sys/devices/system/node/online", "0\n"},
      {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"},
      {"sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n"},
      {"sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3000000\n"},
      {"sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3000000\n"},
      {"sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"},
      {"sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"},
      {"sys/fs/cgroup/user.slice/shell.scope/cpu.max", "max 100000\n"},
      {"sys/fs/cgroup/user.slice/shell.scope/memory.max", "max\n"},
  };
  for (int cpu = 0; cpu < 4; ++cpu) {
    const std::string topology = "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    files[topology + "core_id"] = std::to_string(cpu) + "\n";
    files[topology + "physical_package_id"] = "0\n";
  }
  return files;
}

MachineProbes good_probes() {
  MachineProbes p;
  p.isa_best = p.isas = "avx512vnni";
  p.roofs.emplace();
  p.roofs->bytes_per_s = {{1, 12e9}, {4, 40e9}};
  p.huge_share = 1, p.steal_share = 0, p.foreign_share = .01;
  return p;
}

class Doctor : public testing::Test {
 protected:
  Doctor() : root_(testing::TempDir() + "doctor-" + std::to_string(::getpid())) {}
  ~Doctor() override { fs::remove_all(root_); }

  MachineFacts facts(const Files& files) {
    fs::remove_all(root_);
    for (const auto& [path, text] : files) {
      fs::create_directories((root_ / path).parent_path());
      std::ofstream(root_ / path) << text;
    }
    const auto read = read_facts(root_.string());
    EXPECT_TRUE(read) << read.error().message;
    return *read;
  }
  Finding find(const std::string& name, const Files& files, const MachineProbes& probes = good_probes()) {
    for (const Finding& f : examine(facts(files), probes))
      if (f.name == name) return f;
    ADD_FAILURE() << "no check " << name;
    return {};
  }
  const fs::path root_;
};

// `files` with some of them changed.
Files with(Files files, const Files& changes) {
  for (const auto& [path, text] : changes) files[path] = text;
  return files;
}

TEST_F(Doctor, AGoodMachineHasNothingToMend) {
  const MachineFacts f = facts(good_machine());
  EXPECT_EQ(f.cpu.model, "Good CPU");
  EXPECT_EQ(f.cpu.cores, 4u);
  EXPECT_EQ(f.cpu.numa_nodes, 1u);
  EXPECT_EQ(f.memory.total, uint64_t{16} << 30);
  EXPECT_EQ(f.limits.open_files, 524288u);
  for (const Finding& finding : examine(f, good_probes())) {
    EXPECT_EQ(finding.health, Health::kOk) << finding.name << ": " << finding.finding;
    EXPECT_EQ(finding.fix, "") << finding.name;
    EXPECT_NE(finding.finding, "");
  }
}

TEST_F(Doctor, EveryWarningHasEvidenceEffectAndRemedy) {
  Files bad =
      with(good_machine(), {{"proc/self/status", "Cpus_allowed_list: 0\n"},
                            {"sys/fs/cgroup/user.slice/shell.scope/cpu.max", "50000 100000\n"},
                            {"sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"},
                            {"sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"},
                            {"proc/sys/vm/overcommit_memory", "2\n"}});
  MachineProbes probes = good_probes();
  probes.steal_share = .2, probes.foreign_share = .5;
  size_t warnings = 0;
  for (const Finding& f : examine(facts(bad), probes)) {
    if (f.health == Health::kOk) continue;
    warnings += f.health == Health::kWarn;
    EXPECT_FALSE(f.evidence.empty() || f.effect.empty() || f.fix.empty()) << f.name;
    EXPECT_EQ(f.fix.find('\n'), std::string::npos) << f.name;
  }
  EXPECT_EQ(warnings, 5u);
}

TEST_F(Doctor, AContainerWithAQuota) {
  // The tightest of the cgroup and its ancestors.
  const Files files = with(good_machine(), {{"sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n"},
                                            {"sys/fs/cgroup/user.slice/shell.scope/cpu.stat",
                                             "usage_usec 5\nnr_periods 100\nnr_throttled 40\n"}});
  const Finding f = find("cpu quota", files);
  EXPECT_EQ(f.health, Health::kWarn);
  EXPECT_EQ(f.finding, "the cgroup gives 1.50 CPUs of 4");
  EXPECT_EQ(f.evidence, "1.50 CPUs for 4 cores, 40 of 100 periods throttled");
  EXPECT_EQ(f.fix.substr(0, 23), "tally serve --threads 1");
}

TEST_F(Doctor, VersionOneOfCgroups) {
  const Files files =
      with(good_machine(), {{"proc/self/cgroup", "4:memory:/box\n1:cpu:/box\n0::/\n"},
                            {"sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "200000\n"},
                            {"sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n"},
                            {"sys/fs/cgroup/memory/box/memory.limit_in_bytes", "4294967296\n"},
                            {"sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1073741824\n"},
                            {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}});
  EXPECT_EQ(find("cpu quota", files).finding, "the cgroup gives 2.00 CPUs of 4");
  const Finding f = find("memory limit", files);
  EXPECT_EQ(f.health, Health::kNote);
  EXPECT_EQ(f.finding, "the cgroup allows 4.00 of 16.0 GiB");
  EXPECT_NE(f.evidence.find("3.00 GiB of the cgroup left"), std::string::npos);
}

TEST_F(Doctor, AffinityAndSmt) {
  EXPECT_EQ(
      find("threads", with(good_machine(), {{"proc/self/status", "Cpus_allowed_list:\t1,3\n"}})).finding,
      "this process may run on 2 of 4 CPUs");
  Files smt = good_machine();
  smt["sys/devices/system/cpu/cpu1/topology/core_id"] = "0\n",
  smt["sys/devices/system/cpu/cpu3/topology/core_id"] = "2\n";
  EXPECT_EQ(facts(smt).cpu.cores, 2u);
  EXPECT_EQ(find("smt", smt).finding.substr(0, 9), "SMT is on");
}

TEST_F(Doctor, HugePages) {
  const std::string path = "sys/kernel/mm/transparent_hugepage/enabled";
  const Finding never = find("huge pages", with(good_machine(), {{path, "always madvise [never]\n"}}));
  EXPECT_EQ(never.health, Health::kWarn);
  EXPECT_EQ(never.fix, "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
  Files none = good_machine();
  none.erase(path);
  EXPECT_EQ(find("huge pages", none).health, Health::kWarn);
  MachineProbes fragmented = good_probes();
  fragmented.huge_share = .3;
  EXPECT_EQ(find("huge pages", good_machine(), fragmented).finding,
            "memory is too fragmented for huge pages");
}

TEST_F(Doctor, Swap) {
  const std::string info = "MemTotal: 100 kB\nSwapTotal: 4194304 kB\nSwapFree: ";
  const Finding unused = find("swap", with(good_machine(), {{"proc/meminfo", info + "4194304 kB\n"}}));
  EXPECT_EQ(unused.health, Health::kNote);
  const Finding used = find("swap", with(good_machine(), {{"proc/meminfo", info + "1048576 kB\n"}}));
  EXPECT_EQ(used.health, Health::kWarn);
  EXPECT_EQ(used.evidence, "3.0 of 4.0 GiB used, swappiness 60");
  EXPECT_EQ(find("swap",
                 with(good_machine(), {{"proc/meminfo", info + "0 kB\n"}, {"proc/sys/vm/swappiness", "1\n"}}))
                .health,
            Health::kOk);
}

TEST_F(Doctor, Governor) {
  const std::string home = "sys/devices/system/cpu/cpu0/cpufreq/";
  Files slow = with(good_machine(), {{home + "scaling_governor", "powersave\n"}});
  EXPECT_EQ(find("frequency", slow).health, Health::kWarn);
  slow[home + "scaling_driver"] = "intel_pstate\n";
  EXPECT_EQ(find("frequency", slow).health, Health::kOk);
  slow[home + "scaling_cur_freq"] = "1200000\n";
  EXPECT_EQ(find("frequency", slow).health, Health::kNote);
  Files virtual_machine = good_machine();
  virtual_machine.erase(home + "scaling_governor");
  EXPECT_EQ(find("frequency", virtual_machine).health, Health::kOk);
}

TEST_F(Doctor, AnOldCpuTwoNodesFewFilesASlowClock) {
  EXPECT_EQ(find("instruction sets",
                 with(good_machine(), {{"proc/cpuinfo", "model name : Old\nflags : sse4_2 avx\n"}}))
                .health,
            Health::kWarn);
  const Finding numa = find("numa", with(good_machine(), {{"sys/devices/system/node/online", "0-1\n"}}));
  EXPECT_EQ(numa.finding, "2 NUMA nodes");
  EXPECT_EQ(numa.fix, "numactl --interleave=all tally serve MODEL.gguf");
  EXPECT_EQ(
      find("open files", with(good_machine(), {{"proc/self/limits", "Max open files 1024 2048 files\n"}}))
          .effect,
      "about 1984 connections at once");
  EXPECT_EQ(
      find("clock", with(good_machine(),
                         {{"sys/devices/system/clocksource/clocksource0/current_clocksource", "acpi_pm\n"}}))
          .health,
      Health::kWarn);
}

TEST_F(Doctor, WhatWasMeasured) {
  MachineProbes p = good_probes();
  p.steal_share = .2;
  EXPECT_EQ(find("steal", good_machine(), p).health, Health::kWarn);
  EXPECT_EQ(find("steal", good_machine(), p).evidence, "20.0 % of the CPU time while this was measured");
  p.steal_share = .02, p.foreign_share = .1;
  EXPECT_EQ(find("steal", good_machine(), p).health, Health::kNote);
  EXPECT_EQ(find("other programs", good_machine(), p).health, Health::kNote);
  EXPECT_EQ(find("bandwidth", good_machine(), p).effect,
            "one sequence of a model of 1 GiB decodes at 37.3 tokens/s at most");
  p.roofs->bytes_per_s = {{1, 4e9}};
  EXPECT_EQ(find("bandwidth", good_machine(), p).health, Health::kNote);
  p.model = FileCache{"m.gguf", uint64_t{2} << 30, uint64_t{1} << 30};
  const Finding cold = find("page cache", good_machine(), p);
  EXPECT_EQ(cold.health, Health::kNote);
  EXPECT_EQ(cold.fix, "cat m.gguf >/dev/null");
  p.model->bytes = uint64_t{20} << 30;
  EXPECT_EQ(find("page cache", good_machine(), p).health, Health::kWarn);
}

TEST_F(Doctor, FilesThatAreMissingOrOddAreNoFailure) {
  const Files odd = {{"proc/meminfo", "MemTotal\n: kB\nSwapTotal: many kB\n"},
                     {"proc/cpuinfo", "\n:\n"},
                     {"proc/self/status", "Cpus_allowed_list: 5-2,x,-,99999999999\n"},
                     {"proc/self/cgroup", "nonsense\n0::\n"},
                     {"proc/self/limits", "Max open files\n"},
                     {"sys/fs/cgroup/cpu.max", "-5 0\n"}};
  for (const Finding& f : examine(facts(odd), {})) EXPECT_NE(f.finding, "") << f.name;
  const auto none = read_facts((root_ / "nowhere").string());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, base::ErrorCode::kNoInput);
}

TEST_F(Doctor, TheFileThatWasJustWrittenIsCached) {
  facts({{"proc/meminfo", "x"}, {"model", std::string(1 << 20, 'x')}});
  const auto cache = file_cache((root_ / "model").string());
  ASSERT_TRUE(cache);
  EXPECT_EQ(cache->bytes, uint64_t{1} << 20);
  EXPECT_EQ(cache->cached_bytes, cache->bytes);
  EXPECT_FALSE(file_cache((root_ / "none").string()));
  EXPECT_FALSE(file_cache(root_.string()));
}

}  // namespace
}  // namespace tally::measure
