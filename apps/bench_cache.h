#pragma once
// A KV cache with something in it, without the prefill that would put it there.

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>

namespace tally::apps {

// Encodes random keys and values into every position of `blocks` consecutive blocks of one layer, which are
// repeated from the ninth block on.
void fill_layer(const tensor::KvLayout& layout, std::byte* layer, uint32_t blocks, kernels::KvStoreFn store,
                uint32_t seed);

}  // namespace tally::apps
