// The recount: every invariant of the ledger from the records and the tables alone, trusting no counter.

#include "base/check.h"
#include "kv/ledger.h"

namespace tally::kv {

// L2, L5 (no id twice in a table), L8.
void Ledger::check(std::span<const BlockTable* const> tables) const {
  std::vector<uint32_t> owners(config_.blocks, 0), seen_in(config_.blocks, 0);
  for (uint32_t t = 0; t < tables.size(); ++t) {
    const BlockTable& table = *tables[t];
    for (uint32_t i = 0; i < table.size(); ++i) {
      const uint32_t id = raw(table[i].id);
      record(table[i]);
      TALLY_CHECK(seen_in[id] != t + 1, "L5: a block twice in one table", id, t);
      seen_in[id] = t + 1;
      ++owners[id];
    }
  }
  for (uint32_t id = 0; id < config_.blocks; ++id) {
    TALLY_CHECK(owners[id] == records_[id].owners, "L2: block, its owners, tables that name it", id,
                records_[id].owners, owners[id]);
  }
  check_lists();
  check_index();
}

// L1, L3, and the heap of cached leaves.
void Ledger::check_lists() const {
  std::array<uint32_t, 4> counts{};
  uint32_t shared = 0, leaves = 0;
  uint64_t waste = 0;
  for (uint32_t id = 0; id < config_.blocks; ++id) {
    const Record& r = records_[id];
    ++counts[static_cast<size_t>(r.state())];
    shared += r.owners >= 2 ? 1 : 0;
    TALLY_CHECK(r.fill <= config_.block_tokens, "fill", id, r.fill);
    if (r.owners > 0) waste += config_.block_tokens - r.fill;
    const bool leaf = r.state() == BlockState::kCached && r.children == 0;
    TALLY_CHECK(leaf == (r.heap_at != kNone), "a cached leaf and nothing else is in the eviction order", id,
                r.heap_at);
    if (!leaf) continue;
    ++leaves;
    TALLY_CHECK(r.heap_at < leaves_.size() && leaves_[r.heap_at] == id, "place in the eviction order", id,
                r.heap_at);
    TALLY_CHECK(r.heap_at == 0 || !evicts_before(id, leaves_[(r.heap_at - 1) / 2]), "eviction order", id,
                r.heap_at);
  }
  TALLY_CHECK(counts == counts_, "L1: counts of free, held, cached, both", counts_[0], counts_[1], counts_[2],
              counts_[3]);
  TALLY_CHECK(shared == shared_ && waste == waste_tokens_ && leaves == leaves_.size(),
              "counts of shared, waste, leaves", shared, shared_, waste, waste_tokens_, leaves,
              leaves_.size());
  uint32_t length = 0, previous = kNone;
  for (uint32_t id = free_first_; id != kNone; previous = id, id = records_[id].free_next) {
    TALLY_CHECK(records_[id].state() == BlockState::kFree, "L3: not free but in the free list", id);
    TALLY_CHECK(records_[id].free_previous == previous, "L3: links of the free list", id, previous);
    TALLY_CHECK(++length <= counts[0], "L3: free list longer than the free blocks", length, counts[0]);
  }
  TALLY_CHECK(length == counts[0], "L3: free list shorter than the free blocks", length, counts[0]);
}

// L6, and the tree the parent edges make.
void Ledger::check_index() const {
  uint32_t registered = 0, indexed = 0, roots = 0;
  for (uint32_t id = 0; id < config_.blocks; ++id) {
    const Record& r = records_[id];
    uint32_t children = 0;
    for (uint32_t c = r.child_first; c != kNone; c = records_[c].sibling_next) {
      TALLY_CHECK(raw(records_[c].parent.id) == id && records_[c].registered, "L6: child of another", id, c);
      TALLY_CHECK(++children <= r.children, "L6: more children than counted", id, r.children);
    }
    TALLY_CHECK(children == r.children, "L6: children", id, children, r.children);
    if (!r.registered) {
      TALLY_CHECK(children == 0, "L6: entry below a block that is not one", id);
      continue;
    }
    ++registered;
    roots += r.parent == kRoot ? 1 : 0;
    TALLY_CHECK(config_.prefix_cache && r.fill == config_.block_tokens, "L6: registered but not full", id,
                r.fill);
    const BlockKey key{r.parent, &r.space, ids_of(id)};
    if (r.parent != kRoot) {
      const Record& p = record(r.parent);
      TALLY_CHECK(p.registered && p.space == r.space && r.depth == p.depth + 1, "L6: parent", id,
                  raw(r.parent.id));
    }
    TALLY_CHECK(key_hash(key) == r.hash, "L6: hash", id);
    bool found = false;
    for (uint32_t other = buckets_[r.hash & (buckets_.size() - 1)]; other != kNone;
         other = records_[other].bucket_next) {
      found |= other == id;
      TALLY_CHECK(other == id || records_[other].hash != r.hash || !equals(other, key),
                  "L6: two equal entries", id, other);
    }
    TALLY_CHECK(found, "L6: entry not in the index", id);
  }
  for (uint32_t id = root_child_first_; id != kNone; id = records_[id].sibling_next) {
    TALLY_CHECK(records_[id].registered && records_[id].parent == kRoot, "L6: not an entry without parent",
                id);
    TALLY_CHECK(roots-- > 0, "L6: more entries without parent than counted", id);
  }
  TALLY_CHECK(roots == 0, "L6: entries without parent that are not linked", roots);
  for (const uint32_t bucket : buckets_) {
    for (uint32_t id = bucket; id != kNone; id = records_[id].bucket_next) {
      TALLY_CHECK(records_[id].registered, "L6: in the index but not registered", id);
      TALLY_CHECK(++indexed <= registered, "L6: index longer than the entries", indexed, registered);
    }
  }
  TALLY_CHECK(indexed == registered, "L6: index and entries", indexed, registered);
}

}  // namespace tally::kv
