// Snapshots: taken from a server, read from bytes that nobody vouches for, and compared.
#include "measure/snapshot.h"

#include "measure/scripted_server_test_support.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tally::measure {
namespace {

using nlohmann::json;

json snapshot(int64_t pool_used, std::vector<std::string> states) {
  json blocks = json::array();
  for (const std::string& state : states) blocks.push_back({{"state", state}});
  const json kv = {{"planned_bytes", 100},
                   {"reserved_bytes", 100},
                   {"used_bytes", pool_used},
                   {"peak_bytes", 100},
                   {"parts", {{"pool", {{"reserved_bytes", 100}}}}}};
  return {{"schema", 1},
          {"accounts",
           {{"accounts", {{"kv", kv}}},
            {"planned_bytes", 100},
            {"reserved_bytes", 100},
            {"measured_rss_anon_bytes", 100 + pool_used},
            {"measured_rss_file_bytes", 5},
            {"measured_swap_bytes", 0},
            {"unaccounted_bytes", -3}}},
          {"blocks",
           {{"free", 1},
            {"held", pool_used},
            {"cached", 0},
            {"shared", 0},
            {"registered", 0},
            {"blocks", blocks}}}};
}

class Files : public testing::Test {
 protected:
  Files() : path_(testing::TempDir() + "snapshot-" + std::to_string(::getpid()) + ".json") {}
  ~Files() override { std::filesystem::remove(path_); }
  base::Result<json> load(const std::string& text) const {
    std::ofstream(path_) << text;
    return load_snapshot(path_);
  }
  const std::string path_;
};

TEST_F(Files, DiffTellsWhatChanged) {
  const json a = load(snapshot(1, {"free", "held", "free"}).dump()).value();
  const json b = load(snapshot(4, {"held", "held", "free", "cached"}).dump()).value();
  const json diff = diff_snapshots(a, b);
  EXPECT_EQ(diff["totals"]["measured_rss_anon_bytes"], json({101, 104, 3}));
  EXPECT_EQ(diff["totals"]["unaccounted_bytes"], json({-3, -3, 0}));
  EXPECT_EQ(diff["accounts"]["kv"]["used_bytes"], json({1, 4, 3}));
  EXPECT_EQ(diff["parts"]["kv/pool"], json({100, 100, 0}));
  EXPECT_EQ(diff["blocks"]["held"], json({1, 4, 3}));
  EXPECT_EQ(diff["changed_blocks"], 2);  // the first, and one that was not there
  json gone = b;
  gone["accounts"]["accounts"].erase("kv");
  EXPECT_EQ(diff_snapshots(b, gone)["accounts"]["kv"]["reserved_bytes"], json({100, 0, -100}));
}

TEST_F(Files, SaysWhatIsWrong) {
  const auto refusal = [&](auto change) {
    json s = snapshot(1, {"free"});
    change(s);
    const auto loaded = load(s.dump());
    EXPECT_FALSE(loaded.has_value());
    return loaded.has_value() ? "" : loaded.error().message;
  };
  EXPECT_NE(refusal([](json& s) { s["schema"] = 2; }).find("schema"), std::string::npos);
  EXPECT_NE(refusal([](json& s) { s["accounts"]["planned_bytes"] = "x"; }).find("accounts.planned_bytes"),
            std::string::npos);
  EXPECT_NE(refusal([](json& s) { s["accounts"]["planned_bytes"] = UINT64_MAX; }).find("planned_bytes"),
            std::string::npos);
  EXPECT_NE(refusal([](json& s) { s["accounts"]["accounts"]["kv"]["parts"]["pool"] = 3; }).find("pool"),
            std::string::npos);
  EXPECT_NE(refusal([](json& s) { s["accounts"]["accounts"]["kv"] = json::array(); }).find("kv"),
            std::string::npos);
  EXPECT_NE(refusal([](json& s) { s["blocks"].erase("free"); }).find("blocks.free"), std::string::npos);
  EXPECT_NE(refusal([](json& s) { s["blocks"]["blocks"] = 1; }).find("block map"), std::string::npos);
  EXPECT_EQ(load("[1]").error().code, base::ErrorCode::kBadData);
  EXPECT_EQ(load("{").error().code, base::ErrorCode::kBadData);
  EXPECT_EQ(load_snapshot(path_ + "x").error().code, base::ErrorCode::kNoInput);
}

TEST_F(Files, IsTakenFromAServer) {
  const json whole = snapshot(2, {"held"});
  bool has_blocks = true;
  ScriptedServer server([&](Talk& talk, const Heard& heard) {
    if (heard.path == "/v1/accounts") return talk.answer(200, whole["accounts"].dump());
    if (heard.path == "/v1/blocks" && has_blocks) return talk.answer(200, whole["blocks"].dump());
    if (heard.path == "/v1/settings") return talk.answer(200, "{}");
    talk.answer(403, "{}");
  });
  const auto taken = take_snapshot(server.url(), "");
  ASSERT_TRUE(taken.has_value()) << taken.error().message;
  EXPECT_EQ((*taken)["accounts"], whole["accounts"]);
  EXPECT_TRUE(load(taken->dump()).has_value());
  has_blocks = false;
  const auto refused = take_snapshot(server.url(), "");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, base::ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().message.find("/v1/blocks: HTTP 403"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(take_snapshot("nowhere", "").error().code, base::ErrorCode::kUsage);
}

}  // namespace
}  // namespace tally::measure
