#pragma once
// What `tally ablate` prints.

#include "measure/ablate.h"

#include <string>

namespace tally::apps {

struct AblatePage {
  const measure::Ablation& ablation;
  std::string title;                      // model, load, rounds
  const measure::Noise* noise = nullptr;  // null: the machine was not calibrated

  void print() const;  // for people, as wide as the terminal

 private:
  void print_heading() const;
  void print_arms() const;
  void print_contrast(const measure::ContrastResult& contrast) const;
  void print_interactions() const;
  void print_forest() const;
  const std::string& name_of(size_t arm) const { return ablation.design.arms[arm].name; }
};

}  // namespace tally::apps
