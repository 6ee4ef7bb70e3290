// The definition of the vector kernels. Sums: 16 strided partials (element i is fused into partial i mod 16),
// then the tree i with i+8, i+4, i+2, i+1. Everything else is element by element in the written order.

#include "kernels/vector/polynomials.h"
#include "kernels/vector/vector.h"

#include <xmmintrin.h>

namespace tally::kernels {
namespace {

float tree_sum(float* part) {
  for (size_t step = 8; step > 0; step /= 2) {
    for (size_t i = 0; i < step; ++i) part[i] = part[i] + part[i + step];
  }
  return part[0];
}

void rms_norm(const float* x, const float* w, float eps, size_t n, float* y) {
  float part[16] = {};
  for (size_t i = 0; i < n; ++i) part[i % 16] = std::fma(x[i], x[i], part[i % 16]);
  const float mean = tree_sum(part) / static_cast<float>(n);
  const float inverse = 1.0f / std::sqrt(mean + eps);
  for (size_t i = 0; i < n; ++i) y[i] = (x[i] * inverse) * w[i];
}

void layer_norm(const float* x, const float* w, const float* b, float eps, size_t n, float* y) {
  float part[16] = {}, squares[16] = {};
  for (size_t i = 0; i < n; ++i) part[i % 16] = part[i % 16] + x[i];
  const float mean = tree_sum(part) / static_cast<float>(n);
  for (size_t i = 0; i < n; ++i) {
    const float d = x[i] - mean;
    squares[i % 16] = std::fma(d, d, squares[i % 16]);
  }
  const float inverse = 1.0f / std::sqrt(tree_sum(squares) / static_cast<float>(n) + eps);
  for (size_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inverse;
  for (size_t i = 0; w != nullptr && i < n; ++i) y[i] = y[i] * w[i];
  for (size_t i = 0; b != nullptr && i < n; ++i) y[i] = y[i] + b[i];
}

void add(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = y[i] + x[i];
}

void add_scaled(float a, const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = std::fma(a, x[i], y[i]);
}

void mul(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = y[i] * x[i];
}

void scale(float a, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = y[i] * a;
}

void sigmoid_scale(float logit, size_t n, float* y) { scale(sigmoid_f32(logit), n, y); }

// The instructions themselves: NaN passes as the second operand, and denormals become zero, which a
// comparison and a choice would let through with one compiler and not with another.
float at_most(float x, float limit) { return _mm_cvtss_f32(_mm_min_ss(_mm_set_ss(limit), _mm_set_ss(x))); }
float at_least(float x, float limit) { return _mm_cvtss_f32(_mm_max_ss(_mm_set_ss(limit), _mm_set_ss(x))); }
float within(float x, float limit) { return at_least(at_most(x, limit), -limit); }

void clamp(float limit, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = within(y[i], limit);
}

void softcap(float cap, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = cap * tanh_f32(y[i] / cap);
}

float relu2_f32(float x) {
  const float positive = at_least(x, 0.0f);
  return positive * positive;
}

template <float (*Act)(float)>
void activate(const float* x, const float* up, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = up == nullptr ? Act(x[i]) : Act(x[i]) * up[i];
}

void swiglu_oai(const float* gate, const float* up, float alpha, float limit, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) {
    const float g = at_most(gate[i], limit), u = within(up[i], limit);
    out[i] = (g / (1.0f + exp_f32(-(alpha * g)))) * (u + 1.0f);
  }
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

const VectorKernels kVectorScalar = {.rms_norm = rms_norm,
                                     .layer_norm = layer_norm,
                                     .add = add,
                                     .add_scaled = add_scaled,
                                     .mul = mul,
                                     .scale = scale,
                                     .sigmoid_scale = sigmoid_scale,
                                     .clamp = clamp,
                                     .softcap = softcap,
                                     .silu_mul = activate<silu_f32>,
                                     .gelu_mul = activate<gelu_f32>,
                                     .gelu_erf_mul = activate<gelu_erf_f32>,
                                     .relu2_mul = activate<relu2_f32>,
                                     .swiglu_oai = swiglu_oai,
                                     .rope_norm = rope_norm,
                                     .rope_neox = rope_neox,
                                     .isa = Isa::kScalar};

}  // namespace tally::kernels
