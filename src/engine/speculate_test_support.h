#pragma once
// Engines that draft, requests that give drafts something to be right and wrong about, and what they are
// compared with. Test support, not in the product.

#include "engine/hand_test_support.h"

#include <vector>

namespace tally::engine {

inline LoadRequest speculating(uint32_t most = 16) {
  LoadRequest load = small_request();
  load.settings.policy.speculate = "lookup";
  load.settings.policy.speculate_max = most;
  load.row_prices_us = {100, 100};  // as if further rows were free: all that is likely is verified
  return load;
}

inline std::vector<TokenId> repeated(size_t period, size_t n, uint32_t seed) {
  const std::vector<TokenId> once = prompt(period, seed);
  std::vector<TokenId> out;
  while (out.size() < n) out.push_back(once[out.size() % period]);
  return out;
}

// An answer from so few tokens that what was drafted is often right, and often wrong.
inline Request few_tokens(uint64_t seed, uint32_t tokens, uint32_t alphabet = 3) {
  Request r = greedy(repeated(7, 24, static_cast<uint32_t>(seed)), tokens);
  r.params.temperature = 1;
  r.params.seed = seed;
  for (uint32_t i = 0; i < alphabet; ++i)
    r.params.bias.push_back({TokenId{static_cast<int32_t>(40 + 3 * i)}, 100});
  return r;
}

// The model drafts for itself, and passes cost nothing beside its steps.
inline LoadRequest drafting(uint32_t most = 6) {
  LoadRequest load = speculating(most);
  load.settings.policy.speculate = "draft";
  load.settings.policy.draft_model = kModel;
  load.row_prices_us = {1e6, 1e6};
  load.draft_sure_enough = 0;
  load.settings.threads = 1;  // of so small a model a second one only waits
  return load;
}

inline std::vector<Answer> plain(LoadRequest load, const std::vector<Request>& requests) {
  load.settings.policy.speculate = "off";
  return Hand(load).run(requests);
}

}  // namespace tally::engine
