#include "kv/ledger.h"

#include "base/check.h"

#include <bit>

namespace tally::kv {

namespace {

// The table of the door as data: every change of a record goes through one of these rows.
struct MoveRule {
  BlockState from;
  uint32_t owners_min, owners_max;  // before the move
  int32_t owners_change;
  bool registered_after;
};

constexpr uint32_t kMany = UINT32_MAX;
constexpr std::array<MoveRule, kMoveCount> kRules = {{
    {BlockState::kFree, 0, 0, 1, false},       // take
    {BlockState::kHeld, 1, kMany, 1, false},   // share
    {BlockState::kBoth, 1, kMany, 1, true},    // share
    {BlockState::kCached, 0, 0, 1, true},      // hit
    {BlockState::kBoth, 1, kMany, 1, true},    // hit
    {BlockState::kHeld, 1, kMany, 0, true},    // register
    {BlockState::kHeld, 2, kMany, -1, false},  // drop
    {BlockState::kHeld, 1, 1, -1, false},      // drop: free
    {BlockState::kBoth, 2, kMany, -1, true},   // drop
    {BlockState::kBoth, 1, 1, -1, true},       // drop: cached
    {BlockState::kCached, 0, 0, 0, false},     // evict
    {BlockState::kBoth, 1, kMany, 0, false},   // unregister
    {BlockState::kCached, 0, 0, 0, false},     // unregister: free
}};

size_t bucket_count(uint32_t blocks) { return std::bit_ceil(static_cast<size_t>(blocks)); }

}  // namespace

size_t ledger_bytes(const LedgerConfig& config) {
  constexpr size_t record_bytes = 192;  // checked against the record below
  const size_t n = config.blocks;
  return n * (record_bytes + sizeof(TokenId) * config.block_tokens + sizeof(uint32_t)) +
         bucket_count(config.blocks) * sizeof(uint32_t) +
         EventRing::bytes(config.events_kept, config.block_tokens);
}

Ledger::Ledger(const LedgerConfig& config)
    : config_(config), events_(config.events_kept, config.block_tokens) {
  static_assert(sizeof(Record) <= 192, "ledger_bytes counts 192 bytes a record");
  TALLY_CHECK(config.blocks >= 1 && config.blocks < kNone, "blocks of the pool", config.blocks);
  TALLY_CHECK(config.block_tokens >= 1, "tokens of a block", config.block_tokens);
  TALLY_CHECK(config.hash_bits >= 1 && config.hash_bits <= 64, "bits of the hash", config.hash_bits);
  records_.resize(config.blocks);
  ids_.resize(size_t{config.blocks} * config.block_tokens);
  buckets_.assign(bucket_count(config.blocks), kNone);
  leaves_.reserve(config.blocks);
  for (uint32_t id = config.blocks; id-- > 0;) enter(id);
}

const Ledger::Record& Ledger::record(Handle handle) const {
  const uint32_t id = raw(handle.id);
  TALLY_CHECK(id < config_.blocks, "no such block", id, config_.blocks);
  const Record& r = records_[id];
  TALLY_CHECK(r.generation == handle.generation, "stale handle: block, its generation, the handle's", id,
              r.generation, handle.generation);
  return r;
}

Ledger::Record& Ledger::record(Handle handle) {
  return const_cast<Record&>(static_cast<const Ledger*>(this)->record(handle));
}

void Ledger::touch(uint32_t id, Tick now) {
  records_[id].last_use = now;
  records_[id].last_step = step_;
}

// Takes a block out of whatever counts and lists its present state puts it in. enter() is the reverse.
void Ledger::leave(uint32_t id) {
  Record& r = records_[id];
  --counts_[static_cast<size_t>(r.state())];
  if (r.owners >= 2) --shared_;
  if (r.owners >= 1) waste_tokens_ -= config_.block_tokens - r.fill;
  if (r.state() == BlockState::kFree) {
    if (r.free_previous != kNone) records_[r.free_previous].free_next = r.free_next;
    if (r.free_next != kNone) records_[r.free_next].free_previous = r.free_previous;
    if (free_first_ == id) free_first_ = r.free_next;
    r.free_previous = r.free_next = kNone;
  }
  if (r.heap_at != kNone) heap_remove(id);
}

void Ledger::enter(uint32_t id) {
  Record& r = records_[id];
  const BlockState state = r.state();
  ++counts_[static_cast<size_t>(state)];
  if (r.owners >= 2) ++shared_;
  if (state == BlockState::kFree) {
    r.fill = 0;
    r.free_next = free_first_;
    if (free_first_ != kNone) records_[free_first_].free_previous = id;
    free_first_ = id;
  }
  if (r.owners >= 1) waste_tokens_ += config_.block_tokens - r.fill;
  if (state == BlockState::kCached && r.children == 0) heap_add(id);
}

void Ledger::apply(uint32_t id, Move move) {
  const MoveRule& rule = kRules[static_cast<size_t>(move)];
  Record& r = records_[id];
  TALLY_CHECK(r.state() == rule.from && r.owners >= rule.owners_min && r.owners <= rule.owners_max,
              "illegal move: block, move, state, owners", id, static_cast<int>(move),
              static_cast<int>(r.state()), r.owners);
  ++moves_[static_cast<size_t>(move)];
  leave(id);
  r.owners = static_cast<uint32_t>(static_cast<int64_t>(r.owners) + rule.owners_change);
  r.registered = rule.registered_after;
  enter(id);
}

std::optional<Handle> Ledger::take(Tick now) {
  if (free_first_ == kNone) {
    if (count(BlockState::kCached) == 0) return std::nullopt;
    make_room(now);
  }
  const uint32_t id = free_first_;
  Record& r = records_[id];
  ++r.generation;
  r.first_use = now;
  touch(id, now);
  apply(id, Move::kTake);
  return Handle{BlockId{id}, r.generation};
}

void Ledger::share(Handle block) {
  const Record& r = record(block);
  apply(raw(block.id), r.registered ? Move::kShareBoth : Move::kShareHeld);
}

std::optional<Handle> Ledger::copy_on_write(Handle source, Tick now) {
  TALLY_CHECK(record(source).owners >= 2, "copy of a block with one owner", raw(source.id));
  const std::optional<Handle> copy = take(now);
  if (!copy) return std::nullopt;
  commit_rows(*copy, record(source).fill);
  drop(source, now);
  return copy;
}

void Ledger::hit(Handle entry, Tick now) {
  const Record& r = record(entry);
  ages_.reuse_gap.observe(now - r.last_use);
  // A cached leaf is reordered by the move below: it leaves the heap under its place, not its key.
  touch(raw(entry.id), now);
  apply(raw(entry.id), r.owners == 0 ? Move::kHitCached : Move::kHitBoth);
}

std::optional<Handle> Ledger::copy_rows(Handle entry, uint32_t rows, Tick now) {
  TALLY_CHECK(rows < config_.block_tokens, "rows of a copy", rows, config_.block_tokens);
  hit(entry, now);
  const std::optional<Handle> copy = take(now);
  if (copy) commit_rows(*copy, rows);
  drop(entry, now);
  return copy;
}

void Ledger::drop(Handle block, Tick now) {
  const Record& r = record(block);
  touch(raw(block.id), now);
  const bool last = r.owners <= 1;
  if (r.registered) {
    apply(raw(block.id), last ? Move::kDropBothLast : Move::kDropBoth);
  } else {
    apply(raw(block.id), last ? Move::kDropHeldLast : Move::kDropHeld);
  }
}

void Ledger::commit_rows(Handle block, uint32_t fill) {
  Record& r = record(block);
  TALLY_CHECK(
      r.state() == BlockState::kHeld && r.owners == 1 && fill >= r.fill && fill <= config_.block_tokens,
      "rows committed to a block that is not written: block, owners, fill, new fill", raw(block.id), r.owners,
      r.fill, fill);
  waste_tokens_ -= fill - r.fill;
  r.fill = fill;
}

void Ledger::expect_writable(Handle block, uint32_t row) const {
  const Record& r = record(block);
  TALLY_CHECK(r.state() == BlockState::kHeld && r.owners == 1 && row >= r.fill && row < config_.block_tokens,
              "write into a block that must not change: block, owners, fill, row", raw(block.id), r.owners,
              r.fill, row);
}

LedgerStats Ledger::stats() const {
  LedgerStats s;
  s.total = config_.blocks;
  s.free = count(BlockState::kFree);
  s.held = count(BlockState::kHeld);
  s.cached = count(BlockState::kCached);
  s.both = count(BlockState::kBoth);
  s.shared = shared_;
  s.evictions = moves(Move::kEvict);
  s.hash_mismatches = hash_mismatches_;
  s.waste_tokens = waste_tokens_;
  return s;
}

BlockInfo Ledger::info(BlockId id) const {
  TALLY_CHECK(raw(id) < config_.blocks, "no such block", raw(id), config_.blocks);
  const Record& r = records_[raw(id)];
  return {r.state(), r.owners, r.fill, r.depth, r.last_use, step_ - r.last_step};
}

}  // namespace tally::kv
