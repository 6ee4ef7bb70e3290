// The definition of the activation panels.

#include "kernels/panel/quantize.h"
#include "kernels/panel/rows.h"

#include <bit>
#include <cmath>

namespace tally::kernels {
namespace {

bool finite(const float* x, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if ((std::bit_cast<uint32_t>(x[i]) & kNonfinite) == kNonfinite) return false;
  return true;
}

// Writes n codes and returns d.
float quantize(const float* x, size_t n, int8_t* q) {
  float amax = 0;
  for (size_t i = 0; i < n; ++i) amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
  if (amax < kAmaxMin) {
    std::memset(q, 0, n);
    return 0;
  }
  const float inverse = 127.0f / amax;
  for (size_t i = 0; i < n; ++i) {
    const long code = std::lrint(x[i] * inverse);  // rounds to nearest even
    q[i] = static_cast<int8_t>(code > 127 ? 127 : code < -127 ? -127 : code);
  }
  return amax / 127.0f;
}

int32_t sum(const int8_t* q, size_t n) {
  int32_t s = 0;
  for (size_t i = 0; i < n; ++i) s += q[i];
  return s;
}

}  // namespace

void panel_f32_scalar(const PanelArgs& a) {
  each_panel_row(a, a.k * sizeof(float), finite, [&](const float* x, const PanelRow& row, bool zero) {
    for (size_t k = 0; k < a.k; ++k) {
      const float value = zero ? 0.0f : x[k];
      std::memcpy(row.tile + (k * row.tokens + row.t) * sizeof(float), &value, sizeof value);
    }
  });
}

void panel_int32_scalar(const PanelArgs& a) {
  const size_t blocks = a.k / 32;
  each_panel_row(a, blocks * kInt32BlockBytes, finite, [&](const float* x, const PanelRow& row, bool zero) {
    static constexpr float kZeros[32] = {};
    for (size_t b = 0; b < blocks; ++b) {
      const Int32Out out = int32_out(row, b);
      *out.d = quantize(zero ? kZeros : x + 32 * b, 32, out.q);
      *out.sum = sum(out.q, 32);
    }
  });
}

void panel_int256_scalar(const PanelArgs& a) {
  const size_t blocks = a.k / 256;
  each_panel_row(a, blocks * kInt256BlockBytes, finite, [&](const float* x, const PanelRow& row, bool zero) {
    static constexpr float kZeros[256] = {};
    for (size_t b = 0; b < blocks; ++b) {
      const Int256Out out = int256_out(row, b);
      *out.d = quantize(zero ? kZeros : x + 256 * b, 256, out.q);
      for (size_t g = 0; g < 16; ++g) out.sum16[g] = static_cast<int16_t>(sum(out.q + 16 * g, 16));
      for (size_t g = 0; g < 8; ++g) out.sum32[g] = static_cast<int16_t>(sum(out.q + 32 * g, 32));
    }
  });
}

}  // namespace tally::kernels
