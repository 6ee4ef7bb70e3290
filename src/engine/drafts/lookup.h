#pragma once
// Prompt lookup: what followed the last tokens when they stood in the text before. Good where answers quote:
// edits, summaries with quotations, JSON; elsewhere it finds little and costs nothing.

#include "engine/drafts/lookup_index.h"
#include "engine/drafts/proposer.h"

#include <vector>

namespace tally::engine {

class Lookup final : public Proposer {
 public:
  // Tokens of a seat's window for sequences of up to `context` tokens.
  static uint32_t window_tokens(uint32_t context);
  static size_t bytes(uint32_t seats, uint32_t context);

  // `stops`, ascending: where a copy ends (end ids and control tokens). Requires: memory of bytes().
  Lookup(std::span<std::byte> memory, uint32_t seats, uint32_t context, std::vector<TokenId> stops);

  Proposal propose(const Ask& ask) override;
  void observe(uint32_t seat, std::span<const TokenId> known, bool begins) override;
  // By how many tokens before the place are the same: 2, 3, from 4 and from 8 on.
  uint32_t grades() const override { return 4; }
  DraftSource source() const override { return DraftSource::kLookup; }

 private:
  std::vector<LookupIndex> seats_;
  std::vector<TokenId> stops_;
};

}  // namespace tally::engine
