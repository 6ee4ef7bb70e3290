#include "measure/roof.h"

#include "base/check.h"
#include "base/clock.h"
#include "measure/machine.h"
#include "measure/quantile.h"
#include "measure/shown.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr int kTrials = 3;
constexpr double kConfirms = .05;
constexpr size_t kReadItem = size_t{4}
                             << 20;  // bytes; small, so that a thread that lost its CPU costs little
constexpr size_t kItems = 8;         // for each thread, of operations
constexpr int64_t kItemUs = 500;
constexpr int64_t kKernelItemUs = 150;  // there are many of them
constexpr uint32_t kEachThread = 8;     // up to so many threads each number is measured
constexpr double kForeignMost = .1;     // share of the CPUs

void put_rate(const json& value, double& out) {
  if (value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() > 0)
    out = value.get<double>();
}

// Of {"2": rate}: what is no rate is left out.
std::map<uint32_t, double> parse_rates(const json& value) {
  std::map<uint32_t, double> out;
  if (!value.is_object()) return out;
  for (const auto& [key, rate] : value.items()) {
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    if (error != std::errc() || end != key.data() + key.size() || number == 0) continue;
    double read = 0;
    put_rate(rate, read);
    if (read > 0) out[number] = read;
  }
  return out;
}

json rates_json(const std::map<uint32_t, double>& rates) {
  json out = json::object();
  for (const auto& [number, rate] : rates) out[std::to_string(number)] = std::round(rate);
  return out;
}

double seconds_since(int64_t begin_us) { return static_cast<double>(base::now_us() - begin_us) * 1e-6; }

std::vector<uint32_t> thread_counts(uint32_t most) {
  std::vector<uint32_t> out;
  for (uint32_t n = 1; n < most; n = n < kEachThread ? n + 1 : 2 * n) out.push_back(n);
  out.push_back(most);
  return out;
}

template <class Measure>
double rate_of(const Measure& measure) {
  std::vector<double> rates;
  for (int i = 0; i < kTrials; ++i) rates.push_back(measure());
  return largest_confirmed(std::move(rates));
}

}  // namespace

double read_rate(const RoofProbe& probe, base::ThreadPool& pool, std::span<const std::byte> data) {
  std::atomic<uint64_t> sink{0};
  const size_t items = data.size() / kReadItem;
  TALLY_CHECK(items > 0, "too little to read", data.size());
  const int64_t begin = base::now_us();
  pool.parallel_for(items,
                    [&](size_t i, size_t) { sink += probe.run(data.data() + i * kReadItem, kReadItem, 0); });
  return static_cast<double>(items * kReadItem) / seconds_since(begin);
}

double operation_rate(const RoofProbe& probe, base::ThreadPool& pool) {
  std::atomic<uint64_t> sink{0};
  const int64_t item_us = probe.kind == RoofKind::kKernel ? kKernelItemUs : kItemUs;
  uint64_t rounds = 1;
  for (int64_t took = 0; took < item_us; rounds *= 2) {
    const int64_t begin = base::now_us();
    sink += probe.run(nullptr, 0, rounds);
    took = base::now_us() - begin;
  }
  const size_t items = kItems * pool.threads();
  const int64_t begin = base::now_us();
  pool.parallel_for(items, [&](size_t, size_t) { sink += probe.run(nullptr, 0, rounds); });
  return probe.work * static_cast<double>(rounds * items) / seconds_since(begin);
}

double Roofs::operations_at(uint32_t threads, std::string_view weight_type) const {
  const bool is_float =
      equal_words(weight_type, "f32") || equal_words(weight_type, "f16") || equal_words(weight_type, "bf16");
  const double share = std::min(1., static_cast<double>(threads) / threads_max());
  return share * (is_float ? f32_ops_per_s : int8_ops_per_s);
}

RatesByRows Roofs::kernels_at(uint32_t threads, std::string_view weight_type) const {
  const double share = std::min(1., static_cast<double>(threads) / threads_max());
  RatesByRows out;
  for (const auto& [type, rates] : kernel_ops_per_s)
    if (equal_words(type, weight_type))
      for (const auto& [rows, rate] : rates) out[rows] = share * rate;
  return out;
}

double Roofs::read_at(uint32_t threads) const {
  const auto above = bytes_per_s.lower_bound(threads);
  if (above == bytes_per_s.end()) return bytes_per_s.rbegin()->second;
  if (above == bytes_per_s.begin() || above->first == threads) return above->second;
  const auto below = std::prev(above);
  const double share = static_cast<double>(threads - below->first) / (above->first - below->first);
  return below->second + share * (above->second - below->second);
}

double rate_with_rows(const RatesByRows& rates, double rows) {
  TALLY_CHECK(!rates.empty(), "rates of no rows");
  const auto above = std::find_if(rates.begin(), rates.end(),
                                  [&](const auto& rate) { return static_cast<double>(rate.first) >= rows; });
  if (above == rates.end()) return rates.rbegin()->second;
  if (above == rates.begin()) return above->second;
  const auto below = std::prev(above);
  const auto time = [](const auto& rate) { return static_cast<double>(rate.first) / rate.second; };
  const double share = (rows - static_cast<double>(below->first)) / (above->first - below->first);
  return rows / (time(*below) + share * (time(*above) - time(*below)));
}

double largest_confirmed(std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  for (size_t i = rates.size(); i-- > 1;)
    if (rates[i - 1] >= rates[i] * (1 - kConfirms)) return rates[i];
  return median_of(std::move(rates));
}

Roofs measure_roofs(const RoofRequest& request) {
  const CpuWatch watch;
  Roofs out;
  out.isa = request.isa;
  const RoofProbe* read = nullptr;
  {
    base::ThreadPool pool(request.threads, request.on_thread);
    double best = 0;
    for (const RoofProbe& probe : request.probes) {
      if (probe.kind == RoofKind::kInt8)
        out.int8_ops_per_s = rate_of([&] { return operation_rate(probe, pool); });
      if (probe.kind == RoofKind::kF32)
        out.f32_ops_per_s = rate_of([&] { return operation_rate(probe, pool); });
      if (probe.kind == RoofKind::kKernel)
        out.kernel_ops_per_s[probe.name][probe.rows] = rate_of([&] { return operation_rate(probe, pool); });
      if (probe.kind != RoofKind::kRead) continue;
      const double rate = rate_of([&] { return read_rate(probe, pool, request.data); });
      if (rate > best) best = rate, read = &probe;
    }
    TALLY_CHECK(read != nullptr, "no loop that reads");
    out.read_form = read->name, out.bytes_per_s[request.threads] = best;
  }
  for (const uint32_t threads : thread_counts(request.threads)) {
    if (threads == request.threads) continue;
    base::ThreadPool pool(threads, request.on_thread);
    out.bytes_per_s[threads] = rate_of([&] { return read_rate(*read, pool, request.data); });
  }
  out.disturbed = watch.foreign() + watch.steal() > kForeignMost;
  return out;
}

json roofs_json(const Roofs& roofs) {
  json operations = json::object(), kernels = json::object();
  for (const auto& [type, rates] : roofs.kernel_ops_per_s) kernels[type] = rates_json(rates);
  if (roofs.int8_ops_per_s > 0) operations["int8"] = std::round(roofs.int8_ops_per_s);
  if (roofs.f32_ops_per_s > 0) operations["f32"] = std::round(roofs.f32_ops_per_s);
  return {{"isa", roofs.isa},
          {"bytes_per_s", rates_json(roofs.bytes_per_s)},
          {"ops_per_s", std::move(operations)},
          {"kernel_ops_per_s", std::move(kernels)},
          {"read_form", roofs.read_form},
          {"disturbed", roofs.disturbed}};
}

Roofs parse_roofs(const json& value) {
  Roofs out;
  if (!value.is_object()) return out;
  const auto object = [&](const char* key) {
    const auto at = value.find(key);
    return at != value.end() && at->is_object() ? *at : json::object();
  };
  const json operations = object("ops_per_s"), kernels = object("kernel_ops_per_s");
  out.bytes_per_s = parse_rates(object("bytes_per_s"));
  for (const auto& [type, rates] : kernels.items())
    if (RatesByRows parsed = parse_rates(rates); !parsed.empty()) out.kernel_ops_per_s[type] = parsed;
  put_rate(operations.value("int8", json()), out.int8_ops_per_s);
  put_rate(operations.value("f32", json()), out.f32_ops_per_s);
  out.isa = text_at(value, "isa"), out.read_form = text_at(value, "read_form");
  out.disturbed = value.value("disturbed", json()) == true;
  return out;
}

std::string roofs_file(const std::string& directory) { return directory.empty() ? "" : directory + "/roofs"; }

std::optional<Roofs> kept_roofs(const std::string& file) {
  if (file.empty()) return std::nullopt;
  const auto kept = load_object(file);
  if (!kept || text_at(*kept, "fingerprint") != text_at(machine_json(), "fingerprint")) return std::nullopt;
  Roofs roofs = parse_roofs(kept->value("roofs", json()));
  return roofs.empty() || roofs.kernel_ops_per_s.empty() ? std::nullopt : std::optional(std::move(roofs));
}

void keep_roofs(const std::string& file, const Roofs& roofs) {
  if (file.empty() || roofs.disturbed) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), ignored);
  const json kept = {
      {"schema", kSchema}, {"fingerprint", machine_json()["fingerprint"]}, {"roofs", roofs_json(roofs)}};
  static_cast<void>(replace_file(file, line_of(kept) + "\n"));
}

}  // namespace tally::measure
