#pragma once
// What the benches without a model stand on: threads, memory that leaves the caches behind, the roofs of the
// machine, and the watch over what else runs.

#include "base/accounts.h"
#include "base/result.h"
#include "base/settings.h"
#include "bench_machine.h"
#include "bench_roof.h"

#include <memory>
#include <nlohmann/json_fwd.hpp>

namespace tally::apps {

class BenchBed {
 public:
  // By --threads and --memory. Holds the ending signals and sets this thread's float mode; measures the
  // roofs. Errors: kUnavailable (memory).
  static base::Result<std::unique_ptr<BenchBed>> make(const base::Settings& settings);

  base::ThreadPool& pool() { return pool_; }
  base::Accounts& accounts() { return accounts_; }
  // bench_working_bytes() + kTailPadding, that the roofs are read from and that a bench may overwrite.
  const base::Arena& memory() const { return memory_; }
  Roofs& roofs() { return *roofs_; }

  // What --json prints: machine with roofs, warnings, results.
  nlohmann::json page(nlohmann::json results) const;
  // Says on stderr what makes the figures doubtful; the exit code.
  int finish() const;

 private:
  explicit BenchBed(const base::Settings& settings);

  const MachineWatch watch_;
  base::ThreadPool pool_;
  base::Accounts accounts_;
  base::Arena memory_;
  std::unique_ptr<Roofs> roofs_;
};

}  // namespace tally::apps
