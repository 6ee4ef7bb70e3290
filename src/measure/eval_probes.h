// Questions whose answer is in the context, or follows from it: made from a seed, answered by greedy text.
#pragma once

#include "measure/eval_lanes.h"

#include <string>
#include <string_view>
#include <vector>

namespace tally::measure {

struct Question {
  std::string text;    // ends where the answer begins
  std::string answer;  // one word, or a number
  std::string cell;    // where it is counted besides: "1024@0.5"
};

// Questions behind one document, which is read once.
struct Document {
  std::string text;
  std::vector<Question> questions;
};

struct Probe {
  std::string name;
  std::vector<Document> documents;
  size_t items() const;
};

// Which questions, and out of what.
struct ProbeRequest {
  uint32_t questions = 32;
  uint64_t seed = 1;
  std::string_view filler;  // prose between the lines of a document
  double bytes_per_token = 4;
  uint32_t context = 2048;
};

// Keys that differ in one letter stand with their words at all depths of a long document; some are asked for.
Probe make_recall(const ProbeRequest& request);
// One line in a long document, at several depths: a model that reads at all finds it.
Probe make_needle(const ProbeRequest& request);
// Chains of 2 to 5 assignments, the last value is asked for; examples before.
Probe make_tracking(const ProbeRequest& request);
// Sums of numbers of 2 to 8 digits; examples before.
Probe make_arithmetic(const ProbeRequest& request);

// The first run of ASCII letters and digits in a text; "" if there is none.
std::string first_word(std::string_view text);

// Puts every question to every lane, and counts.
base::Result<void> ask(EvalBench& bench, const Probe& probe);

}  // namespace tally::measure
