#include "bench_kernel.h"

#include "base/clock.h"
#include "bench_machine.h"
#include "kernel_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tally::apps {
namespace {

using kernels::kGroupRows;
using kernels::LinearFormat;

constexpr double kRepetitionS = 0.02;

// One weight type: matrices of one packed random group of rows, again and again, over the arena.
class Matrices {
 public:
  Matrices(const LinearFormat& format, const KernelBenchSettings& s, const base::Arena& arena,
           base::ThreadPool& pool)
      : groups_((s.rows + kGroupRows - 1) / kGroupRows),
        group_bytes_(format.group_bytes(s.k)),
        count_(std::max<size_t>(1, (arena.size() - kernels::kTailPadding) / bytes())),
        data_(arena.data()) {
    const CacheLines group = random_group(format, s.k);
    pool.parallel_for(count_, [&](size_t m, size_t) {
      for (size_t g = 0; g < groups_; ++g)
        std::memcpy(data_ + m * bytes() + g * group_bytes_, group[0].bytes, group_bytes_);
    });
  }

  size_t groups() const { return groups_; }
  size_t bytes() const { return groups_ * group_bytes_; }
  const std::byte* next() { return data_ + (at_++ % count_) * bytes(); }

 private:
  size_t groups_, group_bytes_, count_, at_ = 0;
  std::byte* data_;
};

// A kernel with its activations and its output.
class Row {
 public:
  Row(const kernels::KernelTable& table, const LinearFormat& format, const KernelBenchSettings& s,
      uint32_t tokens)
      : format_(format),
        s_(s),
        tokens_(tokens),
        panel_(random_panel(table, format, tokens, s.k)),
        out_(size_t{tokens} * s.rows) {}

  // Multiplies `count` matrices, one after the other; seconds of one.
  double run(Matrices& matrices, size_t count, base::ThreadPool& pool) {
    const size_t step = std::max<size_t>(1, matrices.groups() / (8 * pool.threads()));
    const int64_t begin = base::now_us();
    for (size_t i = 0; i < count; ++i) {
      kernels::LinearArgs args;
      args.weights = matrices.next(), args.rows = s_.rows, args.k = s_.k;
      args.panel = panel_[0].bytes, args.tokens = tokens_;
      args.out = out_.data(), args.out_stride = s_.rows, args.tuning = format_.tuning;
      pool.parallel_for((matrices.groups() + step - 1) / step, [&](size_t item, size_t) {
        kernels::LinearArgs part = args;
        part.group_begin = item * step, part.group_end = std::min(matrices.groups(), part.group_begin + step);
        format_.run(part);
      });
    }
    return seconds_since(begin) / static_cast<double>(count);
  }

  KernelMeasure measure;
  size_t matrices_each = 1;  // of a repetition

 private:
  const LinearFormat& format_;
  const KernelBenchSettings& s_;
  const uint32_t tokens_;
  CacheLines panel_;
  std::vector<float> out_;
};

// The rows of one weight type: each tier that has a kernel of its own.
std::vector<Row> list_rows(const KernelBenchSettings& s, std::span<const kernels::KernelTable> tables,
                           tensor::DType type, const Roofs& roofs) {
  std::vector<Row> rows;
  for (const kernels::KernelTable& table : tables) {
    const LinearFormat* format = table.find_linear(type);
    if (format == nullptr || format->isa != table.isa) continue;
    const auto kind =
        format->panel == kernels::PanelKind::kF32 ? kernels::RoofKind::kF32 : kernels::RoofKind::kInt8;
    for (const uint32_t tokens : s.tokens) {
      if (s.scalar_at_one_token && table.isa == kernels::Isa::kScalar && tokens > 1) continue;
      KernelMeasure& m = rows.emplace_back(table, *format, s, tokens).measure;
      m.type = type, m.isa = table.isa, m.tokens = tokens;
      m.operations = 2.0 * s.rows * s.k * tokens, m.operations_roof = roofs.operations(kind, table.isa);
    }
  }
  return rows;
}

}  // namespace

uint64_t bench_working_bytes() {
  return std::clamp(2 * last_cache_bytes(), uint64_t{256} << 20, uint64_t{1} << 30);
}

std::vector<KernelMeasure> bench_kernels(const KernelBenchSettings& s, const base::Arena& arena,
                                         base::ThreadPool& pool, Roofs& roofs,
                                         const std::function<bool(double, const std::string&)>& go_on) {
  std::vector<kernels::KernelTable> tables;
  for (const kernels::Isa isa : s.isas) tables.push_back(kernels::kernel_table(isa));
  std::vector<KernelMeasure> done;
  for (size_t t = 0; t < s.types.size(); ++t) {
    std::vector<Row> rows = list_rows(s, tables, s.types[t], roofs);
    if (rows.empty()) continue;
    const LinearFormat& format = *tables[0].find_linear(s.types[t]);
    Matrices matrices(format, s, arena, pool);
    for (uint32_t round = 0; round <= s.repetitions; ++round) {  // the first one warms up
      roofs.probe();
      for (Row& row : rows) {
        const double share =
            (static_cast<double>(t) + round / (s.repetitions + 1.0)) / static_cast<double>(s.types.size());
        if (!go_on(share, fmt::format("{} {}", tensor::dtype_info(s.types[t]).name,
                                      kernels::isa_name(row.measure.isa))))
          return done;
        const double seconds = row.run(matrices, row.matrices_each, pool);
        if (round == 0) {
          row.measure.bytes = static_cast<double>(matrices.bytes());
          row.matrices_each = static_cast<size_t>(std::clamp(kRepetitionS / seconds, 0.0, 1e6)) + 1;
        } else {
          row.measure.seconds.push_back(seconds);
        }
      }
    }
    for (Row& row : rows) done.push_back(std::move(row.measure));
  }
  return done;
}

}  // namespace tally::apps
