#include "serve/counters.h"

#include <algorithm>

namespace tally::serve {

void Distribution::observe(double value) {
  const auto at = static_cast<size_t>(std::lower_bound(edges_.begin(), edges_.end(), value) - edges_.begin());
  const std::lock_guard lock(mutex_);
  ++counts_[at];
  sum_ += value;
}

Distribution::Snapshot Distribution::snapshot() const {
  const std::lock_guard lock(mutex_);
  return {edges_, counts_, sum_};
}

std::vector<double> one_two_five_edges(uint64_t max) {
  std::vector<double> edges;
  for (uint64_t decade = 1; decade <= max; decade *= 10)
    for (uint64_t digit : {1u, 2u, 5u})
      if (decade * digit <= max) edges.push_back(static_cast<double>(decade * digit));
  return edges;
}

}  // namespace tally::serve
