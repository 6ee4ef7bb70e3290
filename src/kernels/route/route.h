#pragma once
// The router of a mixture of experts: which experts a token uses, and with what weights. A part of the door
// kernels.h: one portable form for all tiers.

#include <cstddef>
#include <cstdint>

namespace tally::kernels {

inline constexpr size_t kExpertsMax = 1024;

// How a logit becomes a score. The experts used are those of the highest scores.
enum class Gating : uint8_t {
  kSoftmax,          // softmax over all experts
  kSigmoid,          // each for itself
  kSoftmaxOfChosen,  // the logits rank; their softmax over the experts used weighs
};

struct RouteArgs {
  const float* logits = nullptr;  // [experts]
  size_t experts = 0, used = 0;
  Gating gating = Gating::kSoftmax;
  const float* selection_bias = nullptr;  // [experts] or nullptr: added to the scores for the choice only
  // Only experts of the groups_used best of `groups` equal runs of experts are eligible; a group is worth the
  // sum of its two best biased scores. 0 groups: all experts are eligible.
  size_t groups = 0, groups_used = 0;
  bool normalize = false;            // weights divided by their sum, or by normalize_min where that is more
  float normalize_min = 0x1.0p-14f;  // 6.1e-5
  float scale = 1;                   // of the weights, at the end
  uint32_t* ids = nullptr;           // [used], best first; of equal scores the lower index
  float* weights = nullptr;          // [used], of the same experts: their scores without the bias
};

// Chooses the experts of one token.
// Requires: 1 <= used <= experts <= kExpertsMax; where groups > 0: experts is a multiple of groups,
// groups_used in 1..groups,
//   used <= groups_used * experts / groups.
// Ensures: ids are distinct and below `experts` whatever the logits are; a NaN score ranks below every
// number. Softmaxes are in
//   f32 with the sum of vector_kernels.h; a logit that is NaN or +inf makes weights NaN.
void route(const RouteArgs& args);

}  // namespace tally::kernels
