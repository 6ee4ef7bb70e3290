// What the bytes of the weights are for: the entries of the weight plan by kind.
#include "model/weights.h"

#include <algorithm>

namespace tally::model {
namespace {

constexpr std::string_view kKinds[] = {"embedding and output", "attention", "FFN", "experts", "vectors"};
enum Kind : size_t { kEmbedding, kAttention, kFfn, kExperts, kVectors };

Kind kind_of(const WeightEntry& e) {
  if (e.placement == Placement::kVector) return kVectors;
  switch (e.slot) {
    case Slot::kTokenEmbd:
    case Slot::kPositionEmbd:
    case Slot::kOutput:
      return kEmbedding;
    case Slot::kExpertGate:
    case Slot::kExpertUp:
    case Slot::kExpertDown:
      return kExperts;
    case Slot::kFfnGate:
    case Slot::kFfnUp:
    case Slot::kFfnDown:
    case Slot::kRouter:
    case Slot::kSharedGate:
    case Slot::kSharedUp:
    case Slot::kSharedDown:
      return kFfn;
    default:
      return kAttention;
  }
}

}  // namespace

std::vector<std::pair<std::string, size_t>> size_parts(const WeightPlan& plan) {
  std::vector<std::pair<std::string, size_t>> parts;
  for (const std::string_view kind : kKinds) parts.push_back({std::string(kind), 0});
  // An entry reaches to the next one: what lies between them is its padding.
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const size_t end = i + 1 < plan.entries.size() ? plan.entries[i + 1].offset : plan.bytes;
    parts[kind_of(plan.entries[i])].second += end - plan.entries[i].offset;
  }
  std::erase_if(parts, [](const auto& part) { return part.second == 0; });
  return parts;
}

}  // namespace tally::model
