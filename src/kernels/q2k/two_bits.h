#pragma once
// The plane of two-bit codes of 16 rows x 16 k that Q2_K and Q3_K share (64 bytes): byte 4 r + i holds, from
// bit 2 p, code k = 4 p + i of row r; p, i in 0..3. A row's four bytes are moved as one word.

#include "kernels/super_block/nibbles.h"

namespace tally::kernels {

// Puts the low two bits of codes[0..15] into row r.
static inline void store_two_bits(const uint8_t* codes, size_t r, uint8_t* plane) {
  uint32_t word = 0;
  for (size_t p = 0; p < 4; ++p) word |= (load_word(codes + 4 * p) & 0x03030303u) << (2 * p);
  store_word(plane + 4 * r, word);
}

// Sets codes[0..15] to the two-bit codes of row r.
static inline void load_two_bits(const uint8_t* plane, size_t r, uint8_t* codes) {
  const uint32_t word = load_word(plane + 4 * r);
  for (size_t p = 0; p < 4; ++p) store_word(codes + 4 * p, (word >> (2 * p)) & 0x03030303u);
}

}  // namespace tally::kernels
