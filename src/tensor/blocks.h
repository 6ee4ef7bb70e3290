#pragma once
// Blocks of the GGUF quantized types as they lie in the file, and 16-bit floats. Little endian, no padding.
// Source: ggml-common.h. Element order and formulas: each kernel family's pack.cc and scalar.cc.

#include <bit>
#include <cstdint>
#include <cstring>

namespace tally::tensor {

struct BlockQ4_0 {  // x = d * (nib - 8)
  uint16_t d;       // f16
  uint8_t q[16];    // low nibbles: elements 0..15, high nibbles: 16..31
};
struct BlockQ4_1 {  // x = d * nib + m
  uint16_t d, m;    // f16
  uint8_t q[16];
};
struct BlockQ5_0 {  // x = d * ((nib | bit 4 from h) - 16)
  uint16_t d;
  uint8_t h[4];  // u32, bit i = bit 4 of element i
  uint8_t q[16];
};
struct BlockQ5_1 {  // x = d * (nib | bit 4 from h) + m
  uint16_t d, m;
  uint8_t h[4];
  uint8_t q[16];
};
struct BlockQ8_0 {  // x = d * q
  uint16_t d;
  int8_t q[32];
};
struct BlockQ4_K {  // x = (d * s_j) * v - dmin * m_j, j = element / 32
  uint16_t d, dmin;
  uint8_t sc[12];  // 6-bit s and m, see q4k_scale_min
  uint8_t q[128];  // v = (q[32 * (j / 2) + i % 32] >> 4 * (j % 2)) & 15
};
struct BlockQ5_K {  // as Q4_K with bit 4 = (h[i % 32] >> j) & 1
  uint16_t d, dmin;
  uint8_t sc[12];
  uint8_t h[32];
  uint8_t q[128];
};
struct BlockQ6_K {  // x = (d * sc[i / 16]) * (v - 32)
  uint8_t l[128];   // half = i / 128, s = i % 128 / 32, l = i % 32: low 4 bits (l[64 * half + 32 * (s % 2) +
                    // l] >> 4 * (s / 2)) & 15
  uint8_t h[64];    // high 2 bits (h[32 * half + l] >> 2 * s) & 3
  int8_t sc[16];
  uint16_t d;
};
struct BlockQ2_K {  // x = (d * (sc[i / 16] & 15)) * v - dmin * (sc[i / 16] >> 4)
  uint8_t sc[16];
  uint8_t q[64];  // half = i / 128, s = i % 128 / 32, l = i % 32: v = (q[32 * half + l] >> 2 * s) & 3
  uint16_t d, dmin;
};
struct BlockQ3_K {  // x = (d * scale_j) * (v - 4), j = i / 16
  uint8_t h[32];    // bit 2 of v = (h[l] >> (4 * half + s)) & 1, half, s and l as in Q2_K
  uint8_t q[64];    // bits 0 and 1 of v, as Q2_K
  uint8_t sc[12];   // 6-bit scales, see q3k_scale
  uint16_t d;
};
struct BlockIQ4_NL {  // x = d * kIq4Values[nib]
  uint16_t d;
  uint8_t q[16];
};
struct BlockIQ4_XS {  // x = (d * scale_j) * kIq4Values[nib], j = i / 32
  uint16_t d;
  uint16_t sh;     // high bits of the scales, see iq4_xs_scale
  uint8_t sl[4];   // low bits
  uint8_t q[128];  // nib = (q[16 * j + i % 16] >> 4 * (i % 32 / 16)) & 15
};
struct BlockMXFP4 {  // x = 2^(e - 128) * kMxfp4Values[nib]
  uint8_t e;
  uint8_t q[16];
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22 &&
              sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176 &&
              sizeof(BlockQ6_K) == 210);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockIQ4_NL) == 18 &&
              sizeof(BlockIQ4_XS) == 136 && sizeof(BlockMXFP4) == 17);

// What the 4-bit codes of IQ4_NL and IQ4_XS mean. (Not `inline`: ISA objects define no weak symbols.)
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Those of MXFP4, doubled E2M1.
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct ScaleMin {
  uint8_t scale, min;  // 0..63
};
// The 6-bit scale and minimum of sub-block j (0..7) of a Q4_K or Q5_K block.
inline ScaleMin q4k_scale_min(const uint8_t sc[12], int j) {
  if (j < 4) return {static_cast<uint8_t>(sc[j] & 63), static_cast<uint8_t>(sc[j + 4] & 63)};
  return {static_cast<uint8_t>((sc[j + 4] & 15) | ((sc[j - 4] >> 6) << 4)),
          static_cast<uint8_t>((sc[j + 4] >> 4) | ((sc[j] >> 6) << 4))};
}

// The scale of group j (0..15) of a Q3_K block, -32..31.
inline int q3k_scale(const uint8_t sc[12], int j) {
  return (((sc[j % 8] >> 4 * (j / 8)) & 15) | (((sc[8 + j % 4] >> 2 * (j / 4)) & 3) << 4)) - 32;
}
// The scale of sub-block j (0..7) of an IQ4_XS block, -32..31.
inline int iq4_xs_scale(const BlockIQ4_XS& block, int j) {
  return (((block.sl[j / 2] >> 4 * (j % 2)) & 15) | (((block.sh >> 2 * j) & 3) << 4)) - 32;
}

// 2^(e - 128). e = 0 and 1 are subnormal; e = 255, NaN in the OCP text, is 2^127 as in ggml.
inline float mxfp4_scale(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1u) << 23);
}

// Exact widening; NaN stays NaN.
inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exp = (h >> 10) & 31u, man = h & 0x3FFu;
  if (exp == 31) return std::bit_cast<float>(sign | 0x7F800000u | (man << 13));
  if (exp != 0) return std::bit_cast<float>(sign | ((exp + 112u) << 23) | (man << 13));
  // Subnormal halves are normal floats: man * 2^-24, exact.
  const float magnitude = static_cast<float>(man) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// Rounds to nearest even; overflow gives infinity, NaN a quiet NaN.
inline uint16_t f32_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t mag = bits & 0x7FFFFFFFu;
  if (mag > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((mag >> 13) & 0x3FFu));
  if (mag >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65520 rounds to infinity
  if (mag < 0x38800000u) {                                               // below 2^-14: subnormal half
    const float scaled = std::bit_cast<float>(mag) + 0.5f;  // aligns the last kept bit with bit 0
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x3F000000u));
  }
  const uint32_t rounded = mag + 0xFFFu + ((mag >> 13) & 1u) - 0x38000000u;
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

// Rounds to nearest even; NaN is kept, made quiet.
inline uint16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace tally::tensor
