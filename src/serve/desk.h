#pragma once
// What every live answer shares: the back end, the counters, and the list of answers that keeps them alive;
// and the seats of tenants, which requests have before they are answers.

#include "serve/counters.h"
#include "serve/http/transport.h"
#include "serve/rate_window.h"
#include "serve/server.h"
#include "serve/tenants.h"
#include "serve/workers.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace tally::serve {

class Answer;

struct Desk {
  Desk(const Settings& s, const Backend& b);

  const Settings& settings;
  const Backend backend;
  const std::string fingerprint;  // tally-<12 hex>: equal for equal bits
  // How chats of this model go beyond plain text; empty without a template.
  const text::ChatShape chat_shape;
  const text::OutputFormat output;
  const int64_t created;  // of the model, Unix seconds
  RateWindow rates;
  Distribution choices, max_tokens,
      longest;  // of requests: n, max_tokens if given, tokens of the longest choice

  // Keeps the answer alive until remove.
  void add(std::shared_ptr<Answer> answer);
  void remove(const Answer* answer);
  size_t live() const;
  // Tenants::judge.
  std::optional<ApiError> judge(const std::string& tenant) const;
  bool counts_tokens() const { return tenants_.counts_tokens(); }

 private:
  friend class Seat;
  mutable std::mutex mutex_;
  std::map<const Answer*, std::shared_ptr<Answer>> answers_;  // guarded by mutex_
  Tenants tenants_;                                           // guarded by mutex_
};

// A request's place among what its tenant may have under way, from when it is let in until it has ended,
// wherever that is. Threads: one at a time.
class Seat {
 public:
  Seat(std::shared_ptr<Desk> desk, std::string tenant) : desk_(std::move(desk)), tenant_(std::move(tenant)) {}
  // Gives the place back, and what was paid if pay() was never called: nothing was computed.
  ~Seat();
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  // Takes the place, once. Errors: those of Tenants::enter.
  std::optional<ApiError> take(const TenantNeeds& needs);
  // So many tokens are what the request has to be paid for by now. The prompt's were paid at the door.
  void pay(uint64_t tokens);

 private:
  const std::shared_ptr<Desk> desk_;
  const std::string tenant_;
  size_t sequences_ = 0;  // 0: not taken
  uint64_t paid_tokens_ = 0;
  bool is_used_ = false;
};

}  // namespace tally::serve
