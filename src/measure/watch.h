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

// What a server lets us look at.
struct Windows {
  std::optional<int> pid;     // of the server, when it runs on this machine
  bool has_metrics = false;   // /metrics is answered
  bool has_accounts = false;  // /v1/accounts and /v1/steps are
  uint64_t last_step = 0;     // of /v1/steps, before anything is sent
};

// The accounts of a /v1/accounts page as a sample keeps them: reserved bytes of each, `planned` of each, and
// the totals; null: no such page.
nlohmann::json accounts_summary(std::string_view page);
// The number of the last step that a /v1/steps page tells; 0: none.
uint64_t last_step_of(std::string_view page);
std::string steps_path(uint64_t since);

// Why a page of a server cannot be looked at now, by its status; "": it can, or there is no such page.
std::string refusal_of(int status);

// Samples on the io_context of the load generator, whose thread calls it.
class ServerWatch {
 public:
  ServerWatch(boost::asio::io_context& io, const Endpoint& endpoint, const Windows& windows);

  // Every 100 ms; asks for one of the pages each second or third time, in turn, unless an answer is still to
  // come.
  void sample(double at_s);
  void stop();  // nothing is under way afterwards
  std::vector<MemorySample> take() { return std::move(samples_); }
  std::vector<std::string> take_steps() { return std::move(page_.steps); }  // pages of /v1/steps, in order
  const std::vector<double>& utilisations() const { return page_.utilisations; }
  uint64_t kv_peak_bytes() const { return page_.kv_peak_bytes; }

 private:
  enum class Asked : uint8_t { kMetrics, kAccounts, kSteps };
  // One page on its way.
  struct Page final : ExchangeSink {
    void on_sent(Instant) override { body.clear(); }
    void on_head(int status, std::string_view) override { is_good = status == 200; }
    bool on_body(std::string_view bytes, Instant at) override;
    void on_end(std::string_view failure, Instant at) override;

    Asked asked = Asked::kMetrics;
    std::string body;
    bool is_good = false;
    nlohmann::json load, accounts;  // of the last pages, until a sample takes them
    std::vector<std::string> steps;
    uint64_t last_step = 0;
    std::vector<double> utilisations;
    uint64_t kv_peak_bytes = 0;
  };

  void ask(Asked what);

  const Endpoint& endpoint_;
  const Windows windows_;
  std::string request_;
  std::shared_ptr<Connection> connection_;
  Page page_;
  std::vector<MemorySample> samples_;
  uint64_t ticks_ = 0;
};

}  // namespace tally::measure
