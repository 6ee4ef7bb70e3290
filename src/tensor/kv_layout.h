#pragma once
// Where the bytes of one KV block lie: shared by kv (which owns the pool) and the attention kernels (which
// read it). POD.
//
// A block is one layer x block_tokens consecutive positions x all KV heads:
//   block      = head block 0 | head block 1 | ...     each 64-byte aligned
//   head block = K part | V part | tail (scales)
// With t = token in the block, c = value index, B = block_tokens, dk and dv padded to 16 columns (zeros):
//   f32   K f32 [B][dk]                     V f32 [B][dv]                 no tail
//   bf16  K bf16 [t/16][dk/2][16][2]        V bf16 [t/2][dv/16][16][2]    no tail
//   int8  K u8 = q + 128 [t/16][dk/4][16][4]  V s8 [t/4][dv/16][16][4]    tail f32 sk[B], f32 sv[B]

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tally::tensor {

enum class KvCodec : uint8_t { kF32, kBf16, kInt8 };

struct KvCodecInfo {
  KvCodec codec;
  std::string_view name;  // the value of --kv-type
  uint32_t value_bytes;   // of one value in the K and V parts
  uint32_t scale_bytes;   // of K and V scales together, a token and head
};

inline constexpr KvCodecInfo kKvCodecs[] = {
    {KvCodec::kF32, "f32", 4, 0},
    {KvCodec::kBf16, "bf16", 2, 0},
    {KvCodec::kInt8, "int8", 1, 8},
};

constexpr const KvCodecInfo& kv_codec_info(KvCodec codec) { return kKvCodecs[static_cast<size_t>(codec)]; }

// Offsets are bytes from the start of a head block.
struct KvLayout {
  KvCodec codec = KvCodec::kF32;
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0, value_dim = 0;          // of the model
  uint32_t key_columns = 0, value_columns = 0;  // stored: padded to 16
  uint32_t block_tokens = 0;                    // 16, 32, 64 or 128
  size_t value_offset = 0, tail_offset = 0;
  size_t head_block_bytes = 0, block_bytes = 0;  // block_bytes = kv_heads * head_block_bytes

  bool operator==(const KvLayout&) const = default;
};

// Requires: key_dim, value_dim in 8..512 and even; block_tokens one of 16, 32, 64, 128.
constexpr KvLayout make_kv_layout(KvCodec codec, uint32_t kv_heads, uint32_t key_dim, uint32_t value_dim,
                                  uint32_t block_tokens) {
  const KvCodecInfo& info = kv_codec_info(codec);
  const auto pad16 = [](uint32_t n) { return (n + 15u) & ~15u; };
  KvLayout l;
  l.codec = codec, l.kv_heads = kv_heads, l.key_dim = key_dim, l.value_dim = value_dim;
  l.key_columns = pad16(key_dim), l.value_columns = pad16(value_dim), l.block_tokens = block_tokens;
  l.value_offset = size_t{block_tokens} * l.key_columns * info.value_bytes;
  l.tail_offset = l.value_offset + size_t{block_tokens} * l.value_columns * info.value_bytes;
  l.head_block_bytes = (l.tail_offset + size_t{block_tokens} * info.scale_bytes + 63) & ~size_t{63};
  l.block_bytes = l.head_block_bytes * kv_heads;
  return l;
}

}  // namespace tally::tensor
