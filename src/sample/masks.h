#pragma once
// Tokens that may not be chosen. Private to the room.

#include "sample/sampler.h"

#include <algorithm>
#include <span>

namespace tally::sample {

// Sets the logits of ids that the constraint does not allow, of suppressed ones, and of end ids where the
// sequence may not end yet (unless they are all that is left) to -infinity. Returns how many; values that are
// not finite stay as they are and do not count.
size_t apply_masks(std::span<float> logits, const Params& params, const Context& context);

inline bool contains(std::span<const TokenId> ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace tally::sample
