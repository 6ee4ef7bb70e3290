// What is told about the cache: sums, extents, waste, events, and who may ask.

#include "base/sha256.h"
#include "serve/rig_test_support.h"

namespace tally::serve {
namespace {

using nlohmann::json;
using State = engine::BlockMap::State;

engine::BlockMap some_map() {
  engine::BlockMap map;
  map.block_tokens = 64;
  map.blocks.resize(9);  // free but for: 2 held, 3 held and registered by two, 4 cached, 7 held
  map.blocks[2] = {.state = State::kHeld, .owners = 1, .tokens = 17, .age_steps = 5};
  map.blocks[3] = {.state = State::kHeld, .registered = true, .owners = 2, .tokens = 64};
  map.blocks[4] = {.state = State::kCached, .registered = true, .tokens = 64};
  map.blocks[7] = {.state = State::kHeld, .owners = 1, .tokens = 32};
  return map;
}

TEST(CachePages, BlocksAddUp) {
  Rig rig;
  rig.engine.map = some_map();
  const json page = json::parse(rig.get("/v1/blocks").body);
  EXPECT_EQ(page["block_tokens"], 64);
  EXPECT_EQ(page["total"], 9);
  EXPECT_EQ(page["free"], 5);
  EXPECT_EQ(page["held"], 3);
  EXPECT_EQ(page["cached"], 1);
  EXPECT_EQ(page["shared"], 1);
  EXPECT_EQ(page["registered"], 2);
  EXPECT_EQ(page["internal_waste_tokens"], 47 + 32);
  const json& f = page["fragmentation"];
  EXPECT_EQ(f["longest_free_extent"], 2);
  EXPECT_EQ(f["free_extents"], 3);
  EXPECT_EQ(f["longest_used_extent"], 3);
  EXPECT_EQ(f["used_extents"], 2);
  EXPECT_NEAR(f["internal_waste_share"].get<double>(), 79.0 / 192, 1e-12);
  EXPECT_EQ(f["internal_waste_tokens_by_block_tokens"], json({{"16", 15}, {"32", 15}, {"64", 79}}));
  ASSERT_EQ(page["blocks"].size(), 9u);
  const json second = {{"id", 2},      {"state", "held"}, {"owners", 1},
                       {"tokens", 17}, {"age_steps", 5},  {"registered", false}};
  EXPECT_EQ(page["blocks"][2], second);
  EXPECT_EQ(page["blocks"][4]["state"], "cached");
  EXPECT_EQ(page["blocks"][8]["state"], "free");
}

TEST(CachePages, AnEmptyMap) {
  Rig rig;
  rig.engine.map.block_tokens = 16;
  const json page = json::parse(rig.get("/v1/blocks").body);
  EXPECT_EQ(page["total"], 0);
  EXPECT_EQ(page["fragmentation"]["internal_waste_share"], 0);
  EXPECT_TRUE(page["blocks"].empty());
}

engine::KvEvents some_events() {
  using Kind = engine::KvEvent::Kind;
  engine::KvEvents events{.first = 3, .last = 6, .dropped = false, .events = {}};
  events.events = {
      {.sequence = 3,
       .kind = Kind::kBlockStored,
       .hash = 0xABC,
       .space = 7,
       .block = 4,
       .tokens = {TokenId{5}}},
      {.sequence = 4,
       .kind = Kind::kBlockStored,
       .hash = 0xFFFFFFFFFFFFFFFF,
       .parent_hash = 0xABC,
       .block = 5,
       .has_parent = true,
       .tokens = {TokenId{6}, TokenId{7}}},
      {.sequence = 5, .kind = Kind::kBlockRemoved, .hash = 0xFFFFFFFFFFFFFFFF, .block = 5, .tokens = {}},
      {.sequence = 6, .kind = Kind::kAllBlocksCleared, .tokens = {}}};
  return events;
}

TEST(CachePages, EventsHaveTheNamesRoutersKnow) {
  Rig rig;
  rig.engine.all_events = some_events();
  const json page = json::parse(rig.get("/v1/kv_events?since=2").body);
  EXPECT_EQ(page["first_sequence"], 3);
  EXPECT_EQ(page["last_sequence"], 6);
  EXPECT_EQ(page["dropped"], false);
  EXPECT_EQ(page["block_size"], 16);
  ASSERT_EQ(page["events"].size(), 4u);
  const json first = {{"sequence", 3},
                      {"type", "BlockStored"},
                      {"block_hashes", {"0000000000000abc"}},
                      {"parent_block_hash", nullptr},
                      {"token_ids", {5}},
                      {"block_size", 16},
                      {"lora_id", nullptr},
                      {"namespace", "0000000000000007"},
                      {"block_id", 4}};
  EXPECT_EQ(page["events"][0], first);
  EXPECT_EQ(page["events"][1]["parent_block_hash"], "0000000000000abc");
  EXPECT_EQ(page["events"][2]["type"], "BlockRemoved");
  EXPECT_EQ(page["events"][2]["block_hashes"], json({"ffffffffffffffff"}));
  EXPECT_EQ(page["events"][3], json({{"sequence", 6}, {"type", "AllBlocksCleared"}}));
}

TEST(CachePages, SinceIsANumberAndOthersAreIgnored) {
  Rig rig;
  rig.engine.all_events = some_events();
  const auto count = [&](const std::string& query) {
    return json::parse(rig.get("/v1/kv_events" + query).body)["events"].size();
  };
  EXPECT_EQ(count(""), 4u);
  EXPECT_EQ(json::parse(rig.get("/v1/kv_events").body)["dropped"], true);  // 1 and 2 are gone
  EXPECT_EQ(count("?since=5"), 1u);
  EXPECT_EQ(count("?x=1&since=6&y"), 0u);
  for (const char* bad : {"?since=", "?since", "?since=-1", "?since=+1", "?since=1.5", "?since=x",
                          "?since=18446744073709551616", "?since=1&since=2", "?since=%31"}) {
    const Reply reply = rig.get(std::string("/v1/kv_events") + bad);
    EXPECT_EQ(reply.status, 400) << bad;
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], "since") << bad;
  }
}

TEST(CachePages, AreForAdministrators) {
  RigOptions options;
  options.settings.api_keys = {{"admin-a", base::hex(base::sha256("a"))},
                               {"bob", base::hex(base::sha256("b"))}};
  Rig rig(options);
  for (const char* path : {"/v1/blocks", "/v1/kv_events"}) {
    EXPECT_EQ(rig.get(path).status, 401);
    EXPECT_EQ(rig.get(path, "Authorization: Bearer b\r\n").status, 403);
    EXPECT_EQ(rig.get(path, "Authorization: Bearer a\r\n").status, 200);
  }
}

}  // namespace
}  // namespace tally::serve
