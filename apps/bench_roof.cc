#include "bench_roof.h"

#include "bench_machine.h"
#include "machine_roofs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using kernels::RoofKind;
using kernels::RoofLoop;

constexpr int kTrials = 5;

}  // namespace

Roofs::Roofs(base::ThreadPool& pool, const std::byte* data, size_t bytes)
    : pool_(pool), data_(data), bytes_(bytes) {
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
  return measure::read_rate(roof_probe(loop), pool_, {data_, bytes_});
}

double Roofs::time_operations(const RoofLoop& loop) {
  return measure::operation_rate(roof_probe(loop), pool_);
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
