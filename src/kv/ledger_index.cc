// The prefix index: full blocks found again by a chained hash of their ids, and the order in which cached
// ones leave. The hash only finds; equality is same parent entry (id and generation), same namespace, same
// ids, all compared.

#include "base/check.h"
#include "kv/ledger.h"

#include <xxhash.h>

#include <algorithm>

namespace tally::kv {

std::span<const TokenId> Ledger::ids_of(uint32_t id) const {
  return {ids_.data() + size_t{id} * config_.block_tokens, config_.block_tokens};
}

uint64_t Ledger::key_hash(const BlockKey& key) const {
  const uint64_t seed =
      key.parent == kRoot ? XXH3_64bits(key.space->data(), sizeof(Namespace)) : record(key.parent).hash;
  const uint64_t h = XXH3_64bits_withSeed(key.ids.data(), key.ids.size_bytes(), seed);
  return config_.hash_bits == 64 ? h : h & ((uint64_t{1} << config_.hash_bits) - 1);
}

bool Ledger::equals(uint32_t id, const BlockKey& key) const {
  const Record& r = records_[id];
  return r.parent == key.parent && r.space == *key.space && std::ranges::equal(ids_of(id), key.ids);
}

std::optional<Handle> Ledger::find(const BlockKey& key) {
  TALLY_CHECK(key.ids.size() == config_.block_tokens, "ids of a block", key.ids.size(), config_.block_tokens);
  TALLY_CHECK(key.parent == kRoot || is_entry(key.parent), "the parent is not registered",
              raw(key.parent.id));
  const uint64_t hash = key_hash(key);
  for (uint32_t id = buckets_[hash & (buckets_.size() - 1)]; id != kNone; id = records_[id].bucket_next) {
    if (records_[id].hash != hash) continue;
    if (equals(id, key)) return Handle{BlockId{id}, records_[id].generation};
    ++hash_mismatches_;
  }
  return std::nullopt;
}

std::optional<PartialHit> Ledger::find_partial(const BlockKey& key) const {
  TALLY_CHECK(key.parent == kRoot || is_entry(key.parent), "the parent is not registered",
              raw(key.parent.id));
  PartialHit best;
  uint32_t id = key.parent == kRoot ? root_child_first_ : record(key.parent).child_first;
  for (uint32_t looked = 0; id != kNone && looked < kSiblingsMax; id = records_[id].sibling_next, ++looked) {
    if (records_[id].space != *key.space) continue;
    const auto end = std::ranges::mismatch(ids_of(id), key.ids).in2;
    const auto rows = static_cast<uint32_t>(end - key.ids.begin());
    if (rows > best.rows) best = {{BlockId{id}, records_[id].generation}, rows};
  }
  if (best.rows == 0) return std::nullopt;
  return best;
}

uint32_t& Ledger::first_child(Handle parent) {
  return parent == kRoot ? root_child_first_ : record(parent).child_first;
}

Handle Ledger::register_block(Handle block, const BlockKey& key) {
  TALLY_CHECK(config_.prefix_cache, "the prefix cache is off");
  Record& r = record(block);
  const uint32_t id = raw(block.id);
  TALLY_CHECK(r.owners >= 1 && r.fill == config_.block_tokens,
              "register of a block that is not full: block, owners, fill", id, r.owners, r.fill);
  if (const std::optional<Handle> earlier = find(key)) return *earlier;

  r.parent = key.parent;
  r.space = *key.space;
  r.hash = key_hash(key);
  r.depth = 0;
  std::ranges::copy(key.ids, ids_.begin() + static_cast<ptrdiff_t>(size_t{id} * config_.block_tokens));
  if (key.parent != kRoot) {
    Record& p = record(key.parent);
    TALLY_CHECK(p.space == r.space, "parent of another namespace", id, raw(key.parent.id));
    r.depth = p.depth + 1;
    ++p.children;
    if (p.heap_at != kNone) heap_remove(raw(key.parent.id));
  }
  uint32_t& first = first_child(key.parent);
  r.sibling_next = first;
  if (first != kNone) records_[first].sibling_previous = id;
  first = id;
  uint32_t& bucket = buckets_[r.hash & (buckets_.size() - 1)];
  r.bucket_next = bucket;
  bucket = id;
  apply(id, Move::kRegister);
  tell(Event::Kind::kBlockStored, id);
  return block;
}

// A record's part in an event. Call while its parent is known.
void Ledger::tell(Event::Kind kind, uint32_t id) {
  if (!telling_ || config_.events_kept == 0) return;  // simulations keep none
  const Record& r = records_[id];
  Event event{.kind = kind, .block = {BlockId{id}, r.generation}, .hash = r.hash};
  event.space = XXH3_64bits(r.space.data(), sizeof(Namespace));
  if (kind != Event::Kind::kBlockStored) return events_.add(event, {});
  event.parent = r.parent;
  if (r.parent != kRoot) event.parent_hash = record(r.parent).hash;
  events_.add(event, ids_of(id));
}

bool Ledger::is_entry(Handle handle) const {
  if (raw(handle.id) >= config_.blocks) return false;
  const Record& r = records_[raw(handle.id)];
  return r.generation == handle.generation && r.registered;
}

std::span<const TokenId> Ledger::entry_ids(Handle entry) const {
  TALLY_CHECK(is_entry(entry), "not an entry", raw(entry.id));
  return ids_of(raw(entry.id));
}

const Namespace& Ledger::entry_space(Handle entry) const {
  TALLY_CHECK(is_entry(entry), "not an entry", raw(entry.id));
  return records_[raw(entry.id)].space;
}

void Ledger::index_remove(uint32_t id) {
  Record& r = records_[id];
  uint32_t* link = &buckets_[r.hash & (buckets_.size() - 1)];
  while (*link != id) {
    TALLY_CHECK(*link != kNone, "entry missing from its bucket", id);
    link = &records_[*link].bucket_next;
  }
  *link = r.bucket_next;
  r.bucket_next = kNone;
}

// Takes an entry without children out of the index by `move` (evict or unregister).
void Ledger::unlink(uint32_t id, Move move, Tick now) {
  Record& r = records_[id];
  if (move == Move::kEvict) {
    ages_.lifetime.observe(now - r.first_use);
    ages_.idle_before_evict.observe(now - r.last_use);
  }
  TALLY_CHECK(r.registered && r.children == 0, "only a leaf leaves the index: block, children", id,
              r.children);
  tell(Event::Kind::kBlockRemoved, id);
  index_remove(id);
  apply(id, move);
  if (r.sibling_previous != kNone) records_[r.sibling_previous].sibling_next = r.sibling_next;
  if (r.sibling_next != kNone) records_[r.sibling_next].sibling_previous = r.sibling_previous;
  uint32_t& first = first_child(r.parent);
  if (first == id) first = r.sibling_next;
  r.sibling_previous = r.sibling_next = kNone;
  if (r.parent == kRoot) return;
  const uint32_t parent = raw(r.parent.id);
  Record& p = record(r.parent);
  r.parent = kRoot;
  if (--p.children == 0 && p.state() == BlockState::kCached) heap_add(parent);
}

// Takes an entry and all below it out of the index, leaves first. Owned blocks stay with their owners.
void Ledger::unregister_subtree(uint32_t id, Move move_of_cached, Tick now) {
  uint32_t at = id;
  for (;;) {
    while (records_[at].child_first != kNone) at = records_[at].child_first;
    const uint32_t parent = raw(records_[at].parent.id);
    unlink(at, records_[at].owners > 0 ? Move::kUnregisterBoth : move_of_cached, now);
    if (at == id) return;
    at = parent;
  }
}

uint32_t Ledger::reset_prefix() {
  const uint32_t free_before = count(BlockState::kFree);
  telling_ = false;
  for (uint32_t id = config_.blocks; id-- > 0;) {
    if (records_[id].registered) unregister_subtree(id, Move::kUnregisterCached, 0);
  }
  telling_ = true;
  events_.add({.kind = Event::Kind::kAllBlocksCleared}, {});
  ++epoch_;
  return count(BlockState::kFree) - free_before;
}

// Frees one block: the first cached leaf, else the first cached entry that only owned descendants keep from
// being a leaf (a sequence that continued the chain from another's equal entry). Without the second rule a
// sequence could need more than its own blocks. Requires: something is cached.
void Ledger::make_room(Tick now) {
  if (!leaves_.empty()) return unlink(leaves_.front(), Move::kEvict, now);
  uint32_t first = kNone;
  for (uint32_t id = 0; id < config_.blocks; ++id) {
    if (records_[id].state() == BlockState::kCached && (first == kNone || evicts_before(id, first)))
      first = id;
  }
  TALLY_CHECK(first != kNone, "nothing to evict", count(BlockState::kCached));
  unregister_subtree(first, Move::kEvict, now);
}

bool Ledger::evicts_before(uint32_t a, uint32_t b) const {
  const Record& x = records_[a];
  const Record& y = records_[b];
  if (x.last_use != y.last_use) return x.last_use < y.last_use;
  if (x.depth != y.depth) return x.depth > y.depth;
  return a < b;
}

// A binary heap whose members know their place: a hit takes a leaf out of the middle.
void Ledger::heap_add(uint32_t id) {
  records_[id].heap_at = static_cast<uint32_t>(leaves_.size());
  leaves_.push_back(id);
  heap_sift(records_[id].heap_at);
}

void Ledger::heap_remove(uint32_t id) {
  const uint32_t at = records_[id].heap_at;
  const uint32_t last = leaves_.back();
  leaves_.pop_back();
  records_[id].heap_at = kNone;
  if (last == id) return;
  leaves_[at] = last;
  records_[last].heap_at = at;
  heap_sift(at);
}

// Restores the order around place `at`: up while it leaves before its parent, else down.
void Ledger::heap_sift(uint32_t at) {
  const auto swap_places = [this](uint32_t a, uint32_t b) {
    std::swap(leaves_[a], leaves_[b]);
    records_[leaves_[a]].heap_at = a;
    records_[leaves_[b]].heap_at = b;
  };
  while (at > 0 && evicts_before(leaves_[at], leaves_[(at - 1) / 2])) {
    swap_places(at, (at - 1) / 2);
    at = (at - 1) / 2;
  }
  for (;;) {
    uint32_t first = at;
    for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < leaves_.size(); ++child) {
      if (evicts_before(leaves_[child], leaves_[first])) first = child;
    }
    if (first == at) return;
    swap_places(at, first);
    at = first;
  }
}

}  // namespace tally::kv
