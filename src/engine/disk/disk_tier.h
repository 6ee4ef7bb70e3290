#pragma once
// Prefix blocks that had to leave the pool, kept in a file: what leaves is written behind the engine's back,
// what a prompt begins with is read into blocks again. (Private to the room.)
//
// The tier follows the ledger by its events, and knows a block by its key: SHA-256 over the key of the block
// before it and its ids, at first over the namespace. Threads: one writer of its own; read() from any thread;
// everything else is for the engine's.

#include "base/accounts.h"
#include "engine/cache_view.h"
#include "engine/disk/slot_file.h"
#include "kv/ledger.h"
#include "kv/view.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace tally::engine {

struct DiskTierConfig {
  std::string directory;      // made if it is not there; "": no tier
  uint64_t bytes = 0;         // of the file
  std::string model;          // fingerprint; what decides the bytes of a block besides is in the pool's shape
  uint32_t block_tokens = 0;  // > 0
};

class DiskTier {
 public:
  // A block in the file, held there until it is released.
  struct Place {
    uint32_t slot = 0;
    DiskKey key{};
  };

  // Errors: kIo, kConfig (SlotFile::open; a size that holds no block), kUnavailable (cap).
  static base::Result<std::unique_ptr<DiskTier>> open(const DiskTierConfig& config, const kv::PoolShape& shape,
                                                      base::Accounts& accounts);
  // Writes what was taken.
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  // Bytes of buffers and tables, for the plan.
  static uint64_t bytes(uint64_t block_bytes, uint32_t blocks, uint64_t file_bytes);

  // Takes note of what happened to the index. Call it while the ledger cannot change, and save() before the
  // bytes of blocks that left can be written over.
  void follow(const kv::Ledger& ledger);
  void save(const kv::View& view);
  // Lets all of the index leave, parents first.
  void follow_to_end(const kv::Ledger& ledger);
  // Saves what leaves until the time has come, and waits for the writer.
  void save_all(const kv::View& view, int64_t deadline_us);

  // Of the full blocks of a text, in order.
  std::vector<DiskKey> keys(const kv::Namespace& space, std::span<const TokenId> tokens) const;
  // The blocks in the file with which the keys begin, at most `most`.
  std::vector<Place> find(std::span<const DiskKey> keys, size_t most);
  // Fills a block. False: damaged; its bytes are garbage.
  bool read(const Place& place, const kv::View& view, BlockId block) const;
  // So many blocks were read in so many seconds.
  void note_read(size_t blocks, double seconds);
  // The place goes with its release.
  void note_damaged(const Place& place);
  void release(std::span<const Place> places);
  // Releases what was found, and is computed all the same.
  void refuse(std::span<const Place> places);

  uint64_t block_bytes() const { return shape_.block_bytes(); }
  uint32_t block_tokens() const { return block_tokens_; }
  // Of reads so far; 0: none yet.
  double bytes_per_s() const { return rate_; }
  KvDiskStats stats() const;

 private:
  enum class SlotState : uint8_t { kFree, kWriting, kReady, kHeld };
  struct Slot {
    DiskKey key{};
    uint64_t use = 0;  // order of leaving
    uint32_t holds = 0;
    SlotState state = SlotState::kFree;
    bool is_damaged = false;
  };
  struct Leaving {
    BlockId block{};
    DiskKey key{};
  };
  struct Job {
    std::byte* buffer = nullptr;  // null: everything is to be forgotten
    uint32_t slot = 0;
    DiskKey key{};
    uint64_t number = 0;
  };
  struct KeyHash {
    size_t operator()(const DiskKey& key) const;
  };

  DiskTier(SlotFile file, const kv::PoolShape& shape, const DiskTierConfig& config);
  void restore();
  void forget_keys();
  void wipe();
  bool wait_for_buffers(size_t n, int64_t deadline_us);
  bool choose_slot(const DiskKey& key, Job& job);
  void touch(uint32_t slot);
  void set_state(uint32_t slot, SlotState state);
  void free_slot(uint32_t slot);
  void hand_over(const Leaving& leaving, const kv::View& view);
  void write_behind();
  void done(const Job& job, bool is_written);

  SlotFile file_;
  const kv::PoolShape shape_;
  const uint32_t block_tokens_;
  base::Arena staging_;

  // Engine thread only.
  std::vector<DiskKey> keys_;   // by block, where known
  std::vector<bool> is_known_;  // registered, and under which key
  std::vector<Leaving> leaving_;
  uint64_t seen_ = 0;  // events of the ledger
  double rate_ = 0;
  bool wipes_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable work_, idle_;
  std::deque<Job> jobs_;
  std::vector<std::byte*> buffers_;  // free ones
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::unordered_map<DiskKey, uint32_t, KeyHash> index_;
  std::map<uint64_t, uint32_t> order_;  // ready slots by use
  uint64_t uses_ = 0;
  KvDiskStats stats_;
  bool is_over_ = false, is_broken_ = false;

  std::thread writer_;
};

}  // namespace tally::engine
