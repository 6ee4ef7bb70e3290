#pragma once
// Where the bytes of one KV block lie: shared by kv (which owns the pool) and the attention kernels (which
// read it). POD.
//
// A block is one layer x block_tokens consecutive positions x all KV heads:
//   block      = head block 0 | head block 1 | ...     each 64-byte aligned
//   head block = K part | V part | tail (scales of K, then of V)
// A codec says what K and what V is made of. With t = token in the block, c = value index, B = block_tokens,
// d = columns (dk or dv, padded with zeros to 16, or to 32 in codecs with nibbles):
//   f32     [B][d]                                                 no scales
//   bf16    K [t/16][d/2][16][2]       V [t/2][d/16][16][2]        no scales
//   int8    K u8 = q + 128 [t/16][d/4][16][4]                      f32 [B]
//           V s8 [t/4][d/16][16][4]
//   nibble  K [t/16][d/8][16][4] u8: low half c % 8 < 4            f16 pair (step, low) [d/32][B]
//           V [t/4][d/32][16][4] u8: low half c % 32 < 16

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tally::tensor {

enum class KvCodec : uint8_t { kF32, kBf16, kInt8, kK8V4, kInt4 };
enum class KvFormat : uint8_t { kF32, kBf16, kInt8, kNibble };  // of K or of V

inline constexpr uint32_t kNibbleGroup = 32;  // columns that share a step and a low

struct KvCodecInfo {
  KvCodec codec;
  std::string_view name;  // the value of --kv-type
  KvFormat key, value;
};

inline constexpr KvCodecInfo kKvCodecs[] = {
    {KvCodec::kF32, "f32", KvFormat::kF32, KvFormat::kF32},
    {KvCodec::kBf16, "bf16", KvFormat::kBf16, KvFormat::kBf16},
    {KvCodec::kInt8, "int8", KvFormat::kInt8, KvFormat::kInt8},
    {KvCodec::kK8V4, "k8v4", KvFormat::kInt8, KvFormat::kNibble},
    {KvCodec::kInt4, "int4", KvFormat::kNibble, KvFormat::kNibble},
};

constexpr const KvCodecInfo& kv_codec_info(KvCodec codec) { return kKvCodecs[static_cast<size_t>(codec)]; }

// Bytes of one token's values, and of its scales.
constexpr size_t kv_value_bytes(KvFormat format, uint32_t columns) {
  switch (format) {
    case KvFormat::kF32:
      return size_t{columns} * 4;
    case KvFormat::kBf16:
      return size_t{columns} * 2;
    case KvFormat::kInt8:
      return columns;
    case KvFormat::kNibble:
      return columns / 2;
  }
  return 0;
}
constexpr size_t kv_scale_bytes(KvFormat format, uint32_t columns) {
  if (format == KvFormat::kNibble) return size_t{columns} / kNibbleGroup * 4;
  return format == KvFormat::kInt8 ? 4 : 0;
}

// Offsets are bytes from the start of a head block.
struct KvLayout {
  KvCodec codec = KvCodec::kF32;
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0, value_dim = 0;          // of the model
  uint32_t key_columns = 0, value_columns = 0;  // stored
  uint32_t block_tokens = 0;                    // 16, 32, 64 or 128
  size_t value_offset = 0, tail_offset = 0, value_scale_offset = 0;
  size_t head_block_bytes = 0, block_bytes = 0;  // block_bytes = kv_heads * head_block_bytes

  bool operator==(const KvLayout&) const = default;
};

// Requires: key_dim, value_dim in 8..512 and even; block_tokens one of 16, 32, 64, 128.
constexpr KvLayout make_kv_layout(KvCodec codec, uint32_t kv_heads, uint32_t key_dim, uint32_t value_dim,
                                  uint32_t block_tokens) {
  const KvFormat key = kv_codec_info(codec).key, value = kv_codec_info(codec).value;
  const uint32_t unit = value == KvFormat::kNibble ? kNibbleGroup : 16;
  const auto padded = [unit](uint32_t n) { return (n + unit - 1) / unit * unit; };
  KvLayout l;
  l.codec = codec, l.kv_heads = kv_heads, l.key_dim = key_dim, l.value_dim = value_dim;
  l.key_columns = padded(key_dim), l.value_columns = padded(value_dim), l.block_tokens = block_tokens;
  l.value_offset = block_tokens * kv_value_bytes(key, l.key_columns);
  l.tail_offset = l.value_offset + block_tokens * kv_value_bytes(value, l.value_columns);
  l.value_scale_offset = l.tail_offset + block_tokens * kv_scale_bytes(key, l.key_columns);
  const size_t end = l.value_scale_offset + block_tokens * kv_scale_bytes(value, l.value_columns);
  l.head_block_bytes = (end + 63) & ~size_t{63};
  l.block_bytes = l.head_block_bytes * kv_heads;
  return l;
}

}  // namespace tally::tensor
