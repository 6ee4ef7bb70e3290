#pragma once
// The vector kernels of the table: a part of the door kernels.h. Formulas, accuracy and what becomes of
// non-finite values: vector/polynomials.h; order of operations: vector/scalar.cc.

#include "kernels/isa.h"

#include <cstddef>

namespace tally::kernels {

// out = act(x) * up, or act(x) where up is nullptr. out may be x.
using ActivationFn = void (*)(const float* x, const float* up, size_t n, float* out);

// Sums use 16 strided partials (element i to partial i mod 16) and the fixed tree i+8, i+4, i+2, i+1.
struct VectorKernels {
  // y = x / sqrt(mean(x^2) + eps) * w.  y may be x.
  void (*rms_norm)(const float* x, const float* w, float eps, size_t n, float* y);
  // y = (x - mean) / sqrt(variance + eps) * w + b, with the variance of the population. w and b may be
  // nullptr: left out. y may be x.
  void (*layer_norm)(const float* x, const float* w, const float* b, float eps, size_t n, float* y);
  void (*add)(const float* x, size_t n, float* y);                  // y += x
  void (*add_scaled)(float a, const float* x, size_t n, float* y);  // y = fma(a, x, y)
  void (*mul)(const float* x, size_t n, float* y);                  // y *= x
  void (*scale)(float a, size_t n, float* y);                       // y *= a
  void (*sigmoid_scale)(float logit, size_t n, float* y);  // y *= sigmoid(logit): a gate of one number
  void (*clamp)(float limit, size_t n, float* y);          // y = min(max(y, -limit), limit); NaN stays
  void (*softcap)(float cap, size_t n, float* y);          // y = cap * tanh(y / cap)
  ActivationFn silu_mul;                                   // x * sigmoid(x)
  ActivationFn gelu_mul;                                   // gelu by tanh
  ActivationFn gelu_erf_mul;                               // gelu by erf: x * (1 + erf(x / sqrt 2)) / 2
  ActivationFn relu2_mul;                                  // max(x, 0)^2
  // With g = min(gate, limit) and u = min(max(up, -limit), limit): out = g * sigmoid(alpha * g) * (u + 1).
  // out may be gate.
  void (*swiglu_oai)(const float* gate, const float* up, float alpha, float limit, size_t n, float* out);
  // Rotates the first 2 * pairs values of one head. kNorm: pair (2i, 2i+1); kNeox: pair (i, i + pairs).
  // cos_sin: [pairs][2] f32 for this position.
  void (*rope_norm)(const float* cos_sin, size_t pairs, float* head);
  void (*rope_neox)(const float* cos_sin, size_t pairs, float* head);
  Isa isa;
};

}  // namespace tally::kernels
