#pragma once
// The plan, before load: the four accounts by the rooms' own size functions. And the engine made from it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/accounts.h"
#include "base/result.h"
#include "engine/engine.h"

namespace tally::engine {

struct Settings {
  uint64_t memory_bytes = 0;       // cap over all accounts
  uint32_t max_model_len = 0;      // 0: the model's context, lowered to what fits
  std::string kv_type = "int8";
  uint64_t kv_pool_bytes = 0;      // 0: what the budget leaves
  uint32_t block_tokens = 64;
  uint32_t max_seqs = 64, max_queue = 256, step_tokens = 512;
  bool prefix_cache = true;
  std::string attention = "paged";  // or "standard"
  uint32_t threads = 1;
  std::string isa = "best";
  bool dequantize_to_f32 = false;  // tests: the exact mode
};

struct PlanPart {
  std::string name;
  uint64_t bytes = 0;
  std::string formula;
};
struct PlanAccount {
  base::Account account{};
  uint64_t bytes = 0;
  std::vector<PlanPart> parts;
};
struct MemoryPlan {
  std::vector<PlanAccount> accounts;
  uint64_t total_bytes = 0, budget_bytes = 0;
  uint64_t kv_bytes_per_token = 0;
  uint32_t blocks = 0, max_model_len = 0, max_seqs = 0;
};

// Plans for a model file; `runtime_bytes` is what the caller adds (tokenizer, connections). Errors: kUnavailable with the table
// and what would fit; kConfig; kBadData.
base::Result<MemoryPlan> plan_memory(const std::string& model_path, const Settings& settings, uint64_t runtime_bytes);

// Loads the model and makes an engine after plan_memory. progress: bytes packed, bytes in all; false stops the load.
base::Result<std::unique_ptr<Engine>> load_engine(const std::string& model_path, const Settings& settings,
                                                  uint64_t runtime_bytes, base::Accounts& accounts,
                                                  const std::function<bool(uint64_t, uint64_t)>& progress);

}  // namespace tally::engine
