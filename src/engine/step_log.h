#pragma once
// The last steps of the engine, for whoever wants to know where their time went. Written by the engine
// thread, read by any: no lock between them, a reader that was overtaken drops the record.

#include "engine/stats.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace tally::engine {

// Parts of a step that sum to it.
enum class Phase : uint8_t { kPlan, kPack, kLinear, kAttention, kHead, kOther, kSample, kCommit };
inline constexpr std::string_view kPhaseNames[] = {"plan", "pack",  "linear", "attention",
                                                   "head", "other", "sample", "commit"};
inline constexpr size_t kPhases = std::size(kPhaseNames);

// One step. Rows are tokens; blocks, running and waiting are as they were at its end.
struct StepRecord {
  uint64_t step = 0;        // from 1, without gaps
  int64_t begin_us = 0;     // base::now_us()
  int64_t duration_us = 0;  // sum of the phases
  uint64_t prefill_rows = 0, decode_rows = 0, recompute_rows = 0, draft_rows = 0, logits_rows = 0;
  uint64_t accepted_drafts = 0;
  uint64_t draft_prompt_rows = 0;  // of prompts, that a model that drafts took before the step
  DraftCounts drafts{};            // draft_rows and accepted_drafts, by who drafted
  uint64_t sequences = 0;  // with rows in the step
  uint64_t running = 0, waiting = 0;
  uint64_t context_tokens = 0;  // positions that the sequences' attention read from the cache
  uint64_t weight_bytes = 0, kv_bytes = 0, activation_bytes = 0;  // read; activations: of the scratch
  uint64_t kv_bytes_written = 0;
  uint64_t flops = 0;  // two for each product
  uint64_t blocks_free = 0, blocks_held = 0, blocks_cached = 0;
  int64_t predicted_us = 0;  // by the scheduler's cost model; 0: it has none
  std::array<int64_t, kPhases> phases_us{};

  int64_t& phase(Phase p) { return phases_us[static_cast<size_t>(p)]; }
};

// What a reader gets.
struct StepPage {
  uint64_t first = 1, last = 0;   // what the log holds; first = last + 1: nothing
  bool dropped = false;           // what came after the reader's number is not all there any more
  std::vector<StepRecord> steps;  // ascending
};

class StepLog {
 public:
  static constexpr size_t kKept = 8192;
  static uint64_t bytes() { return kKept * sizeof(Slot); }

  StepLog() : slots_(std::make_unique<Slot[]>(kKept)) {}
  // Engine thread only. Requires: record.step is one more than that of the last.
  void add(const StepRecord& record);
  // At most `max` steps after number `since`; any thread.
  StepPage read(uint64_t since, size_t max) const;
  uint64_t last() const { return last_.load(std::memory_order_acquire); }

 private:
  static constexpr size_t kWords = sizeof(StepRecord) / sizeof(uint64_t);
  // `step` is 0 while the words are written. Words are stored with release, so that who reads a new one sees
  // that.
  struct Slot {
    std::atomic<uint64_t> step{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };
  bool copy(uint64_t step, StepRecord& out) const;

  std::unique_ptr<Slot[]> slots_;  // [kKept], step n in slot n % kKept
  std::atomic<uint64_t> last_{0};
};

}  // namespace tally::engine
