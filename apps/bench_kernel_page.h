#pragma once
// What `tally bench kernel` prints.

#include "bench_kernel.h"

#include <string>
#include <vector>

namespace tally::apps {

struct KernelBenchPage {
  const KernelBenchSettings& settings;
  const std::vector<KernelMeasure>& measures;  // empty: the roofs alone
  const Roofs& roofs;
  const std::vector<std::string>& warnings;

  void print_json() const;   // one object on stdout
  void print_table() const;  // for people
};

}  // namespace tally::apps
