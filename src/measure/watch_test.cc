#include "measure/watch.h"

#include "measure/machine.h"
#include "measure/scripted_server_test_support.h"
#include "measure/watch_proc.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace tally::measure {
namespace {

constexpr std::string_view kPage =
    "# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n"
    "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 2\n"
    "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 1\n"
    "vllm:num_requests_waiting{engine=\"0\"} 4\n"
    "vllm:kv_cache_usage_perc 0.25\n"
    "tally_kv_blocks{state=\"free\"} 6\ntally_kv_blocks{state=\"held\"} 3\ntally_kv_blocks{state=\"cached\"} "
    "1\n"
    "tally_kv_block_bytes 1000\ntally_kv_internal_waste_bytes 600\n"
    "tally_model_info{model=\"m\",sha256=\"ab\",weight_type=\"Q4_1\"} 1\n"
    "vllm:prompt_tokens_total 1.5e3\nvllm:prompt_tokens_total_x 7\nnonsense\nbad{ "
    "1\nvllm:num_preemptions_total x\n";

TEST(Metrics, AreRead) {
  const ServerMetrics m = parse_metrics(kPage);
  EXPECT_EQ(m.running, 3.);
  EXPECT_EQ(m.waiting, 4.);
  EXPECT_EQ(m.kv_usage, .25);
  EXPECT_EQ(m.kv_held, 3.);
  EXPECT_EQ(m.kv_free, 6.);
  EXPECT_EQ(m.prompt_tokens, 1500.);
  EXPECT_FALSE(m.preemptions.has_value());
  EXPECT_NEAR(*m.kv_utilisation(), .8, 1e-12);
  EXPECT_EQ(m.model["sha256"], "ab");
  EXPECT_EQ(m.load_json()["kv_cached"], 1.);
}

TEST(Metrics, AreAbsentWithoutThem) {
  const ServerMetrics m = parse_metrics("");
  EXPECT_FALSE(m.running || m.kv_utilisation());
  EXPECT_TRUE(m.load_json().empty());
  for (size_t cut = 0; cut < kPage.size(); ++cut)
    parse_metrics(kPage.substr(0, cut));  // never beyond the end
}

TEST(Pages, OfAccountsAndStepsGiveWhatIsStored) {
  const nlohmann::json accounts = accounts_summary(
      R"({"accounts":{"kv":{"planned_bytes":6,"reserved_bytes":7,"parts":{}},"odd":3},"planned_bytes":9,"cap_bytes":12,"unaccounted_bytes":-2,"x":1})");
  EXPECT_EQ(accounts, nlohmann::json({{"kv", 7},
                                      {"planned", {{"kv", 6}}},
                                      {"planned_bytes", 9},
                                      {"cap_bytes", 12},
                                      {"unaccounted_bytes", -2}}));
  EXPECT_TRUE(accounts_summary("{}").is_null());
  EXPECT_TRUE(accounts_summary("no JSON").is_null());

  EXPECT_EQ(last_step_of(R"({"last_step":99,"steps":[{"step":7,"kind":"decode"},{"step":8,"t_us":5}]})"), 8u);
  EXPECT_EQ(last_step_of(R"({"last_step":99,"steps":[]})"), 0u);
  EXPECT_EQ(last_step_of(R"({"step":)"), 0u);
  EXPECT_EQ(steps_path(12), "/v1/steps?since=12");
}

TEST(Proc, KnowsThisProcess) {
  const ScriptedServer server([](Talk&, const Heard&) {});
  const auto endpoint = resolve(server.url(), "");
  EXPECT_EQ(listener_of(endpoint->address.port()), ::getpid());
  MemorySample sample;
  read_process_memory(::getpid(), sample);
  EXPECT_GT(sample.rss_anon.value_or(0), 100'000u);
  const auto times = process_times(::getpid());
  ASSERT_TRUE(times.has_value());
  EXPECT_FALSE(process_times(0).has_value());
  EXPECT_FALSE(listener_of(1).has_value());
  const double before_s = thread_cpu_s();
  volatile double x = 1;
  while (thread_cpu_s() - before_s < .02) x = x * 1.0000001;
  EXPECT_GE(machine_times().busy_s, .02);
}

TEST(Endpoint, IsAUrl) {
  const auto plain = resolve("http://127.0.0.1:8000", "");
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->host, "127.0.0.1:8000");
  EXPECT_EQ(plain->prefix, "");
  EXPECT_TRUE(plain->is_loopback());
  EXPECT_EQ(resolve("http://127.0.0.1/v1/", "")->prefix, "");
  EXPECT_EQ(resolve("http://127.0.0.1/v1/", "")->address.port(), 80);
  EXPECT_EQ(resolve("http://127.0.0.1:1/a/b", "")->prefix, "/a/b");
  EXPECT_TRUE(resolve("http://[::1]:81", "")->is_loopback());
  const auto tls = resolve("https://localhost/v1", "");
  ASSERT_TRUE(tls.has_value());
  EXPECT_EQ(tls->address.port(), 443);
  EXPECT_EQ(tls->name, "localhost");
  EXPECT_NE(tls->tls, nullptr);
  EXPECT_FALSE(tls->is_name_an_address);
  EXPECT_TRUE(resolve("https://[::1]:81", "")->is_name_an_address);
  EXPECT_EQ(plain->tls, nullptr);
  for (const char* bad : {"", "127.0.0.1", "ftp://127.0.0.1", "http://", "https://", "http://:80",
                          "http://a:b", "http://a:0", "http://a:70000", "http://127.0.0.1/\r\nx: y"}) {
    const auto refused = resolve(bad, "");
    ASSERT_FALSE(refused.has_value()) << bad;
    EXPECT_EQ(refused.error().code, base::ErrorCode::kUsage);
    EXPECT_NE(refused.error().message.find("http://HOST"), std::string::npos);
  }
  const std::string request =
      request_bytes(*resolve("http://127.0.0.1:1/a", "k"), {.method = "POST", .path = "/x", .body = "{}"});
  EXPECT_TRUE(request.starts_with("POST /a/x HTTP/1.1\r\nHost: 127.0.0.1:1\r\n"));
  EXPECT_NE(request.find("Authorization: Bearer k\r\n"), std::string::npos);
  EXPECT_TRUE(request.ends_with("Content-Length: 2\r\n\r\n{}"));
}

}  // namespace
}  // namespace tally::measure
