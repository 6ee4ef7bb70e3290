#include "machine_roofs.h"

#include "base/accounts.h"
#include "base/machine.h"
#include "bench_kernel.h"
#include "cli.h"
#include "kernel_probes.h"
#include "kernels/kernels.h"

namespace tally::apps {
namespace {

using base::Result;
using measure::RoofKind;
using measure::RoofProbe;

RoofKind kind_of(kernels::RoofKind kind) {
  switch (kind) {
    case kernels::RoofKind::kRead:
      return RoofKind::kRead;
    case kernels::RoofKind::kInt8:
      return RoofKind::kInt8;
    case kernels::RoofKind::kF32:
      return RoofKind::kF32;
  }
  TALLY_UNREACHABLE("kind of roof");
}

// All forms of reading, of each kind of operation the best loop that this CPU has, and the kernels.
std::vector<RoofProbe> probes_here() {
  std::vector<RoofProbe> out = kernel_probes();
  bool has[3] = {};
  for (const kernels::RoofLoop& loop : kernels::roof_loops()) {  // best tier first
    if (!kernels::host_has(loop.isa)) continue;
    bool& known = has[static_cast<size_t>(loop.kind)];
    if (known && loop.kind != kernels::RoofKind::kRead) continue;
    known = true;
    out.push_back(roof_probe(loop));
  }
  return out;
}

Result<measure::Roofs> measure_here() {
  base::Accounts accounts(base::memory_allowance() / 2);
  const uint64_t bytes = bench_working_bytes();
  TALLY_TRY(const base::Arena arena,
            accounts.reserve(base::Account::kRuntime, "working memory", bytes + kernels::kTailPadding));
  std::vector<RoofProbe> probes = probes_here();
  kernels::set_float_mode();  // as kernels want it
  return measure::measure_roofs({.probes = std::move(probes),
                                 .isa = std::string(kernels::isa_name(kernels::best_isa())),
                                 .threads = base::cpu_allowance().usable,
                                 .data = {arena.data(), bytes},
                                 .on_thread = kernels::set_float_mode});
}

}  // namespace

RoofProbe roof_probe(const kernels::RoofLoop& loop) {
  return {kind_of(loop.kind), std::string(loop.name), loop.work,
          [run = loop.run](const std::byte* data, size_t bytes, uint64_t rounds) {
            return run({.data = data, .bytes = bytes, .rounds = rounds});
          }};
}

std::string kept_directory(const base::Settings& settings) {
  const std::string& given = settings.text("tuning-cache");
  return given.empty() ? cache_directory() : given;
}

Result<std::optional<measure::Roofs>> machine_roofs(const base::Settings& settings) {
  const std::string& wanted = settings.text("roofs");
  if (wanted == "off") return std::optional<measure::Roofs>();
  const std::string file = measure::roofs_file(kept_directory(settings));
  if (wanted == "auto")
    if (auto kept = measure::kept_roofs(file)) return kept;
  TALLY_TRY(measure::Roofs roofs, measure_here());
  measure::keep_roofs(file, roofs);
  return std::optional(std::move(roofs));
}

}  // namespace tally::apps
