#pragma once
// The search behind the super-block encoders: a scale (and minimum) for a few values, minimising the weighted
// squared error. Codes are found by rounding under a candidate scale, then the scale is solved for by least
// squares under those codes; the best of a fan of candidates wins.

#include <cstddef>

namespace tally::kernels {

// x ~ scale * q - min, q in 0..top, min >= 0.
struct AffineFit {
  float scale = 0, min = 0;
};
// n is a multiple of 8, at most 32; weights positive; |x| <= 1e9.
AffineFit fit_affine(const float* x, const float* weights, size_t n, int top);

// x ~ scale * q, q in -zero..zero - 1. n is a multiple of 8; |x| <= 1e9.
float fit_symmetric(const float* x, const float* weights, size_t n, int zero);

// Codes of x under a given scale and minimum, as floats, and their weighted squared error.
// affine: q = round((x + min) / scale) in 0..top; symmetric: q = round(x / scale) in -zero..zero - 1. Scale
// 0: q = 0.
float affine_codes(const float* x, const float* weights, size_t n, int top, AffineFit fit, float* q);
float symmetric_codes(const float* x, const float* weights, size_t n, int zero, float scale, float* q);

}  // namespace tally::kernels
