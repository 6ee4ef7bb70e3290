#include "measure/load.h"

#include "measure/scripted_server_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>

namespace tally::measure {
namespace {

using nlohmann::json;

// Speaks enough of the protocol: a word's id is its length times 1000 and a sum of its letters.
class Server {
 public:
  explicit Server(bool tells_ids = true, int first_ms = 2)
      : tells_ids_(tells_ids),
        first_ms_(first_ms),
        server_([this](Talk& talk, const Heard& heard) { answer(talk, heard); }) {}

  std::string url() const { return server_.url(); }
  std::vector<json> bodies() {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }
  std::atomic<int> resets{0};

 private:
  void answer(Talk& talk, const Heard& heard) {
    if (heard.path == "/v1/models") return talk.answer(200, R"({"data":[{"id":"m","owned_by":"scripted"}]})");
    if (heard.path == "/reset_prefix_cache") return ++resets, talk.answer(200, "{}");
    if (heard.path == "/tokenize" && tells_ids_) {
      uint32_t id = 0;
      for (const char c : json::parse(heard.body)["prompt"].get<std::string>())
        id = id * 31 + static_cast<uint8_t>(c);
      return talk.answer(200, json{{"tokens", {id % 1'000'000}}}.dump());
    }
    if (heard.path != "/v1/completions")
      return talk.answer(404, R"({"error":{"message":"no","code":"not_found"}})");
    const json body = json::parse(heard.body);
    {
      const std::lock_guard lock(mutex_);
      bodies_.push_back(body);
    }
    talk.wait(first_ms_);
    const auto tokens = body["max_tokens"].get<uint32_t>();
    talk.begin_events();
    for (uint32_t i = 0; i < tokens; ++i) talk.token();
    talk.end_events(body["prompt"].is_array() ? static_cast<uint32_t>(body["prompt"].size()) : 7, tokens);
  }

  bool tells_ids_;
  int first_ms_;
  std::mutex mutex_;
  std::vector<json> bodies_;
  ScriptedServer server_;
};

LoadSpec small(std::vector<ServerAddress> servers) {
  LoadSpec spec;
  spec.servers = std::move(servers);
  spec.workload = {.name = "random", .requests = 12, .prompt_tokens = 20, .output_tokens = 3};
  return spec;
}

TEST(LoadBench, SendsEqualRequestsToEveryServer) {
  Server a, b;
  const auto bench = LoadBench::open(small({{"a", a.url()}, {"b", b.url()}}));
  ASSERT_TRUE(bench.has_value()) << bench.error().message;
  EXPECT_TRUE((*bench)->servers()[0].takes_ids);
  EXPECT_EQ((*bench)->servers()[1].model, "m");
  LoadLive live;
  const LoadBlock of_a = (*bench)->run(0, {false, 3}, 0, live), of_b = (*bench)->run(1, {false, 3}, 0, live);
  EXPECT_EQ(a.resets, 2);  // asked for once when they met
  std::multiset<std::string> asked_a, asked_b;
  for (const json& body : a.bodies()) asked_a.insert(body.dump());
  for (const json& body : b.bodies()) asked_b.insert(body.dump());
  EXPECT_EQ(asked_a.size(), 12u);
  EXPECT_EQ(asked_a, asked_b);
  EXPECT_EQ(of_a.run.head["workload"]["sha256"], of_b.run.head["workload"]["sha256"]);
  const json body = a.bodies()[0];
  EXPECT_EQ(body["min_tokens"], 3);
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["cache_salt"], "s1-0");
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_FALSE(body["stream_options"].contains("include_tally"));  // not a tally
  // Another repetition: none of its prompts begins as one before.
  (*bench)->run(0, {false, 3}, 1, live);
  std::set<std::string> starts;
  for (const json& each : a.bodies())
    starts.insert(json(std::vector<json>(each["prompt"].begin(), each["prompt"].begin() + 8)).dump());
  EXPECT_EQ(starts.size(), 24u);
}

TEST(LoadBench, WritesTheHeadOfARun) {
  Server server;
  LoadSpec spec = small({{"", server.url()}});
  spec.slo.ttft_s = 10;
  const auto bench = LoadBench::open(spec);
  ASSERT_TRUE(bench.has_value()) << bench.error().message;
  LoadLive live;
  (*bench)->warm_up(0, live);
  for (const Level& level : {Level{false, 2}, Level{true, 200}}) {
    const LoadBlock block = (*bench)->run(0, level, 0, live);
    EXPECT_EQ(block.figures.completed, 12u);
    const json& head = block.run.head;
    for (const char* key : {"schema", "started", "status", "valid", "invalid_reasons", "warnings", "settings",
                            "client_settings", "machine", "model", "workload", "results", "by_class",
                            "by_concurrency", "stats_method"})
      EXPECT_TRUE(head.contains(key)) << key;
    EXPECT_EQ(head["status"], "complete");
    EXPECT_EQ(head["client_settings"]["loop"], level.is_open ? "open" : "closed");
    for (const char* key : {"median_ttft_ms", "output_throughput", "request_goodput", "client_lag_p99_ms",
                            "peak_rss_anon_bytes", "prefix_hit_ratio", "preemptions", "majflt", "steal_ratio",
                            "backend", "request_rate"})
      EXPECT_TRUE(head["results"].contains(key)) << key;
    EXPECT_EQ(head["results"]["total_output_tokens"], 36);
    EXPECT_EQ(head["results"]["prompt_tokens_off_ratio"], 0.);
    EXPECT_TRUE(head["results"]["peak_rss_anon_bytes"].is_number());  // this very process
    EXPECT_GT(block.run.memory.size(), 0u);
    const json& reasons = head["invalid_reasons"];
    for (const char* never : {"length", "cache", "failed"})
      EXPECT_EQ(reasons.dump().find(never), std::string::npos) << reasons;
  }
}

TEST(LoadBench, FallsBackToWords) {
  Server server(false);
  const auto bench = LoadBench::open(small({{"", server.url()}}));
  ASSERT_TRUE(bench.has_value());
  ASSERT_EQ((*bench)->notes().size(), 1u);
  EXPECT_NE((*bench)->notes()[0].find("prompts are words"), std::string::npos);
  LoadLive live;
  const LoadBlock block = (*bench)->run(0, {false, 2}, 0, live);
  EXPECT_EQ(block.figures.completed, 12u);
  const auto prompt = server.bodies()[0]["prompt"].get<std::string>();
  EXPECT_GE(std::count(prompt.begin(), prompt.end(), ' '), 12);
}

TEST(LoadBench, SaysWhatIsWrongBeforeItBegins) {
  Server server;
  const auto refusal = [&](auto change) {
    LoadSpec spec = small({{"", server.url()}});
    change(spec);
    const auto bench = LoadBench::open(spec);
    EXPECT_FALSE(bench.has_value());
    return bench.has_value() ? base::Error{} : bench.error();
  };
  const auto missing = refusal([](LoadSpec& s) { s.workload.name = "no/such.jsonl"; });
  EXPECT_EQ(missing.code, base::ErrorCode::kNoInput);
  EXPECT_NE(missing.message.find("shared-prefix"), std::string::npos);
  EXPECT_EQ(refusal([](LoadSpec& s) { s.servers[0].url = "ftp://x"; }).code, base::ErrorCode::kUsage);
  EXPECT_EQ(refusal([](LoadSpec& s) { s.arrival.kind = Arrival::kTrace; }).code, base::ErrorCode::kUsage);
  std::string gone;
  {
    gone = Server().url();
  }
  const auto nobody = refusal([&](LoadSpec& s) { s.servers[0].url = gone; });
  EXPECT_EQ(nobody.code, base::ErrorCode::kUnavailable);
  EXPECT_NE(nobody.message.find("refused"), std::string::npos) << nobody.message;
}

TEST(Blocks, AreJoinedOneAfterTheOther) {
  LoadBlock first, second;
  RequestRecord r;
  r.outcome = Outcome::kCompleted, r.sent_s = r.planned_s = 1, r.end_s = 3, r.events = {{2, 1}, {3, 1}};
  first.run.requests = second.run.requests = {r};
  const auto joined = join_blocks({&first, &second});
  ASSERT_EQ(joined.size(), 2u);
  EXPECT_EQ(joined[1].planned_s, 4);
  EXPECT_EQ(joined[1].events[1].at_s, 6);
  EXPECT_EQ(*request_figures(joined[1]).ttft_s, *request_figures(joined[0]).ttft_s);
  EXPECT_EQ(server_order(2, 0), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(server_order(2, 1), (std::vector<size_t>{1, 0}));
}

// A server that takes `most` and not a bit more.
std::pair<double, uint32_t> search(Level first, double most) {
  CapacitySearch search(first);
  uint32_t steps = 0;
  for (auto level = search.next(); level; level = search.next()) {
    Figures f;
    f.completed = 100, f.duration_s = 10;
    f.goodput = level->value <= most ? 10 : 9.4;
    search.tell(f);
    EXPECT_LT(++steps, 40u);
  }
  return {search.knee() ? search.knee()->value : 0, steps};
}

TEST(CapacitySearch, FindsTheKnee) {
  for (const double most : {1., 5., 8., 9., 100.}) {
    EXPECT_EQ(search({false, 1}, most).first, most);
    EXPECT_EQ(search({false, 64}, most).first, most);
  }
  for (const double most : {.07, .5, 3.3, 40.}) {
    const double knee = search({true, 1}, most).first;
    EXPECT_LE(knee, most);
    EXPECT_GE(knee * 1.1, most);
  }
  EXPECT_EQ(search({false, 4}, 0).first, 0);
  EXPECT_EQ(search({true, 4}, 0).first, 0);
}

}  // namespace
}  // namespace tally::measure
