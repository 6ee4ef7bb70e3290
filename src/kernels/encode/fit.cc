#include "kernels/encode/fit.h"

#include <algorithm>
#include <cmath>

namespace tally::kernels {
namespace {

// Sums run in eight strided partials, which the compiler turns into vectors; the order is fixed, so are the
// bits.
constexpr size_t kLanes = 8;
constexpr size_t kValuesMax = 32;
// Far below the least scale that f16 can say (6e-8); its inverse is finite.
constexpr float kFlat = 1e-12f;

float total(const float (&lanes)[kLanes]) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Half to even; exact for |x| < 2^22.
float round_small(float x) {
  constexpr float kMagic = 0x1.8p23f;
  return (x + kMagic) - kMagic;
}

// q = round((x + shift) * inverse) in low..high. The inverse is finite, so that 0 never meets an infinity.
struct Grid {
  float shift, inverse, low, high;
};
void round_codes(const float* x, size_t n, const Grid& grid, float* q) {
  for (size_t i = 0; i < n; ++i)
    q[i] = round_small(std::min(std::max((x[i] + grid.shift) * grid.inverse, grid.low), grid.high));
}

float inverse_of(float scale) {
  const float inverse = scale == 0 ? 0 : 1.0f / scale;
  return std::fabs(inverse) < HUGE_VALF ? inverse : 0;
}

struct Moments {
  double w = 0, x = 0, xx = 0;  // sums of weight times 1, x, x^2
};
struct CodeMoments {
  double q = 0, qq = 0, qx = 0;  // sums of weight times q, q^2, q x
};

Moments moments(const float* x, const float* weights, size_t n) {
  float w[kLanes] = {}, wx[kLanes] = {}, wxx[kLanes] = {};
  for (size_t i = 0; i < n; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) {
      const float weighted = weights[i + l] * x[i + l];
      w[l] += weights[i + l], wx[l] += weighted, wxx[l] += weighted * x[i + l];
    }
  return {total(w), total(wx), total(wxx)};
}

CodeMoments code_moments(const float* x, const float* weights, const float* q, size_t n) {
  float wq[kLanes] = {}, wqq[kLanes] = {}, wqx[kLanes] = {};
  for (size_t i = 0; i < n; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) {
      const float weighted = weights[i + l] * q[i + l];
      wq[l] += weighted, wqq[l] += weighted * q[i + l], wqx[l] += weighted * x[i + l];
    }
  return {total(wq), total(wqq), total(wqx)};
}

struct Solved {
  AffineFit fit;
  double error = 0;
};

// The best scale and minimum for given codes.
Solved solve(const Moments& m, const CodeMoments& c) {
  const double determinant = m.w * c.qq - c.q * c.q;
  double scale = 0, min = 0;
  if (determinant > 0) {
    scale = (m.w * c.qx - c.q * m.x) / determinant;
    min = (c.q * c.qx - c.qq * m.x) / determinant;
  }
  if (min < 0 || determinant <= 0) min = 0, scale = c.qq > 0 ? c.qx / c.qq : 0;
  const double error =
      m.xx + scale * (scale * c.qq - 2 * c.qx) + min * (min * m.w + 2 * m.x - 2 * scale * c.q);
  return {{static_cast<float>(scale), static_cast<float>(min)}, error};
}

}  // namespace

AffineFit fit_affine(const float* x, const float* weights, size_t n, int top) {
  const auto [lowest, highest] = std::minmax_element(x, x + n);
  const float low = std::min(*lowest, 0.0f), high = *highest;
  if (high - low < kFlat) return {0, -low};
  const Moments m = moments(x, weights, n);
  const auto steps = static_cast<float>(top);
  Solved best{{(high - low) / steps, -low}, HUGE_VAL};
  float q[kValuesMax];
  const auto try_fit = [&](float shift, float inverse) {
    round_codes(x, n, {shift, inverse, 0, steps}, q);
    const Solved solved = solve(m, code_moments(x, weights, q, n));
    if (!(solved.error < best.error) || solved.fit.scale <= 0) return false;
    best = solved;
    return true;
  };
  // Narrower and wider than the range: clipping the ends may pay, and so may a finer or coarser grid.
  constexpr int kFrom = -12, kTo = 9;
  for (int i = kFrom; i <= kTo; ++i) try_fit(-low, (steps + 0.1f * static_cast<float>(i)) / (high - low));
  constexpr int kRounds = 3;
  for (int i = 0; i < kRounds; ++i)
    if (!try_fit(best.fit.min, inverse_of(best.fit.scale))) break;
  return best.fit;
}

float fit_symmetric(const float* x, const float* weights, size_t n, int zero) {
  float extreme = 0;
  for (size_t i = 0; i < n; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  if (std::fabs(extreme) < kFlat) return 0;
  const auto low = static_cast<float>(-zero), high = static_cast<float>(zero - 1);
  float best_scale = extreme / low;
  double best_gain = 0;
  float q[kValuesMax];
  const auto try_inverse = [&](float inverse) {
    round_codes(x, n, {0, inverse, low, high}, q);
    const CodeMoments c = code_moments(x, weights, q, n);
    if (c.qq <= 0 || c.qx * c.qx <= best_gain * c.qq) return false;
    best_gain = c.qx * c.qx / c.qq;
    best_scale = static_cast<float>(c.qx / c.qq);
    return true;
  };
  // The extreme value on either end of the codes, the grid a little finer or coarser.
  constexpr int kSteps = 9;
  for (int i = -kSteps; i <= kSteps; ++i) {
    try_inverse((low - 0.1f * static_cast<float>(i)) / extreme);
    try_inverse((high + 0.1f * static_cast<float>(i)) / extreme);
  }
  try_inverse(inverse_of(best_scale));
  return best_scale;
}

float affine_codes(const float* x, const float* weights, size_t n, int top, AffineFit fit, float* q) {
  round_codes(x, n, {fit.min, inverse_of(fit.scale), 0, static_cast<float>(top)}, q);
  float error[kLanes] = {};
  for (size_t i = 0; i < n; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) {
      const float off = fit.scale * q[i + l] - fit.min - x[i + l];
      error[l] += weights[i + l] * off * off;
    }
  return total(error);
}

float symmetric_codes(const float* x, const float* weights, size_t n, int zero, float scale, float* q) {
  round_codes(x, n, {0, inverse_of(scale), static_cast<float>(-zero), static_cast<float>(zero - 1)}, q);
  float error[kLanes] = {};
  for (size_t i = 0; i < n; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) {
      const float off = scale * q[i + l] - x[i + l];
      error[l] += weights[i + l] * off * off;
    }
  return total(error);
}

}  // namespace tally::kernels
