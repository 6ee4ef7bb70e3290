#pragma once
// What `tally bench load` prints.

#include "measure/load.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tally::apps {

struct StoredBlock {
  measure::LoadBlock block;
  std::string path;  // of the stored run; "": it could not be stored
};

// All blocks of one level: of every server, every repetition.
struct LoadLevel {
  measure::Level level;
  std::vector<StoredBlock> blocks;
};

class BenchLoadPage {
 public:
  BenchLoadPage(const measure::LoadSpec& spec, const std::vector<measure::ServerFacts>& servers)
      : spec_(spec), servers_(servers) {}

  // For people: three lines and a table for each server, then the ratios to the first.
  void print_level(const LoadLevel& level) const;
  void print_knee(const measure::CapacitySearch& search) const;
  // One object on stdout. `search`: null without --find-capacity.
  void print_json(const std::vector<LoadLevel>& levels, const std::vector<std::string>& notes,
                  const measure::CapacitySearch* search) const;

 private:
  void print_server(const LoadLevel& level, size_t server) const;
  void print_ratios(const LoadLevel& level) const;

  const measure::LoadSpec& spec_;
  const std::vector<measure::ServerFacts>& servers_;
};

}  // namespace tally::apps
