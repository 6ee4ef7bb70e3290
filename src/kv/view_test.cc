#include "kv/view.h"

#include <gtest/gtest.h>

#include <memory>

namespace tally::kv {
namespace {

using tensor::KvCodec;
using tensor::KvLayout;
using tensor::make_kv_layout;

TEST(KvLayout, HasTheSizesOfTheFormat) {
  // d = 128, B = 64 (the table of the format), 8 KV heads.
  EXPECT_EQ(make_kv_layout(KvCodec::kF32, 8, 128, 128, 64).head_block_bytes, 65536u);
  EXPECT_EQ(make_kv_layout(KvCodec::kBf16, 8, 128, 128, 64).head_block_bytes, 32768u);
  const KvLayout l = make_kv_layout(KvCodec::kInt8, 8, 128, 128, 64);
  EXPECT_EQ(l.head_block_bytes, 16896u);
  EXPECT_EQ(l.block_bytes, 135168u);
  EXPECT_EQ(l.value_offset, 64u * 128);
  EXPECT_EQ(l.tail_offset, 64u * 256);
  EXPECT_EQ(make_kv_layout(KvCodec::kK8V4, 8, 128, 128, 64).head_block_bytes, 13568u);
  EXPECT_EQ(make_kv_layout(KvCodec::kInt4, 8, 128, 128, 64).head_block_bytes, 10240u);
}

TEST(KvLayout, PadsColumnsAndHeadBlocks) {
  for (const tensor::KvCodecInfo& codec : tensor::kKvCodecs)
    for (const uint32_t block : {16u, 32u, 64u, 128u})
      for (const uint32_t dim : {8u, 12u, 24u, 80u, 96u}) {
        const KvLayout l = make_kv_layout(codec.codec, 3, dim, dim + 8, block);
        const uint32_t unit = codec.value == tensor::KvFormat::kNibble ? 32 : 16;
        EXPECT_EQ(l.key_columns % unit, 0u);
        EXPECT_EQ(l.value_columns % unit, 0u);
        EXPECT_GE(l.key_columns, dim);
        EXPECT_LT(l.key_columns, dim + unit);
        EXPECT_LT(l.value_columns, dim + 8 + unit);
        for (const size_t offset : {l.value_offset, l.tail_offset, l.value_scale_offset, l.head_block_bytes})
          EXPECT_EQ(offset % 64, 0u) << codec.name;
        EXPECT_EQ(l.block_bytes, 3 * l.head_block_bytes);
        EXPECT_GE(l.head_block_bytes,
                  l.value_scale_offset + block * tensor::kv_scale_bytes(codec.value, l.value_columns));
      }
}

std::vector<KvLayout> two_layers() {
  return {make_kv_layout(KvCodec::kInt8, 2, 64, 64, 32), make_kv_layout(KvCodec::kInt8, 1, 80, 48, 32)};
}

TEST(PoolShape, LayersFollowEachOther) {
  const PoolShape shape = make_pool_shape(two_layers(), 5);
  ASSERT_EQ(shape.layer_offset.size(), 2u);
  EXPECT_EQ(shape.layer_offset[0], 0u);
  EXPECT_EQ(shape.layer_offset[1], 5 * shape.layers[0].block_bytes);
  EXPECT_EQ(shape.block_bytes(), shape.layers[0].block_bytes + shape.layers[1].block_bytes);
  EXPECT_EQ(shape.block_bytes(), pool_block_bytes(two_layers()));
  EXPECT_EQ(shape.pool_bytes(), 5 * shape.block_bytes());
  for (const size_t offset : shape.layer_offset) EXPECT_EQ(offset % 64, 0u);
}

TEST(PoolShape, RefusesLayersThatDoNotBelongTogether) {
  EXPECT_DEATH(make_pool_shape({}, 1), "without layers");
  std::vector<KvLayout> mixed = two_layers();
  mixed.push_back(make_kv_layout(KvCodec::kInt8, 2, 64, 64, 64));
  EXPECT_DEATH(make_pool_shape(mixed, 1), "different block_tokens: 64 32");
}

TEST(View, PoisonFillsOneBlockInEveryLayer) {
  const PoolShape shape = make_pool_shape(two_layers(), 3);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory(shape.pool_bytes() / 64, Line{});
  std::byte* pool = memory.front().bytes;
  const View view(&shape, pool);
  view.poison(BlockId{1});

  for (uint32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(view.layout(LayerIdx{layer}), shape.layers[layer]);
    const std::byte* start = view.layer(LayerIdx{layer});
    EXPECT_EQ(start, pool + shape.layer_offset[layer]);
    const size_t bytes = shape.layers[layer].block_bytes;
    for (size_t i = 0; i < 3 * bytes; ++i)
      ASSERT_EQ(start[i], i / bytes == 1 ? std::byte{0xFF} : std::byte{0})
          << "layer " << layer << " byte " << i;
  }
  EXPECT_DEATH(view.poison(BlockId{3}), "no such block");
}

}  // namespace
}  // namespace tally::kv
