#include "engine/drafts/choose.h"

#include <algorithm>
#include <array>

namespace tally::engine {

double expected_tokens(double chance, uint32_t drafts) {
  double sum = 1, term = 1;
  for (uint32_t i = 0; i < drafts; ++i) sum += term *= chance;
  return sum;
}

// A row goes to where it is most likely to be a token; as chances fall along a draft, the first rows given
// are the best for their number (where drafts take equally long), and the best number is found by trying each.
void choose_drafts(std::span<DraftCandidate> candidates, uint32_t decoding, const RowPrices& prices) {
  std::array<size_t, RowPrices::kRowsMax> given{};  // the candidate of each row, in order
  uint32_t rows = 0, best_rows = 0;
  if (decoding >= RowPrices::kRowsMax) {
    for (DraftCandidate& c : candidates) c.drafts = 0;
    return;
  }
  const auto room = static_cast<uint32_t>(RowPrices::kRowsMax - decoding);
  double tokens = decoding, making_us = 0, best = kWorthMargin * tokens / prices.us(decoding);
  const auto next_chance = [](const DraftCandidate& c, uint32_t drafts) {
    double chance = 1;
    for (uint32_t i = 0; i <= drafts; ++i) chance *= c.chance;
    return chance;
  };
  std::array<uint32_t, RowPrices::kRowsMax> taken{};  // of the first candidates: there are fewer than rows
  const size_t n = std::min<size_t>(candidates.size(), taken.size());
  while (rows < room) {
    double most = 0;
    size_t winner = n;
    for (size_t i = 0; i < n; ++i) {
      if (taken[i] == candidates[i].drafts) continue;
      const double chance = next_chance(candidates[i], taken[i]);
      if (chance > most) most = chance, winner = i;
    }
    if (winner == n) break;
    given[rows++] = winner, ++taken[winner];
    tokens += most, making_us += candidates[winner].us;
    const double rate = tokens / (prices.us(decoding + rows) + making_us);
    if (rate > best) best = rate, best_rows = rows;
  }
  for (DraftCandidate& c : candidates) c.drafts = 0;
  for (uint32_t r = 0; r < best_rows; ++r) ++candidates[given[r]].drafts;
}

}  // namespace tally::engine
