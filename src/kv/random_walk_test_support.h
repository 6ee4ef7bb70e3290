#pragma once
// Sequences that use a ledger at random, for the tests of the room.

#include "kv/ledger.h"

#include <initializer_list>
#include <vector>

namespace tally::kv {

using Ids = std::vector<TokenId>;

inline constexpr Namespace kSpace{1, 2, 3, 4};

inline Ids ids_of(std::initializer_list<int> list) {
  Ids out;
  for (const int i : list) out.push_back(TokenId{i});
  return out;
}

inline void drop_all(Ledger& ledger, BlockTable& table, Tick now) {
  while (!table.empty()) {
    ledger.drop(table.back(), now);
    table.pop();
  }
}

// A few sequences that fork, write, register, hit and end at random, with a recount after each move.
class RandomWalk {
 public:
  explicit RandomWalk(uint32_t hash_bits, uint32_t events_kept = 0)
      : ledger_({12, 2, true, hash_bits, events_kept}), walkers_(5) {}

  void step(uint32_t dice) {
    Walker& w = walkers_[dice % walkers_.size()];
    ++now_;
    dice /= 8;
    switch (dice % 12) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
        write(w, static_cast<int>(dice / 16 % 2));
        break;
      case 6:
      case 7:
        fork(w, walkers_[dice / 16 % walkers_.size()]);
        break;
      case 8:
        match(w, dice / 16);
        break;
      case 9:
      case 10:
        end(w);
        break;
      default:
        if (dice / 16 % 8 == 0) reset();
    }
    std::vector<const BlockTable*> tables;
    for (const Walker& each : walkers_) tables.push_back(&each.table);
    ledger_.check(tables);
  }

  // Every sequence ends, every entry is dropped.
  void finish() {
    for (Walker& each : walkers_) end(each);
    reset();
    ledger_.check({});
  }

  const Ledger& ledger() const { return ledger_; }

 private:
  struct Walker {
    BlockTable table;
    std::vector<Handle> chain;
    Ids ids;
    uint64_t epoch = 0;
  };

  // One more token; the shared tail is copied before.
  void write(Walker& w, int token) {
    const uint32_t row = static_cast<uint32_t>(w.ids.size() % 2);
    if (row == 0) {
      const auto block = ledger_.take(now_);
      if (!block) return end(w);
      if (w.table.empty()) w.epoch = ledger_.epoch();
      w.table.push(*block);
    } else if (ledger_.owners(w.table.back()) > 1) {
      const auto copy = ledger_.copy_on_write(w.table.back(), now_);
      if (!copy) return end(w);
      w.table.pop();
      w.table.push(*copy);
    }
    ledger_.expect_writable(w.table.back(), row);
    w.ids.push_back(TokenId{token});
    ledger_.commit_rows(w.table.back(), row + 1);
    if (row == 1) register_full(w);
  }

  void register_full(Walker& w) {
    if (w.epoch != ledger_.epoch()) return;
    while (!w.chain.empty() && !ledger_.is_entry(w.chain.back())) w.chain.pop_back();
    for (size_t i = w.chain.size(); i < w.ids.size() / 2; ++i) {
      const Handle parent = i == 0 ? kRoot : w.chain.back();
      w.chain.push_back(
          ledger_.register_block(w.table[i], {parent, &kSpace, std::span(w.ids).subspan(2 * i, 2)}));
    }
  }

  void fork(const Walker& from, Walker& to) {
    if (&from == &to) return;
    end(to);
    for (uint32_t i = 0; i < from.table.size(); ++i) ledger_.share(from.table[i]);
    to = from;
  }

  void match(Walker& w, uint32_t dice) {
    end(w);
    w.epoch = ledger_.epoch();
    for (; dice > 0; dice /= 4) {
      const Ids ids = ids_of({static_cast<int>(dice % 2), static_cast<int>(dice / 2 % 2)});
      const auto entry = ledger_.find({w.chain.empty() ? kRoot : w.chain.back(), &kSpace, ids});
      if (!entry) return;
      ledger_.hit(*entry, now_);
      w.table.push(*entry);
      w.chain.push_back(*entry);
      w.ids.insert(w.ids.end(), ids.begin(), ids.end());
    }
  }

  void end(Walker& w) {
    drop_all(ledger_, w.table, now_);
    w = Walker{};
  }

  void reset() { ledger_.reset_prefix(); }

  Ledger ledger_;
  std::vector<Walker> walkers_;
  Tick now_ = 0;
};

}  // namespace tally::kv
