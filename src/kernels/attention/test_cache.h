#pragma once
// A cache for tests: one layer, one sequence, blocks in shuffled order, everything that was not written
// poisoned with 0xFF.

#include "kernels/attention/attention.h"
#include "kernels/linear.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace tally::kernels::attention {

// Every codec, for INSTANTIATE_TEST_SUITE_P.
inline std::vector<tensor::KvCodec> all_codecs() {
  std::vector<tensor::KvCodec> list;
  for (const tensor::KvCodecInfo& info : tensor::kKvCodecs) list.push_back(info.codec);
  return list;
}

struct CacheShape {
  tensor::KvCodec codec = tensor::KvCodec::kInt8;
  uint32_t kv_heads = 2, key_dim = 64, value_dim = 64, block_tokens = 64;
};

class TestCache {
 public:
  TestCache(const CacheShape& shape, size_t tokens_max, unsigned seed)
      : layout_(tensor::make_kv_layout(shape.codec, shape.kv_heads, shape.key_dim, shape.value_dim,
                                       shape.block_tokens)),
        table_((tokens_max + shape.block_tokens - 1) / shape.block_tokens) {
    const size_t bytes = (table_.size() + 1) * layout_.block_bytes;
    memory_.assign(bytes + 64, std::byte{0xFF});
    std::iota(table_.begin(), table_.end(), 1u);  // block 0 stays unwritten
    std::shuffle(table_.begin(), table_.end(), std::mt19937(seed));
  }

  KvSequence sequence() {
    auto* base = memory_.data();
    base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64;
    return {.layout = &layout_, .layer = base, .table = table_.data()};
  }
  const tensor::KvLayout& layout() const { return layout_; }
  // Bytes of the block that holds `position`, all heads.
  std::vector<std::byte> block_of(size_t position) {
    const std::byte* b = sequence().layer + table_[position / layout_.block_tokens] * layout_.block_bytes;
    return {b, b + layout_.block_bytes};
  }
  // Blocks wholly before `position` get a number far outside the pool.
  void forget_blocks_before(size_t position) {
    for (size_t b = 0; b < position / layout_.block_tokens; ++b) table_[b] = 1u << 30;
  }

 private:
  tensor::KvLayout layout_;
  std::vector<uint32_t> table_;
  std::vector<std::byte> memory_;
};

inline std::vector<float> random_values(std::mt19937& rng, size_t n, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// Memory of kernels: 64-byte aligned, filled with garbage.
class TestScratch {
 public:
  explicit TestScratch(size_t bytes) : memory_(bytes + 64, std::byte{0xFF}) {}
  std::byte* data() {
    std::byte* p = memory_.data();
    return p + (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64;
  }

 private:
  std::vector<std::byte> memory_;
};

}  // namespace tally::kernels::attention
