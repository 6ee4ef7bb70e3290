#pragma once
// What `tally compare` prints.

#include "measure/compare.h"

#include <string>
#include <vector>

namespace tally::apps {

// In which a metric is shown.
struct Unit {
  const char* name;
  double scale;
};
Unit unit_of(const measure::ComparedMetric& metric);
// "0.950 .. 1.020"
std::string interval_text(const measure::ComparedMetric& metric);
// "UNDECIDED  needs about 7 more pairs"
std::string verdict_text(const measure::ComparedMetric& metric);

struct ComparePage {
  std::string name_a, name_b;
  const measure::Comparison& comparison;
  const measure::Noise* noise = nullptr;  // null: the machine was not calibrated
  bool same = false;                      // A/A: `noise` comes from this very comparison
  std::string noise_path;
  const std::vector<std::string>& paths;  // of the runs, A1 B1 A2 B2 ...

  void print_json() const;   // one object on stdout
  void print_table() const;  // for people

 private:
  void print_heading() const;
  void print_rows(bool judged) const;
  void print_gates() const;
  void print_noise() const;
};

}  // namespace tally::apps
