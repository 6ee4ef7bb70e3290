#pragma once
// What the families with blocks of 32 share: where a lane's block lies in a packed group, and the walks over
// rows that packing and unpacking are made of. Baseline code only.

#include "kernels/kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tally::kernels {

inline constexpr size_t kUnitRows = 16;

// Units lie [block][rows 0..15, rows 16..31].
inline size_t unit_offset(size_t unit_bytes, size_t block, size_t lane) {
  return (2 * block + lane / kUnitRows) * unit_bytes;
}

// Byte of the nibble pair (k, k + 16), k in 0..15, of unit row r: its low nibble is k, its high nibble k
// + 16.
inline size_t nibble_offset(size_t r, size_t k) { return 64 * (k / 4) + 4 * r + k % 4; }

// Byte of code k, 0..31, of unit row r.
inline size_t byte_offset(size_t r, size_t k) { return 64 * (k / 4) + 4 * r + k % 4; }

inline void put_u16(std::byte* unit, size_t offset, size_t r, uint16_t value) {
  std::memcpy(unit + offset + 2 * r, &value, 2);
}
inline uint16_t get_u16(const std::byte* unit, size_t offset, size_t r) {
  uint16_t value;
  std::memcpy(&value, unit + offset + 2 * r, 2);
  return value;
}

// Calls block(source, unit, r) for every block of the rows; unit bytes that nobody writes stay zero.
template <class Block, class Write>
void pack_blocks(const std::byte* rows, size_t row_count, size_t k, std::byte* group, size_t unit_bytes,
                 Write write) {
  const size_t blocks = k / 32;
  std::memset(group, 0, blocks * 2 * unit_bytes);
  for (size_t row = 0; row < row_count; ++row)
    for (size_t b = 0; b < blocks; ++b) {
      Block block;
      std::memcpy(&block, rows + (row * blocks + b) * sizeof(Block), sizeof(Block));
      write(block, group + unit_offset(unit_bytes, b, row), row % kUnitRows);
    }
}

// The 32 codes of one block, as the format's signed integers, and its scales.
struct Codes32 {
  int8_t q[32];
  float d, m;
};

// out[i] = d * q[i] (+ m): the format's formula.
inline void expand(const Codes32& block, float* out) {
  for (size_t i = 0; i < 32; ++i) out[i] = block.d * static_cast<float>(block.q[i]);
}
inline void expand_with_min(const Codes32& block, float* out) {
  for (size_t i = 0; i < 32; ++i) out[i] = block.d * static_cast<float>(block.q[i]) + block.m;
}

}  // namespace tally::kernels
