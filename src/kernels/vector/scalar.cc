// The definition of the vector kernels. Sums: 16 strided partials (element i is fused into partial i mod 16),
// then the tree i with i+8, i+4, i+2, i+1. Everything else is element by element in the written order.

#include "kernels/vector/polynomials.h"
#include "kernels/vector/vector.h"

namespace tally::kernels {
namespace {

void rms_norm(const float* x, const float* w, float eps, size_t n, float* y) {
  float part[16] = {};
  for (size_t i = 0; i < n; ++i) part[i % 16] = std::fma(x[i], x[i], part[i % 16]);
  for (size_t step = 8; step > 0; step /= 2) {
    for (size_t i = 0; i < step; ++i) part[i] = part[i] + part[i + step];
  }
  const float mean = part[0] / static_cast<float>(n);
  const float inverse = 1.0f / std::sqrt(mean + eps);
  for (size_t i = 0; i < n; ++i) y[i] = (x[i] * inverse) * w[i];
}

void add(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = y[i] + x[i];
}

void scale(float a, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = y[i] * a;
}

void silu_mul(const float* gate, const float* up, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = silu_f32(gate[i]) * up[i];
}

void gelu_mul(const float* gate, const float* up, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = gelu_f32(gate[i]) * up[i];
}

void softcap(float cap, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = cap * tanh_f32(y[i] / cap);
}

// (a, b) -> (a cos - b sin, a sin + b cos): the products with b are rounded, those with a are fused.
void rotate(float cosine, float sine, float* a, float* b) {
  const float x = *a, y = *b;
  *a = std::fma(x, cosine, -(y * sine));
  *b = std::fma(x, sine, y * cosine);
}

void rope_norm(const float* cos_sin, size_t pairs, float* head) {
  for (size_t i = 0; i < pairs; ++i)
    rotate(cos_sin[2 * i], cos_sin[2 * i + 1], head + 2 * i, head + 2 * i + 1);
}

void rope_neox(const float* cos_sin, size_t pairs, float* head) {
  for (size_t i = 0; i < pairs; ++i) rotate(cos_sin[2 * i], cos_sin[2 * i + 1], head + i, head + i + pairs);
}

}  // namespace

const VectorKernels kVectorScalar = {rms_norm, add,       scale,     silu_mul,    gelu_mul,
                                     softcap,  rope_norm, rope_neox, Isa::kScalar};

}  // namespace tally::kernels
