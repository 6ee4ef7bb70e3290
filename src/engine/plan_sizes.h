#pragma once
// What a plan is made of before the budget is divided (private to the room).

#include "engine/memory.h"
#include "kv/ledger.h"
#include "model/model.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tally::engine {

// By the value of the flag. Errors: kConfig, with what there is.
base::Result<kernels::Isa> find_isa(const std::string& name);
base::Result<tensor::KvCodec> find_codec(const std::string& name);

// A model file under settings, and the sizes that follow. Nothing is allocated, no weight is read.
struct Sizes {
  gguf::File file;
  kernels::KernelTable kernels;
  model::Blueprint blueprint;
  tensor::KvCodec codec{};
  model::LoadOptions load;
  model::StepLimits limits;
  std::vector<tensor::KvLayout> layouts;
  uint64_t block_bytes = 0;
  bool is_loaded = false;  // the weights are there, and rope tables of load.context positions
  std::unique_ptr<Sizes> draft = {};  // of the model that drafts; null: there is none

  // Errors: those of the file; kConfig for a setting that this machine or model cannot have.
  static base::Result<Sizes> read(const LoadRequest& request);
  static base::Result<std::unique_ptr<Sizes>> read_draft(const LoadRequest& request);
  // The same model with sequences of another length, and other KV.
  void set_context(uint32_t context);
  void set_codec(tensor::KvCodec of, uint32_t block_tokens);
  void set_codecs(std::span<const tensor::KvCodec> of_layers, uint32_t block_tokens);

  const model::ModelSpec& spec() const { return blueprint.spec(); }
  uint32_t context() const { return limits.context_max; }
};

// What grows with the KV pool: its blocks, their records, and what answers hold until they are read.
class PoolPrice {
 public:
  PoolPrice(const LoadRequest& request, const Sizes& sizes);

  uint64_t blocks_for(uint64_t tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }
  // All that so many blocks cost.
  uint64_t bytes(uint64_t blocks) const {
    return pool_bytes(blocks) + ledger_bytes(blocks) + disk_bytes(blocks) + stream_bytes(blocks);
  }
  uint64_t pool_bytes(uint64_t blocks) const;
  uint64_t ledger_bytes(uint64_t blocks) const;
  uint64_t disk_bytes(uint64_t blocks) const;  // 0: no disk
  uint64_t stream_bytes(uint64_t blocks) const;  // of StreamRoom
  // The most blocks that cost no more than `bytes`.
  uint64_t blocks_within(uint64_t bytes) const;

 private:
  const Settings& settings_;
  const KvDiskRequest& disk_;
  uint64_t block_bytes_, draft_block_bytes_, block_tokens_;
  uint32_t context_;
};

inline constexpr uint64_t kStreamPools = 12;
inline constexpr uint64_t kPoolBlocksMin = 2, kPoolBlocksMax = uint64_t{1} << 24;

kv::LedgerConfig ledger_config(const Settings& settings, uint64_t blocks);
// Rows of logits in a step: one for each sequence, and those of drafts.
uint32_t logits_rows_max(const Settings& settings);
// Sequences that may have drafts: all that run, if there are drafts at all.
uint32_t draft_seats(const Settings& settings);
// Whether drafts are drawn, with chances that are kept until they are verified: [RowPrices::kRowsMax, vocab].
bool draws_guesses(const Settings& settings);
uint64_t chances_bytes(uint32_t vocab);
// A worker's candidates, and its copy of a row that several choices draw from.
uint64_t sampling_bytes(uint32_t threads, uint32_t vocab);

// The plan but for what grows with the pool.
MemoryPlan fixed_plan(const LoadRequest& request, const Sizes& sizes);
// Adds a pool of so many blocks.
void add_pool(MemoryPlan& plan, const PoolPrice& price, const Sizes& sizes, uint64_t blocks);

// What the process has besides: code's data, stacks, the allocator's slack, the scheduler's tables. An upper
// estimate, see docs/plan.md.
inline constexpr uint64_t kProcessBytes = uint64_t{4} << 20;

}  // namespace tally::engine
