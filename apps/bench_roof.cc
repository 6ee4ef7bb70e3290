#include "bench_roof.h"

#include "base/check.h"
#include "base/clock.h"
#include "bench_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using kernels::RoofKind;
using kernels::RoofLoop;

constexpr int kTrials = 5;
constexpr size_t kReadItem = size_t{4}
                             << 20;  // bytes; small, so that a thread that lost its CPU costs little
constexpr size_t kItems = 8;         // for each thread, of arithmetic
constexpr int64_t kItemUs = 500;

double seconds_since(int64_t begin_us) { return static_cast<double>(base::now_us() - begin_us) * 1e-6; }

}  // namespace

Roofs::Roofs(base::ThreadPool& pool, const std::byte* data, size_t bytes)
    : pool_(pool), data_(data), bytes_(bytes / kReadItem * kReadItem) {
  TALLY_CHECK(bytes_ > 0, "too little to read", bytes);
  double best = 0;
  for (const RoofLoop& loop : kernels::roof_loops()) {
    if (!kernels::host_has(loop.isa)) continue;
    std::vector<double> rates;
    for (int i = 0; i < kTrials; ++i)
      rates.push_back(loop.kind == RoofKind::kRead ? time_read(loop) : time_operations(loop));
    const double rate = spread(rates).median;
    if (loop.kind != RoofKind::kRead) {
      operations_.emplace_back(&loop, rate);
    } else if (rate > best) {
      best = rate, read_loop_ = &loop, probes_ = rates;
    }
  }
}

void Roofs::probe() { probes_.push_back(time_read(*read_loop_)); }

double Roofs::read() const { return spread(probes_).median; }

double Roofs::operations(RoofKind kind, kernels::Isa isa) const {
  for (const auto& [loop, rate] : operations_)  // best first
    if (loop->kind == kind && loop->isa <= isa) return rate;
  return 0;
}

Roofs::Share Roofs::share(double bytes, double operations, double operations_roof, double seconds) const {
  const double memory = bytes / read(), compute = operations_roof > 0 ? operations / operations_roof : 0;
  return {std::max(memory, compute) / seconds, memory >= compute};
}

double Roofs::time_read(const RoofLoop& loop) {
  std::atomic<uint64_t> sink{0};
  const int64_t begin = base::now_us();
  pool_.parallel_for(bytes_ / kReadItem, [&](size_t i, size_t) {
    sink += loop.run({.data = data_ + i * kReadItem, .bytes = kReadItem});
  });
  return static_cast<double>(bytes_) / seconds_since(begin);
}

double Roofs::time_operations(const RoofLoop& loop) {
  std::atomic<uint64_t> sink{0};
  uint64_t rounds = 1024;
  for (int64_t took = 0; took < kItemUs; rounds *= 2) {
    const int64_t begin = base::now_us();
    sink += loop.run({.rounds = rounds});
    took = base::now_us() - begin;
  }
  const size_t items = kItems * pool_.threads();
  const int64_t begin = base::now_us();
  pool_.parallel_for(items, [&](size_t, size_t) { sink += loop.run({.rounds = rounds}); });
  return loop.work * static_cast<double>(rounds * items) / seconds_since(begin);
}

void Roofs::add_to(nlohmann::json& machine) const {
  machine["roof_bytes_per_s"] = {{std::to_string(pool_.threads()), read()}};
  nlohmann::json operations = nlohmann::json::object();
  for (const auto& [loop, rate] : operations_) operations[std::string(loop->name)] = rate;
  machine["roof_ops_per_s"] = std::move(operations);
}

std::string Roofs::text() const {
  const Spread r = spread(probes_);
  std::string out = fmt::format("read {:.1f} GB/s ({:.1f}..{:.1f}; {}), {} threads\n", r.median * 1e-9,
                                r.min * 1e-9, r.max * 1e-9, read_loop_->name, pool_.threads());
  for (const auto& [loop, rate] : operations_)
    out += fmt::format("{} {:.0f} {}\n", loop->name, rate * 1e-9,
                       loop->kind == RoofKind::kInt8 ? "GOP/s int8" : "GFLOP/s f32");
  return out;
}

}  // namespace tally::apps
