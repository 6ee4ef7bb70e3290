#include "kv/view.h"

#include "base/check.h"

#include <cstring>

namespace tally::kv {

size_t pool_block_bytes(std::span<const tensor::KvLayout> layers) {
  size_t bytes = 0;
  for (const tensor::KvLayout& l : layers) bytes += l.block_bytes;
  return bytes;
}

size_t PoolShape::block_bytes() const { return pool_block_bytes(layers); }

size_t PoolShape::pool_bytes() const { return block_bytes() * blocks; }

PoolShape make_pool_shape(std::vector<tensor::KvLayout> layers, uint32_t blocks) {
  TALLY_CHECK(!layers.empty(), "a pool without layers");
  PoolShape shape;
  size_t offset = 0;
  for (const tensor::KvLayout& l : layers) {
    TALLY_CHECK(l.block_tokens == layers.front().block_tokens,
                "layers with different block_tokens:", l.block_tokens, layers.front().block_tokens);
    TALLY_CHECK(l.block_bytes % 64 == 0, "a block is not a multiple of 64 bytes:", l.block_bytes);
    shape.layer_offset.push_back(offset);
    offset += l.block_bytes * blocks;
  }
  shape.layers = std::move(layers);
  shape.blocks = blocks;
  return shape;
}

void View::copy_block(LayerIdx at, BlockId from, BlockId to) const {
  TALLY_CHECK(raw(from) < shape_->blocks && raw(to) < shape_->blocks, "no such block:", raw(from), raw(to));
  const size_t bytes = layout(at).block_bytes;
  std::memcpy(layer(at) + raw(to) * bytes, layer(at) + raw(from) * bytes, bytes);
}

void View::poison(BlockId block) const {
  TALLY_CHECK(raw(block) < shape_->blocks, "no such block:", raw(block), shape_->blocks);
  for (size_t i = 0; i < shape_->layers.size(); ++i) {
    const size_t bytes = shape_->layers[i].block_bytes;
    std::memset(pool_ + shape_->layer_offset[i] + raw(block) * bytes, 0xFF, bytes);
  }
}

}  // namespace tally::kv
