#pragma once
// Random weights and activations as the linear kernels want them.

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tally::apps {

// Bytes in lines of the cache.
struct CacheLine {
  alignas(64) std::byte bytes[64];
};
using CacheLines = std::vector<CacheLine>;
CacheLines cache_lines(size_t bytes);  // at least so many, zero

// One packed group of rows of this format: normal values, encoded where there is an encoder, else any bytes.
CacheLines random_group(const kernels::LinearFormat& format, size_t k);

// `tokens` normal rows as the panel of this format.
CacheLines random_panel(const kernels::KernelTable& table, const kernels::LinearFormat& format,
                        uint32_t tokens, size_t k);

}  // namespace tally::apps
