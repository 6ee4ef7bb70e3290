#pragma once
// Reads one row's block out of a packed Q8_0 unit.

#include "kernels/block32.h"
#include "kernels/q8_0/q8_0.h"
#include "tensor/blocks.h"

namespace tally::kernels {

inline Codes32 q8_0_codes(const std::byte* group, size_t lane, size_t block) {
  const std::byte* unit = group + unit_offset(kQ8_0Unit, block, lane);
  const size_t r = lane % kUnitRows;
  Codes32 c;
  for (size_t k = 0; k < 32; ++k)
    c.q[k] = static_cast<int8_t>(static_cast<int>(unit[byte_offset(r, k)]) - 128);
  c.d = tensor::f16_to_f32(get_u16(unit, kQ8_0Scale, r));
  c.m = 0;
  return c;
}

}  // namespace tally::kernels
