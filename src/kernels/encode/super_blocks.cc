// Q4_K, Q5_K, Q6_K: 256 elements with a scale (and minimum) in f16, and a small integer scale (and minimum)
// for each sub-block. First each sub-block is fitted by itself (fit.h); the largest scale sets the
// super-block's; then the integers are chosen among the neighbours of the rounded ones by the error they
// give, the f16 numbers are solved for again under those codes, and the better of the two rounds is kept.

#include "kernels/encode/encode.h"
#include "kernels/encode/fit.h"
#include "tensor/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace tally::kernels {
namespace {

constexpr size_t kSuper = 256;
constexpr float kRange = 1e9f;        // beyond what any of the types can hold
constexpr float kNothing = 0x1p-25f;  // below half the least step that f16 can say
constexpr int kRounds = 2;            // fitted apart, then solved for together

bool in_range(const float* x) {
  bool in = true;
  for (size_t i = 0; i < kSuper; ++i) in &= std::fabs(x[i]) <= kRange;  // false for NaN
  return in;
}

bool is_nothing(const float* x) {
  return std::all_of(x, x + kSuper, [](float v) { return std::fabs(v) < kNothing; });
}

// To f16, never to zero: the least subnormal with larger integers is better than nothing.
uint16_t scale_to_f16(float scale) {
  const uint16_t half = tensor::f32_to_f16(scale);
  return scale != 0 && (half & 0x7FFF) == 0 ? static_cast<uint16_t>(half | 1) : half;
}
bool finite_f16(uint16_t h) { return (h & 0x7C00) != 0x7C00; }

// round(value / unit) in low..high; unit 0 gives 0.
int ratio(float value, float unit, int low, int high) {
  if (unit == 0) return 0;
  const float steps = std::clamp(value / unit, static_cast<float>(low), static_cast<float>(high));
  return static_cast<int>(std::lround(steps));
}

// ---- Q4_K, Q5_K
// --------------------------------------------------------------------------------------------------------------

constexpr size_t kAffineSubs = 8, kAffineSub = 32;
constexpr int kSixBits = 63;

struct AffineBlock {
  uint16_t d = 0, dmin = 0;
  int scale[kAffineSubs] = {}, min[kAffineSubs] = {};
  float q[kSuper] = {};
  double error = 0;
};

// Larger values matter more, but none is free.
void affine_weights(const float* x, float* weights) {
  for (size_t sub = 0; sub < kSuper; sub += kAffineSub) {
    float squares = 0;
    for (size_t i = 0; i < kAffineSub; ++i) squares += x[sub + i] * x[sub + i];
    const float mean = std::sqrt(squares / static_cast<float>(kAffineSub));
    for (size_t i = 0; i < kAffineSub; ++i) weights[sub + i] = mean + std::fabs(x[sub + i]);
  }
}

// The integers of every sub-block under the block's d and dmin, near those of `fits`.
void choose_affine(const float* x, const float* weights, const AffineFit* fits, int top, AffineBlock& block) {
  const float d = tensor::f16_to_f32(block.d), dmin = tensor::f16_to_f32(block.dmin);
  block.error = 0;
  for (size_t j = 0; j < kAffineSubs; ++j) {
    const int scale = ratio(fits[j].scale, d, 0, kSixBits), min = ratio(fits[j].min, dmin, 0, kSixBits);
    const float *sub = x + kAffineSub * j, *w = weights + kAffineSub * j;
    float best = HUGE_VALF, q[kAffineSub];
    for (int s = std::max(scale - 1, 0); s <= std::min(scale + 1, kSixBits); ++s)
      for (int m = std::max(min - 1, 0); m <= std::min(min + 1, kSixBits); ++m) {
        const float error = affine_codes(sub, w, kAffineSub, top,
                                         {d * static_cast<float>(s), dmin * static_cast<float>(m)}, q);
        if (!(error < best)) continue;
        best = error;
        block.scale[j] = s, block.min[j] = m;
        std::copy_n(q, kAffineSub, block.q + kAffineSub * j);
      }
    block.error += best;
  }
}

// The d and dmin that are best for the block's integers; false if they make no sense.
bool solve_affine(const float* x, const float* weights, AffineBlock& block) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;  // x ~ d * a - dmin * b
  for (size_t i = 0; i < kSuper; ++i) {
    const size_t j = i / kAffineSub;
    const double w = weights[i], a = static_cast<double>(block.q[i]) * block.scale[j], b = block.min[j];
    aa += w * a * a, ab += w * a * b, bb += w * b * b, ax += w * a * x[i], bx += w * b * x[i];
  }
  const double determinant = aa * bb - ab * ab;
  const double d = determinant > 0 ? (bb * ax - ab * bx) / determinant : aa > 0 ? ax / aa : 0;
  const double dmin = determinant > 0 ? (ab * ax - aa * bx) / determinant : 0;
  if (!(d > 0) || dmin < 0 || (determinant <= 0 && bb > 0)) return false;
  block.d = scale_to_f16(static_cast<float>(d)), block.dmin = scale_to_f16(static_cast<float>(dmin));
  return finite_f16(block.d) && finite_f16(block.dmin);
}

bool fit_block(const float* x, int top, AffineBlock& block) {
  block = {};
  if (!in_range(x)) return false;
  if (is_nothing(x)) return true;
  float weights[kSuper];
  affine_weights(x, weights);
  AffineFit fits[kAffineSubs];
  AffineFit most;
  for (size_t j = 0; j < kAffineSubs; ++j) {
    fits[j] = fit_affine(x + kAffineSub * j, weights + kAffineSub * j, kAffineSub, top);
    most.scale = std::max(most.scale, fits[j].scale), most.min = std::max(most.min, fits[j].min);
  }
  block.d = scale_to_f16(most.scale / kSixBits), block.dmin = scale_to_f16(most.min / kSixBits);
  if (!finite_f16(block.d) || !finite_f16(block.dmin)) return false;
  choose_affine(x, weights, fits, top, block);
  for (int round = 1; round < kRounds; ++round) {
    AffineBlock next = block;
    if (!solve_affine(x, weights, next)) break;
    choose_affine(x, weights, fits, top, next);
    if (next.error >= block.error) break;
    block = next;
  }
  return true;
}

// The inverse of q4k_scale_min.
void put_scale_mins(const AffineBlock& block, uint8_t sc[12]) {
  std::memset(sc, 0, 12);
  for (size_t j = 0; j < 4; ++j) {
    sc[j] = static_cast<uint8_t>(block.scale[j] | (block.scale[j + 4] >> 4) << 6);
    sc[j + 4] = static_cast<uint8_t>(block.min[j] | (block.min[j + 4] >> 4) << 6);
    sc[j + 8] = static_cast<uint8_t>((block.scale[j + 4] & 15) | (block.min[j + 4] & 15) << 4);
  }
}

// Sub-blocks 2n and 2n + 1 share 32 bytes: low and high nibbles.
void put_nibbles(const AffineBlock& block, uint8_t q[128]) {
  for (size_t i = 0; i < 128; ++i) {
    const size_t at = i / 32 * 64 + i % 32;
    const int low = static_cast<int>(block.q[at]), high = static_cast<int>(block.q[at + 32]);
    q[i] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
  }
}

void put(const AffineBlock& block, tensor::BlockQ4_K& out) { put_nibbles(block, out.q); }

void put(const AffineBlock& block, tensor::BlockQ5_K& out) {
  put_nibbles(block, out.q);
  std::memset(out.h, 0, sizeof out.h);
  for (size_t i = 0; i < kSuper; ++i)
    out.h[i % 32] = static_cast<uint8_t>(out.h[i % 32] | (static_cast<int>(block.q[i]) >> 4) << i / 32);
}

template <class Block>
bool encode_affine(const float* x, size_t k, std::byte* row, int top) {
  for (size_t b = 0; b < k / kSuper; ++b) {
    AffineBlock fitted;
    if (!fit_block(x + b * kSuper, top, fitted)) return false;
    Block block;
    block.d = fitted.d, block.dmin = fitted.dmin;
    put_scale_mins(fitted, block.sc);
    put(fitted, block);
    std::memcpy(row + b * sizeof block, &block, sizeof block);
  }
  return true;
}

// ---- Q6_K
// --------------------------------------------------------------------------------------------------------------------

constexpr size_t kQ6Subs = 16, kQ6Sub = 16;
constexpr int kQ6Zero = 32, kScaleMin = -128, kScaleMax = 127;

struct Q6Block {
  uint16_t d = 0;
  int scale[kQ6Subs] = {};
  float q[kSuper] = {};
  double error = 0;
};

void choose_q6(const float* x, const float* weights, const float* fits, Q6Block& block) {
  const float d = tensor::f16_to_f32(block.d);
  block.error = 0;
  for (size_t j = 0; j < kQ6Subs; ++j) {
    const int scale = ratio(fits[j], d, kScaleMin, kScaleMax);
    float best = HUGE_VALF, q[kQ6Sub];
    for (int s = std::max(scale - 1, kScaleMin); s <= std::min(scale + 1, kScaleMax); ++s) {
      const float error = symmetric_codes(x + kQ6Sub * j, weights + kQ6Sub * j, kQ6Sub, kQ6Zero,
                                          d * static_cast<float>(s), q);
      if (!(error < best)) continue;
      best = error;
      block.scale[j] = s;
      std::copy_n(q, kQ6Sub, block.q + kQ6Sub * j);
    }
    block.error += best;
  }
}

bool solve_q6(const float* x, const float* weights, Q6Block& block) {
  double aa = 0, ax = 0;  // x ~ d * a
  for (size_t i = 0; i < kSuper; ++i) {
    const double a = static_cast<double>(block.q[i]) * block.scale[i / kQ6Sub];
    aa += weights[i] * a * a, ax += weights[i] * a * x[i];
  }
  if (!(aa > 0)) return false;
  block.d = scale_to_f16(static_cast<float>(ax / aa));
  return finite_f16(block.d);
}

bool fit_block(const float* x, Q6Block& block) {
  block = {};
  if (!in_range(x)) return false;
  if (is_nothing(x)) return true;
  float weights[kSuper], fits[kQ6Subs];
  for (size_t i = 0; i < kSuper; ++i) weights[i] = x[i] * x[i];
  float extreme = 0;
  for (size_t j = 0; j < kQ6Subs; ++j) {
    fits[j] = fit_symmetric(x + kQ6Sub * j, weights + kQ6Sub * j, kQ6Sub, kQ6Zero);
    if (std::fabs(fits[j]) > std::fabs(extreme)) extreme = fits[j];
  }
  block.d = scale_to_f16(extreme / static_cast<float>(kScaleMin));
  if (!finite_f16(block.d)) return false;
  choose_q6(x, weights, fits, block);
  for (int round = 1; round < kRounds; ++round) {
    Q6Block next = block;
    if (!solve_q6(x, weights, next)) break;
    choose_q6(x, weights, fits, next);
    if (next.error >= block.error) break;
    block = next;
  }
  return true;
}

void put(const Q6Block& fitted, tensor::BlockQ6_K& block) {
  std::memset(&block, 0, sizeof block);
  block.d = fitted.d;
  for (size_t j = 0; j < kQ6Subs; ++j) block.sc[j] = static_cast<int8_t>(fitted.scale[j]);
  for (size_t i = 0; i < kSuper; ++i) {
    const size_t half = i / 128, s = i % 128 / 32, l = i % 32;
    const int code = static_cast<int>(fitted.q[i]) + kQ6Zero;
    uint8_t& low = block.l[64 * half + 32 * (s % 2) + l];
    uint8_t& high = block.h[32 * half + l];
    low = static_cast<uint8_t>(low | (code & 15) << 4 * (s / 2));
    high = static_cast<uint8_t>(high | (code >> 4) << 2 * s);
  }
}

}  // namespace

bool encode_q4k(const float* x, size_t k, std::byte* row) {
  return encode_affine<tensor::BlockQ4_K>(x, k, row, 15);
}

bool encode_q5k(const float* x, size_t k, std::byte* row) {
  return encode_affine<tensor::BlockQ5_K>(x, k, row, 31);
}

bool encode_q6k(const float* x, size_t k, std::byte* row) {
  for (size_t b = 0; b < k / kSuper; ++b) {
    Q6Block fitted;
    if (!fit_block(x + b * kSuper, fitted)) return false;
    tensor::BlockQ6_K block;
    put(fitted, block);
    std::memcpy(row + b * sizeof block, &block, sizeof block);
  }
  return true;
}

}  // namespace tally::kernels
