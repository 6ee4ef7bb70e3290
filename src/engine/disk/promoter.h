#pragma once
// What a prompt begins with and the pool has lost, from the disk into the prefix index: read where that is
// quicker than computing it. (Private to the room.)
//
// Threads: the engine's. `begin` and `end` while the scheduler and the ledger are locked, `read` while they are
// not.

#include "base/pool.h"
#include "engine/disk/disk_tier.h"
#include "sched/plan.h"

#include <deque>
#include <memory>
#include <vector>

namespace tally::engine {

class Promoter {
 public:
  Promoter(std::unique_ptr<DiskTier> tier, base::ThreadPool& pool) : tier_(std::move(tier)), pool_(pool) {}

  // A request that was submitted as held: it is released when there is nothing to be read for it any more.
  void add(SeqId seq, const kv::Namespace& space) { newcomers_.push_back({seq, space, {}, 0}); }
  bool has_newcomers() const { return !newcomers_.empty(); }

  // Goes on with the newcomer whose turn it is. True: blocks are to be read.
  bool begin(sched::Scheduler& scheduler, const kv::Ledger& ledger, Tick now);
  // Saves what had to leave for them, and reads.
  void read(const kv::View& view);
  struct Promoted {
    SeqId seq{};
    uint32_t blocks = 0;
  };
  Promoted end(sched::Scheduler& scheduler, const kv::Ledger& ledger, Tick now);

  // Prompt rows a second of a step that had many.
  void note_prefill(uint32_t rows, double seconds);
  double prefill_rows_per_s() const { return prefill_rate_; }
  DiskTier& tier() { return *tier_; }

 private:
  struct Newcomer {
    SeqId seq{};
    kv::Namespace space{};
    std::vector<DiskKey> keys;
    size_t read_blocks = 0;
  };
  bool pays();
  void release_first(sched::Scheduler& scheduler);

  std::unique_ptr<DiskTier> tier_;
  base::ThreadPool& pool_;
  std::deque<Newcomer> newcomers_;
  double prefill_rate_ = 0;
  uint64_t refusals_ = 0;

  // Of the reads under way.
  std::vector<DiskTier::Place> places_;
  std::vector<BlockId> blocks_;
  std::vector<uint8_t> is_read_;
  double seconds_ = 0;
};

}  // namespace tally::engine
