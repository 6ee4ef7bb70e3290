// The knee: how much load a server takes before requests miss their limits.
#include "measure/load.h"

#include <cmath>

namespace tally::measure {
namespace {

constexpr double kNear = 1.1;  // of an open loop: rates that close are one
constexpr uint32_t kStepsMax = 16;
constexpr double kValueMax = 1e6;

}  // namespace

CapacitySearch::CapacitySearch(const Level& first) : level_(first) {}

std::optional<Level> CapacitySearch::next() const {
  if (steps_ == kStepsMax || level_.value > kValueMax) return std::nullopt;
  if (best_ && worst_ && (level_.is_open ? *worst_ / *best_ < kNear : *worst_ - *best_ <= 1))
    return std::nullopt;
  if (worst_ && !best_ && steps_ > 0 && (level_.value < 1e-3 || (!level_.is_open && level_.value < 1)))
    return std::nullopt;
  return level_;
}

void CapacitySearch::tell(const Figures& f) {
  ++steps_;
  const double share = f.requests() > 0 && f.goodput ? *f.goodput * f.duration_s / f.requests() : 0;
  (share >= kGoodShare - 1e-9 ? best_ : worst_) = level_.value;
  if (best_ && worst_)
    level_.value = level_.is_open ? std::sqrt(*best_ * *worst_) : std::floor((*best_ + *worst_) / 2);
  else
    level_.value = best_            ? level_.value * 2
                   : level_.is_open ? level_.value / 2
                                    : std::floor(level_.value / 2);
}

std::optional<Level> CapacitySearch::knee() const {
  if (!best_) return std::nullopt;
  return Level{level_.is_open, *best_};
}

}  // namespace tally::measure
