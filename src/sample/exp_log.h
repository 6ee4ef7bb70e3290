#pragma once
// exp and log written out, in plain multiplications and additions: the same bits on every machine, which
// those of libm are not (they choose fused forms at run time). Independent of the denormal mode of the
// thread.

#include <bit>
#include <cstdint>

namespace tally::sample {

// exp(-d) for d >= 0; relative error below 3e-7. Exactly 1 at 0; 0 from d = 87 on (results there would be
// denormal), infinity included. Method: 2^n · exp(r), |r| <= ln(2)/2, polynomial of degree 7.  Source: Cephes
// expf.
inline float exp_negative(float d) {
  constexpr float kZeroFrom = 87.0f;
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it leaves an integer in the low bits
  // Integers order the numbers from 0 up as floats do. The comparison is made a mask, since a branch, or what
  // the compiler makes one of, would keep the loops around this from becoming vectors.
  const auto bits = std::bit_cast<int32_t>(d);
  constexpr auto kZeroFromBits = std::bit_cast<int32_t>(kZeroFrom);
  const int32_t keep = (bits - kZeroFromBits) >> 31;  // all ones below kZeroFrom
  const float x = -std::bit_cast<float>(kZeroFromBits + ((bits - kZeroFromBits) & keep));
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // The low bits of `shifted` hold n; into the exponent with it.
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) << 23;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(p) + exponent) & static_cast<uint32_t>(keep));
}

// Natural logarithm of a normal positive number; absolute error below 4e-16 · max(1, |log x|).
// Method: x = m · 2^e with m near 1; log m = 2 · atanh((m - 1) / (m + 1)) by its series.
inline double log_positive(double x) {
  constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
  constexpr double kSqrtHalf = 0.70710678118654752440;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1022;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000);  // in [0.5, 1)
  if (m < kSqrtHalf) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double series = 0;
  constexpr int kTerms = 12;  // s2 < 0.0295: the next term is below 1e-20
  for (int k = kTerms; k >= 1; --k) series = series * s2 + 1.0 / (2 * k + 1);
  const double log_m = 2 * (s + s * (s2 * series));
  const auto e = static_cast<double>(exponent);
  return e * kLn2High + (e * kLn2Low + log_m);
}

}  // namespace tally::sample
