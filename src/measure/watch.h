// Looks at the server while it works: its memory, and what its metrics say.
#pragma once

#include "measure/client.h"
#include "measure/run.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::measure {

// The figures of a /metrics page that matter here; absent what a server does not tell. Names of vLLM, tally
// and llama.cpp.
struct ServerMetrics {
  std::optional<double> running, waiting, kv_usage;  // kv_usage: held over all blocks, 0 to 1
  std::optional<double> kv_held, kv_cached, kv_free, kv_block_bytes, kv_waste_bytes;
  std::optional<double> prompt_tokens, generation_tokens, prefix_queries, prefix_hits;
  std::optional<double> preemptions, recomputed_tokens, draft_tokens, accepted_tokens;
  nlohmann::json model, build;  // labels of tally_model_info and tally_build_info

  // Tokens stored over slots allocated, of held blocks.
  std::optional<double> kv_utilisation() const;
  nlohmann::json load_json() const;  // what MemorySample::load holds
};
ServerMetrics parse_metrics(std::string_view page);

// Samples on the io_context of the load generator, whose thread calls it.
class ServerWatch {
 public:
  // pid: of the server, when it runs on this machine. has_metrics: /metrics is answered.
  ServerWatch(boost::asio::io_context& io, const Endpoint& endpoint, std::optional<int> pid,
              bool has_metrics);

  // Every 100 ms; asks for the metrics each fifth time, unless an answer is still to come.
  void sample(double at_s);
  void stop();  // nothing is under way afterwards
  std::vector<MemorySample> take() { return std::move(samples_); }
  const std::vector<double>& utilisations() const { return page_.utilisations; }
  uint64_t kv_peak_bytes() const { return page_.kv_peak_bytes; }

 private:
  // One page of metrics on its way.
  struct Page final : ExchangeSink {
    void on_sent(Instant) override { body.clear(); }
    void on_head(int status, std::string_view) override { is_good = status == 200; }
    bool on_body(std::string_view bytes, Instant at) override;
    void on_end(std::string_view failure, Instant at) override;

    std::string body;
    bool is_good = false;
    nlohmann::json load;  // of the last page, until a sample takes it
    std::vector<double> utilisations;
    uint64_t kv_peak_bytes = 0;
  };

  std::optional<int> pid_;
  bool has_metrics_;
  std::string request_;
  std::shared_ptr<Connection> connection_;
  Page page_;
  std::vector<MemorySample> samples_;
  uint64_t ticks_ = 0;
};

}  // namespace tally::measure
