#include "kernel_probes.h"

#include "bench_lists.h"
#include "kernel_data.h"

#include <cstring>
#include <memory>

namespace tally::apps {
namespace {

// F32, the widest, has 256 KiB of weights and with 64 rows as much of activations.
constexpr size_t kMatrixGroups = 2, kMatrixRows = kMatrixGroups * kernels::kGroupRows, kMatrixColumns = 1024;

// Weights of one type: read by all threads, written by none.
struct Matrix {
  kernels::LinearFormat format;
  CacheLines weights;
};

Matrix matrix_of(const kernels::LinearFormat& format) {
  const size_t group_bytes = format.group_bytes(kMatrixColumns);
  const CacheLines group = random_group(format, kMatrixColumns);
  Matrix out{format, cache_lines(kMatrixGroups * group_bytes + kernels::kTailPadding)};
  for (size_t g = 0; g < kMatrixGroups; ++g)
    std::memcpy(out.weights[0].bytes + g * group_bytes, group[0].bytes, group_bytes);
  return out;
}

// What `rounds` multiplications left, so that none can be left out.
uint64_t multiply(const Matrix& matrix, const CacheLines& panel, uint32_t tokens, uint64_t rounds) {
  std::vector<float> product(tokens * kMatrixRows);
  kernels::LinearArgs args;
  args.weights = matrix.weights[0].bytes, args.rows = kMatrixRows, args.k = kMatrixColumns;
  args.panel = panel[0].bytes, args.tokens = tokens, args.group_end = kMatrixGroups;
  args.out = product.data(), args.out_stride = kMatrixRows, args.tuning = matrix.format.tuning;
  for (uint64_t i = 0; i < rounds; ++i) matrix.format.run(args);
  uint32_t bits = 0;
  std::memcpy(&bits, product.data(), sizeof bits);
  return bits;
}

}  // namespace

std::vector<measure::RoofProbe> kernel_probes() {
  std::vector<measure::RoofProbe> out;
  const kernels::KernelTable table = kernels::kernel_table(kernels::best_isa());
  for (const kernels::LinearFormat& format : table.linear) {
    const auto matrix = std::make_shared<const Matrix>(matrix_of(format));
    for (const uint32_t tokens : measure::kKernelRows) {
      const auto panel =
          std::make_shared<const CacheLines>(random_panel(table, format, tokens, kMatrixColumns));
      out.push_back({.kind = measure::RoofKind::kKernel,
                     .name = lower(tensor::dtype_info(format.type).name),
                     .work = 2.0 * kMatrixRows * kMatrixColumns * tokens,
                     .run = [matrix, panel, tokens](
                                const std::byte*, size_t,
                                uint64_t rounds) { return multiply(*matrix, *panel, tokens, rounds); },
                     .rows = tokens});
    }
  }
  return out;
}

}  // namespace tally::apps
