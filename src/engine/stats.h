#pragma once
// What the engine has done so far, as of the end of a step. Part of the door, engine/engine.h.

#include "engine/cache_view.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

namespace tally::engine {

// kLength: at max_tokens, or where a constraint cannot be followed further in the memory of its place.
// kDeadEnd: the constraint left no token, or took more time than it may.
enum class Finish : uint8_t {
  kStop,
  kLength,
  kCancelled,
  kDeadline,
  kNonFinite,
  kInternal,
  kShutdown,
  kDeadEnd
};
inline constexpr size_t kFinishCount = 8;

// A histogram with fixed upper edges, cumulative counts made at scrape.
struct Histogram {
  std::span<const double> edges;
  std::vector<uint64_t> counts;  // one more than edges
  double sum = 0;
};

// Who drafted.
enum class DraftSource : uint8_t { kLookup, kConstraint, kModel };
inline constexpr std::string_view kDraftSourceNames[] = {"lookup", "constraint", "model"};
inline constexpr size_t kDraftSources = std::size(kDraftSourceNames);

// Tokens that had rows, and of them those that were right.
struct DraftCount {
  uint64_t drafted = 0, accepted = 0;
};
using DraftCounts = std::array<DraftCount, kDraftSources>;  // by DraftSource

// Drafts, and what became of them.
struct Speculation {
  static constexpr size_t kPositions = 16;
  uint64_t rounds = 0, drafted = 0, accepted = 0;  // verifications of a sequence's drafts; tokens
  std::array<uint64_t, kPositions> accepted_at{};  // by place in the draft
  DraftCounts by{};
  double ratio = 1;     // tokens a second of recent steps over those without drafts, by what rows cost
  uint32_t paused = 0;  // sequences whose drafts were wrong too often for now
};

// Layers that passes read from a file (--weights stream), since load; zeros without it.
struct WeightStreamStats {
  uint32_t layers = 0;
  uint64_t pass_bytes = 0, read_bytes = 0;
  double read_s = 0, waited_s = 0;   // reads were under way; passes waited for them
  double predicted_bytes_per_s = 0;  // what the plan measured of the disk; 0: not known
};

// One consistent snapshot, made at the end of a step.
struct Stats {
  uint64_t running = 0, waiting = 0, waiting_deferred = 0, queue_tokens = 0;
  double queue_oldest_s = 0;
  uint64_t blocks_total = 0, blocks_free = 0, blocks_held = 0, blocks_cached = 0, blocks_shared = 0,
           blocks_registered = 0;
  uint64_t block_bytes = 0, waste_tokens = 0;
  uint64_t prompt_tokens = 0, prompt_tokens_cached = 0, generation_tokens = 0, recomputed_tokens = 0;
  uint64_t prompt_tokens_recomputed =
      0;  // cached ones computed again for logits; recomputed_tokens: after preemption
  uint64_t forks = 0, copied_blocks = 0;  // choices begun from another's prompt; blocks copied for a write
  uint64_t prefix_queries = 0, prefix_hits = 0, preemptions = 0, preempted_tokens = 0, evictions = 0,
           hash_mismatches = 0;
  std::array<uint64_t, kFinishCount> finished{};  // by Finish
  uint64_t steps_prefill = 0, steps_decode = 0, steps_mixed = 0;
  uint64_t rows_prefill = 0, rows_decode = 0, rows_recompute = 0, rows_draft = 0;
  Speculation speculation;
  uint64_t step_sequences = 0;  // summed over steps
  uint64_t weight_bytes_read = 0, kv_bytes_read = 0, activation_bytes_read = 0, kv_bytes_written = 0,
           flops = 0;
  uint64_t sequence_tokens_max = 0;       // prompt and answer of the longest that has ended
  // Of forward_s, by the roof that asks for more; unbound_s: where the roofs are not known.
  double bandwidth_s = 0, compute_s = 0, unbound_s = 0;
  double plan_s = 0, pack_s = 0, forward_s = 0, sample_s = 0, commit_s = 0,
         idle_s = 0;  // sum to the thread's wall
  Histogram ttft, inter_token, time_per_output_token, e2e, queue, prefill, decode, inference;  // seconds
  Histogram prompt_tokens_per_request, generation_tokens_per_request, iteration_tokens;
  Histogram step_prefill, step_decode, step_mixed;
  Histogram prefill_computed;                             // prompt tokens of a request, without cached ones
  Histogram prefill_per_token, step_model_error;          // seconds; ratio
  Histogram block_lifetime, block_idle, block_reuse_gap;  // seconds: kv/block_ages.h
  KvDiskStats kv_disk;
  WeightStreamStats weight_stream;
  int64_t last_step_us = 0;                               // base::now_us() of the last finished step
  bool work_runnable = false, failed = false;
};

}  // namespace tally::engine
