#pragma once
// Families of prometheus-cpp filled by name, checked against the table. Private to the metrics files.

#include "serve/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tally::serve {

using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

class MetricsPage {
 public:
  explicit MetricsPage(std::string model_name);

  // Adds a series. Requires (checked): a row of that name and type, with just these labels.
  void counter(std::string_view name, double value, Labels labels = {});
  void gauge(std::string_view name, double value, Labels labels = {});
  void histogram(std::string_view name, const engine::Histogram& histogram, Labels labels = {});
  void histogram(std::string_view name, const Distribution& distribution);

  // Those that have series: rows of sets that nobody asked for have none.
  std::vector<prometheus::MetricFamily> take();

 private:
  prometheus::ClientMetric& add(std::string_view name, MetricType type, Labels labels);
  void fill(prometheus::ClientMetric& metric, std::span<const double> edges, std::span<const uint64_t> counts,
            double sum);

  const std::string model_name_;
  std::vector<prometheus::MetricFamily> families_;  // as kMetrics
};

}  // namespace tally::serve
