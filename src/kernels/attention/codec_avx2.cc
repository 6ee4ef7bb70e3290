// The encoders of codec.cc on AVX2: a head is copied behind zeros up to the stored columns and encoded 8
// values at a time; only the scattered stores of the layout (a token is 4, 2 or 1 bytes of a 64-byte line)
// are scalar.
#include "kernels/attention/attention.h"
#include "kernels/attention/int8_rows.h"

namespace tally::kernels::attention {
namespace {

// A head in f32, padded with zeros to the stored columns.
struct Head {
  alignas(64) float x[kDimMax];
};
void load_head(const float* from, size_t dim, size_t columns, Head& head) {
  __builtin_memcpy(head.x, from, dim * sizeof(float));
  for (size_t c = dim; c < columns; ++c) head.x[c] = 0;
}

// What a codec offers: put(layout, place, key, value) writes one head of a token and is false if it is not
// finite (what it wrote then is overwritten); it may use up both heads.
struct F32Codec {
  static bool put(const tensor::KvLayout& l, TokenPlace at, Head& k, Head& v) {
    __builtin_memcpy(at.head_block + key_index_f32(l.key_columns, at.token, 0) * sizeof(float), k.x,
                     l.key_columns * sizeof(float));
    __builtin_memcpy(
        at.head_block + l.value_offset + value_index_f32(l.value_columns, at.token, 0) * sizeof(float), v.x,
        l.value_columns * sizeof(float));
    return all_finite_lanes(k.x, l.key_columns) && all_finite_lanes(v.x, l.value_columns);
  }
};

struct Bf16Codec {
  // Rounds to nearest even; false if x or what it becomes is not finite.
  static bool round(const float* x, size_t columns, uint16_t* out) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000), half = _mm256_set1_epi32(0x7fff),
                  one = _mm256_set1_epi32(1);
    __m256i bad = _mm256_setzero_si256();
    const auto rounded = [&](const float* from) {
      const __m256i u = _mm256_castps_si256(_mm256_load_ps(from));
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
      const __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(half, odd));
      bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(_mm256_and_si256(u, exponent), exponent));
      bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(_mm256_and_si256(r, exponent), exponent));
      return _mm256_srli_epi32(r, 16);
    };
    for (size_t c = 0; c < columns; c += 16) {
      const __m256i both = _mm256_packus_epi32(rounded(x + c), rounded(x + c + 8));
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + c), _mm256_permute4x64_epi64(both, 0xD8));
    }
    return _mm256_testz_si256(bad, bad) != 0;
  }
  static bool put(const tensor::KvLayout& l, TokenPlace at, Head& k, Head& v) {
    alignas(64) uint16_t k16[kDimMax], v16[kDimMax];
    const bool finite_k = round(k.x, l.key_columns, k16), finite_v = round(v.x, l.value_columns, v16);
    auto* keys = reinterpret_cast<uint16_t*>(at.head_block) + key_index_bf16(l.key_columns, at.token, 0);
    for (size_t c = 0; c < l.key_columns; c += 2) __builtin_memcpy(keys + 16 * c, k16 + c, 4);
    auto* values = reinterpret_cast<uint16_t*>(at.head_block + l.value_offset) +
                   value_index_bf16(l.value_columns, at.token, 0);
    for (size_t c = 0; c < l.value_columns; ++c) values[2 * c] = v16[c];
    return finite_k && finite_v;
  }
};

// What is not finite by itself is refused before it is rotated, what becomes so by rotation afterwards.
bool rotate_head(Head& head, size_t dim, size_t columns) {
  if (!all_finite_lanes(head.x, columns)) return false;
  rotate_lanes(head.x, dim, columns);
  return all_finite_lanes(head.x, columns);
}

bool put_int8_key(const tensor::KvLayout& l, TokenPlace at, Head& k) {
  alignas(64) int8_t k8[kDimMax];
  if (!rotate_head(k, l.key_dim, l.key_columns)) return false;
  key_scales(l, at.head_block)[at.token] = quantize_lanes(k.x, l.key_columns, k8);
  auto* keys = reinterpret_cast<uint8_t*>(at.head_block) + key_index_int8(l.key_columns, at.token, 0);
  for (size_t c = 0; c < l.key_columns; c += 4) {
    uint32_t four;
    __builtin_memcpy(&four, k8 + c, 4);
    four ^= 0x80808080u;
    __builtin_memcpy(keys + c * 16, &four, 4);
  }
  return true;
}

struct Int8Codec {
  static bool put(const tensor::KvLayout& l, TokenPlace at, Head& k, Head& v) {
    alignas(64) int8_t v8[kDimMax];
    if (!all_finite_lanes(v.x, l.value_columns) || !put_int8_key(l, at, k)) return false;
    value_scales(l, at.head_block)[at.token] = quantize_lanes(v.x, l.value_columns, v8);
    auto* values = reinterpret_cast<int8_t*>(at.head_block + l.value_offset) +
                   value_index_int8(l.value_columns, at.token, 0);
    for (size_t c = 0; c < l.value_columns; ++c) values[c * 4] = v8[c];
    return true;
  }
};

// nibbles_between() and quantize_nibbles(), a group of 32 columns in four registers.
class NibbleEncoder {
 public:
  // Requires: x [32] is finite, of which the first n >= 1 count.
  NibbleEncoder(const float* x, int n) {
    __m256 low = _mm256_set1_ps(x[0]), high = low;
    for (int i = 0; i < 4; ++i) {
      mask_[i] = Lanes256::within(0, n, 8 * i);
      x_[i] = _mm256_load_ps(x + 8 * i);
      const __m256 known = Lanes256::select(mask_[i], x_[i], _mm256_set1_ps(x[0]));
      low = _mm256_min_ps(low, known), high = _mm256_max_ps(high, known);
    }
    low_ = -max_of_lanes(_mm256_xor_ps(low, _mm256_set1_ps(-0.f))), high_ = max_of_lanes(high);
  }

  bool fits() const { return f16_holds(low_) && f16_holds(high_); }

  // Requires: fits(). q [32].
  NibbleScale encode(uint8_t* q) const {
    NibbleScale best, scale;
    __m256 values[4], tried[4];
    float least = between(low_, high_, &best, values);
    for (const float cut : kCuts) {
      const float off = (high_ - low_) * cut;
      const float error = between(low_ + off, high_ - off, &scale, tried);
      if (!(error < least)) continue;
      least = error, best = scale;
      for (int i = 0; i < 4; ++i) values[i] = tried[i];
    }
    __m256i w[4];
    for (int i = 0; i < 4; ++i) w[i] = _mm256_cvtps_epi32(_mm256_and_ps(values[i], mask_[i]));
    const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
    _mm256_store_si256(reinterpret_cast<__m256i*>(q),
                       _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    return best;
  }

 private:
  float between(float low, float high, NibbleScale* scale, __m256* q) const {
    *scale = {.step = f16_from_f32((high - low) / 15.f), .low = f16_from_f32(low)};
    const __m256 step = _mm256_set1_ps(f32_from_f16(scale->step));
    const __m256 from = _mm256_set1_ps(f32_from_f16(scale->low));
    const __m256 magic = _mm256_set1_ps(kRoundMagic);
    __m256 part = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      __m256 at = _mm256_setzero_ps();
      if (scale->step != 0) at = _mm256_div_ps(_mm256_sub_ps(x_[i], from), step);
      at = _mm256_min_ps(_mm256_max_ps(at, _mm256_setzero_ps()), _mm256_set1_ps(15.f));
      q[i] = _mm256_sub_ps(_mm256_add_ps(at, magic), magic);
      const __m256 off = _mm256_and_ps(_mm256_sub_ps(_mm256_fmadd_ps(q[i], step, from), x_[i]), mask_[i]);
      part = _mm256_fmadd_ps(off, off, part);
    }
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(part), _mm256_extractf128_ps(part, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

  __m256 x_[4], mask_[4];
  float low_, high_;
};

// Calls put(group, q [32]) for each 32 columns; false if the head leaves the range of the format.
template <class Put>
bool encode_nibbles(Head& head, size_t dim, size_t columns, NibbleScale* scales, size_t scale_stride,
                    const Put& put) {
  if (!rotate_head(head, dim, columns)) return false;
  for (size_t group = 0; group < columns / kNibbles; ++group) {
    const size_t left = dim - group * kNibbles;
    const NibbleEncoder encoder(head.x + group * kNibbles,
                                left < kNibbles ? static_cast<int>(left) : kNibbles);
    if (!encoder.fits()) return false;
    alignas(32) uint8_t q[kNibbles];
    scales[group * scale_stride] = encoder.encode(q);
    put(group, q);
  }
  return true;
}

bool put_nibble_key(const tensor::KvLayout& l, TokenPlace at, Head& k) {
  auto* keys = reinterpret_cast<uint8_t*>(at.head_block) + key_index_nibble(l.key_columns, at.token, 0);
  return encode_nibbles(k, l.key_dim, l.key_columns, key_nibble_scales(l, at.head_block) + at.token,
                        l.block_tokens, [&](size_t group, const uint8_t* q) {
                          for (size_t line = 0; line < kNibbles / 8; ++line) {
                            uint32_t low, high;
                            __builtin_memcpy(&low, q + 8 * line, 4);
                            __builtin_memcpy(&high, q + 8 * line + 4, 4);
                            low |= high << 4;
                            __builtin_memcpy(keys + 64 * (kNibbles / 8 * group + line), &low, 4);
                          }
                        });
}
bool put_nibble_value(const tensor::KvLayout& l, TokenPlace at, Head& v) {
  auto* values = reinterpret_cast<uint8_t*>(at.head_block + l.value_offset) +
                 value_index_nibble(l.value_columns, at.token, 0);
  return encode_nibbles(v, l.value_dim, l.value_columns, value_nibble_scales(l, at.head_block) + at.token,
                        l.block_tokens, [&](size_t group, const uint8_t* q) {
                          for (size_t c = 0; c < kNibbles / 2; ++c)
                            values[64 * group + 4 * c] = static_cast<uint8_t>(q[c] | q[c + 16] << 4);
                        });
}

struct K8V4Codec {
  static bool put(const tensor::KvLayout& l, TokenPlace at, Head& k, Head& v) {
    return put_int8_key(l, at, k) && put_nibble_value(l, at, v);
  }
};
struct Int4Codec {
  static bool put(const tensor::KvLayout& l, TokenPlace at, Head& k, Head& v) {
    return put_nibble_key(l, at, k) && put_nibble_value(l, at, v);
  }
};

template <class Codec>
bool store(const KvSequence& kv, size_t position, const float* k, const float* v) {
  const tensor::KvLayout& l = *kv.layout;
  Head key, value;
  bool finite = true;
  for (size_t h = 0; finite && h < l.kv_heads; ++h) {
    load_head(k + h * l.key_dim, l.key_dim, l.key_columns, key);
    load_head(v + h * l.value_dim, l.value_dim, l.value_columns, value);
    finite = Codec::put(l, token_place(kv, position, h), key, value);
  }
  if (finite) return true;
  for (size_t h = 0; h < l.kv_heads; ++h) {
    load_head(k, 0, l.key_columns, key);
    load_head(v, 0, l.value_columns, value);
    Codec::put(l, token_place(kv, position, h), key, value);
  }
  return false;
}

}  // namespace
}  // namespace tally::kernels::attention

namespace tally::kernels {

bool store_f32_avx2(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store<attention::F32Codec>(kv, position, k, v);
}
bool store_bf16_avx2(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store<attention::Bf16Codec>(kv, position, k, v);
}
bool store_int8_avx2(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store<attention::Int8Codec>(kv, position, k, v);
}
bool store_k8v4_avx2(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store<attention::K8V4Codec>(kv, position, k, v);
}
bool store_int4_avx2(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store<attention::Int4Codec>(kv, position, k, v);
}

}  // namespace tally::kernels
