#include "measure/report.h"

#include "measure/report_parts.h"
#include "measure/run_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace tally::measure {
namespace {

using nlohmann::json;

NamedRun named(const std::string& label, double level, double throughput, uint64_t seed = 1) {
  NamedRun out{"20261130-" + label, make_run({.prompts_seed = seed, .noise_seed = seed})};
  out.run.head["label"] = label;
  out.run.head["by_concurrency"] = {{{"level", level}, {"open", false}}};
  out.run.head["results"] = {{"output_throughput", throughput}, {"duration", 10.}, {"num_prompts", 60}};
  return out;
}

json step(uint64_t number, int64_t t_us, int64_t length_us, uint64_t prefill, uint64_t decode) {
  return {{"step", number},
          {"t_us", t_us},
          {"duration_us", length_us},
          {"prefill_tokens", prefill},
          {"decode_tokens", decode},
          {"running", 2},
          {"waiting", 1},
          {"weight_bytes", 1000},
          {"kv_bytes", 24},
          {"flops", 4096},
          {"kv_free", 2},
          {"kv_held", 1},
          {"kv_cached", 1},
          {"phases_us", {{"linear", length_us / 2}, {"plan", length_us - length_us / 2}}}};
}

TEST(Report, RoundsToSixDigits) {
  EXPECT_EQ(rounded(1234567.4), 1234567.);
  EXPECT_EQ(rounded(-0.00123456789), -0.00123457);
  EXPECT_EQ(rounded(0), 0);
  EXPECT_EQ(rounded(std::numeric_limits<double>::quiet_NaN()), 0);
  EXPECT_EQ(rounded(1e-300), 1e-300);
}

TEST(Report, DrawsEachValueOfAFewAndTheTailOfMany) {
  std::vector<RequestRecord> requests;
  for (uint32_t i = 0; i < 1000; ++i) {
    RequestRecord r;
    r.id = i, r.class_name = "c", r.outcome = Outcome::kCompleted;
    r.events = {{.001 * (i + 1), 1}};
    r.end_s = 2;
    requests.push_back(r);
  }
  const json ttft = distributions_part(requests)["ttft"];
  EXPECT_EQ(ttft["all"], ttft["c"]);
  const json& all = ttft["all"];
  EXPECT_EQ(all["n"], 1000u);
  EXPECT_EQ(all["x"].front(), 1.0);
  EXPECT_EQ(all["x"].back(), 1000.0);
  EXPECT_EQ(all["share"].back(), 1.0);
  ASSERT_LE(all["x"].size(), 201u);
  for (size_t i = 0; i < all["x"].size(); ++i) {  // value k ms is the k-th of a thousand
    EXPECT_DOUBLE_EQ(all["share"][i].get<double>() * 1000, all["x"][i].get<double>());
    if (all["low"][i].is_number()) {
      EXPECT_LE(all["low"][i], all["x"][i]);
    }
    if (all["high"][i].is_number()) {
      EXPECT_GE(all["high"][i], all["x"][i]);
    }
  }
  EXPECT_TRUE(all["high"].back().is_null());  // nothing bounds the largest from above
  EXPECT_EQ(all["x"][all["x"].size() - 40], 961.0);

  requests.resize(7);
  EXPECT_EQ(distributions_part(requests)["ttft"]["all"]["x"], json({1., 2., 3., 4., 5., 6., 7.}));
  requests[0].class_name = "all";  // a name that is taken counts no value twice
  EXPECT_EQ(distributions_part(requests)["ttft"]["all"]["n"], 7u);
}

TEST(Report, TakesRepetitionsTogetherAndFindsTheKnee) {
  std::vector<NamedRun> runs{named("load-c1-r0", 1, 100), named("load-c1-r1", 1, 110, 2),
                             named("load-c4-r0", 4, 390, 3), named("load-c8-r0", 8, 400, 4)};
  const json data = report_json(runs);
  ASSERT_EQ(data["series"].size(), 3u);
  EXPECT_EQ(data["series"][0]["runs"], json({0, 1}));
  EXPECT_EQ(data["series"][0]["name"], "load, 1 user");
  EXPECT_EQ(data["series"][0]["results"]["completed"], 120);
  EXPECT_EQ(data["series"][2]["name"], "load, 8 users");
  ASSERT_EQ(data["sweep"]["arms"].size(), 1u);
  const json& arm = data["sweep"]["arms"][0];
  EXPECT_EQ(arm["points"][0]["throughput"], json({100., 105., 110.}));
  EXPECT_EQ(arm["knee"], 4.);  // 390 is within 5 % of 400

  for (NamedRun& run : runs) run.run.head["results"]["request_goodput"] = 6.;
  runs[3].run.head["results"]["request_goodput"] = 5.;
  EXPECT_EQ(report_json(runs)["sweep"]["arms"][0]["knee"], 4.);
  runs[2].run.head["results"]["request_goodput"] = 5.;
  EXPECT_EQ(report_json(runs)["sweep"]["arms"][0]["knee"], 1.);
}

TEST(Report, NamesArmsByWhatTellsThemApart) {
  std::vector<NamedRun> runs{named("load-c4-r0", 4, 1), named("load-c4-r0", 4, 2)};
  EXPECT_EQ(report_json(runs)["series"].size(), 1u);
  runs[0].run.head["model"]["kv_type"] = "bf16", runs[1].run.head["model"]["kv_type"] = "int8";
  json series = report_json(runs)["series"];
  ASSERT_EQ(series.size(), 2u);
  EXPECT_EQ(series[0]["name"], "bf16");
  EXPECT_EQ(series[1]["name"], "int8");
  runs[1].run.head["label"] = "live-b2", runs[0].run.head["label"] = "live-a11";
  series = report_json(runs)["series"];
  EXPECT_EQ(series[0]["name"], "live-a, bf16");
  runs[0].run.head["label"] = "kv-r1-base", runs[1].run.head["label"] = "kv-r12-kv-type int8";
  EXPECT_EQ(report_json(runs)["series"][0]["name"], "base, bf16");
  EXPECT_EQ(report_json(runs)["series"][1]["name"], "kv-type int8, int8");
  EXPECT_EQ(series[1]["name"], "live-b, int8");
}

TEST(Report, TiesTheClockOfTheStepsToTheRequests) {
  measure::Run run = make_run({});
  EXPECT_FALSE(run_clock(run));
  run.steps = {step(5, 1'000'500, 100, 8, 0)};
  run.requests.front().http_status = 0;  // one that no server saw
  run.requests[1].sent_s = .25;
  const auto guessed = run_clock(run);
  ASSERT_TRUE(guessed && !guessed->error_s);
  EXPECT_EQ(guessed->server_us_at_0, 750'500);
  run.head["clock"] = {{"server_us_at_0", 1'000'000}, {"error_us", 40}};
  const auto tied = run_clock(run);
  ASSERT_TRUE(tied);
  EXPECT_DOUBLE_EQ(tied->error_s.value_or(0), 40e-6);
  const RunStep first = run_steps(run).front();
  EXPECT_DOUBLE_EQ(first.begin_s, 500e-6);
  EXPECT_DOUBLE_EQ(first.length_s, 100e-6);
  EXPECT_DOUBLE_EQ(first.forward_s(), 50e-6);
  EXPECT_EQ(first.kind, StepKind::kPrefill);
  EXPECT_EQ(first.kv_held_share, .25);
}

TEST(Report, KeepsTheLongestStepsOfALongRun) {
  measure::Run run = make_run({});
  for (uint64_t i = 0; i < 2'400; ++i)
    run.steps.push_back(step(i + 1, static_cast<int64_t>(i * 1000), i == 777 ? 900 : 100, i % 2, 1));
  const json part = steps_part(run, run_steps(run));
  EXPECT_EQ(part["of"], 2'400u);
  EXPECT_EQ(part["kinds"][0]["kind"], "decode");
  EXPECT_EQ(part["kinds"][0]["steps"], 1'200u);
  ASSERT_LE(part["t"].size(), 1202u);
  const auto& steps = part["step"].get_ref<const json::array_t&>();
  EXPECT_NE(std::find(steps.begin(), steps.end(), json(778)), steps.end());
  EXPECT_TRUE(std::is_sorted(part["t"].begin(), part["t"].end()));
  const json roof = roofline_part(run, run_steps(run));
  EXPECT_EQ(roof["kinds"][0]["intensity"], 4.);
  EXPECT_LE(roof["kinds"][0]["dots"].size(), 250u);
}

TEST(Report, StacksMemoryAgainstThePlan) {
  measure::Run run = make_run({});
  for (int i = 0; i < 100; ++i) {
    MemorySample m;
    m.at_s = .1 * i;
    m.rss_anon = i == 50 ? 1100 : 1000;
    if (i == 10)
      m.accounts = {{"weights", 600},
                    {"kv", 300},
                    {"planned", {{"weights", 590}}},
                    {"planned_bytes", 1010},
                    {"cap_bytes", 4000}};
    run.memory.push_back(m);
  }
  const json part = memory_part(run);
  EXPECT_EQ(part["planned_bytes"], 1010.);
  EXPECT_EQ(part["cap_bytes"], 4000.);
  EXPECT_EQ(part["accounts"]["kv"].front(), nullptr);  // not known before the first page
  EXPECT_EQ(part["accounts"]["kv"].back(), 300.);
  EXPECT_EQ(*std::max_element(part["rss_anon"].begin(), part["rss_anon"].end()), 1100.);
  EXPECT_EQ(part["rows"][0], json({{"name", "weights"}, {"planned", 590.}, {"measured", {600., 600.}}}));
  EXPECT_EQ(part["rows"][2], json({{"name", "all"}, {"planned", 1010.}, {"measured", {1000., 1100.}}}));
}

TEST(Report, SaysWhyAPictureIsEmpty) {
  const NamedRun bare{"bare", {.head = {{"schema", 1}}, .requests = {}, .steps = {}, .memory = {}}};
  const json data = report_json({&bare, 1});
  for (const char* part : {"timeline", "memory", "steps", "roofline", "gaps", "slowest"})
    EXPECT_FALSE(data["runs"][0][part].value("why", "").empty()) << part;
  EXPECT_FALSE(data["sweep"].value("why", "").empty());
}

TEST(Report, TakesLinesThatHoldSomethingElse) {
  measure::Run run = make_run({});
  run.head["clock"] = "noon", run.head["by_concurrency"] = "many",
  run.head["machine"]["roof_bytes_per_s"] = json::array();
  run.steps = {json::object(),
               {{"t_us", "now"}},
               {{"t_us", 5}, {"phases_us", 3}, {"duration_us", -7}, {"kind", {}}},
               {{"t_us", 1e300}, {"step", 1e300}, {"kv_held", 1e300}, {"phases_us", {{"linear", "long"}}}}};
  run.requests[3].receipt = {{"queue_ms", "long"}, {"prefill_ms", -4}};
  run.requests[4].receipt = "none";
  MemorySample m;
  m.accounts = {{"weights", "heavy"}, {"planned", 3}}, m.load = {{"running", {}}};
  run.memory.push_back(m);
  const NamedRun odd{"odd", run};
  EXPECT_EQ(report_json({&odd, 1})["runs"][0]["steps"]["of"], 2u);
}

TEST(Report, PageHoldsNothingThatRunsSay) {
  NamedRun hostile = named("load-c1-r0", 1, 100);
  const std::string attack =
      "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)> {{script}} \xff";
  hostile.name = attack, hostile.run.head["label"] = attack, hostile.run.requests[0].class_name = attack;
  hostile.run.requests[1].outcome = Outcome::kFailed, hostile.run.requests[1].error = attack;
  const std::string page = report_page(report_json({&hostile, 1}));
  const auto count = [&](std::string_view what) {
    size_t n = 0;
    for (size_t at = page.find(what); at != std::string::npos; at = page.find(what, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("<script"), 2u);
  EXPECT_EQ(count("</script"), 2u);
  EXPECT_EQ(count("<img"), 0u);
  EXPECT_EQ(count("<!--"), 0u);
  EXPECT_EQ(count("{{script}}"), count("alert(1)"));  // of the data, not filled in again
  const std::string_view mark = "id=\"data\">";
  const size_t from = page.find(mark) + mark.size();
  const json data = json::parse(page.substr(from, page.find("</script>", from) - from));
  EXPECT_EQ(data["runs"][0]["requests"]["class"][0].get<std::string>(),
            attack.substr(0, attack.size() - 1) + "\xef\xbf\xbd");
}

}  // namespace
}  // namespace tally::measure
