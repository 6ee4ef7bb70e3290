#pragma once
// What `tally bench attention` prints.

#include "bench_attention.h"

#include <string>
#include <vector>

namespace tally::apps {

struct AttentionBenchPage {
  const AttentionBenchSettings& settings;
  const std::vector<AttentionMeasure>& measures;
  const Roofs& roofs;
  const std::vector<std::string>& warnings;

  void print_json() const;   // one object on stdout
  void print_table() const;  // for people
};

}  // namespace tally::apps
