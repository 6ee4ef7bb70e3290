#pragma once
// How many drafts each sequence may have in a step: as many as make the batch's tokens a second most. With
// a row's price rising in the batch it fades out by itself. Source: the project's speculation reference,
// sections 1 and 4.

#include "engine/drafts/row_prices.h"

#include <cstdint>
#include <span>

namespace tally::engine {

struct DraftCandidate {
  double chance = 0;    // of each draft, if those before it are accepted
  uint32_t drafts = 0;  // there are so many, or may be; becomes how many are worth their rows
  double us = 0;        // what each takes to be made
};

// The share by which a step with drafts must be better than one without: estimates are no better than this.
inline constexpr double kWorthMargin = 1.02;

// `decoding` sequences have a row each, candidates or not; prices hold for the rows of the step.
void choose_drafts(std::span<DraftCandidate> candidates, uint32_t decoding, const RowPrices& prices);

// Tokens that a step with so many drafts is expected to give: one, and one for each draft that holds.
double expected_tokens(double chance, uint32_t drafts);

}  // namespace tally::engine
