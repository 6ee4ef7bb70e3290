#include "serve/cache_pages.h"

#include "serve/openai/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace tally::serve {
namespace {

using State = engine::BlockMap::State;

constexpr size_t kEventsMax = 1000;  // in one answer

std::string_view state_name(State state) {
  return state == State::kFree ? "free" : state == State::kHeld ? "held" : "cached";
}

// The sums of a block map. Extents: runs of neighbouring ids. Blocks are taken one by one wherever they are,
// so extents cost nothing here; they tell what an allocator of contiguous ranges would have to work with.
struct Sums {
  size_t free = 0, held = 0, cached = 0, shared = 0, registered = 0;
  uint64_t stored_tokens = 0, waste_tokens = 0;  // of held blocks
  size_t longest_free = 0, longest_used = 0, free_extents = 0, used_extents = 0;
};

Sums sum_up(const engine::BlockMap& map) {
  Sums s;
  size_t run = 0;
  for (size_t id = 0; id < map.blocks.size(); ++id) {
    const engine::BlockMap::Block& block = map.blocks[id];
    const bool is_free = block.state == State::kFree;
    (is_free ? s.free : block.state == State::kHeld ? s.held : s.cached) += 1;
    s.registered += block.registered;
    s.shared += block.owners >= 2;
    if (block.state == State::kHeld) {
      s.stored_tokens += block.tokens;
      s.waste_tokens += map.block_tokens - block.tokens;
    }
    const bool goes_on = id > 0 && is_free == (map.blocks[id - 1].state == State::kFree);
    run = goes_on ? run + 1 : 1;
    if (!goes_on) ++(is_free ? s.free_extents : s.used_extents);
    size_t& longest = is_free ? s.longest_free : s.longest_used;
    longest = std::max(longest, run);
  }
  return s;
}

// Unfilled rows of the held blocks, had they been cut into blocks of `size` tokens.
uint64_t waste_at(const engine::BlockMap& map, uint32_t size) {
  uint64_t waste = 0;
  for (const engine::BlockMap::Block& block : map.blocks)
    if (block.state == State::kHeld) waste += (size - block.tokens % size) % size;
  return waste;
}

void write_fragmentation(openai::Writer& w, const engine::BlockMap& map, const Sums& s) {
  const uint64_t slots = s.stored_tokens + s.waste_tokens;
  const double share = slots > 0 ? static_cast<double>(s.waste_tokens) / static_cast<double>(slots) : 0;
  w.key("fragmentation").begin_object();
  w.key("longest_free_extent").value(s.longest_free).key("free_extents").value(s.free_extents);
  w.key("longest_used_extent").value(s.longest_used).key("used_extents").value(s.used_extents);
  w.key("internal_waste_share").value(share);
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

// The value of since; nothing given: 0.
std::optional<ApiError> read_since(std::string_view query, uint64_t& since) {
  bool seen = false;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    if (pair.substr(0, pair.find('=')) != "since") continue;
    const std::string_view value = pair.substr(std::min(pair.size(), std::string_view("since=").size()));
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), since);
    if (seen || error != std::errc() || end != value.data() + value.size())
      return ApiError{Code::kInvalidValue, "since must be given once, as a whole number from 0.", "since"};
    seen = true;
  }
  return std::nullopt;
}

}  // namespace

PageResult page_blocks(const Desk& desk) {
  const engine::BlockMap map = desk.backend.engine->block_map();
  const Sums s = sum_up(map);
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
  uint64_t since = 0;
  if (auto error = read_since(query, since)) return {.body = {}, .error = std::move(error)};
  const engine::KvEvents events = desk.backend.engine->kv_events(since, kEventsMax);
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
