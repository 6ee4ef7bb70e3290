#pragma once
// Where token t of layer l lives, and in which codec. Bytes only: who owns a block is the ledger's affair.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "tensor/kv_layout.h"

namespace tally::kv {

// The layouts of every layer and where each layer starts in the pool: pool = [layer][block id][head block].
struct PoolShape {
  std::vector<tensor::KvLayout> layers;
  std::vector<size_t> layer_offset;  // bytes from the pool's start, 64-byte aligned
  uint32_t blocks = 0;

  // Bytes of the whole pool.
  size_t pool_bytes() const;
  // Bytes of one block over all layers: what one block id costs.
  size_t block_bytes() const;
};

// Lays out a pool of `blocks` blocks. Requires: at least one layer, all with the same block_tokens.
PoolShape make_pool_shape(std::vector<tensor::KvLayout> layers, uint32_t blocks);
// Bytes of one block id over all layers, before a pool exists (the plan).
size_t pool_block_bytes(std::span<const tensor::KvLayout> layers);

// A non-owning view of the pool's memory.
class View {
 public:
  View() = default;
  // Requires: `pool` is 64-byte aligned and holds shape->pool_bytes(); both outlive the view.
  View(const PoolShape* shape, std::byte* pool) : shape_(shape), pool_(pool) {}

  const PoolShape& shape() const { return *shape_; }
  const tensor::KvLayout& layout(LayerIdx layer) const { return shape_->layers[raw(layer)]; }
  std::byte* layer(LayerIdx layer) const { return pool_ + shape_->layer_offset[raw(layer)]; }

  // Copies a block's bytes in one layer. Rows are encoded one by one, so the rows that `from` has not yet are
  // only garbage in `to`.
  void copy_block(LayerIdx layer, BlockId from, BlockId to) const;
  // Fills a block's bytes in every layer with 0xFF: NaN scales, so that a read of unwritten rows shows (tests).
  void poison(BlockId block) const;

 private:
  const PoolShape* shape_ = nullptr;
  std::byte* pool_ = nullptr;
};

}  // namespace tally::kv
