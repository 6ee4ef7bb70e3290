#include "tensor/tensor.h"

#include "tensor/blocks.h"
#include "tensor/kv_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tally::tensor {
namespace {

TEST(DType, TableIsConsistent) {
  std::set<uint32_t> ids;
  for (const DTypeInfo& row : dtypes()) {
    EXPECT_TRUE(ids.insert(static_cast<uint32_t>(row.type)).second) << row.name;
    EXPECT_EQ(find_dtype(static_cast<uint32_t>(row.type)), &row);
    EXPECT_EQ(row_bytes(row.type, 3 * row.block_elements), 3 * row.block_bytes);
  }
  for (const uint32_t hole : {4u, 5u, 9u, 31u, 33u, 36u, 135u, UINT32_MAX})
    EXPECT_EQ(find_dtype(hole), nullptr) << hole;
}

// Every half, there and back; every rounding of a float against the hardware-independent definition by
// neighbours.
TEST(Half, RoundTripsAndRoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<uint16_t>(h);
    const float wide = f16_to_f32(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(wide))));
      continue;
    }
    ASSERT_EQ(f32_to_f16(wide), half);
    if ((h & 0x7FFF) >= 0x7BFF) continue;
    // Half-way to the next value goes to the even one; a hair more goes up.
    const float up = f16_to_f32(static_cast<uint16_t>(h + 1));
    const float middle = wide + (up - wide) / 2;
    ASSERT_EQ(f32_to_f16(middle), h % 2 == 0 ? half : static_cast<uint16_t>(h + 1)) << h;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, up)), static_cast<uint16_t>(h + 1)) << h;
  }
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(65519.9f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xFC00);
}

TEST(Bfloat, RoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<uint16_t>(h);
    const float wide = bf16_to_f32(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(wide))));
      continue;
    }
    ASSERT_EQ(f32_to_bf16(wide), half);
    if ((h & 0x7FFF) >= 0x7F7F) continue;
    const float middle = std::bit_cast<float>((h << 16) | 0x8000u);
    ASSERT_EQ(f32_to_bf16(middle), h % 2 == 0 ? half : static_cast<uint16_t>(h + 1));
  }
}

TEST(KvLayout, MatchesTheReferenceSizes) {
  // d = 128, B = 64: bytes per head block of the attention reference.
  EXPECT_EQ(make_kv_layout(KvCodec::kF32, 8, 128, 128, 64).head_block_bytes, 65536u);
  EXPECT_EQ(make_kv_layout(KvCodec::kBf16, 8, 128, 128, 64).head_block_bytes, 32768u);
  EXPECT_EQ(make_kv_layout(KvCodec::kInt8, 8, 128, 128, 64).head_block_bytes, 16896u);
  EXPECT_EQ(make_kv_layout(KvCodec::kInt8, 8, 128, 128, 64).block_bytes, 135168u);
  EXPECT_EQ(make_kv_layout(KvCodec::kK8V4, 8, 128, 128, 64).head_block_bytes, 13568u);
  EXPECT_EQ(make_kv_layout(KvCodec::kInt4, 8, 128, 128, 64).head_block_bytes, 10240u);
  const KvLayout odd = make_kv_layout(KvCodec::kInt8, 2, 24, 8, 16);
  EXPECT_EQ(odd.key_columns, 32u);
  EXPECT_EQ(odd.value_columns, 16u);
  EXPECT_EQ(odd.value_offset, 16u * 32);
  EXPECT_EQ(odd.tail_offset, 16u * 48);
  EXPECT_EQ(odd.head_block_bytes % 64, 0u);
}

TEST(Q4K, ScalesUnpackAsTheFormatSays) {
  // Scales 0..7 and minimums 56..63 packed by the definition, read back.
  uint8_t sc[12] = {};
  for (int j = 0; j < 8; ++j) {
    const int s = 7 * j + 3, m = 63 - j;
    if (j < 4) {
      sc[j] = static_cast<uint8_t>(sc[j] | s), sc[j + 4] = static_cast<uint8_t>(sc[j + 4] | m);
    } else {
      sc[j + 4] = static_cast<uint8_t>((s & 15) | ((m & 15) << 4));
      sc[j - 4] = static_cast<uint8_t>(sc[j - 4] | ((s >> 4) << 6));
      sc[j] = static_cast<uint8_t>(sc[j] | ((m >> 4) << 6));
    }
  }
  for (int j = 0; j < 8; ++j) {
    EXPECT_EQ(q4k_scale_min(sc, j).scale, 7 * j + 3);
    EXPECT_EQ(q4k_scale_min(sc, j).min, 63 - j);
  }
}

}  // namespace
}  // namespace tally::tensor
