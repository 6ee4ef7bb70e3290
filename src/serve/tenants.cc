#include "serve/tenants.h"

#include "base/check.h"

#include <fmt/format.h>

#include <algorithm>

namespace tally::serve {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

// Of requests or tokens: the fields that clients of OpenAI's know.
void add_limit_fields(ApiError& error, std::string_view what, int64_t limit, int64_t remaining,
                      int64_t reset_s) {
  error.fields.push_back({fmt::format("x-ratelimit-limit-{}", what), std::to_string(limit)});
  error.fields.push_back({fmt::format("x-ratelimit-remaining-{}", what), std::to_string(remaining)});
  error.fields.push_back({fmt::format("x-ratelimit-reset-{}", what), fmt::format("{}s", reset_s)});
}

int64_t seconds_up(int64_t us) { return (us + kSecondUs - 1) / kSecondUs; }

}  // namespace

Tenants::Tenant Tenants::state(const std::string& tenant, int64_t now_us) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return {.units = capacity(), .filled_us = now_us};
  Tenant t = found->second;
  const int64_t rate = static_cast<int64_t>(limits_.tokens_per_minute);  // units a microsecond
  const int64_t elapsed_us = std::max<int64_t>(now_us - t.filled_us, 0);
  if (rate > 0 && elapsed_us >= (capacity() - t.units + rate - 1) / rate)
    t.units = capacity();
  else
    t.units += elapsed_us * rate;
  t.filled_us = now_us;
  return t;
}

// With what there is of both, whichever ran out. When one of those under way ends is not known: a second is
// how long clients should wait before they ask.
ApiError Tenants::too_many(std::string message, const Tenant& t, const AtOnce& at_once) const {
  constexpr int64_t kRetryS = 1;
  ApiError error{.code = Code::kRateLimit, .message = std::move(message), .retry_after_s = kRetryS};
  if (at_once.limit < SIZE_MAX)
    add_limit_fields(error, "requests", static_cast<int64_t>(at_once.limit),
                     static_cast<int64_t>(at_once.limit - at_once.used), kRetryS);
  if (!counts_tokens()) return error;
  const auto rate = static_cast<int64_t>(limits_.tokens_per_minute);
  add_limit_fields(error, "tokens", rate, std::max<int64_t>(t.units / kUnits, 0),
                   seconds_up((capacity() - t.units + rate - 1) / rate));
  return error;
}

std::optional<ApiError> Tenants::refusal(const Tenant& t, const TenantNeeds& needs) const {
  const AtOnce sequences{sequences_max_, t.sequences};
  const AtOnce requests = limits_.requests > 0 ? AtOnce{limits_.requests, t.requests} : sequences;
  if (requests.used >= requests.limit && limits_.requests > 0)
    return too_many(fmt::format("This key has {} requests running and waiting, and may have {} "
                                "(--limit-key-requests).",
                                t.requests, limits_.requests),
                    t, requests);
  if (needs.sequences > sequences_max_)  // later is no better
    return ApiError{
        .code = Code::kInvalidValue,
        .message = fmt::format("The request needs {} sequences, and one key may have {} as its share.",
                               needs.sequences, sequences_max_),
        .param = "n"};
  if (t.sequences > sequences_max_ - needs.sequences)
    return too_many(fmt::format("This key has {} sequences running and waiting, and may have {} as its "
                                "share; the request needs {}.",
                                t.sequences, sequences_max_, needs.sequences),
                    t, sequences);
  if (!counts_tokens()) return std::nullopt;
  const int64_t most = capacity() / kUnits;
  const int64_t wanted = std::max<int64_t>(std::min(static_cast<int64_t>(needs.prompt_tokens), most), 1);
  if (t.units >= wanted * kUnits) return std::nullopt;
  ApiError error = too_many(fmt::format("This key may use {} tokens a minute (--limit-key-tokens) and has {} "
                                        "left; the request needs {} to begin.",
                                        most, std::max<int64_t>(t.units / kUnits, 0), wanted),
                            t, requests);
  const auto rate = static_cast<int64_t>(limits_.tokens_per_minute);
  const int64_t retry_s = seconds_up((wanted * kUnits - t.units + rate - 1) / rate);
  error.retry_after_s = static_cast<uint32_t>(std::clamp<int64_t>(retry_s, 1, UINT32_MAX));
  return error;
}

std::optional<ApiError> Tenants::enter(const std::string& tenant, const TenantNeeds& needs, int64_t now_us) {
  Tenant t = state(tenant, now_us);
  if (auto error = refusal(t, needs)) return error;
  t.sequences += needs.sequences;
  ++t.requests;
  if (counts_tokens()) t.units -= static_cast<int64_t>(needs.prompt_tokens) * kUnits;
  tenants_[tenant] = t;
  return std::nullopt;
}

std::optional<ApiError> Tenants::judge(const std::string& tenant, int64_t now_us) const {
  return refusal(state(tenant, now_us), {.sequences = 1, .prompt_tokens = 1});
}

void Tenants::charge(const std::string& tenant, int64_t tokens, int64_t now_us) {
  if (!counts_tokens() || tokens == 0) return;
  Tenant t = state(tenant, now_us);
  t.units = std::min(t.units - tokens * kUnits, capacity());
  tenants_[tenant] = t;
}

void Tenants::leave(const std::string& tenant, size_t sequences) {
  const auto found = tenants_.find(tenant);
  TALLY_CHECK(found != tenants_.end() && found->second.requests > 0 && found->second.sequences >= sequences,
              "a request leaves that has not entered", sequences);
  found->second.sequences -= sequences;
  --found->second.requests;
}

int64_t Tenants::tokens_left(const std::string& tenant, int64_t now_us) const {
  const int64_t units = state(tenant, now_us).units;
  return units >= 0 ? units / kUnits : -((-units + kUnits - 1) / kUnits);
}

}  // namespace tally::serve
