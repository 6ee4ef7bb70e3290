#pragma once
// Who owns which block. (Stub of the door: filled in by the room.)

#include <array>
#include <cstdint>

#include "base/ids.h"

namespace tally::kv {

using Namespace = std::array<uint64_t, 4>;  // SHA-256 of (tenant, salt): sequences share blocks only inside one

struct LedgerConfig {
  uint32_t blocks = 0, block_tokens = 64;
  bool prefix_cache = true;
  uint32_t hash_bits = 64;  // tests cut it: outputs must not change
};

struct LedgerStats {
  uint32_t total = 0, free = 0, held = 0, cached = 0, both = 0, shared = 0;
  uint64_t evictions = 0, hash_mismatches = 0, waste_tokens = 0;
};

class Ledger {
 public:
  explicit Ledger(const LedgerConfig& config);
  LedgerStats stats() const;
  // Drops every registered block; returns how many became free.
  uint32_t reset_prefix();
};

}  // namespace tally::kv
