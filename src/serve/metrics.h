#pragma once
// GET /metrics: one table of names, one pass over one snapshot.

#include "serve/counters.h"
#include "serve/desk.h"

#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace tally::serve {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };
// What a row is exported with: kOwn always, the others with --metrics-compat.
enum class MetricSet : uint8_t { kOwn, kVllmLegacy, kLlamaCpp };
struct MetricRow {
  std::string_view name;
  MetricType type{};
  std::string_view unit, labels, help;
  MetricSet set = MetricSet::kOwn;
};
inline constexpr MetricRow kMetrics[] = {
#define TALLY_METRIC(name, type, unit, labels, help) {name, MetricType::type, unit, labels, help},
#include "serve/metrics.inc"
#undef TALLY_METRIC
#define TALLY_COMPAT(set, name, type, unit, labels, help) \
  {name, MetricType::type, unit, labels, help, MetricSet::set},
#include "serve/metrics_compat.inc"
#undef TALLY_COMPAT
};
inline constexpr size_t kMetricCount = std::size(kMetrics);

// The page in Prometheus text 0.0.4. connections: by http::ConnectionState.
std::string metrics_text(const Desk& desk, const Counters& counters,
                         const std::array<uint64_t, 4>& connections);
// docs/metrics.md
std::string metrics_document();

}  // namespace tally::serve
