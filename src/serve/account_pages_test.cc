// The pages of accounts and steps: what they say of bookings, blocks and steps, and who may ask.
#include "base/sha256.h"
#include "serve/rig_test_support.h"

namespace tally::serve {
namespace {

using nlohmann::json;
using State = engine::BlockMap::State;

TEST(AccountPages, AccountsSumUp) {
  Rig rig;
  rig.engine.map.block_tokens = 64;
  rig.engine.map.blocks.resize(4);
  rig.engine.map.blocks[0] = {.state = State::kHeld, .owners = 1, .tokens = 64};
  rig.engine.map.blocks[1] = {.state = State::kHeld, .owners = 1, .tokens = 6};
  rig.engine.map.blocks[2] = {.state = State::kCached, .registered = true, .tokens = 64};
  rig.engine.map.sequence_tokens = {70};
  const Reply reply = rig.get("/v1/accounts");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.field("cache-control"), "no-store");
  const json page = json::parse(reply.body);
  int64_t reserved = 0;
  for (const char* name : {"weights", "kv", "activations", "runtime"}) {
    const json& account = page["accounts"][name];
    for (const char* key : {"planned_bytes", "reserved_bytes", "used_bytes", "peak_bytes"})
      EXPECT_TRUE(account[key].is_number()) << name << key;
    reserved += account["reserved_bytes"].get<int64_t>();
  }
  EXPECT_EQ(page["reserved_bytes"], reserved);
  EXPECT_EQ(page["unaccounted_bytes"], page["measured_rss_anon_bytes"].get<int64_t>() +
                                           page["measured_swap_bytes"].get<int64_t>() - reserved);
  EXPECT_EQ(page["cap_bytes"], int64_t{1} << 30);
#if defined(TALLY_INSTRUMENTED)
  EXPECT_EQ(page["allocator"]["heap_used_bytes"].get<int64_t>(), 0);  // a sanitizer's allocator is not asked
#else
  EXPECT_GT(page["allocator"]["heap_used_bytes"].get<int64_t>(), 0);
#endif
  EXPECT_EQ(page["blocks"]["held"], 2);
  EXPECT_EQ(page["blocks"]["cached"], 1);
  const json& f = page["fragmentation"];
  EXPECT_NEAR(f["internal_waste_share"].get<double>(), 58. / 128, 1e-9);
  EXPECT_EQ(f["sequences"], 1);
  EXPECT_NE(f["verdict"].get<std::string>().find("45.3 % of held KV is unwritten tail"), std::string::npos)
      << f;
}

// A body that is being read is on the books.
TEST(AccountPages, RequestsAreBookedWhileTheyAreHeld) {
  Rig rig;
  rig.engine.frozen = true;
  const auto booked = [&] {
    const json page = json::parse(rig.get("/v1/accounts").body);
    const json parts = page["accounts"]["runtime"]["parts"];
    return parts.contains("requests") ? parts["requests"]["reserved_bytes"].get<int64_t>() : 0;
  };
  ASSERT_TRUE(eventually([&] { return booked() > 0; }));
  const int64_t before = booked();
  constexpr int64_t kBytes = 3 << 20;
  Client client(rig.port());
  client.send(Rig::post_bytes(
      "/v1/completions",
      R"({"model":"tiny","prompt":[5],"max_tokens":5,"user":null,"x":")" + std::string(kBytes, 'a') + "\"}"));
  EXPECT_TRUE(eventually([&] { return booked() > before + kBytes; }));
  rig.engine.frozen = false;
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_TRUE(eventually([&] { return booked() < before + kBytes; }));
}

TEST(AccountPages, StepsAreTheLog) {
  Rig rig;
  for (uint64_t step = 1; step <= 1005; ++step) {
    engine::StepRecord r{.step = step, .begin_us = static_cast<int64_t>(step), .duration_us = 8};
    r.prefill_rows = step == 1 ? 4 : 0, r.decode_rows = step == 1 ? 0 : 2;
    r.recompute_rows = step == 1005 ? 1 : 0, r.flops = 7, r.weight_bytes = 11, r.kv_bytes = 13;
    r.phases_us.fill(1);
    rig.engine.step_log.add(r);
  }
  json page = json::parse(rig.get("/v1/steps").body);
  EXPECT_EQ(page["steps"].size(), 1000u);  // an answer has an end
  EXPECT_EQ(page["first_step"], 1);
  EXPECT_EQ(page["last_step"], 1005);
  EXPECT_EQ(page["dropped"], false);
  page = json::parse(rig.get("/v1/steps?since=1003").body);
  ASSERT_EQ(page["steps"].size(), 2u);
  const json& step = page["steps"][1];
  EXPECT_EQ(step["step"], 1005);
  EXPECT_EQ(step["kind"], "mixed");
  EXPECT_EQ(step["recompute_tokens"], 1);
  EXPECT_EQ(step["flops"], 7);
  EXPECT_EQ(step["weight_bytes"], 11);
  EXPECT_EQ(step["kv_bytes"], 13);
  EXPECT_TRUE(step["predicted_us"].is_null());
  EXPECT_EQ(step["phases_us"].size(), engine::kPhases);
  EXPECT_EQ(page["steps"][0]["kind"], "decode");
  EXPECT_EQ(json::parse(rig.get("/v1/steps?last=1").body)["steps"], json::array({step}));
  EXPECT_EQ(json::parse(rig.get("/v1/steps?last=99999999999").body)["steps"].size(), 1000u);
  EXPECT_EQ(json::parse(rig.get("/v1/steps?since=2000").body)["dropped"], true);
  for (const char* bad :
       {"since=-1", "since=", "last=x", "since=1&since=2", "since=1&last=2", "last=99999999999999999999"})
    EXPECT_EQ(rig.get(std::string("/v1/steps?") + bad).status, 400) << bad;
}

TEST(AccountPages, NeedAKeyThatMayAdministrate) {
  RigOptions options;
  options.settings.api_keys = {{"admin", base::hex(base::sha256("a"))},
                               {"user", base::hex(base::sha256("u"))}};
  const Rig rig(options);
  for (const char* path : {"/v1/accounts", "/v1/steps"}) {
    EXPECT_EQ(rig.get(path).status, 401);
    EXPECT_EQ(rig.get(path, "Authorization: Bearer u\r\n").status, 403);
    EXPECT_EQ(rig.get(path, "Authorization: Bearer a\r\n").status, 200);
  }
}

}  // namespace
}  // namespace tally::serve
