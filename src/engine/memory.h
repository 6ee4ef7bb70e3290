#pragma once
// The plan, before load: the four accounts by the rooms' own size functions. And the engine made from it.

#include "base/accounts.h"
#include "base/ids.h"
#include "base/result.h"
#include "engine/engine.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::engine {

// How sequences are served; what is not the first named is a baseline to measure against.
struct Policy {
  std::string attention = "paged";      // or "standard"
  std::string batching = "continuous";  // or "static"
  std::string allocator = "paged";      // or "reserve"
  int64_t step_latency_us = 0;          // what a step with decode rows may take; 0: no bound
  bool cascade = true;                  // blocks that running sequences share are attended once for all
  std::string speculate = "off";        // or "lookup": drafts from the text so far; "draft": and by a model
  uint32_t speculate_max = 16;          // of a sequence in a step
  bool rejection_sampling = false;  // drafts of drawn seeds: accepted by chance, not compared (draws_guesses)
  std::string draft_model;              // its file, of the same vocabulary (which is the caller's to check)
};

struct Settings {
  uint64_t memory_bytes = 0;   // cap over all accounts
  uint32_t max_model_len = 0;  // 0: the model's context, lowered to what fits
  std::string kv_type = "int8";
  uint64_t kv_pool_bytes = 0;  // 0: what the budget leaves, at most an eighth of max_seqs x max_model_len
  uint32_t block_tokens = 64;
  uint32_t max_seqs = 64, max_queue = 256, step_tokens = 512;
  bool prefix_cache = true;
  Policy policy;
  uint32_t threads = 1;
  std::string isa = "best";
};

// Start-up tuning (kernels/tune.h): off, or on and kept in a file ("": not kept).
struct TuneRequest {
  bool on = false;
  std::string file;
};

// A look at the KV type once the model is loaded: layers that it does not suit keep bf16.
struct KvCheckRequest {
  std::string mode = "off";    // "auto": of types below int8 only; "on"
  std::vector<TokenId> probe;  // some hundred tokens of text
};

// Prefix blocks that leave the pool are kept in a file.
struct KvDiskRequest {
  std::string directory;  // "": they are lost
  uint64_t bytes = 0;     // of the file
};

// Where the weights are while the engine runs.
struct WeightsRequest {
  std::string mode = "memory";  // or "stream": layers that the budget has no room for are read in every pass
  std::string directory;        // of their file; of "stream" alone
};

// What the composition root knows beyond the settings.
struct LoadRequest {
  std::string model_path;
  Settings settings;
  TuneRequest tune;
  KvCheckRequest kv_check;
  KvDiskRequest kv_disk;
  WeightsRequest weights;
  uint64_t tokenizer_bytes = 0, connection_bytes = 0;  // what the caller holds
  uint64_t constraint_table_bytes = 0;                 // the same, of sample::ConstraintCompiler
  uint64_t constraint_room_bytes = 0;                  // kept free for what it compiles while serving
  StepRoofs roofs = {};                                // where they are known
  bool dequantize_to_f32 = false;                      // tests: the exact mode
  std::vector<double> row_prices_us;                   // tests: of drafts/row_prices.h; empty: measured
  double draft_sure_enough = 0.4;                      // tests: drafts/draft_model.h
  std::function<TokenId(size_t position)> draft_text;  // tests: the same
  std::vector<TokenId> end_ids;                        // of the tokenizer, ascending
  std::vector<TokenId> suppressed_ids;
  std::vector<TokenId> draft_stop_ids;  // ascending: control tokens, which no draft copies
  std::function<bool(uint64_t done, uint64_t total)> progress;  // false stops the load
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
// Layers that are read in every pass.
struct StreamOutlook {
  uint32_t layers = 0, of_layers = 0;
  uint64_t pass_bytes = 0;      // that a pass reads
  double disk_bytes_per_s = 0;  // of the model file's disk, measured; 0: not known
  bool is_direct = false;       // past the page cache

  // What the disk allows, whatever the batch; 0: not known.
  double passes_per_s() const { return disk_bytes_per_s / static_cast<double>(pass_bytes); }
};
// As a sentence for people.
std::string stream_text(const StreamOutlook& stream);

struct MemoryPlan {
  std::vector<PlanAccount> accounts;  // one each, in their order
  uint64_t total_bytes = 0, budget_bytes = 0;
  uint64_t kv_bytes_per_token = 0;
  uint32_t blocks = 0, block_tokens = 0, max_model_len = 0, max_seqs = 0;
  std::optional<StreamOutlook> stream;  // none: all weights stay

  uint64_t pool_tokens() const { return uint64_t{blocks} * block_tokens; }
  const PlanAccount& of(base::Account account) const { return accounts[static_cast<size_t>(account)]; }
};

// Plans for a model file. Errors: kUnavailable with the table and what would fit; kConfig; kBadData;
// kNoInput.
base::Result<MemoryPlan> plan_memory(const LoadRequest& request);
// The plan as lines for people.
std::string plan_table(const MemoryPlan& plan);

// A codec of the KV cache: what it costs, and what fits into the budget with it.
struct KvOutlook {
  struct Cell {
    uint32_t context = 0, seqs = 0;
    uint64_t total_bytes = 0;  // of all accounts, with every sequence at full length
    bool fits = false;
  };
  std::string codec;
  uint64_t block_bytes = 0;
  double bytes_per_token = 0;
  uint64_t break_even_tokens =
      0;                      // context x concurrency at which the blocks are as many bytes as the weights
  std::vector<Cell> cells;    // contexts x concurrencies
  std::vector<Cell> longest;  // for each concurrency the longest context that fits; context 0: none
  std::vector<Cell> most;     // for each context the most sequences; 0: not one
};
// A plan, or why there is none, and what could be had instead.
struct Outlook {
  MemoryPlan plan;                     // of what was refused: with the least pool there can be
  std::optional<base::Error> refusal;  // kUnavailable
  std::string architecture;
  uint32_t layers = 0, context = 0;  // of the model
  std::vector<KvOutlook> codecs;
};
// Errors: as plan_memory, but for what does not fit.
base::Result<Outlook> look_ahead(const LoadRequest& request);

// What an earlier start on such a machine kept in a tuning file (TuneRequest); empty: nothing.
std::vector<Tuning> kept_tuning(const std::string& file, std::string_view isa, uint32_t threads);

// Plans, loads, and makes an engine. `accounts` outlives it.
base::Result<std::unique_ptr<Engine>> load_engine(const LoadRequest& request, base::Accounts& accounts);

}  // namespace tally::engine
