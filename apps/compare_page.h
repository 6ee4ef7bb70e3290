#pragma once
// What `tally compare` prints.

#include "measure/compare.h"

#include <string>
#include <vector>

namespace tally::apps {

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
