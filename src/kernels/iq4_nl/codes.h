#pragma once
// Reads one row's block out of a packed IQ4_NL unit.

#include "kernels/block32.h"
#include "kernels/iq4_nl/iq4_nl.h"
#include "tensor/blocks.h"

namespace tally::kernels {

inline Codes32 iq4_nl_codes(const std::byte* group, size_t lane, size_t block) {
  const std::byte* unit = group + unit_offset(kIq4NlUnit, block, lane);
  const size_t r = lane % kUnitRows;
  Codes32 c;
  for (size_t k = 0; k < 16; ++k) {
    const auto pair = static_cast<uint8_t>(unit[nibble_offset(r, k)]);
    c.q[k] = tensor::kIq4Values[pair & 15];
    c.q[k + 16] = tensor::kIq4Values[pair >> 4];
  }
  c.d = tensor::f16_to_f32(get_u16(unit, kIq4NlScale, r));
  c.m = 0;
  return c;
}

}  // namespace tally::kernels
