#include "bench_bed.h"

#include "base/machine.h"
#include "bench_kernel.h"
#include "bench_lists.h"
#include "interrupt.h"
#include "loading.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace tally::apps {

using nlohmann::json;

BenchBed::BenchBed(const base::Settings& s)
    : pool_(usable_threads(static_cast<uint32_t>(s.number("threads"))), kernels::set_float_mode),
      accounts_(s.number("memory") == 0 ? base::memory_allowance() / 10 * 9 : s.number("memory")) {}

base::Result<std::unique_ptr<BenchBed>> BenchBed::make(const base::Settings& settings) {
  hold_ending_signals();  // before the pool's threads
  kernels::set_float_mode();
  std::unique_ptr<BenchBed> bed(new BenchBed(settings));
  TALLY_TRY(bed->memory_, bed->accounts_.reserve(base::Account::kRuntime, "working memory",
                                                 bench_working_bytes() + kernels::kTailPadding));
  bed->roofs_ = std::make_unique<Roofs>(bed->pool_, bed->memory_.data(), bench_working_bytes());
  return bed;
}

json BenchBed::page(json results) const {
  json machine = machine_json(kernels::isa_name(kernels::best_isa()));
  roofs_->add_to(machine);
  return {{"machine", std::move(machine)}, {"warnings", watch_.warnings()}, {"results", std::move(results)}};
}

int BenchBed::finish() const {
  for (const std::string& warning : watch_.warnings()) fmt::print(stderr, "tally: warning: {}\n", warning);
  return interrupted() ? kInterrupted : 0;
}

}  // namespace tally::apps
