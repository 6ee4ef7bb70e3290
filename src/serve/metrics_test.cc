// The metrics page: every row has its series from the start, what others read is there, and the document is
// the table.

#include "serve/metrics.h"

#include "serve/rig_test_support.h"

#include <fstream>
#include <set>
#include <sstream>

namespace tally::serve {
namespace {

// Who reads what (metrics reference): type, then names; {a,b} expands.
const std::pair<const char*, const char*> kReaders[] = {
    {"gauge",
     "vllm:num_requests_waiting vllm:num_requests_running vllm:kv_cache_usage_perc vllm:cache_config_info"},
    {"histogram",
     "vllm:e2e_request_latency_seconds vllm:inter_token_latency_seconds vllm:time_to_first_token_seconds"},
    {"histogram",
     "vllm:request_queue_time_seconds vllm:request_prefill_time_seconds vllm:request_decode_time_seconds"},
    {"histogram",
     "vllm:request_max_num_generation_tokens vllm:request_prompt_tokens vllm:request_generation_tokens"},
    {"counter", "vllm:generation_tokens_total vllm:prompt_tokens_total vllm:request_success_total"},
    {"histogram", "vllm:iteration_tokens_total vllm:request_time_per_output_token_seconds"},
    {"counter",
     "vllm:num_preemptions_total vllm:spec_decode_num_drafts_total vllm:spec_decode_num_draft_tokens_total"},
    {"counter",
     "vllm:spec_decode_num_accepted_tokens_total vllm:spec_decode_num_accepted_tokens_per_pos_total"},
    {"counter",
     "vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total vllm:prompt_tokens_cached_total "
     "vllm:prompt_tokens_recomputed_total"},
    {"histogram", "vllm:request_params_n vllm:request_params_max_tokens vllm:request_inference_time_seconds"},
};

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
  for (const auto& [type, names] : kReaders) {
    std::istringstream words(names);
    for (std::string name; words >> name;)
      EXPECT_NE(reply.body.find("# TYPE " + name + " " + type + "\n"), std::string::npos) << name;
  }
  EXPECT_NE(reply.body.find("vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 0"),
            std::string::npos);
  EXPECT_NE(reply.body.find("vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"64\""),
            std::string::npos);
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

TEST(Metrics, OneTwoFiveEdges) {
  EXPECT_EQ(one_two_five_edges(512), (std::vector<double>{1, 2, 5, 10, 20, 50, 100, 200, 500}));
  EXPECT_EQ(one_two_five_edges(1), (std::vector<double>{1}));
}

}  // namespace
}  // namespace tally::serve
