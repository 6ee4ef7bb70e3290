#pragma once
// What `tally bench kernel` prints.

#include "bench_kernel.h"

#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace tally::apps {

struct KernelBenchPage {
  const KernelBenchSettings& settings;
  const std::vector<KernelMeasure>& measures;  // empty: the roofs alone
  const Roofs& roofs;

  nlohmann::json results() const;  // an object for each measure
  void print_table() const;        // for people
};

}  // namespace tally::apps
