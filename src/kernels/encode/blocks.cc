// Floats and the types of 32 elements. A block has one scale d in f16 (and a minimum m); each code comes from
// one multiplication by 1/d, where d is not yet rounded to f16, as ggml's reference does it.  Source:
// ggml-quants.c.

#include "tensor/blocks.h"

#include "kernels/encode/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tally::kernels {
namespace {

constexpr size_t kBlock = 32;

// f16 and bf16: sign and exponent all ones is an infinity or NaN.
constexpr uint16_t kF16Infinity = 0x7C00, kBf16Infinity = 0x7F80;
bool finite_f16(uint16_t h) { return (h & kF16Infinity) != kF16Infinity; }

bool all_finite(const float* x, size_t n) {
  bool finite = true;
  for (size_t i = 0; i < n; ++i) finite &= std::fabs(x[i]) < HUGE_VALF;
  return finite;
}

template <class Block, class Fill>
bool encode_blocks(const float* x, size_t k, std::byte* row, const Fill& fill) {
  for (size_t b = 0; b < k / kBlock; ++b) {
    Block block;
    if (!all_finite(x + b * kBlock, kBlock) || !fill(x + b * kBlock, block)) return false;
    std::memcpy(row + b * sizeof block, &block, sizeof block);
  }
  return true;
}

// The first value of the largest magnitude.
float extreme(const float* x) {
  float most = 0, value = 0;
  for (size_t i = 0; i < kBlock; ++i)
    if (std::fabs(x[i]) > most) most = std::fabs(x[i]), value = x[i];
  return value;
}

// 0 where 1/d is not finite: then d is 0 in f16 too, and any code stands for 0.
float inverse(float d) {
  const float id = d == 0 ? 0 : 1.0f / d;
  return std::fabs(id) < HUGE_VALF ? id : 0;
}

uint8_t code(float x, int top) { return static_cast<uint8_t>(std::min(top, static_cast<int>(x))); }

// Nibbles, and bit 4 of each code into h where the type has it.
void put_codes(const uint8_t codes[kBlock], uint8_t q[16]) {
  for (size_t i = 0; i < 16; ++i) q[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}
void put_fifth_bits(const uint8_t codes[kBlock], uint8_t h[4]) {
  std::memset(h, 0, 4);
  for (size_t i = 0; i < kBlock; ++i) h[i / 8] = static_cast<uint8_t>(h[i / 8] | (codes[i] >> 4) << i % 8);
}

// Codes around `zero`: the extreme value becomes code 0.
bool symmetric_codes(const float* x, int zero, uint16_t& d16, uint8_t codes[kBlock]) {
  const float d = extreme(x) / static_cast<float>(-zero), id = inverse(d);
  d16 = tensor::f32_to_f16(d);
  if (!finite_f16(d16)) return false;
  for (size_t i = 0; i < kBlock; ++i)
    codes[i] = code(x[i] * id + (static_cast<float>(zero) + 0.5f), 2 * zero - 1);
  return true;
}

// Codes 0..top from the minimum to the maximum.
struct Span {
  uint16_t d, m;
};
bool affine_codes(const float* x, int top, Span& span, uint8_t codes[kBlock]) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const float d = (*high - *low) / static_cast<float>(top), id = inverse(d);
  span = {tensor::f32_to_f16(d), tensor::f32_to_f16(*low)};
  if (!finite_f16(span.d) || !finite_f16(span.m)) return false;
  for (size_t i = 0; i < kBlock; ++i) codes[i] = code((x[i] - *low) * id + 0.5f, top);
  return true;
}

template <class Round>
bool encode_halves(const float* x, size_t k, std::byte* row, uint16_t infinity, const Round& round) {
  for (size_t i = 0; i < k; ++i) {
    const uint16_t half = round(x[i]);
    if ((half & infinity) == infinity) return false;
    std::memcpy(row + i * sizeof half, &half, sizeof half);
  }
  return true;
}

}  // namespace

bool encode_f32(const float* x, size_t k, std::byte* row) {
  std::memcpy(row, x, k * sizeof(float));
  return all_finite(x, k);
}

bool encode_f16(const float* x, size_t k, std::byte* row) {
  return encode_halves(x, k, row, kF16Infinity, tensor::f32_to_f16);
}

bool encode_bf16(const float* x, size_t k, std::byte* row) {
  return encode_halves(x, k, row, kBf16Infinity, tensor::f32_to_bf16);
}

bool encode_q4_0(const float* x, size_t k, std::byte* row) {
  return encode_blocks<tensor::BlockQ4_0>(x, k, row, [](const float* v, tensor::BlockQ4_0& block) {
    uint8_t codes[kBlock];
    if (!symmetric_codes(v, 8, block.d, codes)) return false;
    put_codes(codes, block.q);
    return true;
  });
}

bool encode_q5_0(const float* x, size_t k, std::byte* row) {
  return encode_blocks<tensor::BlockQ5_0>(x, k, row, [](const float* v, tensor::BlockQ5_0& block) {
    uint8_t codes[kBlock];
    if (!symmetric_codes(v, 16, block.d, codes)) return false;
    put_codes(codes, block.q);
    put_fifth_bits(codes, block.h);
    return true;
  });
}

bool encode_q4_1(const float* x, size_t k, std::byte* row) {
  return encode_blocks<tensor::BlockQ4_1>(x, k, row, [](const float* v, tensor::BlockQ4_1& block) {
    uint8_t codes[kBlock];
    Span span{};
    if (!affine_codes(v, 15, span, codes)) return false;
    block.d = span.d, block.m = span.m;
    put_codes(codes, block.q);
    return true;
  });
}

bool encode_q5_1(const float* x, size_t k, std::byte* row) {
  return encode_blocks<tensor::BlockQ5_1>(x, k, row, [](const float* v, tensor::BlockQ5_1& block) {
    uint8_t codes[kBlock];
    Span span{};
    if (!affine_codes(v, 31, span, codes)) return false;
    block.d = span.d, block.m = span.m;
    put_codes(codes, block.q);
    put_fifth_bits(codes, block.h);
    return true;
  });
}

bool encode_q8_0(const float* x, size_t k, std::byte* row) {
  return encode_blocks<tensor::BlockQ8_0>(x, k, row, [](const float* v, tensor::BlockQ8_0& block) {
    const float d = std::fabs(extreme(v)) / 127.0f, id = inverse(d);
    block.d = tensor::f32_to_f16(d);
    if (!finite_f16(block.d)) return false;
    for (size_t i = 0; i < kBlock; ++i) block.q[i] = static_cast<int8_t>(std::round(v[i] * id));
    return true;
  });
}

}  // namespace tally::kernels
