// What comparing a configuration with itself says of the machine.
#include "base/check.h"
#include "base/utf8.h"
#include "measure/compare.h"
#include "measure/compare_gates.h"
#include "measure/pairs.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;
namespace fs = std::filesystem;

constexpr size_t kStandardPairs = 8, kReleasePairs = 20;
constexpr size_t kFingerprintShown = 8;

double spread(const std::vector<double>& ratios) {
  double sum = 0, squares = 0;
  const auto n = static_cast<double>(ratios.size());
  for (const double r : ratios) sum += std::log(r);
  for (const double r : ratios) squares += (std::log(r) - sum / n) * (std::log(r) - sum / n);
  return std::sqrt(squares / (n - 1));
}

Result<Noise> parse_noise(const json& value) {
  const auto bad = [](const std::string& key, std::string_view allowed) {
    return Error{ErrorCode::kBadData, fmt::format("{}: {} is expected", key, allowed)};
  };
  const auto text = [&](const char* key) {
    return value.is_object() && value.contains(key) && value[key].is_string();
  };
  if (!text("machine")) return bad("machine", "a fingerprint");
  if (!text("workload")) return bad("workload", "a name");
  if (!value.contains("pairs") || !value["pairs"].is_number_unsigned()) return bad("pairs", "a whole number");
  if (!value.contains("metrics") || !value["metrics"].is_object()) return bad("metrics", "an object");
  Noise out{value["machine"].get<std::string>(),
            value["workload"].get<std::string>(),
            value["pairs"].get<size_t>(),
            {}};
  for (const auto& [name, metric] : value["metrics"].items()) {
    const bool there = metric.is_object() && metric.contains("sd_log") && metric["sd_log"].is_number();
    const double sd = there ? metric["sd_log"].get<double>() : -1;
    if (!(sd >= 0 && sd < 1e6)) return bad(fmt::format("metrics: {}: sd_log", name), "a number of 0 or more");
    out.sd[name] = sd;
  }
  return out;
}

}  // namespace

Noise noise_of(const Comparison& comparison, const Run& run) {
  TALLY_CHECK(comparison.pairs >= 2, "noise_of", comparison.pairs);
  Noise out{text_of(run.head, "machine", "fingerprint"),
            text_of(run.head, "workload", "name"),
            comparison.pairs,
            {}};
  for (const ComparedMetric& m : comparison.metrics) {
    if (m.judged && m.pairs >= 2) out.sd[m.name] = spread(m.pair_ratios);
  }
  return out;
}

json noise_json(const Noise& noise) {
  json metrics = json::object();
  for (const auto& [name, sd] : noise.sd) {
    metrics[name] = {{"sd_log", sd},
                     {"detectable_ratio_8", std::exp(detectable_difference(sd, kStandardPairs))},
                     {"detectable_ratio_20", std::exp(detectable_difference(sd, kReleasePairs))}};
  }
  return {{"schema", kSchema},
          {"machine", noise.machine},
          {"workload", noise.workload},
          {"pairs", noise.pairs},
          {"metrics", std::move(metrics)}};
}

std::string noise_path(const Run& run, const std::string& run_directory) {
  const std::string machine = text_of(run.head, "machine", "fingerprint");
  std::string name;
  for (const char c : machine.substr(0, kFingerprintShown)) {
    const bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    if (hex) name += c;
  }
  const fs::path run_path = fs::path(run_directory).lexically_normal();
  const fs::path parent =
      run_path.has_filename() ? run_path.parent_path() : run_path.parent_path().parent_path();
  return (parent / fmt::format("noise-{}.json", name.empty() ? "unknown" : name)).string();
}

Result<void> store_noise(const Noise& noise, const std::string& path) {
  return replace_file(path, noise_json(noise).dump(2) + '\n');
}

Result<Noise> load_noise(const std::string& path) {
  TALLY_TRY(const json value, load_object(path));
  auto noise = parse_noise(value);
  if (!noise)
    return Error{noise.error().code,
                 fmt::format("{}: {}", base::escape_for_log(path), noise.error().message)};
  return noise;
}

}  // namespace tally::measure
