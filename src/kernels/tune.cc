#include "kernels/tune.h"

#include "kernels/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <sstream>
#include <type_traits>

namespace tally::kernels {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kPrefetch[] = {0, 2048, 4096, 8192, 16384};  // bytes
constexpr uint32_t kChunk[] = {128u << 10, 256u << 10, 512u << 10, 1u << 20};
constexpr size_t kRowCounts[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32};
constexpr int kTrials = 4;
constexpr size_t kSampleBytes = size_t{8} << 20;         // of weights under one trial
constexpr size_t kChunkTokens = 256, kChunkGroups = 16;  // of a trial of chunk_bytes

// The matrices of one type, as one long row of groups that trials walk around in turn, so that what a trial
// reads has left the caches since it was last read.
class Bench {
 public:
  Bench(const LinearFormat& format, PanelFn panel, std::span<const TuneMatrix> matrices,
        base::ThreadPool& pool)
      : format_(format), pool_(pool) {
    size_t k = 0;
    for (const TuneMatrix& m : matrices) {
      if (m.format != &format || m.rows < kGroupRows) continue;
      matrices_.push_back(m);
      k = std::max(k, m.k);
    }
    if (matrices_.empty()) return;
    std::vector<float> x(k);
    for (size_t i = 0; i < k; ++i) x[i] = static_cast<float>(i * 37 % 101) - 50.f;
    panel_.resize(panel_bytes(format.panel, kChunkTokens, k) / sizeof(Line) + 1);
    std::vector<uint8_t> nonfinite(kChunkTokens);
    // Every token is the same row: x_stride 0. The panel of fewer tokens or a shorter k is other bytes of the
    // same kind, and time does not depend on values.
    panel({.x = x.data(),
           .x_stride = 0,
           .tokens = kChunkTokens,
           .k = k,
           .token_begin = 0,
           .token_end = kChunkTokens,
           .panel = reinterpret_cast<std::byte*>(panel_.data()),
           .nonfinite = nonfinite.data()});
    out_.resize(pool.threads() * kChunkTokens * kGroupRows * kChunkGroups);
  }

  bool usable() const { return !matrices_.empty(); }

  // Seconds of `tokens` rows for each byte of weights.
  double seconds_per_byte(size_t tokens, const LinearTuning& walk) {
    cut(kSampleBytes, 4);
    return run(tokens, walk) / static_cast<double>(bytes_);
  }

  // Seconds of a piece of a prompt: weights are read again for each chunk of the panel.
  double prompt_seconds(const LinearTuning& walk) {
    matrix_ = 0, group_ = 0;  // the same weights each time
    cut(0, kChunkGroups);
    return run(kChunkTokens, walk);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Item {
    const std::byte* weights;
    size_t groups, k;
  };

  // The next groups, at least `bytes` of them and one item for each thread, in items of up to `most` groups.
  void cut(size_t bytes, size_t most) {
    items_.clear(), bytes_ = 0;
    while (bytes_ < bytes || items_.size() < pool_.threads()) {
      const TuneMatrix& m = matrices_[matrix_];
      const size_t all = m.rows / kGroupRows, each = format_.group_bytes(m.k);  // whole groups only
      const size_t n = std::min(most, all - group_);
      items_.push_back({m.weights + group_ * each, n, m.k});
      bytes_ += n * each, group_ += n;
      if (group_ == all) group_ = 0, matrix_ = (matrix_ + 1) % matrices_.size();
    }
  }

  double run(size_t tokens, const LinearTuning& walk) {
    const auto begin = Clock::now();
    pool_.parallel_for(items_.size(), [&](size_t i, size_t worker) {
      const Item& item = items_[i];
      LinearArgs args;
      args.weights = item.weights, args.rows = item.groups * kGroupRows, args.k = item.k;
      args.panel = reinterpret_cast<const std::byte*>(panel_.data()), args.tokens = tokens;
      args.out = out_.data() + worker * (out_.size() / pool_.threads()), args.out_stride = args.rows;
      args.group_end = item.groups, args.tuning = walk;
      format_.run(args);
    });
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  const LinearFormat& format_;
  base::ThreadPool& pool_;
  std::vector<TuneMatrix> matrices_;
  std::vector<Line> panel_;
  std::vector<float> out_;
  std::vector<Item> items_;
  size_t matrix_ = 0, group_ = 0, bytes_ = 0;
};

const tensor::DTypeInfo* find_type(std::string_view name) {
  for (const tensor::DTypeInfo& info : tensor::dtypes())
    if (info.name == name) return &info;
  return nullptr;
}

// Fills the counts between the measured ones and makes the table monotone: c(t) is used
// to decide whether a row more pays, and noise must not say that it earns.
void complete(const std::array<double, std::size(kRowCounts)>& seconds, std::array<float, kCostRows>& cost) {
  static_assert(kRowCounts[0] == 1 && kRowCounts[std::size(kRowCounts) - 1] == kCostRows);
  size_t i = 0;
  for (size_t t = 1; t <= kCostRows; ++t) {
    if (t > kRowCounts[i + 1]) ++i;
    const double t0 = static_cast<double>(kRowCounts[i]), t1 = static_cast<double>(kRowCounts[i + 1]);
    const double share = (static_cast<double>(t) - t0) / (t1 - t0);
    const double c = seconds[i] + (seconds[i + 1] - seconds[i]) * share;
    cost[t - 1] = std::max(static_cast<float>(c / seconds[0]), t == 1 ? 1.f : cost[t - 2]);
  }
}

// The fastest of some trials of each candidate. Trials go round: a moment of noise meets all alike, and since
// noise only adds, the fastest is the truest. The first round is always finished.
template <size_t N>
std::array<double, N> fastest(Clock::time_point deadline, const std::function<double(size_t)>& trial) {
  std::array<double, N> best{};
  for (int round = 0; round < kTrials; ++round) {
    for (size_t i = 0; i < N; ++i) {
      if (round > 0 && Clock::now() > deadline) return best;
      const double s = trial(i);
      if (round == 0 || s < best[i]) best[i] = s;
    }
  }
  return best;
}

FormatTuning tune_format(const LinearFormat& format, Bench& bench, Clock::time_point deadline) {
  FormatTuning result;
  result.type = format.type, result.walk = format.tuning;
  const auto choose = [&](const auto& candidates, uint32_t LinearTuning::* field, const auto& seconds) {
    constexpr size_t kCount = std::extent_v<std::remove_reference_t<decltype(candidates)>>;
    const auto best = fastest<kCount>(deadline, [&](size_t i) {
      LinearTuning walk = result.walk;
      walk.*field = candidates[i];
      return seconds(walk);
    });
    result.walk.*field = candidates[std::min_element(best.begin(), best.end()) - best.begin()];
  };
  choose(kPrefetch, &LinearTuning::prefetch_bytes,
         [&](const LinearTuning& walk) { return bench.seconds_per_byte(1, walk); });
  choose(kChunk, &LinearTuning::chunk_bytes,
         [&](const LinearTuning& walk) { return bench.prompt_seconds(walk); });
  complete(fastest<std::size(kRowCounts)>(
               deadline, [&](size_t i) { return bench.seconds_per_byte(kRowCounts[i], result.walk); }),
           result.cost);
  return result;
}

}  // namespace

std::vector<FormatTuning> tune(const KernelTable& kernels, std::span<const TuneMatrix> matrices,
                               base::ThreadPool& pool, uint32_t budget_ms) {
  std::vector<const LinearFormat*> formats;
  for (const LinearFormat& format : kernels.linear) {
    const bool used = std::any_of(matrices.begin(), matrices.end(), [&](const TuneMatrix& m) {
      return m.format == &format && m.rows >= kGroupRows;
    });
    if (used) formats.push_back(&format);
  }
  std::vector<FormatTuning> result;
  auto mark = Clock::now();
  for (size_t i = 0; i < formats.size(); ++i) {
    const auto share = std::chrono::microseconds(uint64_t{budget_ms} * 1000 / formats.size());
    Bench bench(*formats[i], kernels.panel[static_cast<size_t>(formats[i]->panel)], matrices, pool);
    result.push_back(tune_format(*formats[i], bench, mark += share));
  }
  return result;
}

std::string tuning_text(std::string_view key, std::span<const FormatTuning> tuning) {
  std::string out = fmt::format("{}\n", key);
  for (const FormatTuning& f : tuning) {
    out +=
        fmt::format("{} {} {}", tensor::dtype_info(f.type).name, f.walk.prefetch_bytes, f.walk.chunk_bytes);
    for (const float c : f.cost) out += fmt::format(" {:.3f}", c);
    out += '\n';
  }
  return out;
}

std::vector<FormatTuning> parse_tuning(std::string_view key, std::string_view text) {
  std::istringstream lines{std::string(text)};
  std::string line;
  if (!std::getline(lines, line) || line != key) return {};
  std::vector<FormatTuning> result;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string name, rest;
    FormatTuning f;
    words >> name >> f.walk.prefetch_bytes >> f.walk.chunk_bytes;
    for (float& c : f.cost) words >> c;
    const tensor::DTypeInfo* type = find_type(name);
    bool good = words && !(words >> rest) && type != nullptr && f.walk.prefetch_bytes <= kTailPadding &&
                f.walk.chunk_bytes >= 4096 && f.walk.chunk_bytes <= (64u << 20) && f.cost[0] == 1.f;
    for (size_t t = 1; good && t < kCostRows; ++t)
      good = std::isfinite(f.cost[t]) && f.cost[t] >= f.cost[t - 1];
    if (!good) return {};
    f.type = type->type;
    result.push_back(f);
  }
  return result;
}

}  // namespace tally::kernels
