#pragma once
// Reads one row's block out of a packed MXFP4 unit.

#include "kernels/block32.h"
#include "kernels/mxfp4/mxfp4.h"
#include "tensor/blocks.h"

namespace tally::kernels {

inline Codes32 mxfp4_codes(const std::byte* group, size_t lane, size_t block) {
  const std::byte* unit = group + unit_offset(kMxfp4Unit, block, lane);
  const size_t r = lane % kUnitRows;
  Codes32 c;
  for (size_t k = 0; k < 16; ++k) {
    const auto pair = static_cast<uint8_t>(unit[nibble_offset(r, k)]);
    c.q[k] = tensor::kMxfp4Values[pair & 15];
    c.q[k + 16] = tensor::kMxfp4Values[pair >> 4];
  }
  c.d = tensor::mxfp4_scale(static_cast<uint8_t>(unit[kMxfp4Scale + r]));
  c.m = 0;
  return c;
}

}  // namespace tally::kernels
