// The codecs, one value at a time: the definition. A token's bytes depend on its k and v only. Padding
// columns hold the value zero; K and V of a refused token are zeros throughout.
#include "kernels/attention/codec.h"

#include "kernels/attention/arithmetic.h"
#include "kernels/attention/attention.h"

namespace tally::kernels::attention {
namespace {

using tensor::KvLayout;

bool token_is_finite(const KvLayout& l, const float* k, const float* v) {
  return all_finite(k, size_t{l.kv_heads} * l.key_dim) && all_finite(v, size_t{l.kv_heads} * l.value_dim);
}

// x [dim] followed by zeros up to `columns`.
float padded(const float* x, size_t dim, size_t c) { return c < dim ? x[c] : 0.f; }

void put_f32(const KvLayout& l, TokenPlace at, const float* k, const float* v) {
  auto* keys = reinterpret_cast<float*>(at.head_block);
  auto* values = reinterpret_cast<float*>(at.head_block + l.value_offset);
  for (size_t c = 0; c < l.key_columns; ++c)
    keys[key_index_f32(l.key_columns, at.token, c)] = padded(k, l.key_dim, c);
  for (size_t c = 0; c < l.value_columns; ++c)
    values[value_index_f32(l.value_columns, at.token, c)] = padded(v, l.value_dim, c);
}

void put_bf16(const KvLayout& l, TokenPlace at, const float* k, const float* v) {
  auto* keys = reinterpret_cast<uint16_t*>(at.head_block);
  auto* values = reinterpret_cast<uint16_t*>(at.head_block + l.value_offset);
  for (size_t c = 0; c < l.key_columns; ++c)
    keys[key_index_bf16(l.key_columns, at.token, c)] = bf16_from_f32(padded(k, l.key_dim, c));
  for (size_t c = 0; c < l.value_columns; ++c)
    values[value_index_bf16(l.value_columns, at.token, c)] = bf16_from_f32(padded(v, l.value_dim, c));
}

// Returns false if the rotated key overflows f32.
bool put_int8(const KvLayout& l, TokenPlace at, const float* k, const float* v) {
  float rotated[kDimMax] = {};
  int8_t quants[kDimMax];
  for (size_t c = 0; c < l.key_dim; ++c) rotated[c] = k[c];
  rotate(rotated, l.key_dim);
  if (!all_finite(rotated, l.key_dim)) return false;
  key_scales(l, at.head_block)[at.token] = quantize_127(rotated, l.key_columns, quants);
  auto* keys = reinterpret_cast<uint8_t*>(at.head_block);
  for (size_t c = 0; c < l.key_columns; ++c)
    keys[key_index_int8(l.key_columns, at.token, c)] = static_cast<uint8_t>(quants[c] + 128);

  value_scales(l, at.head_block)[at.token] = quantize_127(v, l.value_dim, quants);
  auto* values = reinterpret_cast<int8_t*>(at.head_block + l.value_offset);
  for (size_t c = 0; c < l.value_columns; ++c)
    values[value_index_int8(l.value_columns, at.token, c)] = c < l.value_dim ? quants[c] : int8_t{0};
  return true;
}

template <class Put>
void put_zeros(const KvSequence& kv, size_t position, Put put) {
  const float zeros[kDimMax] = {};
  for (size_t h = 0; h < kv.layout->kv_heads; ++h)
    put(*kv.layout, token_place(kv, position, h), zeros, zeros);
}

bool store_f32(const KvSequence& kv, size_t position, const float* k, const float* v) {
  const KvLayout& l = *kv.layout;
  if (!token_is_finite(l, k, v)) {
    put_zeros(kv, position, put_f32);
    return false;
  }
  for (size_t h = 0; h < l.kv_heads; ++h)
    put_f32(l, token_place(kv, position, h), k + h * l.key_dim, v + h * l.value_dim);
  return true;
}

// A finite value that rounds to infinity is refused like an infinity.
bool store_bf16(const KvSequence& kv, size_t position, const float* k, const float* v) {
  const KvLayout& l = *kv.layout;
  bool finite = true;
  for (size_t i = 0; i < size_t{l.kv_heads} * l.key_dim; ++i)
    finite &= is_finite(f32_from_bf16(bf16_from_f32(k[i])));
  for (size_t i = 0; i < size_t{l.kv_heads} * l.value_dim; ++i)
    finite &= is_finite(f32_from_bf16(bf16_from_f32(v[i])));
  if (!finite) {
    put_zeros(kv, position, put_bf16);
    return false;
  }
  for (size_t h = 0; h < l.kv_heads; ++h)
    put_bf16(l, token_place(kv, position, h), k + h * l.key_dim, v + h * l.value_dim);
  return true;
}

bool store_int8(const KvSequence& kv, size_t position, const float* k, const float* v) {
  const KvLayout& l = *kv.layout;
  bool finite = token_is_finite(l, k, v);
  for (size_t h = 0; finite && h < l.kv_heads; ++h)
    finite = put_int8(l, token_place(kv, position, h), k + h * l.key_dim, v + h * l.value_dim);
  if (!finite) put_zeros(kv, position, put_int8);
  return finite;
}

}  // namespace

void load_f32(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v) {
  const KvLayout& l = *kv.layout;
  const TokenPlace at = token_place(kv, position, kv_head);
  const auto* keys = reinterpret_cast<const float*>(at.head_block);
  const auto* values = reinterpret_cast<const float*>(at.head_block + l.value_offset);
  for (size_t c = 0; c < l.key_dim; ++c) k[c] = keys[key_index_f32(l.key_columns, at.token, c)];
  for (size_t c = 0; c < l.value_dim; ++c) v[c] = values[value_index_f32(l.value_columns, at.token, c)];
}

void load_bf16(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v) {
  const KvLayout& l = *kv.layout;
  const TokenPlace at = token_place(kv, position, kv_head);
  const auto* keys = reinterpret_cast<const uint16_t*>(at.head_block);
  const auto* values = reinterpret_cast<const uint16_t*>(at.head_block + l.value_offset);
  for (size_t c = 0; c < l.key_dim; ++c)
    k[c] = f32_from_bf16(keys[key_index_bf16(l.key_columns, at.token, c)]);
  for (size_t c = 0; c < l.value_dim; ++c)
    v[c] = f32_from_bf16(values[value_index_bf16(l.value_columns, at.token, c)]);
}

void load_int8(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v) {
  const KvLayout& l = *kv.layout;
  const TokenPlace at = token_place(kv, position, kv_head);
  const auto* keys = reinterpret_cast<const uint8_t*>(at.head_block);
  const auto* values = reinterpret_cast<const int8_t*>(at.head_block + l.value_offset);
  const float sk = key_scales(l, at.head_block)[at.token], sv = value_scales(l, at.head_block)[at.token];
  for (size_t c = 0; c < l.key_dim; ++c)
    k[c] = static_cast<float>(keys[key_index_int8(l.key_columns, at.token, c)] - 128) * sk;
  for (size_t c = 0; c < l.value_dim; ++c)
    v[c] = static_cast<float>(values[value_index_int8(l.value_columns, at.token, c)]) * sv;
}

}  // namespace tally::kernels::attention

namespace tally::kernels {

bool store_f32_scalar(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store_f32(kv, position, k, v);
}
bool store_bf16_scalar(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store_bf16(kv, position, k, v);
}
bool store_int8_scalar(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store_int8(kv, position, k, v);
}

}  // namespace tally::kernels
