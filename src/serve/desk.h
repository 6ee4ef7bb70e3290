#pragma once
// What every live answer shares: the back end, the counters, and the list of answers that keeps them alive.

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

  // Keeps the answer alive until remove. Errors: its tenant has what it may have.
  std::optional<ApiError> add(std::shared_ptr<Answer> answer, const std::string& tenant,
                              const TenantNeeds& needs);
  void remove(const Answer* answer);
  size_t live() const;
  // Tenants::judge and charge.
  std::optional<ApiError> judge(const std::string& tenant) const;
  bool counts_tokens() const { return tenants_.counts_tokens(); }
  void charge(const std::string& tenant, int64_t tokens);

 private:
  struct Seat {
    std::string tenant;
    size_t sequences = 0;
  };
  mutable std::mutex mutex_;
  std::map<const Answer*, std::pair<std::shared_ptr<Answer>, Seat>> answers_;  // guarded by mutex_
  Tenants tenants_;                                                            // guarded by mutex_
};

}  // namespace tally::serve
