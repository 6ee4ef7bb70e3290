#pragma once
// What `tally bench attention` prints.

#include "bench_attention.h"

#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace tally::apps {

struct AttentionBenchPage {
  const AttentionBenchSettings& settings;
  const std::vector<AttentionMeasure>& measures;
  const Roofs& roofs;

  nlohmann::json results() const;  // an object for each measure
  void print_table() const;        // for people
};

}  // namespace tally::apps
