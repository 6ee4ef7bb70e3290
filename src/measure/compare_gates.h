// What must hold before two runs are compared, and what differs between them.
#pragma once

#include "measure/compare.h"
#include "measure/summary.h"

#include <string>
#include <vector>

namespace tally::measure {

// A string of the head, "" where there is none: text_of(head, "model", "sha256").
std::string text_of(const nlohmann::json& head, const char* object, const char* key);

// What the requests of either run of a pair come to.
struct PairFigures {
  Figures a, b;
};

// The gates of pair `number` (from 1): those of each run and those of both together.
std::vector<Gate> gates_of(const RunPair& pair, const PairFigures& figures, size_t number);

// Settings of the servers that have another value in B than in A, and the build. Where a server listens is
// no variable.
std::vector<ChangedSetting> changes_of(const RunPair& pair);

// What does not spoil a comparison but should be known.
std::vector<std::string> warnings_of(const RunPair& pair, const PairFigures& figures, size_t number);

}  // namespace tally::measure
