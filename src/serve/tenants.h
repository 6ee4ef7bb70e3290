#pragma once
// What each tenant (an API key; without keys everyone is one) has under way, and what it may still use.
//
// Three limits, each off at its zero: sequences at once (a fair share, where there are several keys),
// requests at once, and tokens a minute. The last is a token bucket: it holds a minute's tokens, fills
// evenly, and pays for prompts when they are let in and for generated tokens when they are there. A request
// is let in when the bucket has its prompt, or is full; what it generates may leave a debt, which later ones
// wait for. Pure: the clock is passed in. Threads: one at a time.

#include "serve/errors.h"
#include "serve/server.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace tally::serve {

// What a request would take.
struct TenantNeeds {
  size_t sequences = 1;
  uint64_t prompt_tokens = 0;
};

class Tenants {
 public:
  // sequences_max: of one tenant; SIZE_MAX: no limit.
  Tenants(size_t sequences_max, const KeyLimits& limits) : sequences_max_(sequences_max), limits_(limits) {}

  // Lets a request in and takes its prompt's tokens; or 429 with what is left and until when (400: it could
  // never be let in), and nothing has changed.
  std::optional<ApiError> enter(const std::string& tenant, const TenantNeeds& needs, int64_t now_us);
  // The same judgement of a request whose size is not known yet; changes nothing.
  std::optional<ApiError> judge(const std::string& tenant, int64_t now_us) const;
  // Takes tokens beyond those of enter(); negative: gives them back.
  void charge(const std::string& tenant, int64_t tokens, int64_t now_us);
  // The end of a request that entered with so many sequences.
  void leave(const std::string& tenant, size_t sequences);

  bool counts_tokens() const { return limits_.tokens_per_minute > 0; }
  // Whole tokens that a tenant has now; negative: a debt. Requires: counts_tokens().
  int64_t tokens_left(const std::string& tenant, int64_t now_us) const;

 private:
  // A token is kUnits units, so that the bucket fills by a whole number of them each microsecond.
  static constexpr int64_t kUnits = 60'000'000;
  struct Tenant {
    size_t sequences = 0, requests = 0;
    int64_t units = 0, filled_us = 0;
  };
  int64_t capacity() const { return static_cast<int64_t>(limits_.tokens_per_minute) * kUnits; }
  Tenant state(const std::string& tenant, int64_t now_us) const;
  struct AtOnce {
    size_t limit = 0, used = 0;
  };
  std::optional<ApiError> refusal(const Tenant& tenant, const TenantNeeds& needs) const;
  ApiError too_many(std::string message, const Tenant& tenant, const AtOnce& at_once) const;

  const size_t sequences_max_;
  const KeyLimits limits_;
  std::map<std::string, Tenant> tenants_;  // as many as keys that were ever used
};

}  // namespace tally::serve
