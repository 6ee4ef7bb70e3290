#pragma once
// The written f32 steps of attention, shared by every form: 2^x, the soft cap, the tree, the rotation, the
// quantizers. Included by objects of every ISA, so everything here has internal linkage and uses builtins
// only: the compiler may vectorize these loops, never reorder them. Source: the base-2 exponential is a
// degree-5 minimax polynomial of 2^f on [-0.5, 0.5].

#include <cstddef>
#include <cstdint>

namespace tally::kernels::attention {

constexpr size_t kGroupTokens = 64;  // scores and probabilities are made a group at a time
constexpr size_t kChunkTokens = 16;  // a group is 4 chunks: the unit that is contiguous at every block size
constexpr size_t kGroupChunks = kGroupTokens / kChunkTokens;
constexpr size_t kDimMax = 576;  // of a key or value; an int8 dot product stays exact in f32

constexpr float kRoundMagic = 12582912.f;  // 1.5 * 2^23: adding and taking it away rounds to an integer
constexpr float kExponentMin = -125.f;     // 2^-125 is still a normal number
constexpr float kNoScore = -3e38f;         // a finite floor: the difference of two of them is 0, not NaN
constexpr float kAmaxMin = 1e-30f;         // below it a vector counts as zero
constexpr float kWeightMin = 1e-30f;       // guard of the probability scale
constexpr float kWeightMax = 32767.f;      // p has 15 bits
constexpr float kWeightUnit = 1.f / kWeightMax;  //
constexpr float kExp2C1 = 0x1.62e42ap-1f, kExp2C2 = 0x1.ebf9bcp-3f, kExp2C3 = 0x1.c6b752p-5f,
                kExp2C4 = 0x1.3cea88p-7f, kExp2C5 = 0x1.5bba0ep-10f;
constexpr double kLog2E = 1.4426950408889634;

// 2^x for x <= 0.
static inline float exp2_nonpositive(float x) {
  x = x > kExponentMin ? x : kExponentMin;
  const float t = x + kRoundMagic;
  const float f = x - (t - kRoundMagic);
  float p = kExp2C5;
  p = __builtin_fmaf(p, f, kExp2C4);
  p = __builtin_fmaf(p, f, kExp2C3);
  p = __builtin_fmaf(p, f, kExp2C2);
  p = __builtin_fmaf(p, f, kExp2C1);
  p = __builtin_fmaf(p, f, 1.f);
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, p) + (__builtin_bit_cast(uint32_t, t) << 23));
}

// cap * tanh(s / cap) on base-2 scores: with t = 2^(-2/cap * |s|), tanh = (1 - t) / (1 + t).
struct Softcap {
  float limit = 0;  // cap * log2 e; 0: none
  float slope = 0;  // -2 / cap
};
static inline Softcap make_softcap(float cap) {
  Softcap s;
  if (cap != 0) s.limit = static_cast<float>(static_cast<double>(cap) * kLog2E), s.slope = -2.f / cap;
  return s;
}
static inline float apply_softcap(float s, const Softcap& cap) {
  const float t = exp2_nonpositive(__builtin_fabsf(s) * cap.slope);
  return __builtin_copysignf(cap.limit * ((1.f - t) / (1.f + t)), s);
}

// Scores are base 2: score_scale * log2 e as one f32.
static inline float base2_scale(float score_scale) {
  return static_cast<float>(static_cast<double>(score_scale) * kLog2E);
}

// What the distance of a key from the row's position adds to a base-2 score.
static inline float alibi_slope(float slope) {
  return static_cast<float>(static_cast<double>(slope) * kLog2E);
}

static inline float distance(size_t key_position, size_t row_position) {
  return static_cast<float>(static_cast<int64_t>(key_position) - static_cast<int64_t>(row_position));
}

// A row's softmax state takes in its sink. Returns the factor that O gets.
static inline float join_sink(float logit, float* max, float* sum) {
  const float score = static_cast<float>(static_cast<double>(logit) * kLog2E);
  const float joined = score > *max ? score : *max;
  const float keep = exp2_nonpositive(*max - joined);
  *sum = __builtin_fmaf(*sum, keep, exp2_nonpositive(score - joined));
  *max = joined;
  return keep;
}

// Sum of 64 as 16 partials (e[i] + e[i+16]) + (e[i+32] + e[i+48]), then i with i+8, i+4, i+2, i+1.
static inline float tree_sum(const float* e) {
  float part[16];
  for (int i = 0; i < 16; ++i) part[i] = (e[i] + e[i + 16]) + (e[i + 32] + e[i + 48]);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] = part[i] + part[i + width];
  return part[0];
}

static inline bool is_finite(float x) {
  return (__builtin_bit_cast(uint32_t, x) & 0x7f800000u) != 0x7f800000u;
}
static inline bool all_finite(const float* x, size_t n) {
  uint32_t bad = 0;
  for (size_t i = 0; i < n; ++i) bad |= static_cast<uint32_t>(!is_finite(x[i]));
  return bad == 0;
}

// The rotation is block diagonal where d is not a power of two: blocks of the largest power of two dividing
// it.
static inline size_t rotation_block(size_t d) { return d & (~d + 1); }
static inline float rotation_factor(size_t block) {
  return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(block)));
}
// y = H x / sqrt(block), H the Sylvester matrix, by the fast transform: stages ascending, pair (i, i + h) ->
// (a + b, a - b).
static inline void rotate(float* x, size_t d) {
  const size_t block = rotation_block(d);
  for (size_t base = 0; base < d; base += block)
    for (size_t h = 1; h < block; h *= 2)
      for (size_t i = 0; i < block; i += 2 * h)
        for (size_t j = base + i; j < base + i + h; ++j) {
          const float a = x[j], b = x[j + h];
          x[j] = a + b;
          x[j + h] = a - b;
        }
  const float factor = rotation_factor(block);
  for (size_t i = 0; i < d; ++i) x[i] = x[i] * factor;
}

// q = rne(x * (127 / amax)) in [-127, 127]; returns the scale amax / 127, or 0 (and q = 0) if amax < 1e-30.
// Requires: x is finite.
static inline float quantize_127(const float* x, size_t n, int8_t* q) {
  float amax = 0;
  for (size_t i = 0; i < n; ++i) {
    const float a = __builtin_fabsf(x[i]);
    amax = a > amax ? a : amax;
  }
  if (amax < kAmaxMin) {
    for (size_t i = 0; i < n; ++i) q[i] = 0;
    return 0;
  }
  const float r = 127.f / amax;
  for (size_t i = 0; i < n; ++i) {
    long v = __builtin_lrintf(x[i] * r);  // round to nearest even
    v = v > 127 ? 127 : v < -127 ? -127 : v;
    q[i] = static_cast<int8_t>(v);
  }
  return amax / 127.f;
}

// ---- Nibbles: 32 columns of a head share a step and a low, both f16; x = q * step + low, q in [0, 15]
// -------

constexpr int kNibbles = 32, kNibbleMax = 15;
// Shares of a group's range that are tried to be cut off at both ends, after the whole range.
constexpr float kCuts[] = {0.02f, 0.04f, 0.06f, 0.08f, 0.1f};

// Rounds to nearest even; overflow gives infinity. Requires: x is no NaN.
static inline uint16_t f16_from_f32(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal: aligns the last kept bit with bit 0
    const float aligned = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, aligned) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13));
}
// Exact. Infinity and NaN come out as numbers: they are in no cache that is read.
static inline float f32_from_f16(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000u) << 16, exponent = (x >> 10) & 31u;
  const uint32_t fraction = x & 0x3ffu;
  const float magnitude = exponent == 0
                              ? static_cast<float>(fraction) * 0x1p-24f
                              : __builtin_bit_cast(float, ((exponent + 112u) << 23) | (fraction << 13));
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, magnitude) | sign);
}

struct NibbleScale {
  uint16_t step, low;  // f16
};
struct NibbleGroup {
  NibbleScale scale;
  uint8_t q[kNibbles];
};

// The group of the range [low, high], and the squared error of its n values: 8 partial sums over i % 8, then
// i with i+4, i+2, i+1.
static inline float nibbles_between(const float* x, int n, float low, float high, NibbleGroup* group) {
  group->scale = {.step = f16_from_f32((high - low) / 15.f), .low = f16_from_f32(low)};
  const float step = f32_from_f16(group->scale.step), from = f32_from_f16(group->scale.low);
  float part[8] = {};
  for (int i = 0; i < n; ++i) {
    const float at = step == 0 ? 0.f : (x[i] - from) / step;
    const float bounded = at < 0 ? 0.f : at > 15.f ? 15.f : at;
    const float q = (bounded + kRoundMagic) - kRoundMagic;
    const float off = __builtin_fmaf(q, step, from) - x[i];
    part[i % 8] = __builtin_fmaf(off, off, part[i % 8]);
    group->q[i] = static_cast<uint8_t>(q);
  }
  for (int i = n; i < kNibbles; ++i) group->q[i] = 0;
  for (int width = 4; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] = part[i] + part[i + width];
  return part[0];
}

static inline bool f16_holds(float x) { return (f16_from_f32(x) & 0x7c00u) != 0x7c00u; }

// The first of the cuts with the least error. Returns false if f16 cannot hold the range. Requires: n >= 1, x
// is finite.
static inline bool quantize_nibbles(const float* x, int n, NibbleGroup* group) {
  float low = x[0], high = x[0];
  for (int i = 1; i < n; ++i) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
  if (!f16_holds(low) || !f16_holds(high)) return false;
  float least = nibbles_between(x, n, low, high, group);
  for (const float cut : kCuts) {
    const float off = (high - low) * cut;
    NibbleGroup tried;
    const float error = nibbles_between(x, n, low + off, high - off, &tried);
    if (error < least) *group = tried, least = error;
  }
  return true;
}

// Sum of e[j] * x[j] over 64: 16 partial chains over j % 16, ascending, then i with i+8, i+4, i+2, i+1.
static inline float tree_dot(const float* e, const float* x) {
  float part[16];
  for (int i = 0; i < 16; ++i) {
    part[i] = e[i] * x[i];
    for (int j = i + 16; j < 64; j += 16) part[i] = __builtin_fmaf(e[j], x[j], part[i]);
  }
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] = part[i] + part[i + width];
  return part[0];
}

// Round to nearest even, NaN kept quiet.
static inline uint16_t bf16_from_f32(float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static inline float f32_from_bf16(uint16_t x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
}

// First position that a row at `position` sees. Window 0: all.
static inline size_t first_visible(size_t position, size_t window) {
  return window == 0 || position + 1 <= window ? 0 : position + 1 - window;
}

}  // namespace tally::kernels::attention
