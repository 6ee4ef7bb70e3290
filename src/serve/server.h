#pragma once
// An OpenAI-compatible HTTP server over an engine. Binds and answers probes before the model is loaded.

#include "base/accounts.h"
#include "base/result.h"
#include "engine/engine.h"
#include "sample/constraint.h"
#include "text/chat.h"
#include "text/output.h"
#include "text/tokenizer.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tally::serve {

// Limits and deadlines of the wire (one flag each, prefix --limit- and --timeout-).
struct WireLimits {
  size_t request_line_bytes = 8192, header_bytes = 16384, header_fields = 100, body_bytes = 8u << 20;
  size_t connections = 4096;
  uint32_t head_timeout_ms = 10'000, body_gap_ms = 30'000, idle_timeout_ms = 75'000, write_stall_ms = 30'000;
  uint32_t requests_per_connection = 1000;
  uint32_t body_grace_ms = 5'000;  // after it a body must come at 1 KiB/s or more
  uint32_t heartbeat_ms =
      10'000;  // a stream's head is sent after so long without an event; then a newline each
};

// An effective setting and where it came from, for /v1/settings.
struct ShownSetting {
  std::string name, value, source;
};

// What this machine can do at most, where an earlier command measured it.
struct MachineRoofs {
  std::vector<std::pair<uint32_t, double>> bytes_per_s;   // read, by threads
  std::vector<std::pair<std::string, double>> ops_per_s;  // of all threads, by kind
  // Of all threads, by weight type and rows at once.
  std::vector<std::pair<std::string, std::vector<std::pair<uint32_t, double>>>> kernel_ops_per_s;
  std::string isa;  // that the operations were measured on
};

// What one API key may have under way, and use; without keys everyone together. 0: no limit.
struct KeyLimits {
  uint32_t requests = 0;           // running and waiting
  uint64_t tokens_per_minute = 0;  // of prompts and answers
};

struct MetricsSettings {
  bool open = false;              // to scrapers without a key
  std::vector<std::string> sets;  // besides the default one: vllm-legacy, llamacpp
};

struct Settings {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free port
  std::string model_name;
  std::vector<std::pair<std::string, std::string>> api_keys;  // (name, SHA-256 hex of the key)
  std::vector<std::string> allowed_hosts, allowed_origins;
  MetricsSettings metrics;
  bool receipts = true;
  text::OutputWish output;                                     // what is looked for in the text of a chat
  uint32_t drain_timeout_ms = 30'000, request_timeout_ms = 0;  // 0: none
  uint32_t threads = 2;                                        // connection threads
  WireLimits limits;
  KeyLimits keys;
  std::vector<ShownSetting> shown;  // every flag, no secrets
  MachineRoofs roofs;               // empty: not known
};

// What is behind the routes once loading is done. Non-owning; must outlive the server's run().
struct Backend {
  engine::Engine* engine = nullptr;
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatTemplate* chat_template = nullptr;  // null: chat is refused (400 template_error)
  sample::ConstraintCompiler* constraints = nullptr;  // null: constrained answers are refused (501)
  base::Accounts* accounts = nullptr;                 // connections book here what they hold
  uint64_t weight_parameters = 0;
  std::string weight_type;
  bool prefix_cache = true;
  uint32_t max_queue =
      0;  // requests waiting; refuses before tokenizing when the engine shows so many. 0: the engine decides
};

class Server {
 public:
  // Binds and listens. Errors: kUnavailable (port taken), kConfig (non-loopback without a key is the caller's
  // check).
  static base::Result<std::unique_ptr<Server>> bind(const Settings& settings);
  virtual ~Server() = default;

  virtual uint16_t port() const = 0;
  // Serves until drained: probes at once, the other routes 503 model_loading until set_backend. Returns the
  // exit code.
  virtual int run() = 0;
  virtual void set_backend(const Backend& backend) = 0;  // from the loading thread; /readyz turns 200
  virtual void set_failed() = 0;  // a step failed: readiness 503, connections end, run returns 70
  // First call: drain; second: end at once. Any thread.
  virtual void stop() = 0;
};

}  // namespace tally::serve
