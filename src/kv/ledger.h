#pragma once
// Who owns which block of the KV pool, and which blocks can be found again by their tokens (the prefix
// index). Pure bookkeeping, single-threaded: no bytes, no clock (ticks are passed in), no iteration order
// that depends on addresses. Source: docs/scheduler.md.
//
// | state  | owners | registered | may be written                        |
// | free   | 0      | no         | no                                    |
// | held n | n >= 1 | no         | iff n = 1, rows at and after the fill |
// | cached | 0      | yes        | no                                    |
// | both n | n >= 1 | yes        | no                                    |
//
// | move       | from -> to                                          | when                               |
// | take       | free -> held 1, generation + 1                      | growth, admission                  |
// | share      | held n -> held n+1; both n -> both n+1              | fork                               |
// | hit        | cached -> both 1; both n -> both n+1                | prefix match, tokens compared      |
// | register   | held n -> both n                                    | full and committed                 |
// | drop       | n -> n-1; the last: held -> free, both -> cached    | end, cancel, preempt               |
// | copy       | a source with n >= 2 loses one, a block is taken    | first write into a shared tail     |
// |            | an entry is hit, a block is taken, the entry dropped| prefix match inside a block        |
// | evict      | cached -> free, leaves only                         | take, when none is free            |
// | unregister | both n -> held n; cached -> free                    | reset; take, when only owned ones  |
// |            |                                                     | below keep a cached one from going |
//
// Any other move is a CHECK. check() recounts invariants L1 ... L10 of the reference.
// Eviction order: cached leaves by (last-use tick, deeper first, id). Free list: last freed first, then
// ascending ids.

#include "base/ids.h"
#include "kv/block_ages.h"
#include "kv/block_state.h"
#include "kv/block_table.h"
#include "kv/event_ring.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tally::kv {

// SHA-256 of (tenant, salt): sequences share blocks only inside one.
using Namespace = std::array<uint64_t, 4>;

struct LedgerConfig {
  uint32_t blocks = 0, block_tokens = 64;
  bool prefix_cache = true;
  uint32_t hash_bits = 64;  // tests cut it: outputs must not change
  uint32_t events_kept = 0;
};

struct LedgerStats {
  uint32_t total = 0, free = 0, held = 0, cached = 0, both = 0, shared = 0;  // shared: two owners or more
  uint64_t evictions = 0, hash_mismatches = 0, waste_tokens = 0;  // waste: unfilled rows of owned blocks
};

// What a full block is found by: same parent entry, same namespace, same ids.
struct BlockKey {
  Handle parent = kRoot;
  const Namespace* space = nullptr;
  std::span<const TokenId> ids;  // block_tokens of them
};

// An entry whose first rows are those of other tokens too.
struct PartialHit {
  Handle entry;
  uint32_t rows = 0;
};

struct BlockInfo {
  BlockState state = BlockState::kFree;
  uint32_t owners = 0, fill = 0, depth = 0;
  Tick last_use = 0;
  uint64_t age_steps = 0;  // steps begun since the last use
};

class Ledger {
 public:
  // Allocates every record. Requires: 1 <= blocks < 2^32 - 1, 1 <= block_tokens, 1 <= hash_bits <= 64.
  explicit Ledger(const LedgerConfig& config);

  // Takes a block with fill 0: a free one, else the first in eviction order. Empty: no room.
  std::optional<Handle> take(Tick now);
  // Adds an owner (a fork).
  void share(Handle block);
  // Gives up one of several owners of `source` for a taken block with the same fill; the caller copies the
  // rows. Empty: no room, nothing changed.
  std::optional<Handle> copy_on_write(Handle source, Tick now);
  // Adds an owner to an entry that find() returned.
  void hit(Handle entry, Tick now);
  // Takes a block for the first `rows` rows of an entry, which the caller copies; the entry is not evicted
  // for it. Empty: no room. Requires: rows < block_tokens.
  std::optional<Handle> copy_rows(Handle entry, uint32_t rows, Tick now);
  // Removes an owner. Drop a sequence's blocks tail first: deeper entries are evicted before their parents.
  void drop(Handle block, Tick now);
  // Moves the fill mark after rows were computed. Requires: held by one, fill grows, at most block_tokens.
  void commit_rows(Handle block, uint32_t fill);
  // CHECKs that rows from `row` on may be written (L4).
  void expect_writable(Handle block, uint32_t row) const;

  // Finds the entry that equals the key. Requires: the parent is an entry, or kRoot.
  std::optional<Handle> find(const BlockKey& key);
  // Finds, among the entries below the key's parent, the one that begins with most of the key's ids (the
  // newest of equals), and how many. Only the newest kSiblingsMax are looked at. Requires: as find(), ids may
  // be fewer.
  std::optional<PartialHit> find_partial(const BlockKey& key) const;
  // Makes a full block findable and returns the entry to continue the chain from: the block itself, or the
  // earlier equal entry (then the block stays unregistered). Requires: prefix cache on, fill = block_tokens,
  // the parent is an entry.
  Handle register_block(Handle block, const BlockKey& key);
  // True if the handle is a registered block of this generation. Stale handles are allowed here.
  bool is_entry(Handle handle) const;
  // Drops every registered block; returns how many became free.
  uint32_t reset_prefix();

  // Blocks that take() can give.
  uint32_t available() const { return count(BlockState::kFree) + count(BlockState::kCached); }
  uint32_t owners(Handle block) const { return record(block).owners; }
  BlockState state(Handle block) const { return record(block).state(); }
  uint32_t blocks() const { return config_.blocks; }
  uint32_t block_tokens() const { return config_.block_tokens; }
  bool prefix_cache() const { return config_.prefix_cache; }
  uint64_t epoch() const { return epoch_; }  // grows with each reset: older sequences register nothing more
  // Register, evict, unregister and reset, in order: replayed from the first, the entries there are.
  const EventRing& events() const { return events_; }
  void begin_step() { ++step_; }  // for ages only: nothing is decided by it
  LedgerStats stats() const;
  BlockInfo info(BlockId id) const;
  const BlockAges& ages() const { return ages_; }  // of blocks evicted, and hit
  std::span<const TokenId> entry_ids(Handle entry) const;  // that it stands for
  const Namespace& entry_space(Handle entry) const;
  uint64_t moves(Move move) const { return moves_[static_cast<size_t>(move)]; }

  // Recounts every invariant against all tables in use: CHECKs. O(blocks * block_tokens).
  void check(std::span<const BlockTable* const> tables) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kSiblingsMax = 256;
  struct Record {
    uint64_t generation = 0, hash = 0, last_step = 0;
    Tick first_use = 0, last_use = 0;  // since it was taken
    Namespace space{};
    Handle parent = kRoot;
    uint32_t owners = 0, fill = 0, depth = 0, children = 0;
    uint32_t free_previous = kNone, free_next = kNone;        // free list
    uint32_t bucket_next = kNone;                             // same bucket of the index
    uint32_t child_first = kNone;                             // entries whose parent this is,
    uint32_t sibling_previous = kNone, sibling_next = kNone;  // and the links among them
    uint32_t heap_at = kNone;                                 // place in leaves_
    bool registered = false;
    BlockState state() const {
      if (registered) return owners > 0 ? BlockState::kBoth : BlockState::kCached;
      return owners > 0 ? BlockState::kHeld : BlockState::kFree;
    }
  };

  uint32_t count(BlockState state) const { return counts_[static_cast<size_t>(state)]; }
  const Record& record(Handle handle) const;
  Record& record(Handle handle);
  std::span<const TokenId> ids_of(uint32_t id) const;
  void apply(uint32_t id, Move move);
  void touch(uint32_t id, Tick now);
  void leave(uint32_t id);
  void enter(uint32_t id);
  void unlink(uint32_t id, Move move, Tick now);
  void unregister_subtree(uint32_t id, Move move_of_cached, Tick now);
  void tell(Event::Kind kind, uint32_t id);
  void make_room(Tick now);
  uint32_t& first_child(Handle parent);
  uint64_t key_hash(const BlockKey& key) const;
  bool equals(uint32_t id, const BlockKey& key) const;
  void index_remove(uint32_t id);
  bool evicts_before(uint32_t a, uint32_t b) const;
  void heap_add(uint32_t id);
  void heap_remove(uint32_t id);
  void heap_sift(uint32_t at);
  void check_lists() const;
  void check_index() const;

  LedgerConfig config_;
  std::vector<Record> records_;
  std::vector<TokenId> ids_;       // [blocks, block_tokens], valid where registered
  std::vector<uint32_t> buckets_;  // power of two, first entry of each bucket
  std::vector<uint32_t> leaves_;   // heap of cached leaves, next to evict first
  uint32_t free_first_ = kNone, root_child_first_ = kNone;
  std::array<uint32_t, 4> counts_{};
  std::array<uint64_t, kMoveCount> moves_{};
  uint32_t shared_ = 0;
  uint64_t waste_tokens_ = 0, hash_mismatches_ = 0, epoch_ = 0, step_ = 0;
  EventRing events_;
  BlockAges ages_;
  bool telling_ = true;  // false inside a reset, which is one event
};

// Bytes a ledger allocates (the plan's "prefix index" line).
size_t ledger_bytes(const LedgerConfig& config);

}  // namespace tally::kv
