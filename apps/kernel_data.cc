#include "kernel_data.h"

#include <random>

namespace tally::apps {

using kernels::kGroupRows;
using kernels::LinearFormat;

CacheLines cache_lines(size_t bytes) { return CacheLines(bytes / sizeof(CacheLine) + 1); }

CacheLines random_group(const LinearFormat& format, size_t k) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  const size_t row_bytes = tensor::row_bytes(format.type, k);
  std::vector<std::byte> rows(kGroupRows * row_bytes);
  std::vector<float> x(k);
  for (size_t r = 0; r < kGroupRows; ++r) {
    std::byte* row = rows.data() + r * row_bytes;
    for (float& value : x) value = normal(random);
    // Where there is no encoder, any bytes are a row.
    if (format.encode == nullptr || !format.encode(x.data(), k, row))
      for (size_t i = 0; i < row_bytes; ++i) row[i] = static_cast<std::byte>(random() & 255u);
  }
  CacheLines group = cache_lines(format.group_bytes(k));
  format.pack(rows.data(), kGroupRows, k, group[0].bytes);
  return group;
}

CacheLines random_panel(const kernels::KernelTable& table, const LinearFormat& format, uint32_t tokens,
                        size_t k) {
  std::mt19937 random(tokens);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t{tokens} * k);
  for (float& value : x) value = normal(random);
  std::vector<uint8_t> nonfinite(tokens);
  CacheLines panel = cache_lines(kernels::panel_bytes(format.panel, tokens, k));
  kernels::PanelArgs args;
  args.x = x.data(), args.x_stride = k, args.tokens = tokens, args.k = k;
  args.token_end = tokens, args.panel = panel[0].bytes, args.nonfinite = nonfinite.data();
  table.panel[static_cast<size_t>(format.panel)](args);
  return panel;
}

}  // namespace tally::apps
