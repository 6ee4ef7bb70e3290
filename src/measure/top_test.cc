// The terminal page of a server: quantiles between two looks, and drawings that fit whatever terminal there
// is.
#include "measure/top.h"

#include "measure/scripted_server_test_support.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace tally::measure {
namespace {

constexpr std::string_view kMetricsPage = R"(# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{model_name="m",le="0.1"} 10
vllm:time_to_first_token_seconds_bucket{model_name="m",le="0.5"} 30
vllm:time_to_first_token_seconds_bucket{model_name="m",le="+Inf"} 40
vllm:time_to_first_token_seconds_sum{model_name="m"} 7
)";

TEST(TopBuckets, QuantilesOfWhatCameSince) {
  const Buckets now = parse_buckets(kMetricsPage, "vllm:time_to_first_token_seconds");
  ASSERT_EQ(now.size(), 3u);
  EXPECT_NEAR(*bucket_quantile({}, now, .25), .1, 1e-12);
  EXPECT_NEAR(*bucket_quantile({}, now, .5), .3, 1e-12);
  EXPECT_NEAR(*bucket_quantile({}, now, .9), .5, 1e-12);  // above the last edge: at least so much
  const Buckets before{{.1, 10}, {.5, 10}, {std::numeric_limits<double>::infinity(), 10}};
  EXPECT_NEAR(*bucket_quantile(before, now, .5), .1 + .4 * 15 / 20, 1e-12);
  EXPECT_FALSE(bucket_quantile(now, now, .5));
  EXPECT_FALSE(bucket_quantile({}, {}, .5));
}

TEST(TopBuckets, LinesThatAreNone) {
  EXPECT_TRUE(
      parse_buckets("x_bucket{\nx_bucket{le=\"a\"} 1\nx_bucket{le=\"1\"} nan\nx_bucket{le=\"1", "x").empty());
}

TopState made() {
  TopState s;
  s.url = "http://127.0.0.1:8000", s.model = "m";
  s.watched_s = 12, s.running = 3, s.waiting = 1, s.kv_usage = .5, s.preemptions = 0;
  s.prefill_per_s = 1234.5, s.decode_per_s = 56.78;
  s.quantiles = {{"TTFT", .123, .2, .4}, {"ITL", .01, std::nullopt, .02}};
  s.accounts = {{"weights", 100 * 0x1p20, 100 * 0x1p20, 100 * 0x1p20},
                {"kv", 200 * 0x1p20, 200 * 0x1p20, 50 * 0x1p20}};
  s.measured_bytes = 310 * 0x1p20, s.cap_bytes = 0x1p30;
  s.blocks = "####ss..cc";
  s.steps = {
      {StepKind::kPrefill, .03}, {StepKind::kDecode, .01}, {StepKind::kMixed, .02}, {StepKind::kDecode, .01}};
  return s;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST(TopDraw, WhatThereIs) {
  const std::string page = draw_top(made(), {80, 24, false});
  EXPECT_NE(page.find("running 3      waiting 1      preempted 0"), std::string::npos) << page;
  EXPECT_NE(page.find("prefill 1234"), std::string::npos);
  EXPECT_NE(page.find("KV  50.0 % [########################........................]"), std::string::npos)
      << page;
  EXPECT_NE(page.find("TTFT ms  P50 123"), std::string::npos);
  EXPECT_NE(page.find("kv               200.0     200.0      50.0 [######"), std::string::npos);
  EXPECT_NE(page.find("all              300.0     300.0  measured 310.0, cap 1024.0"), std::string::npos);
  EXPECT_NE(page.find("steps, 20.0 ms a column"), std::string::npos);
  EXPECT_NE(page.find("\nPPDMD\n"), std::string::npos) << page;
  EXPECT_NE(page.find("\n####ss..cc\n"), std::string::npos);
  EXPECT_EQ(page.find('\x1b'), std::string::npos);
}

TEST(TopDraw, FitsEveryTerminal) {
  TopState s = made();
  s.blocks.assign(3000, '#');
  s.steps.assign(400, {StepKind::kDecode, .01});
  for (const size_t columns : {1u, 7u, 20u, 80u, 200u})
    for (const size_t rows : {1u, 3u, 10u, 24u, 60u}) {
      const auto lines = lines_of(draw_top(s, {columns, rows, false}));
      EXPECT_LE(lines.size(), rows);
      for (const std::string& line : lines) EXPECT_LE(line.size(), columns) << line;
    }
}

TEST(TopDraw, ColoursAddNoColumns) {
  const std::string page = draw_top(made(), {80, 24, true});
  EXPECT_NE(page.find("\x1b["), std::string::npos);
  std::string plain;
  for (size_t i = 0; i < page.size(); ++i) {
    if (page[i] == '\x1b')
      i = page.find('m', i);
    else
      plain += page[i];
  }
  EXPECT_EQ(plain, draw_top(made(), {80, 24, false}));
}

TEST(TopDraw, NothingKnownIsNoFailure) {
  TopState s;
  s.trouble = "no answer \x1b[2J";
  const std::string page = draw_top(s, {});
  EXPECT_NE(page.find("running -"), std::string::npos);
  EXPECT_EQ(page.find('\x1b'), std::string::npos);  // what a server says moves no terminal
  EXPECT_EQ(top_line(s), "running - waiting - KV - % prefill - decode - tokens/s");
}

TEST(TopWatch, AsksAndCounts) {
  int looks = 0;
  ScriptedServer server([&](Talk& talk, const Heard& heard) {
    if (heard.path == "/metrics") {
      ++looks;
      return talk.answer(200, fmt::format("vllm:num_requests_running 2\nvllm:prompt_tokens_total {}\n"
                                          "vllm:generation_tokens_total {}\n{}",
                                          1000 * looks, 10 * looks, kMetricsPage));
    }
    if (heard.path.starts_with("/v1/steps"))
      return talk.answer(200,
                         R"({"steps": [{"prefill_tokens": 5, "decode_tokens": 0, "duration_us": 2000}, 7]})");
    if (heard.path == "/v1/blocks")
      return talk.answer(
          200,
          R"({"blocks": [{"state": "free", "owners": 0}, {"state": "held", "owners": 2}, {"state": "cached"}, {}]})");
    return talk.answer(404, "{}");
  });
  auto watch = TopWatch::open(server.url(), "");
  ASSERT_TRUE(watch) << watch.error().message;
  ASSERT_TRUE(watch->look());
  EXPECT_FALSE(watch->state().decode_per_s);
  ASSERT_TRUE(watch->look());
  const TopState& s = watch->state();
  EXPECT_EQ(s.running, 2);
  EXPECT_NEAR(*s.prefill_per_s / *s.decode_per_s, 100, 1e-6);
  EXPECT_FALSE(s.quantiles.at(0).p50);  // nothing came between the looks
  ASSERT_EQ(s.steps.size(), 1u);
  EXPECT_EQ(s.blocks, ".sc#");
  EXPECT_TRUE(s.accounts.empty());
}

}  // namespace
}  // namespace tally::measure
