#pragma once
// The table of routes: dispatch, key checks, metric labels, the Allow header and the tests read it.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace tally::serve {

enum class Page : uint8_t {
  kChat,
  kCompletion,
  kModels,
  kModel,
  kTokenize,
  kDetokenize,
  kLivez,
  kReadyz,
  kVersion,
  kMetrics,
  kResetPrefixCache,
  kSettings,
  kBlocks,
  kAccounts,
  kSteps,
  kKvEvents,
  kDashboard,
  kTokenizerInfo,
  kNotBuilt,
};

// What a route asks of the caller and of the server.
enum RouteFlags : uint8_t {
  kPlain = 0,
  kProbe = 1,      // no key, answered on the I/O thread, also while loading and draining
  kAdmin = 2,      // only keys that may administrate
  kJsonBody = 4,   // Content-Type: application/json
  kMetricsKey = 8  // no key with --public-metrics
};

struct Route {
  std::string_view method, path;  // a path that ends in '/' takes whatever follows, which may not be empty
  Page page{};
  int flags = kPlain;
};

inline constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", Page::kChat, kJsonBody},
    {"POST", "/v1/completions", Page::kCompletion, kJsonBody},
    {"GET", "/v1/models", Page::kModels, kPlain},
    {"GET", "/v1/models/", Page::kModel, kPlain},
    {"POST", "/tokenize", Page::kTokenize, kJsonBody},
    {"POST", "/detokenize", Page::kDetokenize, kJsonBody},
    {"GET", "/livez", Page::kLivez, kProbe},
    {"GET", "/readyz", Page::kReadyz, kProbe},
    {"GET", "/health", Page::kReadyz, kProbe},
    {"GET", "/ping", Page::kReadyz, kProbe},
    {"GET", "/version", Page::kVersion, kPlain},
    {"GET", "/metrics", Page::kMetrics, kMetricsKey},
    {"POST", "/reset_prefix_cache", Page::kResetPrefixCache, kAdmin},
    {"GET", "/", Page::kDashboard, kPlain},
    {"GET", "/assets/", Page::kDashboard, kPlain},
    {"GET", "/tokenizer_info", Page::kTokenizerInfo, kPlain},
    {"GET", "/v1/accounts", Page::kAccounts, kAdmin},
    {"GET", "/v1/blocks", Page::kBlocks, kAdmin},
    {"GET", "/v1/steps", Page::kSteps, kAdmin},
    {"GET", "/v1/kv_events", Page::kKvEvents, kAdmin},
    {"GET", "/v1/settings", Page::kSettings, kAdmin},
    {"POST", "/v1/embeddings", Page::kNotBuilt, kPlain},
    {"POST", "/v1/rerank", Page::kNotBuilt, kPlain},
    {"POST", "/rerank", Page::kNotBuilt, kPlain},
    {"POST", "/v1/score", Page::kNotBuilt, kPlain},
    {"POST", "/v1/responses", Page::kNotBuilt, kPlain},
    {"POST", "/v1/images/generations", Page::kNotBuilt, kPlain},
    {"POST", "/v1/audio/transcriptions", Page::kNotBuilt, kPlain},
    {"POST", "/v1/audio/speech", Page::kNotBuilt, kPlain},
    {"POST", "/v1/moderations", Page::kNotBuilt, kPlain},
};
inline constexpr size_t kRouteCount = std::size(kRoutes);

// Whether `path` is that route's. "/" alone is a path, not a prefix.
constexpr bool matches(const Route& route, std::string_view path) {
  if (route.path.size() > 1 && route.path.back() == '/')
    return path.size() > route.path.size() && path.starts_with(route.path);
  return path == route.path;
}

}  // namespace tally::serve
