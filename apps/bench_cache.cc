#include "bench_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace tally::apps {

void fill_layer(const tensor::KvLayout& layout, std::byte* layer, uint32_t blocks, kernels::KvStoreFn store,
                uint32_t seed) {
  constexpr uint32_t kDistinctBlocks = 8;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> k(size_t{layout.kv_heads} * layout.key_dim),
      v(size_t{layout.kv_heads} * layout.value_dim);
  const uint32_t distinct = std::min(blocks, kDistinctBlocks);
  std::vector<uint32_t> table(distinct);
  std::iota(table.begin(), table.end(), 0u);
  for (size_t position = 0; position < size_t{distinct} * layout.block_tokens; ++position) {
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    store({&layout, layer, table.data()}, position, k.data(), v.data());
  }
  for (size_t block = distinct; block < blocks; ++block) {
    std::memcpy(layer + block * layout.block_bytes, layer + block % distinct * layout.block_bytes,
                layout.block_bytes);
  }
}

}  // namespace tally::apps
