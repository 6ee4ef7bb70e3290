#pragma once
// The transcendentals of Law 1 item 5: each is one written sequence of fma, mul, add, IEEE division and
// integer steps. The functions here are the definition; an ISA file repeats the same steps on vectors with
// the same constants and gets the same bits. Everything is static: objects built for different ISAs share no
// symbol.
//
// Rules that make the steps agree with x86 vectors: min and max are written as the instructions act (the
// second operand wins when one is NaN), n = rne(v) is (v + kRound) - kRound, and 2^n is built from exponent
// bits in two factors, so that overflow gives infinity and underflow rounds (or flushes) once.
//
// Special values: NaN gives NaN (sign and payload are not part of the contract). exp(-inf) = 0, exp(inf) =
// inf, tanh(+-inf) =
// +-1. silu(inf) = gelu(inf) = inf; silu(-inf) = gelu(-inf) = NaN, as a non-finite gate must not be laundered
// into a number. Accuracy in units of the last place, tested against double: exp 1.5, tanh 2.5, silu 3 where
// exp(-x) is finite (x > -88.7; below it is -0, off by less than 3e-37). gelu (tanh form): 2.5e-7 of
// max(1, |x|) everywhere, and 1.2e-6 relative for x > -3. gelu_erf: 1.5e-7 of max(1, |x|) everywhere,
// and 6e-7 relative for x > -3. gelu_erf(inf) = inf, gelu_erf(-inf) = NaN.

#include <bit>
#include <cmath>
#include <cstdint>

namespace tally::kernels {

constexpr float kExpHigh = 89.0f;      // exp is infinite from 88.73
constexpr float kExpLow = -104.0f;     // exp is 0 below -103.98
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
constexpr uint32_t kRoundBits = 0x4B400000u;
constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLn2High = 0x1.62e4p-1f;  // 16 bits: n * kLn2High is exact
constexpr float kLn2Low = 0x1.7f7d1cp-20f;
// e^r = 1 + (r + r^2 * (c0 + c1 r + .. + c4 r^4)) on |r| <= ln2 / 2, to 9.8e-9.
constexpr float kExp0 = 0.5f, kExp1 = 0x1.5554dep-3f, kExp2 = 0x1.55551ap-5f, kExp3 = 0x1.120b62p-7f,
                kExp4 = 0x1.6d10fcp-10f;

// tanh x = x + x z (c0 + c1 z + .. + c4 z^4), z = x^2, on |x| < kTanhSmall, to 1.7e-8.
constexpr float kTanhSmall = 0.625f;
constexpr float kTanh0 = -0x1.555552p-2f, kTanh1 = 0x1.110e1cp-3f, kTanh2 = -0x1.b9258ap-5f,
                kTanh3 = 0x1.58048ep-6f, kTanh4 = -0x1.8f8de4p-8f;

// gelu x = x / (1 + exp(x (kGelu0 + kGelu1 x^2))): the tanh form, as (1 + tanh u) / 2 = 1 / (1 + exp(-2u)).
constexpr float kGelu0 = -0x1.988454p+0f;  // -2 sqrt(2 / pi)
constexpr float kGelu1 = -0x1.2444f2p-4f;  // times 0.044715

// The part of the normal distribution above a >= 0 is erfc(a / sqrt 2) / 2 = exp(-a^2 / 2) * W(a), and W is a
// polynomial u (c0 + c1 u + .. + c7 u^7) of u = 1 / (1 + kTailSlope a), to 1.6e-8 relative for a < 7.
constexpr float kTailSlope = 0x1.cccccc0p-3f;
constexpr float kTail0 = 0x1.72421e0p-4f, kTail1 = 0x1.4b812a0p-4f, kTail2 = 0x1.1b54e60p-3f,
                kTail3 = -0x1.a8031a0p-4f, kTail4 = 0x1.bc6c240p-2f, kTail5 = -0x1.b1303a0p-2f,
                kTail6 = 0x1.7ff4160p-2f, kTail7 = -0x1.7929ee0p-4f;

static inline float exp_f32(float x) {
  x = kExpHigh < x ? kExpHigh : x;
  x = kExpLow > x ? kExpLow : x;
  const float t = std::fma(x, kLog2E, kRound);
  const float n = t - kRound;
  float r = std::fma(-n, kLn2High, x);
  r = std::fma(-n, kLn2Low, r);
  float q = std::fma(kExp4, r, kExp3);
  q = std::fma(q, r, kExp2);
  q = std::fma(q, r, kExp1);
  q = std::fma(q, r, kExp0);
  const float p = 1.0f + std::fma(r * r, q, r);
  const int32_t i = static_cast<int32_t>(std::bit_cast<uint32_t>(t) - kRoundBits);
  const int32_t half = i >> 1;
  const uint32_t first = static_cast<uint32_t>(half) + 127u;
  const uint32_t second = static_cast<uint32_t>(i) - static_cast<uint32_t>(half) + 127u;
  return (p * std::bit_cast<float>(first << 23)) * std::bit_cast<float>(second << 23);
}

static inline float tanh_f32(float x) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) & 0x80000000u;
  const float a = std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ sign);
  const float big = 1.0f - 2.0f / (1.0f + exp_f32(a + a));
  const float z = a * a;
  float q = std::fma(kTanh4, z, kTanh3);
  q = std::fma(q, z, kTanh2);
  q = std::fma(q, z, kTanh1);
  q = std::fma(q, z, kTanh0);
  const float small = std::fma(a * z, q, a);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(a < kTanhSmall ? small : big) | sign);
}

static inline float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

static inline float silu_f32(float x) { return x / (1.0f + exp_f32(-x)); }

static inline float gelu_f32(float x) { return x / (1.0f + exp_f32(x * std::fma(x * x, kGelu1, kGelu0))); }

// x times the part of the normal distribution below x.
static inline float gelu_erf_f32(float x) {
  const float a = std::fabs(x);
  const float u = 1.0f / std::fma(kTailSlope, a, 1.0f);
  float q = std::fma(kTail7, u, kTail6);
  q = std::fma(q, u, kTail5);
  q = std::fma(q, u, kTail4);
  q = std::fma(q, u, kTail3);
  q = std::fma(q, u, kTail2);
  q = std::fma(q, u, kTail1);
  q = std::fma(q, u, kTail0);
  const float tail = exp_f32((a * a) * -0.5f) * (q * u);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

}  // namespace tally::kernels
