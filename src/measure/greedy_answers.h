// Whether two configurations compute the same bits, seen from outside.
#pragma once

#include "base/result.h"

#include <string>
#include <vector>

namespace tally::measure {

struct GreedyAnswer {
  std::string text, bits;  // bits: all that the server wrote of the choice, log-probabilities too

  bool is_there() const { return !bits.empty(); }  // false: the request was refused
};

// What a server answers to greedy requests of fixed words, sent all at once: some shorter than a block of the
// KV cache, some longer, two that begin alike. Two configurations that compute alike give equal bits. Errors:
// kUnavailable when the server does not answer or lists no model.
base::Result<std::vector<GreedyAnswer>> greedy_answers(const std::string& url, const std::string& api_key);

}  // namespace tally::measure
