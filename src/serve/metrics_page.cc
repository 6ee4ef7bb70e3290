#include "serve/metrics_page.h"

#include "base/check.h"

namespace tally::serve {
namespace {

prometheus::MetricType type_of(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      break;
  }
  return prometheus::MetricType::Histogram;
}

std::string joined(Labels labels) {
  std::string names;
  for (const auto& label : labels) names += (names.empty() ? "" : " ") + std::string(label.first);
  return names;
}

}  // namespace

MetricsPage::MetricsPage(std::string model_name) : model_name_(std::move(model_name)) {
  for (const MetricRow& row : kMetrics)
    families_.push_back({std::string(row.name), std::string(row.help), type_of(row.type), {}});
}

std::vector<prometheus::MetricFamily> MetricsPage::take() {
  std::erase_if(families_, [](const prometheus::MetricFamily& family) { return family.metric.empty(); });
  return std::move(families_);
}

prometheus::ClientMetric& MetricsPage::add(std::string_view name, MetricType type, Labels labels) {
  size_t i = 0;
  while (i < kMetricCount && kMetrics[i].name != name) ++i;
  TALLY_CHECK(i < kMetricCount, "a metric without a row in metrics.inc: " + std::string(name));
  const MetricRow& row = kMetrics[i];
  TALLY_CHECK(row.type == type && row.labels == joined(labels),
              "a metric unlike its row: " + std::string(name));
  prometheus::ClientMetric& metric = families_[i].metric.emplace_back();
  if (name.starts_with("vllm:") && !row.labels.starts_with("engine")) {
    metric.label.push_back({"model_name", model_name_});
    metric.label.push_back({"engine", "0"});
  }
  for (const auto& [key, value] : labels) metric.label.push_back({std::string(key), std::string(value)});
  return metric;
}

void MetricsPage::counter(std::string_view name, double value, Labels labels) {
  add(name, MetricType::kCounter, labels).counter.value = value;
}

void MetricsPage::gauge(std::string_view name, double value, Labels labels) {
  add(name, MetricType::kGauge, labels).gauge.value = value;
}

void MetricsPage::fill(prometheus::ClientMetric& metric, std::span<const double> edges,
                       std::span<const uint64_t> counts, double sum) {
  TALLY_CHECK(counts.size() == edges.size() + 1, "a histogram whose counts do not fit its edges",
              counts.size(), edges.size());
  uint64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    total += counts[i];
    if (i < edges.size()) metric.histogram.bucket.push_back({total, edges[i]});
  }
  metric.histogram.sample_count = total;
  metric.histogram.sample_sum = sum;
}

void MetricsPage::histogram(std::string_view name, const engine::Histogram& histogram, Labels labels) {
  fill(add(name, MetricType::kHistogram, labels), histogram.edges, histogram.counts, histogram.sum);
}

void MetricsPage::histogram(std::string_view name, const Distribution& distribution) {
  const auto snapshot = distribution.snapshot();
  fill(add(name, MetricType::kHistogram, {}), snapshot.edges, snapshot.counts, snapshot.sum);
}

}  // namespace tally::serve
