#pragma once
// What `tally plan` prints.

#include "engine/memory.h"

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tally::apps {

struct PlanPage {
  const engine::Outlook& outlook;
  std::string model;               // a file, or the shape
  std::vector<std::string> notes;  // what is not known

  nlohmann::json results() const;
  void print() const;  // for people

 private:
  void print_accounts() const;
  void print_codec(const engine::KvOutlook& codec) const;
};

}  // namespace tally::apps
