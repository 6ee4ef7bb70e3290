#pragma once
// Addresses inside a head block (tensor/kv_layout.h). Internal linkage: included by objects of every ISA.

#include "kernels/attention/arithmetic.h"
#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>

namespace tally::kernels::attention {

// One token of one head: its head block and its index in the block.
struct TokenPlace {
  std::byte* head_block;
  size_t token;
};

static inline TokenPlace token_place(const KvSequence& kv, size_t position, size_t kv_head) {
  const tensor::KvLayout& l = *kv.layout;
  const size_t block = kv.table[position >> __builtin_ctz(l.block_tokens)];  // a power of two
  return {kv.layer + block * l.block_bytes + kv_head * l.head_block_bytes, position & (l.block_tokens - 1)};
}

// Indices count elements of the codec from the start of the K or V part.
static inline size_t key_index_f32(size_t columns, size_t t, size_t c) { return t * columns + c; }
static inline size_t value_index_f32(size_t columns, size_t t, size_t c) { return t * columns + c; }
static inline size_t key_index_bf16(size_t columns, size_t t, size_t c) {
  return (t / 16) * 16 * columns + (c / 2) * 32 + (t % 16) * 2 + c % 2;
}
static inline size_t value_index_bf16(size_t columns, size_t t, size_t c) {
  return (t / 2) * 2 * columns + c * 2 + t % 2;
}
static inline size_t key_index_int8(size_t columns, size_t t, size_t c) {
  return (t / 16) * 16 * columns + (c / 4) * 64 + (t % 16) * 4 + c % 4;
}
static inline size_t value_index_int8(size_t columns, size_t t, size_t c) {
  return (t / 4) * 4 * columns + c * 4 + t % 4;
}

static inline size_t key_index_nibble(size_t columns, size_t t, size_t c) {
  return (t / 16) * 8 * columns + (c / 8) * 64 + (t % 16) * 4 + c % 4;
}
static inline bool key_nibble_is_high(size_t c) { return c % 8 >= 4; }
static inline size_t value_index_nibble(size_t columns, size_t t, size_t c) {
  return (t / 4) * 2 * columns + (c / 32) * 64 + (c % 16) * 4 + t % 4;
}
static inline bool value_nibble_is_high(size_t c) { return c % 32 >= 16; }

// Of int8: one a token.
static inline float* key_scales(const tensor::KvLayout& l, std::byte* head_block) {
  return reinterpret_cast<float*>(head_block + l.tail_offset);
}
static inline float* value_scales(const tensor::KvLayout& l, std::byte* head_block) {
  return reinterpret_cast<float*>(head_block + l.value_scale_offset);
}

// Of nibbles: [columns / 32][block_tokens].
static inline NibbleScale* key_nibble_scales(const tensor::KvLayout& l, std::byte* head_block) {
  return reinterpret_cast<NibbleScale*>(head_block + l.tail_offset);
}
static inline NibbleScale* value_nibble_scales(const tensor::KvLayout& l, std::byte* head_block) {
  return reinterpret_cast<NibbleScale*>(head_block + l.value_scale_offset);
}

// Codecs with integers hold rotated keys, those with nibbles rotated values too.
static inline bool rotates_keys(tensor::KvCodec codec) {
  const tensor::KvFormat key = tensor::kv_codec_info(codec).key;
  return key == tensor::KvFormat::kInt8 || key == tensor::KvFormat::kNibble;
}
static inline bool rotates_values(tensor::KvCodec codec) {
  return tensor::kv_codec_info(codec).value == tensor::KvFormat::kNibble;
}

}  // namespace tally::kernels::attention
