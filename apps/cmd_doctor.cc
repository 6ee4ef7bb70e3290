// tally doctor [MODEL.gguf]: is this machine set up well.
#include "base/accounts.h"
#include "base/clock.h"
#include "base/machine.h"
#include "base/pool.h"
#include "base/utf8.h"
#include "cli.h"
#include "kernels/isa.h"
#include "machine_roofs.h"
#include "measure/doctor.h"
#include "measure/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using measure::Finding;
using measure::Health;
using measure::MachineProbes;

constexpr size_t kLineMost = 90;  // of finding and evidence
constexpr size_t kProbeBytes = size_t{64} << 20;

// How much of a fresh area comes in huge pages. Absent: there is not the memory.
std::optional<double> huge_share() {
  base::Accounts accounts(base::memory_allowance() / 2);
  const uint64_t before = base::process_memory().anon_huge;
  const auto area = accounts.reserve(base::Account::kRuntime, "a look at pages", kProbeBytes);
  if (!area) return std::nullopt;
  const uint64_t huge = base::process_memory().anon_huge;
  return static_cast<double>(huge - std::min(huge, before)) / static_cast<double>(kProbeBytes);
}

// Keeps the cores busy for a while: what others take shows only to who wants it.
void want_cpus() {
  constexpr int64_t kWhileUs = 500'000;
  base::ThreadPool pool(base::cpu_allowance().usable);
  const int64_t end_us = base::now_us() + kWhileUs;
  pool.parallel_for(pool.threads(), [&](size_t, size_t) {
    while (base::now_us() < end_us) continue;
  });
}

Result<MachineProbes> probe(const Invocation& call) {
  MachineProbes out;
  out.isa_best = kernels::isa_name(kernels::best_isa()), out.isas = kernels::host_isas();
  if (!call.arguments.empty()) {
    out.model = measure::file_cache(call.arguments[0]);
    if (!out.model)
      return Error{ErrorCode::kNoInput,
                   fmt::format("{}: no file that can be read", base::escape_for_log(call.arguments[0]))};
  }
  const measure::CpuWatch watch;
  out.huge_share = huge_share();
  auto roofs = machine_roofs(call.settings);
  if (roofs)
    out.roofs = std::move(*roofs);
  else
    fmt::print(stderr, "tally: warning: {}\n", roofs.error().message);
  want_cpus();
  out.steal_share = watch.steal(), out.foreign_share = watch.foreign();
  return out;
}

void print(const std::vector<Finding>& findings) {
  size_t notes = 0, warnings = 0;
  for (const Finding& f : findings) {
    notes += f.health == Health::kNote, warnings += f.health == Health::kWarn;
    const bool is_short = f.finding.size() + f.evidence.size() < kLineMost && !f.evidence.empty();
    fmt::print("{:<5}{:<18}{}{}\n", measure::health_word(f.health), f.name, f.finding,
               is_short ? " (" + f.evidence + ")" : "");
    if (!is_short && !f.evidence.empty()) fmt::print("{:23}{}\n", "", f.evidence);
    if (!f.effect.empty()) fmt::print("{:23}{}\n", "", f.effect);
    if (!f.fix.empty()) fmt::print("{:23}$ {}\n", "", f.fix);
  }
  fmt::print("\n{} checks: {} WARN, {} NOTE\n", findings.size(), warnings, notes);
}

}  // namespace

int run_doctor(const Invocation& call) {
  if (call.arguments.size() > 1)
    return fail({ErrorCode::kUsage, fmt::format("doctor: {} arguments; at most one, MODEL.gguf, is allowed",
                                                call.arguments.size())});
  const auto facts = measure::read_facts();
  if (!facts) return fail(facts.error());
  const auto probes = probe(call);
  if (!probes) return fail(probes.error());
  const std::vector<Finding> findings = measure::examine(*facts, *probes);
  if (call.settings.on("json")) {
    nlohmann::json out = {{"machine", measure::machine_json()},
                          {"findings", measure::findings_json(findings)}};
    out["roofs"] = probes->roofs ? measure::roofs_json(*probes->roofs) : nlohmann::json(nullptr);
    write_json(out);
  } else {
    print(findings);
  }
  const bool warns = std::any_of(findings.begin(), findings.end(),
                                 [](const Finding& f) { return f.health == Health::kWarn; });
  return call.settings.on("strict") && warns ? 1 : 0;
}

}  // namespace tally::apps
