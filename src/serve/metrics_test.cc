// The metrics page: every row has its series from the start, what others read is there, and the document is
// the table.

#include "serve/metrics.h"

#include "serve/rate_window.h"
#include "serve/rig_test_support.h"

#include <fstream>
#include <set>
#include <sstream>

namespace tally::serve {
namespace {

// A row of tests/golden/metrics/readers.txt.
struct Reader {
  std::string consumer, need, type;
  std::vector<std::string> names;  // with (labels)
};

// {a,b} written out.
std::vector<std::string> expanded(const std::string& word) {
  const size_t open = word.find('{'), close = word.find('}');
  if (open == std::string::npos) return {word};
  std::vector<std::string> out;
  std::istringstream parts(word.substr(open + 1, close - open - 1));
  for (std::string part; std::getline(parts, part, ',');)
    for (const std::string& rest : expanded(word.substr(close + 1)))
      out.push_back(word.substr(0, open) + part + rest);
  return out;
}

std::vector<Reader> readers() {
  std::ifstream file("tests/golden/metrics/readers.txt");
  std::vector<Reader> out;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    Reader reader;
    std::string names;
    std::istringstream fields(line);
    std::getline(fields, reader.consumer, ';');
    std::getline(fields, reader.need, ';');
    std::getline(fields, reader.type, ';');
    std::getline(fields, names);
    std::istringstream words(names);
    for (std::string word; words >> word;)
      for (std::string& name : expanded(word)) reader.names.push_back(std::move(name));
    out.push_back(std::move(reader));
  }
  return out;
}

// What is wrong with one name of a reader's, or nothing.
std::string judge(const std::string& page, const std::string& type, const std::string& word, bool must) {
  const size_t labels_at = word.find('(');
  const std::string name = word.substr(0, labels_at);
  const bool exported = page.find("# TYPE " + name + " ") != std::string::npos;
  if (!exported) return must ? name + " is not exported" : "";
  if (page.find("# TYPE " + name + " " + type + "\n") == std::string::npos) return name + " is no " + type;
  if (type == "histogram" && page.find("\n" + name + "_bucket{") == std::string::npos)
    return name + " has no buckets";
  if (labels_at == std::string::npos) return "";
  const size_t series_at = page.find("\n" + name + "{");
  const std::string series = page.substr(series_at, page.find('\n', series_at + 1) - series_at);
  std::istringstream labels(word.substr(labels_at + 1, word.size() - labels_at - 2));
  for (std::string label; std::getline(labels, label, ',');)
    if (series.find(label + "=\"") == std::string::npos) return name + " lacks the label " + label;
  return "";
}

// Series (name and labels, without the value).
std::set<std::string> series(const std::string& page) {
  std::set<std::string> out;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] != '#') {
      EXPECT_TRUE(out.insert(line.substr(0, line.rfind(' '))).second) << line;
    }
  return out;
}

TEST(Metrics, EveryRowIsThereFromTheStart) {
  Rig rig;
  const Reply reply = rig.get("/metrics");
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(reply.field("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const MetricRow& row : kMetrics) {
    const std::string name(row.name);
    if (row.set != MetricSet::kOwn) {
      EXPECT_EQ(reply.body.find("# TYPE " + name + " "), std::string::npos) << name << " was not asked for";
      continue;
    }
    const std::string type = row.type == MetricType::kCounter ? "counter"
                             : row.type == MetricType::kGauge ? "gauge"
                                                              : "histogram";
    EXPECT_NE(reply.body.find("# TYPE " + name + " " + type + "\n"), std::string::npos) << name;
    const std::string first = "\n" + name + (row.type == MetricType::kHistogram ? "_count" : "");
    EXPECT_TRUE(reply.body.find(first + "{") != std::string::npos ||
                reply.body.find(first + " ") != std::string::npos)
        << name;
    EXPECT_EQ(name.ends_with("_total"),
              row.type == MetricType::kCounter || name == "vllm:iteration_tokens_total")
        << name;
  }
  EXPECT_NE(reply.body.find("vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 0"),
            std::string::npos);
  EXPECT_NE(reply.body.find("vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"64\""),
            std::string::npos);
}

// A server that has served one request of each kind, and everyone's names.
TEST(Metrics, WhatOthersReadIsThere) {
  RigOptions options;
  options.settings.metrics.sets = {"vllm-legacy", "llamacpp"};
  Rig rig(options);
  EXPECT_EQ(rig.post("/v1/completions", R"({"model":"tiny","prompt":"x","max_tokens":5,"n":2})").status, 200);
  EXPECT_EQ(
      rig.post("/v1/chat/completions",
               R"({"model":"tiny","messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":3})")
          .status,
      200);
  const std::string page = rig.get("/metrics").body;
  const std::vector<Reader> all = readers();
  EXPECT_EQ(all.size(), 23u);
  for (const Reader& reader : all)
    for (const std::string& name : reader.names)
      EXPECT_EQ(judge(page, reader.type, name, reader.need != "may"), "") << reader.consumer;
  EXPECT_EQ(judge(page, "gauge", "vllm:prompt_tokens_total", true), "vllm:prompt_tokens_total is no gauge");
  EXPECT_EQ(judge(page, "gauge", "vllm:nothing", true), "vllm:nothing is not exported");
  EXPECT_EQ(judge(page, "gauge", "vllm:cache_config_info(block_size,nothing)", true),
            "vllm:cache_config_info lacks the label nothing");
  for (const MetricRow& row : kMetrics)
    EXPECT_NE(page.find("# TYPE " + std::string(row.name) + " "), std::string::npos) << row.name;
  EXPECT_NE(page.find("\nllamacpp:requests_processing "), std::string::npos) << "no labels";
  EXPECT_NE(page.find("\nvllm:gpu_cache_usage_perc{model_name=\"tiny\",engine=\"0\"} "), std::string::npos);
}

TEST(Metrics, I7SeriesStayTheSameWhateverClientsSend) {
  Rig rig;
  const auto before = series(rig.get("/metrics").body);
  for (int i = 0; i < 50; ++i) {
    const std::string name = "name" + std::to_string(i);
    EXPECT_EQ(rig.get("/" + name).status, 404);
    EXPECT_EQ(rig.post("/v1/completions", R"({"model":")" + name + R"(","prompt":"x"})").status, 404);
  }
  rig.post("/v1/completions", R"({"model":"tiny","prompt":"x","max_tokens":5,"user":"someone"})");
  rig.post("/v1/chat/completions",
           R"({"model":"tiny","messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":3})");
  EXPECT_EQ(series(rig.get("/metrics").body), before);
}

TEST(Metrics, CountsWhatHappened) {
  RigOptions options;
  options.engine.next = [](const std::vector<TokenId>&, size_t i) {
    return tiny_tokenizer().encode("one two three", false, false).value().at(i % 3);
  };
  Rig rig(options);
  rig.post("/v1/completions", R"({"model":"tiny","prompt":"x","max_tokens":5})");
  rig.post("/v1/completions", R"({"model":"tiny","prompt":"x","stop":"two"})");
  rig.post("/v1/completions", R"({"model":"other","prompt":"x"})");
  const auto page = [&] { return rig.get("/metrics").body; };
  const auto has = [&](const std::string& line) {
    return page().find("\n" + line + "\n") != std::string::npos;
  };
  EXPECT_TRUE(has("tally_requests_received_total{route=\"completions\"} 3"));
  EXPECT_TRUE(has("tally_requests_refused_total{code=\"model_not_found\"} 1"));
  EXPECT_TRUE(eventually([&] { return has("tally_requests_ended_total{reason=\"stop\"} 1"); }));
  EXPECT_TRUE(has("tally_requests_ended_total{reason=\"length\"} 1"));
  EXPECT_TRUE(has("tally_http_responses_total{route=\"/v1/completions\",class=\"2xx\"} 2"));
  EXPECT_TRUE(has("tally_http_responses_total{route=\"/v1/completions\",class=\"4xx\"} 1"));
  EXPECT_TRUE(has("vllm:request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"stop\"} 1"));
  EXPECT_TRUE(
      has("vllm:request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"length\"} 1"));
  EXPECT_TRUE(has("vllm:request_params_max_tokens_bucket{model_name=\"tiny\",engine=\"0\",le=\"5\"} 1"));
  EXPECT_TRUE(has("vllm:request_params_n_count{model_name=\"tiny\",engine=\"0\"} 2"));
}

TEST(Metrics, TheDocumentIsTheTable) {
  std::ifstream file("docs/metrics.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), metrics_document()) << "write docs/metrics.md anew from metrics_document()";
}

// The promise is 5 ms; an instrumented build is some ten times slower.
#if defined(TALLY_INSTRUMENTED)
constexpr int64_t kScrapeLimitUs = 50'000;
#else
constexpr int64_t kScrapeLimitUs = 5'000;
#endif

TEST(Metrics, AScrapeIsCheap) {
  RigOptions options;
  options.settings.metrics.sets = {"vllm-legacy", "llamacpp"};
  Rig rig(options);
  Client client(rig.port());
  std::vector<int64_t> times;
  for (int i = 0; i < 40; ++i) {
    const int64_t begin_us = base::now_us();
    client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.read_reply().status, 200);
    times.push_back(base::now_us() - begin_us);
  }
  std::sort(times.begin(), times.end());
  EXPECT_LT(times[times.size() / 4], kScrapeLimitUs);  // other programs may share this machine
}

TEST(Metrics, RatesOfTheLastMinute) {
  constexpr int64_t kSecond = 1'000'000;
  RateWindow window;
  EXPECT_EQ(window.rates(0, 0, 0).prompt, 0);
  EXPECT_TRUE(window.due(0));
  window.look(0, 1000, 0);
  EXPECT_FALSE(window.due(kSecond - 1));
  EXPECT_TRUE(window.due(kSecond));
  EXPECT_EQ(window.rates(10 * kSecond, 1500, 20).prompt, 50);
  EXPECT_EQ(window.rates(10 * kSecond, 1500, 20).generated, 2);
  for (int64_t s = 1; s <= 100; ++s) window.look(s * kSecond, 1000 + static_cast<uint64_t>(s), 0);
  EXPECT_NEAR(window.rates(100 * kSecond + 1, 1100, 0).prompt, 1, 1e-4)
      << "what is older than a minute is left out";
  EXPECT_EQ(window.rates(500 * kSecond, 9000, 0).prompt, 0) << "no look that is young enough";
}

TEST(Metrics, OneTwoFiveEdges) {
  EXPECT_EQ(one_two_five_edges(512), (std::vector<double>{1, 2, 5, 10, 20, 50, 100, 200, 500}));
  EXPECT_EQ(one_two_five_edges(1), (std::vector<double>{1}));
}

}  // namespace
}  // namespace tally::serve
