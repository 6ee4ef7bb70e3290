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

struct Int8Codec {
  static bool put(const tensor::KvLayout& l, TokenPlace at, Head& k, Head& v) {
    alignas(64) int8_t k8[kDimMax], v8[kDimMax];
    if (!all_finite_lanes(k.x, l.key_columns) || !all_finite_lanes(v.x, l.value_columns)) return false;
    rotate_lanes(k.x, l.key_dim, l.key_columns);
    const bool finite = all_finite_lanes(k.x, l.key_columns);
    key_scales(l, at.head_block)[at.token] = quantize_lanes(k.x, l.key_columns, k8);
    value_scales(l, at.head_block)[at.token] = quantize_lanes(v.x, l.value_columns, v8);
    auto* keys = reinterpret_cast<uint8_t*>(at.head_block) + key_index_int8(l.key_columns, at.token, 0);
    for (size_t c = 0; c < l.key_columns; c += 4) {
      uint32_t four;
      __builtin_memcpy(&four, k8 + c, 4);
      four ^= 0x80808080u;
      __builtin_memcpy(keys + c * 16, &four, 4);
    }
    auto* values = reinterpret_cast<int8_t*>(at.head_block + l.value_offset) +
                   value_index_int8(l.value_columns, at.token, 0);
    for (size_t c = 0; c < l.value_columns; ++c) values[c * 4] = v8[c];
    return finite;
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

}  // namespace tally::kernels
