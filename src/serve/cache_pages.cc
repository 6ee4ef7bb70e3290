#include "serve/cache_pages.h"

#include "serve/block_sums.h"
#include "serve/openai/writer.h"
#include "serve/query.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tally::serve {
namespace {

using State = engine::BlockMap::State;

constexpr size_t kEventsMax = 1000;  // in one answer

std::string_view state_name(State state) {
  return state == State::kFree ? "free" : state == State::kHeld ? "held" : "cached";
}

// Unfilled rows of the held blocks, had they been cut into blocks of `size` tokens.
uint64_t waste_at(const engine::BlockMap& map, uint32_t size) {
  uint64_t waste = 0;
  for (const engine::BlockMap::Block& block : map.blocks)
    if (block.state == State::kHeld) waste += (size - block.tokens % size) % size;
  return waste;
}

void write_fragmentation(openai::Writer& w, const engine::BlockMap& map, const BlockSums& s) {
  w.key("fragmentation").begin_object();
  w.key("longest_free_extent").value(s.longest_free).key("free_extents").value(s.free_extents);
  w.key("longest_used_extent").value(s.longest_used).key("used_extents").value(s.used_extents);
  w.key("internal_waste_share").value(s.waste_share());
  // A block that has just been taken is waste of the size at hand, and of no smaller one.
  w.key("internal_waste_tokens_by_block_tokens").begin_object();
  for (uint32_t size = 16; size < map.block_tokens; size *= 2)
    w.key(std::to_string(size)).value(waste_at(map, size));
  w.key(std::to_string(map.block_tokens)).value(s.waste_tokens);
  w.end_object().end_object();
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

void write_event(openai::Writer& w, const engine::KvEvent& event, uint32_t block_tokens) {
  using Kind = engine::KvEvent::Kind;
  w.begin_object().key("sequence").value(event.sequence);
  if (event.kind == Kind::kAllBlocksCleared) {
    w.key("type").value("AllBlocksCleared").end_object();
    return;
  }
  const bool stored = event.kind == Kind::kBlockStored;
  w.key("type").value(stored ? "BlockStored" : "BlockRemoved");
  w.key("block_hashes").begin_array().value(hex(event.hash)).end_array();
  if (stored) {
    w.key("parent_block_hash");
    event.has_parent ? w.value(hex(event.parent_hash)) : w.null();
    w.key("token_ids").begin_array();
    for (const TokenId id : event.tokens) w.value(raw(id));
    w.end_array().key("block_size").value(block_tokens).key("lora_id").null();
  }
  w.key("namespace").value(hex(event.space)).key("block_id").value(event.block).end_object();
}

}  // namespace

PageResult page_blocks(const Desk& desk) {
  const engine::BlockMap map = desk.backend.engine->block_map();
  const BlockSums s = sum_up(map);
  openai::Writer w;
  w.begin_object().key("block_tokens").value(map.block_tokens).key("total").value(map.blocks.size());
  w.key("free").value(s.free).key("held").value(s.held).key("cached").value(s.cached);
  w.key("shared").value(s.shared).key("registered").value(s.registered);
  w.key("internal_waste_tokens").value(s.waste_tokens);
  write_fragmentation(w, map, s);
  w.key("blocks").begin_array();
  for (size_t id = 0; id < map.blocks.size(); ++id) {
    const engine::BlockMap::Block& block = map.blocks[id];
    w.begin_object().key("id").value(id).key("state").value(state_name(block.state));
    w.key("owners").value(block.owners).key("tokens").value(block.tokens);
    w.key("age_steps").value(block.age_steps).key("registered").value(block.registered).end_object();
  }
  w.end_array().end_object();
  return {.body = w.take(), .error = {}};
}

PageResult page_kv_events(const Desk& desk, const std::string& query) {
  std::optional<uint64_t> since;
  if (auto error = read_query(query, {{"since", &since}})) return {.body = {}, .error = std::move(error)};
  const engine::KvEvents events = desk.backend.engine->kv_events(since.value_or(0), kEventsMax);
  const uint32_t block_tokens = desk.backend.engine->info().block_tokens;
  openai::Writer w;
  w.begin_object().key("first_sequence").value(events.first).key("last_sequence").value(events.last);
  w.key("dropped").value(events.dropped).key("block_size").value(block_tokens);
  w.key("events").begin_array();
  for (const engine::KvEvent& event : events.events) write_event(w, event, block_tokens);
  w.end_array().end_object();
  return {.body = w.take(), .error = {}};
}

}  // namespace tally::serve
